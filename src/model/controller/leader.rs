//! Leader election by a Lease, timed by the candidate's own monotonic clock.
//!
//! Times in the Lease come from other clocks and are never compared with ours: a candidate takes over a Lease that it has seen unchanged
//! for the Lease's duration. A leader stops earlier, counted from before its renewal was sent, so that two never lead at once.

use std::time::{Duration, Instant};

/// Durations of an election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerms {
    /// A Lease without renewal for this long is free.
    pub duration: Duration,
    /// A leader without renewal for this long writes nothing. The difference to `duration` covers requests in flight and clock
    /// rates that differ.
    pub trust: Duration,
    /// Interval of renewals, and of reads by other candidates.
    pub every: Duration,
}

impl LeaseTerms {
    /// Takeover within 15 s of a leader's death: 12 s since its last renewal, and 2 s until the next read.
    pub const RECONCILER: Self = Self { duration: Duration::from_secs(12), trust: Duration::from_secs(8), every: Duration::from_secs(2) };
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Holder; empty if released.
    pub holder: String,
    /// Time for which it is held without renewal.
    pub duration: Duration,
    /// Number of changes of holder.
    pub transitions: i32,
    /// `resourceVersion`: differs after every write.
    pub version: String,
}

/// Next action of a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseStep {
    Create,
    /// Write our name into the Lease: it is free or expired.
    Take {
        /// Number of changes of holder, this one included.
        transitions: i32,
    },
    /// Renew the Lease that we hold.
    Renew {
        transitions: i32,
    },
    /// Read again, at the latest at this time, when the holder may have expired.
    Wait(Instant),
}

#[derive(Debug, Clone)]
pub struct LeaseCandidate {
    name: String,
    terms: LeaseTerms,
    observed: Option<(LeaseRecord, Instant)>,
    until: Option<Instant>,
}

impl LeaseCandidate {
    /// A candidate with a unique name.
    #[must_use]
    pub fn new(name: impl Into<String>, terms: LeaseTerms) -> Self {
        Self { name: name.into(), terms, observed: None, until: None }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    #[must_use]
    pub fn terms(&self) -> LeaseTerms {
        self.terms
    }

    /// Records a read of the Lease, `None` if it does not exist. A changed version restarts the holder's time.
    pub fn saw(&mut self, record: Option<LeaseRecord>, now: Instant) {
        let Some(record) = record else {
            self.observed = None;
            self.until = None;
            return;
        };
        if record.holder != self.name {
            self.until = None;
        }
        if self.observed.as_ref().is_none_or(|(observed, _)| *observed != record) {
            self.observed = Some((record, now));
        }
    }

    /// Records an accepted write of ours, whose request was sent at `sent`.
    pub fn wrote(&mut self, record: LeaseRecord, sent: Instant) {
        self.until = (record.holder == self.name).then(|| sent + self.terms.trust);
        self.observed = Some((record, sent));
    }

    #[must_use]
    pub fn next(&self, now: Instant) -> LeaseStep {
        let Some((record, since)) = &self.observed else { return LeaseStep::Create };
        if record.holder == self.name {
            return LeaseStep::Renew { transitions: record.transitions };
        }
        let ends = *since + record.duration;
        if record.holder.is_empty() || ends <= now {
            return LeaseStep::Take { transitions: record.transitions.saturating_add(1) };
        }
        LeaseStep::Wait(ends)
    }

    /// The time until which this candidate leads; `None` if it does not.
    #[must_use]
    pub fn leads(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| now < *until)
    }

    /// Precondition of a write, if the Lease exists.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.observed.as_ref().map(|(record, _)| record.version.as_str())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TERMS: LeaseTerms = LeaseTerms::RECONCILER;

