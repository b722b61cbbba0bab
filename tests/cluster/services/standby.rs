//! A standalone proxy with a second Pod that takes over.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tailyard::model::base::leader::{FENCE_DELAY, LeaseTerms};

use super::{ANSWER, answer};
use crate::stage::{PORT, Stage};
use kit::cluster::chart::{self, NAMESPACE};
use kit::cluster::{Cluster, DEADLINE, pods};
use kit::wait::eventually;

/// Timeout of one attempt.
const PATIENCE: Duration = Duration::from_millis(500);
/// Time without a failed attempt after which an outage is over.
const QUIET: Duration = Duration::from_secs(2);

/// Longest time for which two Pods may run tailscaled, if one of them is on a lost node.
const FENCE: Duration = LeaseTerms::ACTIVE_POD.renew_deadline.saturating_add(FENCE_DELAY);

/// Name and holder of each Lease, by lines.
const LEASES: &str = r"jsonpath={range .items[*]}{.metadata.name} {.spec.holderIdentity}{'\n'}{end}";

/// Pods of the proxy: the ready one, and the waiting one.
struct Pair {
    active: String,
    waiting: String,
}

/// One Pod runs tailscaled, the other takes over when it is deleted, killed, hung or lost, as the same device. Both run it only while one is
/// on a lost node, and at most until its fence.
pub(crate) fn a_waiting_pod_takes_over(stage: &Stage) {
    let cluster = &stage.cluster;
    let guest = cluster.tailnet.machine("pair-guest");
    let _tailscaled = guest.tailscaled();
    cluster.tailnet.join(&guest, &[]);
    cluster.apply(&[service()]);
    cluster.wait(&["--for=condition=TailscaleProxyReady", "service/pair"]);
    let first = settled(cluster);
    let nodes = [&first.active, &first.waiting].map(|pod| pods::node(cluster, NAMESPACE, pod));
    assert_ne!(nodes[0], nodes[1]);
    let free = cluster.nodes.iter().find(|node| !nodes.contains(&node.name)).expect("a third node");
    cluster.apply(&[pods::greeter("pair", Some(&free.name), PORT, ANSWER)]);
    let address = cluster.kubectl(&["get", "service/pair", "-o", "jsonpath={.status.loadBalancer.ingress[1].ip}"]);
    let address: IpAddr = address.parse().expect("an address");
    eventually("an answer", DEADLINE, || answer(&guest, address, PATIENCE));
    let fail = |pair: &Pair, what: &str, both: Duration, fault: &dyn Fn()| {
        let uids = [&pair.active, &pair.waiting].map(|pod| pods::uid(cluster, NAMESPACE, pod));
        outage(&uids, (what, both), fault, || answer(&guest, address, PATIENCE).is_some())
    };
    let outage = |pair: &Pair, what: &str, fault: &dyn Fn()| {
        fail(pair, what, Duration::ZERO, fault);
    };

    outage(&first, "the active Pod is deleted", &|| {
        cluster.kubectl(&["delete", "pod", "-n", NAMESPACE, &first.active, "--wait=false"]);
    });
    let second = settled(cluster);
    assert_eq!(second.active, first.waiting, "the other one takes over");

    let uid = pods::uid(cluster, NAMESPACE, &second.active);
    let began = Instant::now();
    cluster.kubectl(&["delete", "pod", "-n", NAMESPACE, &second.active, "--force", "--grace-period=0"]);
    eventually("another Pod", DEADLINE, || holder(cluster).filter(|holder| *holder != uid && !holder.is_empty()));
    let moved = began.elapsed();
    println!("the active Pod is deleted by force: another has the Lease after {moved:?}");
    assert!(moved < LeaseTerms::ACTIVE_POD.renew_deadline, "it was released: {moved:?}");
    let second = settled(cluster);

    let uid = pods::uid(cluster, NAMESPACE, &second.active);
    outage(&second, "the active Pod is killed", &|| pods::signal(&uid, Some("tailyard"), Signal::SIGKILL));
    let third = settled(cluster);

    let uid = pods::uid(cluster, NAMESPACE, &third.active);
    outage(&third, "the active Pod hangs", &|| pods::signal(&uid, Some("tailyard"), Signal::SIGSTOP));
    pods::signal(&uid, Some("tailyard"), Signal::SIGCONT);
    let fourth = settled(cluster);
    assert_eq!(fourth.active, third.waiting, "its tailscaled was killed before the other one started");

    let name = pods::node(cluster, NAMESPACE, &fourth.active);
    let node = cluster.nodes.iter().find(|node| node.name == name).expect("a node");
    let moved = fail(&fourth, "the node of the active Pod is lost", FENCE, &|| cluster.tailnet.cut(&node.machine));
    assert!(moved < LeaseTerms::ACTIVE_POD.renew_deadline, "a reconciler passed its claim: {moved:?}");
    cluster.tailnet.repair(&node.machine);
    cluster.wait(&["--for=condition=Ready", &format!("node/{name}")]);
    assert_eq!(settled(cluster).active, fourth.waiting);
    cluster.wait(&["--for=condition=TailscaleProxyReady", "service/pair"]);
    assert!(cluster.tailnet.addresses_of("default-pair").contains(&address), "it is the same device");

    cluster.kubectl(&["delete", "service/pair", "pod/pair", "--timeout=120s"]);
    chart::wait_gone(cluster, "pair");
    assert!(!cluster.tailnet.knows("default-pair"), "its device is deleted before its finalizer");
    let leases = || cluster.kubectl(&["get", "leases", "-n", NAMESPACE, "-o", "name"]);
    eventually("its Lease is deleted", DEADLINE, || (!leases().contains("ts-pair-")).then_some(()));
}

