//! Certificate orders: when a certificate is ordered, and by which replica. Events in, actions out.
//!
//! The state of a name is its Secret, which every replica watches: the certificate, and an order note with the replica that orders a new
//! one. The leader orders due certificates. It first writes its name into the note, conditional on the resource version that it read, so
//! that only one of two leaders orders. It abandons an order before another replica may take over: at most one replica orders a name at a
//! time, despite crashes, hangs and partitions.
//!
//! - A name without a certificate is due at once. Others are due at a point of the renewal window that the ACME server suggests (ARI), or
//!   after two thirds of the lifetime minus a random part. The random part derives from the certificate, so that a restart does not change
//!   it.
//! - The note records a failure and the time of the next attempt, also for an order that is repeated because its replica died: neither
//!   crash loops nor leader changes retry faster. A longer `Retry-After` of the server has precedence.
//! - A certificate that was issued but not stored is never ordered again: storing is retried until it succeeds.
//!
//! Waits for other replicas use the monotonic clock; the wall clock is compared only with times in certificates and notes. This module does
//! no I/O and has no access to keys.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::api::issuance::OrderNote;
use crate::model::base::backoff::Backoff;

mod due;
mod messages;

pub use due::{Certificate, RenewalWindow, Validity, renew_at, usable};
pub use messages::{OrderAction, OrderEvent, OrderFailure, WriteResult};

/// Maximum number of concurrent orders: ACME servers limit new orders per hour.
const AT_ONCE: usize = 8;
/// Retry interval of failed writes.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Default interval of requests for the renewal window, if the server suggests none.
const RENEWAL_INFO_INTERVAL: Duration = Duration::from_hours(6);
/// Minimum and maximum interval of these requests, whatever the server suggests (RFC 9773, 4.3.2).
const MIN_SUGGESTION: Duration = Duration::from_mins(1);
const MAX_SUGGESTION: Duration = Duration::from_hours(24);
/// Outages count as at most this many failures for retry delays.
const OUTAGE: u32 = 3;

/// Current time by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Time since process start.
    pub at: Duration,
    pub wall: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OrderTerms {
    /// Time after which a replica abandons its own order, counted from before it sent the note.
    pub order: Duration,
    /// Time without change after which a note is stale. The difference to `order` is the clock-skew margin.
    pub patience: Duration,
    /// Delays after failures.
    pub retry: Backoff,
}

impl OrderTerms {
    /// dns-01 takes seconds to minutes. A failure uses part of the server's weekly rate limit.
    pub const ACME: Self = Self { order: Duration::from_mins(5), patience: Duration::from_mins(7), retry: Backoff::ACME };
}

/// Shared record of a name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameRecord {
    /// Resource version; differs after every write.
    pub version: String,
    /// The certificate, if the Secret has a readable one that matches its key and name.
    pub certificate: Option<Certificate>,
    pub note: OrderNote,
}

/// Certificate order state machine of one replica.
#[derive(Debug, Clone)]
pub struct Issuer {
    me: String,
    terms: OrderTerms,
    leads: bool,
    wanted: BTreeSet<String>,
    names: BTreeMap<String, NameProgress>,
    /// Time of the next check per name, without any event.
    timers: BTreeMap<String, Duration>,
    /// Due names that wait for a free order slot, most urgent first.
    queue: BTreeSet<(Option<Timestamp>, String)>,
    busy: BTreeSet<String>,
}

#[derive(Debug, Clone, Default)]
struct NameProgress {
    record: Option<NameRecord>,
    since: Duration,
    /// Whether the record is outdated: the API rejected a write against it.
    stale: bool,
    /// Version that the newest write was conditional on.
    against: String,
    window: Option<RenewalWindow>,
    /// Time when this process observed the current certificate as new.
    renewed: Option<Duration>,
    /// Time of the next request for the renewal window; `None` without a certificate.
    ask: Option<Duration>,
    doing: OrderPhase,
}