    fn record(holder: &str, version: u64) -> LeaseRecord {
        LeaseRecord { holder: holder.into(), duration: TERMS.duration, transitions: 3, version: version.to_string() }
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_held_lease_is_taken_when_it_was_seen_unchanged_for_its_time() {
        let begin = Instant::now();
        let mut candidate = LeaseCandidate::new("a", TERMS);
        assert_eq!(candidate.next(begin), LeaseStep::Create);
        candidate.saw(Some(record("b", 1)), begin);
        assert_eq!(candidate.next(begin), LeaseStep::Wait(begin + TERMS.duration));
        candidate.saw(Some(record("b", 1)), begin + seconds(6));
        assert_eq!(candidate.next(begin + seconds(11)), LeaseStep::Wait(begin + TERMS.duration), "the same record is no renewal");
        candidate.saw(Some(record("b", 2)), begin + seconds(11));
        assert_eq!(candidate.next(begin + seconds(20)), LeaseStep::Wait(begin + seconds(23)));
        assert_eq!(candidate.next(begin + seconds(23)), LeaseStep::Take { transitions: 4 });
    }

    #[test]
    fn a_lease_that_was_given_back_is_taken_at_once() {
        let begin = Instant::now();
        let mut candidate = LeaseCandidate::new("a", TERMS);
        candidate.saw(Some(record("", 1)), begin);
        assert_eq!(candidate.next(begin), LeaseStep::Take { transitions: 4 });
    }

    #[test]
    fn a_leader_trusts_itself_from_before_it_asked() {
        let begin = Instant::now();
        let mut candidate = LeaseCandidate::new("a", TERMS);
        candidate.wrote(record("a", 1), begin);
        assert_eq!(candidate.leads(begin + seconds(7)), Some(begin + TERMS.trust));
        assert_eq!(candidate.leads(begin + TERMS.trust), None);
        assert_eq!(candidate.next(begin + seconds(60)), LeaseStep::Renew { transitions: 3 }, "nobody took it meanwhile");
        candidate.saw(Some(record("b", 2)), begin + seconds(1));
        assert_eq!(candidate.leads(begin + seconds(1)), None, "somebody else holds it");
        candidate.wrote(record("", 3), begin);
        assert_eq!(candidate.leads(begin), None, "given back");
    }

    #[test]
    fn a_lease_that_vanished_ends_leading() {
        let begin = Instant::now();
        let mut candidate = LeaseCandidate::new("a", TERMS);
        candidate.wrote(record("a", 1), begin);
        candidate.saw(None, begin);
        assert_eq!((candidate.leads(begin), candidate.next(begin)), (None, LeaseStep::Create));
    }

    proptest! {
        /// Two candidates never lead at once, however requests are delayed or lost.
        #[test]
        fn nobody_leads_beside_another(steps in prop::collection::vec((0..2_usize, 0..3_000_u64, 0..6_000_u64, any::<bool>()), 1..200)) {
            let begin = Instant::now();
            let mut now = begin;
            let mut lease: Option<LeaseRecord> = None;
            let mut version = 0;
            let mut both = [LeaseCandidate::new("a", TERMS), LeaseCandidate::new("b", TERMS)];
            for (who, pause, delay, lost) in steps {
                now += Duration::from_millis(pause);
                both[who].saw(lease.clone(), now);
                let (sent, step) = (now, both[who].next(now));
                // The request is applied after a delay, and its response may be lost.
                now += Duration::from_millis(delay);
                let transitions = match step {
                    LeaseStep::Create => 0,
                    LeaseStep::Take { transitions } | LeaseStep::Renew { transitions } => transitions,
                    LeaseStep::Wait(_) => continue,
                };
                version += 1;
                let written = LeaseRecord { holder: both[who].name().to_owned(), duration: TERMS.duration, transitions, version: version.to_string() };
                lease = Some(written.clone());
                if !lost {
                    both[who].wrote(written, sent);
                }
                prop_assert!(both.iter().filter(|one| one.leads(now).is_some()).count() <= 1);
            }
        }
    }
}
