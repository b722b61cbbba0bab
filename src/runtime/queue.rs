//! A work queue of keys: what is to be looked at, once, however often it was asked for.
//!
//! A key that waits is there once; a key that is being worked on is never handed to a second worker, but is handed out
//! again if it was asked for meanwhile. A key that failed comes back after a delay that grows. What a key means and how
//! long the delays are is the caller's business; nothing is lost but by [`Queue::close`].

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use order::QueueOrder;

mod order;

pub trait QueueKey: Clone + Eq + Hash + Ord + Debug + Send + 'static {}
impl<K: Clone + Eq + Hash + Ord + Debug + Send + 'static> QueueKey for K {}

/// The delay before the next try, by how often the key failed in a row (1 after the first failure).
pub type Retry = Arc<dyn Fn(u32) -> Duration + Send + Sync>;

/// How work on a key ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkOutcome {
    /// It is done until it is asked for again.
    Done,
    /// It went well and is to be looked at again after this time.
    RequeueAfter(Duration),
    /// It failed: again after the retry delay, or after this time if that is longer.
    Retry(Option<Duration>),
}

/// How the queue stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Depth {
    /// Keys that a worker could take now.
    pub ready: usize,
    /// Keys that wait for their time.
    pub waiting: usize,
    /// Keys that are being worked on.
    pub running: usize,
    /// Keys whose last work failed.
    pub failing: usize,
}

/// The queue. Clones are the same queue.
#[derive(Clone)]
pub struct Queue<K: QueueKey> {
    order: Arc<Mutex<QueueOrder<K>>>,
    /// Moved whenever a key may have become ready, and closed at the end.
    bell: watch::Sender<bool>,
    retry: Retry,
}

/// A key in a worker's hands. Dropped without an end, it has failed.
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
    /// An empty queue.
    pub fn new(retry: Retry) -> Self {
        Self { order: Arc::new(Mutex::new(QueueOrder::new())), bell: watch::channel(false).0, retry }
    }

    /// Asks for a key now.
    pub fn add(&self, key: K) {
        self.add_after(key, Duration::ZERO);
    }

    /// Asks for a key after a time; the earliest wish counts. A short time lets wishes for one key gather.
    pub fn add_after(&self, key: K, after: Duration) {
        let now = Instant::now();
        self.locked().add(key, now + after);
        self.ring();
    }

    /// The next key whose time has come; waits for it. Nothing once the queue is closed.
    pub async fn next(&self) -> Option<WorkItem<K>> {
        let mut bell = self.bell.subscribe();
        loop {
            if *bell.borrow_and_update() {
                return None;
            }
            let (taken, next) = {
                let mut order = self.locked();
                let taken = order.take(Instant::now());
                // One ring may stand for several keys: whoever takes one wakes the next.
                (taken, order.next())
            };
            if let Some(key) = taken {
                self.ring();
                return Some(WorkItem { key, queue: self.clone(), ended: false });
            }
            let due = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = bell.changed() => changed.ok()?,
                () = due => {}
            }
        }
    }

    /// No more keys are handed out.
    pub fn close(&self) {
        self.bell.send_replace(true);
    }

    /// How the queue stands.
    pub fn depth(&self) -> Depth {
        self.locked().depth(Instant::now())
    }

    /// How long the key that is ready longest has been so.
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

    /// Gives the key back.
    pub fn end(mut self, ended: WorkOutcome) {
        self.give_back(ended);
    }

    fn give_back(&mut self, ended: WorkOutcome) {
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
            self.give_back(WorkOutcome::Retry(None));
        }
    }
}

#[cfg(test)]
mod tests;
