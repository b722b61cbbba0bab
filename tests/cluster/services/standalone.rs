//! Services without a group: each has a proxy of its own, on headscale.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{ANSWER, answer, devices};
use crate::stage::{PORT, Stage, whole};
use kit::cluster::chart::{self, NAMESPACE};
use kit::cluster::{DEADLINE, pods};
use kit::wait::eventually;

/// Timeout of one attempt.
const PATIENCE: Duration = Duration::from_secs(2);

/// A tailnet client reaches a Service of type `LoadBalancer` and a headless one, a Pod a tailnet node by its name; an unknown name is reported, and nothing is
/// left after the deletion.
pub(crate) fn services_have_proxies_of_their_own(stage: &Stage) {
    let cluster = &stage.cluster;
    let guest = cluster.tailnet.machine("solo-guest");
    let _tailscaled = guest.tailscaled();
    cluster.tailnet.join(&guest, &[]);
    let begin = Instant::now();
    cluster.apply(&[pods::greeter("solo", None, PORT, ANSWER), balanced(), headless(), egress()]);
    cluster.wait(&["--for=condition=TailscaleProxyReady", "service/solo", "service/bare", "service/far"]);
    println!("manifest to ready: {:?}", begin.elapsed());
    let address = cluster.kubectl(&["get", "service/solo", "-o", "jsonpath={.status.loadBalancer.ingress[1].ip}"]);
    let address: IpAddr = address.parse().expect("an address");
    eventually("an answer to the tailnet client", DEADLINE, || answer(&guest, address, PATIENCE));
    println!("manifest to the first byte: {:?}", begin.elapsed());
    for address in cluster.tailnet.addresses_of("default-bare").into_iter().filter(IpAddr::is_ipv4) {
        eventually("an answer by the headless Service", DEADLINE, || answer(&guest, address, PATIENCE));
    }
    eventually("an answer of the target", DEADLINE, || (whole::ask(cluster, "far")? == "spare").then_some(()));

    let target = |fqdn: &str| {
        cluster.kubectl(&["annotate", "--overwrite", "service/far", &format!("tailscale.com/tailnet-fqdn={fqdn}")]);
    };
    target("nothing.tail.lab");
    let condition = || {
        let path = r#"jsonpath={.status.conditions[?(@.type=="TailscaleProxyReady")]}"#;
        cluster.kubectl(&["get", "service/far", "-o", path])
    };
    eventually("the unknown name is reported", DEADLINE, || condition().contains("The target is not served: ").then_some(()));
    target("db.tail.lab");
    cluster.wait(&["--for=condition=TailscaleProxyReady", "service/far"]);
    eventually("an answer of the other target", DEADLINE, || (whole::ask(cluster, "far")? == "db").then_some(()));
    assert!(cluster.tailnet.knows("default-solo") && cluster.tailnet.knows("default-far"));

    cluster.kubectl(&["delete", "service/solo", "service/bare", "service/far", "pod/solo", "--timeout=120s"]);
    for name in ["solo", "bare", "far"] {
        chart::wait_gone(cluster, name);
        assert!(!cluster.tailnet.knows(&format!("default-{name}")), "its device is deleted before its finalizer");
    }
    let others = format!("tailyard.io/parent-service,tailyard.io/parent-service!={}", devices::NAME);
    let configs = cluster.kubectl(&["get", "secrets", "-n", NAMESPACE, "-l", &others, "-o", "name"]);
    assert_eq!(configs, "");
}

fn balanced() -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "solo", "namespace": "default"},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "tailscale", "allocateLoadBalancerNodePorts": false,
            "selector": {"app": "solo"}, "ports": [{"port": PORT}]}})
}

fn headless() -> Value {
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "bare", "namespace": "default", "annotations": {"tailscale.com/expose": "true"}},
        "spec": {"clusterIP": "None", "selector": {"app": "solo"}, "ports": [{"port": PORT}]}})
}

fn egress() -> Value {
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "far", "namespace": "default", "annotations": {"tailscale.com/tailnet-fqdn": "spare.tail.lab"}},
        "spec": {"type": "ExternalName", "externalName": "placeholder"}})
}
