//! Leader election by a Lease, decided by the candidate's own clock.
//!
//! Times in a Lease come from other machines. A candidate therefore takes a Lease that it observed unchanged for the Lease's duration. A
//! leader trusts its lease for a shorter time, counted from before it sent the request, so that it stops before another candidate can take
//! over.
//!
//! Candidates with an ordinal prefer the lowest one: ordinal 0 requests the Lease back, others wait longer the higher their ordinal. For
//! them the Lease is a preference, not a lock: two leaders do no harm. Pure: no clock is read here.

use std::time::{Duration, Instant};

pub use claim::{ClaimObserver, ClaimVerdict};

mod claim;

/// Maximum wait for the holder of a Lease with a longer duration, as a multiple of the candidate's own duration.
const MAX_DURATION_FACTOR: u32 = 10;
/// Time after the holder of [`LeaseTerms::ACTIVE_POD`] should have stopped until the kernel kills it as hung. On a busy machine a killed
/// process ends late: two seconds are left until another Pod takes the Lease.
pub const FENCE_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerms {
    /// Time without renewal after which another candidate may take the Lease.
    pub lease_duration: Duration,
    /// Time without renewal after which a leader stops writing. The difference to `lease_duration` covers writes in flight and clock skew.
    pub renew_deadline: Duration,
    /// Interval of renewals by the leader and of reads by the others.
    pub retry_period: Duration,
}

impl LeaseTerms {
    /// Another candidate leads within 15 s of a leader's death: 12 s after its last renewal, plus 2 s until the next read.
    pub const RECONCILER: Self =
        Self { lease_duration: Duration::from_secs(12), renew_deadline: Duration::from_secs(8), retry_period: Duration::from_secs(2) };
    /// Taken within milliseconds when it is free, and held only while a replica is suspected: a dead holder delays failover by 4 s.
    pub const FAILOVER: Self =
        Self { lease_duration: Duration::from_secs(4), renew_deadline: Duration::from_secs(2), retry_period: Duration::from_millis(500) };
    /// Another Pod has the identity of a standalone proxy 10 s after its last renewal at the latest, and at once after a release or when
    /// [`ClaimObserver`] passes the claim.
    pub const ACTIVE_POD: Self =
        Self { lease_duration: Duration::from_secs(10), renew_deadline: Duration::from_secs(7), retry_period: Duration::from_secs(1) };
    /// Ten minutes: a restarted node is back by then, and no renewal is urgent. Two leaders do no harm, so `renew_deadline` is practically
    /// unlimited.
    pub const CERT_LEADER: Self = Self {
        lease_duration: Duration::from_mins(10),
        renew_deadline: Duration::from_hours(24 * 365),
        retry_period: Duration::from_secs(15),
    };
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Empty after a release.
    pub holder: String,
    /// Time that the holder may go without renewal.
    pub duration: Duration,
    /// Number of holder changes.
    pub transitions: i32,
    /// Resource version; differs after every write.
    pub version: String,
    /// Whether ordinal 0 has requested the Lease back.
    pub handback: bool,
    /// Time from the last renewal to the read, by the wall clocks of both nodes.
    pub age: Duration,
}

/// Next action of a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseStep {
    /// Write a Lease with the candidate's name: there is none.
    Create,
    /// Write the candidate's name into the free or expired Lease; the number of holder changes includes this one.
    Take { transitions: i32 },
    /// Update the renewal time of the candidate's own Lease.
    Renew { transitions: i32 },
    /// Remove the candidate's name.
    Release { transitions: i32 },
    /// Write that ordinal 0 requests the Lease back.
    RequestHandback,
    /// Read again, at this time at the latest.
    Wait(Instant),
}

impl LeaseStep {
    /// Number of holder changes after the step is written.
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
    /// Ordinal of a replica; candidates without one are equal.
    ordinal: Option<u32>,
    terms: LeaseTerms,
    /// Lease as last read or written (`None`: it does not exist), and the time since which it is unchanged.
    observed: Option<(Option<LeaseRecord>, Instant)>,
    leads_until: Option<Instant>,
}

impl LeaseCandidate {
    /// Creates a candidate. `name` must be unique among processes.
    pub fn new(name: impl Into<String>, ordinal: Option<u32>, terms: LeaseTerms) -> Self {
        Self { name: name.into(), ordinal, terms, observed: None, leads_until: None }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn terms(&self) -> LeaseTerms {
        self.terms
    }

    /// Records a read of the Lease. The holder's time restarts if the Lease was written since the last read.
    pub fn observe(&mut self, record: Option<LeaseRecord>, now: Instant) {
        if record.as_ref().is_none_or(|record| record.holder != self.name) {
            self.leads_until = None;
        }
        let version = |record: &Option<LeaseRecord>| record.as_ref().map(|record| record.version.clone());
        if self.observed.as_ref().is_none_or(|(observed, _)| version(observed) != version(&record)) {
            self.observed = Some((record, now));
        }
    }

    /// Records an accepted write of this candidate; `sent` is the time of the request.
    pub fn written(&mut self, record: LeaseRecord, sent: Instant) {
        self.leads_until = (record.holder == self.name).then(|| sent + self.terms.renew_deadline);
        self.observed = Some((Some(record), sent));
    }

    /// Records that reads or writes of the Lease are forbidden: among replicas, ordinal 0 then leads.
    pub fn denied(&mut self, now: Instant) {
        if let Some(ordinal) = self.ordinal {
            self.leads_until = (ordinal == 0).then(|| now + self.terms.renew_deadline);
        }
    }

    /// Next action. `eligible` is whether the candidate can do the leader's work.
    pub fn next(&self, eligible: bool, now: Instant) -> LeaseStep {
        let Some((record, since)) = self.observed.as_ref().filter(|_| eligible) else {
            return LeaseStep::Wait(now + self.terms.retry_period);
        };
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

    /// Time from which the candidate may take an unchanged Lease.
    fn free_at(&self, record: Option<&LeaseRecord>, since: Instant) -> Instant {
        let retry_period = self.terms.retry_period;
        let wait = match (self.ordinal, record.filter(|record| !record.holder.is_empty())) {
            (None | Some(0), None) => Duration::ZERO,
            // Other writers set the duration: a Lease of years must not exclude every candidate.
            (None, Some(record)) => record.duration.min(MAX_DURATION_FACTOR * self.terms.lease_duration),
            (Some(0), Some(_)) => 4 * retry_period,
            (Some(ordinal), _) => {
                // Replicas with lower ordinals get time to take it first. Wall clocks count, but not at the first read.
                let duration = self.terms.lease_duration + ordinal.min(100) * 2 * retry_period;
                let age = record.map(|record| record.age).unwrap_or_default();
                duration.saturating_sub(age).max(2 * retry_period)
            }
        };
        since + wait
    }

    /// End of this candidate's leadership; `None` if it does not lead or its time is over.
    pub fn leading_until(&self, now: Instant) -> Option<Instant> {
        self.leads_until.filter(|until| now < *until)
    }

    /// Resource version that a write must match, if the Lease exists.
    pub fn version(&self) -> Option<&str> {
        self.observed.as_ref()?.0.as_ref().map(|record| record.version.as_str())
    }
}

#[cfg(test)]
mod tests;
