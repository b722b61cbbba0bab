//! Leader election by a Lease, decided by the candidate's own clock.
//!
//! Times in a Lease come from other machines: a candidate takes a Lease that it observed unchanged for as long as its holder may
//! go without a renewal. A leader trusts itself for a shorter time, counted from before its request was sent, so that it stops before
//! another candidate can take over.
//!
//! Candidates with an ordinal prefer the lowest one: the first requests the Lease back, others wait longer the higher they are. There
//! the Lease is a preference, not a lock: two leaders do no harm. No clock is read here.

use std::time::{Duration, Instant};

/// Most of its own duration that a candidate waits for the holder of a Lease with another duration.
const MAX_DURATION_FACTOR: u32 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerms {
    /// A Lease that was not renewed for this time may be taken.
    pub duration: Duration,
    /// A leader that could not renew for this time stops writing. The difference to `duration` covers writes under way and clocks
    /// that run apart.
    pub trust: Duration,
    /// The interval in which the leader renews and the others read.
    pub every: Duration,
}

impl LeaseTerms {
    /// Another candidate leads within 15 s of a leader's death: 12 s since its last renewal, and 2 s until the next read.
    pub const RECONCILER: Self = Self { duration: Duration::from_secs(12), trust: Duration::from_secs(8), every: Duration::from_secs(2) };
    /// Ten minutes: a node that restarts is back by then, and no renewal is urgent. Two leaders do no harm, so trust is as good as
    /// unlimited.
    pub const CERT_LEADER: Self =
        Self { duration: Duration::from_mins(10), trust: Duration::from_hours(24 * 365), every: Duration::from_secs(15) };
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Empty after a release.
    pub holder: String,
    /// How long the holder may go without a renewal.
    pub duration: Duration,
    /// How often the holder changed.
    pub transitions: i32,
    /// The version of the object; differs after every write.
    pub version: String,
    /// The first replica wants it back.
    pub handback: bool,
    /// Time since the last renewal when it was read, by the wall clocks of both nodes.
    pub age: Duration,
}

/// What a candidate does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseStep {
    Create,
    /// Write its own name into the Lease, which is free or expired.
    Take {
        /// How often the holder changed, this time included.
        transitions: i32,
    },
    /// Write the time into its Lease.
    Renew {
        transitions: i32,
    },
    /// Remove its name.
    Release {
        transitions: i32,
    },
    /// Write that the first replica wants it back.
    RequestHandback,
    /// Read again, at the latest at this time.
    Wait(Instant),
}

impl LeaseStep {
    /// How often the holder changed once the step is written.
    pub fn transitions(&self) -> i32 {
        match self {
            Self::Take { transitions } | Self::Renew { transitions } | Self::Release { transitions } => *transitions,
            Self::Create | Self::RequestHandback | Self::Wait(_) => 0,
        }
    }
}

#[derive(Debug, Clone)]
pub struct LeaseCandidate {
    name: String,
    /// Of a replica; candidates without one are equal.
    ordinal: Option<u32>,
    terms: LeaseTerms,
    /// The Lease as last read or written (`None`: it does not exist), and since when it is unchanged.
    observed: Option<(Option<LeaseRecord>, Instant)>,
    until: Option<Instant>,
}

impl LeaseCandidate {
    /// A candidate of this name, which no other process has.
    pub fn new(name: impl Into<String>, ordinal: Option<u32>, terms: LeaseTerms) -> Self {
        Self { name: name.into(), ordinal, terms, observed: None, until: None }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn terms(&self) -> LeaseTerms {
        self.terms
    }

    /// The Lease was read. The holder's time begins again if it was written since the last read.
    pub fn observe(&mut self, record: Option<LeaseRecord>, now: Instant) {
        if record.as_ref().is_none_or(|record| record.holder != self.name) {
            self.until = None;
        }
        let version = |record: &Option<LeaseRecord>| record.as_ref().map(|record| record.version.clone());
        if self.observed.as_ref().is_none_or(|(observed, _)| version(observed) != version(&record)) {
            self.observed = Some((record, now));
        }
    }

    /// Its own write was accepted, whose request was sent at this time.
    pub fn written(&mut self, record: LeaseRecord, sent: Instant) {
        self.until = (record.holder == self.name).then(|| sent + self.terms.trust);
        self.observed = Some((Some(record), sent));
    }

    /// It may not read or write the Lease: of replicas the first one leads.
    pub fn denied(&mut self, now: Instant) {
        if let Some(ordinal) = self.ordinal {
            self.until = (ordinal == 0).then(|| now + self.terms.trust);
        }
    }

    /// What to do now. `able` is whether it could do the leader's work.
    pub fn next(&self, able: bool, now: Instant) -> LeaseStep {
        let Some((record, since)) = self.observed.as_ref().filter(|_| able) else { return LeaseStep::Wait(now + self.terms.every) };
        let free = self.free_at(record.as_ref(), *since);
        let Some(record) = record else { return if free <= now { LeaseStep::Create } else { LeaseStep::Wait(free) } };
        let transitions = record.transitions;
        match self.ordinal {
            Some(1..) if record.holder == self.name && record.handback => LeaseStep::Release { transitions },
            _ if record.holder == self.name => LeaseStep::Renew { transitions },
            _ if free <= now => LeaseStep::Take { transitions: transitions.saturating_add(1) },
            Some(0) if !record.handback => LeaseStep::RequestHandback,
            _ => LeaseStep::Wait(free),
        }
    }

    /// When it may take a Lease that stays as it is.
    fn free_at(&self, record: Option<&LeaseRecord>, since: Instant) -> Instant {
        let every = self.terms.every;
        let wait = match (self.ordinal, record.filter(|record| !record.holder.is_empty())) {
            (None | Some(0), None) => Duration::ZERO,
            // Another writer sets it: a Lease of years must not keep every candidate out.
            (None, Some(record)) => record.duration.min(MAX_DURATION_FACTOR * self.terms.duration),
            (Some(0), Some(_)) => 4 * every,
            (Some(ordinal), _) => {
                // Replicas below it have time to take it. Wall clocks count, but not at the first read.
                let duration = self.terms.duration + ordinal.min(100) * 2 * every;
                let age = record.map(|record| record.age).unwrap_or_default();
                duration.saturating_sub(age).max(2 * every)
            }
        };
        since + wait
    }

    /// Until when it leads; nothing if it does not, or its time is over.
    pub fn leads(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| now < *until)
    }

    /// The version that a write must find, if the Lease exists.
    pub fn version(&self) -> Option<&str> {
        self.observed.as_ref()?.0.as_ref().map(|record| record.version.as_str())
    }
}

#[cfg(test)]
mod tests;
