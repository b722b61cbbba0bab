//! Cluster as a new user sets it up: the chart, then a `ProxyGroup` and an annotated Service.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::PORT;
use kit::cluster::chart::{self, NAMESPACE};
use kit::cluster::load::Load;
use kit::cluster::{Cluster, DEADLINE, pods};
use kit::wait::eventually;

/// Drain timeout of the tests' replicas, in seconds.
pub(crate) const GRACE: u64 = 12;

/// New connections per second, and as many UDP flows if both are requested.
const RATE: &str = "200";
/// Rate at which hardly any source port is reused within two minutes. For that long the conntrack entry of an unanswered first packet
/// exists, and a connection from the same port follows it, even to an endpoint that is gone.
pub(crate) const SPARSE: [&str; 2] = ["--rate", "30"];

/// Starts a load of new connections to the Service `db` in a Pod of this name, optionally on a given node.
pub(crate) fn load<'a>(cluster: &'a Cluster, name: &str, node: Option<&str>, more: &[&str]) -> Load<'a> {
    let to = format!("db.default.svc.cluster.local:{PORT}");
    let rate = if more.contains(&"--rate") { &[][..] } else { &["--rate", RATE] };
    Load::begin(cluster, name, node, &[&[&to, "--expect", "db "], rate, more].concat())
}

/// Uninstalls the chart.
pub(crate) fn uninstall(cluster: &Cluster) {
    cluster.helm(&["uninstall", "tailyard", "-n", NAMESPACE, "--wait"]);
}

/// Every object of any kind in any namespace with our labels or written by our programs, except Events.
pub(crate) fn everything_of_ours(cluster: &Cluster) -> Vec<String> {
    let kinds = cluster.kubectl(&["api-resources", "--verbs=list", "-o", "name"]);
    let kinds: Vec<&str> = kinds.split_whitespace().filter(|kind| !kind.starts_with("events")).collect();
    let all = cluster.kubectl(&["get", &kinds.join(","), "-A", "-o", "json", "--show-managed-fields"]);
    let all: Value = serde_json::from_str(&all).expect("a list");
    let ours = |object: &&Value| {
        let (metadata, text) = (&object["metadata"], |value: &Value| value.as_str().unwrap_or_default().to_owned());
        let labels = &metadata["labels"];
        let written =
            metadata["managedFields"].as_array().into_iter().flatten().any(|write| text(&write["manager"]).starts_with("tailyard"));
        written || labels["tailscale.com/managed"] == "true" || labels["app.kubernetes.io/name"] == "tailyard"
    };
    let name = |object: &Value| format!("{}/{}", object["kind"], object["metadata"]["name"]).replace('"', "");
    all["items"].as_array().expect("items").iter().filter(ours).map(name).collect()
}

/// Number of objects of ours of each kind, without the revisions that Kubernetes keeps of each StatefulSet and `DaemonSet`.
pub(crate) fn count_by_kind(cluster: &Cluster) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for object in everything_of_ours(cluster) {
        let kind = object.split('/').next().expect("a kind");
        if kind != "ControllerRevision" {
            *counts.entry(kind.to_owned()).or_default() += 1;
        }
    }
    counts
}

/// Deletes the group `eg` and the Service `db` without a reconciler: their deletion waits for one.
pub(crate) fn delete_without_reconciler(cluster: &Cluster) {
    assert_eq!(ask(cluster, "db").as_deref(), Some("db"), "traffic needs no reconciler");
    cluster.kubectl(&["delete", "proxygroup/eg", "service/db", "--wait=false"]);
    let waits = cluster.kubectl(&["get", "proxygroup/eg", "-o", "jsonpath={.metadata.deletionTimestamp} {.metadata.finalizers}"]);
    assert!(waits.contains("tailscale.com/finalizer") && !waits.starts_with(' '), "{waits}");
}

