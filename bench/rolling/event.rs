//! Faults of a group of two replicas, and how long clients are observed after each.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use kit::cluster::chart::NAMESPACE;
use kit::cluster::node::Node;
use kit::cluster::pods;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::players::{OURS, OperatorPair};

/// New connections each second.
const RATE: u32 = 200;
/// The rate while a node is lost: low enough that source ports are rarely reused within two minutes. A client's conntrack sends a first
/// packet that was never answered, and connections from the same port, to the same endpoint for that time, even after Kubernetes has
/// removed it (docs/failures.md).
const SPARSE: u32 = 30;
/// How long the load has been there before anything happens.
pub(crate) const CALM: Duration = Duration::from_secs(2);
/// How long it goes on after a rolling restart.
const AFTER: Duration = Duration::from_secs(5);

/// A fault of a group.
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
}

impl Event {
    /// The name in the sheet.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Restart => "rolling restart",
            Self::Killed => "replica killed",
            Self::Deleted => "replica's Pod deleted at once",
            Self::Lost => "node lost",
        }
    }

    /// How many connections are begun each second while it happens.
    pub(crate) fn rate(self) -> u32 {
        if self == Self::Lost { SPARSE } else { RATE }
    }

    /// Duration of the load: longer than the effects of the event.
    fn lasts(self) -> Duration {
        match self {
            Self::Restart => AFTER,
            Self::Killed => Duration::from_secs(20),
            Self::Deleted => Duration::from_secs(30),
            // Kubernetes considers a node lost after 50 s.
            Self::Lost => Duration::from_secs(75),
        }
    }

    /// A node can only be lost to a group that has a replica on it, and not all of them.
    pub(crate) fn prepare(self, game: &OperatorPair) {
        if self == Self::Lost {
            spread(game);
        }
    }

    /// Causes the event and waits; returns the duration of the event itself.
    pub(crate) fn happen(self, game: &OperatorPair, round: usize) -> Duration {
        let cluster = &game.stage.cluster;
        let mut begun = Instant::now();
        match self {
            Self::Restart => game.stage.replaced(|| {
                begun = Instant::now();
                restart(game, round);
            }),
            Self::Killed => kill_container(&pods::uid(cluster, NAMESPACE, "eg-1")),
            Self::Deleted => drop(cluster.kubectl(&["delete", "pod", "-n", NAMESPACE, "eg-1", "--grace-period=0", "--force"])),
            Self::Lost => cluster.tailnet.cut(&lost(game).machine),
        }
        let took = begun.elapsed();
        sleep(self.lasts());
        took
    }

    /// Repairs what does not recover by itself.
    pub(crate) fn mend(self, game: &OperatorPair) {
        if self == Self::Lost {
            let (cluster, node) = (&game.stage.cluster, lost(game));
            cluster.tailnet.repair(&node.machine);
            cluster.wait(&["--for=condition=Ready", &format!("node/{}", node.name)]);
        }
    }
}

/// Replaces every replica: the Tailscale operator reverts `kubectl rollout restart`, a new label replaces its Pods.
fn restart(game: &OperatorPair, round: usize) {
    if *game.playing == OURS {
        game.stage.restart();
    } else {
        game.stage.set_class(None, &format!("round-{round}"));
    }
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
fn lost(game: &OperatorPair) -> &Node {
    game.stage.cluster.nodes.last().expect("two nodes")
}

/// Spreads the replicas over the nodes, one on each.
fn spread(game: &OperatorPair) {
    let cluster = &game.stage.cluster;
    let nodes = ["eg-0", "eg-1"].map(|replica| pods::node(cluster, NAMESPACE, replica));
    if nodes[0] != nodes[1] {
        return;
    }
    cluster.kubectl(&["cordon", &nodes[0]]);
    cluster.kubectl(&["delete", "pod", "-n", NAMESPACE, "eg-1"]);
    cluster.rolled_out(NAMESPACE, "statefulset/eg");
    cluster.kubectl(&["uncordon", &nodes[0]]);
    settled(game);
}

/// Waits until the group is complete and both replicas forward to the target.
pub(crate) fn settled(game: &OperatorPair) {
    game.stage.cluster.rolled_out(NAMESPACE, "statefulset/eg");
    game.stage.ready();
    game.stage.through_both_replicas();
}