#[derive(Debug, Clone, Default, PartialEq)]
enum OrderPhase {
    #[default]
    Nothing,
    /// The note is being written, since this time.
    Claiming(Duration),
    /// An order is in progress, until this time at the latest.
    Ordering(Duration),
    /// The outcome must be written, or the write is in flight.
    Writing { note: Option<OrderNote>, sent: bool },
}

impl Issuer {
    /// Creates the state machine of a replica. `me` must be unique among running processes.
    pub fn new(me: impl Into<String>, terms: OrderTerms) -> Self {
        let (wanted, names, timers) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        Self { me: me.into(), terms, leads: false, wanted, names, timers, queue: BTreeSet::new(), busy: BTreeSet::new() }
    }

    /// Actions after this event. `random` is from 0 to 1.
    pub fn step(&mut self, event: OrderEvent, now: Moment, random: f64) -> Vec<OrderAction> {
        let mut actions = Vec::new();
        for name in self.take_in(event, now, random, &mut actions) {
            self.look(&name, now, &mut actions);
        }
        while self.busy.len() < AT_ONCE
            && let Some((_, name)) = self.queue.pop_first()
        {
            self.claim(&name, now, &mut actions);
        }
        actions
    }

    /// Time of the next [`OrderEvent::Tick`], if no other event occurs.
    pub fn wake(&self) -> Option<Duration> {
        self.timers.values().min().copied()
    }

    pub fn certificate(&self, name: &str) -> Option<&Certificate> {
        self.names.get(name)?.record.as_ref()?.certificate.as_ref()
    }

    /// Applies an event; returns the names that it concerns.
    fn take_in(&mut self, event: OrderEvent, now: Moment, random: f64, actions: &mut Vec<OrderAction>) -> Vec<String> {
        match event {
            OrderEvent::Tick => self.timers.extract_if(.., |_, at| *at <= now.at).map(|(name, _)| name).collect(),
            OrderEvent::Wanted(wanted) => {
                let gone: Vec<_> = self.wanted.difference(&wanted).cloned().collect();
                self.wanted = wanted;
                for name in gone {
                    self.let_go(&name, actions);
                }
                self.wanted.iter().cloned().collect()
            }
            OrderEvent::Leads(leads) => {
                self.leads = leads;
                self.queue.clear();
                self.wanted.iter().cloned().collect()
            }
            OrderEvent::Seen(name, record) => {
                self.update_record(&name, record, now.at);
                vec![name]
            }
            OrderEvent::Claimed(name, written) => self.claimed(name, written, now.at, actions),
            OrderEvent::Ended(name, end) => self.ended(name, end, now, random),
            OrderEvent::Stored(name, written) => self.stored(name, written, now.at),
            OrderEvent::Suggested(name, window, again) => {
                let certified = |one: &&mut NameProgress| one.record.as_ref().is_some_and(|record| record.certificate.is_some());
                if let Some(one) = self.names.get_mut(&name).filter(certified) {
                    one.window = window.or(one.window.take());
                    one.ask = Some(now.at + again.unwrap_or(RENEWAL_INFO_INTERVAL).clamp(MIN_SUGGESTION, MAX_SUGGESTION));
                }
                vec![name]
            }
        }
    }

    fn update_record(&mut self, name: &str, record: Option<NameRecord>, at: Duration) {
        let one = self.names.entry(name.to_owned()).or_default();
        if one.record == record {
            return;
        }
        let id = |record: &Option<NameRecord>| record.as_ref()?.certificate.as_ref().map(|certificate| certificate.id.clone());
        if id(&one.record) != id(&record) {
            (one.window, one.ask) = (None, id(&record).map(|_| at));
            one.renewed = one.record.as_ref().map(|_| at);
        }
        (one.record, one.since, one.stale) = (record, at, false);
    }