/// UID of the Pod that holds the Lease; empty after a release.
fn holder(cluster: &Cluster) -> Option<String> {
    let leases = cluster.kubectl(&["get", "leases", "-n", NAMESPACE, "-o", LEASES]);
    leases.lines().find_map(|line| Some(line.strip_prefix("ts-pair-")?.split_once(' ')?.1.to_owned()))
}

/// Waits until the Pod that holds the Lease is ready, and the other one waits.
fn settled(cluster: &Cluster) -> Pair {
    let fields =
        [".metadata.name", ".metadata.uid", r#".status.conditions[?(@.type=="Ready")].status"#, ".status.containerStatuses[0].started"];
    let fields = fields.map(|field| format!("{{{field}}} ")).concat();
    let path = format!("jsonpath={{range .items[*]}}{fields}{{end}}");
    let found = || cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", "tailscale.com/parent-resource=pair", "-o", &path]);
    eventually("an active and a waiting Pod", DEADLINE, || {
        let (found, holder) = (found(), holder(cluster)?);
        let words: Vec<&str> = found.split_whitespace().collect();
        let pods = words.chunks(4).filter(|pod| pod.len() == 4 && pod[3] == "true");
        let (active, waiting): (Vec<_>, Vec<_>) = pods.partition(|pod| pod[1] == holder);
        match (active.as_slice(), waiting.as_slice()) {
            ([active], [waiting]) if active[2] == "True" && waiting[2] == "False" => {
                Some(Pair { active: active[0].to_owned(), waiting: waiting[0].to_owned() })
            }
            _ => None,
        }
    })
}

/// Runs a fault, and tries connections until they work by another process than before. Two run for at most `both`. Returns the time until the
/// other one started.
fn outage(uids: &[String; 2], (what, both): (&str, Duration), fault: &dyn Fn(), answers: impl Fn() -> bool) -> Duration {
    // The oldest one of a Pod: a child of tailscaled has its name until it executes another program.
    let running =
        || uids.each_ref().map(|uid| pods::processes(uid, Some("tailscaled")).into_iter().filter(|pid| !pods::is_ending(*pid)).min());
    let (before, begin) = (running(), Instant::now());
    fault();
    let (mut ended, mut moved, mut failed, mut single_since) = (None, None, begin, begin);
    while ended.is_none() || moved.is_none_or(|moved: Instant| moved.max(failed).elapsed() < QUIET) {
        let now = running();
        if now.contains(&None) {
            single_since = Instant::now();
        } else {
            assert!(single_since.elapsed() <= both, "{what}: both Pods run tailscaled after {:?}: {now:?}", begin.elapsed());
        }
        if before.iter().flatten().all(|pid| !now.contains(&Some(*pid))) {
            ended.get_or_insert_with(|| begin.elapsed());
        }
        if now.iter().flatten().any(|pid| !before.contains(&Some(*pid))) {
            moved.get_or_insert_with(Instant::now);
        }
        if !answers() {
            failed = Instant::now();
        }
        assert!(begin.elapsed() < DEADLINE, "{what}: no answer after {DEADLINE:?}");
    }
    let moved = moved.map_or(DEADLINE, |moved| moved - begin);
    println!(
        "{what}: tailscaled ended after {ended:?}, another started after {moved:?}, the last failed connection ended after {:?}",
        failed - begin
    );
    moved
}

fn service() -> Value {
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "pair", "namespace": "default", "annotations": {"tailyard.io/standby": "true"}},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "tailscale", "allocateLoadBalancerNodePorts": false,
            "selector": {"app": "pair"}, "ports": [{"port": PORT}]}})
}
