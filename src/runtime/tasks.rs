//! Named tasks, all awaited, and the stop signal.
//!
//! A task that ends before the stop is a fault: the others are stopped and the process ends, with the task's name in its last log line. A
//! stop has a deadline; a second request aborts at once. This module knows nothing about the content of tasks.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::timeout;

pub use heartbeat::{HEARTBEAT_TIMEOUT, Heartbeats};

mod heartbeat;

/// Phase of a stop; only increases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopPhase {
    /// No stop requested.
    Running,
    /// Stop requested: finish in order.
    Stopping,
    /// Requested again: end at once.
    Aborting,
}

#[derive(Debug, Clone)]
pub struct Stopper(watch::Sender<StopPhase>);

#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<StopPhase>);

pub type BoxedError = Box<dyn std::error::Error + Send + Sync>;

/// Tasks that are stopped together.
#[derive(Debug)]
pub struct Tasks {
    set: JoinSet<Result<(), BoxedError>>,
    names: HashMap<Id, &'static str>,
    stopper: Stopper,
    stop: Stop,
    heartbeats: Heartbeats,
}

/// Unexpected end of the tasks.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
pub enum TaskError {
    /// A task returned before the stop.
    #[error("task {name} ended although nothing asked it to")]
    Ended { name: &'static str },
    #[error("task {name} failed: {source}")]
    Failed { name: &'static str, source: BoxedError },
    #[error("task {name} panicked: {message}")]
    Panicked { name: &'static str, message: String },
    /// Tasks did not finish within the grace period, or a second signal came first; they were aborted.
    #[error("cut off before they finished: {}", names.join(", "))]
    CutOff {
        /// Names of the tasks, in alphabetical order.
        names: Vec<&'static str>,
    },
}

impl TaskError {
    /// Metric label; closed set.
    pub fn reason(&self) -> &'static str {
        self.into()
    }
}

/// Creates a stop that is not requested yet.
pub fn stop() -> (Stopper, Stop) {
    let (sender, receiver) = watch::channel(StopPhase::Running);
    (Stopper(sender), Stop(receiver))
}

impl Stopper {
    /// Requests an orderly stop; no effect if requested already.
    pub fn stop(&self) {
        self.raise(StopPhase::Stopping);
    }

    pub fn abort(&self) {
        self.raise(StopPhase::Aborting);
    }

    /// Handles a signal: the first requests an orderly stop, the next an abort. Returns the new phase.
    pub fn escalate(&self) -> StopPhase {
        let next = if *self.0.borrow() == StopPhase::Running { StopPhase::Stopping } else { StopPhase::Aborting };
        self.raise(next);
        next
    }

    fn raise(&self, to: StopPhase) {
        self.0.send_if_modified(|phase| {
            let forward = to > *phase;
            *phase = to.max(*phase);
            forward
        });
    }
}

impl Stop {
    pub fn phase(&self) -> StopPhase {
        *self.0.borrow()
    }

    pub fn is_requested(&self) -> bool {
        self.phase() > StopPhase::Running
    }

    /// Waits until a stop is requested. Dropping all stoppers counts as a request.
    pub async fn requested(&self) {
        self.reached(StopPhase::Stopping).await;
    }

    /// Waits until an abort is requested, or all stoppers are dropped.
    pub async fn aborted(&self) {
        self.reached(StopPhase::Aborting).await;
    }

    async fn reached(&self, phase: StopPhase) {
        // An error means that all stoppers are dropped: there is nothing more to wait for.
        let _ = self.0.clone().wait_for(|now| *now >= phase).await;
    }
}

/// Converts SIGTERM and SIGINT to requests: the first to stop, the next to abort. The handlers are installed on return; the future runs
/// until the process ends. Fails if the handlers cannot be installed.
pub fn signals(stopper: Stopper) -> io::Result<impl Future<Output = ()> + Send> {
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        loop {
            let name = tokio::select! {
                _ = term.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            let phase = stopper.escalate();
            tracing::info!(signal = name, ?phase, "signal received");
        }
    })
}

impl Default for Tasks {
    fn default() -> Self {
        let (stopper, stop) = stop();
        Self { set: JoinSet::new(), names: HashMap::new(), stopper, stop, heartbeats: Heartbeats::default() }
    }
}

impl Tasks {
    /// Requests the stop of these tasks.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Observes the stop of these tasks.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    pub fn heartbeats(&self) -> Heartbeats {
        self.heartbeats.clone()
    }

