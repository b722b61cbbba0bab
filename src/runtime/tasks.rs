//! Named tasks, all awaited, and the signal that stops them.
//!
//! A task that ends before anybody asked it to is a fault: the others are stopped and the process ends, with the task's
//! name in the last log line. Stopping has a deadline, and asking twice means at once. Nothing here knows what a task does.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::timeout;

pub use heartbeat::{Heartbeats, STALLED_AFTER};

mod heartbeat;

/// How far a stop has come. It only ever goes forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopPhase {
    /// Nobody has asked for an end.
    Running,
    /// An end was asked for: finish in order.
    Stopping,
    /// Asked for again: end at once.
    Aborting,
}

/// Asks for an end.
#[derive(Debug, Clone)]
pub struct Stopper(watch::Sender<StopPhase>);

/// Learns that an end was asked for.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<StopPhase>);

/// Any error, as a task returns it.
pub type BoxedError = Box<dyn std::error::Error + Send + Sync>;

/// Tasks that live and end together.
#[derive(Debug)]
pub struct Tasks {
    set: JoinSet<Result<(), BoxedError>>,
    names: HashMap<Id, &'static str>,
    stopper: Stopper,
    stop: Stop,
    heartbeats: Heartbeats,
}

/// How the tasks came to an end that nobody asked for.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// A task returned although it was to run for ever.
    #[error("task {name} ended although nothing asked it to")]
    Ended { name: &'static str },
    #[error("task {name} failed: {source}")]
    Failed { name: &'static str, source: BoxedError },
    #[error("task {name} panicked: {message}")]
    Panicked { name: &'static str, message: String },
    /// Tasks did not finish within the grace, or a second signal came first; they were cut off.
    #[error("cut off before they finished: {}", names.join(", "))]
    CutOff {
        /// The tasks, in alphabetical order.
        names: Vec<&'static str>,
    },
}

impl TaskError {
    /// A closed set of words for metric labels.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Ended { .. } => "Ended",
            Self::Failed { .. } => "Failed",
            Self::Panicked { .. } => "Panicked",
            Self::CutOff { .. } => "CutOff",
        }
    }
}

/// A stop that nobody has asked for yet.
pub fn stop() -> (Stopper, Stop) {
    let (sender, receiver) = watch::channel(StopPhase::Running);
    (Stopper(sender), Stop(receiver))
}

impl Stopper {
    /// Asks for an end in order; nothing happens if it was asked for already.
    pub fn stop(&self) {
        self.raise(StopPhase::Stopping);
    }

    /// Asks for an end at once.
    pub fn abort(&self) {
        self.raise(StopPhase::Aborting);
    }

    /// What a signal does: the first asks for an end in order, the next for one at once. Returns what is now asked for.
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
    /// How far it has come.
    pub fn phase(&self) -> StopPhase {
        *self.0.borrow()
    }

    /// Whether an end was asked for.
    pub fn is_requested(&self) -> bool {
        self.phase() > StopPhase::Running
    }

    /// Waits until an end is asked for. If nobody is left who could ask, that counts as asking.
    pub async fn requested(&self) {
        self.reached(StopPhase::Stopping).await;
    }

    /// Waits until an end at once is asked for, or nobody is left who could ask.
    pub async fn aborted(&self) {
        self.reached(StopPhase::Aborting).await;
    }

    async fn reached(&self, phase: StopPhase) {
        // An error means that every stopper is gone: there is no more to wait for.
        let _ = self.0.clone().wait_for(|now| *now >= phase).await;
    }
}

/// Turns SIGTERM and SIGINT into requests: the first to stop, the next to abort. The handlers are in place on return;
/// the future runs until the process ends. Fails if the handlers cannot be installed.
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
        Self::new()
    }
}

impl Tasks {
    /// No tasks yet.
    pub fn new() -> Self {
        let (stopper, stop) = stop();
        Self { set: JoinSet::new(), names: HashMap::new(), stopper, stop, heartbeats: Heartbeats::default() }
    }

    /// What ends these tasks in order.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// What these tasks watch to learn that they are to end.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    pub fn heartbeats(&self) -> Heartbeats {
        self.heartbeats.clone()
    }

    /// Starts a task that is to run until the stop is requested.
    pub fn spawn<E: Into<BoxedError> + 'static>(&mut self, name: &'static str, work: impl Future<Output = Result<(), E>> + Send + 'static) {
        let work = self.heartbeats.watch(name, work);
        let handle = self.set.spawn(async move { work.await.map_err(Into::into) });
        self.names.insert(handle.id(), name);
    }

    /// Starts a task that never fails and is to run until the stop is requested.
    pub fn run_forever(&mut self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        self.spawn(name, async move {
            work.await;
            Ok::<(), BoxedError>(())
        });
    }

    /// Waits for all tasks. The first to end unasked stops the others, which then have `grace` to finish. The error, if
    /// there is one, is logged here, as the last line of the process.
    pub async fn run(mut self, grace: Duration) -> Result<(), TaskError> {
        let unasked = self.first_unasked().await;
        if let Some(error) = &unasked {
            tracing::warn!(error = %error, "stopping everything");
        }
        self.stopper.stop();
        let ending = self.wind_down(grace).await;
        let outcome = unasked.map_or(ending, Err);
        if let Err(error) = &outcome {
            tracing::error!(reason = error.reason(), "{error}");
        }
        outcome
    }

    /// The first task's end that nobody asked for; nothing once the stop is requested or no task is left.
    async fn first_unasked(&mut self) -> Option<TaskError> {
        let stop = self.stop.clone();
        let joined = tokio::select! {
            biased;
            () = stop.requested() => return None,
            joined = self.set.join_next_with_id() => joined?,
        };
        let name = self.name(&joined);
        let verdict = verdict(name, joined);
        // A task that asks for the stop and then ends can be seen here before the request.
        if stop.is_requested() { verdict.err() } else { Some(verdict.err().unwrap_or(TaskError::Ended { name })) }
    }

    /// Waits for the rest, then cuts it off. Returns the first error seen on the way.
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

/// What a panic said, where it said it in text.
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
