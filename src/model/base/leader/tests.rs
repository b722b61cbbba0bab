//! Tests of two candidates for one Lease.

use proptest::prelude::*;

use super::*;

mod preference;
mod standby;

const TERMS: LeaseTerms = LeaseTerms::RECONCILER;

fn record(holder: &str, version: u64) -> LeaseRecord {
    let (holder, version) = (holder.to_owned(), version.to_string());
    LeaseRecord { holder, duration: TERMS.lease_duration, transitions: 3, version, ..LeaseRecord::default() }
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn expired_lease_is_taken_after_its_duration_without_renewal() {
    let begin = Instant::now();
    let mut candidate = LeaseCandidate::new("a", None, TERMS);
    assert_eq!(candidate.next(true, begin), LeaseStep::Wait(begin + TERMS.retry_period), "nothing is written before the first read");
    candidate.observe(None, begin);
    assert_eq!(candidate.next(true, begin), LeaseStep::Create);
    candidate.observe(Some(record("b", 1)), begin);
    assert_eq!(candidate.next(true, begin), LeaseStep::Wait(begin + TERMS.lease_duration));
    candidate.observe(Some(record("b", 1)), begin + seconds(6));
    assert_eq!(candidate.next(true, begin + seconds(11)), LeaseStep::Wait(begin + TERMS.lease_duration), "the same record is no renewal");
    candidate.observe(Some(record("b", 2)), begin + seconds(11));
    assert_eq!(candidate.next(true, begin + seconds(20)), LeaseStep::Wait(begin + seconds(23)));
    assert_eq!(candidate.next(true, begin + seconds(23)), LeaseStep::Take { transitions: 4 });
}

#[test]
fn lease_with_a_duration_of_years_is_taken_after_ten_times_our_own() {
    let begin = Instant::now();
    let mut candidate = LeaseCandidate::new("a", None, TERMS);
    candidate.observe(Some(LeaseRecord { duration: Duration::MAX, ..record("b", 1) }), begin);
    let free = begin + 10 * TERMS.lease_duration;
    assert_eq!(candidate.next(true, begin), LeaseStep::Wait(free));
    assert_eq!(candidate.next(true, free), LeaseStep::Take { transitions: 4 });
}

#[test]
fn released_lease_is_taken_at_once() {
    let begin = Instant::now();
    let mut candidate = LeaseCandidate::new("a", None, TERMS);
    candidate.observe(Some(record("", 1)), begin);
    assert_eq!(candidate.next(true, begin), LeaseStep::Take { transitions: 4 });
}

#[test]
fn leadership_counts_from_the_time_of_the_request() {
    let begin = Instant::now();
    let mut candidate = LeaseCandidate::new("a", None, TERMS);
    candidate.written(record("a", 1), begin);
    assert_eq!(candidate.leading_until(begin + seconds(7)), Some(begin + TERMS.renew_deadline));
    assert_eq!(candidate.leading_until(begin + TERMS.renew_deadline), None);
    assert_eq!(candidate.next(true, begin + seconds(60)), LeaseStep::Renew { transitions: 3 }, "no other candidate took it meanwhile");
    candidate.observe(Some(record("b", 2)), begin + seconds(1));
    assert_eq!(candidate.leading_until(begin + seconds(1)), None, "another candidate holds it");
    candidate.written(record("", 3), begin);
    assert_eq!(candidate.leading_until(begin), None, "given back");
}

#[test]
fn deleted_lease_ends_leadership() {
    let begin = Instant::now();
    let mut candidate = LeaseCandidate::new("a", None, TERMS);
    candidate.written(record("a", 1), begin);
    candidate.observe(None, begin);
    assert_eq!((candidate.leading_until(begin), candidate.next(true, begin)), (None, LeaseStep::Create));
}

proptest! {
    /// Two candidates never lead at the same time, however requests are delayed or lost.
    #[test]
    fn two_candidates_never_lead_at_once(steps in prop::collection::vec((0..2_usize, 0..3_000_u64, 0..6_000_u64, any::<bool>()), 1..200)) {
        let begin = Instant::now();
        let mut now = begin;
        let mut lease: Option<LeaseRecord> = None;
        let mut version = 0;
        let mut both = [LeaseCandidate::new("a", None, TERMS), LeaseCandidate::new("b", None, TERMS)];
        for (who, pause, delay, lost) in steps {
            now += Duration::from_millis(pause);
            both[who].observe(lease.clone(), now);
            let (sent, step) = (now, both[who].next(true, now));
            // The request is applied after a delay, and its response may be lost.
            now += Duration::from_millis(delay);
            if let LeaseStep::Wait(_) = step {
                continue;
            }
            version += 1;
            let written = LeaseRecord { transitions: step.transitions(), ..record(both[who].name(), version) };
            lease = Some(written.clone());
            if !lost {
                both[who].written(written, sent);
            }
            prop_assert!(both.iter().filter(|one| one.leading_until(now).is_some()).count() <= 1);
        }
    }
}
