//! Starts what writes the state of this replica, if there is a place for it.

use tokio::sync::{mpsc, watch};

use crate::api::state;
use crate::edge::daemon;
use crate::edge::kube::{Cluster, StateSecret};
use crate::model::base::backoff::Backoff;
use crate::model::settings::{Settings, StateOut, TailnetMode};
use crate::model::tailnet::state::Start;
use crate::model::tailnet::status::{GRACE, PodAddresses, ROOM};
use crate::model::tailnet::supervise::{DaemonSettings, Login, StateWrite, conffile};
use crate::runtime::tasks::Tasks;

use crate::proxy::replica::Replica;
use crate::proxy::spawn;
use crate::proxy::state_secret::writer::{self, LOOK, Ledger, Reporter, Store, WriteIntervals, WriterHealth, reporter};
use crate::proxy::tailnet::daemon::StateRequest;
use crate::proxy::tailnet::recent_peers::{PredecessorPeers, RecentPeersWriter};

impl Replica {
    /// Starts the writer of the state and those who tell it what to write; nothing where there is no place for it.
    pub async fn start_report(&mut self, tasks: &mut Tasks) -> Option<watch::Receiver<WriterHealth>> {
        let store = store(&self.settings, self.cluster.as_ref())?;
        let (ledger, reporter) = writer::new(store, start(&self.settings).await, WriteIntervals { retry: Backoff::DAEMON, look: LOOK });
        let health = ledger.health();
        let about = reporter::ReportInputs {
            pod: PodAddresses::of(self.settings.pod.ips.iter().copied()),
            egress: self.settings.egress.is_some(),
            ingress: self.settings.ingress.is_some(),
            grace: GRACE,
            // A file has no bound.
            room: if matches!(self.settings.state, StateOut::Secret(_)) { ROOM } else { usize::MAX },
        };
        let inputs = reporter::Inputs {
            programmed: self.programmed.clone(),
            netmap: self.netmap.clone(),
            serving: self.publishing.as_ref().map_or_else(unheard, |publishing| publishing.serving.clone()),
            standing: self.publishing.as_ref().map_or_else(unheard, |publishing| publishing.standing.clone()),
        };
        spawn(tasks, "reporter", reporter::run(inputs, about, ledger.clone()));
        if let Some(requests) = self.requests.take() {
            spawn(tasks, "reissue", serve(requests, ledger.clone()));
        }
        if let (Some(daemon), Some(publishing), true) = (&self.daemon, &self.publishing, self.paths.is_some()) {
            let recent_peers =
                RecentPeersWriter { api: daemon.api().clone(), ledger: ledger.clone(), predecessor: self.predecessor.clone() };
            spawn(tasks, "recent-peers", recent_peers.clone().keep(publishing.standing.clone()));
            self.recent_peers = Some(recent_peers);
        }
        self.ledger = Some(ledger);
        spawn(tasks, "report", after(self.settings.forwards().then(|| self.predecessor.subscribe()), reporter));
        Some(health)
    }
}

/// Writes once what the predecessor left was read, where somebody reads it.
async fn after(predecessor: Option<watch::Receiver<Option<PredecessorPeers>>>, reporter: Reporter) {
    if let Some(mut current) = predecessor {
        // It ends with the process only.
        let _ = current.wait_for(Option::is_some).await;
    }
    reporter.run().await;
}

/// A cell in which nobody says anything.
fn unheard<T: Default>() -> watch::Receiver<T> {
    watch::channel(T::default()).1
}

/// Where the state is kept, if anywhere.
pub(in crate::proxy) fn store(settings: &Settings, cluster: Option<&Cluster>) -> Option<Store> {
    match &settings.state {
        StateOut::None => None,
        StateOut::File(path) => Some(Store::File(path.clone())),
        StateOut::Secret(name) => cluster.map(|cluster| Store::Secret(StateSecret::new(cluster.clone(), name.clone()))),
    }
}

/// What is known when a container starts. A daemon whose version is not to be had says so when it is started.
async fn start(settings: &Settings) -> Start {
    let mut start = Start { pod_uid: settings.pod.uid.clone(), ..Start::default() };
    if let TailnetMode::Tailscaled(daemon) = &settings.tailnet {
        start.capver = daemon::capver(&daemon.tailscale).await.ok();
        start.auth_key = start.capver.and_then(|capver| mounted_key(daemon, capver)).unwrap_or_default();
    }
    start
}

/// The auth key of the mounted config.
fn mounted_key(settings: &DaemonSettings, capver: u32) -> Option<String> {
    let Login::ConfigDir(dir) = &settings.login else { return None };
    let (_, bytes) = daemon::config(dir, capver).ok()?;
    conffile::check(&bytes).ok()?.auth_key.map(|key| key.reveal().to_owned())
}

/// Carries out the writes that supervision asks for, each until it is done.
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
        // Who asked may have given up meanwhile; what is written is written.
        let _ = done.send(());
    }
}
