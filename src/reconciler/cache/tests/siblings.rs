//! Addresses of an egress group's replicas in their config Secrets.

use std::net::IpAddr;

use k8s_openapi::ByteString;
use serde::Deserialize as _;

use super::cluster::{Cluster, NS};
use super::*;
use crate::api::siblings;
use crate::api::siblings::Siblings;

/// Addresses in the config Secret of a replica.
fn listed(cluster: &Cluster, replica: &str) -> Option<Vec<IpAddr>> {
    let secret = cluster.object("Secret", NS, &format!("{replica}-config"))?;
    let text = ByteString::deserialize(secret["data"].get(siblings::KEY)?).expect("base64");
    Some(serde_json::from_slice::<Siblings>(&text.0).expect("addresses").iter().copied().collect())
}

/// Addresses of Pods.
fn addresses(cluster: &Cluster, pods: &[&str]) -> Vec<IpAddr> {
    let ip = |pod: &&str| cluster.object("Pod", NS, pod).expect("a Pod")["status"]["podIP"].as_str().expect("an address").parse();
    let mut all: Vec<IpAddr> = pods.iter().map(|pod| ip(pod).expect("an address")).collect();
    all.sort();
    all
}

#[test]
fn replicas_of_an_egress_group_have_the_addresses_of_those_that_do_not_leave() {
    let mut cluster = Cluster::new();
    for (name, kind) in [("eg", "egress"), ("in", "ingress")] {
        cluster.put("ProxyGroup", json!({"metadata": {"name": name}, "spec": {"type": kind, "replicas": 3}}));
    }
    assert!(cluster.settles(), "{:?}", cluster.events);
    let pods = ["eg-0", "eg-1", "eg-2"];
    let all = addresses(&cluster, &pods);
    assert_eq!(pods.map(|pod| listed(&cluster, pod)), [Some(all.clone()), Some(all.clone()), Some(all)]);
    assert_eq!(listed(&cluster, "in-0"), None, "its flows come from the tailnet");

    cluster.patch("Pod", NS, "eg-1", &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    assert!(cluster.pass("eg"));
    assert_eq!(listed(&cluster, "eg-0"), Some(addresses(&cluster, &["eg-0", "eg-2"])), "it leaves");

    cluster.patch("Pod", NS, "eg-2", &json!({"status": {"phase": "Failed"}}));
    assert!(cluster.pass("eg"));
    assert_eq!(listed(&cluster, "eg-0"), Some(addresses(&cluster, &["eg-0"])), "its address may be that of another Pod");

    cluster.delete_object("Pod", NS, "eg-2");
    cluster.delete_object("Pod", NS, "eg-1");
    assert!(cluster.settles(), "{:?}", cluster.events);
    assert_eq!(listed(&cluster, "eg-0"), Some(addresses(&cluster, &pods)), "its next Pod");
}