    /// Starts a task that must run until the stop is requested.
    pub fn spawn<E: Into<BoxedError> + 'static>(&mut self, name: &'static str, work: impl Future<Output = Result<(), E>> + Send + 'static) {
        let work = self.heartbeats.watch(name, work);
        let handle = self.set.spawn(async move { work.await.map_err(Into::into) });
        self.names.insert(handle.id(), name);
    }

    /// Starts a task that never fails and must run until the stop is requested.
    pub fn run_forever(&mut self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        self.spawn(name, async move {
            work.await;
            Ok::<(), BoxedError>(())
        });
    }

    /// Starts a task that ends with the stop.
    pub fn run_until_stop(&mut self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop();
        self.run_forever(name, async move {
            tokio::select! {
                () = work => {}
                () = stop.requested() => {}
            }
        });
    }

    /// Waits for all tasks. The first that ends before the stop stops the others, which then have `grace` to finish. An error is logged
    /// here, as the last line of the process.
    pub async fn run(mut self, grace: Duration) -> Result<(), TaskError> {
        let early_end = self.first_early_end().await;
        if let Some(error) = &early_end {
            tracing::warn!(error = %error, "stopping everything");
        }
        self.stopper.stop();
        let ending = self.wind_down(grace).await;
        let outcome = early_end.map_or(ending, Err);
        if let Err(error) = &outcome {
            tracing::error!(reason = error.reason(), "{error}");
        }
        outcome
    }

    /// First task that ended before the stop; `None` once the stop is requested or no task is left.
    async fn first_early_end(&mut self) -> Option<TaskError> {
        let stop = self.stop.clone();
        let joined = tokio::select! {
            biased;
            () = stop.requested() => return None,
            joined = self.set.join_next_with_id() => joined?,
        };
        let name = self.name(&joined);
        let verdict = verdict(name, joined);
        // A task may request the stop and end at once; its end may be seen first.
        if stop.is_requested() { verdict.err() } else { Some(verdict.err().unwrap_or(TaskError::Ended { name })) }
    }

    /// Waits for the rest, then aborts it. Returns the first error.
    async fn wind_down(&mut self, grace: Duration) -> Result<(), TaskError> {
        let stop = self.stop.clone();
        let mut outcome = Ok(());
        let finished = timeout(grace, async {
            loop {
                let joined = tokio::select! {
                    biased;
                    joined = self.set.join_next_with_id() => joined,
                    () = stop.aborted() => return false,
                };
                let Some(joined) = joined else { return true };
                let name = self.name(&joined);
                outcome = std::mem::replace(&mut outcome, Ok(())).and_then(|()| verdict(name, joined));
            }
        })
        .await
        .unwrap_or(false);
        if finished {
            return outcome;
        }
        let mut names: Vec<_> = self.names.values().copied().collect();
        names.sort_unstable();
        self.set.shutdown().await;
        outcome.and(Err(TaskError::CutOff { names }))
    }

    fn name(&mut self, joined: &Joined) -> &'static str {
        let id = match joined {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        self.names.remove(&id).unwrap_or("unknown")
    }
}

type Joined = Result<(Id, Result<(), BoxedError>), JoinError>;

fn verdict(name: &'static str, joined: Joined) -> Result<(), TaskError> {
    match joined {
        Ok((_, Ok(()))) => Ok(()),
        Ok((_, Err(source))) => Err(TaskError::Failed { name, source }),
        Err(error) => Err(TaskError::Panicked { name, message: panic_message(error) }),
    }
}

/// Message of a panic, if it is text.
fn panic_message(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(payload) => payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "without a message".to_owned()),
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
