//! Work queue of keys, with deduplication and delayed retries.
//!
//! A waiting key is in the queue once. A key in progress is never given to a second worker, but is requeued if it was added meanwhile. A
//! failed key is retried after an increasing delay. Due keys of different shares take turns, so that however many keys one has, the next of
//! another waits for one key of each share. The caller decides the meaning of keys and the delays; only [`Queue::close`] loses keys.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::timer::until;
use order::QueueOrder;

mod order;

pub trait QueueKey: Clone + Eq + Hash + Ord + Debug + Send + 'static {
    type Share: Clone + Eq + Hash + Debug + Send;

    /// Whose work it is.
    fn share(&self) -> Self::Share;
}

/// Retry delay by number of consecutive failures (1 after the first).
pub type Retry = Arc<dyn Fn(u32) -> Duration + Send + Sync>;

/// Outcome of work on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkOutcome {
    /// Done until the key is added again.
    Done,
    /// Succeeded; requeue after this time.
    RequeueAfter(Duration),
    /// Failed: requeue after the retry delay, or after this time if longer.
    Retry(Option<Duration>),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Depth {
    /// Keys that are due.
    pub ready: usize,
    /// Keys that are not due yet.
    pub waiting: usize,
    /// Keys in progress.
    pub running: usize,
    /// Keys whose last work failed.
    pub failing: usize,
}

/// The queue. Clones share it.
#[derive(Clone)]
pub struct Queue<K: QueueKey> {
    order: Arc<Mutex<QueueOrder<K>>>,
    /// Notifies waiting workers; true once closed.
    bell: watch::Sender<bool>,
    retry: Retry,
}

/// A key in progress. Dropping it without [`Self::end`] counts as a failure.
#[derive(Debug)]
pub struct WorkItem<K: QueueKey> {
    key: K,
    queue: Queue<K>,
    ended: bool,
}

impl<K: QueueKey> Debug for Queue<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("depth", &self.depth()).finish_non_exhaustive()
    }
}

impl<K: QueueKey> Queue<K> {
    pub fn new(retry: Retry) -> Self {
        Self { order: Arc::new(Mutex::new(QueueOrder::new())), bell: watch::channel(false).0, retry }
    }

    /// Adds a key that is due now.
    pub fn add(&self, key: K) {
        self.add_after(key, Duration::ZERO);
    }

    /// Adds a key that is due after a time; the earliest time counts. A short delay merges repeated additions.
    pub fn add_after(&self, key: K, after: Duration) {
        let now = Instant::now();
        self.locked().add(key, now + after);
        self.ring();
    }

    /// Waits for the next due key; `None` once the queue is closed.
    pub async fn next(&self) -> Option<WorkItem<K>> {
        let mut bell = self.bell.subscribe();
        loop {
            if *bell.borrow_and_update() {
                return None;
            }
            let (taken, next) = {
                let mut order = self.locked();
                let taken = order.take(Instant::now());
                // One notification may cover several keys: each taker wakes the next.
                (taken, order.next())
            };
            if let Some(key) = taken {
                self.ring();
                return Some(WorkItem { key, queue: self.clone(), ended: false });
            }
            tokio::select! {
                changed = bell.changed() => changed.ok()?,
                () = until(next) => {}
            }
        }
    }

    /// Closes the queue: no more keys are returned.
    pub fn close(&self) {
        self.bell.send_replace(true);
    }

    pub fn depth(&self) -> Depth {
        self.locked().depth(Instant::now())
    }

    /// Age of the oldest due key.
    pub fn oldest(&self) -> Option<Duration> {
        let now = Instant::now();
        self.locked().oldest(now).map(|since| now - since)
    }

    fn locked(&self) -> MutexGuard<'_, QueueOrder<K>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        self.bell.send_modify(|_closed| {});
    }
}

impl<K: QueueKey> WorkItem<K> {
    pub fn key(&self) -> &K {
        &self.key
    }

    pub fn end(mut self, ended: WorkOutcome) {
        self.finish(ended);
    }

    fn finish(&mut self, ended: WorkOutcome) {
        self.ended = true;
        let retry = Arc::clone(&self.queue.retry);
        let now = Instant::now();
        self.queue.locked().end(&self.key, now, ended, &*retry);
        self.queue.ring();
    }
}

impl<K: QueueKey> Drop for WorkItem<K> {
    fn drop(&mut self) {
        if !self.ended {
            self.finish(WorkOutcome::Retry(None));
        }
    }
}

#[cfg(test)]
mod tests;
