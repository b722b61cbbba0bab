//! Claim of a holder that an observer found lost: it may pass to another candidate before the Lease expires.
//!
//! The observer may be wrong, for example if only its own path to the holder is broken. A holder that renews its Lease reaches the API
//! server, so its claim stays. Hence a claim passes only if the Lease names the lost holder and a renewal is overdue, by a write that is
//! conditional on the version that was compared.
//!
//! A lost holder that still runs stops when it reads its successor's name, or when its trust in the Lease ends, at the latest by its fence.
//! So two holders run for at most the trust and [`FENCE_DELAY`](super::FENCE_DELAY), counted from the last renewal. Wall clocks only hasten
//! the verdict: a holder whose clock is behind can lose its claim although it renews, which that bound covers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{LeaseRecord, LeaseTerms};

/// Time after which a read of a Lease is of an earlier loss.
const MAX_READ_AGE: Duration = Duration::from_secs(5);

/// Verdict on the claim of a lost holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimVerdict {
    /// The Lease names another holder, or none.
    Foreign,
    /// A renewal may still arrive: read again.
    Undecided,
    /// The holder renewed the Lease after it was found lost: it lives.
    Renewed,
    /// A renewal is overdue: the claim may pass.
    Overdue,
}

/// A Lease as last read.
#[derive(Debug)]
struct ClaimRead {
    version: String,
    /// Time of the first read of this version.
    since: Instant,
    at: Instant,
}

/// Observer of the Leases of lost holders.
#[derive(Debug, Default)]
pub struct ClaimObserver(BTreeMap<String, ClaimRead>);

impl ClaimObserver {
    /// The verdict about the claim of a lost holder, by a Lease of these terms as read now.
    pub fn judge(&mut self, lease: &str, terms: LeaseTerms, record: &LeaseRecord, lost: &str, now: Instant) -> ClaimVerdict {
        self.0.retain(|_, read| now.saturating_duration_since(read.at) < MAX_READ_AGE);
        if record.holder != lost || lost.is_empty() {
            return ClaimVerdict::Foreign;
        }
        let before = self.0.get(lease);
        let is_renewed = before.is_some_and(|read| read.version != record.version);
        let since = before.filter(|_| !is_renewed).map_or(now, |read| read.since);
        self.0.insert(lease.to_owned(), ClaimRead { version: record.version.clone(), since, at: now });
        // A renewal is due after the interval; half of another one is for the request.
        let overdue = terms.retry_period * 3 / 2;
        if is_renewed {
            ClaimVerdict::Renewed
        } else if record.age.max(now.saturating_duration_since(since)) >= overdue {
            ClaimVerdict::Overdue
        } else {
            ClaimVerdict::Undecided
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: LeaseTerms = LeaseTerms::ACTIVE_POD;

    fn record(holder: &str, version: u64, age: u64) -> LeaseRecord {
        let (holder, version, age) = (holder.to_owned(), version.to_string(), Duration::from_millis(age));
        LeaseRecord { holder, version, age, duration: TERMS.lease_duration, ..LeaseRecord::default() }
    }

    /// Verdicts on the claim of `a` by reads at these milliseconds, each with holder, version and age by wall clocks.
    fn verdicts<const N: usize>(reads: [(u64, &str, u64, u64); N]) -> [ClaimVerdict; N] {
        let (begin, mut observer) = (Instant::now(), ClaimObserver::default());
        reads.map(|(at, holder, version, age)| {
            observer.judge("l", TERMS, &record(holder, version, age), "a", begin + Duration::from_millis(at))
        })
    }

    #[test]
    fn claim_passes_once_a_renewal_is_overdue() {
        use ClaimVerdict::{Overdue, Undecided};
        assert_eq!(verdicts([(0, "a", 1, 1_499), (10, "a", 1, 1_509)]), [Undecided, Overdue]);
        let unknown = [(0, "a", 1, 0), (500, "a", 1, 0), (1_000, "a", 1, 0), (1_500, "a", 1, 0)];
        assert_eq!(verdicts(unknown), [Undecided, Undecided, Undecided, Overdue], "the clock of the holder is ahead");
    }

    #[test]
    fn claim_of_a_holder_that_renews_stays() {
        use ClaimVerdict::{Overdue, Renewed, Undecided};
        assert_eq!(verdicts([(0, "a", 1, 900), (500, "a", 2, 400), (1_000, "a", 3, 9_000)]), [Undecided, Renewed, Renewed]);
        assert_eq!(verdicts([(0, "a", 1, 0), (9_000, "a", 9, 2_000)]), [Undecided, Overdue], "it was found lost before, and lived");
    }

    #[test]
    fn claim_of_another_holder_stays() {
        use ClaimVerdict::Foreign;
        assert_eq!(verdicts([(0, "b", 1, 9_000), (9_000, "b", 1, 9_000), (9_001, "", 2, 9_000)]), [Foreign; 3]);
        let verdict = ClaimObserver::default().judge("l", TERMS, &record("", 1, 9_000), "", Instant::now());
        assert_eq!(verdict, Foreign, "a Lease without a holder");
    }
}
