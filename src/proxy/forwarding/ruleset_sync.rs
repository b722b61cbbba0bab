//! Ruleset sync: the only writer of the kernel's ruleset, one transaction at a time.
//!
//! Reads plans from a latest-wins watch: at most one write per [`SyncPace::min_interval`], always of the newest plan. After a failure the
//! next write is a complete one. Reads the kernel only to detect changes by other programs.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::model::base::backoff::Backoff;
use crate::model::firewall::ruleset::{Delta, Ruleset, diff};
use crate::model::plan::Planned;

#[cfg(test)]
mod tests;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncFault {
    /// Label value; closed set.
    pub reason: &'static str,
    pub message: String,
}

/// Operations of the firewall that the writer needs.
pub trait Kernel: Send {
    /// Rewrites the complete ruleset atomically, whatever its state.
    fn rewrite(&mut self, ruleset: &Ruleset) -> impl Future<Output = Result<(), SyncFault>> + Send;
    /// Applies the difference from `before` atomically.
    fn patch(&mut self, before: &Ruleset, delta: &Delta, after: &Ruleset) -> impl Future<Output = Result<(), SyncFault>> + Send;
    /// Reads back the written rules, if audits need a reference.
    fn note(&mut self) -> impl Future<Output = Result<(), SyncFault>> + Send;
    /// Whether the rules differ from the written ones.
    fn drifted(&mut self, wanted: &Ruleset) -> impl Future<Output = Result<bool, SyncFault>> + Send;
    /// Waits until another program may have changed our rules.
    fn disturbed(&mut self) -> impl Future<Output = ()> + Send;
    /// Notifies the conntrack cleanup of an applied ruleset; must not block.
    fn applied(&mut self, ruleset: &Ruleset, planned: &Planned);
}

#[derive(Debug, Clone, Copy)]
pub struct SyncPace {
    pub min_interval: Duration,
    pub audit: Duration,
    /// Delay of an audit after a foreign change.
    pub settle: Duration,
    pub retry: Backoff,
}

/// State of the kernel's ruleset, as far as known.
#[derive(Debug, Clone, Default)]
pub struct Programmed {
    /// Plan in force; `None` before the first write.
    pub planned: Option<Arc<Planned>>,
    /// Whether the newest plan is in force and unchanged.
    pub current: bool,
    /// Whether another program has changed the rules and they are not repaired yet.
    pub damaged: bool,
    /// Whether forwarding has ended after the drain.
    pub closed: bool,
    /// Time of the last successful write.
    pub at: Option<Instant>,
    /// Last error and its time; cleared by the next success.
    pub fault: Option<(SyncFault, Instant)>,
    pub writes: u64,
    pub keys: u64,
    /// Duration of the last write.
    pub took: Duration,
    pub failures: u64,
    /// Number of repaired foreign changes.
    pub repairs: u64,
}

#[derive(Debug, Clone)]
pub struct Inputs {
    /// Newest plan; `None` before the first complete inputs.
    pub planned: watch::Receiver<Option<Arc<Planned>>>,
    /// True after the drain: forwarding ends.
    pub closing: watch::Receiver<bool>,
}

/// Keeps the kernel equal to the newest plan; ends when the senders are dropped.
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
        // One audit for a burst of foreign changes, after it or after a while.
        if disturbed {
            audit_at = audit_at.min(Instant::now() + pace.settle);
        }
        if Instant::now() >= audit_at {
            writer.audit().await;
            audit_at = Instant::now() + pace.audit;
        }
    }
}

enum SyncOutcome {
    /// The newest plan is in force already, or none exists.
    Unchanged,
    Written,
    /// The write failed; retry at this time.
    Failed(Instant),
}

struct Writer<K> {
    kernel: K,
    inputs: Inputs,
    state: watch::Sender<Programmed>,
    retry: Backoff,
    /// Last successfully written ruleset.
    applied: Option<Ruleset>,
    /// Whether the kernel still has `applied`.
    trusted: bool,
}

impl<K: Kernel> Writer<K> {
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
        // Dependents do not wait for this.
        match self.kernel.note().await {
            Ok(()) => SyncOutcome::Written,
            Err(fault) => self.failed(fault),
        }
    }

    /// The ruleset is unchanged; flows to targets that left the tailnet may have to end.
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

    /// Detects foreign changes; the next sync then rewrites the rules.
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

/// Desired ruleset: the plan's, or after the drain one that forwards nothing.
fn wanted(ruleset: &Ruleset, closing: bool) -> Ruleset {
    if closing {
        let (source, reserved) = (ruleset.source.clone(), ruleset.reserved.clone());
        Ruleset { source, reserved, ..Ruleset::empty(ruleset.interface.clone()) }
    } else {
        ruleset.clone()
    }
}
