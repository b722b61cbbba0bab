//! Names, certificates and devices of groups in several tailnets, and names that several objects or groups compute.

use super::cluster::{Cluster, NS, encoded};
use super::*;
use crate::api::names;

fn exposed(namespace: &str, name: &str, annotations: Value) -> Value {
    let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
    let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "clusterIP": "10.96.0.9", "ports": ports});
    json!({"metadata": {"name": name, "namespace": namespace, "annotations": annotations}, "spec": spec})
}

fn ingress(cluster: &mut Cluster, namespace: &str, name: &str, host: &str, group: Option<&str>) {
    let backend = json!({"service": {"name": "web", "port": {"name": "web"}}});
    let spec = json!({"ingressClassName": "tailscale", "tls": [{"hosts": [host]}], "defaultBackend": backend});
    let annotations = group.map_or(json!({}), |group| json!({"tailscale.com/proxy-group": group}));
    cluster.put("Ingress", json!({"metadata": {"name": name, "namespace": namespace, "annotations": annotations}, "spec": spec}));
}

fn backends(cluster: &mut Cluster) {
    for namespace in ["first", "second"] {
        let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
        let spec = json!({"clusterIP": "10.96.0.10", "ports": ports});
        cluster.put("Service", json!({"metadata": {"name": "web", "namespace": namespace}, "spec": spec}));
    }
}

fn uid(cluster: &Cluster, name: &str) -> Option<String> {
    cluster.object("Secret", NS, name).map(|secret| secret["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
}

/// Two groups of different tailnets have one label; the Ingress of one is deleted.
#[test]
fn withdrawn_name_deletes_no_certificate_of_a_group_of_another_tailnet() {
    let mut cluster = Cluster::new();
    backends(&mut cluster);
    cluster.put("ProxyGroup", json!({"metadata": {"name": "in"}, "spec": {"type": "ingress", "replicas": 1}}));
    cluster.put("ProxyGroup", json!({"metadata": {"name": "far"}, "spec": {"type": "ingress", "replicas": 1, "tailnet": "t2"}}));
    ingress(&mut cluster, "first", "zap", "zap", Some("far"));
    let labels = json!({names::MANAGED: "true", names::PARENT_TYPE: names::PARENT_INGRESS, names::PARENT: "zap", names::PARENT_NAMESPACE: "first",
        names::PROXY_GROUP: "far", names::SECRET_TYPE: "certs"});
    let data = json!({"tls.crt": encoded("a chain"), "tls.key": encoded("a key")});
    cluster.put("Secret", json!({"metadata": {"name": "zap.tail9999.ts.net", "namespace": NS, "labels": labels}, "data": data}));
    let before = uid(&cluster, "zap.tail9999.ts.net");
    ingress(&mut cluster, "second", "later", "zap", Some("in"));
    for _ in 0..10 {
        cluster.pass("in");
        cluster.live();
        cluster.wait(1);
    }
    assert_eq!(uid(&cluster, "zap.tail9999.ts.net"), before);
    let time = cluster.time().to_string();
    cluster.patch("Ingress", "second", "later", &json!({"metadata": {"deletionTimestamp": time}}));
    for _ in 0..20 {
        cluster.pass("in");
        cluster.live();
        cluster.wait(30);
    }
    assert!(cluster.object("Ingress", "second", "later").is_none(), "released");
    assert_eq!(uid(&cluster, "zap.tail9999.ts.net"), before, "{:#?}", cluster.takeovers);
}

/// Two Tailnet objects are of one tailnet: each has an OAuth client of its own, for other tags. An Ingress in a group of the second one has
/// the name of an Ingress in a group of the first one.
#[test]
fn group_of_another_tailnet_object_takes_no_name_of_the_same_tailnet() {
    let mut cluster = Cluster::new();
    backends(&mut cluster);
    cluster.put("ProxyGroup", json!({"metadata": {"name": "in"}, "spec": {"type": "ingress", "replicas": 1}}));
    cluster.put("ProxyGroup", json!({"metadata": {"name": "in2"}, "spec": {"type": "ingress", "replicas": 1, "tailnet": "t2"}}));
    ingress(&mut cluster, "first", "shop", "shop", Some("in"));
    assert!(cluster.settles(), "{:?}", cluster.events);
    let before = cluster.vips["svc:shop"].clone();
    ingress(&mut cluster, "second", "later", "shop", Some("in2"));
    for _ in 0..20 {
        cluster.pass("in2");
        cluster.live();
        cluster.wait(1);
    }
    let advertises = |cluster: &Cluster, group: &str| {
        cluster.observe(&cluster.cache, group).replicas[&0]
            .config
            .as_ref()
            .is_some_and(|config| config.advertises().any(|name| name == "svc:shop"))
    };
    let taken = (advertises(&cluster, "in2"), cluster.vips["svc:shop"] != before);
    let time = cluster.time().to_string();
    cluster.patch("Ingress", "second", "later", &json!({"metadata": {"deletionTimestamp": time}}));
    for _ in 0..20 {
        cluster.pass("in2");
        cluster.live();
        cluster.wait(30);
    }
    let is_published = cluster.vips.contains_key("svc:shop");
    assert_eq!(
        (taken, is_published),
        ((false, false), true),
        "(advertised by the other group too, owner changed), the Tailscale Service of the first Ingress exists"
    );
}

/// The proxies of two tailnets have one login server. One that does not join has the host name of a replica in the other tailnet.
#[test]
fn key_of_a_proxy_in_another_tailnet_delays_no_replica() {
    let mut cluster = Cluster::new();
    cluster.put("Service", exposed("second", "later", json!({names::HOSTNAME: "far-0"})));
    assert!(cluster.settles());
    let workload = cluster.observe(&cluster.cache, "second/later").workload;
    // Its key is minutes old, and no device is recorded.
    cluster.patch("Secret", NS, &format!("{workload}-0-config"), &json!({"metadata": {"annotations": {names::DEVICE: null}}}));
    cluster.put("ProxyGroup", json!({"metadata": {"name": "far"}, "spec": {"type": "egress", "replicas": 1, "tailnet": "t2"}}));
    for _ in 0..20 {
        cluster.pass("far");
        cluster.live();
        cluster.wait(30);
    }
    let status = cluster.object("ProxyGroup", "", "far").map(|group| group["status"]["conditions"].to_string());
    assert!(cluster.minted.iter().any(|key| key.of == "far"), "no key in ten minutes: {status:?}");
}
