//! An observer that passes the claim of the active Pod.

use super::*;
use crate::model::base::leader::{ClaimObserver, ClaimVerdict};

const LEASE: &str = "ts-web-abcde-0";
/// Interval of the observer's reads, in steps.
const READ_INTERVAL: u32 = 5;

/// What the observer compares.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Judge {
    /// It passes every claim that it reads.
    Every,
    /// [`ClaimObserver`], with this error of the holder's clock in steps.
    Observer(i32),
}

/// Observer that finds the active Pod lost in some ranges of steps, each with its end.
struct Observer {
    judge: Judge,
    lost: Vec<(u32, u32)>,
    /// Duration of its write, in steps.
    delay: u32,
    /// Whether a watch wakes the Pods.
    watches: bool,
    claims: ClaimObserver,
    write: Option<(u32, LeaseRecord)>,
    passed: usize,
}

impl Observer {
    fn new(judge: Judge, lost: Vec<(u32, u32)>, delay: u32) -> Self {
        Self { judge, lost, delay, watches: true, claims: ClaimObserver::default(), write: None, passed: 0 }
    }

    fn step(&mut self, world: &mut Simulation, step: u32) {
        if let Some((_, compared)) = self.write.take_if(|(arrives, _)| *arrives == step) {
            self.pass(world, &compared, step);
        }
        let is_due = step.is_multiple_of(READ_INTERVAL) && self.lost.iter().any(|(begin, end)| (*begin..*end).contains(&step));
        let Some(lease) = world.lease.clone().filter(|_| is_due && self.write.is_none()) else { return };
        let age = |error: i32| STEP * (step - world.written).saturating_add_signed(error);
        let passes = match self.judge {
            Judge::Every => true,
            Judge::Observer(error) => {
                let (record, now) = (LeaseRecord { age: age(error), ..lease.clone() }, world.begin + STEP * step);
                self.claims.judge(LEASE, LeaseTerms::ACTIVE_POD, &record, &lease.holder, now) == ClaimVerdict::Overdue
            }
        };
        self.write = passes.then_some((step + self.delay, lease));
    }

    /// The write arrives: it is conditional on the version that was read.
    fn pass(&mut self, world: &mut Simulation, compared: &LeaseRecord, step: u32) {
        if world.lease.as_ref().is_none_or(|lease| lease.version != compared.version) {
            return;
        }
        let Some(successor) = world.pods.iter().find(|pod| pod.candidate.name() != compared.holder) else { return };
        let holder = successor.candidate.name().to_owned();
        world.version += 1;
        world.written = step;
        world.lease = Some(LeaseRecord { holder, duration: LeaseTerms::ACTIVE_POD.lease_duration, ..record("", world.version) });
        self.passed += 1;
        if self.watches {
            world.pods.iter_mut().for_each(|pod| pod.woken = true);
        }
    }
}

/// Times in which each Pod runs tailscaled although the Lease does not name it.
#[derive(Default)]
struct Unnamed([Duration; 2]);

impl Unnamed {
    fn step(&mut self, world: &Simulation) -> Duration {
        let holder = world.lease.as_ref().map(|lease| lease.holder.as_str()).unwrap_or_default();
        for (pod, time) in world.pods.iter().zip(&mut self.0) {
            *time = if pod.runs && pod.candidate.name() != holder { *time + STEP } else { Duration::ZERO };
        }
        self.0[0].max(self.0[1])
    }
}

/// Longest time for which a Pod runs after its claim passed: until its fence, by the slowest clock, and a step.
fn longest_run() -> Duration {
    (LeaseTerms::ACTIVE_POD.renew_deadline + FENCE_DELAY) * 101 / 100 + STEP
}

/// Ranges of steps in which the active Pod is found lost.
fn losses() -> impl Strategy<Value = Vec<(u32, u32)>> {
    prop::collection::vec((0..STEPS, 1..300_u32).prop_map(|(begin, length)| (begin, begin + length)), 1..8)
}

proptest! {
    /// Every claim that is read passes, of any holder and any number of times.
    #[test]
    fn pod_runs_tailscaled_at_most_until_its_fence_after_its_claim_passed(
        rates in prop::array::uniform2(990..=1010_u32),
        failures in failures(),
        delays in (1..=SLOWEST).prop_flat_map(|slowest| prop::collection::vec(1..=slowest, 1..50)),
        lost in losses(),
        (delay, watches) in (1..30_u32, any::<bool>()),
    ) {
        let mut world = Simulation::new(rates, failures, delays);
        let mut observer = Observer { watches, ..Observer::new(Judge::Every, lost, delay) };
        let mut unnamed = Unnamed::default();
        for step in 0..STEPS {
            world.step(step);
            observer.step(&mut world, step);
            let time = unnamed.step(&world);
            prop_assert!(time <= longest_run(), "a Pod runs tailscaled {time:?} after its claim passed, at step {step}");
        }
    }

    /// An observer that is always wrong, with clocks that differ by less than half an interval.
    #[test]
    fn claim_of_a_pod_that_renews_never_passes(
        rates in prop::array::uniform2(990..=1010_u32),
        delays in prop::collection::vec(1..=2_u32, 1..50),
        error in -40..=2_i32,
        delay in 1..10_u32,
    ) {
        let mut world = Simulation::new(rates, Vec::new(), delays);
        let mut observer = Observer::new(Judge::Observer(error), vec![(0, STEPS)], delay);
        for step in 0..STEPS {
            world.step(step);
            observer.step(&mut world, step);
            prop_assert_eq!(observer.passed, 0, "at step {}", step);
        }
    }

    /// The active Pod loses its node at any time, and is found lost 1.3 s later.
    #[test]
    fn waiting_pod_runs_tailscaled_soon_after_the_node_of_the_active_one_is_lost(begin in 100..200_u32, error in -40..=2_i32) {
        let mut world = Simulation::new([1000; 2], Vec::new(), vec![1]);
        let mut observer = Observer::new(Judge::Observer(error), vec![(begin + 13, STEPS)], 1);
        (0..begin).for_each(|step| world.step(step));
        let active = world.pods.iter().position(|pod| pod.runs).expect("an active Pod");
        world.failures.push(Failure { pod: active, fault: Fault::Unreachable, begin, end: STEPS });
        let taken = (begin..STEPS).find(|step| {
            world.step(*step);
            observer.step(&mut world, *step);
            world.pods[1 - active].runs
        });
        // Until the verdict, reads until a renewal is overdue if the holder's clock is ahead, then a read and three writes.
        let longest = 13 + 4 * READ_INTERVAL + 8;
        prop_assert!(taken.is_some_and(|taken| taken - begin <= longest), "{:?}", taken.map(|taken| taken - begin));
    }
}
