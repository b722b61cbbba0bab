//! State of the demo, shared by the load, the script and the screen.
//!
//! Checks every answer against the ledger and every failure against the documented windows. Draws and sends nothing.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::services::{DemoService, of_family};
use super::topology::Topology;
use crate::model::base::net::{Family, Proto};
use crate::model::diagnostics::load::{AnswerVerdict, Attempt, AttemptFailure, AttemptReport, Expectations, Lane, Tally, TargetIdentity};

/// Maximum time after an observed change until existing UDP flows follow it. The kernel's maps change first; the flow's conntrack entry
/// is deleted after one listing of the table, usually some tens of milliseconds later. The actual time is measured; only a flow that stays
/// behind is a fault.
pub const MAX_FLOW_LAG: Duration = Duration::from_secs(5);

/// Minimum age of a change that a newly ready replica counts as having in force: its config may be written just then. Younger changes are
/// probed, so this is generous.
const MIN_READY_AGE: Duration = Duration::from_secs(2);

/// Number of stored events.
const EVENTS: usize = 64;

#[derive(Debug, Clone)]
pub struct ServiceRow {
    pub service: DemoService,
    /// Whether it gets new connections.
    pub active: bool,
    pub under_way: u32,
    /// Connections and UDP flows answered.
    pub answered: u64,
    /// Duration of its last change.
    pub last_swap: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaPhase {
    Running,
    Killed,
    Leaving,
    /// Its process was restarted and was not ready since.
    Restarting,
}

#[derive(Debug, Clone)]
pub struct ReplicaRow {
    /// The Pod's addresses, IPv4 first.
    pub pod: [std::net::IpAddr; 2],
    /// Result of the last readiness probe, as a cluster's Service uses it.
    pub ready: bool,
    pub life: ReplicaPhase,
    /// Established long-lived connections through it.
    pub connections: u32,
    /// From each SIGKILL until a probe detects it: connections may be lost.
    windows: Vec<(Duration, Option<Duration>)>,
    /// Time since which it is in rotation.
    back: Duration,
}

impl ReplicaRow {
    /// Whether it is in rotation and neither draining nor restarting.
    pub fn serves(&self) -> bool {
        self.ready && self.life == ReplicaPhase::Running
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct FlowCounts {
    pub open: u32,
    pub answered: u64,
    /// Lost datagrams; a UDP flow survives some.
    pub datagrams_lost: u64,
    /// Reset by their draining replica and reopened through another.
    pub handed_over: u64,
    pub broken: u64,
    pub wrong_target: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ScoreboardChange {
    Retarget,
    Add,
    Remove,
}

#[derive(Debug)]
pub struct Scoreboard {
    /// Origin of all times.
    pub start: Instant,
    pub rows: BTreeMap<u16, ServiceRow>,
    pub members: Vec<ReplicaRow>,
    /// By target name: number of the target that it resolves to.
    pub names: Vec<u16>,
    /// Expected answers.
    pub ledger: Expectations,
    /// Results of new connections and UDP flows.
    pub tally: Tally,
    /// Results of long-lived ones.
    pub flows: FlowCounts,
    /// Duration of each change on each replica, from the file's swap to the last family's first answer.
    pub swaps: Vec<(ScoreboardChange, Duration)>,
    pub latest: String,
    /// Time for which UDP flows still used the previous target, for each observation.
    pub followed: Vec<Duration>,
    /// Events, the newest last.
    pub events: VecDeque<(Duration, String)>,
    /// Faults without a counter.
    pub faults: Vec<String>,
}

pub type SharedScoreboard = Arc<Mutex<Scoreboard>>;

/// Locks the board; a panic of another thread does not poison it.
pub fn look(board: &SharedScoreboard) -> MutexGuard<'_, Scoreboard> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scoreboard {
    /// A board with these services, all of them in force on every replica.
    pub fn new(start: Instant, topology: &Topology, services: impl IntoIterator<Item = DemoService>) -> Self {
        let member =
            |pod| ReplicaRow { pod, ready: true, life: ReplicaPhase::Running, connections: 0, windows: Vec::new(), back: Duration::ZERO };
        let mut board = Self {
            start,
            rows: BTreeMap::new(),
            members: topology.replicas.iter().filter_map(|site| site.pod).map(member).collect(),
            names: (0_u16..).zip(&topology.targets).map(|(number, _)| number).collect(),
            ledger: Expectations::default(),
            tally: Tally::default(),
            flows: FlowCounts::default(),
            swaps: Vec::new(),
            latest: String::new(),
            followed: Vec::new(),
            events: VecDeque::new(),
            faults: Vec::new(),
        };
        for service in services {
            board.write(service);
            board.activate(service.number);
            for lane in board.lanes(service.number) {
                board.ledger.settle(lane, Duration::ZERO);
            }
        }
        board
    }

    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub fn add_event(&mut self, event: String) {
        self.events.push_back((self.now(), event));
        if self.events.len() > EVENTS {
            self.events.pop_front();
        }
    }

    /// Records a fault of this moment.
    pub fn add_fault(&mut self, what: &str) {
        self.faults.push(format!("{:.1} s: {what}", self.now().as_secs_f64()));
    }

    pub fn lanes(&self, service: u16) -> impl Iterator<Item = Lane> + use<> {
        (0..u8::try_from(self.members.len()).unwrap_or(u8::MAX)).map(move |replica| Lane { service: service.into(), replica })
    }

    /// Records that the service is about to be written with this target.
    pub fn write(&mut self, service: DemoService) {
        let (now, identity) = (self.now(), self.identity(service));
        for lane in self.lanes(service.number) {
            self.ledger.write(lane, Some(identity), now);
        }
        let row = ServiceRow { service, active: false, under_way: 0, answered: 0, last_swap: None };
        self.rows.entry(service.number).or_insert(row).service = service;
    }

    /// Expected identity for a service, with the current name resolution.
    pub fn identity(&self, service: DemoService) -> TargetIdentity {
        let own = service.identity();
        let named = self.names.get(usize::from(service.target)).filter(|_| service.by_name());
        TargetIdentity { target: named.copied().unwrap_or(own.target), ..own }
    }

    /// Records that each name is about to resolve to the next name's target; returns the services whose target is a name.
    pub fn rename(&mut self) -> Vec<u16> {
        self.names.rotate_left(1);
        let named: Vec<DemoService> = self.rows.values().map(|row| row.service).filter(|service| service.by_name()).collect();
        for service in &named {
            self.write(*service);
        }
        named.into_iter().map(|service| service.number).collect()
    }

    /// Records that the service is about to be removed from the config.
    pub fn write_removal(&mut self, service: u16) {
        let now = self.now();
        for lane in self.lanes(service) {
            self.ledger.write(lane, None, now);
        }
    }

    /// Sends new connections to the service from now on.
    pub fn activate(&mut self, service: u16) {
        if let Some(row) = self.rows.get_mut(&service) {
            row.active = true;
        }
    }

    /// Attempt over a lane; `None` if it is unknown.
    pub fn attempt(&self, lane: Lane, family: Family, proto: Proto) -> Option<Attempt> {
        let row = self.rows.get(&u16::try_from(lane.service).ok()?)?;
        let member = self.members.get(usize::from(lane.replica))?;
        Some(Attempt { lane, proto, to: SocketAddr::new(of_family(member.pod, family), row.service.match_port()) })
    }

    /// Whether a replica may be stopped: every other one is ready and has everything in force. A cluster ensures that too.
    pub fn can_spare(&self, replica: usize) -> bool {
        let mut others = (0_u8..).zip(&self.members).filter(|(number, _)| usize::from(*number) != replica);
        let settled = |replica| self.rows.keys().all(|service| self.ledger.is_settled(Lane { service: (*service).into(), replica }));
        others.all(|(number, member)| member.serves() && settled(number))
    }

    /// The load's attempt with this number: a random active service by a random ready replica, or replica 0 if none is ready.
    ///
    /// A service that was added during a replica's restart uses that replica once a probe has seen it in force there. The same holds for
    /// the other replicas: a new service is used only after its confirmation.
    pub fn choose(&mut self, number: u64) -> Option<Attempt> {
        let mut dice = fastrand::Rng::with_seed(number);
        let active: Vec<u16> = self.rows.values().filter(|row| row.active).map(|row| row.service.number).collect();
        let service = dice.choice(active)?;
        let serves = |replica| self.ledger.has_served(Lane { service: service.into(), replica });
        let ready = (0_u8..).zip(&self.members).filter(|(number, member)| member.ready && serves(*number)).map(|(number, _)| number);
        let replica = dice.choice(ready.collect::<Vec<_>>()).unwrap_or_default();
        let row = self.rows.get_mut(&service)?;
        row.under_way += 1;
        let family = dice.choice(row.service.families()).copied()?;
        let proto = if dice.u8(..4) == 0 { Proto::Udp } else { Proto::Tcp };
        self.attempt(Lane { service: service.into(), replica }, family, proto)
    }

    /// Checks and counts the result of an attempt of the load.
    pub fn record(&mut self, report: &AttemptReport) {
        let lane = report.attempt.lane;
        let checked_report = self.checked_report(report);
        let excused = self.is_excused(lane, report.began, report.ended);
        self.tally.record(&checked_report, excused);
        if let Some(row) = u16::try_from(lane.service).ok().and_then(|service| self.rows.get_mut(&service)) {
            row.under_way = row.under_way.saturating_sub(1);
            row.answered += u64::from(checked_report.outcome.is_ok());
        }
    }

    /// The report, with a wrong answer turned into a failure.
    pub fn checked_report(&self, report: &AttemptReport) -> AttemptReport {
        let right =
            |answer: &TargetIdentity| self.ledger.check(report.attempt.lane, report.began, report.ended, *answer) == AnswerVerdict::Right;
        let outcome = report.outcome.and_then(|answer| if right(&answer) { Ok(answer) } else { Err(AttemptFailure::WrongTarget) });
        AttemptReport { outcome, ..*report }
    }

    /// Fault of a UDP flow's answer, if any. A replica that was killed between a change and the end of its flows ends them after its
    /// restart.
    pub fn wrong_for_flow(&self, lane: Lane, began: Duration, ended: Duration, by: TargetIdentity) -> Option<String> {
        match self.ledger.check(lane, began, ended, by) {
            AnswerVerdict::Stale { by: lag } if lag.min(self.back_for(lane, ended)) > MAX_FLOW_LAG => {
                Some(format!("the target of before, {} ms after the change", lag.as_millis()))
            }
            AnswerVerdict::Right | AnswerVerdict::Stale { .. } => None,
            AnswerVerdict::Wrong => Some("a target that it never had".to_owned()),
        }
    }

    /// Time for which the replica of a lane has been in rotation; zero while it is not.
    fn back_for(&self, lane: Lane, now: Duration) -> Duration {
        let member = self.members.get(usize::from(lane.replica)).filter(|member| member.ready && member.life != ReplicaPhase::Killed);
        member.map_or(Duration::ZERO, |member| now.saturating_sub(member.back))
    }

    /// Lag of a UDP flow's answer behind a change that was observed in force; `None` if there is none.
    pub fn behind(&self, lane: Lane, began: Duration, ended: Duration, by: TargetIdentity) -> Option<Duration> {
        match self.ledger.check(lane, began, ended, by) {
            AnswerVerdict::Stale { by: lag } => Some(lag),
            AnswerVerdict::Right | AnswerVerdict::Wrong => None,
        }
    }

    /// Records that a replica is killed: connections by it may be lost until the cluster detects it.
    pub fn open_window(&mut self, replica: usize) {
        let now = self.now();
        if let Some(member) = self.members.get_mut(replica) {
            member.windows.push((now, None));
            member.life = ReplicaPhase::Killed;
        }
    }

    /// Records the result of a readiness probe that started at `began`.
    pub fn record_probe(&mut self, replica: usize, began: Duration, ready: bool) {
        let now = self.now();
        let Some(member) = self.members.get_mut(replica) else { return };
        if member.ready == ready {
            return;
        }
        member.ready = ready;
        let text = if ready {
            member.back = now;
            if member.life == ReplicaPhase::Restarting {
                member.life = ReplicaPhase::Running;
            }
            self.settle_all(replica, began.saturating_sub(MIN_READY_AGE), now);
            "is ready"
        } else {
            for (_, to) in &mut member.windows {
                to.get_or_insert(now);
            }
            "is out of rotation"
        };
        self.add_event(format!("replica {replica} {text}"));
    }

    /// Marks every lane of a replica as in force with the state written up to that time.
    fn settle_all(&mut self, replica: usize, written: Duration, at: Duration) {
        let lanes = self.rows.keys().flat_map(|service| self.lanes(*service)).filter(|lane| usize::from(lane.replica) == replica);
        for lane in lanes.collect::<Vec<_>>() {
            self.ledger.settle_until(lane, written, at);
        }
    }

    /// Counts the start or end of a long-lived connection or flow through a replica.
    pub fn count_flow(&mut self, attempt: Attempt, opened: bool) {
        let step = |count: &mut u32| *count = if opened { *count + 1 } else { count.saturating_sub(1) };
        step(&mut self.flows.open);
        if attempt.proto == Proto::Tcp
            && let Some(member) = self.members.get_mut(usize::from(attempt.lane.replica))
        {
            step(&mut member.connections);
        }
    }

    fn is_excused(&self, lane: Lane, began: Duration, ended: Duration) -> bool {
        let windows = self.members.get(usize::from(lane.replica)).map_or(&[][..], |member| &member.windows);
        windows.iter().any(|(from, to)| *from <= ended && to.is_none_or(|to| began <= to))
    }
}

#[cfg(test)]
mod tests;
