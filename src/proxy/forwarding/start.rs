//! Start of forwarding: names, planner, ruleset sync, flow cleanup, and the peer warm-up of a supervised tailscaled.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;

use crate::edge::dns::{self, RESOLV_CONF};
use crate::edge::kube::Cluster;
use crate::edge::link::{self, LinkState, Links};
use crate::model::base::netmap::RouteOverlaps;
use crate::model::config::IngressConfig;
use crate::model::plan::Planned;
use crate::model::plan::world::{Single, VhostListeners, World};
use crate::model::settings::{Settings, TailnetMode};
use crate::model::tailnet::resolve::IN_FLIGHT;
use crate::model::tailnet::supervise::settings::MAGIC_DNS;
use crate::runtime::tasks::Tasks;

use crate::proxy::PACE;
use crate::proxy::config::inputs::ConfigPart;
use crate::proxy::forwarding::backend::LiveKernel;
use crate::proxy::forwarding::firewall::ActiveFirewall;
use crate::proxy::forwarding::flow_cleanup::{FlowCleaner, TerminatedFlows};
use crate::proxy::forwarding::routing::{self, OverlapInputs, TunnelInputs};
use crate::proxy::forwarding::ruleset_sync::{self, Programmed};
use crate::proxy::forwarding::{planner, resolve};
use crate::proxy::state_secret::writer::Store;
use crate::proxy::tailnet::daemon::DaemonHandle;
use crate::proxy::tailnet::daemon::state_backup::StateCopies;
use crate::proxy::tailnet::peer_warmup::{self, WarmupProgress};
use crate::proxy::tailnet::recent_peers::{self, PredecessorPeers};
use crate::proxy::tailnet::start::TailnetPart;

#[derive(Debug)]
pub struct ForwardingPart {
    /// Whether the kernel forwards; otherwise plans are only computed.
    pub enabled: bool,
    /// DNS answers and their state.
    pub names: watch::Receiver<Arc<resolve::ResolveReport>>,
    pub planned: watch::Receiver<Option<Arc<Planned>>>,
    /// Ruleset in the kernel.
    pub programmed: watch::Receiver<Programmed>,
    pub firewall: watch::Receiver<Option<ActiveFirewall>>,
    pub ended: watch::Receiver<TerminatedFlows>,
    /// Tailnet interface, if forwarding is enabled and the interface can be watched.
    pub link: Option<watch::Receiver<LinkState>>,
    /// Peer warm-up, if enabled and a tailscaled is supervised.
    pub warmup: Option<watch::Receiver<WarmupProgress>>,
    /// Recent peers of the previous Pod and of this one.
    pub predecessor: watch::Sender<Option<PredecessorPeers>>,
    /// Commands for sysctls that are off.
    pub switches: watch::Receiver<Vec<String>>,
    /// Accepted routes that cover addresses of the cluster; `None` before the first netmap.
    pub overlaps: watch::Receiver<Option<RouteOverlaps>>,
    /// Addresses that the HTTP front end connects to.
    pub backends: watch::Sender<Arc<BTreeSet<IpAddr>>>,
    /// Listeners of the HTTP front end for connections that end in the kernel.
    pub listeners: watch::Sender<Arc<VhostListeners>>,
    /// True when forwarding ends.
    pub(super) closing: watch::Sender<bool>,
}

impl ForwardingPart {
    pub async fn start(
        settings: &Settings,
        cluster: Option<&Cluster>,
        configs: &ConfigPart,
        tailnet: &TailnetPart,
        tasks: &mut Tasks,
    ) -> Self {
        let (predecessor, backends, listeners) = (watch::Sender::new(None), watch::Sender::default(), watch::Sender::default());
        let (names, report) = start_names(settings, configs.ingress.services.clone(), tasks);
        let (planned_in, planned) = watch::channel(None);
        let inputs = planner_inputs(configs, tailnet, names, listeners.subscribe());
        let base = base(settings).await;
        let pod_ips = base.pod_ips.clone();
        tasks.run_until_stop("planner", planner::run(base, inputs, planned_in));
        let (closing, closing_seen) = watch::channel(false);
        let (applied, in_force) = mpsc::unbounded_channel();
        let (cleaner, ended) = FlowCleaner::new(in_force);
        let (mut live, firewall) = LiveKernel::new(settings, applied);
        let (programmed_in, programmed) = watch::channel(Programmed::default());
        let (off, switches) = watch::channel(Vec::new());
        let (overlaps_in, overlaps) = watch::channel(None);
        let enabled = settings.forwards();
        let (mut link, mut warmup) = (None, None);
        if enabled {
            link = start_link(settings, tasks).await;
            // Without API server only the files of an earlier container show a restart.
            let restarted = tailnet.copies.as_ref().is_some_and(StateCopies::are_there);
            let (store, pod) = (Store::of(settings, cluster), settings.pod.uid.clone());
            tasks.run_until_stop("predecessor", recent_peers::load(store, pod, restarted, predecessor.clone()));
            warmup = tailnet.daemon.as_ref().map(|daemon| start_warmup(daemon, &planned, predecessor.subscribe(), tasks));
            if let Some(link) = link.clone() {
                let supervised = tailnet.daemon.as_ref().map(DaemonHandle::state).zip(warmup.clone());
                let inputs = TunnelInputs { link, supervised };
                tasks.run_until_stop("tunnel route", routing::show_tunnel(settings.interface.clone(), inputs));
            }
            let inputs = ruleset_sync::Inputs { planned: planned.clone(), closing: closing_seen };
            let drops_new_connections = settings.single.is_ingress();
            let work = async move {
                live.prepare(drops_new_connections).await;
                ruleset_sync::run(live, inputs, programmed_in, PACE).await;
            };
            tasks.run_until_stop("ruleset sync", work);
            tasks.run_until_stop("flow-cleanup", cleaner.run());
            tasks.run_until_stop("forwarding", super::run(off));
            let cluster = cluster_addresses(settings, pod_ips).await;
            let inputs = OverlapInputs { netmap: tailnet.netmap.clone(), cluster, backends: backends.subscribe() };
            tasks.run_until_stop("routing", routing::run(settings.interface.clone(), inputs, overlaps_in));
        } else {
            tasks.run_until_stop("ruleset sync", keep_open((live, programmed_in, cleaner, off, overlaps_in)));
        }
        Self {
            enabled,
            names: report,
            planned,
            programmed,
            firewall,
            ended,
            link,
            warmup,
            predecessor,
            switches,
            overlaps,
            backends,
            listeners,
            closing,
        }
    }
}

