//! Faults of proxies, and how long clients are observed after each.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use kit::cluster::chart::NAMESPACE;
use kit::cluster::node::Node;
use kit::cluster::{Cluster, pods};
use kit::operators::{PORT, Stage};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// New connections each second.
const RATE: u32 = 200;
/// The rate while a node is lost, for which many connections wait at once. Each has a source port of its own: a client's conntrack sends
/// connections from the port of one that was never answered to the same endpoint for two minutes (docs/failures.md).
const SPARSE: u32 = 30;
/// How long the load has been there before anything happens.
pub(crate) const CALM: Duration = Duration::from_secs(2);
/// How long it goes on after a rolling restart.
const AFTER: Duration = Duration::from_secs(5);

/// Proxies that faults hit: a group of two replicas, or the proxy of one Service.
pub(crate) trait Proxies {
    fn stage(&self) -> &Stage;
    /// Name of the Pod that is killed, deleted or lost.
    fn pod(&self) -> String;
    /// Replaces all Pods, on purpose, and waits until they are ready; returns the duration.
    fn restart(&self, round: usize) -> Duration;
    /// Places that Pod on the node that may be lost, and all that can serve without it elsewhere.
    fn spread(&self);
    /// Waits until all Pods are ready and forward to the target.
    fn settle(&self);
}

/// A fault of proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// Every replica is replaced, on purpose.
    Restart,
    /// The first process of a replica's container is killed.
    Killed,
    /// A replica's Pod is deleted without its grace.
    Deleted,
    /// A node with a replica is disconnected.
    Lost,
    /// Packets to that node are lost, those from it arrive.
    CutInward,
    /// All processes of that node stop; its kernel runs.
    Hung,
    /// The node forwards no packets of its Pods; its kubelet runs.
    PodsCut,
}

impl Event {
    /// The name in the sheet.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Restart => "rolling restart",
            Self::Killed => "replica killed",
            Self::Deleted => "replica's Pod deleted at once",
            Self::Lost => "node lost",
            Self::CutInward => "node receives nothing",
            Self::Hung => "node hung",
            Self::PodsCut => "Pod network of a node dead",
        }
    }

    /// Whether it is a fault of a node.
    pub(crate) fn is_of_a_node(self) -> bool {
        matches!(self, Self::Lost | Self::CutInward | Self::Hung | Self::PodsCut)
    }

    /// How many connections are begun each second while it happens.
    pub(crate) fn rate(self) -> u32 {
        if self.is_of_a_node() { SPARSE } else { RATE }
    }

    /// Duration of the load: longer than the effects of the event.
    fn lasts(self) -> Duration {
        match self {
            Self::Restart => AFTER,
            Self::Killed => Duration::from_secs(20),
            Self::Deleted => Duration::from_secs(30),
            // Kubernetes considers a node lost after 50 s.
            Self::Lost | Self::CutInward | Self::Hung => Duration::from_secs(75),
            // Kubernetes does not notice.
            Self::PodsCut => Duration::from_secs(45),
        }
    }

    /// A node can only be lost to proxies that have a Pod on it, and not all of them.
    pub(crate) fn prepare(self, proxies: &dyn Proxies) {
        if self.is_of_a_node() {
            proxies.spread();
        }
    }

    /// Causes the event and waits; returns the duration of a restart.
    pub(crate) fn happen(self, proxies: &dyn Proxies, round: usize) -> Option<Duration> {
        let cluster = &proxies.stage().cluster;
        match self {
            Self::Restart => {
                let took = proxies.restart(round);
                sleep(self.lasts());
                return Some(took);
            }
            Self::Killed => kill_container(&pods::uid(cluster, NAMESPACE, &proxies.pod())),
            Self::Deleted => drop(cluster.kubectl(&["delete", "pod", "-n", NAMESPACE, &proxies.pod(), "--grace-period=0", "--force"])),
            Self::Lost => cluster.tailnet.cut(&lost(proxies.stage()).machine),
            Self::CutInward => cluster.tailnet.cut_inward(&lost(proxies.stage()).machine),
            Self::PodsCut => lost(proxies.stage()).cut_pods(),
            Self::Hung => {}
        }
        let _frozen = (self == Self::Hung).then(|| lost(proxies.stage()).freeze());
        sleep(self.lasts());
        None
    }

    /// Repairs what does not recover by itself.
    pub(crate) fn repair(self, stage: &Stage) {
        if self.is_of_a_node() {
            let (cluster, node) = (&stage.cluster, lost(stage));
            match self {
                Self::Lost => cluster.tailnet.repair(&node.machine),
                Self::CutInward => cluster.tailnet.mend_inward(),
                Self::PodsCut => node.join_pods(),
                _ => {}
            }
            cluster.wait(&["--for=condition=Ready", &format!("node/{}", node.name)]);
            await_kubelet(cluster, node);
        }
    }
}

/// Waits until a node's kubelet starts a Pod. After a node without the API server its watch of Pods returns with a backoff of up to a minute:
/// the next event would measure how late Pods start and end meanwhile.
fn await_kubelet(cluster: &Cluster, node: &Node) {
    const NAME: &str = "kubelet-reads-pods";
    cluster.apply(&[pods::greeter(NAME, Some(&node.name), PORT, "up")]);
    cluster.wait(&["--for=condition=Ready", &format!("pod/{NAME}")]);
    cluster.kubectl(&["delete", "pod", NAME]);
}

/// Kills the first process of the container with a Pod's tailscaled, which ends all others in it.
fn kill_container(uid: &str) {
    let inside = pods::processes(uid, None);
    let mut first = *pods::processes(uid, Some("tailscaled")).first().expect("a tailscaled");
    while let Some(parent) = parent(first).filter(|parent| inside.contains(parent)) {
        first = parent;
    }
    kill(Pid::from_raw(first), Signal::SIGKILL).expect("killed");
}

fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// The node that may be lost: neither an operator nor the load is on it.
pub(crate) fn lost(stage: &Stage) -> &Node {
    stage.cluster.nodes.last().expect("two nodes")
}
