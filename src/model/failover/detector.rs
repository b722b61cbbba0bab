//! Detector of lost replicas: a state machine of one process, whose inputs are Pods, results of probes and times.
//!
//! A replica is unreachable if it answered before, was silent for [`MIN_SILENCE`] and missed [`MISSES`] probes since. That alone may be a fault
//! of this process, so a *survivor* must exist: a ready replica of the group on another node that answered a probe sent after the first
//! missed one, and is not noted as lost. [`Detector::confirm`] repeats both with Pods read from the API server: a process without API
//! server writes nothing, and a replica that another process has made unready is no survivor. Hence each mark leaves a ready replica that
//! answers. Of a standalone proxy with standby the waiting Pod is the survivor, and its claim decides in place of notes.
//!
//! Only the path from this process to the replica may be broken. So a suspicion is noted on the Pod for [`OBJECTION_PERIOD`] before the mark,
//! and a process that reaches the replica removes the note ([`Detector::refutes`]). The first process then suspects it again after
//! [`DISPUTE_INTERVAL`] at the earliest, unless it answers meanwhile. A process that reaches a replica only because both are on one node
//! must reach another node, too, as must the one that suspects: otherwise the network of that node may be the broken one.
//!
//! A mark stays as long as its note: a replica that is restored by its kubelet meanwhile is marked again at once. Each process that reaches
//! the replica removes the note, as does one that finds no other replica ready.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize as _;
use serde_json::Value;

use super::note::{NoteStep, PodChange};
use super::replica::{ReplicaPod, ReplicaReadiness};
use crate::api::failover::{UnreachableNote, UnreachableStage};
use crate::model::controller::key::WorkloadKey;

/// Interval of probes of a replica. It is longer with more than [`MAX_PROBES_PER_SECOND`] × this interval replicas, or Pods of standalone
/// proxies: these have probes of their own, so that they delay no failover of a group.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);
/// Time after which a probe is missed.
pub const PROBE_TIMEOUT: Duration = Duration::from_millis(400);
/// Maximum probes of a process in a second, of replicas and of standalone proxies each.
const MAX_PROBES_PER_SECOND: u32 = 400;
/// Minimum time without an answer from a lost replica.
const MIN_SILENCE: Duration = Duration::from_secs(1);
/// Minimum missed probes of a lost replica.
const MISSES: u32 = 3;
/// Maximum age of a survivor's last answer, if its probe interval is not longer.
const SURVIVOR_AGE: Duration = Duration::from_millis(500);
/// A longer time between two turns means that this process did not run: answers may have been lost.
const MAX_TURN_GAP: Duration = Duration::from_millis(500);
/// Time for which a suspicion is noted before the Pod is made unready. An objection takes a read of the cache, a probe and a write.
const OBJECTION_PERIOD: Duration = Duration::from_millis(250);
/// Time until a replica is suspected again that another process reaches.
const DISPUTE_INTERVAL: Duration = Duration::from_secs(30);
/// Interval in which the note of a lost replica is renewed, well before [`super::reception::NOTE_TTL`].
const RENEWAL_INTERVAL: Duration = Duration::from_mins(2);
/// The Lease is held for this time after the last suspicion.
const LEASE_GRACE: Duration = Duration::from_secs(10);

/// Detector of one process.
#[derive(Debug, Default)]
pub struct Detector {
    /// Name of this process in notes.
    process: String,
    /// Its node. If unknown, it counts as another one than those of all replicas.
    node: Option<String>,
    /// By the UID of the Pod.
    replicas: BTreeMap<String, ProbedReplica>,
    last_turn: Option<Instant>,
    last_suspicion: Option<Instant>,
}

#[derive(Debug)]
struct ProbedReplica {
    pod: ReplicaPod,
    next_probe: Instant,
    answer: Option<ProbeAnswer>,
    /// Time of the last answer, or end of the last pause of this process.
    silent_since: Instant,
    /// Missed probes that were sent since then.
    misses: u32,
    first_missed: Option<Instant>,
    /// Time at which this process noted its suspicion, or marked a Pod of a standalone proxy; no answer followed.
    suspected: Option<Instant>,
    /// Time at which another process removed that note.
    disputed: Option<Instant>,
    /// Time at which this process read the note first.
    note_read: Option<Instant>,
    /// Whether its Pod was unready as lost, and it did not answer as a ready one since.
    lost: bool,
}

