//! DNS lookup scheduler: schedules lookups and stores the last good addresses. Events in, lookups out.
//!
//! - An answer is renewed when its TTL ends, but no sooner than [`MIN_INTERVAL`] and no later than [`MAX_INTERVAL`].
//! - After any failure (no such name, a server's failure, no answer, an answer without addresses) the last good answer
//!   stays, its age grows, and the lookup is retried after a jittered delay of one second to one minute.
//! - A name is removed only when no service uses it any more.
//!
//! An answer without addresses (`NOERROR`, no records) is a failure because records vanish for a moment when a zone is edited, and
//! forwarding to the old address is better than refusing. If only one family has no records, that family's old addresses are removed.
//! If the lookup of one family fails, the last good answer of that family stays.
//!
//! Time is a monotonic instant of the caller; randomness is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::base::backoff::Backoff;
use crate::model::base::net::Family;

/// Minimum interval of lookups, however short the TTL.
pub const MIN_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum interval of lookups, however long the TTL.
pub const MAX_INTERVAL: Duration = Duration::from_mins(10);
/// Default limit of concurrent lookups.
pub const IN_FLIGHT: usize = 16;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FamilyRecords {
    /// Addresses; empty if the name has none of this family.
    pub addresses: BTreeSet<IpAddr>,
    /// Minimum TTL, including aliases.
    pub ttl: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum LookupFailure {
    #[error("no such name (NXDOMAIN)")]
    NoName,
    #[error("the name has no addresses")]
    Empty,
    #[error("the server cannot answer (SERVFAIL or the like)")]
    Server,
    #[error("no server answered in time")]
    Timeout,
    /// No server is configured or reachable.
    #[error("no server could be reached")]
    Network,
    #[error("not a DNS name")]
    Name,
}

impl LookupFailure {
    pub const ALL: [Self; 6] = [Self::NoName, Self::Empty, Self::Server, Self::Timeout, Self::Network, Self::Name];

    /// Label value of metrics; closed set.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NoName => "NxDomain",
            Self::Empty => "Empty",
            Self::Server => "ServFail",
            Self::Timeout => "Timeout",
            Self::Network => "Network",
            Self::Name => "InvalidName",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookupOutcome {
    pub v4: Result<FamilyRecords, LookupFailure>,
    pub v6: Result<FamilyRecords, LookupFailure>,
}

#[derive(Debug, Clone)]
pub enum ResolveEvent {
    /// Complete set of requested names.
    Wanted(BTreeSet<String>),
    Answered(Arc<str>, LookupOutcome),
    Tick,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Actions {
    pub lookup: Vec<Arc<str>>,
    /// Time of the next [`ResolveEvent::Tick`], unless another event comes first.
    pub wake: Option<Instant>,
    pub changed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameStatus {
    /// Time of the last usable answer; `None` before the first.
    pub answered: Option<Instant>,
    /// Failure of the last lookup, if any.
    pub failure: Option<LookupFailure>,
}

#[derive(Debug, Clone)]
pub struct ResolveSchedule {
    entries: BTreeMap<Arc<str>, ScheduledName>,
    queue: BTreeSet<(Instant, Arc<str>)>,
    flying: BTreeSet<Arc<str>>,
    limit: usize,
    failures: BTreeMap<LookupFailure, u64>,
}

#[derive(Debug, Clone)]
struct ScheduledName {
    addresses: BTreeSet<IpAddr>,
    status: NameStatus,
    backoff: Backoff,
}

impl ResolveSchedule {
    /// No names, and at most `limit` lookups at a time (at least one).
    pub fn new(limit: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            queue: BTreeSet::new(),
            flying: BTreeSet::new(),
            limit: limit.max(1),
            failures: LookupFailure::ALL.into_iter().map(|failure| (failure, 0)).collect(),
        }
    }

    /// Handles an event. `random` returns numbers from 0 to 1.
    pub fn step(&mut self, event: ResolveEvent, now: Instant, random: &mut dyn FnMut() -> f64) -> Actions {
        let changed = match event {
            ResolveEvent::Wanted(names) => self.wanted(&names, now),
            ResolveEvent::Answered(name, outcome) => self.answered(&name, &outcome, now, random),
            ResolveEvent::Tick => false,
        };
        let lookup = self.take_due(now);
        let room = self.flying.len() < self.limit;
        Actions { lookup, wake: self.queue.first().filter(|_| room).map(|(due, _)| *due), changed }
    }

    /// The last good addresses of every name that has any.
    pub fn answers(&self) -> BTreeMap<String, BTreeSet<IpAddr>> {
        let good = self.entries.iter().filter(|(_, entry)| !entry.addresses.is_empty());
        good.map(|(name, entry)| (name.to_string(), entry.addresses.clone())).collect()
    }

    /// Status of every requested name.
    pub fn statuses(&self) -> BTreeMap<Arc<str>, NameStatus> {
        self.entries.iter().map(|(name, entry)| (Arc::clone(name), entry.status.clone())).collect()
    }

    /// Number of failed lookups, by reason.
    pub fn failures(&self) -> &BTreeMap<LookupFailure, u64> {
        &self.failures
    }

    fn wanted(&mut self, names: &BTreeSet<String>, now: Instant) -> bool {
        let mut changed = false;
        self.entries.retain(|name, entry| {
            let keep = names.contains(&**name);
            changed |= !keep && !entry.addresses.is_empty();
            keep
        });
        let entries = &self.entries;
        self.queue.retain(|(_, name)| entries.contains_key(name));
        for name in names {
            if self.entries.contains_key(name.as_str()) {
                continue;
            }
            let name: Arc<str> = name.as_str().into();
            let status = NameStatus { answered: None, failure: None };
            self.entries.insert(Arc::clone(&name), ScheduledName { addresses: BTreeSet::new(), status, backoff: Backoff::DNS });
            // A name that was removed and added during its lookup waits for that one.
            if !self.flying.contains(&name) {
                self.queue.insert((now, name));
            }
        }
        changed
    }

    fn answered(&mut self, name: &Arc<str>, outcome: &LookupOutcome, now: Instant, random: &mut dyn FnMut() -> f64) -> bool {
        if !self.flying.remove(name) {
            return false;
        }
        let verdict = classify(outcome);
        if let Some(failure) = verdict.failure {
            *self.failures.entry(failure).or_default() += 1;
        }
        let Some(entry) = self.entries.get_mut(name) else { return false };
        let before = std::mem::take(&mut entry.addresses);
        entry.addresses = match &verdict.answer {
            Some(answer) => answer.over(&before),
            None => before.clone(),
        };
        entry.status.failure = verdict.failure;
        entry.status.answered = verdict.answer.as_ref().map_or(entry.status.answered, |_| Some(now));
        if verdict.failure.is_none() {
            entry.backoff.reset();
        }
        let fresh = verdict.answer.as_ref().map(|answer| until_next(answer.ttl, random()));
        let retry = verdict.failure.map(|_| entry.backoff.next(random()));
        let delay = fresh.into_iter().chain(retry).min().unwrap_or(MIN_INTERVAL);
        let changed = entry.addresses != before;
        self.queue.insert((now + delay, Arc::clone(name)));
        changed
    }

    fn take_due(&mut self, now: Instant) -> Vec<Arc<str>> {
        let mut due = Vec::new();
        while let Some(next) = self.queue.first().filter(|(when, _)| *when <= now && self.flying.len() < self.limit).cloned() {
            self.queue.remove(&next);
            self.flying.insert(Arc::clone(&next.1));
            due.push(next.1);
        }
        due
    }
}

struct OutcomeVerdict {
    answer: Option<UsableAnswer>,
    failure: Option<LookupFailure>,
}

/// Usable part of an outcome.
struct UsableAnswer {
    addresses: BTreeSet<IpAddr>,
    /// The family whose lookup failed: its previous addresses stay.
    keep: Option<Family>,
    ttl: Duration,
}

impl UsableAnswer {
    fn over(&self, before: &BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        let retained = before.iter().filter(|ip| self.keep == Some(Family::of(**ip)));
        retained.chain(&self.addresses).copied().collect()
    }
}

fn classify(outcome: &LookupOutcome) -> OutcomeVerdict {
    let useful = |family: &Result<FamilyRecords, LookupFailure>| family.as_ref().is_ok_and(|records| !records.addresses.is_empty());
    match (&outcome.v4, &outcome.v6) {
        (Ok(v4), Ok(v6)) if useful(&outcome.v4) || useful(&outcome.v6) => {
            let both = [v4, v6].into_iter().filter(|records| !records.addresses.is_empty());
            let ttl = both.map(|records| records.ttl).min().unwrap_or_default();
            let addresses = v4.addresses.union(&v6.addresses).copied().collect();
            OutcomeVerdict { answer: Some(UsableAnswer { addresses, keep: None, ttl }), failure: None }
        }
        (Ok(_), Ok(_)) => OutcomeVerdict { answer: None, failure: Some(LookupFailure::Empty) },
        (Ok(good), Err(failure)) if useful(&outcome.v4) => half(good, *failure, Family::V6),
        (Err(failure), Ok(good)) if useful(&outcome.v6) => half(good, *failure, Family::V4),
        (Err(failure), _) | (_, Err(failure)) => OutcomeVerdict { answer: None, failure: Some(*failure) },
    }
}

/// Evaluates an answer of one family and a failure of the other. NXDOMAIN for one family with addresses in the other means that the first
/// has none.
fn half(good: &FamilyRecords, failure: LookupFailure, keep: Family) -> OutcomeVerdict {
    let answer = UsableAnswer { addresses: good.addresses.clone(), keep: None, ttl: good.ttl };
    match failure {
        LookupFailure::NoName | LookupFailure::Empty => OutcomeVerdict { answer: Some(answer), failure: None },
        failure => OutcomeVerdict { answer: Some(UsableAnswer { keep: Some(keep), ..answer }), failure: Some(failure) },
    }
}

/// Time until the next lookup for a TTL: up to a tenth less, so that replicas do not query at once, within bounds.
fn until_next(ttl: Duration, random: f64) -> Duration {
    let ttl = ttl.clamp(MIN_INTERVAL, MAX_INTERVAL);
    let earliest = ttl.mul_f64(0.9).max(MIN_INTERVAL);
    let latest = ttl.max(MIN_INTERVAL.mul_f64(1.1));
    earliest + latest.saturating_sub(earliest).mul_f64(random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests;
