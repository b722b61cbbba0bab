//! Policy for targets: in the config Secrets of all proxies, whatever the annotations of an object.

use std::net::IpAddr;

use k8s_openapi::ByteString;
use serde::Deserialize as _;

use super::cluster::{Cluster, NS};
use super::*;
use crate::api::targets;
use crate::api::targets::TargetRules;
use crate::model::controller::workload::objects::env::variable_of;
use crate::model::plan::targets::TargetPolicy;

const HOST: &str = "db.other.svc.cluster.local";

/// A cluster with a default class, a wide and a narrow one, and two groups.
fn cluster(default_groups: DefaultGroups) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.cache.default_class = Some("usual".to_owned());
    let assignment = AssignmentRules { defaults: default_groups, ..(*cluster.cache.assignment).clone() };
    cluster.cache.assignment = Arc::new(assignment);
    cluster.put("Namespace", json!({"metadata": {"name": "t"}}));
    class(&mut cluster, "usual", &[("TAILYARD_DENIED_TARGETS", "10.5.0.0/16")]);
    class(&mut cluster, "strict", &[("TAILYARD_DENIED_TARGETS", "10.6.0.0/16")]);
    class(&mut cluster, "wide", &[("TAILYARD_ALLOWED_TARGETS", "0.0.0.0/0")]);
    for (name, kind) in [("in", "ingress"), ("eg", "egress")] {
        cluster.put("ProxyGroup", json!({"metadata": {"name": name}, "spec": {"type": kind, "replicas": 1, "proxyClass": "strict"}}));
    }
    let addresses = json!([{"type": "InternalIP", "address": "10.0.0.4"}, {"type": "Hostname", "address": "n1"}]);
    cluster.put("Node", json!({"metadata": {"name": "n1"}, "status": {"addresses": addresses}}));
    cluster.put("ServiceCIDR", json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/12"]}}));
    let labels = json!({"kubernetes.io/service-name": "kubernetes"});
    let metadata = json!({"name": "kubernetes", "namespace": "default", "labels": labels});
    cluster.put("EndpointSlice", json!({"metadata": metadata, "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.9.9"]}]}));
    cluster
}

fn class(cluster: &mut Cluster, name: &str, env: &[(&str, &str)]) {
    let env: Vec<_> = env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    class_of(cluster, name, &json!({"env": env}));
}

