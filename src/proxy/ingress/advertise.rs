//! Keeps what tailscaled serves and advertises equal to what is in place: [`AdvertiseView`] decides, whenever one of its inputs changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

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
use crate::runtime::watch_ext::put;

/// How long a replica that starts waits for what it should serve to be advertised and approved. A service that nobody approves,
/// or whose certificate does not come, is not to keep a rollout waiting for ever.
pub const LIMIT: Duration = Duration::from_mins(1);

/// What it goes by; nothing in a cell means not heard yet.
#[derive(Debug)]
pub struct Inputs {
    /// How tailscaled fares, what its config names and what it advertises.
    pub daemon: watch::Receiver<DaemonState>,
    pub netmap: watch::Receiver<Option<Arc<NetMap>>>,
    /// The serve config in force.
    pub served: watch::Receiver<Option<Arc<ServeContent>>>,
    /// The L3 ingress config in force.
    pub ingress: watch::Receiver<Option<Arc<IngressConfig>>>,
    /// What the kernel holds.
    pub programmed: watch::Receiver<Programmed>,
    /// How the listeners of the sites stand.
    pub in_place: watch::Receiver<Arc<BTreeMap<String, SiteStatus>>>,
    pub serving: watch::Receiver<ServeStatus>,
    /// The ways to peers, if they are tried: before that nothing is advertised.
    pub paths: Option<watch::Receiver<WarmupProgress>>,
    /// How far the replica is with leaving.
    pub leaving: watch::Receiver<WithdrawalProgress>,
}

/// What it tells.
#[derive(Debug)]
pub struct AdvertiseOutputs {
    pub wanted: watch::Sender<Option<Arc<ServeConfig>>>,
    pub advertised: watch::Sender<Advertised>,
    pub standing: watch::Sender<AdvertiseStatus>,
}

/// Decides anew whenever an input changes; ends when the sender of one is gone.
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
        let due = start.map(|_| *deadline.get_or_insert_with(|| Instant::now() + LIMIT));
        let late = due.is_some_and(|due| Instant::now() >= due);
        let mut standing = view.status(&facts);
        let done = view.is_complete() && (standing.waiting.is_empty() || late);
        follow(&mut standing, &outputs.standing.borrow(), start, done, late);
        put(&outputs.standing, standing);
        let wake = due.filter(|_| !late);
        tokio::select! {
            changed = inputs.changed() => if changed.is_err() { return },
            () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
        }
    }
}

/// Takes over for which start of tailscaled all was settled, and logs what is new since `before`.
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

/// How far this start of tailscaled is.
struct StartProgress {
    /// How often tailscaled was started again; nothing while it is not connected.
    start: Option<u64>,
    /// The ways to peers were tried once, or need not be.
    tried: bool,
}

impl Inputs {
    fn view(&mut self, mode: AdvertiseMode) -> (AdvertiseView, StartProgress) {
        let daemon = self.daemon.borrow_and_update().clone();
        let running = daemon.phase == DaemonPhase::Running;
        let programmed = self.programmed.borrow_and_update().clone();
        let view = AdvertiseView {
            mode,
            leaving: *self.leaving.borrow_and_update(),
            daemon: DaemonReport { running, configured: daemon.configured, advertised: daemon.advertised, shut: daemon.shut },
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
            changed = self.leaving.changed() => changed,
        }
    }
}

/// Lets nobody new in (`shut`), or somebody again, and waits until tailscaled says so, at most for `within`. Whether it does.
pub async fn shut(
    leaving: &watch::Sender<WithdrawalProgress>,
    standing: &mut watch::Receiver<AdvertiseStatus>,
    shut: bool,
    within: Duration,
) -> bool {
    leaving.send_modify(|leaving| leaving.shut = shut);
    timeout(within, standing.wait_for(|standing| standing.shut == shut)).await.is_ok()
}

/// Takes everything back that is advertised, and waits until the control server leads nothing here any more, at most for `within`.
/// Whether that is so.
pub async fn withdraw(
    leaving: &watch::Sender<WithdrawalProgress>,
    standing: &mut watch::Receiver<AdvertiseStatus>,
    within: Duration,
) -> bool {
    let before = standing.borrow().leading.len();
    leaving.send_modify(|leaving| leaving.withdrawn = true);
    let began = Instant::now();
    let done = timeout(within, standing.wait_for(|standing| standing.leading.is_empty())).await.is_ok();
    if !done {
        let services = &standing.borrow().leading;
        tracing::warn!(?services, "the control plane may still route services to this replica: it has not confirmed their withdrawal");
    } else if before > 0 {
        tracing::info!(services = before, took = ?began.elapsed(), "no service is routed to this replica any more");
    }
    done
}