/// The newest answer of a replica.
#[derive(Debug, Clone, Copy)]
struct ProbeAnswer {
    /// Newest send time of an answered probe.
    sent: Instant,
    at: Instant,
}

/// A probe to send now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    pub uid: String,
    pub target: SocketAddr,
    /// Whether its arrival proves that other nodes reach the replica.
    pub is_proof: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DetectorTurn {
    pub probes: Vec<Probe>,
    /// Workloads with a suspected replica.
    pub suspected: BTreeSet<WorkloadKey>,
    /// Workloads with a replica whose note this process refutes.
    pub refuted: BTreeSet<WorkloadKey>,
    /// Whether this process needs the failover Lease.
    pub wants_lease: bool,
    /// Time without a turn before this one, if this process did not run.
    pub paused: Option<Duration>,
}

/// What a read of the cache shows.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Lost replicas that are ready and answer again.
    pub returned: Vec<ReplicaPod>,
    /// Replicas that this process does not reach and another one does.
    pub disputed: Vec<ReplicaPod>,
}

impl Detector {
    /// `node` is that of this process, if known.
    pub fn new(process: &str, node: Option<&str>) -> Self {
        Self { process: process.to_owned(), node: node.map(str::to_owned), ..Self::default() }
    }

    /// Sets the replicas. Groups with one replica, and standalone proxies without standby, are not probed.
    pub fn observe(&mut self, pods: Vec<ReplicaPod>, now: Instant) -> Observation {
        let (mut sizes, mut ready): (BTreeMap<WorkloadKey, usize>, BTreeMap<WorkloadKey, usize>) = Default::default();
        for pod in &pods {
            *sizes.entry(pod.workload.clone()).or_default() += 1;
            *ready.entry(pod.workload.clone()).or_default() += usize::from(is_ready(pod));
        }
        let mut before = std::mem::take(&mut self.replicas);
        let mut observation = Observation::default();
        for pod in pods.into_iter().filter(|pod| pod.note.is_some() || sizes.get(&pod.workload).is_some_and(|size| *size > 1)) {
            let uid = pod.uid.clone();
            let mut replica = before.remove(&uid).unwrap_or_else(|| ProbedReplica::new(pod.clone(), now));
            replica.read(pod, now);
            // Without another ready replica the note was not in dispute, but of no use.
            let others = ready.get(&replica.pod.workload).copied().unwrap_or_default() - usize::from(is_ready(&replica.pod));
            if replica.pod.workload.is_standalone() {
                // It has no notes.
            } else if others == 0 && replica.pod.note.is_none() {
                replica.suspected = None;
            } else if replica.is_disputed(now) {
                self.last_suspicion = None;
                observation.disputed.push(replica.pod.clone());
            }
            if replica.returns() {
                observation.returned.push(replica.pod.clone());
            }
            self.replicas.insert(uid, replica);
        }
        observation
    }

    /// Runs a turn; due several times within [`MAX_TURN_GAP`].
    pub fn turn(&mut self, now: Instant) -> DetectorTurn {
        let gap = self.last_turn.replace(now).map(|last| now.saturating_duration_since(last));
        let paused = gap.filter(|gap| *gap > MAX_TURN_GAP);
        if paused.is_some() {
            for replica in self.replicas.values_mut() {
                replica.restart_silence(now);
            }
        }
        let workloads = |has: &dyn Fn(&ProbedReplica) -> bool| -> BTreeSet<WorkloadKey> {
            self.replicas.values().filter(|replica| has(replica)).map(|replica| replica.pod.workload.clone()).collect()
        };
        let suspected = workloads(&|replica| self.is_suspect(replica, now));
        let refuted = workloads(&|replica| self.refutes(&replica.pod, now));
        if !suspected.is_empty() {
            self.last_suspicion = Some(now);
        }
        let wants_lease = self.last_suspicion.is_some_and(|last| now.saturating_duration_since(last) < LEASE_GRACE);
        let gap = gap.unwrap_or_default();
        let probes = [false, true].into_iter().flat_map(|standalone| self.due(standalone, gap, now)).collect();
        DetectorTurn { probes, suspected, refuted, wants_lease, paused }
    }

