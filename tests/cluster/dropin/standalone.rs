//! Standalone proxies on a cluster with both operators: a Service of type `LoadBalancer`, and an egress Service.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};

use kit::cluster::DEADLINE;
use kit::cluster::chart::NAMESPACE;
use kit::cluster::images::TOOLS;
use kit::operators::{PORT, Stage};
use kit::wait::eventually;

/// Response of the Pod.
const ANSWER: &str = "hello";
/// Timeout of one attempt.
const PATIENCE: Duration = Duration::from_secs(2);

/// Devices of both proxies.
pub(crate) fn devices(stage: &Stage) -> Vec<BTreeSet<IpAddr>> {
    ["default-solo", "default-far"].iter().map(|name| stage.cluster.tailnet.addresses_of(name).into_iter().collect()).collect()
}

/// Creates the Services and a Pod, and waits until the operator in charge reports both ready.
pub(crate) fn create(stage: &Stage) {
    let container = json!({"name": "solo", "image": TOOLS, "imagePullPolicy": "Never", "command": ["greeter", PORT.to_string(), ANSWER]});
    let metadata = |name: &str, annotations: Value| {
        let labels = json!({"tailscale.com/proxy-class": "lab"});
        json!({"name": name, "namespace": "default", "labels": labels, "annotations": annotations})
    };
    let target = stage.cluster.tailnet.name_of("db");
    stage.cluster.apply(&[
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "solo", "namespace": "default", "labels": {"app": "solo"}},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata("solo", json!({})),
            "spec": {"type": "LoadBalancer", "loadBalancerClass": "tailscale", "selector": {"app": "solo"}, "ports": [{"port": PORT}]}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata("far", json!({"tailscale.com/tailnet-fqdn": target})),
            "spec": {"type": "ExternalName", "externalName": "placeholder"}}),
    ]);
    ready(stage);
}

pub(crate) fn ready(stage: &Stage) {
    stage.cluster.wait(&["--for=condition=TailscaleProxyReady", "service/solo", "service/far"]);
}

/// Field of the proxies' Pods.
pub(crate) fn pods(stage: &Stage, path: &str) -> BTreeSet<String> {
    let selector = "tailscale.com/parent-resource-type=svc,tailscale.com/parent-resource-ns=default";
    let path = format!("jsonpath={{range .items[*]}}{path}{{\"\\n\"}}{{end}}");
    stage.cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", selector, "-o", &path]).lines().map(str::to_owned).collect()
}

/// Waits until both proxies run this image.
pub(crate) fn run_image(stage: &Stage, image: &str, service_account: impl Fn(&str) -> bool) {
    let path = "{.metadata.name} {.spec.serviceAccountName} {.spec.containers[?(@.name==\"tailscale\")].image} {.status.conditions[?(@.type==\"Ready\")].status}";
    eventually("the Pods are replaced", DEADLINE, || {
        let pods = pods(stage, path);
        let is = |pod: &String| {
            let fields: Vec<&str> = pod.split(' ').collect();
            service_account(fields[1]) && fields[2..] == [image, "True"]
        };
        (pods.len() == 2 && pods.iter().all(is)).then_some(())
    });
    ready(stage);
}

/// Checks both paths: from a tailnet client to the Pod, and from a Pod to the tailnet target.
pub(crate) fn served(stage: &Stage, guest: &kit::machine::Machine) {
    let address = devices(stage)[0].iter().find(|ip| ip.is_ipv4()).copied().expect("an address");
    eventually("an answer to the tailnet client", DEADLINE, || {
        let mut text = String::new();
        guest.node.connect(SocketAddr::from((address, PORT)), PATIENCE).ok()?.read_to_string(&mut text).ok()?;
        (text.trim() == ANSWER).then_some(())
    });
    eventually("an answer of the target", DEADLINE, || {
        let ask = ["timeout", "10", "nc", "far.default.svc.cluster.local", &PORT.to_string()];
        let answer = stage.cluster.try_in_pod("client", &ask)?;
        answer.starts_with("db ").then_some(())
    });
}
