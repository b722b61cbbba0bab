//! The only writer of the kernel: keeps the firewall equal to the newest plan, one transaction at a time.
//!
//! It is fed by a latest-wins watch: however fast plans come, it takes the newest one when it is free, at most one per
//! [`SyncPace::min_interval`]. After a failure nothing is assumed about the kernel and the next write is a whole one. It
//! never reads the kernel to decide what to write, except to find out that somebody else has changed our rules.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::model::base::backoff::Backoff;
use crate::model::firewall::ruleset::{Delta, Ruleset, diff};
use crate::model::plan::Planned;

#[cfg(test)]
mod tests;

/// Why the kernel did not take the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncFault {
    /// One of a closed set of words; a metric label.
    pub reason: &'static str,
    pub message: String,
}

/// The firewall of this network namespace, as the writer needs it.
pub trait Kernel: Send {
    /// Replaces everything of ours, whatever is there; nothing that both hold is missing at any moment.
    fn rewrite(&mut self, ruleset: &Ruleset) -> impl Future<Output = Result<(), SyncFault>> + Send;
    /// Changes what differs, given that `before` is there; nothing that both hold is missing at any moment.
    fn patch(&mut self, before: &Ruleset, delta: &Delta, after: &Ruleset) -> impl Future<Output = Result<(), SyncFault>> + Send;
    /// Looks at what has just been written, if a later look has to be compared with it.
    fn note(&mut self) -> impl Future<Output = Result<(), SyncFault>> + Send;
    /// Whether what is there is no longer what was written.
    fn drifted(&mut self, wanted: &Ruleset) -> impl Future<Output = Result<bool, SyncFault>> + Send;
    /// Waits until somebody else may have changed our rules.
    fn disturbed(&mut self) -> impl Future<Output = ()> + Send;
    /// Told what is in force, for those who end flows whose way has changed; must not wait for them.
    fn applied(&mut self, ruleset: &Ruleset, planned: &Planned);
}

/// How often the kernel is written and looked at.
#[derive(Debug, Clone, Copy)]
pub struct SyncPace {
    /// The least time between two writes.
    pub min_interval: Duration,
    /// The time between two audits when nobody else writes.
    pub audit: Duration,
    /// The time from somebody else's change to the audit that it causes.
    pub settle: Duration,
    /// When to try again after a failure.
    pub retry: Backoff,
}

/// What the kernel holds, as far as is known.
#[derive(Debug, Clone, Default)]
pub struct Programmed {
    /// The plan in force; nothing before the first write.
    pub planned: Option<Arc<Planned>>,
    /// Whether the newest plan is in force and nobody has touched it.
    pub current: bool,
    /// Whether somebody else has changed what was written, and it has not been written again yet.
    pub damaged: bool,
    /// Whether nothing is forwarded any more, as the replica has drained.
    pub closed: bool,
    /// When the plan in force was written.
    pub at: Option<Instant>,
    /// The last failure, and when; cleared by the next success.
    pub fault: Option<(SyncFault, Instant)>,
    /// Writes that the kernel took.
    pub writes: u64,
    pub keys: u64,
    /// How long the last write took.
    pub took: Duration,
    /// Writes that the kernel refused.
    pub failures: u64,
    /// Times that somebody else's change was repaired.
    pub repairs: u64,
}

/// The writer's inputs.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// The newest plan; nothing before the first complete snapshot of the world.
    pub planned: watch::Receiver<Option<Arc<Planned>>>,
    /// Turns true when the replica has drained: then nothing is to be forwarded any more.
    pub closing: watch::Receiver<bool>,
}

/// Keeps the kernel equal to the newest plan; ends when the inputs' senders are gone.
pub async fn run<K: Kernel>(kernel: K, inputs: Inputs, state: watch::Sender<Programmed>, pace: SyncPace) {
    let mut writer = Writer { kernel, inputs, state, retry: pace.retry, applied: None, trusted: false };
    let mut audit_at = Instant::now() + pace.audit;
    loop {
        let (rest, retry_at) = match writer.sync().await {
            SyncOutcome::Unchanged => (Duration::ZERO, None),
            SyncOutcome::Written => (pace.min_interval, None),
            SyncOutcome::Failed(again) => (pace.min_interval, Some(again)),
        };
        sleep_until(Instant::now() + rest).await;
        let disturbed = tokio::select! {
            changed = writer.inputs.planned.changed() => if changed.is_err() { return } else { false },
            changed = writer.inputs.closing.changed() => if changed.is_err() { return } else { false },
            () = writer.kernel.disturbed() => true,
            () = sleep_until(retry_at.unwrap_or(audit_at).min(audit_at)) => false,
        };
        // A burst of foreign changes is looked at once, when it is over or has gone on for a while.
        if disturbed {
            audit_at = audit_at.min(Instant::now() + pace.settle);
        }
        if Instant::now() >= audit_at {
            writer.audit().await;
            audit_at = Instant::now() + pace.audit;
        }
    }
}