    /// Probes that are due, those that wait longest first, within the rate limit.
    fn due(&mut self, standalone: bool, gap: Duration, now: Instant) -> Vec<Probe> {
        let (interval, is_connected, node) = (self.interval(standalone), self.is_connected(now), self.node.clone());
        let is_due = |replica: &&mut ProbedReplica| replica.next_probe <= now && replica.pod.workload.is_standalone() == standalone;
        let mut due: Vec<_> = self.replicas.values_mut().filter(is_due).collect();
        due.sort_by_key(|replica| replica.next_probe);
        let limit = (gap.min(MAX_TURN_GAP).as_millis() * u128::from(MAX_PROBES_PER_SECOND)).div_ceil(1000).max(1);
        due.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        let probe = |replica: &mut ProbedReplica| {
            // A late turn does not shorten the next interval below a half.
            replica.next_probe = (replica.next_probe + interval).max(now + interval / 2);
            let is_proof = is_connected || node.as_ref() != Some(&replica.pod.node);
            Probe { uid: replica.pod.uid.clone(), target: replica.pod.target, is_proof }
        };
        due.into_iter().map(probe).collect()
    }

    /// Records the result of a probe.
    pub fn record(&mut self, uid: &str, sent: Instant, answered: bool, now: Instant) {
        let Some(replica) = self.replicas.get_mut(uid) else { return };
        if answered {
            let newest = replica.answer.map_or(sent, |answer| answer.sent.max(sent));
            replica.answer = Some(ProbeAnswer { sent: newest, at: now });
            (replica.suspected, replica.disputed) = (None, None);
            replica.restart_silence(now);
        } else if sent >= replica.silent_since {
            replica.misses = replica.misses.saturating_add(1);
            replica.first_missed = Some(replica.first_missed.map_or(sent, |first| first.min(sent)));
        }
    }

    /// The next change of a workload's Pods, as read from the API server with a request sent at `begun`. After it the Pods must be read again:
    /// a replica that was made unready may have been the survivor of another.
    pub fn confirm(&self, workload: &WorkloadKey, pods: Vec<Value>, begun: Instant, now: Instant) -> Option<PodChange> {
        if self.last_turn.is_none_or(|last| now.saturating_duration_since(last) > MAX_TURN_GAP) {
            // This process did not run; the next turn discards the silence.
            return None;
        }
        let live = read(workload, pods);
        let change = |pod: &ReplicaPod| {
            let replica = self.replicas.get(&pod.uid).filter(|replica| begun > replica.silent_since)?;
            let first = replica.unreachable(now)?;
            let step = replica.step(pod, &self.process, now)?;
            let has_survivor = live.iter().any(|(other, _)| self.survives(other, pod, first, now));
            has_survivor.then(|| (step, now.saturating_duration_since(replica.silent_since)))
        };
        live.iter().find_map(|(pod, object)| {
            let (step, silence) = change(pod)?;
            Some(PodChange { pod: pod.clone(), step, silence, connected: self.is_connected(now), object: object.clone() })
        })
    }

    /// The next note of a workload to remove, by its Pods as read from the API server.
    pub fn withdrawal(&self, workload: &WorkloadKey, pods: Vec<Value>, now: Instant) -> Option<PodChange> {
        let found = read(workload, pods).into_iter().find(|(pod, _)| {
            // The note that was answered, not a newer one.
            self.replicas.get(&pod.uid).is_some_and(|replica| replica.pod.note == pod.note) && self.refutes(pod, now)
        });
        let (silence, connected) = (Duration::ZERO, self.is_connected(now));
        found.map(|(pod, object)| {
            let step = NoteStep::Withdraw { is_reached: self.reaches_noted(&pod, now) };
            PodChange { pod, step, silence, connected, object }
        })
    }

