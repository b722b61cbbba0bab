//! A running replica: its tasks, and what they tell each other.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use crate::edge::dns::RESOLV_CONF;
use crate::edge::kube::{Cluster, StateSecret};
use crate::edge::link::{self, LinkState, Links};
use crate::model::base::netmap::NetMap;
use crate::model::config::IngressConfig;
use crate::model::config::source::{EgressDocument, IngressDocument, ServeDocument};
use crate::model::plan::Planned;
use crate::model::plan::world::{Single, World};
use crate::model::settings::{Settings, StateOut, TailnetMode};
use crate::model::tailnet::advertise::Advertised;
use crate::model::tailnet::resolve::IN_FLIGHT;
use crate::runtime::tasks::Tasks;

use crate::proxy::PACE;
use crate::proxy::config::inputs::{FollowedConfig, cluster, config};
use crate::proxy::forwarding;
use crate::proxy::forwarding::backend::LiveKernel;
use crate::proxy::forwarding::firewall::ActiveFirewall;
use crate::proxy::forwarding::flow_cleanup::{FlowCleaner, TerminatedFlows};
use crate::proxy::forwarding::planner;
use crate::proxy::forwarding::resolve;
use crate::proxy::forwarding::ruleset_sync::{self, Programmed};
use crate::proxy::ingress::start::AdvertiseHandle;
use crate::proxy::spawn;
use crate::proxy::state_secret::start::store;
use crate::proxy::state_secret::writer::Ledger;
use crate::proxy::tailnet;
use crate::proxy::tailnet::auth_key_watch;
use crate::proxy::tailnet::daemon::state_backup::{self, StateCopies};
use crate::proxy::tailnet::daemon::{DaemonHandle, DaemonInputs, StateRequest};
use crate::proxy::tailnet::peer_warmup::{self, WarmupProgress};
use crate::proxy::tailnet::recent_peers::{self, PredecessorPeers, RecentPeersWriter};

/// What every part of a replica tells.
#[derive(Debug)]
pub struct Replica {
    pub settings: Arc<Settings>,
    /// The Kubernetes API, if there is one.
    pub cluster: Option<Cluster>,
    pub egress: FollowedConfig<EgressDocument>,
    pub ingress: FollowedConfig<IngressDocument>,
    pub serve: FollowedConfig<ServeDocument>,
    /// tailscaled, if it is supervised.
    pub daemon: Option<DaemonHandle>,
    pub netmap: watch::Receiver<Option<Arc<NetMap>>>,
    /// The copies of tailscaled's state, if that is in a Secret.
    pub copies: Option<StateCopies>,
    /// The DNS answers and how they stand.
    pub names: watch::Receiver<Arc<resolve::ResolveReport>>,
    /// The newest plan.
    pub planned: watch::Receiver<Option<Arc<Planned>>>,
    /// What the kernel holds.
    pub programmed: watch::Receiver<Programmed>,
    pub firewall: watch::Receiver<Option<ActiveFirewall>>,
    pub ended: watch::Receiver<TerminatedFlows>,
    /// The interface behind which the tailnet is, if the kernel is to forward and it can be followed.
    pub link: Option<watch::Receiver<LinkState>>,
    /// The ways to the targets, if there is a tailscaled to try them and the kernel is to forward.
    pub paths: Option<watch::Receiver<WarmupProgress>>,
    /// What a predecessor left, and with whom was spoken since.
    pub predecessor: watch::Sender<Option<PredecessorPeers>>,
    /// Remembers with whom this replica speaks, if something may lead here and there is a state to keep it in.
    pub recent_peers: Option<RecentPeersWriter>,
    /// What is wanted of the state, if there is one.
    pub ledger: Option<Ledger>,
    /// Forwarding switches that are off, and how to switch them on.
    pub switches: watch::Receiver<Vec<String>>,
    /// How what is advertised stands, if that is decided here.
    pub publishing: Option<AdvertiseHandle>,
    /// Turns true when nothing is to be forwarded any more.
    pub closing: watch::Sender<bool>,
    /// Writes to the state that supervision asks for.
    pub requests: Option<mpsc::Receiver<StateRequest>>,
}

