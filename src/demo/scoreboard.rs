//! What the demo knows at one moment: shared by the load, the script and the screen.
//!
//! Judges every answer by the ledger and every failure by the documented windows; draws nothing, sends nothing.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::services::{DemoService, of_family};
use super::topology::Topology;
use crate::model::base::net::{Family, Proto};
use crate::model::diagnostics::load::{AnswerVerdict, Attempt, AttemptFailure, AttemptReport, Expectations, Lane, Tally, TargetIdentity};

/// How long after a change was seen in force a UDP flow of before may take to follow it. The kernel's maps change first;
/// the flow's own entry is deleted after one pass over the kernel's table of connections, which usually takes some tens
/// of milliseconds. How long it did take is measured; only a flow that stays behind is a fault.
pub const FOLLOWS: Duration = Duration::from_secs(5);

/// How old a change must be for a replica that turns ready to have it in force: its config may be written just then. What is
/// younger is probed for, so this is generous.
const READY_COVERS: Duration = Duration::from_secs(2);

/// How many events the screen can look back on.
const EVENTS: usize = 64;

#[derive(Debug, Clone)]
pub struct ServiceRow {
    pub service: DemoService,
    /// Whether new connections are sent to it.
    pub active: bool,
    pub under_way: u32,
    /// Connections and UDP flows that it has answered.
    pub answered: u64,
    /// How long its last change took.
    pub last_swap: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaPhase {
    Running,
    Killed,
    Leaving,
    /// Its process was started again and has not been ready since.
    Restarting,
}

#[derive(Debug, Clone)]
pub struct ReplicaRow {
    /// The Pod's addresses, IPv4 first.
    pub pod: [std::net::IpAddr; 2],
    /// Whether it answered so when last asked: what a cluster's Service goes by.
    pub ready: bool,
    pub life: ReplicaPhase,
    /// Long-lived connections through it that stand.
    pub connections: u32,
    /// From each SIGKILL until it was seen: connections may be lost.
    windows: Vec<(Duration, Option<Duration>)>,
    /// Since when it is in rotation.
    back: Duration,
}

impl ReplicaRow {
    /// Whether it is in rotation, and neither on its way out nor on its way back.
    pub fn serves(&self) -> bool {
        self.ready && self.life == ReplicaPhase::Running
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct FlowCounts {
    pub open: u32,
    pub answered: u64,
    /// Datagrams lost; a UDP flow survives some.
    pub datagrams_lost: u64,
    /// Ended by a reset of their leaving replica, and opened anew by another.
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
    /// The origin of every time.
    pub start: Instant,
    pub rows: BTreeMap<u16, ServiceRow>,
    pub members: Vec<ReplicaRow>,
    /// The number of the target that each target's name leads to.
    pub names: Vec<u16>,
    /// Which answers are right.
    pub ledger: Expectations,
    /// What came of the new connections and UDP flows.
    pub tally: Tally,
    /// What came of the long-lived ones.
    pub flows: FlowCounts,
    /// How long each change took on each replica, from the file's swap to the last family's first answer.
    pub swaps: Vec<(ScoreboardChange, Duration)>,
    pub latest: String,
    /// How long UDP flows went on to the target of before, each time that they were seen to.
    pub followed: Vec<Duration>,
    /// What happened, the newest last.
    pub events: VecDeque<(Duration, String)>,
    /// What must not have happened and no count says.
    pub faults: Vec<String>,
}

pub type SharedScoreboard = Arc<Mutex<Scoreboard>>;

/// Looks at the board or writes on it; a panic elsewhere does not make it unreadable.
pub fn look(board: &SharedScoreboard) -> MutexGuard<'_, Scoreboard> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scoreboard {
    /// A board with these services, all of them known to lead where they should on every replica.
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

    pub fn lanes(&self, service: u16) -> impl Iterator<Item = Lane> + use<> {
        (0..u8::try_from(self.members.len()).unwrap_or(u8::MAX)).map(move |replica| Lane { service: service.into(), replica })
    }

    /// The service is about to be written with this target.
    pub fn write(&mut self, service: DemoService) {
        let (now, identity) = (self.now(), self.identity(service));
        for lane in self.lanes(service.number) {
            self.ledger.write(lane, Some(identity), now);
        }
        let row = ServiceRow { service, active: false, under_way: 0, answered: 0, last_swap: None };
        self.rows.entry(service.number).or_insert(row).service = service;
    }

    /// Who is to answer for a service, as names lead now.
    pub fn identity(&self, service: DemoService) -> TargetIdentity {
        let own = service.identity();
        let named = self.names.get(usize::from(service.target)).filter(|_| service.by_name());
        TargetIdentity { target: named.copied().unwrap_or(own.target), ..own }
    }

    /// Each name is about to lead to the target that the next one led to; says which services lead there by name.
    pub fn rename(&mut self) -> Vec<u16> {
        self.names.rotate_left(1);
        let named: Vec<DemoService> = self.rows.values().map(|row| row.service).filter(|service| service.by_name()).collect();
        for service in &named {
            self.write(*service);
        }
        named.into_iter().map(|service| service.number).collect()
    }

    /// The service is about to be left out of the config.
    pub fn write_removal(&mut self, service: u16) {
        let now = self.now();
        for lane in self.lanes(service) {
            self.ledger.write(lane, None, now);
        }
    }

    /// New connections go to the service from now on.
    pub fn activate(&mut self, service: u16) {
        if let Some(row) = self.rows.get_mut(&service) {
            row.active = true;
        }
    }

    /// Where a lane is reached.
    pub fn attempt(&self, lane: Lane, family: Family, proto: Proto) -> Option<Attempt> {
        let row = self.rows.get(&u16::try_from(lane.service).ok()?)?;
        let member = self.members.get(usize::from(lane.replica))?;
        Some(Attempt { lane, proto, to: SocketAddr::new(of_family(member.pod, family), row.service.match_port()) })
    }

    /// Whether a replica may be taken away: every other one is ready and has everything in force. A cluster sees to that, too.
    pub fn can_spare(&self, replica: usize) -> bool {
        let mut others = (0_u8..).zip(&self.members).filter(|(number, _)| usize::from(*number) != replica);
        let settled = |replica| self.rows.keys().all(|service| self.ledger.is_settled(Lane { service: (*service).into(), replica }));
        others.all(|(number, member)| member.serves() && settled(number))
    }

    /// What the load's attempt of this number is: some active service by some ready replica, any if none is ready.
    ///
    /// A service that was added while a replica was away goes by that replica once it was seen in force there, as it goes by
    /// the others once it was seen there: a new service is used when it is said to be there, and not before.
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

    /// Judges and counts what came of an attempt of the load.
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

    /// The report, with an answer that was not right turned into a failure.
    pub fn checked_report(&self, report: &AttemptReport) -> AttemptReport {
        let right =
            |answer: &TargetIdentity| self.ledger.judge(report.attempt.lane, report.began, report.ended, *answer) == AnswerVerdict::Right;
        let outcome = report.outcome.and_then(|answer| if right(&answer) { Ok(answer) } else { Err(AttemptFailure::WrongTarget) });
        AttemptReport { outcome, ..*report }
    }

    /// What is wrong with a UDP flow's answer, if anything is. A replica that was killed between a change and the end of its flows ends
    /// them when it is back.
    pub fn wrong_for_flow(&self, lane: Lane, began: Duration, ended: Duration, by: TargetIdentity) -> Option<String> {
        match self.ledger.judge(lane, began, ended, by) {
            AnswerVerdict::Stale { by: lag } if lag.min(self.back_for(lane, ended)) > FOLLOWS => {
                Some(format!("the target of before, {} ms after the change", lag.as_millis()))
            }
            AnswerVerdict::Right | AnswerVerdict::Stale { .. } => None,
            AnswerVerdict::Wrong => Some("a target that it never had".to_owned()),
        }
    }

    /// For how long the replica of a lane has been in rotation; not at all while it is not.
    fn back_for(&self, lane: Lane, now: Duration) -> Duration {
        let member = self.members.get(usize::from(lane.replica)).filter(|member| member.ready && member.life != ReplicaPhase::Killed);
        member.map_or(Duration::ZERO, |member| now.saturating_sub(member.back))
    }

    /// How far a UDP flow's answer is behind a change that was seen in force; nothing if it is not.
    pub fn behind(&self, lane: Lane, began: Duration, ended: Duration, by: TargetIdentity) -> Option<Duration> {
        match self.ledger.judge(lane, began, ended, by) {
            AnswerVerdict::Stale { by: lag } => Some(lag),
            AnswerVerdict::Right | AnswerVerdict::Wrong => None,
        }
    }

    /// A replica is killed: until the cluster sees that, connections by it may be lost.
    pub fn open_window(&mut self, replica: usize) {
        let now = self.now();
        if let Some(member) = self.members.get_mut(replica) {
            member.windows.push((now, None));
            member.life = ReplicaPhase::Killed;
        }
    }

    /// The cluster asked a replica for its readiness, beginning at this moment, and this was the answer.
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
            self.settle_all(replica, began.saturating_sub(READY_COVERS), now);
            "is ready"
        } else {
            for (_, to) in &mut member.windows {
                to.get_or_insert(now);
            }
            "is out of rotation"
        };
        self.add_event(format!("replica {replica} {text}"));
    }

