//! Connectors beside other workloads: names in the tailnet, names of objects, and the keys of a change.

use super::cluster::{Cluster, NS};
use super::namesakes::{ALL, LABEL, cluster};
use super::*;
use crate::api::condition::CONNECTOR_READY;

/// Creates a Connector, an exit node.
fn put(cluster: &mut Cluster, name: &str, more: Value) {
    let mut spec = json!({"exitNode": true});
    spec.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
    cluster.put("Connector", json!({"metadata": {"name": name, "generation": 1}, "spec": spec}));
}

/// Reason and message of the condition.
fn ready(cluster: &Cluster, name: &str) -> (String, String) {
    let conditions = cluster.object("Connector", "", name).expect("a Connector")["status"]["conditions"].clone();
    let ready =
        conditions.as_array().into_iter().flatten().find(|condition| condition["type"] == CONNECTOR_READY).cloned().unwrap_or_default();
    let text = |key: &str| ready[key].as_str().unwrap_or_default().to_owned();
    (text("reason"), text("message"))
}

fn delete(cluster: &mut Cluster, kind: &'static str, namespace: &str, name: &str) {
    let ended = json!({"metadata": {"deletionTimestamp": cluster.time().to_string()}});
    cluster.patch(kind, namespace, name, &ended);
}

/// Host names of all devices, in order.
fn hosts(cluster: &Cluster) -> Vec<String> {
    let mut hosts: Vec<_> = cluster.devices.values().map(|device| device.hostname.clone()).collect();
    hosts.sort_unstable();
    hosts
}

#[test]
fn connector_gets_no_name_of_another_object_until_that_ends() {
    for holder in ALL {
        let mut cluster = cluster();
        cluster.put(holder.kind(), holder.object("old"));
        assert!(cluster.settles(), "{holder:?}");
        put(&mut cluster, "exit", json!({"hostname": LABEL}));
        assert!(cluster.settles(), "{holder:?}");
        let (reason, message) = ready(&cluster, "exit");
        assert!(reason == "ConnectorInvalid" && message.contains("has the name shop already"), "{holder:?}: {reason} {message}");
        assert!(message.contains("spec.hostname") && holder.is_served(&cluster, "old"), "{holder:?}: {message}");
        delete(&mut cluster, holder.kind(), "old", super::namesakes::NAME);
        assert!(cluster.settles(), "{holder:?}");
        assert_eq!(ready(&cluster, "exit").0, "ConnectorCreated", "{holder:?}");
        assert!(hosts(&cluster).contains(&LABEL.to_owned()), "{holder:?}: {:?}", hosts(&cluster));
    }
}

#[test]
fn name_of_a_connector_is_no_other_objects_until_it_ends() {
    for taker in ALL {
        let mut cluster = cluster();
        put(&mut cluster, "exit", json!({"hostname": LABEL}));
        assert!(cluster.settles());
        cluster.put(taker.kind(), taker.object("new"));
        assert!(cluster.settles(), "{taker:?}");
        assert!(!taker.is_served(&cluster, "new") && taker.is_refused(&cluster, "new"), "{taker:?}");
        assert_eq!(ready(&cluster, "exit").0, "ConnectorCreated", "{taker:?}");
        delete(&mut cluster, "Connector", "", "exit");
        assert!(cluster.settles(), "{taker:?}");
        assert!(cluster.object("Connector", "", "exit").is_none() && taker.is_served(&cluster, "new"), "{taker:?}");
    }
}

/// A group that is created later, gets more replicas, or another prefix.
#[test]
fn group_gets_no_host_name_of_a_connector_until_that_ends() {
    for before in
        [None, Some(json!({"type": "egress", "replicas": 1, "hostnamePrefix": "way"})), Some(json!({"type": "egress", "replicas": 2}))]
    {
        let mut cluster = cluster();
        put(&mut cluster, "exit", json!({"hostname": "way-1"}));
        assert!(cluster.settles());
        if let Some(spec) = &before {
            cluster.put("ProxyGroup", json!({"metadata": {"name": "eg", "generation": 1}, "spec": spec}));
            assert!(cluster.settles());
        }
        let served = hosts(&cluster);
        let wanted = json!({"type": "egress", "replicas": 2, "hostnamePrefix": "way"});
        match &before {
            None => cluster.put("ProxyGroup", json!({"metadata": {"name": "eg", "generation": 1}, "spec": wanted})),
            Some(_) => cluster.patch("ProxyGroup", "", "eg", &json!({"metadata": {"generation": 2}, "spec": wanted})),
        }
        assert!(cluster.settles(), "{before:?}");
        let conditions = cluster.object("ProxyGroup", "", "eg").expect("a group")["status"]["conditions"].to_string();
        for text in ["ProxyGroupInvalid", "Connector exit has the name way-1 already", "spec.hostnamePrefix"] {
            assert!(conditions.contains(text), "{before:?}: {conditions}");
        }
        assert_eq!((ready(&cluster, "exit").0.as_str(), hosts(&cluster)), ("ConnectorCreated", served), "{before:?}");
        delete(&mut cluster, "Connector", "", "exit");
        assert!(cluster.settles(), "{before:?}");
        let own: Vec<_> = hosts(&cluster).into_iter().filter(|host| host.starts_with("way-")).collect();
        assert_eq!(own, ["way-0", "way-1"], "{before:?}");
    }
}

