//! Standalone proxies on a cluster with both operators: a Service of type `LoadBalancer`, and an egress Service.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};

use kit::cluster::chart::NAMESPACE;
use kit::cluster::{DEADLINE, pods};
use kit::machine::Machine;
use kit::operators::{PORT, Stage};
use kit::wait::{eventually, until};

/// Response of the Pod.
const ANSWER: &str = "hello";
/// Timeout of one attempt.
const PATIENCE: Duration = Duration::from_secs(2);

/// Names of the devices of both proxies.
const DEVICES: [&str; 2] = ["default-solo", "default-far"];

/// Devices of both proxies.
pub(crate) fn devices(stage: &Stage) -> Vec<BTreeSet<IpAddr>> {
    DEVICES.iter().map(|name| stage.cluster.tailnet.addresses_of(name).into_iter().collect()).collect()
}

/// Creates the Services and a Pod, and waits until the operator in charge reports both ready.
pub(crate) fn create(stage: &Stage) {
    let metadata = |name: &str, annotations: Value| {
        let labels = json!({"tailscale.com/proxy-class": "lab"});
        json!({"name": name, "namespace": "default", "labels": labels, "annotations": annotations})
    };
    let target = stage.cluster.tailnet.name_of("db");
    stage.cluster.apply(&[
        pods::greeter("solo", None, PORT, ANSWER),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata("solo", json!({})),
            "spec": {"type": "LoadBalancer", "loadBalancerClass": "tailscale", "selector": {"app": "solo"}, "ports": [{"port": PORT}]}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata("far", json!({"tailscale.com/tailnet-fqdn": target})),
            "spec": {"type": "ExternalName", "externalName": "placeholder"}}),
    ]);
    stage.cluster.wait(&["--for=condition=TailscaleProxyReady", "service/solo", "service/far"]);
    // The Tailscale operator reports an egress Service as ready before its proxy has joined.
    until("both devices have joined", DEADLINE, || DEVICES.iter().all(|name| stage.cluster.tailnet.knows(name)));
}

/// Field of the Pod of a Service's proxy.
fn pod(stage: &Stage, service: &str, path: &str) -> String {
    let selector = format!("tailscale.com/parent-resource-type=svc,tailscale.com/parent-resource={service}");
    stage.cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", &selector, "-o", &format!("jsonpath={{.items[*]{path}}}")])
}

/// Names of the Pods of both proxies.
pub(crate) fn names(stage: &Stage) -> [String; 2] {
    ["solo", "far"].map(|service| pod(stage, service, ".metadata.name"))
}

/// Waits until the proxy of a Service runs this image with a `ServiceAccount` of this prefix, and the Service is ready.
pub(crate) fn run_image(stage: &Stage, service: &str, image: &str, account: &str) {
    eventually(&format!("the Pod of {service} is replaced"), DEADLINE, || {
        let is_image = pod(stage, service, ".spec.containers[?(@.name==\"tailscale\")].image") == image;
        let is_ready = pod(stage, service, ".status.conditions[?(@.type==\"Ready\")].status") == "True";
        (is_image && is_ready && pod(stage, service, ".spec.serviceAccountName").starts_with(account)).then_some(())
    });
    stage.cluster.wait(&["--for=condition=TailscaleProxyReady", &format!("service/{service}")]);
}

/// Waits until a tailnet client reaches the Pod.
pub(crate) fn reached(stage: &Stage, guest: &Machine) {
    let address = devices(stage)[0].iter().find(|ip| ip.is_ipv4()).copied().expect("an address");
    eventually("an answer to the tailnet client", DEADLINE, || {
        let mut text = String::new();
        guest.node.connect(SocketAddr::from((address, PORT)), PATIENCE).ok()?.read_to_string(&mut text).ok()?;
        (text.trim() == ANSWER).then_some(())
    });
}

/// Waits until a Pod reaches the tailnet target.
pub(crate) fn reaches(stage: &Stage) {
    eventually("an answer of the target", DEADLINE, || {
        let ask = ["timeout", "10", "nc", "far.default.svc.cluster.local", &PORT.to_string()];
        stage.cluster.try_in_pod("client", &ask)?.starts_with("db ").then_some(())
    });
}