    /// Every lane of a replica is in force as it was written up to that moment.
    fn settle_all(&mut self, replica: usize, written: Duration, at: Duration) {
        let lanes = self.rows.keys().flat_map(|service| self.lanes(*service)).filter(|lane| usize::from(lane.replica) == replica);
        for lane in lanes.collect::<Vec<_>>() {
            self.ledger.settle_until(lane, written, at);
        }
    }

    /// A long-lived connection or flow through a replica was opened, or has ended.
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
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The replicas to which a service's next attempts go.
    fn replicas_of(board: &mut Scoreboard, service: u16) -> Vec<u8> {
        let lanes = (0..400).filter_map(|number| board.choose(number)).map(|attempt| attempt.lane);
        let mut replicas: Vec<u8> = lanes.filter(|lane| lane.service == u32::from(service)).map(|lane| lane.replica).collect();
        replicas.sort_unstable();
        replicas.dedup();
        replicas
    }

    #[test]
    fn udp_flow_of_a_killed_replica_is_late_only_after_its_restart() {
        let topology = Topology::make(1, 2).expect("namespaces");
        let (old, lane) = (DemoService { number: 0, target: 0 }, Lane { service: 0, replica: 0 });
        let mut board = Scoreboard::new(Instant::now(), &topology, [old]);
        let by = board.identity(old);
        board.write(DemoService { target: 1, ..old });
        board.ledger.settle(lane, board.now());
        let wrong =
            |board: &Scoreboard, after: Duration| board.wrong_for_flow(lane, board.now() + after, board.now() + after, by).is_some();
        assert!(wrong(&board, FOLLOWS * 2) && !wrong(&board, FOLLOWS / 2));
        board.open_window(0);
        assert!(!wrong(&board, FOLLOWS * 2), "nobody is there to end it");
        board.record_probe(0, board.now(), false);
        board.members[0].life = ReplicaPhase::Restarting;
        board.record_probe(0, board.now(), true);
        board.members[0].back = FOLLOWS;
        assert!(!wrong(&board, FOLLOWS + SECOND) && wrong(&board, FOLLOWS * 3));
    }

