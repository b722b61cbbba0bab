//! Property tests: two reconcilers and two or three replicas with every order of power losses, cut links, pauses and slow requests, and
//! every set of broken paths. A probe needs both directions of its path.
//!
//! The Lease is modelled by its contract, which `model::base::leader` tests: the holder writes until `renew_deadline` after its last renewal, and
//! another process holds it at `duration` at the earliest. A request takes effect until the end of this difference at the latest.

use proptest::prelude::*;

use super::*;
use crate::model::base::leader::LeaseTerms;
use crate::model::failover::Reception;

mod every;

const STEP: u64 = 50;
/// Time until a kubelet restores the condition `Ready`, in tests where it does so at once.
const EAGER: u64 = 400;
/// That time as it was measured.
const MEASURED: u64 = 7000;
/// Time until a kubelet delivers a note.
const DELIVERY: u64 = 1500;
/// Interval of a kubelet's readiness probes.
const READINESS: u64 = 1000;
const LEASE: LeaseTerms = LeaseTerms::FAILOVER;

#[derive(Debug, Clone, Copy)]
enum Fault {
    Power { replica: usize, on: bool },
    Link { process: usize, replica: usize, on: bool },
    Kubelet { replica: usize, on: bool },
    ApiOf { process: usize, on: bool },
    Api { on: bool },
    Pause { process: usize, length: u64 },
}

/// Random numbers of a case.
struct Random(u64);

/// State at the API server.
struct Api {
    on: bool,
    pods: Vec<ReplicaPod>,
    versions: Vec<u64>,
    /// Since when each Pod is unready.
    lost: Vec<Option<u64>>,
    /// Time of the last change of each note.
    noted: Vec<u64>,
    /// Holder of the Lease, end of its trust, and time from which another process may take it.
    lease: Option<(usize, u64, u64)>,
}

struct Probed {
    uid: String,
    sent: u64,
    answered: bool,
    due: u64,
}

/// A request for marks.
enum Request {
    List { begun: u64, read: Option<(Vec<ReplicaPod>, Vec<u64>)>, served: u64, due: u64 },
    Patch { replica: usize, step: NoteStep, connected: bool, version: u64, confirmed: u64, lands: u64, fails: u64 },
}

/// What runs beside a replica on its node.
#[derive(Default)]
struct Node {
    kubelet: bool,
    /// Note as its kubelet delivered it.
    delivered: String,
    reception: Reception,
    /// Whether its kubelet found it unready.
    is_unready: bool,
}

#[derive(Default)]
struct Process {
    detector: Detector,
    api: bool,
    links: Vec<bool>,
    /// Last time at which each replica was alive and reachable.
    reached: Vec<u64>,
    paused_until: u64,
    probes: Vec<Probed>,
    request: Option<Request>,
    /// Removal of a note: replica, version, whether it was reached, and when it takes effect.
    withdrawal: Option<(usize, u64, bool, u64)>,
    refuted: bool,
    suspected: bool,
    next_mark: u64,
    next_renewal: u64,
}

struct World {
    begin: Instant,
    random: Random,
    slow: bool,
    alive: Vec<bool>,
    nodes: Vec<Node>,
    /// Time until a kubelet restores the condition `Ready`.
    restores: u64,
    api: Api,
    processes: Vec<Process>,
    /// Time of each replica's first mark.
    marked: Vec<Option<u64>>,
}

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// Delay of a request: usually short.
    fn delay(&mut self, slow: bool, limit: u64) -> u64 {
        if slow && self.below(10) == 0 { self.below(limit) } else { self.below(60) }
    }
}

impl World {
    fn new(replicas: usize, seed: u64, slow: bool) -> Self {
        let pods: Vec<_> = (0..replicas).map(pod).collect();
        let process = |name: &str| Process {
            detector: Detector::new(name, None),
            api: true,
            links: vec![true; replicas],
            reached: vec![0; replicas],
            ..Process::default()
        };
        Self {
            begin: Instant::now(),
            random: Random(seed),
            slow,
            alive: vec![true; replicas],
            nodes: (0..replicas).map(|_| Node { kubelet: true, ..Node::default() }).collect(),
            restores: EAGER,
            api: Api { on: true, pods, versions: vec![0; replicas], lost: vec![None; replicas], noted: vec![0; replicas], lease: None },
            processes: ["p0", "p1"].map(process).into(),
            marked: vec![None; replicas],
        }
    }

    fn at(&self, time: u64) -> Instant {
        self.begin + Duration::from_millis(time)
    }

