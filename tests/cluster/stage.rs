//! Cluster with the quickstart's group of two replicas, on which scenarios run in sequence: starting a cluster takes longer than most
//! scenarios. The group is settled before and after each scenario.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::json;

use kit::cluster::Cluster;
use kit::cluster::DEADLINE;
use kit::cluster::pods::client;
use kit::guide::Guide;
use kit::machine::{Machine, Process};
use kit::netns::Server;
use kit::wait::{eventually, until};

pub(crate) mod documents;
pub(crate) mod whole;

/// Port of the targets and of their Services.
pub(crate) const PORT: u16 = 7000;
/// Number of nodes of a cluster.
pub(crate) const NODES: u8 = 3;

/// Cluster with its group and the group's targets.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) guide: Guide,
    _targets: [Target; 2],
}

/// Tailnet node with a server.
struct Target {
    _machine: Machine,
    _server: Server,
    _tailscaled: Process,
}

/// Scenario with its name.
pub(crate) type Scenario = (&'static str, fn(&Stage));

impl Stage {
    /// Starts the cluster, the targets and the group.
    pub(crate) fn start() -> Self {
        let begin = Instant::now();
        let cluster = Cluster::start(NODES);
        println!("{} nodes and DNS: {:?}", NODES, begin.elapsed());
        // The Service `db` is routed to the first.
        let targets = ["db", "spare"].map(|name| {
            let (machine, tailscaled) = cluster.tailnet.node(name);
            Target { _server: machine.node.serve(PORT), _machine: machine, _tailscaled: tailscaled }
        });
        let guide = Guide::of(&cluster);
        documents::start(&guide, &cluster);
        println!("the quickstart's group: {:?}", begin.elapsed());
        cluster.apply(&[client()]);
        // The scenarios need UDP, too.
        let udp = json!([{"op": "add", "path": "/spec/ports/-", "value": {"name": "udp", "port": PORT, "protocol": "UDP"}}]);
        cluster.kubectl(&["patch", "service/db", "--type=json", "-p", &udp.to_string()]);
        whole::settled(&cluster);
        println!("group: {:?}", begin.elapsed());
        cluster.wait(&["--for=condition=Ready", "pod/client"]);
        let stage = Self { cluster, guide, _targets: targets };
        stage.answered_by("db");
        println!("first answer: {:?}", begin.elapsed());
        assert_eq!(stage.cluster.doctor().faults(&[]), [""; 0]);
        stage
    }

    /// Waits until this target answers connections to the Service.
    pub(crate) fn answered_by(&self, target: &str) {
        eventually(&format!("an answer of {target}"), DEADLINE, || (whole::ask(&self.cluster, "db")? == target).then_some(()));
    }

    /// Waits until both replicas have a path to the target: after the kill of its tailscaled, a replica may be ready for some time before a
    /// peer answers it (docs/failures.md).
    fn open(&self) {
        for _ in 0..8 {
            self.answered_by("db");
        }
    }

    /// Runs every scenario in sequence, or those with `TAILYARD_SCENARIO` in their name.
    pub(crate) fn play(&self, scenarios: &[Scenario]) {
        let only = kit::setting::<String>("TAILYARD_SCENARIO").unwrap_or_default();
        for (name, scenario) in scenarios.iter().filter(|(name, _)| name.contains(&only)) {
            self.run(name, *scenario);
        }
    }

    /// Runs random scenarios for this long. They leave as many objects of each kind as there were.
    pub(crate) fn soak(&self, scenarios: &[Scenario], length: Duration, seed: u64) {
        println!("SOAK_SEED={seed} SOAK_SECONDS={}", length.as_secs());
        let (begin, mut dice) = (Instant::now(), Rng::with_seed(seed));
        let objects = || (self.cluster.tailnet.device_count(), whole::count_by_kind(&self.cluster));
        let before = objects();
        let mut runs = BTreeMap::<&str, u32>::new();
        while begin.elapsed() < length {
            let (name, scenario) = *dice.choice(scenarios).expect("a scenario");
            self.run(name, scenario);
            *runs.entry(name).or_default() += 1;
            println!("{:?} of {length:?}", begin.elapsed());
        }
        println!("runs of each scenario: {runs:#?}");
        whole::settled(&self.cluster);
        until(&format!("devices and objects as before: {before:?}"), DEADLINE, || objects() == before);
    }

    fn run(&self, name: &str, scenario: fn(&Self)) {
        println!("--- {name}");
        kit::scenario::scenario(name, || {
            whole::settled(&self.cluster);
            self.open();
            scenario(self);
        });
    }
}
