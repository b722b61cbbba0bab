//! Start of the state Secret's writer, if a state Secret or state file is configured.

use k8s_openapi::jiff::Timestamp;
use tokio::sync::{mpsc, watch};

use crate::api::state;
use crate::edge::daemon;
use crate::edge::kube::Cluster;
use crate::model::base::backoff::Backoff;
use crate::model::settings::{Settings, StateOut, TailnetMode};
use crate::model::tailnet::state::Start;
use crate::model::tailnet::status::{PodAddresses, RESOLUTION_GRACE, ROOM};
use crate::model::tailnet::supervise::{DaemonPhase, DaemonSettings, Login, StateWrite, conffile};
use crate::runtime::tasks::Tasks;

use crate::proxy::forwarding::start::ForwardingPart;
use crate::proxy::ingress::start::IngressPart;
use crate::proxy::state_secret::writer::{self, Ledger, POLL_INTERVAL, Reporter, Store, WriteIntervals, reporter};
use crate::proxy::tailnet::daemon::{DaemonState, StateRequest};
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
            forwards: forwarding.enabled,
            grace: RESOLUTION_GRACE,
            // A file has no size limit.
            room: if matches!(settings.state, StateOut::Secret(_)) { ROOM } else { usize::MAX },
        };
        let published = reporter::Inputs {
            programmed: forwarding.programmed.clone(),
            netmap: tailnet.netmap.clone(),
            serving: ingress.map_or_else(unset, |ingress| ingress.serving.clone()),
            advertise_status: ingress.map_or_else(unset, |ingress| ingress.advertise_status.clone()),
            overlaps: forwarding.overlaps.clone(),
        };
        tasks.run_until_stop("reporter", reporter::run(published, about, ledger.clone()));
        if let Some(daemon) = &tailnet.daemon {
            tasks.run_until_stop("reissue", serve(requests, daemon.state(), ledger.clone()));
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
    let advertise_status = ingress.map(|ingress| ingress.advertise_status.clone());
    if advertise_status.is_none() && !settings.single.is_ingress() {
        return None;
    }
    let daemon = tailnet.daemon.as_ref().filter(|_| forwarding.warmup.is_some())?;
    let writer = RecentPeersWriter { api: daemon.api.clone(), ledger: ledger.clone(), predecessor: forwarding.predecessor.clone() };
    tasks.run_until_stop("recent-peers", writer.clone().keep(advertise_status));
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

/// Executes the writes requested by supervision, each until it succeeds. A node that logs in without one needs no other auth key: a request
/// for it is an earlier Pod's.
async fn serve(mut requests: mpsc::Receiver<StateRequest>, mut daemon: watch::Receiver<DaemonState>, ledger: Ledger) {
    let mut next = tokio::select! {
        request = requests.recv() => request,
        Ok(()) = async { daemon.wait_for(|daemon| daemon.phase == DaemonPhase::Running).await.map(drop) } => {
            ledger.remove(state::REISSUE_AUTHKEY);
            requests.recv().await
        }
    };
    while let Some(StateRequest { write, done }) = next {
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
        next = requests.recv().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use super::*;
    use crate::model::tailnet::supervise::Secret;

    const LONG: Duration = Duration::from_hours(1);

    /// Content of the state file, with a request for a key at its start, after a login; then after a request by this process.
    async fn after_login(existing: &str, phases: &[DaemonPhase]) -> (String, u64, String) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("state.json");
        std::fs::write(&path, existing).expect("written");
        let intervals = WriteIntervals { retry: Backoff::DAEMON, look: LONG };
        let (ledger, writer) = writer::new(Store::File(path.clone()), Start::default(), intervals);
        let (requests, received) = mpsc::channel(1);
        let daemon = watch::Sender::new(DaemonState::default());
        tokio::spawn(serve(received, daemon.subscribe(), ledger.clone()));
        tokio::spawn(writer.run());
        timeout(LONG, ledger.written()).await.expect("read");
        for phase in phases {
            daemon.send_modify(|daemon| daemon.phase = *phase);
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        let read = || std::fs::read_to_string(&path).expect("a file").replace(char::is_whitespace, "");
        let (first, count) = (read(), ledger.health().borrow().writes);
        let (done, confirmed) = oneshot::channel();
        let write = StateWrite::RequestReissue { failed: Secret::new("k2") };
        requests.send(StateRequest { write, done }).await.expect("received");
        timeout(LONG, confirmed).await.expect("in time").expect("written");
        daemon.send_modify(|daemon| daemon.phase = DaemonPhase::Running);
        tokio::time::sleep(Duration::from_secs(5)).await;
        (first, count, read())
    }

    #[tokio::test(start_paused = true)]
    async fn login_ends_the_request_for_a_key_of_an_earlier_pod() {
        use DaemonPhase::{NeedsLogin, Running, Starting};
        let again = r#"{"device_id":"n1","reissue_authkey":"k2"}"#.to_owned();
        let (open, done) = (r#"{"device_id":"n1","reissue_authkey":""}"#, r#"{"device_id":"n1"}"#);
        assert_eq!(after_login(open, &[NeedsLogin, Starting]).await, (open.to_owned(), 0, again.clone()));
        assert_eq!(after_login(open, &[Starting, Running]).await, (done.to_owned(), 1, again.clone()));
        assert_eq!(after_login(done, &[Starting, Running]).await, (done.to_owned(), 0, again), "no request, no write");
    }
}
