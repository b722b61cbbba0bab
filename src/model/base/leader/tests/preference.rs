//! Tests of replicas with one Lease: the leader with and without ordinal 0.

use super::super::*;

const TERMS: LeaseTerms = LeaseTerms::CERT_LEADER;
const EVERY: Duration = TERMS.retry_period;

/// Replicas that process a Lease in turn.
struct World {
    now: Instant,
    lease: Option<LeaseRecord>,
    renewed: Instant,
    versions: u32,
    replicas: Vec<Option<LeaseCandidate>>,
    eligible: Vec<bool>,
}

impl World {
    fn new(replicas: u32) -> Self {
        let all = (0..replicas).map(|ordinal| Some(candidate(ordinal))).collect();
        let now = Instant::now();
        Self { now, lease: None, renewed: now, versions: 0, replicas: all, eligible: vec![true; replicas as usize] }
    }

    /// Each running replica reads the Lease once and takes its next step.
    fn turn(&mut self) {
        self.now += EVERY;
        for (ordinal, eligible) in self.eligible.clone().into_iter().enumerate() {
            let age = self.now - self.renewed;
            let Some(replica) = &mut self.replicas[ordinal] else { continue };
            replica.observe(self.lease.clone().map(|record| LeaseRecord { age, ..record }), self.now);
            let (holder, handback) = match replica.next(eligible, self.now) {
                LeaseStep::Create | LeaseStep::Take { .. } | LeaseStep::Renew { .. } => (replica.name().to_owned(), false),
                LeaseStep::Release { .. } => (String::new(), false),
                LeaseStep::RequestHandback => (self.lease.as_ref().map(|record| record.holder.clone()).unwrap_or_default(), true),
                LeaseStep::Wait(_) => continue,
            };
            self.versions += 1;
            if !handback {
                self.renewed = self.now;
            }
            let record = LeaseRecord { version: self.versions.to_string(), holder, handback, ..LeaseRecord::default() };
            self.lease = Some(record.clone());
            replica.written(record, self.now);
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.turn();
        }
    }

    fn leaders(&self) -> Vec<&str> {
        self.replicas.iter().flatten().filter(|replica| replica.leading_until(self.now).is_some()).map(LeaseCandidate::name).collect()
    }
}

fn candidate(ordinal: u32) -> LeaseCandidate {
    LeaseCandidate::new(format!("g-{ordinal}"), Some(ordinal), TERMS)
}

#[test]
fn first_replica_leads_at_once_and_after_a_restart() {
    let mut world = World::new(3);
    world.turn();
    assert_eq!(world.leaders(), ["g-0"]);
    world.replicas[0] = None;
    world.run(Duration::from_mins(5));
    world.replicas[0] = Some(candidate(0));
    world.turn();
    assert_eq!((world.leaders(), world.lease.as_ref().map(|lease| lease.holder.as_str())), (vec!["g-0"], Some("g-0")));
}

#[test]
fn lowest_live_replica_takes_over_and_hands_back() {
    let mut world = World::new(4);
    world.turn();
    (world.replicas[0], world.replicas[1]) = (None, None);
    world.run(Duration::from_mins(9));
    assert!(world.leaders().is_empty());
    world.run(Duration::from_mins(4));
    assert_eq!(world.leaders(), ["g-2"]);
    world.replicas[1] = Some(candidate(1));
    world.run(Duration::from_mins(30));
    assert_eq!(world.leaders(), ["g-2"], "only the first gets it back");
    world.replicas[0] = Some(candidate(0));
    world.run(3 * EVERY);
    assert_eq!(world.leaders(), ["g-0"]);
    world.run(Duration::from_mins(30));
    assert_eq!(world.leaders(), ["g-0"]);
}

#[test]
fn replica_that_cannot_order_is_replaced_as_leader() {
    let mut world = World::new(2);
    world.turn();
    world.eligible[0] = false;
    world.run(Duration::from_mins(13));
    assert_eq!(world.leaders(), ["g-1"]);
    world.eligible[0] = true;
    world.run(3 * EVERY);
    assert_eq!(world.leaders(), ["g-0"]);
}

#[test]
fn first_replica_soon_replaces_a_dead_substitute() {
    let mut world = World::new(2);
    world.replicas[0] = None;
    world.run(Duration::from_mins(13));
    assert_eq!(world.leaders(), ["g-1"]);
    (world.replicas[0], world.replicas[1]) = (Some(candidate(0)), None);
    world.run(10 * EVERY);
    assert_eq!(world.leaders(), ["g-0"]);
}

#[test]
fn restarted_candidate_counts_from_the_lease_time() {
    let mut world = World::new(2);
    world.turn();
    world.replicas[0] = None;
    world.run(Duration::from_mins(9));
    world.replicas[1] = Some(candidate(1));
    world.run(Duration::from_mins(3));
    assert_eq!(world.leaders(), ["g-1"]);
}

#[test]
fn new_candidate_waits_before_it_takes_the_lease() {
    let begin = Instant::now();
    let mut late = candidate(1);
    let age = Duration::from_hours(1);
    late.observe(Some(LeaseRecord { version: "7".into(), holder: "g-0".into(), age, ..LeaseRecord::default() }), begin);
    assert_eq!(late.next(true, begin + EVERY), LeaseStep::Wait(begin + 2 * EVERY));
    assert_eq!(late.next(true, begin + 2 * EVERY), LeaseStep::Take { transitions: 1 });
    assert_eq!(late.next(false, begin + 2 * EVERY), LeaseStep::Wait(begin + 3 * EVERY));
    let later = begin + Duration::from_hours(9);
    assert_eq!(candidate(0).next(true, later), LeaseStep::Wait(later + EVERY), "what was not seen is not written");
}

#[test]
fn first_replica_leads_without_lease_permission() {
    let now = Instant::now();
    let mut all = [candidate(0), candidate(1), LeaseCandidate::new("r", None, LeaseTerms::RECONCILER)];
    for candidate in &mut all {
        candidate.denied(now);
    }
    assert_eq!(all.map(|candidate| candidate.leading_until(now).is_some()), [true, false, false]);
}