fn planner_inputs(
    configs: &ConfigPart,
    tailnet: &TailnetPart,
    names: watch::Receiver<resolve::ResolvedNames>,
    listeners: watch::Receiver<Arc<VhostListeners>>,
) -> planner::Inputs {
    planner::Inputs {
        egress: configs.egress.services.clone(),
        ingress: configs.ingress.services.clone(),
        listeners,
        netmap: tailnet.netmap.clone(),
        names,
        values: tailnet.values.clone(),
    }
}

/// Holds the senders where nothing is written to the kernel: receivers treat a closed channel as the end of the replica.
async fn keep_open(senders: impl Send) {
    std::future::pending::<()>().await;
    drop(senders);
}

fn start_warmup(
    daemon: &DaemonHandle,
    planned: &watch::Receiver<Option<Arc<Planned>>>,
    predecessor: watch::Receiver<Option<PredecessorPeers>>,
    tasks: &mut Tasks,
) -> watch::Receiver<WarmupProgress> {
    let (tried, state) = watch::channel(WarmupProgress::default());
    let work = peer_warmup::run(peer_warmup::asking(&daemon.api), daemon.state(), planned.clone(), predecessor, tried);
    tasks.run_until_stop("peer warm-up", work);
    state
}

async fn start_link(settings: &Settings, tasks: &mut Tasks) -> Option<watch::Receiver<LinkState>> {
    match Links::watch(settings.interface.clone()).await {
        Ok((links, state)) => {
            tasks.run_until_stop("links", links.run());
            Some(state)
        }
        Err(error) => {
            tracing::warn!(reason = error.reason(), "cannot read the state of interface {}: {error}", settings.interface);
            None
        }
    }
}

fn start_names(
    settings: &Settings,
    ingress: watch::Receiver<Option<Arc<IngressConfig>>>,
    tasks: &mut Tasks,
) -> (watch::Receiver<resolve::ResolvedNames>, watch::Receiver<Arc<resolve::ResolveReport>>) {
    let (outputs, names, report) = resolve::outputs();
    let own = match &settings.single {
        Single::DestDns(name) => Some(name.clone()),
        _ => None,
    };
    let (sender, wanted) = watch::channel(own.iter().cloned().collect());
    tasks.run_until_stop("names", resolve::want(own, ingress, sender));
    let inputs = resolve::Inputs { resolv_conf: PathBuf::from(RESOLV_CONF), wanted, in_flight: IN_FLIGHT };
    tasks.run_until_stop("resolve", resolve::run(inputs, outputs, tasks.stop()));
    (names, report)
}

/// Known addresses of the cluster: of the Pod, its node, the API server and the Pod's DNS servers.
async fn cluster_addresses(settings: &Settings, mut addresses: BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
    addresses.extend(settings.pod.node_ip);
    if let TailnetMode::Tailscaled(daemon) = &settings.tailnet {
        addresses.extend(&daemon.cluster_ips);
    }
    let servers = spawn_blocking(|| dns::servers(Path::new(RESOLV_CONF))).await.unwrap_or_default();
    addresses.extend(servers.into_iter().filter(|ip| *ip != MAGIC_DNS));
    addresses
}

/// World from the settings alone.
async fn base(settings: &Settings) -> World {
    let mut world = World::empty(settings.interface.clone(), settings.reserved());
    world.single.clone_from(&settings.single);
    world.via_ingress = settings.cluster_via_ingress;
    world.targets.clone_from(&settings.targets);
    world.pod_ips.clone_from(&settings.pod.ips);
    if world.pod_ips.is_empty() {
        match link::pod_addresses(&settings.interface).await {
            Ok(found) => world.pod_ips = found,
            Err(error) => tracing::warn!(reason = error.reason(), "unknown Pod addresses; set POD_IPS: {error}"),
        }
    }
    world
}