    fn apply(&mut self, fault: Fault, now: u64) {
        let count = self.alive.len();
        match fault {
            Fault::Power { replica, on } => self.alive[replica % count] = on,
            Fault::Link { process, replica, on } => self.processes[process].links[replica % count] = on,
            Fault::Kubelet { replica, on } => self.nodes[replica % count].kubelet = on,
            Fault::ApiOf { process, on } => self.processes[process].api = on,
            Fault::Api { on } => self.api.on = on,
            Fault::Pause { process, length } => self.processes[process].paused_until = now + length,
        }
    }

    /// Runs until this time with these faults; fails if a mark leaves no ready replica that was reachable when it was decided.
    fn run(&mut self, faults: Vec<(u64, Fault)>, end: u64) -> Result<(), TestCaseError> {
        self.run_observed(faults, end, |_, _| Ok(()))
    }

    /// Like `run`, with a look at the world after each step.
    fn run_observed(
        &mut self,
        mut faults: Vec<(u64, Fault)>,
        end: u64,
        look: impl Fn(&Self, u64) -> Result<(), TestCaseError>,
    ) -> Result<(), TestCaseError> {
        faults.sort_by_key(|(time, _)| *time);
        let mut faults = faults.into_iter().peekable();
        for now in (0..end).step_by(usize::try_from(STEP).expect("small")) {
            while let Some((_, fault)) = faults.next_if(|(time, _)| *time <= now) {
                self.apply(fault, now);
            }
            self.restore(now);
            for process in 0..2 {
                for replica in (0..self.alive.len()).filter(|replica| self.alive[*replica]) {
                    let process = &mut self.processes[process];
                    process.reached[replica] = if process.links[replica] { now } else { process.reached[replica] };
                }
                self.serve(process, now)?;
                if self.processes[process].paused_until <= now {
                    self.step(process, now);
                }
            }
            look(self, now)?;
        }
        Ok(())
    }

    /// Living kubelets deliver notes and report readiness.
    fn restore(&mut self, now: u64) {
        let time = self.at(now);
        for replica in 0..self.alive.len() {
            let (node, api) = (&mut self.nodes[replica], &mut self.api);
            if !(self.alive[replica] && node.kubelet && api.on) {
                continue;
            }
            if now >= api.noted[replica] + DELIVERY {
                node.delivered = api.pods[replica].note.as_ref().map(|note| json!(note).to_string()).unwrap_or_default();
            }
            let unreachable = node.reception.unreachable(&node.delivered, time).is_some();
            let changes = now.is_multiple_of(READINESS) && unreachable != node.is_unready;
            node.is_unready ^= changes;
            let is_late = api.lost[replica].is_some_and(|since| now >= since + self.restores);
            let is_ready = is_ready(&api.pods[replica]);
            if is_ready && node.is_unready {
                api.set(replica, ReplicaReadiness::Lost, now);
            } else if !is_ready && !node.is_unready && (changes || is_late) {
                api.set(replica, ReplicaReadiness::Ready, now);
            }
        }
    }

    /// Requests of a process at the API server, which take effect whether or not the process still runs.
    fn serve(&mut self, process: usize, now: u64) -> Result<(), TestCaseError> {
        match &mut self.processes[process].request {
            Some(Request::List { read, served, .. }) if read.is_none() && *served <= now && self.api.on => {
                *read = Some((self.api.pods.clone(), self.api.versions.clone()));
            }
            Some(Request::Patch { replica, step, connected, version, confirmed, lands, .. }) if *lands <= now => {
                let (replica, step, connected, version, confirmed) = (*replica, *step, *connected, *version, *confirmed);
                *lands = u64::MAX;
                if self.api.on && self.api.versions[replica] == version {
                    self.land(process, replica, step, connected, now);
                    let reached = &self.processes[process].reached;
                    let stays = |(pod, reached): (&ReplicaPod, &u64)| is_ready(pod) && reached + 1000 >= confirmed;
                    let is_mark = step == NoteStep::MakeUnready;
                    prop_assert!(!is_mark || self.api.pods.iter().zip(reached).any(stays), "no reachable replica is ready after {now} ms");
                }
            }
            _ => {}
        }
        if let Some((replica, version, is_reached, _)) = self.processes[process].withdrawal.take_if(|(.., lands)| *lands <= now)
            && self.api.on
            && self.api.versions[replica] == version
        {
            self.api.note(replica, None, now);
            if is_reached && !self.nodes[replica].is_unready {
                self.api.set(replica, ReplicaReadiness::Ready, now);
            }
        }
        Ok(())
    }