    /// Records that the suspicion of a replica was noted, or a Pod of a standalone proxy marked.
    pub fn suspected(&mut self, uid: &str, now: Instant) {
        if let Some(replica) = self.replicas.get_mut(uid) {
            replica.suspected = Some(now);
        }
    }

    /// Whether a replica is to be suspected or marked, and has a survivor.
    fn is_suspect(&self, replica: &ProbedReplica, now: Instant) -> bool {
        let Some(first) = replica.unreachable(now).filter(|_| replica.is_due(&self.process, now)) else { return false };
        self.replicas.values().any(|other| self.survives(&other.pod, &replica.pod, first, now))
    }

    /// Whether a replica takes the traffic of another one whose first missed probe was sent at this time.
    fn survives(&self, pod: &ReplicaPod, lost: &ReplicaPod, first: Instant, now: Instant) -> bool {
        let may_serve = pod.workload == lost.workload && pod.node != lost.node && pod.is_survivor() && !pod.is_noted_lost();
        may_serve && self.replicas.get(&pod.uid).is_some_and(|replica| self.answers_since(replica, first, now))
    }

    /// Whether the note of a replica is wrong or does harm: the replica is reached, or no other one is ready.
    fn refutes(&self, pod: &ReplicaPod, now: Instant) -> bool {
        let serves = |other: &ProbedReplica| other.pod.workload == pod.workload && other.pod.uid != pod.uid && is_ready(&other.pod);
        self.reaches_noted(pod, now) || (pod.is_noted_lost() && !self.replicas.values().any(serves))
    }

    /// Whether a noted replica has answered this process since, and that says something about its network.
    fn reaches_noted(&self, pod: &ReplicaPod, now: Instant) -> bool {
        let Some(replica) = self.replicas.get(&pod.uid) else { return false };
        let (Some(note), Some(read)) = (&pod.note, replica.note_read) else { return false };
        let is_independent = !self.is_local(pod) || self.is_connected(now) || !note.connected;
        is_independent && self.answers_since(replica, read, now)
    }

    /// Whether this process reaches a replica on a node that is not its own.
    fn is_connected(&self, now: Instant) -> bool {
        let [of_group, of_standalone] = [false, true].map(|standalone| self.max_answer_age(standalone));
        let is_fresh = |other: &ProbedReplica| {
            let age = if other.pod.workload.is_standalone() { of_standalone } else { of_group };
            other.answer.is_some_and(|answer| now.saturating_duration_since(answer.at) <= age)
        };
        self.node.is_none() || self.replicas.values().any(|other| !self.is_local(&other.pod) && is_fresh(other))
    }

    fn is_local(&self, pod: &ReplicaPod) -> bool {
        self.node.as_ref() == Some(&pod.node)
    }

    /// Whether a replica has just answered a probe that was sent after this time.
    fn answers_since(&self, replica: &ProbedReplica, time: Instant, now: Instant) -> bool {
        let age = self.max_answer_age(replica.pod.workload.is_standalone());
        replica.answer.is_some_and(|answer| answer.sent >= time && now.saturating_duration_since(answer.at) <= age)
    }

    fn max_answer_age(&self, standalone: bool) -> Duration {
        SURVIVOR_AGE.max(2 * self.interval(standalone))
    }

    fn interval(&self, standalone: bool) -> Duration {
        let count = self.replicas.values().filter(|replica| replica.pod.workload.is_standalone() == standalone).count();
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        PROBE_INTERVAL.max(Duration::from_secs(1) * count / MAX_PROBES_PER_SECOND)
    }
}

impl ProbedReplica {
    fn new(pod: ReplicaPod, now: Instant) -> Self {
        let (answer, first_missed, suspected, disputed, note_read) = (None, None, None, None, None);
        Self { pod, next_probe: now, answer, silent_since: now, misses: 0, first_missed, suspected, disputed, note_read, lost: false }
    }

