//! Which replica of a group orders certificates: the first, and while that is away the lowest that is there.
//!
//! A Lease says who. It is a preference, not a lock: that a name is ordered once is seen to by [`crate::model::ingress::cert_orders`], so a
//! Lease may be as slow as it likes and two who believe to hold it do no harm. A replica that cannot order does not renew it. The
//! others wait for a long time, by their own clocks and by the Lease's, so that a restart of the first moves nothing; when it is back it
//! asks, and the holder gives the Lease back. No clock is read here.

use std::time::Duration;

/// How long things take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertLeaderTerms {
    /// How often the Lease is looked at, and renewed by its holder.
    pub every: Duration,
    /// A holder that has not renewed it for so long is away.
    pub away: Duration,
}

impl CertLeaderTerms {
    /// Ten minutes: a node that restarts is back by then, and no renewal is in such a hurry.
    pub const DEFAULT: Self = Self { every: Duration::from_secs(15), away: Duration::from_mins(10) };
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseView {
    /// Differs after every write.
    pub version: String,
    /// The replica that orders; empty if it was given back.
    pub holder: String,
    /// The first replica wants it back.
    pub handback: bool,
}

/// What to write into the Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertLeaderStep {
    /// One's own name and the time; and that nobody asks.
    Hold,
    /// No name: it is given back.
    Release,
    /// That the first replica wants it back.
    Ask,
    Wait,
}

/// A replica, as far as the Lease goes.
#[derive(Debug, Clone)]
pub struct CertLeaderCandidate {
    name: String,
    ordinal: u32,
    terms: CertLeaderTerms,
    /// What the Lease said last (nothing: there is none), since when it has said so, and how old it was then by the wall clock.
    observed: Option<(Option<LeaseView>, Duration, Duration)>,
}

impl CertLeaderCandidate {
    /// The replica of this name and ordinal.
    #[must_use]
    pub fn new(name: impl Into<String>, ordinal: u32, terms: CertLeaderTerms) -> Self {
        Self { name: name.into(), ordinal, terms, observed: None }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is the first replica.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.ordinal == 0
    }

    #[must_use]
    pub fn terms(&self) -> CertLeaderTerms {
        self.terms
    }

    /// The version of the Lease that was seen last; nothing if there is none.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.observed.as_ref()?.0.as_ref().map(|lease_now| lease_now.version.as_str())
    }

    /// The Lease was read, or written, at this time of one's own clock. `age` is how long ago it was last renewed, by the wall clock.
    pub fn saw(&mut self, lease: Option<LeaseView>, age: Duration, at: Duration) {
        if self.observed.as_ref().is_none_or(|(before, ..)| *before != lease) {
            self.observed = Some((lease, at, age));
        }
    }

    /// Whether this replica is the one that orders.
    #[must_use]
    pub fn leads(&self) -> bool {
        matches!(&self.observed, Some((Some(lease_now), ..)) if lease_now.holder == self.name)
    }

    /// What to do now. `able` is whether this replica could order.
    #[must_use]
    pub fn next(&self, able: bool, now: Duration) -> CertLeaderStep {
        let Some((lease, since, age)) = self.observed.as_ref().filter(|_| able) else { return CertLeaderStep::Wait };
        let watched = now.saturating_sub(*since);
        // The wall clocks of two nodes are believed as far as it goes without harm: not at first sight.
        let unchanged = if watched < 2 * self.terms.every { watched } else { watched + *age };
        let first = self.is_first();
        // A lower one that is there has had time to take it.
        let gone = self.terms.away + self.ordinal.min(100) * 2 * self.terms.every;
        let holder = lease.as_ref().map_or("", |lease_now| lease_now.holder.as_str());
        match lease {
            Some(observed) if holder == self.name => {
                if observed.handback && !first {
                    CertLeaderStep::Release
                } else {
                    CertLeaderStep::Hold
                }
            }
            _ if first && holder.is_empty() => CertLeaderStep::Hold,
            _ if first && watched >= 4 * self.terms.every => CertLeaderStep::Hold,
            Some(found) if first && !found.handback => CertLeaderStep::Ask,
            _ if !first && unchanged >= gone => CertLeaderStep::Hold,
            _ => CertLeaderStep::Wait,
        }
    }
}

#[cfg(test)]
mod tests;