fn class_of(cluster: &mut Cluster, name: &str, container: &Value) {
    let spec = json!({"statefulSet": {"pod": {"tailscaleContainer": container}}});
    let ready = json!({"type": "ProxyClassReady", "status": "True", "reason": "Valid", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    cluster.put("ProxyClass", json!({"metadata": {"name": name}, "spec": spec, "status": {"conditions": [ready]}}));
}

fn service(cluster: &mut Cluster, name: &str, metadata: &Value, host: &str) {
    let mut metadata = metadata.clone();
    (metadata["name"], metadata["namespace"]) = (json!(name), json!("t"));
    metadata["annotations"]["tailscale.com/expose"] = json!("true");
    cluster.put("Service", json!({"metadata": metadata, "spec": {"type": "ExternalName", "externalName": host, "ports": [{"port": 80}]}}));
}

fn rules(cluster: &Cluster, workload: &str) -> Option<TargetRules> {
    let secret = cluster.object("Secret", NS, &format!("{workload}-0-config"))?;
    let text = ByteString::deserialize(&secret["data"][targets::KEY]).ok()?;
    Some(serde_json::from_slice(&text.0).expect("rules"))
}

/// Policy of the proxies of a workload; `None` if it has none.
fn policy(cluster: &Cluster, key: &str) -> Option<TargetPolicy> {
    let workload = cluster.observe(&cluster.cache, key).workload;
    let set = cluster.object("StatefulSet", NS, &workload)?;
    let nets = |name| variable_of(set, name).unwrap_or_default().split(',').filter_map(|net| net.parse().ok()).collect();
    let (allowed, denied) = (nets("TAILYARD_ALLOWED_TARGETS"), nets("TAILYARD_DENIED_TARGETS"));
    Some(TargetPolicy { allowed, denied, rules: rules(cluster, &workload)?.into(), ..TargetPolicy::default() })
}

/// Addresses of these that the policy accepts for the host.
fn accepted(policy: &TargetPolicy) -> Vec<&'static str> {
    let all = ["10.0.0.4", "10.0.9.9", "10.96.0.10", "10.5.0.1", "10.6.0.1", "10.7.0.1", "169.254.169.254", "192.0.2.1"];
    let is_accepted = |text: &&str| policy.refuses_answer(text.parse::<IpAddr>().expect("an address"), false, HOST).is_none();
    all.into_iter().filter(is_accepted).collect()
}

#[test]
fn no_annotation_or_label_widens_the_policy_for_targets() {
    let ours = ["proxy-class", "proxy-group", "hostname", "tags", "funnel", "tailnet-ip", "tailnet-fqdn"]
        .map(|key| format!("tailscale.com/{key}"));
    let keys = ours.into_iter().chain([names::STANDBY, names::FORWARD_CLUSTER_TRAFFIC, names::PROXY_PROTOCOL].map(str::to_owned));
    let variants: Vec<Value> = keys
        .flat_map(|key| ["", "true", "wide", "strict", "10.7.0.1", "x/y"].map(|value| json!({(key.as_str()): value})))
        .flat_map(|one| {
            [json!({"annotations": one}), json!({"labels": one}), json!({"annotations": {names::PROXY_GROUP: ""}, "labels": one})]
        })
        .collect();
    for default in [None, Some("in".to_owned())] {
        let mut cluster = cluster(DefaultGroups { ingress: default.clone(), egress: None });
        service(&mut cluster, "plain", &json!({}), HOST);
        for (number, variant) in variants.iter().enumerate() {
            service(&mut cluster, &format!("s{number}"), variant, HOST);
        }
        assert!(cluster.settles(), "{:?}", cluster.events);
        let usual = accepted(&policy(&cluster, default.as_deref().unwrap_or("t/plain")).expect("a proxy"));
        assert_eq!(usual, if default.is_some() { ["10.5.0.1", "10.7.0.1", "192.0.2.1"] } else { ["10.6.0.1", "10.7.0.1", "192.0.2.1"] });
        let mut served = 0;
        for (number, variant) in variants.iter().enumerate() {
            let Some(policy) = policy(&cluster, &format!("t/s{number}")) else { continue };
            served += 1;
            let wider: Vec<_> = accepted(&policy).into_iter().filter(|ip| !usual.contains(ip)).collect();
            assert!(wider.is_empty(), "{variant} {default:?}: {wider:?}");
        }
        assert!(served > 10, "{served} proxies");
    }
}

#[test]
fn administrators_ranges_and_the_clusters_networks_reach_every_proxy_without_a_restart() {
    let mut cluster = cluster(DefaultGroups::default());
    service(&mut cluster, "db", &json!({}), HOST);
    assert!(cluster.settles());
    let workload = cluster.observe(&cluster.cache, "t/db").workload;
    let set = cluster.object("StatefulSet", NS, &workload).cloned();
    let nets = |rules: TargetRules| rules.cluster.iter().map(ToString::to_string).collect::<Vec<_>>();
    for workload in ["in", &workload] {
        assert_eq!(nets(rules(&cluster, workload).expect("rules")), ["10.0.0.4/32", "10.0.9.9/32", "10.96.0.0/12"]);
    }
    assert_eq!(nets(rules(&cluster, "eg").expect("rules")), [""; 0], "its targets are in the tailnet");
    cluster.settings_mut().denied_targets = vec!["10.7.0.0/16".parse().expect("a prefix")];
    cluster.settings_mut().allowed_targets = vec!["10.96.0.10/32".parse().expect("a prefix")];
    cluster.put("Node", json!({"metadata": {"name": "n2"}, "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.5"}]}}));
    assert!(cluster.settles());
    for workload in ["in", "eg", &workload] {
        let rules = rules(&cluster, workload).expect("rules");
        assert_eq!((rules.allowed.len(), rules.denied.len()), (1, 1), "{workload}");
    }
    assert_eq!(nets(rules(&cluster, &workload).expect("rules"))[0], "10.0.0.4/31");
    assert_eq!(accepted(&policy(&cluster, "t/db").expect("a proxy")), ["10.96.0.10", "10.6.0.1", "192.0.2.1"]);
    assert_eq!(cluster.object("StatefulSet", NS, &workload).map(|set| &set["spec"]), set.as_ref().map(|set| &set["spec"]));
}

