//! Detector of lost replicas: a state machine of one process, whose inputs are Pods, results of probes and times.
//!
//! A replica is unreachable if it answered this process before, was silent for [`SILENCE`] and missed [`MISSES`] probes since. That alone may
//! be a fault of this process, so a *survivor* must exist: a ready replica of the group on another node that answered a probe sent after
//! the first missed one. [`Detector::confirm`] repeats both with Pods read from the API server: a process without API server marks nothing,
//! and a replica that another process has made unready is no survivor. Hence each mark leaves a ready replica that answers. Of a standalone
//! proxy with standby the waiting Pod is the survivor.
//!
//! A mark may be wrong if only the path from this process to the replica is broken. Then the replica's kubelet restores its readiness, and
//! it is not marked again before [`MARK_INTERVAL`] unless it answers meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::replica::{READY, ReplicaPod, ReplicaReadiness};
use crate::api::condition::{FALSE, reason};

/// Interval of probes of a replica. It is longer with more than [`MAX_PROBES_PER_SECOND`] × this interval replicas, or Pods of standalone
/// proxies: these have probes of their own, so that they delay no failover of a group.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);
/// Time after which a probe is missed.
pub const PROBE_TIMEOUT: Duration = Duration::from_millis(400);
/// Maximum probes of a process in a second, of replicas and of standalone proxies each.
const MAX_PROBES_PER_SECOND: u32 = 400;
/// Minimum time without an answer from a lost replica.
const SILENCE: Duration = Duration::from_secs(1);
/// Minimum missed probes of a lost replica.
const MISSES: u32 = 3;
/// Maximum age of a survivor's last answer, if its probe interval is not longer.
const SURVIVOR_AGE: Duration = Duration::from_millis(500);
/// A longer time between two turns means that this process did not run: answers may have been lost.
const MAX_TURN_GAP: Duration = Duration::from_millis(500);
/// Time until a replica that does not answer is marked again.
const MARK_INTERVAL: Duration = Duration::from_secs(30);
/// The Lease is held for this time after the last suspicion.
const LEASE_LINGER: Duration = Duration::from_secs(10);

/// Detector of one process.
#[derive(Debug, Default)]
pub struct Detector {
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
    /// Time of a mark that no answer followed.
    marked: Option<Instant>,
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
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DetectorTurn {
    pub probes: Vec<Probe>,
    /// Groups with a suspected replica that may be marked.
    pub suspected: BTreeSet<String>,
    /// Whether this process needs the failover Lease.
    pub wants_lease: bool,
    /// Time without a turn before this one, if this process did not run.
    pub paused: Option<Duration>,
}

/// A replica to make unready.
#[derive(Debug, Clone, PartialEq)]
pub struct LostReplica {
    pub pod: ReplicaPod,
    /// Its Pod as read.
    object: Value,
    /// Time without an answer.
    pub silence: Duration,
}

impl Detector {
    /// Sets the replicas. Groups with one replica, and standalone proxies without standby, are not probed. Returns lost replicas that are
    /// ready or wait, and answer again.
    pub fn observe(&mut self, pods: Vec<ReplicaPod>, now: Instant) -> Vec<ReplicaPod> {
        let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
        for pod in &pods {
            *sizes.entry(pod.group.clone()).or_default() += 1;
        }
        let mut before = std::mem::take(&mut self.replicas);
        for pod in pods.into_iter().filter(|pod| sizes.get(&pod.group).is_some_and(|size| *size > 1)) {
            let uid = pod.uid.clone();
            let mut replica = before.remove(&uid).unwrap_or_else(|| ProbedReplica::new(pod.clone(), now));
            replica.lost |= pod.readiness == ReplicaReadiness::Lost;
            replica.pod = pod;
            self.replicas.insert(uid, replica);
        }
        self.replicas.values_mut().filter_map(|replica| replica.returns().then(|| replica.pod.clone())).collect()
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
        let suspects: Vec<_> = self.replicas.values().filter(|replica| self.is_suspect(replica, now)).collect();
        let may_be_marked = suspects.iter().filter(|replica| replica.may_be_marked(now));
        let suspected = may_be_marked.map(|replica| replica.pod.group.clone()).collect();
        if !suspects.is_empty() {
            self.last_suspicion = Some(now);
        }
        let wants_lease = self.last_suspicion.is_some_and(|last| now.saturating_duration_since(last) < LEASE_LINGER);
        let gap = gap.unwrap_or_default();
        let probes = [false, true].into_iter().flat_map(|standalone| self.due(standalone, gap, now)).collect();
        DetectorTurn { probes, suspected, wants_lease, paused }
    }

    /// Probes that are due, those that wait longest first, within the rate limit.
    fn due(&mut self, standalone: bool, gap: Duration, now: Instant) -> Vec<Probe> {
        let interval = self.interval(standalone);
        let is_due = |replica: &&mut ProbedReplica| replica.next_probe <= now && replica.pod.is_standalone() == standalone;
        let mut due: Vec<_> = self.replicas.values_mut().filter(is_due).collect();
        due.sort_by_key(|replica| replica.next_probe);
        let limit = (gap.min(MAX_TURN_GAP).as_millis() * u128::from(MAX_PROBES_PER_SECOND)).div_ceil(1000).max(1);
        due.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        let probe = |replica: &mut ProbedReplica| {
            // A late turn does not shorten the next interval below a half.
            replica.next_probe = (replica.next_probe + interval).max(now + interval / 2);
            Probe { uid: replica.pod.uid.clone(), target: replica.pod.target }
        };
        due.into_iter().map(probe).collect()
    }

