//! Resets TCP flows at both ends: schedule of segments and evaluation of responses.
//!
//! Each flow's target is probed; the first answer of a live end has the two sequence numbers that make resets valid at both ends. Resets
//! are not acknowledged, so each is sent twice. A silent target is probed again, and then the client too. Pure: times are counted from the
//! start; the caller sends and receives.
//!
//! After the resets the client gets one more segment, to which it responds by a reset of its own. Without that, the conntrack of its node
//! ignores a SYN from the same port for 10 s, and forwards it to this replica, which may have left.
//!
//! A flow whose target had not answered when it was listed may be a connection by the time that its entry is deleted. Only its target is
//! probed, for a moment: a client that still waits for the first answer retransmits by itself and reaches another target or a refusal.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::time::Duration;

use crate::model::flows::flow::{Flow, TcpState};
use crate::model::flows::tcp_segment::{ObservedSegment, Segment, SegmentSender};

/// Times of probes, relative to the start.
///
/// Linux answers one such probe per half second and connection (`tcp_invalid_ratelimit`), older hosts a hundred or a thousand per second in
/// total (`tcp_challenge_ack_limit`): later probes are for these, early ones for lost packets.
const PROBES: [Duration; 9] = [ms(0), ms(120), ms(350), ms(700), ms(1_200), ms(1_800), ms(2_600), ms(3_800), ms(5_400)];
/// Number of probes of a half-open flow's target.
const HALF_OPEN: usize = 3;
/// Delay of the second reset.
const REPEAT_DELAY: Duration = ms(40);
/// Delay of the segment that the client refuses.
const REFUSED_DELAY: Duration = ms(80);
/// Maximum evaluated responses of a flow: an end that still sends data produces many.
const HEEDED: u8 = 8;

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResetReport {
    /// Flows reset at both ends with sequence numbers of a live end.
    pub reset: usize,
    /// Flows that no end has; half-open ones that the target does not have.
    pub gone: usize,
    /// Flows without response in time.
    pub unanswered: usize,
    /// Flows whose segments could not be sent (e.g. no route).
    pub failed: usize,
}

