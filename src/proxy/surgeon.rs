//! Ends tracked flows whose way has changed: after the rules are in force, never before, and beside their writer.
//!
//! It is fed by a latest-wins watch: a listing of the flow table takes a while on a large machine, and the next change of
//! the rules does not wait for it. A first change is carried out at once; while more of them come, all listings together
//! take no more than a tenth of one processor.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use imbl::ordset::DiffItem;
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use crate::edge::conntrack::{Conntrack, ConntrackError};
use crate::edge::probe::{Probe, ProbeError};
use crate::model::flow::{Flow, FlowFilter};
use crate::model::netmap::in_tailscale_range;
use crate::model::plan::Planned;
use crate::model::ruleset::{Delta, Ruleset, diff};
use crate::model::surgery::{Cuts, Verdict};

use super::program::Fault;

/// How long resets may be tried for a flow whose end does not answer.
const RESET_WITHIN: Duration = Duration::from_secs(6);
/// How long to wait after a failure.
const AGAIN: Duration = Duration::from_secs(1);
/// How much longer than a listing took the next one waits.
const REST: u32 = 9;
/// The longest that it waits, however large the table is: flows of a changed key go on to where they went until then.
const LONGEST_REST: Duration = Duration::from_millis(250);

/// What has been ended so far, and the last failure.
#[derive(Debug, Clone, Default)]
pub struct Ended {
    /// Entries deleted without a word (UDP, half-open flows).
    pub deleted: u64,
    /// TCP flows ended with a reset at both ends.
    pub reset: u64,
    /// TCP flows whose far end did not answer the probe: their near end learns with its next segment.
    pub unanswered: u64,
    /// Batches of resets that are not done yet.
    pub under_way: u64,
    /// Whether the rules by which flows were judged last forward anything.
    pub forwarding: bool,
    /// The last failure; cleared by the next success.
    pub fault: Option<Fault>,
}

/// What is in force.
#[derive(Debug, Clone)]
pub struct Applied {
    /// The rules.
    pub rules: Ruleset,
    /// What they were planned from.
    pub planned: Planned,
    /// How many were in force before: who sees only some of them knows that there were others.
    pub number: u64,
}

/// The same, shared.
pub type InForce = Arc<Applied>;

/// Flows that end, each with how.
type Ends = Vec<(Flow, Verdict)>;

/// The socket for resets, or why there is none.
type Opened = Result<Probe, ProbeError>;

/// Ends flows; resets go on in the background.
#[derive(Debug)]
pub struct Surgeon {
    applied: watch::Receiver<Option<InForce>>,
    judged: Option<InForce>,
    resets: JoinSet<()>,
    ended: watch::Sender<Ended>,
}

/// Everything that changed since flows were last judged. Levels, not edges: a key that led elsewhere meanwhile and is back has not
/// changed. It may have got flows to where it led, so that rules which were passed over have every flow compared with those in force.
#[derive(Debug, Clone)]
struct Change {
    /// What was in force then; nothing at the start.
    before: Option<InForce>,
    /// What differs.
    delta: Delta,
    /// What is in force now.
    now: InForce,
}

impl Change {
    /// Whether an address is still somebody's: of the tailnet's addresses those that it still has, of others all.
    fn reachable(&self, ip: IpAddr) -> bool {
        let netmap = self.now.planned.world.netmap.as_deref();
        let before = self.before.as_ref().and_then(|before| before.planned.world.netmap.as_deref());
        let of_tailnet = in_tailscale_range(ip) || before.is_some_and(|netmap| netmap.leads_to(ip));
        !of_tailnet || netmap.is_some_and(|netmap| netmap.leads_to(ip))
    }

    /// Whether an address has left the tailnet: then flows that were draining there end as well.
    fn has_losses(&self) -> bool {
        let Some(before) = &self.before else { return true };
        match (&before.planned.world.netmap, &self.now.planned.world.netmap) {
            (Some(before), Some(after)) => before.routes.diff(&after.routes).any(|item| matches!(item, DiffItem::Remove(_))),
            _ => false,
        }
    }

    /// Whether other rules were in force since flows were last judged.
    fn has_gaps(&self) -> bool {
        self.before.as_ref().is_some_and(|before| self.now.number > before.number + 1)
    }

    /// The verdict on every flow that has to end.
    fn ends(&self, conntrack: &mut Conntrack) -> Result<Ends, ConntrackError> {
        let reachable = |ip| self.reachable(ip);
        let after = &self.now.rules;
        let nothing = Ruleset::empty(after.interface.clone());
        let before = self.before.as_ref().map_or(&nothing, |before| &before.rules);
        let mut lists = vec![Cuts::new(&self.delta, before, after, &reachable)];
        if self.has_losses() || self.has_gaps() {
            lists.push(Cuts::audit(after, &reachable));
        }
        lists.retain(|cuts| !cuts.is_empty());
        let filter = match lists.as_slice() {
            [] => return Ok(Vec::new()),
            [only] => only.filter(),
            _ => FlowFilter::under_way(),
        };
        let worst = |flow: &Flow| lists.iter().map(|cuts| cuts.verdict(flow)).find(|verdict| *verdict != Verdict::Keep);
        Ok(conntrack.flows(filter)?.into_iter().filter_map(|flow| worst(&flow).map(|verdict| (flow, verdict))).collect())
    }
}

