//! The only writer of our keys in the state Secret (or in the file in place of it).
//!
//! Any task sets keys with a [`Ledger`] and does not wait. The writer takes the newest values and writes those that differ in one call, at
//! most once in [`PACE`], and retries without end. It reads the Secret when it starts, when the Secret has been replaced (checked about
//! once in [`POLL_INTERVAL`]) and before it removes the device. Only the last of these changes tailscaled's keys.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::model::base::backoff::Backoff;
use crate::model::tailnet::state::{Start, StateChanges, forget_identity, outstanding};

pub mod reporter;
mod store;

pub use store::{ReportError, Store};

/// The least time between two writes.
pub const PACE: Duration = Duration::from_secs(1);

/// How long the Secret is left alone before it is looked whether it is still the same, half as long again at most. One that was
/// deleted and made anew between two writes holds nothing of ours, and nobody else says so: a replica may not watch it.
pub const POLL_INTERVAL: Duration = Duration::from_secs(40);

/// When the writer acts without being told to.
#[derive(Debug, Clone, Copy)]
pub struct WriteIntervals {
    /// When to try again after a failure.
    pub retry: Backoff,
    /// [`POLL_INTERVAL`].
    pub look: Duration,
}

#[derive(Debug, Clone, Default)]
struct DesiredState {
    /// Grows with each wish.
    generation: u64,
    changes: StateChanges,
    /// How often the device was to be forgotten.
    forgets: u64,
}

/// How the writing stands.
#[derive(Debug, Clone, Default)]
pub struct WriterHealth {
    /// When something was written last, or found to be there already.
    pub succeeded: Option<Instant>,
    /// What is wrong, and since when; nothing if the last attempt succeeded.
    pub fault: Option<WriteFault>,
    pub writes: u64,
    /// Up to which wish everything is written.
    done: u64,
}

/// Why the state cannot be written now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteFault {
    /// One of a closed set of words; a metric label.
    pub reason: &'static str,
    pub message: String,
    /// Since when no attempt has succeeded.
    pub since: Instant,
}

/// Says what the state is to be. Cheap to clone; never blocks.
#[derive(Debug, Clone)]
pub struct Ledger {
    wanted: watch::Sender<DesiredState>,
    health: watch::Receiver<WriterHealth>,
}

#[derive(Debug)]
pub struct Reporter {
    store: Store,
    start: Start,
    intervals: WriteIntervals,
    wanted: watch::Receiver<DesiredState>,
    health: watch::Sender<WriterHealth>,
    /// What is known to be there; nothing before the first reading.
    current: Option<StateChanges>,
    /// What tells the place that was read from another one; nothing if there was none.
    identity: Option<String>,
    forgotten: u64,
}

/// A ledger and the writer that carries out what it says.
pub fn new(store: Store, start: Start, intervals: WriteIntervals) -> (Ledger, Reporter) {
    let (wanted, wanted_rx) = watch::channel(DesiredState::default());
    let (health, health_rx) = watch::channel(WriterHealth::default());
    let reporter = Reporter { store, start, intervals, wanted: wanted_rx, health, current: None, identity: None, forgotten: 0 };
    (Ledger { wanted, health: health_rx }, reporter)
}

impl Ledger {
    /// The key is to have this value. The newest word counts.
    pub fn set(&self, key: &str, value: impl Into<Vec<u8>>) {
        self.want(key, Some(value.into().into()));
    }

    /// The key is to be absent. The newest word counts.
    pub fn remove(&self, key: &str) {
        self.want(key, None);
    }

    fn want(&self, key: &str, value: Option<Bytes>) {
        self.wanted.send_if_modified(|wanted| {
            if wanted.changes.get(key) == Some(&value) {
                return false;
            }
            wanted.changes.insert(key.to_owned(), value);
            wanted.generation += 1;
            true
        });
    }

    /// The device is to be forgotten: what was said of it and tailscaled's keys go, and a new device may be named after.
    pub fn forget_identity(&self) {
        self.wanted.send_modify(|wanted| {
            let identity = crate::api::state::IDENTITY;
            wanted.changes.retain(|key, _| !identity.contains(&key.as_str()));
            wanted.forgets += 1;
            wanted.generation += 1;
        });
    }

