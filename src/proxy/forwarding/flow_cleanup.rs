//! Ends tracked flows whose way has changed: after the rules are in force, never before, and beside their writer.
//!
//! A listing of the flow table takes a while on a large machine, and the next change of the rules does not wait for it: what comes
//! into force meanwhile is judged together, by [`RulesetHistory`]. A first change is carried out at once; while more of them come, all listings
//! together take no more than a tenth of one processor. Rules that forward nothing any more are the last: they wait for nothing.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{self, timeout, timeout_at};

use crate::edge::conntrack::{Conntrack, ConntrackError};
use crate::edge::raw_tcp::{ProbeError, RawTcpSockets};
use crate::model::base::netmap::NetMap;
use crate::model::firewall::ruleset::Ruleset;
use crate::model::flows::cleanup::{FlowAction, FlowChanges, RulesetHistory};
use crate::model::flows::flow::{Flow, FlowFilter};

use crate::proxy::forwarding::ruleset_sync::SyncFault;

/// How long resets may be tried for a flow whose end does not answer.
const RESET_WITHIN: Duration = Duration::from_secs(6);
/// How long to wait after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How much longer than a listing took the next one waits.
const COOLDOWN: u32 = 9;
/// The longest that it waits, however large the table is: flows of a changed key go on to where they went until then.
const LONGEST_REST: Duration = Duration::from_millis(250);

/// What has been ended so far, and the last failure.
#[derive(Debug, Clone, Default)]
pub struct TerminatedFlows {
    /// Entries deleted without a word (UDP, TCP flows whose ends know of none).
    pub deleted: u64,
    /// TCP flows ended with a reset at both ends.
    pub reset: u64,
    /// TCP flows whose far end did not answer the probe: their near end learns with its next segment.
    pub unanswered: u64,
    /// Batches of resets that are not done yet.
    pub under_way: u64,
    /// Whether the rules by which flows were judged last forward anything; those of a process before may, until there are any.
    pub forwarding: bool,
    /// The last failure; cleared by the next success.
    pub fault: Option<SyncFault>,
}

/// What has come into force.
#[derive(Debug, Clone)]
pub struct Applied {
    pub rules: Ruleset,
    /// The tailnet that they were planned for.
    pub netmap: Option<Arc<NetMap>>,
}

type Ends = Vec<(Flow, FlowAction)>;

/// Flows to reset, and the socket for that, or why there is none.
type ResetQueue = (Vec<Flow>, Result<RawTcpSockets, ProbeError>);

/// Ends flows; resets go on in the background.
#[derive(Debug)]
pub struct FlowCleaner {
    applied: mpsc::UnboundedReceiver<Applied>,
    /// Nothing until something is in force.
    change: Option<PendingChanges>,
    resets: JoinSet<()>,
    ended: watch::Sender<TerminatedFlows>,
}

/// Everything that changed since flows were last judged. Levels, not edges: a key that was gone meanwhile and leads where it did has not
/// changed.
#[derive(Debug, Clone)]
struct PendingChanges {
    /// What was in force since.
    past: RulesetHistory,
    now: Applied,
    judged: bool,
}

impl PendingChanges {
    /// What is in force alone.
    fn of(now: Applied, judged: bool) -> Self {
        Self { past: RulesetHistory::of(&now.rules, now.netmap.as_deref()), now, judged }
    }

    fn add(&mut self, now: Applied) {
        self.past.add(&now.rules, now.netmap.as_deref());
        self.now = now;
    }

    /// Whether an address is still somebody's: of the tailnet's addresses those that it still has, of others all.
    fn reachable(&self, ip: IpAddr) -> bool {
        !self.past.knows(ip) || self.now.netmap.as_ref().is_some_and(|netmap| netmap.routes_to(ip))
    }

    /// Whether all flows are compared with what is in force, those that drain elsewhere too: where an address has left the tailnet, and
    /// at the start.
    fn is_audit(&self) -> bool {
        !self.judged || self.now.netmap.as_ref().is_some_and(|netmap| self.past.has_lost(netmap))
    }

    /// The verdict on every flow that has to end.
    fn ends(&self, conntrack: &mut Conntrack) -> Result<Ends, ConntrackError> {
        let reachable = |ip| self.reachable(ip);
        let after = &self.now.rules;
        let delta = self.past.until(after);
        let mut lists = vec![FlowChanges::new(&self.past, &delta, after, &reachable)];
        if self.is_audit() {
            lists.push(FlowChanges::audit(after, &reachable));
        }
        lists.retain(|cuts| !cuts.is_empty());
        let filter = match lists.as_slice() {
            [] => return Ok(Vec::new()),
            [only] => only.filter(),
            _ => FlowFilter::under_way(),
        };
        let worst = |flow: &Flow| lists.iter().map(|cuts| cuts.verdict(flow)).find(|verdict| *verdict != FlowAction::Keep);
        Ok(conntrack.flows(filter)?.into_iter().filter_map(|flow| worst(&flow).map(|verdict| (flow, verdict))).collect())
    }
}