    /// Replaces the Pod. A new note is examined by a probe at once.
    fn read(&mut self, pod: ReplicaPod, now: Instant) {
        self.lost |= pod.readiness == ReplicaReadiness::Lost;
        if self.note_read.is_none() || self.pod.note != pod.note {
            self.note_read = pod.note.as_ref().map(|_| now);
            self.next_probe = if pod.note.is_some() { now } else { self.next_probe };
        }
        self.pod = pod;
    }

    /// Whether another process has removed the note of this one; true once.
    fn is_disputed(&mut self, now: Instant) -> bool {
        let is_disputed = self.pod.note.is_none() && self.suspected.take().is_some();
        self.disputed = if is_disputed { Some(now) } else { self.disputed };
        is_disputed
    }

    fn restart_silence(&mut self, now: Instant) {
        (self.silent_since, self.misses, self.first_missed) = (now, 0, None);
    }

    /// Send time of the first missed probe of an unreachable replica.
    fn unreachable(&self, now: Instant) -> Option<Instant> {
        let is_silent = now.saturating_duration_since(self.silent_since) >= MIN_SILENCE && self.misses >= MISSES;
        let was_reached = self.answer.is_some() || self.pod.is_noted_lost();
        self.first_missed.filter(|_| was_reached && is_silent)
    }

    /// Whether its Pod is to be changed if it is unreachable, now or after the time for objections.
    fn is_due(&self, process: &str, now: Instant) -> bool {
        let is_own = |note: &UnreachableNote| note.stage == UnreachableStage::Suspected && note.process == process;
        let awaits_objections = self.suspected.is_some() && is_ready(&self.pod) && self.pod.note.as_ref().is_some_and(is_own);
        awaits_objections || self.step(&self.pod, process, now).is_some()
    }

    /// The change of a Pod of this replica, if it is unreachable.
    fn step(&self, pod: &ReplicaPod, process: &str, now: Instant) -> Option<NoteStep> {
        let elapsed = |since: Instant| now.saturating_duration_since(since);
        match (&pod.note, self.suspected) {
            (Some(note), _) if note.stage == UnreachableStage::Lost => {
                let is_old = self.note_read.is_some_and(|read| elapsed(read) >= RENEWAL_INTERVAL);
                if is_ready(pod) { Some(NoteStep::MakeUnready) } else { is_old.then_some(NoteStep::Renew) }
            }
            _ if !is_ready(pod) => None,
            (_, since) if pod.workload.is_standalone() => {
                since.is_none_or(|since| elapsed(since) >= DISPUTE_INTERVAL).then_some(NoteStep::MakeUnready)
            }
            (Some(note), Some(since)) if note.process == process => (elapsed(since) >= OBJECTION_PERIOD).then_some(NoteStep::MakeUnready),
            // The note was removed; the next read of the cache shows that.
            (None, Some(_)) => None,
            _ => self.disputed.is_none_or(|disputed| elapsed(disputed) >= DISPUTE_INTERVAL).then_some(NoteStep::Suspect),
        }
    }

    /// Whether a lost replica is ready, or waits, and answers again; true once.
    fn returns(&mut self) -> bool {
        let answers = self.misses == 0 && self.answer.is_some_and(|answer| answer.at == self.silent_since);
        let returns = self.lost && answers && self.suspected.is_none() && !self.pod.is_noted_lost() && self.pod.is_survivor();
        self.lost &= !returns;
        returns
    }
}

/// Running replicas of a workload, with their Pods.
fn read(workload: &WorkloadKey, pods: Vec<Value>) -> Vec<(ReplicaPod, Value)> {
    let read = |object: Value| Some((ReplicaPod::read(&Pod::deserialize(&object).ok()?)?, object));
    pods.into_iter().filter_map(read).filter(|(pod, _)| pod.workload == *workload).collect()
}

fn is_ready(pod: &ReplicaPod) -> bool {
    pod.readiness == ReplicaReadiness::Ready
}

#[cfg(test)]
mod tests;