    fn claimed(&mut self, name: String, written: WriteResult, at: Duration, actions: &mut Vec<OrderAction>) -> Vec<String> {
        let Some(OrderPhase::Claiming(sent)) = self.names.get(&name).map(|one| one.doing.clone()) else { return vec![name] };
        let until = sent + self.terms.order;
        match written {
            WriteResult::Done(record) => {
                self.update_record(&name, Some(record), at);
                let replaces = self.certificate(&name).map(|certificate| certificate.id.clone());
                self.set(&name, OrderPhase::Ordering(until));
                self.timer(&name, until);
                actions.push(OrderAction::Order { name, replaces });
                Vec::new()
            }
            WriteResult::Conflict => {
                self.set(&name, OrderPhase::Nothing);
                self.refused(&name);
                vec![name]
            }
            WriteResult::Failed => {
                // The write may have succeeded: the next observed record shows it.
                self.set(&name, OrderPhase::Nothing);
                self.timer(&name, at + RETRY_INTERVAL);
                Vec::new()
            }
        }
    }

    fn ended(&mut self, name: String, end: Result<Certificate, OrderFailure>, now: Moment, random: f64) -> Vec<String> {
        let Some(one) = self.names.get_mut(&name).filter(|one| matches!(one.doing, OrderPhase::Ordering(_))) else { return Vec::new() };
        let before = one.record.as_ref().map(|record| record.note.clone()).unwrap_or_default();
        let note = end.err().map(|failed| self.after(&before, now.wall, failed, random));
        self.set(&name, OrderPhase::Writing { note, sent: false });
        vec![name]
    }

    fn stored(&mut self, name: String, written: WriteResult, at: Duration) -> Vec<String> {
        let Some(one) = self.names.get_mut(&name) else { return Vec::new() };
        let OrderPhase::Writing { sent, .. } = &mut one.doing else { return vec![name] };
        *sent = false;
        match written {
            WriteResult::Done(record) => {
                self.set(&name, OrderPhase::Nothing);
                self.update_record(&name, Some(record), at);
                vec![name]
            }
            WriteResult::Conflict => {
                self.refused(&name);
                vec![name]
            }
            WriteResult::Failed => {
                self.timer(&name, at + RETRY_INTERVAL);
                Vec::new()
            }
        }
    }

    /// Records a conflict: the record is outdated, unless a newer one was observed before the response.
    fn refused(&mut self, name: &str) {
        if let Some(one) = self.names.get_mut(name) {
            one.stale = one.record.as_ref().is_some_and(|record| record.version == one.against);
        }
    }

    /// Performs what is due for a name.
    fn look(&mut self, name: &str, now: Moment, actions: &mut Vec<OrderAction>) {
        let Some(one) = self.names.get(name) else { return };
        match &one.doing {
            OrderPhase::Claiming(_) | OrderPhase::Writing { sent: true, .. } => {}
            OrderPhase::Ordering(until) if now.at < *until => self.timer(name, *until),
            OrderPhase::Ordering(_) => {
                actions.push(OrderAction::Abandon(name.to_owned()));
                self.set(name, OrderPhase::Nothing);
                self.consider(name, now, actions);
            }
            OrderPhase::Writing { .. } => self.write(name, now, actions),
            OrderPhase::Nothing => self.consider(name, now, actions),
        }
    }

    /// Writes the outcome of an order, as long as the note is this replica's.
    fn write(&mut self, name: &str, now: Moment, actions: &mut Vec<OrderAction>) {
        let Some(one) = self.names.get_mut(name).filter(|one| !one.stale) else { return };
        let OrderPhase::Writing { note, sent } = &mut one.doing else { return };
        let Some(record) = one.record.as_ref().filter(|record| record.note.by == self.me) else {
            // Another replica took over because it considered this one dead, or the Secret is gone. That replica may be dead by now, too.
            self.set(name, OrderPhase::Nothing);
            self.consider(name, now, actions);
            return;
        };
        *sent = true;
        let (name, version) = (name.to_owned(), record.version.clone());
        one.against.clone_from(&version);
        actions.push(match note {
            None => OrderAction::Store { name, version },
            Some(note) => OrderAction::Release { name, version, note: note.clone() },
        });
    }

