//! Keeps tailscaled's serve config and advertised services up to date: [`AdvertiseView`] decides after each change of an input.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::api::serve::ServeConfig;
use crate::model::base::netmap::NetMap;
use crate::model::config::IngressConfig;
use crate::model::config::source::ServeContent;
use crate::model::plan::world::VhostListeners;
use crate::model::tailnet::advertise::{
    AdvertiseMode, AdvertiseStatus, AdvertiseView, Advertised, AppliedRuleset, DaemonReport, PlacedSites, WithdrawalProgress,
};
use crate::model::tailnet::supervise::DaemonPhase;
use crate::proxy::forwarding::ruleset_sync::Programmed;
use crate::proxy::ingress::serve_config_writer::ServeStatus;
use crate::proxy::tailnet::daemon::{DaemonState, changed};
use crate::proxy::tailnet::peer_warmup::WarmupProgress;
use crate::runtime::timer::until;
use crate::runtime::watch_ext::put;

/// Maximum wait of a starting replica for its services to be advertised and approved: a missing approval or certificate must not block a
/// rollout.
pub const MAX_READINESS_DELAY: Duration = Duration::from_mins(1);

/// Inputs; `None` means not received yet.
#[derive(Debug)]
pub struct Inputs {
    /// State of tailscaled, services in its config, and services that it advertises.
    pub daemon: watch::Receiver<DaemonState>,
    pub netmap: watch::Receiver<Option<Arc<NetMap>>>,
    /// Serve config in force.
    pub served: watch::Receiver<Option<Arc<ServeContent>>>,
    /// L3 ingress config in force.
    pub ingress: watch::Receiver<Option<Arc<IngressConfig>>>,
    /// Ruleset in the kernel.
    pub programmed: watch::Receiver<Programmed>,
    /// Status of the virtual hosts' listeners.
    pub in_place: watch::Receiver<PlacedSites>,
    pub serving: watch::Receiver<ServeStatus>,
    /// Peer warm-up, if enabled: nothing is advertised before it.
    pub paths: Option<watch::Receiver<WarmupProgress>>,
    /// Progress of the withdrawal.
    pub withdrawal: watch::Receiver<WithdrawalProgress>,
}

#[derive(Debug)]
pub struct AdvertiseOutputs {
    pub wanted: watch::Sender<Option<Arc<ServeConfig>>>,
    pub advertised: watch::Sender<Advertised>,
    /// Listeners of connections that end in the kernel.
    pub listeners: watch::Sender<Arc<VhostListeners>>,
    pub status: watch::Sender<AdvertiseStatus>,
}

/// Decides after each change of an input; ends when a sender is dropped.
pub async fn run(mut inputs: Inputs, how: AdvertiseMode, outputs: AdvertiseOutputs) {
    let mut deadline: Option<(u64, Instant)> = None;
    loop {
        let (view, StartProgress { start, tried }) = inputs.view(how);
        if let Some(wanted) = view.serve_config() {
            put(&outputs.wanted, Some(Arc::new(wanted)));
        }
        put(&outputs.listeners, Arc::new(view.listeners()));
        let (facts, running) = (view.inputs(), view.daemon.running);
        if view.is_complete() && tried {
            put(&outputs.advertised, facts.advertised());
        }
        // Each start has one wait, from the first connection on: reconnects do not restart it.
        let begun = deadline.filter(|(of, _)| *of == start);
        deadline = begun.or_else(|| running.then(|| (start, Instant::now() + MAX_READINESS_DELAY)));
        let due = deadline.map(|(_, due)| due);
        let late = due.is_some_and(|due| Instant::now() >= due);
        let mut status = view.status(&facts);
        let done = running && view.is_complete() && (status.waiting.is_empty() || late);
        follow(&mut status, &outputs.status.borrow(), start, done, late);
        put(&outputs.status, status);
        tokio::select! {
            changed = inputs.changed() => if changed.is_err() { return },
            () = until(due.filter(|_| !late)) => {}
        }
    }
}

/// Carries over the settled start of tailscaled and logs changes since `before`.
fn follow(status: &mut AdvertiseStatus, before: &AdvertiseStatus, start: u64, done: bool, late: bool) {
    status.settled = Some(start).filter(|start| done || before.settled == Some(*start));
    if late && status.settled.is_some() && before.settled != status.settled && !status.waiting.is_empty() {
        tracing::warn!(waiting = ?status.waiting, "services are not advertised and approved; no longer waiting for them");
    }
    let unavailable = |service: &String| before.funnel_errors.as_ref().and_then(|funnel_errors| funnel_errors.get(service));
    for (service, why) in status.funnel_errors.iter().flatten().filter(|(service, why)| unavailable(service) != Some(*why)) {
        tracing::warn!(service, reason = why.reason(), "not reachable from the internet: {why}");
    }
}

