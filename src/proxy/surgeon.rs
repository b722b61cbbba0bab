//! Ends tracked flows whose way has changed: after the rules are in force, never before.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use imbl::ordset::DiffItem;
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};

use crate::edge::conntrack::{Conntrack, ConntrackError};
use crate::edge::probe::{Probe, ProbeError};
use crate::model::flow::{Flow, FlowFilter};
use crate::model::plan::Planned;
use crate::model::ruleset::{Delta, Ruleset};
use crate::model::surgery::{Cuts, Verdict};

use super::program::Fault;

/// How long resets may be tried for a flow whose end does not answer.
const RESET_WITHIN: Duration = Duration::from_secs(6);

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
    /// The last failure; cleared by the next success.
    pub fault: Option<Fault>,
}

/// Ends flows; resets go on in the background.
#[derive(Debug)]
pub struct Surgeon {
    resets: JoinSet<()>,
    ended: watch::Sender<Ended>,
}

/// A change as the surgeon sees it.
#[derive(Debug, Clone)]
pub struct Change {
    /// What was in force, and what it was planned from; nothing at the start.
    pub before: Option<(Ruleset, Planned)>,
    /// What differs.
    pub delta: Delta,
    /// What is in force.
    pub after: Ruleset,
    /// What it was planned from.
    pub planned: Planned,
}

impl Change {
    /// Whether an address is still somebody's: of the tailnet's addresses those that it still has, of others all.
    fn reachable(&self, ip: IpAddr) -> bool {
        let netmap = self.planned.world.netmap.as_deref();
        let before = self.before.as_ref().and_then(|(_, planned)| planned.world.netmap.as_deref());
        let of_tailnet = is_tailscale(ip) || before.is_some_and(|netmap| netmap.leads_to(ip));
        !of_tailnet || netmap.is_some_and(|netmap| netmap.leads_to(ip))
    }

    /// Whether an address has left the tailnet: then flows that were draining there end as well.
    fn has_losses(&self) -> bool {
        let Some((_, before)) = &self.before else { return true };
        match (&before.world.netmap, &self.planned.world.netmap) {
            (Some(before), Some(after)) => before.routes.diff(&after.routes).any(|item| matches!(item, DiffItem::Remove(_))),
            _ => false,
        }
    }

    /// The verdict on every flow that has to end.
    fn ends(&self, conntrack: &mut Conntrack) -> Result<Vec<(Flow, Verdict)>, ConntrackError> {
        let reachable = |ip| self.reachable(ip);
        let nothing = Ruleset::empty(self.after.interface.clone());
        let before = self.before.as_ref().map_or(&nothing, |(ruleset, _)| ruleset);
        let mut lists = vec![Cuts::new(&self.delta, before, &self.after, &reachable)];
        if self.has_losses() {
            lists.push(Cuts::audit(&self.after, &reachable));
        }
        lists.retain(|cuts| !cuts.is_empty());
        let filter = match lists.as_slice() {
            [] => return Ok(Vec::new()),
            [only] => only.filter(),
            _ => FlowFilter::forwarded(),
        };
        let worst = |flow: &Flow| lists.iter().map(|cuts| cuts.verdict(flow)).find(|verdict| *verdict != Verdict::Keep);
        Ok(conntrack.flows(filter)?.into_iter().filter_map(|flow| worst(&flow).map(|verdict| (flow, verdict))).collect())
    }
}

fn is_tailscale(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64,
        IpAddr::V6(ip) => ip.segments()[..3] == [0xfd7a, 0x115c, 0xa1e0],
    }
}

impl Surgeon {
    /// A surgeon, and what it has ended.
    #[must_use]
    pub fn new() -> (Self, watch::Receiver<Ended>) {
        let (ended, state) = watch::channel(Ended::default());
        (Self { resets: JoinSet::new(), ended }, state)
    }

    /// Deletes the entries of all flows that the change ends; their resets follow at once, in the background.
    pub async fn cut(&mut self, change: Change) {
        while self.resets.try_join_next().is_some() {}
        let cut = spawn_blocking(move || {
            let mut conntrack = Conntrack::open()?;
            let ends = change.ends(&mut conntrack)?;
            // It listens before the entries go: an end that sends gives its numbers away with its next packet, and only with that.
            let probe = ends.iter().any(|(_, verdict)| *verdict == Verdict::Reset).then(Probe::open);
            conntrack.delete_all(ends.iter().map(|(flow, _)| flow))?;
            Ok::<_, ConntrackError>((ends, probe))
        });
        let fault = match cut.await {
            Ok(Ok((ends, probe))) => {
                self.reset(ends, probe);
                None
            }
            Ok(Err(error)) => Some(Fault { kind: error.kind(), message: error.to_string() }),
            Err(error) => Some(Fault { kind: "Panic", message: error.to_string() }),
        };
        if let Some(fault) = &fault {
            tracing::error!(kind = fault.kind, "flows of changed services may go on to where they went: {}", fault.message);
        }
        self.ended.send_modify(|ended| ended.fault = fault);
    }

    fn reset(&mut self, ends: Vec<(Flow, Verdict)>, probe: Option<Result<Probe, ProbeError>>) {
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
