//! Scenarios of a group of two replicas under load, in sequence on one cluster: starting a cluster takes longer than most scenarios. The
//! group is settled before and after each scenario.

use std::any::Any;
use std::env;
use std::panic::{self, AssertUnwindSafe};
use std::time::{Duration, Instant};

use serde_json::json;

use super::PORT;
use crate::cluster::{documents, published, standalone, standby, whole};
use kit::cluster::Cluster;
use kit::cluster::DEADLINE;
use kit::cluster::pods::client;
use kit::guide::Guide;
use kit::machine::{Machine, Process};
use kit::netns::Server;
use kit::wait::eventually;

pub(crate) mod changes;
pub(crate) mod faults;
pub(crate) mod many;
pub(crate) mod outages;
mod watch;

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
type Scenario = (&'static str, fn(&Stage));

/// All scenarios, in the order of execution.
const ALL: [Scenario; 18] = [
    ("a rolling restart", changes::a_rolling_restart_loses_nothing),
    ("two replicas to three and back", changes::scaling_loses_nothing_and_restarts_nobody_else),
    ("a leaving replica with established connections", changes::a_leaving_replica_resets_what_outlives_its_grace),
    ("a replica killed", faults::a_killed_replica_is_left_out_once_kubernetes_sees_it),
    ("a supervisor that crashes", faults::a_supervisor_that_crashes_is_not_noticed),
    ("tailscaled killed", faults::a_killed_tailscaled_is_hardly_noticed),
    ("no reconciler", outages::targets_move_without_a_reconciler),
    ("no API server", outages::without_an_api_server_everything_goes_on),
    ("a container killed without an API server", outages::a_container_starts_without_an_api_server),
    ("a Service published by a route", published::a_service_is_reached_by_a_route_that_was_approved),
    ("Services without a group", standalone::services_have_proxies_of_their_own),
    ("a proxy with standby", standby::a_waiting_pod_takes_over),
    ("a node cut off", faults::a_replica_on_a_lost_node_is_left_out),
    ("a node cut one way", faults::a_replica_on_a_node_that_receives_nothing_is_left_out),
    ("a node that hangs", faults::a_replica_on_a_hung_node_is_left_out),
    ("many Services", many::many_services_follow_a_lost_node_and_a_restart),
    ("a group deleted before its Service", changes::a_group_goes_before_its_service),
    ("a Service deleted before its group", changes::a_service_goes_before_its_group),
];

impl Stage {
    /// Starts the cluster, the targets and the group.
    pub(crate) fn start() -> Self {
        let begin = Instant::now();
        let cluster = Cluster::start(super::NODES);
        println!("{} nodes and DNS: {:?}", super::NODES, begin.elapsed());
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

    /// Runs every scenario, or those with `TAILYARD_SCENARIO` in their name.
    pub(crate) fn play(&self) {
        let only = env::var("TAILYARD_SCENARIO").unwrap_or_default();
        for (name, scenario) in ALL.iter().filter(|(name, _)| name.contains(&only)) {
            let begin = Instant::now();
            println!("--- {name}");
            let played = panic::catch_unwind(AssertUnwindSafe(|| {
                whole::settled(&self.cluster);
                self.open();
                scenario(self);
            }));
            if let Err(fault) = played {
                // The error is printed at both ends of the long log.
                let fault = format!("{name}: {}", said(fault.as_ref()));
                println!("{fault}\n{}", whole::logs(&self.cluster));
                panic!("{fault}");
            }
            println!("--- {name}: {:?}", begin.elapsed());
        }
    }
}

/// Message of a panic.
fn said(fault: &(dyn Any + Send)) -> &str {
    fault.downcast_ref::<String>().map(String::as_str).or_else(|| fault.downcast_ref().copied()).unwrap_or("no text")
}

/// Duration of outages: `TAILYARD_OUTAGE` in seconds; by default longer than a Lease of the reconciler.
pub(crate) fn outage() -> Duration {
    let seconds = env::var("TAILYARD_OUTAGE").ok().map(|seconds| seconds.parse().expect("TAILYARD_OUTAGE in seconds"));
    seconds.map_or(Duration::from_secs(20), Duration::from_secs)
}

/// Number of Services of the long scenario with many: `TAILYARD_SERVICES`.
pub(crate) fn many_services() -> Option<usize> {
    env::var("TAILYARD_SERVICES").ok().map(|number| number.parse().expect("TAILYARD_SERVICES is a number"))
}