impl Replica {
    /// Starts every task but those that tell the outside.
    pub async fn start(settings: Settings, tasks: &mut Tasks) -> Self {
        let settings = Arc::new(settings);
        let cluster = cluster(settings.kube.as_ref()).await;
        let egress = config(tasks, "egress config", settings.egress.as_ref(), cluster.as_ref(), false);
        let ingress = config(tasks, "ingress config", settings.ingress.as_ref(), cluster.as_ref(), true);
        let serve = config(tasks, "serve config", settings.serve.as_ref(), cluster.as_ref(), true);
        let (requests_in, requests) = mpsc::channel(8);
        let (advertised, advertise) = watch::channel(Advertised::default());
        let advertise = settings.limits_advertising().then_some(advertise);
        let (daemon, netmap, copies) = start_tailnet(&settings, cluster.as_ref(), tasks, requests_in, advertise);
        let (names, report) = start_names(&settings, ingress.services.clone(), tasks);
        let (planned_in, planned) = watch::channel(None);
        let inputs = planner::Inputs { egress: egress.services.clone(), ingress: ingress.services.clone(), netmap: netmap.clone(), names };
        spawn(tasks, "observe", planner::run(base(&settings).await, inputs, planned_in));
        let (closing, closing_seen) = watch::channel(false);
        let (applied, in_force) = mpsc::unbounded_channel();
        let (surgeon, ended) = FlowCleaner::new(in_force);
        let (live, firewall) = LiveKernel::new(settings.backend, settings.interface.clone(), applied);
        let (programmed_in, programmed) = watch::channel(Programmed::default());
        let (off, switches) = watch::channel(Vec::new());
        let predecessor = watch::Sender::new(None);
        let (mut link, mut paths) = (None, None);
        if settings.forwards() {
            link = start_link(&settings, tasks).await;
            recall_predecessor(&settings, cluster.as_ref(), copies.as_ref(), &predecessor, tasks);
            paths = daemon.as_ref().map(|daemon| start_paths(daemon, &planned, predecessor.subscribe(), tasks));
            let inputs = ruleset_sync::Inputs { planned: planned.clone(), closing: closing_seen };
            spawn(tasks, "program", ruleset_sync::run(live, inputs, programmed_in, PACE));
            spawn(tasks, "flow-cleanup", surgeon.run());
            spawn(tasks, "forwarding", forwarding::run(off));
        } else {
            spawn(tasks, "program", keep_open((live, programmed_in, surgeon, off)));
        }
        let mut replica = Self {
            settings,
            cluster,
            egress,
            ingress,
            serve,
            publishing: None,
            requests: daemon.is_some().then_some(requests),
            daemon,
            netmap,
            copies,
            names: report,
            planned,
            programmed,
            firewall,
            ended,
            link,
            paths,
            predecessor,
            recent_peers: None,
            ledger: None,
            switches,
            closing,
        };
        replica.publish(advertised, tasks);
        replica
    }
}

/// Holds the sending halves of the kernel's cells where nothing is written to it: a reader takes a closed cell for the end of the replica.
async fn keep_open(senders: impl Send) {
    std::future::pending::<()>().await;
    drop(senders);
}

type NetMaps = watch::Receiver<Option<Arc<NetMap>>>;

fn start_tailnet(
    settings: &Settings,
    cluster: Option<&Cluster>,
    tasks: &mut Tasks,
    writes: mpsc::Sender<StateRequest>,
    advertise: Option<watch::Receiver<Advertised>>,
) -> (Option<DaemonHandle>, NetMaps, Option<StateCopies>) {
    match &settings.tailnet {
        TailnetMode::Tailscaled(daemon) => {
            let keys = match (cluster, &settings.pod.name) {
                (Some(cluster), Some(pod)) => {
                    let (keys, work) = auth_key_watch::follow(cluster, pod, daemon.pod_dir().map(Path::to_owned));
                    spawn(tasks, "config Secret", work);
                    keys
                }
                _ => watch::channel(None).1,
            };
            let (copy, backup) = watch::channel(state_backup::load(daemon));
            let copies = match (daemon.state_file(), cluster, &settings.state) {
                (Some(used), Some(cluster), StateOut::Secret(name)) => {
                    let secret = StateSecret::new(cluster.clone(), name.clone());
                    Some(StateCopies { secret, used, copy: daemon.state_copy(), backup: copy })
                }
                _ => None,
            };
            let reach = copies.as_ref().map(|copies| state_backup::Reach::of(&copies.secret));
            let outlives = settings.init.is_some();
            let inputs = DaemonInputs { keys, writes, backup, reach, advertise, outlives };
            let (daemon, work) = crate::proxy::tailnet::daemon::daemon(daemon.as_ref().clone(), inputs, tasks.stop());
            if let Some(copies) = copies.clone() {
                spawn(tasks, "kept", copies.run(daemon.state()));
            }
            let netmap = daemon.netmap();
            tasks.spawn("tailscaled", work);
            (Some(daemon), netmap, copies)
        }
        TailnetMode::Static(path) => {
            let (netmap, work) = tailnet::follow_file(path);
            spawn(tasks, "netmap file", work);
            (None, netmap, None)
        }
    }
}

fn recall_predecessor(
    settings: &Settings,
    cluster: Option<&Cluster>,
    copies: Option<&StateCopies>,
    predecessor: &watch::Sender<Option<PredecessorPeers>>,
    tasks: &mut Tasks,
) {
    // Without an API server the files of an earlier container are all that says so.
    let restarted = copies.is_some_and(StateCopies::are_there);
    spawn(tasks, "recall", recent_peers::recall(store(settings, cluster), settings.pod.uid.clone(), restarted, predecessor.clone()));
}

fn start_paths(
    daemon: &DaemonHandle,
    planned: &watch::Receiver<Option<Arc<Planned>>>,
    predecessor: watch::Receiver<Option<PredecessorPeers>>,
    tasks: &mut Tasks,
) -> watch::Receiver<WarmupProgress> {
    let (tried, state) = watch::channel(WarmupProgress::default());
    spawn(tasks, "paths", peer_warmup::run(peer_warmup::asking(daemon.api()), daemon.state(), planned.clone(), predecessor, tried));
    state
}

async fn start_link(settings: &Settings, tasks: &mut Tasks) -> Option<watch::Receiver<LinkState>> {
    match Links::watch(settings.interface.clone()).await {
        Ok((links, state)) => {
            spawn(tasks, "links", links.run());
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
    spawn(tasks, "names", resolve::want(own, ingress, sender));
    let inputs = resolve::Inputs { resolv_conf: PathBuf::from(RESOLV_CONF), wanted, in_flight: IN_FLIGHT };
    spawn(tasks, "resolve", resolve::run(inputs, outputs, tasks.stop()));
    (names, report)
}

/// The world as the settings alone tell it.
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
