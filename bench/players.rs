//! Both operators on one cluster: who of them plays, and how one takes over from the other.
//!
//! Whoever plays has the cluster alone, with a user's group made anew and proxies of its own; the other one has no Pods then. The
//! operators' Pods are on the first node, whoever they are, so that the other one can be lost without them.

use kit::cluster::chart::NAMESPACE;
use kit::cluster::images::TAILYARD;
use kit::cluster::pods;
use kit::operators::Stage;

/// The group of all Services.
pub(crate) const GROUP: &str = "eg";

/// Who makes of a Service what it asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Operator {
    pub(crate) name: &'static str,
    /// Its service account.
    pub(crate) account: &'static str,
    /// How its Pods are found, and whose they are.
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

/// The cluster, and who plays on it.
pub(crate) struct OperatorPair {
    pub(crate) stage: Stage,
    pub(crate) playing: &'static Operator,
}

impl OperatorPair {
    /// Sets the stage with both parties; ours plays, and has a group.
    pub(crate) fn begin() -> Self {
        let game = Self { stage: Stage::set(), playing: &OURS };
        game.on_the_first_node(|stage| {
            stage.install_theirs();
            stage.stop(THEIRS.deployment);
            stage.install_ours(TAILYARD);
        });
        game.stage.ask_for_a_group();
        game
    }

    /// Has a party play, with a group of its own and nothing else; says whether it did not before. What there was is always taken back
    /// by ours, as theirs takes its time.
    pub(crate) fn hand_to(&mut self, party: &'static Operator) -> bool {
        if self.playing == party {
            return false;
        }
        if *party == OURS {
            self.change(&THEIRS, &OURS);
        }
        let cluster = &self.stage.cluster;
        cluster.kubectl(&["delete", "services", "-n", "default", "-l", "component!=apiserver", "--timeout=120s"]);
        cluster.kubectl(&["delete", "proxygroup", GROUP, "--timeout=120s"]);
        if *party == THEIRS {
            self.change(&OURS, &THEIRS);
        }
        self.stage.ask_for_a_group();
        self.playing = party;
        true
    }

    fn change(&self, from: &Operator, to: &Operator) {
        self.on_the_first_node(|stage| {
            stage.stop(from.deployment);
            let deployment = format!("deployment/{}", to.deployment);
            stage.cluster.kubectl(&["scale", "-n", NAMESPACE, &deployment, &format!("--replicas={}", to.replicas)]);
            stage.cluster.rolled_out(NAMESPACE, &deployment);
        });
    }

    /// Has whatever is started meanwhile start on the first node.
    pub(crate) fn on_the_first_node(&self, start: impl FnOnce(&Stage)) {
        let others: Vec<&str> = self.stage.cluster.nodes.iter().skip(1).map(|node| &node.name[..]).collect();
        let tell = |what: &str| self.stage.cluster.kubectl(&[&[what], &others[..]].concat());
        tell("cordon");
        start(&self.stage);
        tell("uncordon");
    }
}

impl Operator {
    /// Its processes, those that hold its Pods' namespaces included.
    pub(crate) fn pids(&self, stage: &Stage) -> Vec<u32> {
        let uids = stage.cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", self.label, "-o", "jsonpath={.items[*].metadata.uid}"]);
        let found = uids.split_whitespace().flat_map(|uid| pods::processes(uid, None));
        let found: Vec<u32> = found.filter_map(|pid| pid.try_into().ok()).collect();
        assert!(!found.is_empty(), "no process of {}", self.name);
        found
    }
}
