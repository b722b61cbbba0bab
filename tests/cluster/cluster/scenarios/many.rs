//! Many Services of one group: created at once, a node with a replica lost; with `TAILYARD_SERVICES` also a rolling restart under load.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use super::faults::{READY_REPLICAS, leader};
use super::many_services;
use super::watch::Watch;
use crate::stage::{PORT, Stage, whole};
use kit::cluster::chart::NAMESPACE;
use kit::cluster::load::Load;
use kit::cluster::{Cluster, DEADLINE, pods};
use kit::wait::eventually;

/// Number of Services by default: enough that the reconciler writes their EndpointSlices.
const FEW: usize = 40;
/// Label of the Services.
const LABEL: &str = "app=many";
/// Labels of the EndpointSlices of all child Services.
const SLICES: &str = "tailscale.com/proxy-group=eg,tailscale.com/svc-type=egress";
/// Services are applied by several clients, as kubectl limits its rate.
const CLIENTS: usize = 4;
/// Time limit for a lost replica to leave every slice. kube-controller-manager alone needs 100 s for 1,000 Services of two families.
const LOST: Duration = Duration::from_mins(1);

pub(crate) fn many_services_follow_a_lost_node_and_a_restart(stage: &Stage) {
    let (cluster, number) = (&stage.cluster, many_services().unwrap_or(FEW));
    if many_services().is_some() {
        // Endpoints of many Services follow a restarted replica later than the drain timeout of the other scenarios.
        cluster.kubectl(&["patch", "proxygroup/eg", "--type=merge", "-p", r#"{"spec":{"tailyard":{"drainTimeoutSeconds":45}}}"#]);
        whole::settled(cluster);
    }
    let slices = Slices::watch(cluster);
    let families = eventually("the slices of one Service", DEADLINE, || Some(slices.0.values().len()).filter(|number| *number > 0));
    let expected = families * (number + 1);
    create(cluster, number, &slices, expected);
    node_is_lost(cluster, number, &slices, expected);
    if many_services().is_some() {
        restart(cluster, number);
        slices.complete(expected);
    }
    cluster.kubectl(&["delete", "services", "-l", LABEL, "--wait=false"]);
    slices.complete(families);
    let services = || cluster.kubectl(&["get", "services", "-l", LABEL, "-o", "name"]);
    eventually("the Services are gone", DEADLINE, || services().is_empty().then_some(()));
}

/// Creates the Services and waits until the reconciler reports all as ready and every slice has both replicas.
fn create(cluster: &Cluster, number: usize, slices: &Slices<'_>, expected: usize) {
    let conditions =
        Watch::start(cluster, "services", "default", LABEL, ".status.conditions[?(@.type==\"TailscaleEgressSvcReady\")].status");
    let services: Vec<Value> = (0..number).map(service).collect();
    let begin = Instant::now();
    thread::scope(|scope| {
        for part in services.chunks(number.div_ceil(CLIENTS)) {
            scope.spawn(|| cluster.apply(part));
        }
    });
    println!("{number} Services applied within {:?}", begin.elapsed());
    let ready = || conditions.values().values().filter(|status| *status == "True").count() == number;
    eventually("all Services are ready", DEADLINE, || ready().then_some(()));
    println!("{number} Services ready {:?} after the first was applied", begin.elapsed());
    slices.complete(expected);
    println!("every slice has both replicas {:?} after the first Service was applied", begin.elapsed());
}

fn service(index: usize) -> Value {
    let mut service = whole::service(&format!("many-{index}"), "eg", "db.tail.lab");
    service["metadata"]["labels"]["app"] = "many".into();
    service
}

/// The first, middle and last Service.
fn some(number: usize) -> [String; 3] {
    [0, number / 2, number - 1].map(|index| format!("many-{index}"))
}

fn load<'a>(cluster: &'a Cluster, service: &str, node: Option<&str>, rate: &str) -> Load<'a> {
    let to = format!("{service}.default.svc.cluster.local:{PORT}");
    Load::begin(cluster, &format!("load-{service}"), node, &[&to, "--expect", "db ", "--rate", rate])
}

/// The node of one replica is cut off, one without the leading reconciler: of every Service the replica is no endpoint soon.
fn node_is_lost(cluster: &Cluster, number: usize, slices: &Slices<'_>, expected: usize) {
    let leader = eventually("a leader", DEADLINE, || leader(cluster));
    let leading_node = pods::node(cluster, NAMESPACE, &leader);
    let replica =
        ["eg-1", "eg-0"].into_iter().find(|replica| pods::node(cluster, NAMESPACE, replica) != leading_node).expect("another node");
    let away = pods::node(cluster, NAMESPACE, replica);
    let node = cluster.nodes.iter().find(|node| node.name == away).expect("a node");
    let free = whole::free_node(cluster, "eg");
    let running = some(number).map(|service| (load(cluster, &service, Some(&free), "10"), service));
    let (begin, watched) = (Instant::now(), SystemTime::now());
    cluster.tailnet.cut(&node.machine);
    let counts = || slices.0.values().values().filter(|ready| ready.contains(replica)).count();
    eventually("the replica has left a slice", DEADLINE, || (counts() < expected).then_some(()));
    let first = begin.elapsed();
    eventually("the replica has left every slice", DEADLINE, || (counts() == 0).then_some(()));
    let last = begin.elapsed();
    println!("{replica} lost: out of the first slice after {first:?}, of all {expected} after {last:?}");
    let end = begin + last + Duration::from_secs(10);
    eventually("ten seconds without it", DEADLINE, || (Instant::now() > end).then_some(()));
    cluster.tailnet.repair(&node.machine);
    cluster.wait(&["--for=condition=Ready", &format!("node/{away}")]);
    for (load, service) in running {
        let report = load.end();
        println!("{service}: connections begun up to {:?} later failed; {report}", report.last_failure_after(watched));
    }
    assert!(last < LOST, "{last:?}");
    cluster.wait(&["-n", NAMESPACE, "--for=condition=Ready", "pod/eg-0", "pod/eg-1"]);
    slices.complete(expected);
}

/// A rolling restart under load.
fn restart(cluster: &Cluster, number: usize) {
    let running = some(number).map(|service| (load(cluster, &service, None, "20"), service));
    let begin = Instant::now();
    cluster.kubectl(&["rollout", "restart", "-n", NAMESPACE, "statefulset/eg"]);
    cluster.rolled_out(NAMESPACE, "statefulset/eg");
    println!("restarted within {:?}", begin.elapsed());
    let reports = running.map(|(load, service)| (load.end(), service));
    for (report, service) in &reports {
        println!("{service}: {report}");
    }
    for (report, service) in reports {
        report.assert_no_failures(&service);
    }
}

/// Watch of the EndpointSlices of all child Services.
struct Slices<'a>(Watch<'a>);

impl<'a> Slices<'a> {
    fn watch(cluster: &'a Cluster) -> Self {
        Self(Watch::start(cluster, "endpointslices", NAMESPACE, SLICES, READY_REPLICAS))
    }

    /// Waits until there are so many slices, each with both replicas.
    fn complete(&self, number: usize) {
        let is_complete = |ready: &String| ready.contains("eg-0") && ready.contains("eg-1");
        eventually(&format!("{number} slices with both replicas"), DEADLINE, || {
            let slices = self.0.values();
            (slices.len() == number && slices.values().all(is_complete)).then_some(())
        });
    }
}
