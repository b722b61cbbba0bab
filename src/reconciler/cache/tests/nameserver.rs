//! Records of a nameserver: which objects have them, and which changes enqueue it.

use super::cluster::encoded;
use super::*;
use crate::model::controller::workload::settings::GroupSettings;

const ROLES: [WatchRole; 8] = [
    WatchRole::DnsConfig,
    WatchRole::Service,
    WatchRole::Ingress,
    WatchRole::Pod,
    WatchRole::Owned(Kind::Service),
    WatchRole::Owned(Kind::ConfigMap),
    WatchRole::Owned(Kind::Secret),
    WatchRole::Owned(Kind::StatefulSet),
];

fn cache() -> ClusterCache {
    let standalone = StandaloneScope::new(true, &[]);
    ClusterCache::new(None, ROLES).serving(&[ProxyGroupType::Egress], rules(DefaultGroups::default(), standalone)).in_namespace("ts")
}

fn config(name: &str) -> Value {
    json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}, "spec": {"nameserver": {}}})
}

fn target(name: &str, fqdn: &str, group: Option<&str>) -> Value {
    let mut annotations = json!({"tailscale.com/tailnet-fqdn": fqdn});
    if let Some(group) = group {
        annotations["tailscale.com/proxy-group"] = json!(group);
    }
    let metadata = json!({"name": name, "namespace": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": annotations});
    json!({"metadata": metadata, "spec": {"type": "ExternalName", "externalName": "x.invalid", "ports": [{"port": 80}]}})
}

/// A child with one port.
fn child_of(parent: &str, ip: &str, match_port: u16) -> Value {
    let labels = json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "svc", "tailscale.com/parent-resource": parent,
        "tailscale.com/parent-resource-ns": "u", "tailscale.com/proxy-group": "g", "tailscale.com/svc-type": "egress"});
    let ports = json!([{"port": 80, "targetPort": match_port}, {"name": "tailscale-health-check", "port": 9002, "targetPort": 9002}]);
    json!({"metadata": {"name": format!("ts-{parent}"), "namespace": "ts", "uid": parent, "resourceVersion": "1", "labels": labels},
        "spec": {"clusterIPs": [ip], "ports": ports}})
}

/// An object of the group, or of the proxy of an object: `kind` and name of its parent.
fn owned(name: &str, (kind, parent): (&str, &str), version: u32, content: Value) -> Value {
    let mut labels =
        json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": kind, "tailscale.com/parent-resource": parent});
    if kind != "proxygroup" {
        labels["tailscale.com/parent-resource-ns"] = json!("u");
    }
    let mut object = content;
    object["metadata"]["name"] = json!(name);
    object["metadata"]["namespace"] = json!("ts");
    object["metadata"]["uid"] = json!(name);
    object["metadata"]["resourceVersion"] = json!(version.to_string());
    object["metadata"]["labels"] = labels;
    object
}

/// Services of the egress config: names, match ports and targets.
fn services(all: &[(&str, u16, &str)]) -> Value {
    let service = |(name, match_port, fqdn): &(&str, u16, &str)| {
        let ports = json!([{"protocol": "TCP", "matchPort": match_port, "targetPort": 80}]);
        let target = json!({"ip": "", "fqdn": fqdn});
        ((*name).to_owned(), json!({"tailnetTarget": target, "ports": ports, "tailnetTargetIPs": ["100.64.0.9"]}))
    };
    Value::Object(all.iter().map(service).collect())
}

fn egress_config(all: &[(&str, u16, &str)], version: u32) -> Value {
    owned("g-egress-config", ("proxygroup", "g"), version, json!({"binaryData": {"egress-services": encoded(&services(all).to_string())}}))
}

/// State Secret of the replica that forwards these.
fn egress_status(all: &[(&str, u16, &str)], version: u32) -> Value {
    let status = json!({"podIPv4": "10.1.0.9", "services": services(all)}).to_string();
    owned("g-0", ("proxygroup", "g"), version, json!({"data": {"egress-services": encoded(&status)}}))
}