    #[test]
    fn service_added_during_a_restart_is_expected_once_the_replica_has_served_it() {
        let topology = Topology::make(2, 1).expect("namespaces");
        let start = Instant::now().checked_sub(READY_COVERS * 2).expect("the machine runs for longer");
        let mut board = Scoreboard::new(start, &topology, [DemoService { number: 0, target: 0 }]);
        board.members[1].life = ReplicaPhase::Leaving;
        board.record_probe(1, board.now(), false);
        assert!(board.can_spare(1) && !board.can_spare(0), "the only one that is ready is not taken away");
        board.members[1].life = ReplicaPhase::Restarting;
        let added = DemoService { number: 1, target: 0 };
        board.write(added);
        board.ledger.settle(Lane { service: 1, replica: 0 }, board.now());
        board.activate(1);
        board.record_probe(1, board.now(), true);
        assert_eq!((board.members[1].life, board.can_spare(0)), (ReplicaPhase::Running, false));
        assert_eq!(replicas_of(&mut board, 0), [0, 1], "the replica is back");
        assert_eq!(replicas_of(&mut board, 1), [0], "its config may be of a moment before");
        board.ledger.settle(Lane { service: 1, replica: 1 }, board.now() + SECOND);
        assert_eq!(replicas_of(&mut board, 1), [0, 1]);
        assert!(board.can_spare(0));
    }

    #[test]
    fn target_by_name_follows_renamed_peers() {
        let topology = Topology::make(1, 3).expect("namespaces");
        let [by_name, by_address] = [DemoService { number: 0, target: 2 }, DemoService { number: 1, target: 2 }];
        let mut board = Scoreboard::new(Instant::now(), &topology, [by_name, by_address]);
        let target = |board: &Scoreboard, service| board.ledger.target(Lane { service, replica: 0 }).map(|identity| identity.target);
        assert_eq!((target(&board, 0), target(&board, 1)), (Some(2), Some(2)));
        assert_eq!(board.rename(), [0]);
        assert_eq!(board.names, [1, 2, 0]);
        assert_eq!((target(&board, 0), target(&board, 1)), (Some(0), Some(2)), "the name is another target's, the address is not");
        let is_settled = |service| board.ledger.is_settled(Lane { service, replica: 0 });
        assert!(!is_settled(0) && is_settled(1));
        assert_eq!(board.rename(), [0]);
        assert_eq!(target(&board, 0), Some(1));
        board.write(DemoService { target: 0, ..by_name });
        assert_eq!(target(&board, 0), Some(2), "a config that is written now is read by the names of now");
    }
}
