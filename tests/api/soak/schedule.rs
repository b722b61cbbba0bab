//! Schedule of a soak: a pure function of seed and length, so that a run can be repeated.

use std::ops::Range;
use std::time::Duration;

use fastrand::Rng;
use tailyard::demo::scenario::{FaultInjection, ScenarioStep};

use crate::soak::daemon::OTHERS;

/// Number of replicas.
pub(crate) const REPLICAS: u8 = 3;
/// Number of replicas, from the first on, that are killed and leave; the others run throughout and are measured.
pub(crate) const STRUCK: usize = 2;
/// Intervals of config changes and of faults, in milliseconds.
const CHANGES: Range<u64> = 60..500;
const TROUBLES: Range<u64> = 400..3_000;
/// Downtime of a killed replica, in milliseconds.
const AWAY: Range<u64> = 300..3_000;
/// Duration of a suspended tailscaled, in milliseconds: long enough to be detected, too short to be killed for it.
const HANGS: Range<u64> = 500..5_000;
/// Time between two outages of the API server, and duration of its hang or downtime, in milliseconds.
const UNTIL_OUTAGE: Range<u64> = 1_000..10_000;
const OUTAGES: Range<u64> = 1_000..10_000;
/// Time allowed for the API server's start.
const API_START: Duration = Duration::from_secs(5);
/// Time from the start of an outage to the kill of a tailscaled, and from there to the fault of a replica, in milliseconds.
const INTO_OUTAGE: Range<u64> = 100..1_000;
/// No faults in the first `CALM` and in the last `LAST`: everything has to recover.
const CALM: Duration = Duration::from_secs(2);
const LAST: Duration = Duration::from_secs(6);

/// Fault of the group, beside changes of its config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Fault of a replica's process.
    Replica(FaultInjection),
    /// The mounted config is invalid for a moment.
    BadConfig,
    /// The tailnet has this many peers that no service targets, and the bus connection is cut.
    Peers(u8),
    /// The tailscaled of a replica is killed.
    DaemonKilled(usize),
    /// The tailscaled of a replica is suspended for this long.
    DaemonHangs(usize, Duration),
    /// The targets swap their names.
    Renamed,
    /// Outage of the API server.
    Api(Outage),
}

/// Kind of an API server outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outage {
    /// It keeps its connections open and sends no responses for this long.
    Hangs(Duration),
    /// It is killed, and restarted after this long.
    Killed(Duration),
}

/// All events, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// Config changes.
    pub(crate) changes: Vec<(Duration, ScenarioStep)>,
    /// Faults. One that takes a replica down is postponed until the others suffice, and later ones with it.
    pub(crate) troubles: Vec<(Duration, Trouble)>,
}

impl Schedule {
    /// Schedule of a seed with this length.
    pub(crate) fn of(seed: u64, length: Duration) -> Self {
        let mut dice = Rng::with_seed(seed);
        let end = length.saturating_sub(LAST);
        let changes = moments(&mut dice, CHANGES, Duration::ZERO, length).into_iter().map(|at| (at, step(&mut dice))).collect();
        let mut due: Vec<_> = moments(&mut dice, TROUBLES, CALM, end).into_iter().map(|at| (at, trouble(&mut dice))).collect();
        due.extend(outages(&mut dice, CALM, end));
        due.sort_by_key(|(at, _)| *at);
        let mut troubles: Vec<(Duration, Trouble)> = Vec::new();
        for (at, trouble) in due {
            let at = at.max(troubles.last().map_or(at, |(last, _)| *last));
            troubles.push((at, trouble));
            troubles.extend(aftermath(&mut dice, at, trouble));
        }
        Self { changes, troubles }
    }
}

/// Times with random distances in the range `apart`.
fn moments(dice: &mut Rng, apart: Range<u64>, from: Duration, to: Duration) -> Vec<Duration> {
    let next = |at: &Duration| Some(*at + Duration::from_millis(dice.u64(apart.clone())));
    std::iter::successors(Some(from), next).skip(1).take_while(|at| *at < to).collect()
}

/// Adding and removing a service are equally likely: the config must not grow, since memory is compared.
fn step(dice: &mut Rng) -> ScenarioStep {
    match dice.u8(..10) {
        0..=4 => ScenarioStep::Retarget,
        5 | 6 => ScenarioStep::Add,
        7 | 8 => ScenarioStep::Remove,
        _ => ScenarioStep::All,
    }
}

fn trouble(dice: &mut Rng) -> Trouble {
    match dice.u8(..14) {
        0..=3 => Trouble::Replica(blow(dice)),
        4 => Trouble::BadConfig,
        5 | 6 => Trouble::DaemonKilled(dice.usize(..usize::from(REPLICAS))),
        7 | 8 => Trouble::DaemonHangs(dice.usize(..usize::from(REPLICAS)), Duration::from_millis(dice.u64(HANGS))),
        9 | 10 => Trouble::Peers(dice.u8(..OTHERS)),
        _ => Trouble::Renamed,
    }
}

/// A fault that takes a replica down.
fn blow(dice: &mut Rng) -> FaultInjection {
    let number = dice.usize(..STRUCK);
    if dice.bool() { FaultInjection::Kill(number) } else { FaultInjection::Leave(number) }
}

