//! Records of a nameserver: which objects have them, and which changes enqueue it.

use super::*;
use crate::model::controller::workload::settings::GroupSettings;

const ROLES: [WatchRole; 6] = [
    WatchRole::DnsConfig,
    WatchRole::Service,
    WatchRole::Ingress,
    WatchRole::Pod,
    WatchRole::Owned(Kind::Service),
    WatchRole::Owned(Kind::ConfigMap),
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

fn child_of(parent: &str, ips: &[&str]) -> Value {
    let labels = json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "svc", "tailscale.com/parent-resource": parent,
        "tailscale.com/parent-resource-ns": "u", "tailscale.com/proxy-group": "g", "tailscale.com/svc-type": "egress"});
    json!({"metadata": {"name": format!("ts-{parent}"), "namespace": "ts", "uid": parent, "resourceVersion": "1", "labels": labels},
        "spec": {"clusterIPs": ips}})
}

/// Pod of the proxy of an object.
fn pod(kind: &str, parent: &str, ip: &str, version: u32, ready: bool) -> Value {
    let labels = json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": kind, "tailscale.com/parent-resource": parent,
        "tailscale.com/parent-resource-ns": "u"});
    let status = json!({"phase": "Running", "podIPs": [{"ip": ip}], "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]});
    json!({"metadata": {"name": format!("ts-{parent}-0"), "namespace": "ts", "uid": ip, "resourceVersion": version.to_string(), "labels": labels},
        "status": status})
}

fn ingress(forwards: &str) -> Value {
    let annotations = json!({"tailscale.com/experimental-forward-cluster-traffic-via-ingress": forwards});
    json!({"metadata": {"name": "web", "namespace": "u", "resourceVersion": "1", "annotations": annotations},
        "spec": {"ingressClassName": "tailscale", "defaultBackend": {"service": {"name": "x", "port": {"number": 80}}}},
        "status": {"loadBalancer": {"ingress": [{"hostname": "web.tail.ts.net"}]}}})
}

fn ip4(cache: &ClusterCache) -> Value {
    let settings = GroupSettings::new("ts".to_owned(), "tailyard".to_owned());
    let document = cache.nameserver_inputs(&settings).1.records.document().0;
    serde_json::from_str::<Value>(&document).expect("JSON")["ip4"].clone()
}

#[test]
fn records_follow_services_children_pods_and_ingresses() {
    let mut cache = cache();
    assert!(!cache.put_json(WatchRole::Service, target("db", "db.tail.ts.net", Some("g"))).contains(&WorkKey::Nameserver));
    assert!(cache.put_json(WatchRole::DnsConfig, config("one")).contains(&WorkKey::Nameserver));
    assert_eq!(ip4(&cache), json!({}), "no address yet");
    assert!(cache.put_json(WatchRole::Owned(Kind::Service), child_of("db", &["10.96.0.7"])).contains(&WorkKey::Nameserver));
    assert_eq!(ip4(&cache), json!({"db.tail.ts.net": ["10.96.0.7"]}));
    cache.put_json(WatchRole::Service, target("own", "own.tail.ts.net", None));
    assert!(cache.put_json(WatchRole::Pod, pod("svc", "own", "10.1.0.1", 1, true)).contains(&WorkKey::Nameserver));
    cache.put_json(WatchRole::Ingress, ingress("true"));
    cache.put_json(WatchRole::Pod, pod("ingress", "web", "10.1.0.2", 1, true));
    let all = json!({"db.tail.ts.net": ["10.96.0.7"], "own.tail.ts.net": ["10.1.0.1"], "web.tail.ts.net": ["10.1.0.2"]});
    assert_eq!(ip4(&cache), all);
    cache.put_json(WatchRole::Pod, pod("svc", "own", "10.1.0.1", 2, false));
    assert_eq!(ip4(&cache)["own.tail.ts.net"], Value::Null, "a Pod that gets no traffic");
    let mut renamed = target("db", "new.tail.ts.net", Some("g"));
    renamed["metadata"]["resourceVersion"] = json!("2");
    assert!(cache.put_json(WatchRole::Service, renamed).contains(&WorkKey::Nameserver));
    assert_eq!(ip4(&cache), json!({"new.tail.ts.net": ["10.96.0.7"], "web.tail.ts.net": ["10.1.0.2"]}));
    let mut off = ingress("false");
    off["metadata"]["resourceVersion"] = json!("2");
    cache.put_json(WatchRole::Ingress, off);
    assert_eq!(ip4(&cache), json!({"new.tail.ts.net": ["10.96.0.7"]}), "its Pod refuses connections of the cluster");
}

#[test]
fn exposed_service_with_a_stray_target_has_no_record() {
    let mut cache = cache();
    cache.put_json(WatchRole::DnsConfig, config("one"));
    let mut both = target("own", "own.tail.ts.net", None);
    both["metadata"]["annotations"]["tailscale.com/expose"] = json!("true");
    cache.put_json(WatchRole::Service, both);
    cache.put_json(WatchRole::Pod, pod("svc", "own", "10.1.0.1", 1, true));
    assert_eq!(ip4(&cache), json!({}));
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
