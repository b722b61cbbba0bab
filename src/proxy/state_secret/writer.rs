//! The only writer of our keys in the state Secret (or in the state file instead).
//!
//! Any task sets keys with a [`Ledger`], without waiting. The writer takes the newest values and writes the differences in one call, at
//! most once per [`MIN_WRITE_INTERVAL`], with unlimited retries. It reads the Secret at start, about once per [`POLL_INTERVAL`] to detect lost keys, and
//! before it removes the device. Only this removal changes tailscaled's keys.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::api::state::REISSUE_AUTHKEY;
use crate::model::base::backoff::Backoff;
use crate::model::tailnet::state::{Start, StateChanges, forget_identity, lacks, outstanding};

pub mod reporter;
mod store;

pub use store::{ReportError, Store};

/// Minimum interval between two writes.
pub const MIN_WRITE_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum interval between checks for lost keys; at most 1.5 times as long. A Secret that was deleted and recreated between two writes
/// lacks our keys, and only this check detects it: a replica may not watch its state Secret.
pub const POLL_INTERVAL: Duration = Duration::from_secs(40);

/// The first check follows sooner by this factor if the Secret was empty. tailscaled (1.102.5, `kubestore`) reads the Secret and, if it has
/// no data, replaces all data: keys that we wrote in between are lost.
const SOONER: u32 = 8;

#[derive(Debug, Clone, Copy)]
pub struct WriteIntervals {
    /// Retry delay after a failure.
    pub retry: Backoff,
    /// [`POLL_INTERVAL`].
    pub look: Duration,
}

#[derive(Debug, Clone, Default)]
struct DesiredState {
    /// Increases with each change.
    generation: u64,
    changes: StateChanges,
    /// Number of requested device removals.
    forgets: u64,
}

#[derive(Debug, Clone, Default)]
pub struct WriterHealth {
    /// Time of the last successful write, or of the last check that found nothing to write.
    pub succeeded: Option<Instant>,
    /// Current error; `None` if the last attempt succeeded.
    pub fault: Option<WriteFault>,
    pub writes: u64,
    /// Generation up to which everything is written.
    done: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteFault {
    /// Metric label; closed set.
    pub reason: &'static str,
    pub message: String,
    /// Time of the first failed attempt since the last success.
    pub since: Instant,
}

/// Sets the desired state. Cheap to clone; never blocks.
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
    /// Keys and values in the Secret, as far as known; `None` before the first read.
    current: Option<StateChanges>,
    /// Time of the next check for lost keys.
    next_look: Instant,
    forgotten: u64,
}

pub fn new(store: Store, start: Start, intervals: WriteIntervals) -> (Ledger, Reporter) {
    let (wanted, wanted_rx) = watch::channel(DesiredState::default());
    let (health, health_rx) = watch::channel(WriterHealth::default());
    let reporter = Reporter { store, start, intervals, wanted: wanted_rx, health, current: None, next_look: Instant::now(), forgotten: 0 };
    (Ledger { wanted, health: health_rx }, reporter)
}

impl Ledger {
    /// Sets the key to this value. The last call wins.
    pub fn set(&self, key: &str, value: impl Into<Vec<u8>>) {
        self.want(key, Some(value.into().into()));
    }

    /// Removes the key. The last call wins.
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

    /// Removes the device: its reported values and tailscaled's keys. A new device may be reported afterwards.
    pub fn forget_identity(&self) {
        self.wanted.send_modify(|wanted| {
            let identity = crate::api::state::IDENTITY;
            wanted.changes.retain(|key, _| !identity.contains(&key.as_str()));
            wanted.forgets += 1;
            wanted.generation += 1;
        });
    }

    /// Waits until every change made so far is written; never returns if the writer has ended.
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
    /// Writes until all ledgers are dropped; then tries one last write of the rest.
    pub async fn run(mut self) {
        loop {
            let wanted = self.wanted.borrow_and_update().clone();
            let pause = match self.attempt(&wanted).await {
                Ok(wrote) => {
                    self.intervals.retry.reset();
                    self.succeeded(wanted.generation, wrote);
                    wrote.then_some(MIN_WRITE_INTERVAL)
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

    /// Waits for the next change or the next check for lost keys; true if all ledgers were dropped.
    async fn idle(&mut self) -> bool {
        tokio::select! {
            changed = self.wanted.changed() => return changed.is_err(),
            () = sleep_until(self.next_look) => {}
        }
        self.next_look = look_after(self.intervals.look);
        let lost = match self.store.read().await {
            Ok(found) => self.current.as_ref().is_none_or(|current| lacks(&found, current)),
            Err(error) if error.is_missing() => true,
            Err(error) => {
                tracing::debug!(reason = error.reason(), "cannot read the state Secret: {error}");
                false
            }
        };
        if lost {
            tracing::warn!("the state Secret lost its content; writing it again");
            self.current = None;
        }
        false
    }

    /// Waits; true if all ledgers were dropped. Changes made meanwhile are taken after the pause, in their newest form.
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

    /// Writes the differences; returns whether there were any.
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
            // If the Secret is missing, a recreated one has none of our keys.
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

    /// Returns the first changes to write and the current values: the start values and the desired changes, unless present already.
    async fn begin(&mut self, wanted: &StateChanges) -> Result<(StateChanges, StateChanges), ReportError> {
        self.store.permitted().await?;
        let found = self.store.read().await?;
        self.next_look = look_after(if found.is_empty() { self.intervals.look / SOONER } else { self.intervals.look });
        let mut first = self.start.changes(&found);
        first.extend(wanted.clone());
        // The request for an auth key too, so that its removal writes nothing if there is none.
        let keys = first.keys().map(String::as_str).chain([REISSUE_AUTHKEY]);
        let current = keys.map(|key| (key.to_owned(), found.get(key).cloned())).collect();
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

fn look_after(interval: Duration) -> Instant {
    Instant::now() + interval.mul_f64(1.0 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests;