/// How a sync ended.
enum SyncOutcome {
    /// The kernel holds the newest plan already, or there is none.
    Unchanged,
    /// The kernel took the newest plan.
    Written,
    /// It did not; try again then.
    Failed(Instant),
}

struct Writer<K> {
    kernel: K,
    inputs: Inputs,
    state: watch::Sender<Programmed>,
    retry: Backoff,
    /// What was last written with success.
    applied: Option<Ruleset>,
    /// Whether `applied` is still what the kernel holds.
    trusted: bool,
}

impl<K: Kernel> Writer<K> {
    /// Brings the kernel to the newest plan.
    async fn sync(&mut self) -> SyncOutcome {
        let Some(planned) = self.inputs.planned.borrow_and_update().clone() else { return SyncOutcome::Unchanged };
        let closing = *self.inputs.closing.borrow_and_update();
        let wanted = wanted(&planned.ruleset, closing);
        let before = self.applied.clone().unwrap_or_else(|| Ruleset::empty(wanted.interface.clone()));
        let delta = diff(&before, &wanted);
        if self.trusted && delta.is_empty() {
            self.unchanged(planned, &wanted, closing);
            return SyncOutcome::Unchanged;
        }
        let started = Instant::now();
        let written = if self.trusted && !delta.rewrite {
            self.kernel.patch(&before, &delta, &wanted).await
        } else {
            self.kernel.rewrite(&wanted).await
        };
        if let Err(fault) = written {
            return self.failed(fault);
        }
        self.kernel.applied(&wanted, &planned);
        (self.applied, self.trusted) = (Some(wanted), true);
        self.retry.reset();
        self.publish(|state| {
            (state.planned, state.current, state.at, state.fault) = (Some(planned), true, Some(Instant::now()), None);
            (state.closed, state.damaged) = (closing, false);
            state.writes += 1;
            state.keys += delta.keys() as u64;
            state.took = started.elapsed();
        });
        // Nobody who goes by what is in force waits for this.
        match self.kernel.note().await {
            Ok(()) => SyncOutcome::Written,
            Err(fault) => self.failed(fault),
        }
    }

    /// The rules are what they should be. Flows may have to end all the same: of a target that has left the tailnet since.
    fn unchanged(&mut self, planned: Arc<Planned>, wanted: &Ruleset, closing: bool) {
        let last = self.state.borrow().planned.clone();
        if last.is_none_or(|last| last.world.netmap != planned.world.netmap) {
            self.kernel.applied(wanted, &planned);
        }
        self.publish(|state| (state.planned, state.current, state.closed) = (Some(planned), true, closing));
    }

    fn failed(&mut self, fault: SyncFault) -> SyncOutcome {
        tracing::error!(reason = fault.reason, "cannot apply the ruleset; the previous one stays in force: {}", fault.message);
        self.trusted = false;
        self.publish(|state| {
            (state.current, state.fault) = (false, Some((fault, Instant::now())));
            state.failures += 1;
        });
        SyncOutcome::Failed(Instant::now() + self.retry.next(fastrand::f64()))
    }

    /// Looks whether somebody else has changed our rules; the sync that follows then rewrites them.
    async fn audit(&mut self) {
        let Some(applied) = self.applied.clone().filter(|_| self.trusted) else { return };
        match self.kernel.drifted(&applied).await {
            Ok(false) => {}
            Ok(true) => {
                tracing::warn!("another program changed our ruleset; restoring it");
                self.trusted = false;
                self.publish(|state| {
                    state.damaged = true;
                    state.repairs += 1;
                });
            }
            Err(fault) => tracing::warn!(reason = fault.reason, "cannot audit the rules: {}", fault.message),
        }
    }

    fn publish(&self, change: impl FnOnce(&mut Programmed)) {
        self.state.send_modify(change);
    }
}

/// What the kernel is to hold: the plan's ruleset, or when all flows have ended one that forwards nothing.
fn wanted(ruleset: &Ruleset, closing: bool) -> Ruleset {
    if closing {
        let (source, reserved) = (ruleset.source.clone(), ruleset.reserved.clone());
        Ruleset { source, reserved, ..Ruleset::empty(ruleset.interface.clone()) }
    } else {
        ruleset.clone()
    }
}
