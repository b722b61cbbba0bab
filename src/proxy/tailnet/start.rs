//! Start and stop of a replica's tailnet: a supervised tailscaled with backups of its state, or a static netmap.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::api::names::CONFIG_SECRET_SUFFIX;
use crate::edge::kube::{Cluster, StateSecret};
use crate::model::base::backoff::Backoff;
use crate::model::base::netmap::NetMap;
use crate::model::settings::{Settings, StateOut, TailnetMode};
use crate::model::tailnet::advertise::Advertised;
use crate::model::tailnet::supervise::DaemonSettings;
use crate::runtime::tasks::Tasks;

use crate::proxy::config::follow::ObjectEvents;
use crate::proxy::k8s_proxy::{self, K8sProxyConfigs};
use crate::proxy::tailnet::auth_key_watch;
use crate::proxy::tailnet::config_values::{self, ConfigValues, ConfigValuesSender};
use crate::proxy::tailnet::daemon::state_backup::{self, StateCopies};
use crate::proxy::tailnet::daemon::{DaemonHandle, DaemonInputs, StateRequest, daemon};

#[derive(Debug)]
pub struct TailnetPart {
    /// tailscaled, if supervised.
    pub daemon: Option<DaemonHandle>,
    pub netmap: watch::Receiver<Option<Arc<NetMap>>>,
    /// What the reconciler's config Secret says about forwarding.
    pub values: ConfigValues,
    /// Backups of tailscaled's state, if its state is in a Secret.
    pub copies: Option<StateCopies>,
    /// The Pod's network ends with tailscaled ([`Settings::ends_with_its_network`]).
    ends_with_network: bool,
}

/// Supervision's inputs from other parts.
#[derive(Debug)]
pub struct TailnetInputs {
    /// Receives the writes to the state Secret.
    pub writes: mpsc::Sender<StateRequest>,
    /// Services that may be advertised, if the replica limits them.
    pub advertise: Option<watch::Receiver<Advertised>>,
    /// The Tailscale operator's config of an API server proxy, in place of the config Secret.
    pub k8s_proxy: Option<K8sProxyConfigs>,
}

impl TailnetPart {
    pub fn start(settings: &Settings, cluster: Option<&Cluster>, inputs: TailnetInputs, tasks: &mut Tasks) -> Self {
        let ends_with_network = settings.ends_with_its_network();
        let (sender, values) = config_values::channel(settings.config_dir.as_deref());
        match &settings.tailnet {
            TailnetMode::Tailscaled(supervised) => {
                let (daemon, copies) = supervise(settings, supervised, cluster, (inputs, sender), tasks);
                Self { netmap: daemon.netmap(), values, daemon: Some(daemon), copies, ends_with_network }
            }
            TailnetMode::Static(path) => {
                let (netmap, work) = super::follow_file(path);
                tasks.run_until_stop("netmap file", work);
                Self { daemon: None, netmap, values, copies: None, ends_with_network }
            }
        }
    }

    /// Writes changes that only a file of this Pod has to the Secret, e.g. that shields-up is off again: another Pod does not see the file.
    /// Takes at most `within`.
    pub async fn save_state(&self, within: Duration) {
        let from_file = self.daemon.as_ref().is_some_and(|daemon| daemon.state().borrow().from_file);
        let Some(copies) = self.copies.as_ref().filter(|_| from_file) else { return };
        match timeout(within, copies.write_secret()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(reason = error.reason(), "cannot save tailscaled's state; the next Pod starts with an older one: {error}");
            }
            Err(_) => tracing::warn!("cannot save tailscaled's state; the next Pod starts with an older one: no answer within {within:?}"),
        }
    }

    /// Withdraws the services that only tailscaled's config advertises, and the routes of a Connector; takes at most `within`.
    pub async fn stop_advertising(&self, within: Duration, connector: bool) {
        let Some(daemon) = &self.daemon else { return };
        match timeout(within, daemon.stop_advertising(connector)).await {
            Ok(Ok(true)) => tracing::info!("withdrew this replica's services and routes"),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => tracing::warn!(reason = error.reason(), "cannot withdraw this replica's services and routes: {error}"),
            Err(_) => tracing::warn!("tailscaled does not answer: cannot withdraw this replica's services and routes"),
        }
    }

    /// Stops tailscaled; without a grace period if the network ends with it, because an orderly stop costs a second: it removes its routes
    /// and rules one by one and uploads its log. Its state is written already, and its peers are not notified either way.
    pub async fn stop(&self, grace: Duration) {
        let Some(daemon) = &self.daemon else { return };
        daemon.stop(if self.ends_with_network { Duration::ZERO } else { grace }).await;
    }
}

fn supervise(
    settings: &Settings,
    supervised: &DaemonSettings,
    cluster: Option<&Cluster>,
    (TailnetInputs { writes, advertise, k8s_proxy }, values): (TailnetInputs, ConfigValuesSender),
    tasks: &mut Tasks,
) -> (DaemonHandle, Option<StateCopies>) {
    let events: Option<ObjectEvents> = match (k8s_proxy, cluster, &settings.pod.name) {
        (Some(configs), ..) => Some(k8s_proxy::daemon_configs(configs).boxed()),
        (None, Some(cluster), Some(pod)) => Some(cluster.watch_secret(&format!("{pod}{CONFIG_SECRET_SUFFIX}"), Backoff::DAEMON).boxed()),
        (None, ..) => None,
    };
    let (keys, deleted) = match events {
        Some(events) => {
            let (secret, work) = auth_key_watch::follow(events, supervised.pod_dir().map(Path::to_owned), values);
            tasks.run_until_stop("config Secret", work);
            (secret.key, Some(secret.deleted))
        }
        None => (watch::channel(None).1, None),
    };
    let (copy, backup) = watch::channel(state_backup::load(supervised));
    let copies = match (supervised.state_file(), cluster, &settings.state) {
        (Some(used), Some(cluster), StateOut::Secret(name)) => {
            let secret = StateSecret::new(cluster.clone(), name.clone());
            Some(StateCopies { secret, used, copy: supervised.state_copy(), backup: copy })
        }
        _ => None,
    };
    let reach = copies.as_ref().map(|copies| state_backup::reach(&copies.secret));
    // A process that is not there cannot end tailscaled when the Lease is lost.
    let outlives = settings.init.is_some() && settings.active_lease.is_none();
    // Names of peers and routes to them have consumers only where traffic is forwarded.
    let peers = settings.forwards();
    let inputs = DaemonInputs { keys, deleted, writes, backup, reach, advertise, outlives, peers };
    let (daemon, work) = daemon(supervised.clone(), inputs, tasks.stop());
    if let Some(copies) = copies.clone() {
        tasks.run_until_stop("state copies", copies.run(daemon.state()));
    }
    tasks.spawn("tailscaled", work);
    (daemon, copies)
}
