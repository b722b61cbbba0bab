//! Ingress on headscale: a Service of the cluster at an address that a group's replicas advertise as a route. The reconciler approves the
//! route.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{ANSWER, answer};
use crate::stage::{PORT, Stage, whole};
use kit::cluster::chart::NAMESPACE;
use kit::cluster::{Cluster, DEADLINE, pods};
use kit::machine::Machine;
use kit::wait::eventually;

/// First address of the group.
const ADDRESS: [u8; 4] = [10, 9, 0, 1];
/// Timeout of one attempt.
const PATIENCE: Duration = Duration::from_secs(2);

/// A client that accepts routes reaches the Service, also through the other replica, and soon after the node of the one with the route is
/// lost; afterwards nothing is left of it.
pub(crate) fn a_service_is_reached_by_a_route_that_was_approved(stage: &Stage) {
    let cluster = &stage.cluster;
    let guest = cluster.tailnet.machine("guest");
    let _tailscaled = guest.tailscaled();
    cluster.tailnet.join(&guest, &["--accept-routes"]);
    cluster.apply(&[group(), service()]);
    cluster.eventually_made(&["get", "-n", NAMESPACE, "statefulset/in"]);
    cluster.rolled_out(NAMESPACE, "statefulset/in");
    cluster.apply(&[pods::greeter("orders", Some(&whole::free_node(cluster, "in")), PORT, ANSWER)]);
    cluster.wait(&["--for=condition=TailscaleIngressSvcConfigured", "service/orders"]);
    eventually("an answer by the route", DEADLINE, || answer(&guest, ADDRESS.into(), PATIENCE));
    cluster.kubectl(&["delete", "pod/in-0", "-n", NAMESPACE]);
    eventually("an answer through the other replica", DEADLINE, || answer(&guest, ADDRESS.into(), PATIENCE));
    cluster.wait(&["-n", NAMESPACE, "--for=condition=Ready", "pod/in-0", "pod/in-1"]);
    a_lost_node_loses_its_route(stage, &guest);
    cluster.kubectl(&["delete", "service/orders", "pod/orders", "proxygroup/in", "--timeout=120s"]);
    whole::wait_gone(cluster, "in");
}

/// The node of the replica with the route is cut off: the control plane is made to use the other replica, long before it considers the
/// device offline by itself.
fn a_lost_node_loses_its_route(stage: &Stage, guest: &Machine) {
    let cluster = &stage.cluster;
    let replica = eventually("a replica has the route", DEADLINE, || route_holder(cluster));
    let name = pods::node(cluster, NAMESPACE, &replica);
    let node = cluster.nodes.iter().find(|node| node.name == name).expect("a node");
    let begin = Instant::now();
    cluster.tailnet.cut(&node.machine);
    eventually("the other replica has the route", DEADLINE, || route_holder(cluster).filter(|holder| *holder != replica));
    eventually("an answer by the replica that is left", DEADLINE, || answer(guest, ADDRESS.into(), PATIENCE));
    println!("the node of {replica} was cut off: answered after {:?}", begin.elapsed());
    cluster.tailnet.repair(&node.machine);
    cluster.wait(&["--for=condition=Ready", &format!("node/{name}")]);
    cluster.wait(&["-n", NAMESPACE, "--for=condition=Ready", "pod/in-0", "pod/in-1"]);
}

/// The replica to which headscale routes the address.
fn route_holder(cluster: &Cluster) -> Option<String> {
    let nodes: Value = serde_json::from_str(&cluster.tailnet.headscale(&["nodes", "list-routes", "-o", "json"])).expect("JSON");
    let route = json!(format!("{}/32", Ipv4Addr::from(ADDRESS)));
    let holds = |node: &&Value| node["subnet_routes"].as_array().is_some_and(|routes| routes.contains(&route));
    Some(nodes.as_array()?.iter().find(holds)?["given_name"].as_str()?.to_owned())
}

fn group() -> Value {
    json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": "in"},
        "spec": {"type": "ingress", "replicas": 2, "tailyard": {"serviceCIDRs": ["10.9.0.0/24"], "drainTimeoutSeconds": whole::GRACE}}})
}

fn service() -> Value {
    let annotations = json!({"tailscale.com/proxy-group": "in", "tailscale.com/expose": "true"});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "orders", "namespace": "default", "annotations": annotations},
        "spec": {"selector": {"app": "orders"}, "ports": [{"port": PORT}]}})
}