impl AddAssign for ResetReport {
    fn add_assign(&mut self, other: Self) {
        self.reset += other.reset;
        self.gone += other.gone;
        self.unanswered += other.unanswered;
        self.failed += other.failed;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlowSide {
    Target,
    Client,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Asked,
    HalfGone(FlowSide),
    Answered,
    Gone,
    Failed,
}

/// A flow as seen by both ends.
#[derive(Debug)]
struct PendingReset {
    /// Client address as seen by the target.
    source: SocketAddr,
    target: SocketAddr,
    /// Target address as seen by the client.
    service: SocketAddr,
    client: SocketAddr,
    stage: Stage,
    /// Whether the target had not responded yet.
    half_open: bool,
    heeded: u8,
}

#[derive(Debug)]
enum Due {
    Probe { case: usize, attempt: usize },
    Send(Segment),
}

/// Flows being reset.
#[derive(Debug)]
pub struct PendingResets {
    cases: Vec<PendingReset>,
    /// Flows by remote end and our port: a client can have connections to two of our addresses with the same ports.
    ends: HashMap<(SocketAddr, u16), Vec<(usize, FlowSide)>>,
    /// Ordered by time, then by insertion.
    agenda: BTreeMap<(Duration, u64), Due>,
    entries: u64,
    seed: u32,
    open: usize,
    pending: usize,
}

impl PendingReset {
    fn toward(&self, side: FlowSide, make: impl Fn(SocketAddr, SocketAddr) -> Segment) -> Segment {
        match side {
            FlowSide::Target => make(self.source, self.target),
            FlowSide::Client => make(self.service, self.client),
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Asked | Stage::HalfGone(_))
    }
}

impl PendingResets {
    /// The TCP flows among these. `seed` is any number; it makes probes unpredictable.
    pub fn new<'a>(flows: impl IntoIterator<Item = &'a Flow>, seed: u32) -> Self {
        let empty = (Vec::new(), HashMap::new(), BTreeMap::new());
        let mut resets = Self { cases: empty.0, ends: empty.1, agenda: empty.2, entries: 0, seed, open: 0, pending: 0 };
        for flow in flows.into_iter().filter(|flow| flow.is_tcp()) {
            let (original, reply) = (flow.original, flow.reply);
            let case = resets.cases.len();
            resets.cases.push(PendingReset {
                source: reply.destination,
                target: reply.source,
                service: original.destination,
                client: original.source,
                stage: Stage::Asked,
                half_open: flow.tcp.is_some_and(TcpState::is_half_open),
                heeded: 0,
            });
            resets.ends.entry((reply.source, reply.destination.port())).or_default().push((case, FlowSide::Target));
            resets.ends.entry((original.source, original.destination.port())).or_default().push((case, FlowSide::Client));
            resets.enter(PROBES[0], Due::Probe { case, attempt: 0 });
            resets.open += 1;
        }
        resets
    }

    /// Next segment that is due; `None` if none is.
    pub fn take(&mut self, now: Duration) -> Option<Segment> {
        loop {
            let entry = self.agenda.first_entry().filter(|entry| entry.key().0 <= now)?;
            match entry.remove() {
                Due::Send(segment) => {
                    self.pending -= 1;
                    return Some(segment);
                }
                Due::Probe { case, attempt } => {
                    if let Some(segment) = self.probe(case, attempt) {
                        return Some(segment);
                    }
                }
            }
        }
    }

    /// Time of the next segment.
    pub fn next(&self) -> Option<Duration> {
        self.agenda.first_key_value().map(|((at, _), _)| *at)
    }

    /// Evaluates a received segment; unrelated ones change nothing.
    pub fn observe(&mut self, segment: &ObservedSegment, now: Duration) {
        let Some(ends) = self.ends.get(&(segment.from, segment.port)).cloned() else { return };
        for (case, side) in ends {
            match segment.end {
                SegmentSender::Alive => self.answered(case, side, segment, now),
                SegmentSender::Gone => self.refused(case, side, now),
            }
        }
    }

    /// Records a failed send.
    pub fn failed(&mut self, segment: &Segment) {
        for (case, _) in self.ends.get(&segment.end()).cloned().unwrap_or_default() {
            self.settle(case, Stage::Failed);
        }
    }

    /// Whether every flow is settled and no segment is pending.
    pub fn is_over(&self) -> bool {
        self.open == 0 && self.pending == 0
    }

    /// Outcomes so far; flows without response count as unanswered.
    pub fn report(&self) -> ResetReport {
        let mut report = ResetReport::default();
        for case in &self.cases {
            match case.stage {
                Stage::Asked | Stage::HalfGone(_) => report.unanswered += 1,
                Stage::Answered => report.reset += 1,
                Stage::Gone => report.gone += 1,
                Stage::Failed => report.failed += 1,
            }
        }
        report
    }

    fn enter(&mut self, at: Duration, due: Due) {
        self.pending += usize::from(matches!(due, Due::Send(_)));
        self.agenda.insert((at, self.entries), due);
        self.entries += 1;
    }

    /// Probe of one attempt, if still needed. From the second attempt on the client is probed as well.
    fn probe(&mut self, index: usize, attempt: usize) -> Option<Segment> {
        let case = self.cases.get(index).filter(|case| case.is_open())?;
        let half_open = case.half_open;
        if half_open && attempt == HALF_OPEN {
            self.settle(index, Stage::Gone);
            return None;
        }
        let offset = u32::try_from(index).unwrap_or(0).wrapping_mul(0x9e37_79b9);
        let sequence = self.seed.wrapping_add(offset).rotate_left(u32::try_from(attempt).unwrap_or(0));
        let make = |from, to| Segment::probe(from, to, sequence);
        let (target, client) = (case.toward(FlowSide::Target, make), case.toward(FlowSide::Client, make));
        let stage = case.stage;
        let now = PROBES.get(attempt).copied().unwrap_or_default();
        if let Some(at) = PROBES.get(attempt + 1) {
            self.enter(*at, Due::Probe { case: index, attempt: attempt + 1 });
        }
        match stage {
            Stage::HalfGone(FlowSide::Target) => return Some(client),
            Stage::HalfGone(FlowSide::Client) => {}
            _ if attempt > 0 && !half_open => self.enter(now, Due::Send(client)),
            _ => {}
        }
        Some(target)
    }

    /// Schedules resets with a live end's sequence numbers: the number that it expects next for a reset to it, its next number for the
    /// other end, after data in flight. An end that misses data responds with an acknowledgment, which is evaluated again.
    fn answered(&mut self, index: usize, side: FlowSide, segment: &ObservedSegment, now: Duration) {
        let Some(case) = self.cases.get_mut(index).filter(|case| case.heeded < HEEDED && case.stage != Stage::Failed) else { return };
        case.heeded += 1;
        let (sequence, acknowledgment) = (segment.sequence, segment.acknowledgment);
        let beyond = sequence.wrapping_add(segment.length);
        let (here, there) = match side {
            FlowSide::Target => (FlowSide::Target, FlowSide::Client),
            FlowSide::Client => (FlowSide::Client, FlowSide::Target),
        };
        let back = case.toward(here, |from, to| Segment::reset(from, to, acknowledgment, beyond));
        let on = case.toward(there, |from, to| Segment::reset(from, to, sequence, acknowledgment));
        self.settle(index, Stage::Answered);
        for at in [now, now + REPEAT_DELAY] {
            self.enter(at, Due::Send(back));
            self.enter(at, Due::Send(on));
        }
        let to_client = if side == FlowSide::Client { back } else { on };
        self.enter(now + REFUSED_DELAY, Due::Send(to_client.without_reset()));
    }

    fn refused(&mut self, index: usize, side: FlowSide, now: Duration) {
        let Some(case) = self.cases.get_mut(index) else { return };
        match case.stage {
            Stage::Asked if case.half_open => self.settle(index, Stage::Gone),
            Stage::Asked => {
                case.stage = Stage::HalfGone(side);
                let sequence = self.seed;
                let other = if side == FlowSide::Target { FlowSide::Client } else { FlowSide::Target };
                let probe = case.toward(other, |from, to| Segment::probe(from, to, sequence));
                self.enter(now, Due::Send(probe));
            }
            Stage::HalfGone(first) if first != side => self.settle(index, Stage::Gone),
            _ => {}
        }
    }

    fn settle(&mut self, index: usize, stage: Stage) {
        if let Some(case) = self.cases.get_mut(index).filter(|case| case.is_open()) {
            case.stage = stage;
            self.open -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