/// A group of two replicas.
pub(crate) fn group(name: &str) -> Value {
    json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": name},
        "spec": {"type": "egress", "replicas": 2, "tailyard": {"drainTimeoutSeconds": GRACE}}})
}

/// A Service that a group routes to a tailnet node, over TCP and UDP.
pub(crate) fn service(name: &str, group: &str, fqdn: &str) -> Value {
    let annotations = json!({"tailscale.com/proxy-group": group, "tailscale.com/tailnet-fqdn": fqdn});
    let port = |protocol: &str| json!({"name": protocol.to_lowercase(), "port": PORT, "protocol": protocol});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {"type": "ExternalName", "externalName": "placeholder", "ports": [port("TCP"), port("UDP")]}})
}

/// Waits until the group `eg` and the Service `db` are in their desired state.
pub(crate) fn settled(cluster: &Cluster) {
    // Checked twice: the first check ensures that a rollout exists.
    let ready = || cluster.wait(&["--for=condition=ProxyGroupReady", "proxygroup/eg"]);
    ready();
    cluster.rolled_out(NAMESPACE, "statefulset/eg");
    ready();
    cluster.wait(&["--for=condition=TailscaleEgressSvcReady", "service/db"]);
}

/// Changes the number of replicas and waits for it.
pub(crate) fn scale(cluster: &Cluster, replicas: usize) {
    cluster.kubectl(&["patch", "proxygroup/eg", "--type=merge", "-p", &format!(r#"{{"spec":{{"replicas":{replicas}}}}}"#)]);
    for count in ["replicas", "readyReplicas"] {
        cluster.wait(&["-n", NAMESPACE, "statefulset/eg", &format!("--for=jsonpath={{.status.{count}}}={replicas}")]);
    }
}

/// Response of a Service to a client that connects by its name.
pub(crate) fn ask(cluster: &Cluster, service: &str) -> Option<String> {
    let name = format!("{service}.default.svc.cluster.local");
    let answer = cluster.try_in_pod("client", &["timeout", "10", "nc", &name, &PORT.to_string()])?;
    answer.split_whitespace().next().map(str::to_owned)
}

/// Names of the child Services of a Service; usually one.
pub(crate) fn children(cluster: &Cluster, service: &str) -> String {
    let selector = format!("tailscale.com/parent-resource={service},tailscale.com/parent-resource-ns=default");
    cluster.kubectl(&["get", "services", "-n", NAMESPACE, "-l", &selector, "-o", "jsonpath={.items[*].metadata.name}"])
}

/// A node without a replica of a group.
pub(crate) fn free_node(cluster: &Cluster, group: &str) -> String {
    let selector = format!("tailscale.com/parent-resource={group}");
    let taken = cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", &selector, "-o", "jsonpath={.items[*].spec.nodeName}"]);
    let taken: Vec<&str> = taken.split_whitespace().collect();
    cluster.nodes.iter().map(|node| node.name.clone()).find(|name| !taken.contains(&&name[..])).expect("a node without a replica")
}

/// Tailnet addresses of a replica.
pub(crate) fn addresses(cluster: &Cluster, replica: &str) -> Vec<String> {
    cluster.tailnet.addresses_of(replica).iter().map(ToString::to_string).collect()
}

/// Identity of each replica's run: UID of the Pod and restart counts of its containers.
pub(crate) fn lives(cluster: &Cluster, replicas: &[&str]) -> Vec<String> {
    let path = "{.metadata.uid} {.status.containerStatuses[*].restartCount}";
    replicas.iter().map(|replica| pods::field(cluster, NAMESPACE, replica, path)).collect()
}

/// Waits until nothing is left of a deleted group, nor of its replicas in the tailnet.
pub(crate) fn wait_gone(cluster: &Cluster, group: &str) {
    let gone = || (0..3).all(|ordinal| !cluster.tailnet.knows(&format!("{group}-{ordinal}")));
    eventually("the devices are gone", DEADLINE, || gone().then_some(()));
    chart::wait_gone(cluster, group);
}