#[test]
fn devices_of_two_connectors_have_different_names() {
    for (first, second) in [
        (json!({"hostname": "way"}), json!({"hostname": "way"})),
        (json!({"hostnamePrefix": "way", "replicas": 2}), json!({"hostname": "way-1"})),
        (json!({"hostname": "way-1"}), json!({"hostnamePrefix": "way", "replicas": 2})),
        (json!({"hostname": "b-connector"}), json!({})),
    ] {
        let mut cluster = cluster();
        put(&mut cluster, "a", first.clone());
        put(&mut cluster, "b", second.clone());
        assert!(cluster.settles(), "{first} {second}");
        let reasons = ["a", "b"].map(|name| ready(&cluster, name).0);
        assert!(reasons.contains(&"ConnectorCreated".to_owned()) && reasons.contains(&"ConnectorInvalid".to_owned()), "{reasons:?}");
        let mut unique = hosts(&cluster);
        unique.dedup();
        assert_eq!(unique, hosts(&cluster), "{first} {second}");
    }
}

#[test]
fn workloads_of_one_name_have_objects_of_their_own() {
    let mut cluster = cluster();
    cluster.put("ProxyGroup", json!({"metadata": {"name": "lab"}, "spec": {"type": "egress", "replicas": 1}}));
    cluster.put("Service", cluster::exposed_service("default", "lab", json!({})));
    put(&mut cluster, "lab", json!({"replicas": 2}));
    assert!(cluster.settles());
    assert_eq!(cluster.takeovers, [""; 0]);
    let sets = cluster.objects.keys().filter(|(kind, namespace, name)| *kind == "StatefulSet" && namespace == NS && name.contains("lab"));
    assert_eq!(sets.count(), 3);
    assert_eq!(hosts(&cluster).iter().filter(|host| host.contains("lab")).count(), 4, "{:?}", hosts(&cluster));
    delete(&mut cluster, "Connector", "", "lab");
    assert!(cluster.settles());
    let named = |object: &Value| object["metadata"]["labels"][crate::api::names::PARENT_TYPE] == "connector";
    assert!(!cluster.objects.values().any(named), "the others stay alone");
    assert_eq!(cluster.takeovers, [""; 0]);
}

#[test]
fn change_of_class_or_tailnet_enqueues_the_connector() {
    let mut cluster = cluster();
    put(&mut cluster, "lab", json!({"proxyClass": "c", "tailnet": "t"}));
    let lab = WorkloadKey::from("Connector lab");
    for key in [WorkKey::Class("c".into()), WorkKey::Tailnet("t".into()), WorkKey::Workload(lab.clone())] {
        assert!(cluster.enqueued.contains(&key), "{:?}", cluster.enqueued);
    }
    assert_eq!((cluster.cache.users_of_class("c"), cluster.cache.users_of_tailnet(Some("t"))), (vec![lab.clone()], vec![lab.clone()]));
    assert!(!cluster.cache.users_of_tailnet(None).contains(&lab));
    assert_eq!(cluster.cache.tailnet_of(&lab), Some("t"));
    cluster.put("ProxyClass", json!({"metadata": {"name": "c"}, "spec": {}}));
    assert!(cluster.enqueued.contains(&WorkKey::Workload(lab.clone())));
    cluster.put("Tailnet", json!({"metadata": {"name": "t"}, "spec": {"credentials": {"secretName": "s"}}}));
    assert!(cluster.enqueued.contains(&WorkKey::Workload(lab)));
}
