//! Both operators on one cluster, one active at a time, and the change from one to the other.
//!
//! The active operator has the cluster alone, with a new group of its own proxies; the other one has no Pods. The operators' Pods are on
//! the first node, so that the other node can fail without them.

use kit::cluster::chart::NAMESPACE;
use kit::cluster::images::TAILYARD;
use kit::cluster::{DEADLINE, pods};
use kit::operators::Stage;

/// The group of all Services.
pub(crate) const GROUP: &str = "eg";

/// An operator that provides proxies for Services.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Operator {
    pub(crate) name: &'static str,
    /// Its service account.
    pub(crate) account: &'static str,
    /// Label selector of its Pods.
    label: &'static str,
    deployment: &'static str,
    replicas: u8,
}

pub(crate) const THEIRS: Operator =
    Operator { name: "Tailscale operator", account: "operator", label: "app=operator", deployment: "operator", replicas: 1 };
pub(crate) const OURS: Operator = Operator {
    name: "Tailyard",
    account: "tailyard-reconciler",
    label: "app.kubernetes.io/name=tailyard",
    deployment: "tailyard-reconciler",
    replicas: 2,
};

/// The cluster and its active operator.
pub(crate) struct OperatorPair {
    pub(crate) stage: Stage,
    pub(crate) playing: &'static Operator,
}

impl OperatorPair {
    /// Installs both operators; ours is active and has a group.
    pub(crate) fn begin() -> Self {
        let game = Self::install();
        game.stage.ask_for_a_group();
        game
    }

    /// Installs both operators; ours is active and has nothing to serve.
    pub(crate) fn install() -> Self {
        let game = Self { stage: Stage::set(), playing: &OURS };
        game.on_the_first_node(|stage| {
            stage.install_theirs();
            stage.stop(THEIRS.deployment);
            stage.install_ours(TAILYARD);
        });
        game
    }

    /// Makes an operator the active one, with a new group; returns whether it was not. Ours deletes the earlier objects, as the Tailscale
    /// operator is slow at it.
    pub(crate) fn hand_to(&mut self, party: &'static Operator) -> bool {
        if self.playing == party {
            return false;
        }
        if *party == OURS {
            self.change(&THEIRS, &OURS);
        }
        self.delete_services();
        self.stage.cluster.kubectl(&["delete", "proxygroup", GROUP, "--timeout=120s"]);
        if *party == THEIRS {
            self.change(&OURS, &THEIRS);
        }
        self.stage.ask_for_a_group();
        self.playing = party;
        true
    }

    /// Makes an operator the active one, without anything to serve. The operator that served the Services deletes their proxies: the other
    /// one would adopt and replace them first.
    pub(crate) fn clear_for(&mut self, party: &'static Operator) {
        self.delete_services();
        if self.playing != party {
            self.change(self.playing, party);
            self.playing = party;
        }
    }

    /// Deletes all Services of users, and waits for their finalizers.
    fn delete_services(&self) {
        let timeout = format!("--timeout={}s", DEADLINE.as_secs());
        self.stage.cluster.kubectl(&["delete", "services", "-n", "default", "-l", "component!=apiserver", &timeout]);
    }

    fn change(&self, from: &Operator, to: &Operator) {
        self.on_the_first_node(|stage| {
            stage.stop(from.deployment);
            let deployment = format!("deployment/{}", to.deployment);
            stage.cluster.kubectl(&["scale", "-n", NAMESPACE, &deployment, &format!("--replicas={}", to.replicas)]);
            stage.cluster.rolled_out(NAMESPACE, &deployment);
        });
    }

    /// Schedules Pods that are started meanwhile on the first node.
    pub(crate) fn on_the_first_node(&self, start: impl FnOnce(&Stage)) {
        let others: Vec<&str> = self.stage.cluster.nodes.iter().skip(1).map(|node| &node.name[..]).collect();
        let each = |command: &str| self.stage.cluster.kubectl(&[&[command], &others[..]].concat());
        each("cordon");
        start(&self.stage);
        each("uncordon");
    }
}

impl Operator {
    /// Its processes, those that hold its Pods' namespaces included.
    pub(crate) fn pids(&self, stage: &Stage) -> Vec<u32> {
        pids(stage, self.label)
    }
}

/// The processes of all Pods of these labels, at least one.
pub(crate) fn pids(stage: &Stage, labels: &str) -> Vec<u32> {
    let uids = stage.cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", labels, "-o", "jsonpath={.items[*].metadata.uid}"]);
    let found = uids.split_whitespace().flat_map(|uid| pods::processes(uid, None));
    let found: Vec<u32> = found.filter_map(|pid| pid.try_into().ok()).collect();
    assert!(!found.is_empty(), "no process of {labels}");
    found
}
