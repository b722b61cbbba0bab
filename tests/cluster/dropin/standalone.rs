//! Standalone proxies on a cluster with both operators: one of each kind of Service that gets one, and another one to be deleted.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use kit::cluster::DEADLINE;
use kit::cluster::chart::NAMESPACE;
use kit::operators::{PORT, Stage};
use kit::tailnet_client::TailnetClient;
use kit::wait::{eventually, until};

use crate::dropin::acts::{Client, Path};
use crate::dropin::{ANSWER, ONCE};

/// Parent of a proxy, as its label has it.
const SERVICE: &str = "svc";
/// Names of the Services.
pub(crate) const NAMES: [&str; 4] = ["solo", "open", "far", "fixed"];
/// Connections per second of each path.
pub(crate) const RATE: &str = "5";

/// Name of a Service's device.
fn device(service: &str) -> String {
    format!("default-{service}")
}

/// Addresses of the devices.
pub(crate) fn addresses(stage: &Stage) -> Vec<BTreeSet<IpAddr>> {
    NAMES.iter().map(|name| stage.cluster.tailnet.addresses_of(&device(name)).into_iter().collect()).collect()
}

/// Names of the Pods.
pub(crate) fn pods(stage: &Stage) -> Vec<String> {
    NAMES.iter().map(|name| pod(stage, SERVICE, name, "{.metadata.name}")).collect()
}

/// Creates the Services.
pub(crate) fn create(stage: &Stage) {
    let services: Vec<Value> = ["", ONCE].iter().flat_map(|suffix| services(stage, suffix)).collect();
    stage.cluster.apply(&services);
}

fn services(stage: &Stage, suffix: &str) -> [Value; 4] {
    let tailnet = &stage.cluster.tailnet;
    let target = tailnet.addresses_of("db").into_iter().find(IpAddr::is_ipv4).expect("an address");
    let service = |name: &str, annotations: Value, spec: Value| {
        let labels = json!({"tailscale.com/proxy-class": "lab"});
        let metadata = json!({"name": format!("{name}{suffix}"), "namespace": "default", "labels": labels, "annotations": annotations});
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    };
    let outside = json!({"type": "ExternalName", "externalName": "placeholder"});
    let inside = json!({"selector": {"app": "web"}, "ports": [{"port": PORT}]});
    let mut balanced = inside.clone();
    balanced["type"] = json!("LoadBalancer");
    balanced["loadBalancerClass"] = json!("tailscale");
    [
        service("solo", json!({}), balanced),
        service("open", json!({"tailscale.com/expose": "true"}), inside),
        service("far", json!({"tailscale.com/tailnet-fqdn": tailnet.name_of("db")}), outside.clone()),
        service("fixed", json!({"tailscale.com/tailnet-ip": target.to_string()}), outside),
    ]
}

/// Waits until the operator in charge reports all Services ready.
pub(crate) fn wait_until_ready(stage: &Stage) {
    let all: Vec<String> = ["", ONCE].iter().flat_map(|suffix| NAMES.map(|name| format!("{name}{suffix}"))).collect();
    let services: Vec<String> = all.iter().map(|name| format!("service/{name}")).collect();
    let services: Vec<&str> = services.iter().map(String::as_str).collect();
    stage.cluster.wait(&[&["--for=condition=TailscaleProxyReady"][..], &services].concat());
    // The Tailscale operator reports most Services as ready before their proxies have joined.
    until("all devices have joined", DEADLINE, || all.iter().all(|name| stage.cluster.tailnet.knows(&device(name))));
}

/// Paths through the proxies.
pub(crate) fn paths<'a>(stage: &'a Stage, user: &'a TailnetClient) -> [Path<'a>; 4] {
    let exposed = Client::Tailnet(user, PORT, ANSWER);
    [
        Path { kind: "Service of class `tailscale`", client: exposed, target: "default-solo", rate: RATE },
        Path { kind: "Service with `tailscale.com/expose`", client: exposed, target: "default-open", rate: RATE },
        Path { kind: "egress Service with `tailscale.com/tailnet-fqdn`", client: Client::Pod(stage), target: "far", rate: RATE },
        Path { kind: "egress Service with `tailscale.com/tailnet-ip`", client: Client::PodByIpv4(stage), target: "fixed", rate: RATE },
    ]
}

/// Fields of the Pod of a parent's proxy, by a template of kubectl.
pub(crate) fn pod(stage: &Stage, kind: &str, parent: &str, template: &str) -> String {
    let selector = format!("tailscale.com/parent-resource-type={kind},tailscale.com/parent-resource={parent}");
    let template = format!("jsonpath={{range .items[*]}}{template}{{end}}");
    stage.cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", &selector, "-o", &template])
}

/// Waits until the only Pod of a parent's proxy is ready and runs this image with a `ServiceAccount` of this prefix.
pub(crate) fn run_image(stage: &Stage, kind: &str, parent: &str, image: &str, account: &str) {
    let image_of = r#"{.spec.containers[?(@.name=="tailscale")].image}"#;
    let ready = r#"{.status.conditions[?(@.type=="Ready")].status}"#;
    let template = format!("{image_of} {ready} {{.spec.serviceAccountName}};");
    let expected = format!("{image} True {account}");
    eventually(&format!("the Pod of {parent} is replaced"), DEADLINE, || {
        let pods = pod(stage, kind, parent, &template);
        (pods.matches(';').count() == 1 && pods.starts_with(&expected)).then_some(())
    });
}

/// Waits until each proxy of a Service with one of these suffixes runs this image with a `ServiceAccount` of this prefix, and each Service is
/// ready.
pub(crate) fn run_images(stage: &Stage, suffixes: &[&str], image: &str, account: &str) {
    for name in suffixes.iter().flat_map(|suffix| NAMES.map(|name| format!("{name}{suffix}"))) {
        run_image(stage, SERVICE, &name, image, account);
        stage.cluster.wait(&["--for=condition=TailscaleProxyReady", &format!("service/{name}")]);
    }
}