    /// Applies the change of a replica's Pod.
    fn land(&mut self, process: usize, replica: usize, step: NoteStep, connected: bool, now: u64) {
        let (time, uid) = (self.at(now), format!("u{replica}"));
        let stage = if step == NoteStep::Suspect { UnreachableStage::Suspected } else { UnreachableStage::Lost };
        let mut written = note(stage, &format!("p{process}"), connected);
        if let Some(note) = &mut written {
            note.time = now.to_string();
        }
        self.api.note(replica, written, now);
        match step {
            NoteStep::Suspect => self.processes[process].detector.suspected(&uid, time),
            NoteStep::MakeUnready => {
                self.api.set(replica, ReplicaReadiness::Lost, now);
                self.marked[replica].get_or_insert(now);
            }
            NoteStep::Renew | NoteStep::Withdraw { .. } => {}
        }
    }

    fn step(&mut self, number: usize, now: u64) {
        let time = self.at(now);
        let (begin, reachable) = (self.begin, self.api.on && self.processes[number].api);
        let process = &mut self.processes[number];
        for probe in process.probes.extract_if(.., |probe| probe.due <= now) {
            process.detector.record(&probe.uid, begin + Duration::from_millis(probe.sent), probe.answered, time);
        }
        self.mark(number, now, reachable);
        self.withdraw(number, now, reachable);
        let process = &mut self.processes[number];
        if reachable && now.is_multiple_of(100) {
            process.detector.observe(self.api.pods.clone(), time);
        }
        let turn = process.detector.turn(time);
        (process.suspected, process.refuted) = (!turn.suspected.is_empty(), !turn.refuted.is_empty());
        for probe in turn.probes {
            let replica: usize = probe.uid[1..].parse().expect("a number");
            let delay = self.random.delay(self.slow, 600);
            let answered = self.alive[replica] && process.links[replica] && delay < 400;
            if answered && probe.is_proof {
                self.nodes[replica].reception.record_probe(time);
            }
            process.probes.push(Probed { uid: probe.uid, sent: now, answered, due: now + delay.min(400) });
        }
        self.elect(number, now, reachable, turn.wants_lease);
    }

    /// Removes a note by Pods as the API server has them now.
    fn withdraw(&mut self, number: usize, now: u64, reachable: bool) {
        let (time, lands) = (self.at(now), now + self.random.delay(self.slow, 2000));
        let (process, api) = (&mut self.processes[number], &self.api);
        if reachable && process.refuted && process.withdrawal.is_none() {
            let change = process.detector.withdrawal(&"g".into(), api.pods.iter().map(object).collect(), time);
            process.withdrawal = change.map(|change| {
                let replica: usize = change.pod.uid[1..].parse().expect("a number");
                (replica, api.versions[replica], change.step == NoteStep::Withdraw { is_reached: true }, lands)
            });
        }
    }

    fn elect(&mut self, number: usize, now: u64, reachable: bool, wants: bool) {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).expect("short");
        let process = &mut self.processes[number];
        if !reachable || process.next_renewal > now {
            return;
        }
        let is_free = self.api.lease.is_none_or(|(holder, _, free)| holder == number || free <= now);
        match self.api.lease {
            Some((holder, ..)) if holder == number && !wants => self.api.lease = None,
            _ if wants && is_free => {
                self.api.lease = Some((number, now + millis(LEASE.renew_deadline), now + millis(LEASE.lease_duration)));
                process.next_renewal = now + millis(LEASE.retry_period);
            }
            _ => {}
        }
    }

    fn mark(&mut self, number: usize, now: u64, reachable: bool) {
        let trust = self.api.lease.filter(|(holder, trust, _)| *holder == number && now < *trust).map(|(_, trust, _)| trust);
        let (lead, slow) =
            (u64::try_from((LEASE.lease_duration.saturating_sub(LEASE.renew_deadline)).as_millis()).expect("short"), self.slow);
        let begin = self.begin;
        let process = &mut self.processes[number];
        match process.request.take() {
            Some(Request::List { begun, read: Some((pods, versions)), due, .. }) if due <= now => {
                let objects = pods.iter().map(object).collect();
                let mark = process.detector.confirm(
                    &"g".into(),
                    objects,
                    begin + Duration::from_millis(begun),
                    begin + Duration::from_millis(now),
                );
                if let (Some(mark), Some(trust), true) = (mark, trust, reachable) {
                    let replica: usize = mark.pod.uid[1..].parse().expect("a number");
                    let lands = now + self.random.delay(slow, trust - now + lead - STEP);
                    let PodChange { step, connected, .. } = mark;
                    let (version, confirmed, fails) = (versions[replica], now, trust);
                    process.request = Some(Request::Patch { replica, step, connected, version, confirmed, lands, fails });
                }
            }
            // The response to a list or patch is lost, or comes too late.
            Some(Request::List { due, .. }) if due + 2000 <= now => process.next_mark = now,
            Some(Request::Patch { lands, fails, .. }) if lands == u64::MAX || fails + lead <= now => process.next_mark = now,
            Some(request) => process.request = Some(request),
            None if process.suspected && trust.is_some() && reachable && process.next_mark <= now => {
                let (served, after) = (now + self.random.delay(slow, 1000), self.random.delay(slow, 1000));
                process.request = Some(Request::List { begun: now, read: None, served, due: served + after });
                process.next_mark = now + 300;
            }
            None => {}
        }
    }
}

