//! Start of the state Secret's writer, if a state Secret or state file is configured.

use k8s_openapi::jiff::Timestamp;
use tokio::sync::{mpsc, watch};

use crate::api::state;
use crate::edge::daemon;
use crate::edge::kube::Cluster;
use crate::model::base::backoff::Backoff;
use crate::model::settings::{Settings, StateOut, TailnetMode};
use crate::model::tailnet::state::Start;
use crate::model::tailnet::status::{GRACE, PodAddresses, ROOM};
use crate::model::tailnet::supervise::{DaemonSettings, Login, StateWrite, conffile};
use crate::runtime::tasks::Tasks;

use crate::proxy::forwarding::start::ForwardingPart;
use crate::proxy::ingress::start::IngressPart;
use crate::proxy::state_secret::writer::{self, Ledger, POLL_INTERVAL, Reporter, Store, WriteIntervals, reporter};
use crate::proxy::tailnet::daemon::StateRequest;
use crate::proxy::tailnet::recent_peers::{PredecessorPeers, RecentPeersWriter};
use crate::proxy::tailnet::start::TailnetPart;

/// The replica's state, for the other parts.
#[derive(Debug)]
pub struct StatePart {
    pub ledger: Ledger,
    /// Records recent peers; `None` without clients of the tailnet or warm-up.
    pub recent_peers: Option<RecentPeersWriter>,
}

#[derive(Debug, Clone, Copy)]
pub struct StateInputs<'a> {
    pub settings: &'a Settings,
    pub cluster: Option<&'a Cluster>,
    pub tailnet: &'a TailnetPart,
    pub forwarding: &'a ForwardingPart,
    pub ingress: Option<&'a IngressPart>,
}

impl StatePart {
    /// Starts the state writer and the tasks that set its keys; `None` if no state Secret or file is configured. `requests` are the writes
    /// requested by tailscaled's supervision.
    pub async fn start(inputs: StateInputs<'_>, requests: mpsc::Receiver<StateRequest>, tasks: &mut Tasks) -> Option<Self> {
        let StateInputs { settings, cluster, tailnet, forwarding, ingress } = inputs;
        let store = Store::of(settings, cluster)?;
        let (ledger, reporter) = writer::new(store, start(settings).await, WriteIntervals { retry: Backoff::DAEMON, look: POLL_INTERVAL });
        let about = reporter::ReportInputs {
            pod: PodAddresses::of(settings.pod.ips.iter().copied()),
            egress: settings.egress.is_some(),
            ingress: settings.ingress.is_some(),
            grace: GRACE,
            // A file has no size limit.
            room: if matches!(settings.state, StateOut::Secret(_)) { ROOM } else { usize::MAX },
        };
        let published = reporter::Inputs {
            programmed: forwarding.programmed.clone(),
            netmap: tailnet.netmap.clone(),
            serving: ingress.map_or_else(unset, |ingress| ingress.serving.clone()),
            standing: ingress.map_or_else(unset, |ingress| ingress.standing.clone()),
            overlaps: forwarding.overlaps.clone(),
        };
        tasks.run_until_stop("reporter", reporter::run(published, about, ledger.clone()));
        if tailnet.daemon.is_some() {
            tasks.run_until_stop("reissue", serve(requests, ledger.clone()));
        }
        let recent_peers = record_peers(inputs, &ledger, tasks);
        tasks.run_until_stop("report", after(forwarding.enabled.then(|| forwarding.predecessor.subscribe()), reporter));
        Some(Self { ledger, recent_peers })
    }
}

/// Records the start of the disco mute for the next Pod.
pub fn record_mute_start(ledger: &Ledger) {
    ledger.set(state::DISCO_MUTED_SINCE, Timestamp::now().to_string());
}

/// Starts the recorder of recent peers, if clients of the tailnet are served and peers are warmed up.
fn record_peers(inputs: StateInputs<'_>, ledger: &Ledger, tasks: &mut Tasks) -> Option<RecentPeersWriter> {
    let StateInputs { settings, tailnet, forwarding, ingress, .. } = inputs;
    let standing = ingress.map(|ingress| ingress.standing.clone());
    if standing.is_none() && !settings.single.is_ingress() {
        return None;
    }
    let daemon = tailnet.daemon.as_ref().filter(|_| forwarding.warmup.is_some())?;
    let writer = RecentPeersWriter { api: daemon.api.clone(), ledger: ledger.clone(), predecessor: forwarding.predecessor.clone() };
    tasks.run_until_stop("recent-peers", writer.clone().keep(standing));
    Some(writer)
}

/// Runs the writer; if a consumer needs the predecessor's values, only after these were read.
async fn after(predecessor: Option<watch::Receiver<Option<PredecessorPeers>>>, reporter: Reporter) {
    if let Some(mut current) = predecessor {
        // The sender is dropped only when the process exits.
        let _ = current.wait_for(Option::is_some).await;
    }
    reporter.run().await;
}

/// A receiver of the default value, which never changes.
fn unset<T: Default>() -> watch::Receiver<T> {
    watch::channel(T::default()).1
}

/// Values known when a container starts. If tailscaled's version cannot be read, its start reports the error.
async fn start(settings: &Settings) -> Start {
    let mut start = Start { pod_uid: settings.pod.uid.clone(), ..Start::default() };
    if let TailnetMode::Tailscaled(daemon) = &settings.tailnet {
        start.capver = daemon::capver(&daemon.tailscale).await.ok();
        start.auth_key = start.capver.and_then(|capver| mounted_key(daemon, capver)).unwrap_or_default();
    }
    start
}

fn mounted_key(settings: &DaemonSettings, capver: u32) -> Option<String> {
    let Login::ConfigDir(dir) = &settings.login else { return None };
    let (_, bytes) = daemon::config(dir, capver).ok()?;
    conffile::check(&bytes).ok()?.auth_key.map(|key| key.reveal().to_owned())
}

/// Executes the writes requested by supervision, each until it succeeds.
async fn serve(mut requests: mpsc::Receiver<StateRequest>, ledger: Ledger) {
    while let Some(StateRequest { write, done }) = requests.recv().await {
        match write {
            StateWrite::RequestReissue { failed } => ledger.set(state::REISSUE_AUTHKEY, failed.reveal()),
            StateWrite::ClearReissue { identity: true } => ledger.forget_identity(),
            StateWrite::ClearReissue { identity: false } => {
                for key in [state::REISSUE_AUTHKEY, state::DEVICE_ID, state::DEVICE_FQDN, state::DEVICE_IPS] {
                    ledger.remove(key);
                }
            }
            StateWrite::RemoveAuthKey => ledger.remove(state::AUTHKEY),
        }
        ledger.written().await;
        // The requester may have given up meanwhile; the write is done either way.
        let _ = done.send(());
    }
}
