//! Order of the queue's keys, without waiting: the caller passes the time.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::{Depth, QueueKey, WorkOutcome};

/// State of a key. An idle key has no entry.
#[derive(Debug)]
struct KeyEntry {
    place: QueuePlace,
    failures: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueuePlace {
    /// Due at this time; the number orders keys of equal times.
    Due(Instant, u64),
    /// In progress; due again at this time if it was added meanwhile.
    Running(Option<Instant>),
}

/// Keys by due time.
type DueKeys<K> = BTreeSet<(Instant, u64, K)>;

/// All keys with their due times.
#[derive(Debug)]
pub(super) struct QueueOrder<K: QueueKey> {
    entries: HashMap<K, KeyEntry>,
    /// Keys that were not due at the last take.
    due: DueKeys<K>,
    /// Due keys of each share.
    ready: HashMap<K::Share, DueKeys<K>>,
    /// Shares with due keys, in the order of their turns.
    turns: VecDeque<K::Share>,
    /// Number of additions, so that keys of equal times keep their order.
    count: u64,
}

impl<K: QueueKey> QueueOrder<K> {
    pub(super) fn new() -> Self {
        Self { entries: HashMap::new(), due: BTreeSet::new(), ready: HashMap::new(), turns: VecDeque::new(), count: 0 }
    }

    /// Adds a key that is due at a time.
    pub(super) fn add(&mut self, key: K, at: Instant) {
        let failures = match self.entries.get_mut(&key) {
            Some(KeyEntry { place: QueuePlace::Running(again), .. }) => {
                *again = Some(again.map_or(at, |earlier| earlier.min(at)));
                return;
            }
            Some(KeyEntry { place: QueuePlace::Due(earlier, _), .. }) if *earlier <= at => return,
            Some(KeyEntry { place: QueuePlace::Due(later, number), failures }) => {
                let failures = *failures;
                if !self.due.remove(&(*later, *number, key.clone())) {
                    // It is due already.
                    return;
                }
                failures
            }
            None => 0,
        };
        self.put(key, at, failures);
    }

    /// Takes of the next share the key that has been due longest.
    pub(super) fn take(&mut self, now: Instant) -> Option<K> {
        self.make_ready(now);
        let share = self.turns.pop_front()?;
        let keys = self.ready.get_mut(&share)?;
        let taken = keys.pop_first();
        if keys.is_empty() {
            self.ready.remove(&share);
        } else {
            self.turns.push_back(share);
        }
        let (.., key) = taken?;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.place = QueuePlace::Running(None);
        }
        Some(key)
    }

    /// Gives due keys to their shares.
    fn make_ready(&mut self, now: Instant) {
        while self.due.first().is_some_and(|(at, ..)| *at <= now) {
            let Some(first) = self.due.pop_first() else { return };
            let share = first.2.share();
            let keys = self.ready.entry(share.clone()).or_default();
            if keys.is_empty() {
                self.turns.push_back(share);
            }
            keys.insert(first);
        }
    }

    /// Time at which a key becomes due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, ..)| *at)
    }

    pub(super) fn end(&mut self, key: &K, now: Instant, ended: WorkOutcome, retry: &dyn Fn(u32) -> Duration) {
        let Some(KeyEntry { place: QueuePlace::Running(requested), failures }) = self.entries.remove(key) else { return };
        let (own, failures) = match ended {
            WorkOutcome::Done => (None, 0),
            WorkOutcome::RequeueAfter(after) => (Some(now + after), 0),
            WorkOutcome::Retry(least) => {
                let failures = failures.saturating_add(1);
                (Some(now + retry(failures).max(least.unwrap_or_default())), failures)
            }
        };
        // An addition during work counts, but does not shorten the delay after a failure: a failing reconciliation often writes a status,
        // and its watch event would add the key at once.
        let at = match (requested, own) {
            (Some(begun), Some(own)) if failures == 0 => Some(begun.min(own)),
            (_, Some(own)) => Some(own),
            (pending, None) => pending,
        };
        if let Some(at) = at {
            self.put(key.clone(), at, failures);
        }
    }

    pub(super) fn depth(&self, now: Instant) -> Depth {
        let ready: usize = self.ready.values().map(DueKeys::len).sum();
        let due = self.due.iter().take_while(|(at, ..)| *at <= now).count();
        let failing = self.entries.values().filter(|entry| entry.failures > 0).count();
        Depth { ready: ready + due, waiting: self.due.len() - due, running: self.entries.len() - self.due.len() - ready, failing }
    }

    /// Due time of the oldest due key.
    pub(super) fn oldest(&self, now: Instant) -> Option<Instant> {
        let firsts = self.ready.values().filter_map(DueKeys::first).chain(self.due.first());
        firsts.map(|(at, ..)| *at).min().filter(|at| *at <= now)
    }

    fn put(&mut self, key: K, at: Instant, failures: u32) {
        self.count += 1;
        self.due.insert((at, self.count, key.clone()));
        self.entries.insert(key, KeyEntry { place: QueuePlace::Due(at, self.count), failures });
    }
}
