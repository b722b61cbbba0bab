use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;
use crate::model::base::net::Proto;

const A: TargetIdentity = TargetIdentity { target: 0, port: 7000 };
const B: TargetIdentity = TargetIdentity { target: 1, port: 7000 };
const C: TargetIdentity = TargetIdentity { target: 2, port: 7000 };
const LANE: Lane = Lane { service: 3, replica: 1 };

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn report(due: u64, connected: Option<u64>, ended: u64, outcome: Result<TargetIdentity, AttemptFailure>) -> AttemptReport {
    let to = SocketAddr::from(([10, 0, 0, 1], 1));
    let attempt = Attempt { lane: LANE, proto: Proto::Tcp, to };
    AttemptReport { attempt, due: ms(due), began: ms(due + 1), connected: connected.map(ms), ended: ms(ended), resent: 0, outcome }
}

#[test]
fn old_and_new_target_are_right_until_the_change_settles() {
    let mut ledger = Expectations::default();
    ledger.write(LANE, Some(A), ms(0));
    ledger.settle(LANE, ms(1));
    ledger.write(LANE, Some(B), ms(100));
    let check = |ledger: &Expectations, began, answer| ledger.check(LANE, ms(began), ms(began + 1), answer);
    assert!(!ledger.is_settled(LANE));
    assert_eq!(check(&ledger, 50, A), AnswerVerdict::Right);
    assert_eq!(check(&ledger, 50, B), AnswerVerdict::Wrong, "not before it was written");
    assert_eq!(check(&ledger, 150, A), AnswerVerdict::Right);
    assert_eq!(check(&ledger, 150, B), AnswerVerdict::Right);
    ledger.settle(LANE, ms(110));
    assert_eq!(check(&ledger, 109, A), AnswerVerdict::Right, "begun before");
    assert_eq!(check(&ledger, 150, A), AnswerVerdict::Stale { by: ms(40) });
    assert_eq!(check(&ledger, 150, B), AnswerVerdict::Right);
    assert_eq!(check(&ledger, 150, C), AnswerVerdict::Wrong);
    assert_eq!(ledger.check(Lane { service: 4, replica: 1 }, ms(0), ms(1), A), AnswerVerdict::Wrong, "an unknown lane");
}

#[test]
fn reverted_change_makes_the_old_target_right_again() {
    let mut ledger = Expectations::default();
    for (target, at) in [(Some(A), 0), (Some(B), 100), (Some(A), 200), (None, 300)] {
        ledger.write(LANE, target, ms(at));
        ledger.settle(LANE, ms(at + 5));
    }
    assert_eq!(ledger.check(LANE, ms(250), ms(251), A), AnswerVerdict::Right);
    assert_eq!(ledger.check(LANE, ms(150), ms(151), A), AnswerVerdict::Stale { by: ms(45) });
    assert_eq!(ledger.check(LANE, ms(320), ms(321), A), AnswerVerdict::Stale { by: ms(15) }, "a removed service has no valid answer");
    assert_eq!(ledger.target(LANE), None);
}

#[test]
fn readiness_settles_only_older_changes() {
    let mut ledger = Expectations::default();
    for (target, at) in [(A, 0), (B, 100), (C, 200)] {
        ledger.write(LANE, Some(target), ms(at));
    }
    ledger.settle_until(LANE, ms(150), ms(210));
    assert!(!ledger.is_settled(LANE), "the last change is too young");
    assert_eq!(ledger.check(LANE, ms(220), ms(221), A), AnswerVerdict::Stale { by: ms(10) });
    assert_eq!(ledger.check(LANE, ms(220), ms(221), B), AnswerVerdict::Right);
    assert_eq!(ledger.check(LANE, ms(220), ms(221), C), AnswerVerdict::Right);
}

#[test]
fn lane_has_served_only_after_its_first_settled_change() {
    let mut ledger = Expectations::default();
    ledger.write(LANE, Some(A), ms(0));
    assert!(!ledger.has_served(LANE));
    ledger.settle(LANE, ms(10));
    ledger.write(LANE, Some(B), ms(20));
    assert!(ledger.has_served(LANE) && !ledger.is_settled(LANE), "a change under way leaves it served");
}

#[test]
fn latency_counts_from_the_scheduled_time() {
    let mut tally = Tally::default();
    tally.record(&report(0, Some(700), 800, Ok(A)), false);
    assert!((tally.connect().max_ms - 700.0).abs() < 1.0, "{:?}", tally.connect());
    assert!((tally.answer().p50_ms - 800.0).abs() < 1.0, "{:?}", tally.answer());
    assert_eq!((tally.answered(), tally.answered_over(Proto::Udp)), (1, 0));
}

#[test]
fn every_failure_is_recorded_with_time_and_kind() {
    let mut tally = Tally::default();
    tally.record(&report(5, None, 3005, Err(AttemptFailure::Timeout)), false);
    tally.record(&report(6, Some(7), 8, Err(AttemptFailure::Reset)), true);
    assert_eq!(tally.failed()[&AttemptFailure::Timeout], 1);
    assert_eq!(tally.excused()[&AttemptFailure::Reset], 1);
    let recorded: Vec<_> = tally.faults().iter().map(|fault| (fault.at, fault.failure, fault.excused)).collect();
    assert_eq!(recorded, [(ms(5), AttemptFailure::Timeout, false), (ms(6), AttemptFailure::Reset, true)]);
    assert_eq!(tally.connect().count, 1, "a connection that stood counts, whatever came of it");
}

proptest! {
    #[test]
    fn a_schedule_keeps_its_rate(rate in 1..100_000_u32, number in 0..10_000_000_u64) {
        let schedule = LoadSchedule::new(NonZeroU32::new(rate).expect("not zero"));
        let due = schedule.due(number);
        prop_assert!(schedule.due(number + 1) >= due);
        prop_assert_eq!(schedule.due(number + u64::from(rate)), due + Duration::from_secs(1));
        prop_assert!(schedule.within(due) <= number && number <= schedule.within(due) + 1);
    }
}