    /// Queues the order of a due name, else sets the timer for the next check.
    fn consider(&mut self, name: &str, now: Moment, actions: &mut Vec<OrderAction>) {
        if !self.leads || !self.wanted.contains(name) {
            return;
        }
        let Some(one) = self.names.get_mut(name).filter(|one| !one.stale) else { return };
        let Some(record) = &one.record else { return };
        let due = record.certificate.as_ref().map(|certificate| renew_at(certificate, one.window));
        if let Some(existing) = record.certificate.as_ref().filter(|_| one.ask.is_some_and(|ask| ask <= now.at)) {
            one.ask = None;
            actions.push(OrderAction::Suggest { name: name.to_owned(), certificate: existing.id.clone() });
        }
        let others = !record.note.by.is_empty() && record.note.by != self.me;
        let free = if others { one.since + self.terms.patience } else { now.at };
        let wall = record.note.not_before.max(due).unwrap_or(Timestamp::MIN);
        let wait = Duration::try_from(wall.duration_since(now.wall)).unwrap_or_default();
        let pause = record.certificate.as_ref().map(due::min_pause).unwrap_or_default();
        let at = free.max(now.at + wait).max(one.renewed.map_or(Duration::ZERO, |renewed| renewed + pause));
        let (ask, urgency) = (one.ask, record.certificate.as_ref().map(|found| found.until));
        if at <= now.at {
            self.queue.insert((urgency, name.to_owned()));
        } else {
            self.timer(name, ask.map_or(at, |ask| ask.min(at)));
        }
    }

    fn claim(&mut self, name: &str, now: Moment, actions: &mut Vec<OrderAction>) {
        let Some(record) = self.names.get(name).and_then(|one| one.record.clone()) else { return };
        self.set(name, OrderPhase::Claiming(now.at));
        if let Some(one) = self.names.get_mut(name) {
            one.against.clone_from(&record.version);
        }
        let mut note =
            if record.note.by.is_empty() { record.note } else { self.after(&record.note, now.wall, OrderFailure::default(), 0.0) };
        note.by.clone_from(&self.me);
        actions.push(OrderAction::Claim { name: name.to_owned(), version: record.version, note });
    }

    /// Note after a failed order, or after the death of the ordering replica.
    fn after(&self, before: &OrderNote, wall: Timestamp, failed: OrderFailure, random: f64) -> OrderNote {
        let most = if failed.outage { OUTAGE.max(before.failures) } else { u32::MAX };
        let failures = before.failures.saturating_add(1).min(most);
        let pause = self.terms.retry.after(failures, random).max(failed.retry_after.unwrap_or_default());
        let not_before = wall.checked_add(SignedDuration::try_from(pause).unwrap_or(SignedDuration::MAX)).ok();
        OrderNote { failures, not_before, ..OrderNote::default() }
    }

    fn let_go(&mut self, name: &str, actions: &mut Vec<OrderAction>) {
        if let Some(one) = self.names.get(name)
            && matches!(one.doing, OrderPhase::Ordering(_))
        {
            actions.push(OrderAction::Abandon(name.to_owned()));
        }
        self.set(name, OrderPhase::Nothing);
        self.timers.remove(name);
        self.queue.retain(|(_, queued)| queued != name);
    }

    fn set(&mut self, name: &str, doing: OrderPhase) {
        if matches!(doing, OrderPhase::Nothing) {
            self.busy.remove(name)
        } else {
            self.busy.insert(name.to_owned())
        };
        if let Some(one) = self.names.get_mut(name) {
            one.doing = doing;
        }
    }

    fn timer(&mut self, name: &str, at: Duration) {
        self.timers.insert(name.to_owned(), at);
    }
}

#[cfg(test)]
mod tests;
