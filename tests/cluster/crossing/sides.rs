//! Two clusters of one node each on one tailnet: one publishes, the other uses.

use std::path::Path;
use std::thread;

use serde_json::{Value, json};

use kit::cluster::images::{self, TOOLS};
use kit::cluster::pods::client;
use kit::cluster::{Cluster, DEADLINE, chart};
use kit::tailnet::Control;
use kit::wait::eventually;

/// Port of the published Service.
pub(crate) const PORT: u16 = 7000;
/// Response of its Pods.
const ANSWER: &str = "orders";

pub(crate) struct Sides {
    /// Cluster with the serving Pods.
    pub(crate) publisher: Cluster,
    /// Cluster with the client Pods.
    pub(crate) user: Cluster,
}

impl Sides {
    /// Starts both with the chart and a group on each; no Service exists yet.
    pub(crate) fn start() -> Self {
        let tailnet = Cluster::tailnet(Control::Hosted);
        let (publisher, user) = thread::scope(|scope| {
            let publisher = scope.spawn(|| Cluster::start_on(&tailnet, 1..=1));
            let user = Cluster::start_on(&tailnet, 2..=2);
            (publisher.join().expect("a cluster"), user)
        });
        let image = images::tailyard(tailnet.dir(), &user.bin, Path::new(kit::tailyard()));
        let sides = Self { publisher, user };
        thread::scope(|scope| {
            scope.spawn(|| set(&sides.publisher, &image, &[group("in", "ingress"), backend()], "deployment/orders"));
            set(&sides.user, &image, &[group("eg", "egress"), client()], "pod/client");
        });
        sides
    }

    /// Waits until a Pod of the publisher answers a Pod of the user.
    pub(crate) fn wait_for_answer(&self) {
        let name = "orders.default.svc.cluster.local";
        let ask = || self.user.try_in_pod("client", &["timeout", "10", "nc", name, &PORT.to_string()]);
        eventually("an answer from the other cluster", DEADLINE, || ask().filter(|answer| answer.trim() == ANSWER));
    }
}

/// Installs the chart on a cluster and applies these objects, the first of which is a group; waits until all are ready.
fn set(cluster: &Cluster, image: &Path, objects: &[Value], workload: &str) {
    cluster.load(image);
    chart::install(cluster, &[]);
    cluster.apply(objects);
    cluster.wait(&["--for=condition=ProxyGroupReady", &format!("proxygroup/{}", objects[0]["metadata"]["name"].as_str().expect("a name"))]);
    let condition = if workload.starts_with("pod/") { "Ready" } else { "Available" };
    cluster.wait(&[&format!("--for=condition={condition}"), workload]);
}

fn group(name: &str, kind: &str) -> Value {
    json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": name}, "spec": {"type": kind, "replicas": 2}})
}

/// Pods that send the response to every client.
fn backend() -> Value {
    let serve = ["greeter", &PORT.to_string(), ANSWER];
    let container = json!({"name": "orders", "image": TOOLS, "imagePullPolicy": "Never", "command": serve});
    let template =
        json!({"metadata": {"labels": {"app": "orders"}}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "orders", "namespace": "default"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "orders"}}, "template": template}})
}

/// The publisher's Service: these Pods as `orders` of the tailnet.
pub(crate) fn published() -> Value {
    let annotations = json!({"tailscale.com/proxy-group": "in", "tailscale.com/hostname": "orders"});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "orders", "namespace": "default", "annotations": annotations},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "tailscale", "ipFamilyPolicy": "PreferDualStack",
            "selector": {"app": "orders"}, "ports": [{"port": PORT}]}})
}

/// The user's Service: that tailnet name as a Service of the cluster.
pub(crate) fn egress(sides: &Sides) -> Value {
    let fqdn = sides.user.tailnet.name_of("orders");
    let annotations = json!({"tailscale.com/proxy-group": "eg", "tailscale.com/tailnet-fqdn": fqdn});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "orders", "namespace": "default", "annotations": annotations},
        "spec": {"type": "ExternalName", "externalName": "placeholder", "ports": [{"name": "orders", "port": PORT, "protocol": "TCP"}]}})
}