/// Outages of the API server, alternating between both kinds, each some time after the end of the previous one.
fn outages(dice: &mut Rng, from: Duration, to: Duration) -> Vec<(Duration, Trouble)> {
    let (mut at, mut outages) = (from, Vec::new());
    let kinds: [fn(Duration) -> Outage; 2] = [Outage::Killed, Outage::Hangs];
    for kind in kinds.into_iter().cycle() {
        at += Duration::from_millis(dice.u64(UNTIL_OUTAGE));
        if at >= to {
            break;
        }
        let lasts = Duration::from_millis(dice.u64(OUTAGES));
        outages.push((at, Trouble::Api(kind(lasts))));
        at += lasts + API_START;
    }
    outages
}

/// Consequences of a fault: a killed replica restarts; during an outage of the API server a tailscaled has to restart, and a replica is
/// taken down.
fn aftermath(dice: &mut Rng, at: Duration, trouble: Trouble) -> Vec<(Duration, Trouble)> {
    match trouble {
        Trouble::Replica(FaultInjection::Kill(number)) => {
            vec![(at + Duration::from_millis(dice.u64(AWAY)), Trouble::Replica(FaultInjection::Revive(number)))]
        }
        Trouble::Api(_) => {
            let daemon = (at + Duration::from_millis(dice.u64(INTO_OUTAGE)), Trouble::DaemonKilled(dice.usize(..usize::from(REPLICAS))));
            let replica = (daemon.0 + Duration::from_millis(dice.u64(INTO_OUTAGE)), Trouble::Replica(blow(dice)));
            [daemon, replica].into_iter().chain(aftermath(dice, replica.0, replica.1)).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn schedule_is_determined_by_seed_and_length() {
    let hour = Duration::from_hours(1);
    let schedule = Schedule::of(1, hour);
    assert_eq!(schedule, Schedule::of(1, hour));
    assert_ne!(schedule, Schedule::of(2, hour));
    assert!(schedule.changes.is_sorted_by_key(|(at, _)| *at) && schedule.troubles.is_sorted_by_key(|(at, _)| *at));
    let last = schedule.troubles.last().expect("troubles").0;
    let count = |wanted: ScenarioStep| schedule.changes.iter().filter(|(_, step)| *step == wanted).count();
    assert!(count(ScenarioStep::Add).abs_diff(count(ScenarioStep::Remove)) < 300, "services neither pile up nor run out");
    assert!(last < hour && last + 2 * LAST > hour, "{last:?}");
}

#[test]
fn tailscaled_and_a_replica_fail_during_an_api_outage() {
    for seed in 0..50 {
        let troubles = Schedule::of(seed, Duration::from_mins(10)).troubles;
        for (number, (at, trouble)) in troubles.iter().enumerate() {
            let Trouble::Api(Outage::Hangs(lasts) | Outage::Killed(lasts)) = trouble else { continue };
            let [(_, first), (last, second)] = [troubles[number + 1], troubles[number + 2]];
            assert!(matches!(first, Trouble::DaemonKilled(_)), "{first:?}");
            assert!(matches!(second, Trouble::Replica(FaultInjection::Kill(_) | FaultInjection::Leave(_))), "{second:?}");
            assert!(last < *at + *lasts + API_START, "{last:?}");
        }
    }
}

#[test]
fn short_soak_has_renames_and_both_api_outages() {
    let troubles = Schedule::of(super::SEED, Duration::from_secs(super::SECONDS)).troubles;
    let has = |wanted: fn(&Trouble) -> bool| troubles.iter().any(|(_, trouble)| wanted(trouble));
    assert!(has(|trouble| *trouble == Trouble::Renamed), "{troubles:?}");
    assert!(has(|trouble| matches!(trouble, Trouble::Api(Outage::Hangs(_)))), "{troubles:?}");
    assert!(has(|trouble| matches!(trouble, Trouble::Api(Outage::Killed(_)))), "{troubles:?}");
}

#[test]
fn killed_replica_is_revived_next() {
    for seed in 0..50 {
        let troubles: Vec<_> = Schedule::of(seed, Duration::from_mins(10)).troubles.into_iter().map(|(_, trouble)| trouble).collect();
        for (number, trouble) in troubles.iter().enumerate() {
            if let Trouble::Replica(FaultInjection::Kill(killed)) = trouble {
                assert_eq!(troubles.get(number + 1), Some(&Trouble::Replica(FaultInjection::Revive(*killed))));
            }
        }
        let kinds = |wanted: fn(&Trouble) -> bool| troubles.iter().filter(|trouble| wanted(trouble)).count();
        assert!(kinds(|trouble| matches!(trouble, Trouble::Replica(FaultInjection::Leave(_)))) > 5);
        assert!(kinds(|trouble| matches!(trouble, Trouble::Replica(FaultInjection::Kill(_)))) > 5);
        assert!(kinds(|trouble| matches!(trouble, Trouble::DaemonKilled(_))) > 5);
        assert!(kinds(|trouble| matches!(trouble, Trouble::DaemonHangs(..))) > 5);
        assert!(kinds(|trouble| *trouble == Trouble::Renamed) > 10);
        assert!(kinds(|trouble| matches!(trouble, Trouble::Api(Outage::Hangs(_)))) > 2);
        assert!(kinds(|trouble| matches!(trouble, Trouble::Api(Outage::Killed(_)))) > 2);
        assert!(kinds(|trouble| *trouble == Trouble::BadConfig) > 2 && kinds(|trouble| matches!(trouble, Trouble::Peers(_))) > 5);
    }
}