/// Pod of the proxy of an object, or of the group, with a variable.
fn pod(name: &str, parent: (&str, &str), (ip, ready): (&str, bool), variable: (&str, &str), version: u32) -> Value {
    let status = json!({"phase": "Running", "podIPs": [{"ip": ip}], "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]});
    let container = json!({"name": "tailscale", "env": [{"name": variable.0, "value": variable.1}]});
    owned(name, parent, version, json!({"spec": {"containers": [container]}, "status": status}))
}

fn ingress(forwards: &str) -> Value {
    let annotations = json!({"tailscale.com/experimental-forward-cluster-traffic-via-ingress": forwards});
    json!({"metadata": {"name": "web", "namespace": "u", "resourceVersion": "1", "annotations": annotations},
        "spec": {"ingressClassName": "tailscale", "defaultBackend": {"service": {"name": "x", "port": {"number": 80}}}},
        "status": {"loadBalancer": {"ingress": [{"hostname": "bank.tail.ts.net"}]}}})
}

/// Puts the proxy of the Ingress: its device has a name of the control plane.
fn put_ingress_proxy(cache: &mut ClusterCache) {
    let of = ("ingress", "web");
    let record = json!({"id": "n1", "name": "web.tail.ts.net", "addresses": ["100.64.0.3"]}).to_string();
    let site = json!({"svc:web": {"hosts": {"web.tail.ts.net": {}}}}).to_string();
    let config = json!({"binaryData": {"tailyard-routes.json": encoded(&site)}});
    cache.put_json(WatchRole::Owned(Kind::StatefulSet), owned("ts-web", of, 1, json!({"spec": {}})));
    cache.put_json(WatchRole::Owned(Kind::ConfigMap), owned("ts-web-ingress-config", of, 1, config));
    let annotated = json!({"metadata": {"annotations": {names::DEVICE: record}}});
    cache.put_json(WatchRole::Owned(Kind::Secret), owned("ts-web-0-config", of, 1, annotated));
    cache.put_json(WatchRole::Owned(Kind::Secret), owned("ts-web-0", of, 1, json!({"data": {"device_id": encoded("n1")}})));
    let serves = ("TAILYARD_SERVE_ON_POD_ADDRESS", "true");
    cache.put_json(WatchRole::Pod, pod("ts-web-0", of, ("10.1.0.2", true), serves, 1));
}

/// Records of what proxies serve now, without former ones.
fn ip4(cache: &ClusterCache) -> Value {
    let settings = GroupSettings::new("ts".to_owned(), "tailyard".to_owned());
    let plan = cache.nameserver_inputs(&settings).1.serving(&cache.serving_proxies()).records;
    serde_json::from_str::<Value>(&plan.document).expect("JSON")["ip4"].clone()
}

/// A group with the Service `db`, of which the replica forwards `status`.
fn group_with(config: &[(&str, u16, &str)], status: &[(&str, u16, &str)]) -> ClusterCache {
    let mut cache = cache();
    cache.put_json(WatchRole::DnsConfig, self::config("one"));
    cache.put_json(WatchRole::Service, target("db", "db.tail.ts.net", Some("g")));
    cache.put_json(WatchRole::Owned(Kind::Service), child_of("db", "10.96.0.7", 10_000));
    cache.put_json(WatchRole::Pod, pod("g-0", ("proxygroup", "g"), ("10.1.0.9", true), ("A", "b"), 1));
    cache.put_json(WatchRole::Owned(Kind::ConfigMap), egress_config(config, 1));
    cache.put_json(WatchRole::Owned(Kind::Secret), egress_status(status, 1));
    cache
}

#[test]
fn name_of_a_group_is_that_of_its_config_once_every_ready_pod_forwards_it() {
    let (db, former) = (("u-db", 10_000, "db.tail.ts.net"), ("u-db", 10_000, "former.tail.ts.net"));
    let (record, none) = (json!({"db.tail.ts.net": ["10.96.0.7"]}), json!({}));
    for (config, status, wanted, why) in [
        (&[db][..], &[db][..], &record, "served"),
        (&[db], &[], &none, "not forwarded yet"),
        (&[db], &[former], &none, "the Pod forwards another target"),
        (&[], &[db], &none, "the config has it no more"),
        (&[("u-db", 10_001, "db.tail.ts.net")], &[("u-db", 10_001, "db.tail.ts.net")], &none, "the port is that of another child"),
    ] {
        assert_eq!(ip4(&group_with(config, status)), *wanted, "{why}");
    }
    let requested = group_with(&[former], &[former]);
    assert_eq!(ip4(&requested), json!({"former.tail.ts.net": ["10.96.0.7"]}), "not that of the annotation");
    let mut second = group_with(&[db], &[db]);
    second.put_json(WatchRole::Pod, pod("g-1", ("proxygroup", "g"), ("10.1.0.8", true), ("A", "b"), 1));
    assert_eq!(ip4(&second), none, "a ready Pod without an acknowledgement");
    second.put_json(WatchRole::Pod, pod("g-1", ("proxygroup", "g"), ("10.1.0.8", false), ("A", "b"), 2));
    assert_eq!(ip4(&second), record, "it gets no traffic");
}

#[test]
fn changes_of_what_proxies_serve_enqueue_the_nameserver() {
    let db = ("u-db", 10_000, "db.tail.ts.net");
    let mut cache = group_with(&[db], &[]);
    let enqueues = |keys: BTreeSet<WorkKey>| keys.contains(&WorkKey::Nameserver);
    assert!(enqueues(cache.put_json(WatchRole::Owned(Kind::Secret), egress_status(&[db], 2))));
    assert!(enqueues(cache.put_json(WatchRole::Owned(Kind::ConfigMap), egress_config(&[], 2))));
    assert!(enqueues(cache.put_json(WatchRole::Owned(Kind::Service), child_of("other", "10.96.0.8", 10_001))));
    assert!(enqueues(cache.put_json(WatchRole::Pod, pod("ts-own-0", ("svc", "own"), ("10.1.0.1", true), ("A", "b"), 1))));
    let mut deleted = target("db", "db.tail.ts.net", Some("g"));
    deleted["metadata"]["resourceVersion"] = json!("2");
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-02T00:00:00Z");
    assert!(enqueues(cache.put_json(WatchRole::Service, deleted)));
    let plain = json!({"metadata": {"name": "x", "namespace": "u", "resourceVersion": "1"}, "spec": {"ports": [{"port": 80}]}});
    assert!(!enqueues(cache.put_json(WatchRole::Service, plain)), "a Service without a proxy");
}

#[test]
fn proxy_of_a_service_has_the_name_of_its_pod_while_that_is_ready() {
    let mut cache = cache();
    cache.put_json(WatchRole::DnsConfig, config("one"));
    cache.put_json(WatchRole::Service, target("own", "requested.tail.ts.net", None));
    let pod = |ready, version| pod("ts-own-0", ("svc", "own"), ("10.1.0.1", ready), ("TS_TAILNET_TARGET_FQDN", "own.tail.ts.net"), version);
    cache.put_json(WatchRole::Pod, pod(true, 1));
    assert_eq!(ip4(&cache), json!({"own.tail.ts.net": ["10.1.0.1"]}), "the Pod's target, not the requested one");
    cache.put_json(WatchRole::Pod, pod(false, 2));
    assert_eq!(ip4(&cache), json!({}), "a Pod that gets no traffic");
    cache.put_json(WatchRole::Pod, pod(true, 3));
    let mut both = target("own", "own.tail.ts.net", None);
    both["metadata"]["annotations"]["tailscale.com/expose"] = json!("true");
    both["metadata"]["resourceVersion"] = json!("2");
    cache.put_json(WatchRole::Service, both);
    assert_eq!(ip4(&cache), json!({}), "it is also exposed");
}

#[test]
fn ingress_has_the_name_of_its_device_and_none_of_its_status() {
    let mut cache = cache();
    cache.put_json(WatchRole::DnsConfig, config("one"));
    cache.put_json(WatchRole::Ingress, ingress("true"));
    put_ingress_proxy(&mut cache);
    assert_eq!(ip4(&cache), json!({"web.tail.ts.net": ["10.1.0.2"]}), "a tenant may write the status");
    let mut off = ingress("false");
    off["metadata"]["resourceVersion"] = json!("2");
    cache.put_json(WatchRole::Ingress, off);
    assert_eq!(ip4(&cache), json!({}), "its Pod refuses connections of the cluster");
}

#[test]
fn leftover_objects_of_a_nameserver_are_found_where_dns_configs_are_served_only() {
    let labels = json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "nameserver"});
    let map = || json!({"metadata": {"name": "dnsrecords", "namespace": "ts", "resourceVersion": "1", "uid": "u", "labels": labels}});
    let mut serving = cache();
    assert!(serving.put_json(WatchRole::Owned(Kind::ConfigMap), map()).contains(&WorkKey::Nameserver));
    assert!(serving.all().contains(&WorkKey::Nameserver) && serving.remaining().contains(&WorkKey::Nameserver));
    assert!(serving.gone_json(WatchRole::Owned(Kind::ConfigMap), &map()).contains(&WorkKey::Nameserver));
    assert!(!serving.all().contains(&WorkKey::Nameserver));
    let mut other = ClusterCache::new(None, [WatchRole::Owned(Kind::ConfigMap)]).in_namespace("ts");
    assert_eq!(other.put_json(WatchRole::Owned(Kind::ConfigMap), map()), BTreeSet::new(), "the Tailscale operator's");
    assert!(!other.all().contains(&WorkKey::Nameserver));
}
