//! Keeps tailscaled's serve config and advertised services up to date: [`AdvertiseView`] decides after each change of an input.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::api::serve::ServeConfig;
use crate::model::base::netmap::NetMap;
use crate::model::config::IngressConfig;
use crate::model::config::source::ServeContent;
use crate::model::tailnet::advertise::{
    AdvertiseMode, AdvertiseStatus, AdvertiseView, Advertised, AppliedRuleset, DaemonReport, SiteStatus, WithdrawalProgress,
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
    pub in_place: watch::Receiver<Arc<BTreeMap<String, SiteStatus>>>,
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
    pub status: watch::Sender<AdvertiseStatus>,
}

/// Decides after each change of an input; ends when a sender is dropped.
pub async fn run(mut inputs: Inputs, how: AdvertiseMode, outputs: AdvertiseOutputs) {
    let mut deadline = None;
    loop {
        let (view, StartProgress { start, tried }) = inputs.view(how);
        if let Some(wanted) = view.serve_config() {
            put(&outputs.wanted, Some(Arc::new(wanted)));
        }
        let facts = view.inputs();
        if view.is_complete() && tried {
            put(&outputs.advertised, facts.advertised());
        }
        if start.is_none() {
            deadline = None;
        }
        let due = start.map(|_| *deadline.get_or_insert_with(|| Instant::now() + MAX_READINESS_DELAY));
        let late = due.is_some_and(|due| Instant::now() >= due);
        let mut status = view.status(&facts);
        let done = view.is_complete() && (status.waiting.is_empty() || late);
        follow(&mut status, &outputs.status.borrow(), start, done, late);
        put(&outputs.status, status);
        tokio::select! {
            changed = inputs.changed() => if changed.is_err() { return },
            () = until(due.filter(|_| !late)) => {}
        }
    }
}

/// Carries over the settled start of tailscaled and logs changes since `before`.
fn follow(status: &mut AdvertiseStatus, before: &AdvertiseStatus, start: Option<u64>, done: bool, late: bool) {
    status.settled = start.filter(|start| done || before.settled == Some(*start));
    if late && status.settled.is_some() && before.settled != status.settled && !status.waiting.is_empty() {
        tracing::warn!(waiting = ?status.waiting, "services are not advertised and approved; no longer waiting for them");
    }
    let unavailable = |service: &String| before.funnel_errors.as_ref().and_then(|funnel_errors| funnel_errors.get(service));
    for (service, why) in status.funnel_errors.iter().flatten().filter(|(service, why)| unavailable(service) != Some(*why)) {
        tracing::warn!(service, reason = why.reason(), "not reachable from the internet: {why}");
    }
}

struct StartProgress {
    /// Number of restarts of tailscaled; `None` while disconnected.
    start: Option<u64>,
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
        (view, StartProgress { start: running.then_some(daemon.restarts), tried })
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