/// Deletes what has to end, and says how many of them have nobody to be told. Those to be reset come first and are handed on at once:
/// their ends wait, and of the others there may be many.
fn cut(change: &PendingChanges, resets: oneshot::Sender<ResetQueue>) -> Result<usize, ConntrackError> {
    let mut conntrack = Conntrack::open()?;
    let (reset, silent): (Ends, Ends) = change.ends(&mut conntrack)?.into_iter().partition(|(_, verdict)| *verdict == FlowAction::Reset);
    if !reset.is_empty() {
        // It listens before the entries go: an end that sends gives its numbers away with its next packet, and only with that.
        let probe = RawTcpSockets::open();
        let deleted = conntrack.delete_all(reset.iter().map(|(flow, _)| flow));
        // Where some could not be deleted the others are gone all the same. Who listens waits for nothing else.
        let _ = resets.send((reset.into_iter().map(|(flow, _)| flow).collect(), probe));
        deleted?;
    }
    conntrack.delete_all(silent.iter().map(|(flow, _)| flow))?;
    Ok(silent.len())
}

impl FlowCleaner {
    /// A cleaner that follows the rulesets in force, and what it has ended.
    #[must_use]
    pub fn new(applied: mpsc::UnboundedReceiver<Applied>) -> (Self, watch::Receiver<TerminatedFlows>) {
        let (ended, state) = watch::channel(TerminatedFlows { forwarding: true, ..TerminatedFlows::default() });
        (Self { applied, change: None, resets: JoinSet::new(), ended }, state)
    }

    /// Checks the flows after each change; ends with the sender of changes. Retries failures.
    pub async fn run(mut self) {
        let mut rested = time::Instant::now();
        while self.receive().await {
            while self.is_forwarding()
                && let Ok(more) = timeout_at(rested, self.receive()).await
            {
                if !more {
                    return;
                }
            }
            let begun = time::Instant::now();
            while !self.clean_up().await {
                // With what has come into force by then.
                if timeout(RETRY_INTERVAL, self.receive()).await == Ok(false) {
                    return;
                }
            }
            rested = time::Instant::now() + begun.elapsed().saturating_mul(COOLDOWN).min(LONGEST_REST);
        }
    }

    /// Adds the next change; false after the last one.
    async fn receive(&mut self) -> bool {
        let Some(applied) = self.applied.recv().await else { return false };
        match &mut self.change {
            Some(change) => change.add(applied),
            none => *none = Some(PendingChanges::of(applied, false)),
        }
        true
    }

    fn is_forwarding(&self) -> bool {
        self.change.as_ref().is_none_or(|change| change.now.rules.forwards())
    }

    /// Deletes the entries of all flows that end; their resets follow at once, in the background. False if it could not.
    async fn clean_up(&mut self) -> bool {
        while self.resets.try_join_next().is_some() {}
        let Some(change) = self.change.clone() else { return true };
        let now = change.now.clone();
        let forwarding = now.rules.forwards();
        let (sender, resets) = oneshot::channel();
        let cutting = spawn_blocking(move || cut(&change, sender));
        if let Ok(resets) = resets.await {
            self.reset(resets);
        }
        let fault = match cutting.await {
            Ok(Ok(silent)) => {
                self.change = Some(PendingChanges::of(now, true));
                self.ended.send_modify(|ended| ended.deleted += silent as u64);
                None
            }
            Ok(Err(error)) => Some(SyncFault { reason: error.reason(), message: error.to_string() }),
            Err(error) => Some(SyncFault { reason: "Panicked", message: error.to_string() }),
        };
        if let Some(fault) = &fault {
            tracing::error!(reason = fault.reason, "conntrack cleanup failed; existing flows still use the old target: {}", fault.message);
        }
        let done = fault.is_none();
        self.ended.send_modify(|ended| {
            ended.fault = fault;
            ended.forwarding = forwarding || !done;
        });
        done
    }

    fn reset(&mut self, (flows, probe): ResetQueue) {
        self.ended.send_modify(|ended| ended.under_way += 1);
        let ended = self.ended.clone();
        self.resets.spawn_blocking(move || {
            let outcome = probe.and_then(|probe| probe.reset(&flows, Instant::now() + RESET_WITHIN));
            ended.send_modify(|ended| {
                ended.under_way -= 1;
                match outcome {
                    Ok(report) => {
                        ended.reset += report.reset as u64;
                        ended.deleted += report.gone as u64;
                        ended.unanswered += report.unanswered as u64;
                    }
                    Err(error) => {
                        tracing::error!(
                            reason = error.reason(),
                            flows = flows.len(),
                            "cannot open a raw socket; idle flows are reset only with their next packet: {error}"
                        );
                        ended.fault = Some(SyncFault { reason: error.reason(), message: error.to_string() });
                    }
                }
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;

    use super::*;
    use crate::model::base::net::InterfaceName;

    #[test]
    fn at_the_start_and_when_an_address_has_left_the_tailnet_every_flow_is_compared() {
        let netmap = |nets: &[&str]| {
            let routes = nets.iter().map(|net| net.parse::<IpNet>().expect("a network")).collect();
            Some(Arc::new(NetMap { routes, ..NetMap::default() }))
        };
        let applied = |netmap| Applied { rules: Ruleset::empty(InterfaceName::tailscale0()), netmap };
        let (one, both) = (netmap(&["10.1.0.0/16"]), netmap(&["10.1.0.0/16", "10.2.0.0/16"]));
        assert!(PendingChanges::of(applied(one.clone()), false).is_audit());
        let mut change = PendingChanges::of(applied(one.clone()), true);
        assert!(!change.is_audit());
        change.add(applied(both));
        assert!(!change.is_audit());
        change.add(applied(one));
        assert!(change.is_audit(), "somebody came and went");
        let reachable = |ip: &str| change.reachable(ip.parse().expect("an address"));
        assert!(reachable("10.1.0.1") && !reachable("10.2.0.1") && reachable("10.3.0.1") && !reachable("100.64.0.1"));
    }
}