#[test]
fn target_that_was_served_before_the_policy_stays_served_until_it_changes() {
    let mut cluster = cluster(DefaultGroups::default());
    let old = json!({"annotations": {"tailscale.com/proxy-class": "wide"}});
    service(&mut cluster, "db", &old, HOST);
    let grouped = json!({"annotations": {"tailscale.com/proxy-group": "in"}});
    service(&mut cluster, "grouped", &grouped, HOST);
    assert!(cluster.settles());
    let workload = cluster.observe(&cluster.cache, "t/db").workload;
    // As a former version left it.
    for secret in [format!("{workload}-0-config"), "in-0-config".to_owned()] {
        cluster.patch("Secret", NS, &secret, &json!({"data": {targets::KEY: null}}));
    }
    let mut set = cluster.object("StatefulSet", NS, &workload).cloned().expect("a StatefulSet");
    let env = set.pointer_mut("/spec/template/spec/containers/0/env").and_then(Value::as_array_mut).expect("a list");
    env.push(json!({"name": "TAILYARD_ALLOWED_TARGETS", "value": "0.0.0.0/0"}));
    cluster.put("StatefulSet", set);
    assert!(cluster.settles());
    assert!(accepted(&policy(&cluster, "t/db").expect("a proxy")).contains(&"169.254.169.254"), "its class is the same");
    for workload in ["in", &workload] {
        assert_eq!(rules(&cluster, workload).expect("rules").exempt, [HOST.to_owned()].into(), "{workload}");
    }
    service(&mut cluster, "late", &old, HOST);
    service(&mut cluster, "db", &json!({}), HOST);
    service(&mut cluster, "grouped", &grouped, "other.example");
    assert!(cluster.settles());
    let late = cluster.observe(&cluster.cache, "t/late").workload;
    assert!(rules(&cluster, &late).expect("rules").exempt.is_empty());
    assert_eq!(accepted(&policy(&cluster, "t/db").expect("a proxy"))[0], "10.0.0.4", "the target is the same");
    service(&mut cluster, "db", &json!({}), "other.example");
    assert!(cluster.settles());
    for workload in ["in", &workload] {
        assert!(rules(&cluster, workload).expect("rules").exempt.is_empty(), "{workload}");
    }
}

/// A class with the Tailscale operator's image follows no policy. The object takes it and leaves it.
#[test]
fn target_that_a_class_of_the_object_served_without_policy_is_not_exempt_afterwards() {
    let mut cluster = cluster(DefaultGroups::default());
    class_of(&mut cluster, "stock", &json!({"image": "tailscale/tailscale:v1"}));
    let stock = json!({"annotations": {"tailscale.com/proxy-class": "stock"}});
    for (name, first) in [("new", &stock), ("old", &json!({}))] {
        service(&mut cluster, name, first, HOST);
        assert!(cluster.settles(), "{:?}", cluster.events);
        service(&mut cluster, name, &stock, HOST);
        assert!(cluster.settles(), "{:?}", cluster.events);
        service(&mut cluster, name, &json!({}), HOST);
        assert!(cluster.settles(), "{:?}", cluster.events);
        let policy = policy(&cluster, &format!("t/{name}")).expect("a proxy");
        assert!(policy.rules.exempt.is_empty(), "{name}: {:?}", policy.rules);
        assert_eq!(accepted(&policy), ["10.6.0.1", "10.7.0.1", "192.0.2.1"], "{name}");
    }
}

/// Another object of the group names the exempt target of an object.
#[test]
fn exempt_target_of_an_object_is_not_another_ones() {
    let mut cluster = cluster(DefaultGroups::default());
    let grouped = json!({"annotations": {"tailscale.com/proxy-group": "in"}});
    service(&mut cluster, "grouped", &grouped, HOST);
    assert!(cluster.settles());
    cluster.patch("Secret", NS, "in-0-config", &json!({"data": {targets::KEY: null}}));
    assert!(cluster.settles());
    assert_eq!(rules(&cluster, "in").expect("rules").exempt, [HOST.to_owned()].into());
    service(&mut cluster, "later", &grouped, HOST);
    assert!(cluster.settles());
    let current = rules(&cluster, "in").expect("rules");
    let exempt: Vec<_> = current.exempt_services.keys().filter(|service| current.is_exempt(service, HOST)).collect();
    assert_eq!(exempt, ["svc:t-grouped"], "not svc:t-later");
    service(&mut cluster, "grouped", &grouped, "other.example");
    assert!(cluster.settles());
    let policy = policy(&cluster, "in").expect("a proxy");
    assert!(policy.rules.exempt.is_empty(), "{:?}: {:?}", policy.rules.exempt, accepted(&policy));
}
