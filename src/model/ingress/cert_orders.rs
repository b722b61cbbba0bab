//! When a certificate is ordered, and by which replica: events in, orders and writes out.
//!
//! The state of a name is its Secret, which every replica watches: the certificate, and a note of which replica is ordering another one.
//! The leader orders what is due. It first writes its name into the note with the resource version that it read, so that of two
//! leaders only one orders. It abandons an order before another replica may take it over: at most one replica orders a name, whatever
//! crashes, hangs or is cut off.
//!
//! - A name without a certificate is due at once; others at a point of the window that the ACME server suggests (ARI), or after
//!   two thirds of the lifetime, minus a random part. The random part derives from the certificate, so that a restart does not
//!   draw again.
//! - A failure is written into the note with the time of the next attempt, as is an order that is repeated because its replica died:
//!   neither a crash loop nor a change of leaders retries faster. A longer `Retry-After` of the server wins.
//! - A certificate that was issued but not stored is never ordered again: storing is retried until it works.
//!
//! Waiting for others uses the monotonic clock; the wall clock is compared only with times in certificates and notes. This module does
//! no I/O and sees no keys.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::api::issuance::OrderNote;
use crate::model::base::backoff::Backoff;

mod due;
mod messages;

pub use due::{Certificate, RenewalWindow, Validity, renew_at, usable};
pub use messages::{OrderAction, OrderEvent, OrderFailure, WriteResult};

/// How many orders are under way at a time: an ACME server counts new orders by the hour.
const AT_ONCE: usize = 8;
/// How soon a write is tried again that could not be made.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How often the server is asked for its window, unless it says.
const SUGGESTION: Duration = Duration::from_hours(6);
/// Shortest and longest time between two such requests, whatever the server says (RFC 9773, 4.3.2).
const MIN_SUGGESTION: Duration = Duration::from_mins(1);
const MAX_SUGGESTION: Duration = Duration::from_hours(24);
/// An outage makes the pauses no longer than those after so many failures.
const OUTAGE: u32 = 3;

/// Now, by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Time since the process began.
    pub at: Duration,
    pub wall: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OrderTerms {
    /// Who began an order gives it up after so long, counted from before its note was sent.
    pub order: Duration,
    /// A note that nobody changed for so long says nothing any more. The difference to `order` is what clocks may run apart.
    pub patience: Duration,
    /// The pauses after failures.
    pub retry: Backoff,
}

impl OrderTerms {
    /// dns-01 takes seconds to minutes. A failure costs a part of what the server allows in a week.
    pub const ACME: Self = Self { order: Duration::from_mins(5), patience: Duration::from_mins(7), retry: Backoff::ACME };
}

/// What all replicas know of a name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameRecord {
    /// Differs after every write.
    pub version: String,
    /// The certificate, if there is one that can be read and fits its key and name.
    pub certificate: Option<Certificate>,
    pub note: OrderNote,
}

/// One replica, as far as certificates go.
#[derive(Debug, Clone)]
pub struct Issuer {
    me: String,
    terms: OrderTerms,
    leads: bool,
    wanted: BTreeSet<String>,
    names: BTreeMap<String, NameProgress>,
    /// When a name is to be looked at though nothing happens.
    timers: BTreeMap<String, Duration>,
    /// Names that are due and wait for others' orders to end: the most urgent first.
    queue: BTreeSet<(Option<Timestamp>, String)>,
    busy: BTreeSet<String>,
}

#[derive(Debug, Clone, Default)]
struct NameProgress {
    record: Option<NameRecord>,
    since: Duration,
    /// The record is known to be old: it was refused by the API.
    stale: bool,
    /// The version that the newest write was made against.
    against: String,
    window: Option<RenewalWindow>,
    /// When this process saw the certificate take the place of another, or of none.
    renewed: Option<Duration>,
    /// When the server is asked for its window.
    ask: Option<Duration>,
    doing: OrderPhase,
}

#[derive(Debug, Clone, Default, PartialEq)]
enum OrderPhase {
    #[default]
    Nothing,
    /// The note is being written, since this time.
    Claiming(Duration),
    /// An order is under way, until this time at the latest.
    Ordering(Duration),
    /// A write of what came of it is to be made, or under way.
    Writing { note: Option<OrderNote>, sent: bool },
}