impl Api {
    fn set(&mut self, replica: usize, readiness: ReplicaReadiness, now: u64) {
        self.lost[replica] = (readiness != ReplicaReadiness::Ready).then(|| self.lost[replica].unwrap_or(now));
        self.pods[replica].readiness = readiness;
        self.versions[replica] += 1;
    }

    fn note(&mut self, replica: usize, note: Option<UnreachableNote>, now: u64) {
        self.pods[replica].note = note;
        self.noted[replica] = now;
        self.versions[replica] += 1;
    }
}

fn faults() -> impl Strategy<Value = Vec<(u64, Fault)>> {
    let fault = (0..6_u8, 0..2_usize, 0..3_usize, any::<bool>(), 0..3000_u64).prop_map(|(kind, process, replica, on, length)| match kind {
        0 => Fault::Power { replica, on },
        1 => Fault::Kubelet { replica, on },
        2 => Fault::ApiOf { process, on },
        3 => Fault::Api { on },
        4 => Fault::Pause { process, length },
        _ => Fault::Link { process, replica, on },
    });
    prop::collection::vec((1000..25_000_u64, fault), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever fails, each mark leaves a ready replica that is alive and reachable: two replicas of a pair are never both marked.
    #[test]
    fn marks_leave_a_ready_replica_in_every_order_of_faults(replicas in 2..=3_usize, seed in any::<u64>(), faults in faults()) {
        World::new(replicas, seed, true).run(faults, 30_000)?;
    }

    /// Each process reaches only one replica, and no kubelet restores readiness: one is unready at most, and for half a second if objections
    /// are late.
    #[test]
    fn processes_in_different_partitions_leave_both_replicas_ready(seed in any::<u64>(), first in 1000..4000_u64, second in 1000..4000_u64) {
        for slow in [false, true] {
            let mut world = World::new(2, seed, slow);
            let cut = |process| Fault::Link { process, replica: 1 - process, on: false };
            let kubelets = (0..2).map(|replica| (0, Fault::Kubelet { replica, on: false }));
            let faults = [(first, cut(0)), (second, cut(1))].into_iter().chain(kubelets).collect();
            world.run_observed(faults, 60_000, |world, now| {
                let out: Vec<u64> = world.api.lost.iter().flatten().map(|since| now - since).collect();
                prop_assert!(out.len() <= 1 && (slow || out.iter().all(|time| *time <= 500)), "{out:?} after {now} ms");
                Ok(())
            })?;
        }
    }

    /// A replica that loses its power is marked in time by the process that runs and reaches the API server.
    #[test]
    fn powered_off_replica_is_marked_within_two_and_a_half_seconds(
        replicas in 2..=3_usize, seed in any::<u64>(), lost in 0..3_usize, off in 1000..5000_u64, other in 0..4_u8,
    ) {
        let mut world = World::new(replicas, seed, false);
        let replica = lost % replicas;
        // The other process is paused, without API server, on the lost node, or sound.
        let fault: Vec<_> = match other {
            0 => vec![Fault::Pause { process: 1, length: 60_000 }],
            1 => vec![Fault::ApiOf { process: 1, on: false }],
            2 => (0..replicas).map(|replica| Fault::Link { process: 1, replica, on: false }).collect(),
            _ => Vec::new(),
        };
        let faults = fault.into_iter().chain([Fault::Power { replica, on: false }]).map(|fault| (off, fault));
        world.run(faults.collect(), 10_000)?;
        let marked = world.marked[replica];
        prop_assert!(marked.is_some_and(|marked| marked <= off + 2500), "off at {off}, marked at {marked:?}");
        prop_assert_eq!(world.marked.iter().flatten().count(), 1);
    }
}
