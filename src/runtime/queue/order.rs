//! Order of the queue's keys, without waiting: the caller passes the time.

use std::collections::{BTreeSet, HashMap};
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

/// All keys with their due times.
#[derive(Debug)]
pub(super) struct QueueOrder<K> {
    entries: HashMap<K, KeyEntry>,
    due: BTreeSet<(Instant, u64, K)>,
    /// Number of additions, so that keys of equal times keep their order.
    count: u64,
}

impl<K: QueueKey> QueueOrder<K> {
    pub(super) fn new() -> Self {
        Self { entries: HashMap::new(), due: BTreeSet::new(), count: 0 }
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
                let old = (*later, *number, key.clone());
                self.due.remove(&old);
                failures
            }
            None => 0,
        };
        self.put(key, at, failures);
    }

    /// Takes the key that has been due longest.
    pub(super) fn take(&mut self, now: Instant) -> Option<K> {
        let first = self.due.first().filter(|(at, ..)| *at <= now)?.clone();
        self.due.remove(&first);
        let (.., key) = first;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.place = QueuePlace::Running(None);
        }
        Some(key)
    }

    /// Due time of the next key.
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
        let ready = self.due.iter().take_while(|(at, ..)| *at <= now).count();
        let failing = self.entries.values().filter(|entry| entry.failures > 0).count();
        Depth { ready, waiting: self.due.len() - ready, running: self.entries.len() - self.due.len(), failing }
    }

    /// Due time of the oldest due key.
    pub(super) fn oldest(&self, now: Instant) -> Option<Instant> {
        self.next().filter(|at| *at <= now)
    }

    fn put(&mut self, key: K, at: Instant, failures: u32) {
        self.count += 1;
        self.due.insert((at, self.count, key.clone()));
        self.entries.insert(key, KeyEntry { place: QueuePlace::Due(at, self.count), failures });
    }
}