impl Issuer {
    /// A replica of this name, which no other process has at the same time.
    pub fn new(me: impl Into<String>, terms: OrderTerms) -> Self {
        let (wanted, names, timers) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        Self { me: me.into(), terms, leads: false, wanted, names, timers, queue: BTreeSet::new(), busy: BTreeSet::new() }
    }

    /// What to do now that this happened. `random` is from 0 to 1.
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

    /// When to come back with [`OrderEvent::Tick`] though nothing happens.
    pub fn wake(&self) -> Option<Duration> {
        self.timers.values().min().copied()
    }

    pub fn certificate(&self, name: &str) -> Option<&Certificate> {
        self.names.get(name)?.record.as_ref()?.certificate.as_ref()
    }

    /// Takes an event in; the names that it concerns.
    fn take_in(&mut self, event: OrderEvent, now: Moment, random: f64, actions: &mut Vec<OrderAction>) -> Vec<String> {
        match event {
            OrderEvent::Tick => {
                let come: Vec<_> = self.timers.iter().filter(|(_, at)| **at <= now.at).map(|(name, _)| name.clone()).collect();
                for name in &come {
                    self.timers.remove(name);
                }
                come
            }
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
                self.saw(&name, record, now.at);
                vec![name]
            }
            OrderEvent::Claimed(name, written) => self.claimed(name, written, now.at, actions),
            OrderEvent::Ended(name, end) => self.ended(name, end, now, random),
            OrderEvent::Stored(name, written) => self.stored(name, written, now.at),
            OrderEvent::Suggested(name, window, again) => {
                if let Some(one) = self.names.get_mut(&name) {
                    one.window = window.or(one.window.take());
                    one.ask = Some(now.at + again.unwrap_or(SUGGESTION).clamp(MIN_SUGGESTION, MAX_SUGGESTION));
                }
                vec![name]
            }
        }
    }

    fn saw(&mut self, name: &str, record: Option<NameRecord>, at: Duration) {
        let one = self.names.entry(name.to_owned()).or_default();
        if one.record == record {
            return;
        }
        let id = |record: &Option<NameRecord>| record.as_ref()?.certificate.as_ref().map(|certificate| certificate.id.clone());
        if id(&one.record) != id(&record) {
            (one.window, one.ask) = (None, Some(at));
            one.renewed = one.record.as_ref().map(|_| at);
        }
        (one.record, one.since, one.stale) = (record, at, false);
    }

    fn claimed(&mut self, name: String, written: WriteResult, at: Duration, actions: &mut Vec<OrderAction>) -> Vec<String> {
        let Some(OrderPhase::Claiming(sent)) = self.names.get(&name).map(|one| one.doing.clone()) else { return vec![name] };
        let until = sent + self.terms.order;
        match written {
            WriteResult::Done(record) => {
                self.saw(&name, Some(record), at);
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
                // Whether it was written is not known: what is seen next says so.
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
                self.saw(&name, Some(record), at);
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

    /// A write was refused: the record is old, unless a newer one was seen before the refusal came.
    fn refused(&mut self, name: &str) {
        if let Some(one) = self.names.get_mut(name) {
            one.stale = one.record.as_ref().is_some_and(|record| record.version == one.against);
        }
    }

    /// Does with a name what its time has come for.
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

    /// Writes what came of an order, for as long as the note is this replica's.
    fn write(&mut self, name: &str, now: Moment, actions: &mut Vec<OrderAction>) {
        let Some(one) = self.names.get_mut(name).filter(|one| !one.stale) else { return };
        let OrderPhase::Writing { note, sent } = &mut one.doing else { return };
        let Some(record) = one.record.as_ref().filter(|record| record.note.by == self.me) else {
            // Somebody else was right to think that this replica is gone, or the Secret is. That one may be gone by now, too.
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

    /// Has a name ordered if it is due, else looks again when it may be.
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

    /// The note after an order that failed, or whose replica died over it.
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