struct StartProgress {
    /// Number of restarts of tailscaled.
    start: u64,
    /// Peer warm-up is finished or not required.
    tried: bool,
}

impl Inputs {
    fn view(&mut self, mode: AdvertiseMode) -> (AdvertiseView, StartProgress) {
        let daemon = self.daemon.borrow_and_update().clone();
        let running = daemon.phase == DaemonPhase::Running;
        let programmed = self.programmed.borrow_and_update().clone();
        let view = AdvertiseView {
            mode,
            withdrawal: *self.withdrawal.borrow_and_update(),
            daemon: DaemonReport { running, configured: daemon.configured, advertised: daemon.advertised, shields_up: daemon.shields_up },
            netmap: self.netmap.borrow_and_update().clone(),
            served: self.served.borrow_and_update().clone(),
            ingress: self.ingress.borrow_and_update().clone(),
            ruleset: AppliedRuleset {
                planned: programmed.planned.filter(|_| programmed.at.is_some()),
                damaged: programmed.damaged,
                fault: programmed.fault.map(|(fault, _)| fault.message),
            },
            sites: self.in_place.borrow_and_update().clone(),
            serving: self.serving.borrow_and_update().config.clone(),
        };
        let tried = self.paths.as_mut().is_none_or(|paths| paths.borrow_and_update().start.is_some());
        (view, StartProgress { start: daemon.restarts, tried })
    }

    async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        tokio::select! {
            changed = self.daemon.changed() => changed,
            changed = self.netmap.changed() => changed,
            Ok(()) = self.served.changed() => Ok(()),
            Ok(()) = self.ingress.changed() => Ok(()),
            Ok(()) = self.programmed.changed() => Ok(()),
            Ok(()) = self.in_place.changed() => Ok(()),
            Ok(()) = self.serving.changed() => Ok(()),
            Ok(()) = changed(&mut self.paths) => Ok(()),
            changed = self.withdrawal.changed() => changed,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn interrupted_connection_to_tailscaled_does_not_restart_the_wait_for_a_withheld_service() {
        let state = |phase, restarts| DaemonState {
            phase,
            restarts,
            configured: Some(Arc::new(["svc:withheld".to_owned()].into())),
            ..DaemonState::default()
        };
        let (daemon, daemon_seen) = watch::channel(state(DaemonPhase::Down, 0));
        let ((_netmap, netmap), (_withdrawal, withdrawal)) = (watch::channel(None), watch::channel(WithdrawalProgress::default()));
        let inputs = Inputs {
            daemon: daemon_seen,
            netmap,
            served: watch::channel(Some(Arc::default())).1,
            ingress: watch::channel(Some(Arc::default())).1,
            programmed: watch::channel(Programmed::default()).1,
            in_place: watch::channel(Arc::default()).1,
            serving: watch::channel(ServeStatus::default()).1,
            paths: None,
            withdrawal,
        };
        let (status_sender, status) = watch::channel(AdvertiseStatus::default());
        let (wanted, advertised) = (watch::channel(None).0, watch::channel(Advertised::default()).0);
        let outputs = AdvertiseOutputs { wanted, advertised, listeners: watch::Sender::default(), status: status_sender };
        let task = tokio::spawn(run(inputs, AdvertiseMode::default(), outputs));
        // Phase, restarts, seconds in it, and the settled start at their end.
        let steps = [
            (DaemonPhase::Spawned, 0, 90, None),
            (DaemonPhase::Running, 0, 30, None),
            (DaemonPhase::Degraded, 0, 20, None),
            (DaemonPhase::Running, 0, 9, None),
            (DaemonPhase::Running, 0, 2, Some(0)),
            (DaemonPhase::Degraded, 0, 600, Some(0)),
            (DaemonPhase::Running, 0, 1, Some(0)),
            (DaemonPhase::Down, 0, 1, Some(0)),
            (DaemonPhase::Spawned, 1, 1, None),
            (DaemonPhase::Running, 1, 30, None),
            (DaemonPhase::Degraded, 1, 40, None),
            (DaemonPhase::Running, 1, 1, Some(1)),
        ];
        for (step, (phase, restarts, seconds, settled)) in steps.into_iter().enumerate() {
            daemon.send_replace(state(phase, restarts));
            sleep(Duration::from_secs(seconds)).await;
            assert_eq!(status.borrow().settled, settled, "step {step}");
            assert!(status.borrow().waiting.contains_key("svc:withheld"));
        }
        task.abort();
    }
}
