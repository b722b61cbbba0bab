//! Starts forwarding: names, plan, rules, flow cleanup, and the warm-up of peers where a tailscaled is supervised.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use crate::edge::dns::RESOLV_CONF;
use crate::edge::kube::Cluster;
use crate::edge::link::{self, LinkState, Links};
use crate::model::config::IngressConfig;
use crate::model::plan::Planned;
use crate::model::plan::world::{Single, World};
use crate::model::settings::Settings;
use crate::model::tailnet::resolve::IN_FLIGHT;
use crate::runtime::tasks::Tasks;

use crate::proxy::PACE;
use crate::proxy::config::inputs::ConfigPart;
use crate::proxy::forwarding::backend::LiveKernel;
use crate::proxy::forwarding::firewall::ActiveFirewall;
use crate::proxy::forwarding::flow_cleanup::{FlowCleaner, TerminatedFlows};
use crate::proxy::forwarding::ruleset_sync::{self, Programmed};
use crate::proxy::forwarding::{planner, resolve};
use crate::proxy::spawn;
use crate::proxy::state_secret::writer::Store;
use crate::proxy::tailnet::daemon::DaemonHandle;
use crate::proxy::tailnet::daemon::state_backup::StateCopies;
use crate::proxy::tailnet::peer_warmup::{self, WarmupProgress};
use crate::proxy::tailnet::recent_peers::{self, PredecessorPeers};
use crate::proxy::tailnet::start::TailnetPart;

/// Forwarding, as the rest of the replica sees it.
#[derive(Debug)]
pub struct ForwardingPart {
    /// The kernel is to forward; else nothing is written to it, and only the plan is made.
    pub enabled: bool,
    /// The DNS answers and how they stand.
    pub names: watch::Receiver<Arc<resolve::ResolveReport>>,
    /// The newest plan.
    pub planned: watch::Receiver<Option<Arc<Planned>>>,
    /// What the kernel holds.
    pub programmed: watch::Receiver<Programmed>,
    pub firewall: watch::Receiver<Option<ActiveFirewall>>,
    pub ended: watch::Receiver<TerminatedFlows>,
    /// The interface behind which the tailnet is, if it is enabled and the interface can be followed.
    pub link: Option<watch::Receiver<LinkState>>,
    /// The warm-up of peers, if it is enabled and a tailscaled is supervised.
    pub warmup: Option<watch::Receiver<WarmupProgress>>,
    /// The peers of the previous Pod, and of this one since.
    pub predecessor: watch::Sender<Option<PredecessorPeers>>,
    /// Forwarding switches that are off, and how to switch them on.
    pub switches: watch::Receiver<Vec<String>>,
    /// Turns true when nothing is to be forwarded any more.
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
        let (egress, ingress) = (configs.egress.services.clone(), configs.ingress.services.clone());
        let (names, report) = start_names(settings, ingress.clone(), tasks);
        let (planned_in, planned) = watch::channel(None);
        let inputs = planner::Inputs { egress, ingress, netmap: tailnet.netmap.clone(), names };
        spawn(tasks, "planner", planner::run(base(settings).await, inputs, planned_in));
        let (closing, closing_seen) = watch::channel(false);
        let (applied, in_force) = mpsc::unbounded_channel();
        let (cleaner, ended) = FlowCleaner::new(in_force);
        let (live, firewall) = LiveKernel::new(settings.backend, settings.interface.clone(), applied);
        let (programmed_in, programmed) = watch::channel(Programmed::default());
        let (off, switches) = watch::channel(Vec::new());
        let predecessor = watch::Sender::new(None);
        let enabled = settings.forwards();
        let (mut link, mut warmup) = (None, None);
        if enabled {
            link = start_link(settings, tasks).await;
            load_predecessor(settings, cluster, tailnet.copies.as_ref(), &predecessor, tasks);
            warmup = tailnet.daemon.as_ref().map(|daemon| start_warmup(daemon, &planned, predecessor.subscribe(), tasks));
            let inputs = ruleset_sync::Inputs { planned: planned.clone(), closing: closing_seen };
            spawn(tasks, "ruleset sync", ruleset_sync::run(live, inputs, programmed_in, PACE));
            spawn(tasks, "flow-cleanup", cleaner.run());
            spawn(tasks, "forwarding", super::run(off));
        } else {
            spawn(tasks, "ruleset sync", keep_open((live, programmed_in, cleaner, off)));
        }
        Self { enabled, names: report, planned, programmed, firewall, ended, link, warmup, predecessor, switches, closing }
    }
}

/// Holds the sending halves of the kernel's cells where nothing is written to it: a reader takes a closed cell for the end of the replica.
async fn keep_open(senders: impl Send) {
    std::future::pending::<()>().await;
    drop(senders);
}

fn load_predecessor(
    settings: &Settings,
    cluster: Option<&Cluster>,
    copies: Option<&StateCopies>,
    predecessor: &watch::Sender<Option<PredecessorPeers>>,
    tasks: &mut Tasks,
) {
    // Without an API server the files of an earlier container are all that says so.
    let restarted = copies.is_some_and(StateCopies::are_there);
    spawn(tasks, "predecessor", recent_peers::load(Store::of(settings, cluster), settings.pod.uid.clone(), restarted, predecessor.clone()));
}

fn start_warmup(
    daemon: &DaemonHandle,
    planned: &watch::Receiver<Option<Arc<Planned>>>,
    predecessor: watch::Receiver<Option<PredecessorPeers>>,
    tasks: &mut Tasks,
) -> watch::Receiver<WarmupProgress> {
    let (tried, state) = watch::channel(WarmupProgress::default());
    spawn(tasks, "peer warm-up", peer_warmup::run(peer_warmup::asking(daemon.api()), daemon.state(), planned.clone(), predecessor, tried));
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

/// The world as the settings alone have it.
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
