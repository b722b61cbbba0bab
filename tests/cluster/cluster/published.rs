//! Ingress on headscale: a Service of the cluster at an address that a group's replicas advertise as a route. The reconciler approves the
//! route.

use std::io::Read as _;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};

use super::{PORT, Stage};
use crate::cluster::whole;
use kit::cluster::DEADLINE;
use kit::cluster::chart::NAMESPACE;
use kit::cluster::images::TOOLS;
use kit::machine::Machine;
use kit::wait::eventually;

/// First address of the group.
const ADDRESS: [u8; 4] = [10, 9, 0, 1];
/// Response of the Pod.
const ANSWER: &str = "hello";
/// Timeout of one attempt.
const PATIENCE: Duration = Duration::from_secs(2);

/// A client that accepts routes reaches the Service, also through the other replica; afterwards nothing is left of it.
pub(crate) fn a_service_is_reached_by_a_route_that_was_approved(stage: &Stage) {
    let cluster = &stage.cluster;
    let guest = cluster.tailnet.machine("guest");
    let _tailscaled = guest.tailscaled();
    cluster.tailnet.join(&guest, &["--accept-routes"]);
    cluster.apply(&[group(), backend(), service()]);
    cluster.wait(&["--for=condition=TailscaleIngressSvcConfigured", "service/orders"]);
    eventually("an answer by the route", DEADLINE, || answer(&guest));
    cluster.kubectl(&["delete", "pod/in-0", "-n", NAMESPACE]);
    eventually("an answer through the other replica", DEADLINE, || answer(&guest));
    cluster.kubectl(&["delete", "service/orders", "pod/orders", "proxygroup/in", "--timeout=120s"]);
    whole::wait_gone(cluster, "in");
}

fn answer(guest: &Machine) -> Option<()> {
    let mut text = String::new();
    guest.node.connect(SocketAddr::from((ADDRESS, PORT)), PATIENCE).ok()?.read_to_string(&mut text).ok()?;
    (text.trim() == ANSWER).then_some(())
}

fn group() -> Value {
    json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": "in"},
        "spec": {"type": "ingress", "replicas": 2, "tailyard": {"serviceCIDRs": ["10.9.0.0/24"], "drainTimeoutSeconds": whole::GRACE}}})
}

fn backend() -> Value {
    let serve = ["greeter", &PORT.to_string(), ANSWER];
    let container = json!({"name": "orders", "image": TOOLS, "imagePullPolicy": "Never", "command": serve});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "orders", "namespace": "default", "labels": {"app": "orders"}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}})
}

fn service() -> Value {
    let annotations = json!({"tailscale.com/proxy-group": "in", "tailscale.com/expose": "true"});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "orders", "namespace": "default", "annotations": annotations},
        "spec": {"selector": {"app": "orders"}, "ports": [{"port": PORT}]}})
}
