//! Names, certificates and devices of groups in several tailnets, and names that several objects or groups compute.

use super::cluster::{Cluster, NS, encoded, exposed_service};
use super::*;
use crate::api::names;
use crate::model::controller::workload::objects::services::egress_config;

fn uid(cluster: &Cluster, name: &str) -> Option<String> {
    cluster.object("Secret", NS, name).map(|secret| secret["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
}

/// Groups `in` and `far` of two tailnets; `far` serves an Ingress of the name `zap`.
fn two_tailnets() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.put_backends(&["first", "second"]);
    cluster.put("ProxyGroup", json!({"metadata": {"name": "in"}, "spec": {"type": "ingress", "replicas": 1}}));
    cluster.put("ProxyGroup", json!({"metadata": {"name": "far"}, "spec": {"type": "ingress", "replicas": 1, "tailnet": "t2"}}));
    cluster.put_ingress("first", "zap", "zap", Some("far"));
    cluster
}

/// Creates the certificate of the Ingress of [`two_tailnets`]; returns its UID.
fn put_certificate_of_far(cluster: &mut Cluster) -> Option<String> {
    let labels = json!({names::MANAGED: "true", names::PARENT_TYPE: names::PARENT_INGRESS, names::PARENT: "zap", names::PARENT_NAMESPACE: "first",
        names::PROXY_GROUP: "far", names::SECRET_TYPE: "certs"});
    let data = json!({"tls.crt": encoded("a chain"), "tls.key": encoded("a key")});
    cluster.put("Secret", json!({"metadata": {"name": "zap.tail9999.ts.net", "namespace": NS, "labels": labels}, "data": data}));
    uid(cluster, "zap.tail9999.ts.net")
}

/// Passes of one group, this many seconds apart.
fn pass_often(cluster: &mut Cluster, group: &str, count: usize, seconds: i64) {
    for _ in 0..count {
        cluster.pass(group);
        cluster.live();
        cluster.wait(seconds);
    }
}

/// Proxies that have not joined record no domain.
#[test]
fn cost_of_a_comparison_of_tailnets_does_not_grow_with_proxies_that_have_not_joined() {
    let cost = |count: usize| {
        let mut cluster = two_tailnets();
        for number in 0..count {
            let labels = json!({names::MANAGED: "true", names::PARENT_TYPE: names::PARENT_SERVICE, names::PARENT: format!("s{number}"),
                names::PARENT_NAMESPACE: "first"});
            cluster.put("Secret", json!({"metadata": {"name": format!("ts-s{number}-abcde-0-config"), "namespace": NS, "labels": labels}}));
        }
        let replicas =
            cluster.cache.standalone_keys().filter_map(|key| cluster.cache.indices.workloads.get(key)).map(|one| one.replicas.len());
        assert_eq!(replicas.sum::<usize>(), count);
        let measured = allocation_counter::measure(|| drop(cluster.cache.other_tailnets(&"far".into())));
        measured.count_total
    };
    let (few, many) = (cost(10), cost(500));
    assert_eq!(few, many, "allocations");
}

/// Two groups of different tailnets have one label; the Ingress of one is deleted.
#[test]
fn withdrawn_name_deletes_no_certificate_of_a_group_of_another_tailnet() {
    let mut cluster = two_tailnets();
    let before = put_certificate_of_far(&mut cluster);
    cluster.put_ingress("second", "later", "zap", Some("in"));
    pass_often(&mut cluster, "in", 10, 1);
    assert_eq!(uid(&cluster, "zap.tail9999.ts.net"), before);
    let observed = cluster.observe(&cluster.cache, "in").owned;
    assert!(observed.keys().all(|object| object.name != "zap.tail9999.ts.net"), "it is in no quota of the group");
    let time = cluster.time().to_string();
    cluster.patch("Ingress", "second", "later", &json!({"metadata": {"deletionTimestamp": time}}));
    pass_often(&mut cluster, "in", 20, 30);
    assert!(cluster.object("Ingress", "second", "later").is_none(), "released");
    assert_eq!(uid(&cluster, "zap.tail9999.ts.net"), before, "{:#?}", cluster.takeovers);
}

/// The account of a group of this name would have the name of the Secret that standalone proxies share.
#[test]
fn no_group_has_the_shared_accounts_as_its_own() {
    let mut cluster = Cluster::new();
    cluster.put_backends(&["first", "second"]);
    cluster.put("ProxyGroup", json!({"metadata": {"name": "tailscale"}, "spec": {"type": "ingress", "replicas": 1}}));
    cluster.put("ProxyGroup", json!({"metadata": {"name": "in"}, "spec": {"type": "ingress", "replicas": 1}}));
    cluster.put_ingress("first", "shop", "shop", None);
    cluster.rounds(20);
    let writes = |cluster: &Cluster, group: &str| {
        cluster.object("Role", NS, group).map(|role| Cluster::role_secrets(role, "patch").contains(names::ACCOUNTS))
    };
    assert_eq!(writes(&cluster, "in"), Some(false));
    assert_eq!(writes(&cluster, "tailscale"), None);
}

#[test]
fn existing_group_with_the_name_of_the_shared_accounts_runs_without_them() {
    let mut cluster = Cluster::new();
    cluster.put("ProxyGroup", json!({"metadata": {"name": "tailscale"}, "spec": {"type": "ingress", "replicas": 1}}));
    let labels = json!({names::MANAGED: "true", names::PARENT_TYPE: names::PARENT_GROUP, names::PARENT: "tailscale"});
    let metadata = json!({"name": "tailscale", "namespace": NS, "labels": labels});
    cluster.put("StatefulSet", json!({"metadata": metadata, "spec": {"replicas": 1, "template": {"metadata": {"labels": labels}}}}));
    cluster.rounds(20);
    let role = cluster.object("Role", NS, "tailscale").expect("a Role");
    assert!(!Cluster::role_secrets(role, "patch").contains(names::ACCOUNTS));
    assert!(cluster.object("Secret", NS, "tailscale-0-config").is_some(), "it runs");
    let status = cluster.object("ProxyGroup", "", "tailscale").expect("a group")["status"].to_string();
    assert!(status.contains("is reserved for groups of type ingress"), "{status}");
}

/// Two Tailnet objects are of one tailnet: each has an OAuth client of its own, for other tags. An Ingress in a group of the second one has
/// the name of an Ingress in a group of the first one.
#[test]
fn group_of_another_tailnet_object_takes_no_name_of_the_same_tailnet() {
    let mut cluster = Cluster::new();
    cluster.put_backends(&["first", "second"]);
    cluster.put("ProxyGroup", json!({"metadata": {"name": "in"}, "spec": {"type": "ingress", "replicas": 1}}));
    cluster.put("ProxyGroup", json!({"metadata": {"name": "in2"}, "spec": {"type": "ingress", "replicas": 1, "tailnet": "t2"}}));
    cluster.put_ingress("first", "shop", "shop", Some("in"));
    assert!(cluster.settles(), "{:?}", cluster.events);
    let before = cluster.vips["svc:shop"].clone();
    cluster.put_ingress("second", "later", "shop", Some("in2"));
    pass_often(&mut cluster, "in2", 20, 1);
    let advertises = |cluster: &Cluster, group: &str| {
        cluster.observe(&cluster.cache, group).replicas[&0]
            .config
            .as_ref()
            .is_some_and(|config| config.advertises().any(|name| name == "svc:shop"))
    };
    let taken = (advertises(&cluster, "in2"), cluster.vips["svc:shop"] != before);
    let time = cluster.time().to_string();
    cluster.patch("Ingress", "second", "later", &json!({"metadata": {"deletionTimestamp": time}}));
    pass_often(&mut cluster, "in2", 20, 30);
    let is_published = cluster.vips.contains_key("svc:shop");
    assert_eq!(
        (taken, is_published),
        ((false, false), true),
        "(advertised by the other group too, owner changed), the Tailscale Service of the first Ingress exists"
    );
}

/// Two Services of one name in the egress config: the younger gets a hashed one, which is computable, and a third has that as its plain one.
#[test]
fn hashed_name_in_the_egress_config_is_no_other_services_name() {
    for is_former in [false, true] {
        let mut cluster = Cluster::new();
        cluster.put("ProxyGroup", json!({"metadata": {"name": "eg"}, "spec": {"type": "egress", "replicas": 1}}));
        let egress = |namespace: &str, name: &str, ip: &str| {
            let annotations = json!({names::PROXY_GROUP: "eg", names::TAILNET_IP: ip});
            let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
            json!({"metadata": {"name": name, "namespace": namespace, "annotations": annotations},
                "spec": {"type": "ExternalName", "externalName": "placeholder", "ports": ports}})
        };
        let targets = |cluster: &Cluster| -> BTreeMap<String, String> {
            let config = cluster.object("ConfigMap", NS, &names::egress_config("eg")).expect("a config");
            egress_config(config).into_iter().map(|(name, service)| (service.tailnet_target.ip, name)).collect()
        };
        cluster.put("Service", egress("a", "b-c", "100.64.9.1"));
        cluster.wait(10);
        cluster.put("Service", egress("a-b", "c", "100.64.9.2"));
        assert!(cluster.settles());
        let mut hashed = targets(&cluster)["100.64.9.2"].clone();
        let plain = hashed.replace('.', "-");
        if is_former {
            let config = cluster.object("ConfigMap", NS, &names::egress_config("eg")).expect("a config");
            let mut services = egress_config(config);
            let service = services.remove(&hashed).expect("a service");
            services.insert(plain.clone(), service);
            let text = serde_json::to_string(&services).expect("JSON");
            cluster.patch("ConfigMap", NS, &names::egress_config("eg"), &json!({"binaryData": {crate::api::egress::KEY: encoded(&text)}}));
            assert!(cluster.settles());
            hashed.clone_from(&plain);
        }
        let (namespace, name) = plain.split_once('-').expect("a dash");
        cluster.wait(10);
        cluster.put("Service", egress(namespace, name, "100.64.9.3"));
        cluster.rounds(30);
        let named = targets(&cluster);
        let third = if is_former { &named["100.64.9.3"] } else { &plain };
        assert_eq!(
            named,
            [("100.64.9.1", "a-b-c"), ("100.64.9.2", &hashed), ("100.64.9.3", third)]
                .map(|(ip, name)| (ip.to_owned(), name.to_owned()))
                .into()
        );
    }
}

/// The proxies of two tailnets have one login server. One that does not join has the host name of a replica in the other tailnet.
#[test]
fn key_of_a_proxy_in_another_tailnet_delays_no_replica() {
    let mut cluster = Cluster::new();
    cluster.put("Service", exposed_service("second", "later", json!({names::HOSTNAME: "far-0"})));
    assert!(cluster.settles());
    let workload = cluster.observe(&cluster.cache, "second/later").workload;
    // Its key is minutes old, and no device is recorded.
    cluster.patch("Secret", NS, &format!("{workload}-0-config"), &json!({"metadata": {"annotations": {names::DEVICE: null}}}));
    cluster.put("ProxyGroup", json!({"metadata": {"name": "far"}, "spec": {"type": "egress", "replicas": 1, "tailnet": "t2"}}));
    pass_often(&mut cluster, "far", 20, 30);
    let status = cluster.object("ProxyGroup", "", "far").map(|group| group["status"]["conditions"].to_string());
    assert!(cluster.minted.iter().any(|key| key.of == "far"), "no key in ten minutes: {status:?}");
}

#[test]
fn host_that_an_ingress_names_makes_no_certificate_of_another_tailnet_the_groups() {
    let mut cluster = two_tailnets();
    // A certificate that an administrator permits to Ingresses of all namespaces.
    cluster.put("Secret", json!({"metadata": {"name": "own", "namespace": NS, "labels": {names::OWN_CERTIFICATE: "true"}}, "data": {}}));
    cluster.put_ingress("second", "later", "zap", Some("in"));
    let tls = json!([{"hosts": ["zap"]}, {"hosts": ["zap.tail9999.ts.net"], "secretName": "own"}]);
    cluster.patch("Ingress", "second", "later", &json!({"spec": {"tls": tls}}));
    cluster.rounds(20);
    let before = put_certificate_of_far(&mut cluster);
    // An administrator stops the only group of the Tailnet object: it has no device record any more.
    cluster.patch("ProxyGroup", "", "in", &json!({"spec": {"replicas": 0}}));
    pass_often(&mut cluster, "in", 20, 30);
    let time = cluster.time().to_string();
    cluster.patch("Ingress", "second", "later", &json!({"metadata": {"deletionTimestamp": time}}));
    pass_often(&mut cluster, "in", 20, 30);
    assert_eq!(uid(&cluster, "zap.tail9999.ts.net"), before, "{:#?}", cluster.takeovers);
}
