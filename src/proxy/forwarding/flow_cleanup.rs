//! Conntrack cleanup: ends flows whose target has changed, after the ruleset is in force and concurrently with its writer.
//!
//! Listing a large conntrack table is slow and does not delay ruleset changes: changes during a listing are merged by
//! [`RulesetHistory`]. The first change is handled at once; during a sequence of changes, listings use at most a tenth of a processor. The
//! final ruleset of a drained replica is not delayed.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{self, timeout_at};

use crate::edge::conntrack::{Conntrack, ConntrackError};
use crate::edge::raw_tcp::{ProbeError, RawTcpSockets};
use crate::model::base::netmap::NetMap;
use crate::model::firewall::ruleset::Ruleset;
use crate::model::flows::cleanup::{FlowAction, FlowChanges, RulesetHistory};
use crate::model::flows::flow::{Flow, FlowFilter};

use crate::proxy::forwarding::ruleset_sync::SyncFault;

/// Maximum time for resets of unresponsive ends.
const RESET_TIMEOUT: Duration = Duration::from_secs(6);
/// Retry interval after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Pause between listings, as a multiple of the last one's duration.
const COOLDOWN: u32 = 9;
/// Maximum pause, whatever the size of the table: until then flows use their old targets.
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// Totals of terminated flows, and the last error.
#[derive(Debug, Clone, Default)]
pub struct TerminatedFlows {
    /// Entries deleted without reset (UDP, TCP without ends).
    pub deleted: u64,
    /// TCP flows reset at both ends.
    pub reset: u64,
    /// TCP flows whose target did not respond: the client is reset with its next segment.
    pub unanswered: u64,
    /// Unfinished batches of resets.
    pub under_way: u64,
    /// Whether the last checked ruleset forwards anything; true before the first, because of earlier processes.
    pub forwarding: bool,
    /// Last error; cleared by the next success.
    pub fault: Option<SyncFault>,
}

#[derive(Debug, Clone)]
pub struct Applied {
    pub rules: Ruleset,
    /// Netmap of its plan.
    pub netmap: Option<Arc<NetMap>>,
}

type Ends = Vec<(Flow, FlowAction)>;

/// Flows to reset, and the socket or the error of opening it.
type ResetQueue = (Vec<Flow>, Result<RawTcpSockets, ProbeError>);

/// Ends flows; resets run in the background.
#[derive(Debug)]
pub struct FlowCleaner {
    applied: mpsc::UnboundedReceiver<Applied>,
    /// `None` before the first applied ruleset.
    change: Option<PendingChanges>,
    resets: JoinSet<()>,
    ended: watch::Sender<TerminatedFlows>,
}

/// Changes since the last check of flows. Level-triggered: a key that was removed and restored is unchanged.
#[derive(Debug, Clone)]
struct PendingChanges {
    /// Rulesets since then.
    past: RulesetHistory,
    now: Applied,
    audited: bool,
}

impl PendingChanges {
    fn of(now: Applied, audited: bool) -> Self {
        Self { past: RulesetHistory::of(&now.rules, now.netmap.as_deref()), now, audited }
    }

    fn add(&mut self, now: Applied) {
        self.past.add(&now.rules, now.netmap.as_deref());
        self.now = now;
    }

    /// Whether an address still has a peer; true for addresses outside of the tailnet.
    fn reachable(&self, ip: IpAddr) -> bool {
        !self.past.knows(ip) || self.now.netmap.as_ref().is_some_and(|netmap| netmap.routes_to(ip))
    }

    /// Whether all flows are compared with the current ruleset, including draining ones: after an address has left the tailnet, and at the
    /// start.
    fn is_audit(&self) -> bool {
        !self.audited || self.now.netmap.as_ref().is_some_and(|netmap| self.past.has_lost(netmap))
    }

