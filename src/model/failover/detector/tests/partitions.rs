//! Property tests: two reconcilers and two or three replicas with every order of power losses, cut links, pauses and slow requests.
//!
//! The Lease is modelled by its contract, which `model::base::leader` tests: the holder writes until `trust` after its last renewal, and
//! another process holds it at `duration` at the earliest. A request takes effect until the end of this difference at the latest.

use proptest::prelude::*;

use super::*;
use crate::model::base::leader::LeaseTerms;

const STEP: u64 = 50;
const KUBELET: u64 = 400;
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
    /// Since when each Pod is lost.
    lost: Vec<Option<u64>>,
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
    Patch { replica: usize, version: u64, confirmed: u64, lands: u64, fails: u64 },
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
    suspected: bool,
    next_mark: u64,
    next_renewal: u64,
}

struct World {
    begin: Instant,
    random: Random,
    slow: bool,
    alive: Vec<bool>,
    kubelets: Vec<bool>,
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
        let process = || Process { api: true, links: vec![true; replicas], reached: vec![0; replicas], ..Process::default() };
        Self {
            begin: Instant::now(),
            random: Random(seed),
            slow,
            alive: vec![true; replicas],
            kubelets: vec![true; replicas],
            api: Api { on: true, pods, versions: vec![0; replicas], lost: vec![None; replicas], lease: None },
            processes: vec![process(), process()],
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
            Fault::Kubelet { replica, on } => self.kubelets[replica % count] = on,
            Fault::ApiOf { process, on } => self.processes[process].api = on,
            Fault::Api { on } => self.api.on = on,
            Fault::Pause { process, length } => self.processes[process].paused_until = now + length,
        }
    }

    /// Runs until this time with these faults; fails if a mark leaves no ready replica that was reachable when it was decided.
    fn run(&mut self, mut faults: Vec<(u64, Fault)>, end: u64) -> Result<(), TestCaseError> {
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
        }
        Ok(())
    }

    /// Living kubelets restore readiness.
    fn restore(&mut self, now: u64) {
        for replica in 0..self.alive.len() {
            let lives = self.alive[replica] && self.kubelets[replica] && self.api.on;
            if lives && self.api.lost[replica].is_some_and(|since| now >= since + KUBELET) {
                self.api.lost[replica] = None;
                self.api.pods[replica].readiness = ReplicaReadiness::Ready;
                self.api.versions[replica] += 1;
            }
        }
    }

    /// Requests of a process at the API server, which take effect whether or not the process still runs.
    fn serve(&mut self, process: usize, now: u64) -> Result<(), TestCaseError> {
        match &mut self.processes[process].request {
            Some(Request::List { read, served, .. }) if read.is_none() && *served <= now && self.api.on => {
                *read = Some((self.api.pods.clone(), self.api.versions.clone()));
            }
            Some(Request::Patch { replica, version, confirmed, lands, .. }) if *lands <= now => {
                let (replica, version, confirmed) = (*replica, *version, *confirmed);
                *lands = u64::MAX;
                if self.api.on && self.api.versions[replica] == version {
                    self.api.pods[replica].readiness = ReplicaReadiness::Lost;
                    self.api.versions[replica] += 1;
                    self.api.lost[replica] = Some(now);
                    self.marked[replica].get_or_insert(now);
                    self.processes[process].detector.marked(&format!("u{replica}"), self.begin + Duration::from_millis(now));
                    let reached = &self.processes[process].reached;
                    let stays = |(pod, reached): (&ReplicaPod, &u64)| is_ready(pod) && reached + 1000 >= confirmed;
                    prop_assert!(self.api.pods.iter().zip(reached).any(stays), "no reachable replica is ready after {now} ms");
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn step(&mut self, number: usize, now: u64) {
        let time = self.at(now);
        let (begin, reachable) = (self.begin, self.api.on && self.processes[number].api);
        let process = &mut self.processes[number];
        for probe in process.probes.extract_if(.., |probe| probe.due <= now) {
            process.detector.record(&probe.uid, begin + Duration::from_millis(probe.sent), probe.answered, time);
        }
        self.mark(number, now, reachable);
        let process = &mut self.processes[number];
        if reachable && now.is_multiple_of(200) {
            process.detector.observe(self.api.pods.clone(), time);
        }
        let turn = process.detector.turn(time);
        process.suspected = !turn.suspected.is_empty();
        for probe in turn.probes {
            let replica: usize = probe.uid[1..].parse().expect("a number");
            let delay = self.random.delay(self.slow, 600);
            let answered = self.alive[replica] && process.links[replica] && delay < 400;
            process.probes.push(Probed { uid: probe.uid, sent: now, answered, due: now + delay.min(400) });
        }
        self.elect(number, now, reachable, turn.wants_lease);
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
                self.api.lease = Some((number, now + millis(LEASE.trust), now + millis(LEASE.duration)));
                process.next_renewal = now + millis(LEASE.every);
            }
            _ => {}
        }
    }

    fn mark(&mut self, number: usize, now: u64, reachable: bool) {
        let trust = self.api.lease.filter(|(holder, trust, _)| *holder == number && now < *trust).map(|(_, trust, _)| trust);
        let (lead, slow) = (u64::try_from((LEASE.duration.saturating_sub(LEASE.trust)).as_millis()).expect("short"), self.slow);
        let begin = self.begin;
        let process = &mut self.processes[number];
        match process.request.take() {
            Some(Request::List { begun, read: Some((pods, versions)), due, .. }) if due <= now => {
                let objects = pods.iter().map(object).collect();
                let mark = process.detector.confirm("g", objects, begin + Duration::from_millis(begun), begin + Duration::from_millis(now));
                if let (Some(mark), Some(trust), true) = (mark, trust, reachable) {
                    let replica: usize = mark.pod.uid[1..].parse().expect("a number");
                    let lands = now + self.random.delay(slow, trust - now + lead - STEP);
                    process.request = Some(Request::Patch { replica, version: versions[replica], confirmed: now, lands, fails: trust });
                }
            }
            // The response to a list or patch is lost, or comes too late.
            Some(Request::List { due, .. }) if due + 2000 <= now => process.next_mark = now,
            Some(Request::Patch { lands, fails, .. }) if lands == u64::MAX || fails + lead <= now => process.next_mark = now,
            Some(request) => process.request = Some(request),
            None if process.suspected && trust.is_some() && reachable && process.next_mark <= now => {
                let (served, after) = (now + self.random.delay(slow, 1000), self.random.delay(slow, 1000));
                process.request = Some(Request::List { begun: now, read: None, served, due: served + after });
                process.next_mark = now + 500;
            }
            None => {}
        }
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

    /// Each process reaches only one replica, and no kubelet restores readiness: one replica at most is marked.
    #[test]
    fn processes_in_different_partitions_mark_one_replica(seed in any::<u64>(), first in 1000..4000_u64, second in 1000..4000_u64) {
        let mut world = World::new(2, seed, true);
        let cut = |process| Fault::Link { process, replica: 1 - process, on: false };
        let kubelets = (0..2).map(|replica| (0, Fault::Kubelet { replica, on: false }));
        world.run([(first, cut(0)), (second, cut(1))].into_iter().chain(kubelets).collect(), 60_000)?;
        prop_assert_eq!(world.marked.iter().flatten().count(), 1);
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