    /// Records the result of a probe.
    pub fn record(&mut self, uid: &str, sent: Instant, answered: bool, now: Instant) {
        let Some(replica) = self.replicas.get_mut(uid) else { return };
        if answered {
            let newest = replica.answer.map_or(sent, |answer| answer.sent.max(sent));
            replica.answer = Some(ProbeAnswer { sent: newest, at: now });
            replica.marked = None;
            replica.restart_silence(now);
        } else if sent >= replica.silent_since {
            replica.misses = replica.misses.saturating_add(1);
            replica.first_missed = Some(replica.first_missed.map_or(sent, |first| first.min(sent)));
        }
    }

    /// The next replica of a group to make unready, by its Pods as read from the API server with a request sent at `begun`. After its mark
    /// the Pods must be read again: it may have been the survivor of another.
    pub fn confirm(&self, group: &str, pods: Vec<Value>, begun: Instant, now: Instant) -> Option<LostReplica> {
        if self.last_turn.is_none_or(|last| now.saturating_duration_since(last) > MAX_TURN_GAP) {
            // This process did not run; the next turn discards the silence.
            return None;
        }
        let read = |object: Value| Some((ReplicaPod::read(&Pod::deserialize(&object).ok()?)?, object));
        let live: Vec<_> = pods.into_iter().filter_map(read).filter(|(pod, _)| pod.group == group && pod.is_survivor()).collect();
        let lost = |pod: &ReplicaPod| {
            let replica = self.replicas.get(&pod.uid).filter(|_| is_ready(pod))?;
            let replica = Some(replica).filter(|replica| replica.may_be_marked(now) && begun > replica.silent_since)?;
            let first = replica.unreachable(now)?;
            let is_survivor = |(other, _): &(ReplicaPod, Value)| {
                other.node != pod.node && self.replicas.get(&other.uid).is_some_and(|other| self.answers_since(other, first, now))
            };
            live.iter().any(is_survivor).then(|| now.saturating_duration_since(replica.silent_since))
        };
        live.iter().find_map(|(pod, object)| Some(LostReplica { pod: pod.clone(), object: object.clone(), silence: lost(pod)? }))
    }

    /// Records that a replica was made unready.
    pub fn marked(&mut self, uid: &str, now: Instant) {
        if let Some(replica) = self.replicas.get_mut(uid) {
            replica.marked = Some(now);
        }
    }

    /// Whether a ready replica is unreachable and has a ready survivor.
    fn is_suspect(&self, replica: &ProbedReplica, now: Instant) -> bool {
        let Some(first) = replica.unreachable(now).filter(|_| is_ready(&replica.pod)) else { return false };
        let others = self.replicas.values().filter(|other| other.pod.group == replica.pod.group && other.pod.node != replica.pod.node);
        others.filter(|other| other.pod.is_survivor()).any(|other| self.answers_since(other, first, now))
    }

    /// Whether a replica has just answered a probe that was sent after this time.
    fn answers_since(&self, replica: &ProbedReplica, time: Instant, now: Instant) -> bool {
        let age = SURVIVOR_AGE.max(2 * self.interval(replica.pod.is_standalone()));
        replica.answer.is_some_and(|answer| answer.sent > time && now.saturating_duration_since(answer.at) <= age)
    }

    fn interval(&self, standalone: bool) -> Duration {
        let count = self.replicas.values().filter(|replica| replica.pod.is_standalone() == standalone).count();
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        PROBE_INTERVAL.max(Duration::from_secs(1) * count / MAX_PROBES_PER_SECOND)
    }
}

impl ProbedReplica {
    fn new(pod: ReplicaPod, now: Instant) -> Self {
        Self { pod, next_probe: now, answer: None, silent_since: now, misses: 0, first_missed: None, marked: None, lost: false }
    }

    fn restart_silence(&mut self, now: Instant) {
        (self.silent_since, self.misses, self.first_missed) = (now, 0, None);
    }

    /// Send time of the first missed probe of an unreachable replica.
    fn unreachable(&self, now: Instant) -> Option<Instant> {
        let is_silent = now.saturating_duration_since(self.silent_since) >= SILENCE && self.misses >= MISSES;
        self.first_missed.filter(|_| self.answer.is_some() && is_silent)
    }

    fn may_be_marked(&self, now: Instant) -> bool {
        self.marked.is_none_or(|marked| now.saturating_duration_since(marked) >= MARK_INTERVAL)
    }

    /// Whether a lost replica is ready, or waits, and answers again; true once.
    fn returns(&mut self) -> bool {
        let answers = self.misses == 0 && self.answer.is_some_and(|answer| answer.at == self.silent_since);
        let returns = self.lost && answers && self.marked.is_none() && self.pod.is_survivor();
        self.lost &= !returns;
        returns
    }
}

impl LostReplica {
    /// Merge patch of the Pod's status, conditional on its version. `process` is the name of this process.
    pub fn patch(&self, process: &str, now: Timestamp) -> Value {
        let since = now.checked_sub(self.silence).unwrap_or(now);
        let message = format!("no answer to health probes since {since:.0}; {process} made the Pod unready; a living kubelet restores it");
        let ready = |condition: &Value| condition["type"] == READY;
        let others = self.object["status"]["conditions"].as_array().into_iter().flatten().filter(|condition| !ready(condition));
        let mut conditions: Vec<Value> = others.cloned().collect();
        conditions.push(json!({
            "type": READY,
            "status": FALSE,
            "reason": reason::UNREACHABLE,
            "message": message,
            "lastTransitionTime": format!("{now:.0}"),
        }));
        json!({
            "metadata": {"uid": self.pod.uid, "resourceVersion": self.object["metadata"]["resourceVersion"]},
            "status": {"conditions": conditions},
        })
    }
}

fn is_ready(pod: &ReplicaPod) -> bool {
    pod.readiness == ReplicaReadiness::Ready
}

#[cfg(test)]
mod tests;