    /// Flows that must end, with actions.
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

/// Deletes the entries of ending flows; returns the number without reset. Flows to reset come first and are sent at once, because there may
/// be many others.
fn cut(change: &PendingChanges, resets: oneshot::Sender<ResetQueue>) -> Result<usize, ConntrackError> {
    let mut conntrack = Conntrack::open()?;
    let (reset, silent): (Ends, Ends) = change.ends(&mut conntrack)?.into_iter().partition(|(_, verdict)| *verdict == FlowAction::Reset);
    if !reset.is_empty() {
        // Listen before deleting entries: the next packet of a sending end has its sequence numbers.
        let probe = RawTcpSockets::open();
        let deleted = conntrack.delete_all(reset.iter().map(|(flow, _)| flow));
        // Even if some deletions failed, the others succeeded. The receiver waits for nothing else.
        let _ = resets.send((reset.into_iter().map(|(flow, _)| flow).collect(), probe));
        deleted?;
    }
    conntrack.delete_all(silent.iter().map(|(flow, _)| flow))?;
    Ok(silent.len())
}

impl FlowCleaner {
    /// A cleaner of applied rulesets, and its totals.
    pub fn new(applied: mpsc::UnboundedReceiver<Applied>) -> (Self, watch::Receiver<TerminatedFlows>) {
        let (ended, state) = watch::channel(TerminatedFlows { forwarding: true, ..TerminatedFlows::default() });
        (Self { applied, change: None, resets: JoinSet::new(), ended }, state)
    }

    /// Checks flows after each change; ends when the sender is dropped. Retries failures.
    pub async fn run(mut self) {
        let mut rested = time::Instant::now();
        while self.receive().await {
            if self.is_forwarding() && !self.receive_until(rested).await {
                return;
            }
            let begun = time::Instant::now();
            while !self.clean_up().await {
                if !self.receive_until(time::Instant::now() + RETRY_INTERVAL).await {
                    return;
                }
            }
            rested = time::Instant::now() + begun.elapsed().saturating_mul(COOLDOWN).min(MAX_PAUSE);
        }
    }

    /// Receives the next change; false after the last.
    async fn receive(&mut self) -> bool {
        let Some(applied) = self.applied.recv().await else { return false };
        match &mut self.change {
            Some(change) => change.add(applied),
            none => *none = Some(PendingChanges::of(applied, false)),
        }
        true
    }

    /// Receives changes until `end`: none of them shortens a pause, except one that ends forwarding. False after the last.
    async fn receive_until(&mut self, end: time::Instant) -> bool {
        while let Ok(more) = timeout_at(end, self.receive()).await {
            if !more {
                return false;
            }
            if !self.is_forwarding() {
                break;
            }
        }
        true
    }

    fn is_forwarding(&self) -> bool {
        self.change.as_ref().is_none_or(|change| change.now.rules.forwards())
    }

    /// Deletes the entries of all ending flows; resets follow in the background. False after a failure.
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
            let outcome = probe.and_then(|probe| probe.reset(&flows, Instant::now() + RESET_TIMEOUT));
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
    fn start_and_lost_route_cause_a_flow_audit() {
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
        assert!(change.is_audit(), "another writer changed and reverted it");
        let reachable = |ip: &str| change.reachable(ip.parse().expect("an address"));
        assert!(reachable("10.1.0.1") && !reachable("10.2.0.1") && reachable("10.3.0.1") && !reachable("100.64.0.1"));
    }

    #[tokio::test(start_paused = true)]
    async fn changes_shorten_no_pause_until_forwarding_ends() {
        let (sender, applied) = mpsc::unbounded_channel();
        let (mut cleaner, _ended) = FlowCleaner::new(applied);
        let empty = Ruleset::empty(InterfaceName::tailscale0());
        let mut forwarding = empty.clone();
        forwarding.from_cluster.insert(IpAddr::from([10, 0, 0, 5]), [IpAddr::from([100, 64, 0, 2])].into());
        assert!(forwarding.forwards() && !empty.forwards());
        let changes = tokio::spawn(async move {
            for _ in 0..25 {
                sender.send(Applied { rules: forwarding.clone(), netmap: None }).expect("a receiver");
                time::sleep(Duration::from_millis(100)).await;
            }
            sender.send(Applied { rules: empty, netmap: None }).expect("a receiver");
        });
        let start = time::Instant::now();
        let pause = || time::Instant::now() + RETRY_INTERVAL;
        for end in [1000, 2000, 2500] {
            assert!(cleaner.receive_until(pause()).await);
            assert_eq!(start.elapsed().as_millis(), end);
        }
        assert!(!cleaner.receive_until(pause()).await, "the sender is gone");
        changes.await.expect("no panic");
    }
}