    /// Waits until everything said so far is written; for ever if the writer is gone.
    pub async fn written(&self) {
        let generation = self.wanted.borrow().generation;
        if self.health.clone().wait_for(|health| health.done >= generation && health.succeeded.is_some()).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    pub fn health(&self) -> watch::Receiver<WriterHealth> {
        self.health.clone()
    }
}

impl Reporter {
    /// Writes until nobody holds a ledger any more; then once more what is left, if it can.
    pub async fn run(mut self) {
        loop {
            let wanted = self.wanted.borrow_and_update().clone();
            let pause = match self.attempt(&wanted).await {
                Ok(wrote) => {
                    self.intervals.retry.reset();
                    self.succeeded(wanted.generation, wrote);
                    wrote.then_some(PACE)
                }
                Err(error) => {
                    self.failed(&error);
                    Some(self.intervals.retry.next(fastrand::f64()))
                }
            };
            let ended = match pause {
                Some(pause) => self.paused(pause).await,
                None => self.idle().await,
            };
            if ended {
                let last = self.wanted.borrow_and_update().clone();
                if let Err(error) = self.attempt(&last).await {
                    self.failed(&error);
                }
                return;
            }
        }
    }

    /// Waits for the next wish and looks now and then whether the place is still the same; true if nobody holds a ledger any more.
    async fn idle(&mut self) -> bool {
        let look = sleep_until(Instant::now() + self.intervals.look.mul_f64(1.0 + fastrand::f64() / 2.0));
        tokio::select! {
            changed = self.wanted.changed() => return changed.is_err(),
            () = look => {}
        }
        match self.store.identity().await {
            Ok(found) => {
                if found.is_none() || self.identity.as_ref().is_some_and(|identity| found.as_ref() != Some(identity)) {
                    tracing::warn!("the state Secret lost its content; writing it again");
                    self.current = None;
                }
                self.identity = found;
            }
            Err(error) => tracing::debug!(reason = error.reason(), "whether the state is still there is not known: {error}"),
        }
        false
    }

    /// Waits; true if nobody holds a ledger any more. A wish that comes meanwhile is seen, as what it is then, when the pause is over.
    async fn paused(&mut self, pause: Duration) -> bool {
        let end = Instant::now() + pause;
        let changed = tokio::select! {
            () = sleep_until(end) => return false,
            changed = self.wanted.changed() => changed,
        };
        self.wanted.mark_changed();
        if changed.is_ok() {
            sleep_until(end).await;
        }
        changed.is_err()
    }

    /// Writes what is not there; whether anything was to be written.
    async fn attempt(&mut self, wanted: &DesiredState) -> Result<bool, ReportError> {
        let (mut todo, mut current) = match &self.current {
            Some(existing) => (outstanding(&wanted.changes, existing), existing.clone()),
            None => self.begin(&wanted.changes).await?,
        };
        if wanted.forgets > self.forgotten {
            let mut forget = forget_identity(&self.store.read().await?);
            forget.extend(todo);
            todo = forget;
        }
        if !todo.is_empty() {
            // Should this fail because the Secret is gone: made anew, it will hold nothing of ours.
            let written = self.store.apply(&todo).await;
            self.current = self.current.take().filter(|_| !written.as_ref().is_err_and(ReportError::is_missing));
            written?;
        }
        let wrote = !todo.is_empty();
        current.extend(todo);
        self.current = Some(current);
        self.forgotten = wanted.forgets;
        Ok(wrote)
    }

    /// What is to be written first, and what is there: what a start says and what is wanted already, as far as it is not found.
    async fn begin(&mut self, wanted: &StateChanges) -> Result<(StateChanges, StateChanges), ReportError> {
        self.store.permitted().await?;
        // Before the reading: a place that changes in between is found to have changed.
        self.identity = self.store.identity().await?;
        let found = self.store.read().await?;
        let mut first = self.start.changes(&found);
        first.extend(wanted.clone());
        let current = first.keys().map(|key| (key.clone(), found.get(key).cloned())).collect();
        Ok((outstanding(&first, &current), current))
    }

    fn succeeded(&self, generation: u64, wrote: bool) {
        self.health.send_modify(|health| {
            if let Some(fault) = health.fault.take() {
                tracing::info!(reason = fault.reason, "wrote the state Secret again after errors");
            }
            health.succeeded = Some(Instant::now());
            health.done = generation;
            health.writes += u64::from(wrote);
        });
    }

    fn failed(&self, error: &ReportError) {
        let message = error.to_string();
        self.health.send_modify(|health| {
            let since = health.fault.as_ref().map_or_else(Instant::now, |fault| fault.since);
            if health.fault.as_ref().is_none_or(|fault| fault.reason != error.reason()) {
                tracing::warn!(reason = error.reason(), "cannot write the state Secret, retrying: {message}");
            }
            health.fault = Some(WriteFault { reason: error.reason(), message, since });
        });
    }
}

#[cfg(test)]
mod tests;
