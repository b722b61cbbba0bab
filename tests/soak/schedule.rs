//! What happens in a soak and when: a pure value from a seed and a length, so that a run can be repeated.

use std::ops::Range;
use std::time::Duration;

use fastrand::Rng;
use tailyard::demo::script::{Blow, Step};

use crate::daemon::OTHERS;

/// How many replicas there are.
pub(crate) const REPLICAS: u8 = 3;
/// The first so many of them are killed and leave; the others live from the beginning to the end, and are measured.
pub(crate) const STRUCK: usize = 2;
/// Between two changes of the config, and between two troubles, in milliseconds.
const CHANGES: Range<u64> = 60..500;
const TROUBLES: Range<u64> = 400..3_000;
/// For how long a killed replica is away, in milliseconds.
const AWAY: Range<u64> = 300..3_000;
/// For how long a tailscaled does nothing, in milliseconds: long enough to be noticed, too short to be killed for.
const HANGS: Range<u64> = 500..5_000;
/// Before this nothing is taken away, and after this before the end: everything has to come back.
const CALM: Duration = Duration::from_secs(2);
const LAST: Duration = Duration::from_secs(6);

/// What befalls the group beside changes of its config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A replica's process is struck.
    Replica(Blow),
    /// What is mounted is no config for a moment.
    BadConfig,
    /// The tailnet has so many peers whom no service concerns, and the stream of its news is cut.
    Peers(u8),
    /// The tailscaled of a replica is killed.
    DaemonKilled(usize),
    /// The tailscaled of a replica does nothing for so long.
    DaemonHangs(usize, Duration),
}

/// Everything, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// Changes of the config.
    pub(crate) changes: Vec<(Duration, Step)>,
    /// Troubles. One that takes a replica away waits until the others can do without it, and those after it with it.
    pub(crate) troubles: Vec<(Duration, Trouble)>,
}

impl Schedule {
    /// The schedule of a seed for so long.
    pub(crate) fn of(seed: u64, length: Duration) -> Self {
        let mut dice = Rng::with_seed(seed);
        let end = length.saturating_sub(LAST);
        let changes = moments(&mut dice, CHANGES, Duration::ZERO, length).into_iter().map(|at| (at, step(&mut dice))).collect();
        let mut troubles: Vec<(Duration, Trouble)> = Vec::new();
        for at in moments(&mut dice, TROUBLES, CALM, end) {
            let at = at.max(troubles.last().map_or(at, |(last, _)| *last));
            let trouble = trouble(&mut dice);
            troubles.push((at, trouble));
            if let Trouble::Replica(Blow::Kill(number)) = trouble {
                troubles.push((at + Duration::from_millis(dice.u64(AWAY)), Trouble::Replica(Blow::Revive(number))));
            }
        }
        Self { changes, troubles }
    }
}

/// Moments some time apart.
fn moments(dice: &mut Rng, apart: Range<u64>, from: Duration, to: Duration) -> Vec<Duration> {
    let next = |at: &Duration| Some(*at + Duration::from_millis(dice.u64(apart.clone())));
    std::iter::successors(Some(from), next).skip(1).take_while(|at| *at < to).collect()
}

/// As many services come as go: memory is to be compared, so the config must not grow.
fn step(dice: &mut Rng) -> Step {
    match dice.u8(..10) {
        0..=4 => Step::Retarget,
        5 | 6 => Step::Add,
        7 | 8 => Step::Remove,
        _ => Step::All,
    }
}

fn trouble(dice: &mut Rng) -> Trouble {
    let number = dice.usize(..STRUCK);
    match dice.u8(..12) {
        0 | 1 => Trouble::Replica(Blow::Kill(number)),
        2 | 3 => Trouble::Replica(Blow::Leave(number)),
        4 => Trouble::BadConfig,
        5 | 6 => Trouble::DaemonKilled(dice.usize(..usize::from(REPLICAS))),
        7 | 8 => Trouble::DaemonHangs(dice.usize(..usize::from(REPLICAS)), Duration::from_millis(dice.u64(HANGS))),
        _ => Trouble::Peers(dice.u8(..OTHERS)),
    }
}

#[test]
fn a_schedule_is_its_seed_and_its_length() {
    let hour = Duration::from_hours(1);
    let schedule = Schedule::of(1, hour);
    assert_eq!(schedule, Schedule::of(1, hour));
    assert_ne!(schedule, Schedule::of(2, hour));
    assert!(schedule.changes.is_sorted_by_key(|(at, _)| *at) && schedule.troubles.is_sorted_by_key(|(at, _)| *at));
    let last = schedule.troubles.last().expect("troubles").0;
    let count = |wanted: Step| schedule.changes.iter().filter(|(_, step)| *step == wanted).count();
    assert!(count(Step::Add).abs_diff(count(Step::Remove)) < 300, "services neither pile up nor run out");
    assert!(last < hour && last + 2 * LAST > hour, "{last:?}");
}

#[test]
fn who_is_killed_is_revived_before_anything_else_happens() {
    for seed in 0..50 {
        let troubles: Vec<_> = Schedule::of(seed, Duration::from_mins(10)).troubles.into_iter().map(|(_, trouble)| trouble).collect();
        for (number, trouble) in troubles.iter().enumerate() {
            if let Trouble::Replica(Blow::Kill(killed)) = trouble {
                assert_eq!(troubles.get(number + 1), Some(&Trouble::Replica(Blow::Revive(*killed))));
            }
        }
        let kinds = |wanted: fn(&Trouble) -> bool| troubles.iter().filter(|trouble| wanted(trouble)).count();
        assert!(kinds(|trouble| matches!(trouble, Trouble::Replica(Blow::Leave(_)))) > 5);
        assert!(kinds(|trouble| matches!(trouble, Trouble::Replica(Blow::Kill(_)))) > 5);
        assert!(kinds(|trouble| matches!(trouble, Trouble::DaemonKilled(_))) > 5);
        assert!(kinds(|trouble| matches!(trouble, Trouble::DaemonHangs(..))) > 5);
        assert!(kinds(|trouble| *trouble == Trouble::BadConfig) > 2 && kinds(|trouble| matches!(trouble, Trouble::Peers(_))) > 5);
    }
}