/// Deletes what has to end, and opens the socket for the resets if there are to be any.
fn cut(change: &Change) -> Result<(Ends, Option<Opened>), ConntrackError> {
    let mut conntrack = Conntrack::open()?;
    let ends = change.ends(&mut conntrack)?;
    // It listens before the entries go: an end that sends gives its numbers away with its next packet, and only with that.
    let probe = ends.iter().any(|(_, verdict)| *verdict == Verdict::Reset).then(Probe::open);
    conntrack.delete_all(ends.iter().map(|(flow, _)| flow))?;
    Ok((ends, probe))
}

impl Surgeon {
    /// A surgeon of the rules that are told to be in force, and what it has ended.
    #[must_use]
    pub fn new(applied: watch::Receiver<Option<InForce>>) -> (Self, watch::Receiver<Ended>) {
        let (ended, state) = watch::channel(Ended::default());
        (Self { applied, judged: None, resets: JoinSet::new(), ended }, state)
    }

    /// Judges the flows after each change; ends when nobody tells of changes any more. What failed is tried again.
    pub async fn run(mut self) {
        loop {
            let now = self.applied.borrow_and_update().clone();
            let begun = Instant::now();
            let done = match now {
                Some(now) => self.judge(now).await,
                None => true,
            };
            sleep(begun.elapsed().saturating_mul(REST).min(LONGEST_REST)).await;
            let changed = tokio::select! {
                changed = self.applied.changed() => changed,
                () = sleep(AGAIN), if !done => Ok(()),
            };
            if changed.is_err() {
                return;
            }
        }
    }

    /// Deletes the entries of all flows that end; their resets follow at once, in the background. False if it could not.
    async fn judge(&mut self, now: InForce) -> bool {
        while self.resets.try_join_next().is_some() {}
        let nothing = Ruleset::empty(now.rules.interface.clone());
        let delta = diff(self.judged.as_ref().map_or(&nothing, |before| &before.rules), &now.rules);
        let change = Change { before: self.judged.clone(), delta, now: Arc::clone(&now) };
        let fault = match spawn_blocking(move || cut(&change)).await {
            Ok(Ok((ends, probe))) => {
                self.judged = Some(Arc::clone(&now));
                self.reset(ends, probe);
                None
            }
            Ok(Err(error)) => Some(Fault { kind: error.kind(), message: error.to_string() }),
            Err(error) => Some(Fault { kind: "panic", message: error.to_string() }),
        };
        if let Some(fault) = &fault {
            tracing::error!(kind = fault.kind, "flows of changed services go on to where they went until this succeeds: {}", fault.message);
        }
        let done = fault.is_none();
        self.ended.send_modify(|ended| {
            ended.fault = fault;
            ended.forwarding =
                !(done && now.rules.ports.is_empty() && now.rules.from_tailnet.is_empty() && now.rules.from_cluster.is_empty());
        });
        done
    }

    fn reset(&mut self, ends: Ends, probe: Option<Opened>) {
        let silent = ends.iter().filter(|(_, verdict)| *verdict == Verdict::Delete).count() as u64;
        let flows: Vec<_> = ends.into_iter().filter(|(_, verdict)| *verdict == Verdict::Reset).map(|(flow, _)| flow).collect();
        self.ended.send_modify(|ended| ended.deleted += silent);
        let Some(probe) = probe else { return };
        self.ended.send_modify(|ended| ended.under_way += 1);
        let ended = self.ended.clone();
        self.resets.spawn_blocking(move || {
            let outcome = probe.and_then(|probe| probe.reset(&flows, Instant::now() + RESET_WITHIN));
            ended.send_modify(|ended| {
                ended.under_way -= 1;
                match outcome {
                    Ok(report) => {
                        ended.reset += report.reset as u64;
                        ended.unanswered += report.unanswered as u64;
                    }
                    Err(error) => {
                        tracing::error!(kind = error.kind(), flows = flows.len(), "flows end only with their next packet: {error}");
                        ended.fault = Some(Fault { kind: error.kind(), message: error.to_string() });
                    }
                }
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::net::InterfaceName;
    use crate::model::world::World;

    fn applied(number: u64) -> InForce {
        let interface = InterfaceName::tailscale0();
        let planned = Planned::new(&World::empty(interface.clone(), [].into()));
        Arc::new(Applied { rules: Ruleset::empty(interface), planned, number })
    }

    #[test]
    fn rules_that_were_in_force_and_never_judged_by_have_every_flow_compared() {
        let change = |before: Option<u64>, now: u64| {
            let now = applied(now);
            Change { before: before.map(applied), delta: diff(&now.rules, &now.rules), now }
        };
        assert!(change(Some(3), 5).has_gaps());
        assert!(!change(Some(3), 4).has_gaps() && !change(Some(3), 3).has_gaps());
        assert!(change(None, 0).has_losses(), "at the start all of them are");
    }
}
