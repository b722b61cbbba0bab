//! Replicas and one Lease: who orders, when the first is there and when it is not.

use super::*;

const EVERY: Duration = CertLeaderTerms::DEFAULT.every;

/// Replicas that look at a Lease by turns.
struct World {
    now: Duration,
    lease: Option<LeaseView>,
    renewed: Duration,
    versions: u32,
    replicas: Vec<Option<CertLeaderCandidate>>,
    able: Vec<bool>,
}

impl World {
    fn new(replicas: u32) -> Self {
        let all = (0..replicas).map(|ordinal| Some(candidate(ordinal))).collect();
        Self { now: Duration::ZERO, lease: None, renewed: Duration::ZERO, versions: 0, replicas: all, able: vec![true; replicas as usize] }
    }

    /// Everybody who is there has one look, and does what is to be done.
    fn turn(&mut self) {
        self.now += EVERY;
        for (ordinal, able) in self.able.clone().into_iter().enumerate() {
            let age = self.now.saturating_sub(self.renewed);
            let Some(replica) = &mut self.replicas[ordinal] else { continue };
            replica.saw(self.lease.clone(), age, self.now);
            let (holder, asked) = match replica.next(able, self.now) {
                CertLeaderStep::Hold => (replica.name().to_owned(), false),
                CertLeaderStep::Release => (String::new(), false),
                CertLeaderStep::Ask => (self.lease.as_ref().map(|seen| seen.holder.clone()).unwrap_or_default(), true),
                CertLeaderStep::Wait => continue,
            };
            self.versions += 1;
            if !asked {
                self.renewed = self.now;
            }
            self.lease = Some(LeaseView { version: self.versions.to_string(), holder, handback: asked });
            replica.saw(self.lease.clone(), Duration::ZERO, self.now);
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.turn();
        }
    }

    fn leaders(&self) -> Vec<&str> {
        self.replicas.iter().flatten().filter(|replica| replica.leads()).map(CertLeaderCandidate::name).collect()
    }
}

fn candidate(ordinal: u32) -> CertLeaderCandidate {
    CertLeaderCandidate::new(format!("g-{ordinal}"), ordinal, CertLeaderTerms::DEFAULT)
}

#[test]
fn the_first_leads_at_once_and_a_restart_moves_nothing() {
    let mut world = World::new(3);
    world.turn();
    assert_eq!(world.leaders(), ["g-0"]);
    world.replicas[0] = None;
    world.run(Duration::from_mins(5));
    world.replicas[0] = Some(candidate(0));
    world.turn();
    assert_eq!((world.leaders(), world.lease.as_ref().map(|seen| seen.holder.as_str())), (vec!["g-0"], Some("g-0")));
}

#[test]
fn the_lowest_that_is_there_takes_over_and_gives_back() {
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
fn a_first_that_is_there_and_cannot_order_is_away() {
    let mut world = World::new(2);
    world.turn();
    world.able[0] = false;
    world.run(Duration::from_mins(13));
    assert_eq!(world.leaders(), ["g-1"]);
    world.able[0] = true;
    world.run(3 * EVERY);
    assert_eq!(world.leaders(), ["g-0"]);
}

#[test]
fn a_holder_that_died_holding_for_the_first_is_not_waited_for_long() {
    let mut world = World::new(2);
    world.replicas[0] = None;
    world.run(Duration::from_mins(13));
    assert_eq!(world.leaders(), ["g-1"]);
    (world.replicas[0], world.replicas[1]) = (Some(candidate(0)), None);
    world.run(10 * EVERY);
    assert_eq!(world.leaders(), ["g-0"]);
}

#[test]
fn one_that_starts_anew_remembers_by_the_leases_own_time() {
    let mut world = World::new(2);
    world.turn();
    world.replicas[0] = None;
    world.run(Duration::from_mins(9));
    world.replicas[1] = Some(candidate(1));
    world.run(Duration::from_mins(3));
    assert_eq!(world.leaders(), ["g-1"]);
}

#[test]
fn at_first_sight_nobody_is_gone() {
    let mut late = candidate(1);
    let lease = LeaseView { version: "7".into(), holder: "g-0".into(), handback: false };
    late.saw(Some(lease), Duration::from_hours(1), Duration::ZERO);
    assert_eq!(late.next(true, EVERY), CertLeaderStep::Wait);
    assert_eq!(late.next(true, 2 * EVERY), CertLeaderStep::Hold);
    assert_eq!(late.next(false, 2 * EVERY), CertLeaderStep::Wait);
    assert_eq!(candidate(0).next(true, Duration::from_hours(9)), CertLeaderStep::Wait, "what was not seen is not written");
}
