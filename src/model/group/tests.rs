//! Passes over a small cluster: what they come to, what they never do, and that they end.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::json;
use world::{NS, World, idle, to};

use super::*;
use crate::api::condition::{EGRESS_SVC_CONFIGURED, EGRESS_SVC_READY, EGRESS_SVC_VALID};
use crate::model::objects::{Kind, ObjectRef};

mod world;

/// A cluster with a group that serves one Service.
fn serving() -> World {
    let mut world = World::new();
    world.group("pg", json!({"type": "egress"}));
    world.service("db", to("pg"), &[5432]);
    world.settle();
    world
}

fn object(kind: Kind, name: &str) -> ObjectRef {
    ObjectRef::new(kind, NS, name)
}

#[test]
fn one_annotated_service_is_served() {
    let mut world = serving();
    assert!(world.external_name("db").starts_with("ts-db-"), "{}", world.external_name("db"));
    let ready = world.condition("db", EGRESS_SVC_READY).expect("a condition");
    assert_eq!((ready.0.as_str(), ready.2.as_str()), ("True", "2 out of 2 replicas are ready to route traffic"));
    assert!(world.condition("db", EGRESS_SVC_CONFIGURED).expect("a condition").1.starts_with("ConfiguredFor:ProxyGroup:pg:Config:"));
    assert_eq!(world.ready("pg").1, "ProxyGroupReady");
    assert_eq!(world.groups["pg"].status.as_ref().expect("a status").devices.len(), 2);
    assert_eq!((world.minted, world.keys.len()), (2, 0), "one key for each replica, each used");
    let writes = world.writes;
    for _ in 0..1000 {
        assert!(idle(&world.pass("pg")));
    }
    assert_eq!(world.writes, writes);
}

#[test]
fn a_thousand_services_cost_at_most_five_writes_each() {
    let mut world = World::new();
    world.group("pg", json!({"type": "egress"}));
    world.settle();
    let before = world.writes;
    for index in 0..100 {
        world.service(&format!("s{index}"), to("pg"), &[80, 443]);
    }
    world.settle();
    let writes = world.writes - before;
    assert!(writes <= 5 * 100 + 5, "{writes} writes");
    assert!((0..100).all(|index| world.condition(&format!("s{index}"), EGRESS_SVC_READY).expect("a condition").0 == "True"));
}

#[test]
fn one_change_among_many_services_is_one_change() {
    let mut world = World::new();
    world.group("pg", json!({"type": "egress"}));
    for index in 0..300 {
        world.service(&format!("s{index}"), to("pg"), &[80]);
    }
    world.settle();
    let mut annotations = to("pg");
    annotations["tailscale.com/tailnet-fqdn"] = json!("other.tail1234.ts.net");
    world.service("s7", annotations, &[80]);
    let retarget = world.pass("pg");
    assert_eq!(retarget.apply.iter().map(|manifest| manifest.object.kind).collect::<Vec<_>>(), [Kind::ConfigMap]);
    world.settle();
    world.service("s7", to("pg"), &[80, 81]);
    let port = world.pass("pg");
    let kinds: Vec<_> = port.apply.iter().map(|manifest| manifest.object.kind).collect();
    assert_eq!(kinds, [Kind::Service, Kind::ConfigMap], "the record before the use");
    assert!(port.services.len() <= 1 && port.delete.is_empty());
}

#[test]
fn each_owned_object_comes_back() {
    let mut world = serving();
    let (name, entries) = (world.external_name("db"), world.entries("pg"));
    let all: Vec<_> = world.objects.keys().cloned().collect();
    assert!(all.len() >= 11, "{all:?}");
    for gone in all {
        world.objects.remove(&gone);
        let back = world.pass("pg");
        let minted = back.control.iter().any(|action| matches!(action, ControlAction::MintKey { .. }));
        assert!(minted || back.apply.iter().any(|manifest| manifest.object == gone), "{gone}");
        world.settle();
        assert!(world.objects.contains_key(&gone), "{gone}");
        assert_eq!((world.external_name("db"), world.entries("pg")), (name.clone(), entries.clone()), "{gone}");
    }
}

#[test]
fn drift_is_repaired() {
    let mut world = serving();
    let child = object(Kind::Service, world.external_name("db").split('.').next().expect("a label"));
    for (object, pointer, value) in [
        (child, "/spec/selector", json!({})),
        (object(Kind::Role, "pg"), "/rules/0/verbs", json!(["get", "list", "watch", "patch", "update", "delete"])),
        (object(Kind::StatefulSet, "pg"), "/spec/template/spec/terminationGracePeriodSeconds", json!(1)),
        (object(Kind::ConfigMap, "pg-egress-config"), "/binaryData", json!({})),
    ] {
        let mut held = serde_json::Value::clone(&world.objects[&object]);
        *held.pointer_mut(pointer).expect("a field") = value;
        world.objects.insert(object.clone(), held.into());
        let repaired = world.pass("pg");
        assert_eq!(repaired.apply.iter().map(|manifest| &manifest.object).collect::<Vec<_>>(), [&object]);
        assert!(idle(&world.pass("pg")));
    }
}

#[test]
fn the_name_waits_for_every_replica() {
    let mut world = World::new();
    world.group("pg", json!({"type": "egress", "replicas": 3}));
    world.settle();
    world.asleep.insert("pg-1".into());
    world.service("db", to("pg"), &[5432]);
    world.settle();
    assert_eq!(world.external_name("db"), "placeholder");
    let ready = world.condition("db", EGRESS_SVC_READY).expect("a condition");
    assert_eq!((ready.0.as_str(), ready.1.as_str()), ("False", "NotReadyToRouteTraffic"));
    world.asleep.clear();
    world.settle();
    assert!(world.external_name("db").starts_with("ts-db-"));
}

#[test]
fn a_replica_that_is_long_not_ready_holds_nobody_up() {
    let mut world = World::new();
    world.group("pg", json!({"type": "egress"}));
    world.settle();
    world.asleep.insert("pg-1".into());
    let pod = world.pods.get_mut("pg-1").expect("a Pod");
    let since = world.now;
    let status = json!({"podIP": "10.9.9.9", "conditions": [{"type": "Ready", "status": "False",
        "lastTransitionTime": k8s_openapi::jiff::Timestamp::from_second(since).expect("a time").to_string()}]});
    pod.status = serde_json::from_value(status).expect("a status");
    world.service("db", to("pg"), &[5432]);
    for _ in 0..10 {
        world.round();
    }
    assert_eq!(world.external_name("db"), "placeholder", "waited for at first");
    world.now += 60;
    world.round();
    assert!(world.external_name("db").starts_with("ts-db-"));
    assert_eq!(world.condition("db", EGRESS_SVC_READY).expect("a condition").1, "PartiallyReadyToRouteTraffic");
}

#[test]
fn ports_stay_when_others_come_and_go() {
    let mut world = serving();
    world.service("web", to("pg"), &[80, 443]);
    world.settle();
    let ports = |world: &World, key: &str| world.entries("pg")[key].ports.clone();
    let (db, web) = (ports(&world, "default-db"), ports(&world, "default-web"));
    world.service("web", to("pg"), &[443, 8080, 9002]);
    world.settle();
    let now = ports(&world, "default-web");
    assert_eq!(now[0], web[1], "443 keeps its port");
    assert!(now.iter().all(|port| port.match_port != web[0].match_port), "a freed port is not given at once");
    assert_eq!(ports(&world, "default-db"), db);
    let child = world.objects.iter().find(|(object, _)| object.name.starts_with("ts-web-")).expect("a child").1;
    let health = child["spec"]["ports"].as_array().expect("ports").iter().find(|port| port["name"] == "tailscale-health-check");
    assert_eq!(health.expect("a health port")["port"], 9003, "9002 is the user's now");
}

#[test]
fn when_all_ports_are_taken_the_service_says_so_and_others_go_on() {
    let mut world = World::new();
    world.group("pg", json!({"type": "egress", "tailyard": {"ports": {"from": 10000, "to": 10001}}}));
    world.service("a", to("pg"), &[1, 2]);
    world.settle();
    world.service("b", to("pg"), &[3]);
    world.settle();
    let configured = world.condition("b", EGRESS_SVC_CONFIGURED).expect("a condition");
    assert!(configured.0 == "False" && configured.2.contains("widen spec.tailyard.ports"), "{configured:?}");
    assert_eq!(world.condition("a", EGRESS_SVC_READY).expect("a condition").0, "True");
    world.delete_service("a");
    world.settle();
    assert_eq!(world.condition("b", EGRESS_SVC_READY).expect("a condition").0, "True");
}

#[test]
fn an_invalid_service_keeps_what_it_had() {
    let mut world = serving();
    let (name, entries) = (world.external_name("db"), world.entries("pg"));
    world.service("db", json!({"tailscale.com/proxy-group": "pg", "tailscale.com/tailnet-ip": "nonsense"}), &[5432]);
    let told = world.pass("pg");
    assert_eq!(told.events.iter().map(|event| event.reason).collect::<Vec<_>>(), ["INVALIDSERVICE"]);
    world.settle();
    assert_eq!((world.external_name("db"), world.entries("pg")), (name, entries));
    let valid = world.condition("db", EGRESS_SVC_VALID).expect("a condition");
    assert!(valid.1 == "EgressSvcInvalid" && valid.2.contains("is not an IP address"), "{valid:?}");
    assert_eq!(world.condition("db", EGRESS_SVC_CONFIGURED), None);
}

#[test]
fn a_moved_service_is_served_by_both_until_the_new_group_is_ready() {
    let mut world = serving();
    world.group("other", json!({"type": "egress"}));
    world.settle();
    let old = world.external_name("db");
    world.asleep.extend(["other-0".to_owned(), "other-1".to_owned()]);
    world.service("db", to("other"), &[5432]);
    world.settle();
    assert_eq!(world.external_name("db"), old, "the old group serves");
    assert_eq!((world.children().len(), world.entries("pg").len(), world.entries("other").len()), (2, 1, 1));
    world.asleep.clear();
    world.round();
    world.round();
    assert_ne!(world.external_name("db"), old);
    assert_eq!((world.children().len(), world.entries("pg").len()), (2, 1), "somebody may still have the old answer");
    world.settle();
    assert_eq!((world.children().len(), world.entries("pg").len(), world.entries("other").len()), (1, 0, 1));
    assert!(world.condition("db", EGRESS_SVC_CONFIGURED).expect("a condition").1.contains(":other:"));
}

#[test]
fn a_service_is_let_go_in_whatever_way() {
    for way in ["deleted", "group annotation", "target annotation"] {
        let mut world = serving();
        match way {
            "deleted" => world.delete_service("db"),
            "group annotation" => world.service("db", json!({"tailscale.com/tailnet-fqdn": "db.tail1234.ts.net"}), &[5432]),
            _ => world.service("db", json!({"tailscale.com/proxy-group": "pg"}), &[5432]),
        }
        let first = world.pass("pg");
        assert_eq!((first.delete.len(), world.entries("pg").len()), (1, 1), "{way}: the child goes before what serves it");
        world.settle();
        assert_eq!((world.children().len(), world.entries("pg").len()), (0, 0), "{way}");
        let left = world.services.get(&("default".to_owned(), "db".to_owned()));
        assert_eq!(left.is_none(), way == "deleted");
        let clean = |service: &Service| service.metadata.finalizers.iter().flatten().count() == 0 && !claims::recorded(service);
        assert!(left.is_none_or(clean), "{way}: {left:?}");
    }
}

#[test]
fn group_and_services_go_in_any_order() {
    let mut world = serving();
    world.delete_group("pg");
    let first = world.pass("pg");
    assert_eq!(first.delete.iter().map(|delete| delete.object.kind).collect::<Vec<_>>(), [Kind::StatefulSet]);
    assert!(first.control.is_empty() && world.devices.len() == 2, "Pods first");
    world.settle();
    assert!(world.groups.is_empty() && world.devices.is_empty() && world.pods.is_empty());
    assert_eq!(world.condition("db", EGRESS_SVC_VALID).expect("a condition").1, "ProxyGroupNotReady");
    world.delete_service("db");
    world.settle();
    assert!(world.services.is_empty() && world.objects.is_empty(), "{:?}", world.objects.keys());

    let mut world = serving();
    world.delete_service("db");
    world.delete_group("pg");
    world.settle();
    assert!(world.services.is_empty() && world.objects.is_empty() && world.groups.is_empty(), "{:?}", world.objects.keys());
}

#[test]
fn a_control_plane_that_is_away_delays_only_the_devices() {
    let mut world = serving();
    world.tailnet = TailnetState::Unavailable("Tailnet t does not exist: make it.".into());
    world.service("web", to("pg"), &[80]);
    world.settle();
    assert_eq!(world.condition("web", EGRESS_SVC_READY).expect("a condition").0, "True", "what forwards goes on");
    assert_eq!(world.ready("pg").1, "ProxyGroupTailnetUnavailable");
    world.delete_group("pg");
    for _ in 0..20 {
        world.round();
    }
    assert!(world.groups.contains_key("pg") && world.pods.is_empty(), "Pods go, the devices are waited for");
    world.now += 300;
    let last = world.pass("pg");
    assert_eq!(last.events.iter().filter(|event| event.reason == "DeviceLeftBehind").count(), 2);
    world.settle();
    assert!(world.groups.is_empty());
}

#[test]
fn a_replica_leaves_pod_first_then_device_then_secrets() {
    let mut world = serving();
    world.group("pg", json!({"type": "egress", "replicas": 1}));
    let before = world.objects[&object(Kind::StatefulSet, "pg")].clone();
    let first = world.pass("pg");
    assert_eq!(first.apply.iter().filter(|manifest| manifest.object.kind == Kind::StatefulSet).count(), 1);
    assert!(first.control.is_empty() && first.delete.is_empty());
    let after = &world.objects[&object(Kind::StatefulSet, "pg")];
    assert_eq!(before["spec"]["template"], after["spec"]["template"], "scaling restarts nobody");
    assert!(world.pass("pg").control.is_empty(), "its Pod is there");
    world.live();
    let second = world.pass("pg");
    assert!(matches!(&second.control[..], [ControlAction::DeleteDevice { ordinal: 1, then, .. }] if then.len() == 2));
    world.settle();
    assert_eq!((world.devices.len(), world.objects.contains_key(&object(Kind::Secret, "pg-1"))), (1, false));
    let role = world.objects[&object(Kind::Role, "pg")].to_string();
    assert!(!role.contains("pg-1"), "its rights go last");
}

#[test]
fn the_stock_image_is_started_with_its_keys_in_place() {
    let mut world = World::new();
    world.with_class(json!({"statefulSet": {"pod": {"tailscaleContainer": {"image": "tailscale/tailscale:v1.102.0"}}}}));
    world.group("pg", json!({"type": "egress"}));
    let first = world.pass("pg");
    assert!(first.control.len() == 2 && first.apply.iter().all(|manifest| manifest.object.kind != Kind::StatefulSet));
    world.settle();
    assert_eq!((world.ready("pg").1.as_str(), world.minted), ("ProxyGroupReady", 2));
    let before = world.objects[&object(Kind::StatefulSet, "pg")].clone();
    world.group("pg", json!({"type": "egress", "replicas": 5}));
    world.settle();
    let after = &world.objects[&object(Kind::StatefulSet, "pg")];
    assert_eq!(before["spec"]["template"], after["spec"]["template"], "scaling within ten restarts nobody");
}

#[test]
fn a_key_that_was_never_used_is_revoked() {
    let mut world = World::new();
    world.group("pg", json!({"type": "egress", "replicas": 1}));
    world.asleep.insert("pg-0".into());
    world.settle();
    assert_eq!((world.minted, world.keys.len()), (1, 1), "minted when the Pod is there, and once");
    world.group("pg", json!({"type": "egress", "replicas": 0}));
    world.settle();
    assert_eq!((world.minted, world.keys.len(), world.objects.contains_key(&object(Kind::Secret, "pg-0-config"))), (1, 0, false));
    assert_eq!(world.ready("pg").1, "ProxyGroupReady", "none is what was asked for");
}

#[test]
fn a_failed_key_is_replaced_once() {
    let mut world = serving();
    let state = object(Kind::Secret, "pg-0");
    let mut held = serde_json::Value::clone(&world.objects[&state]);
    held["data"]["reissue_authkey"] = json!("");
    world.objects.insert(state, held.into());
    world.asleep.insert("pg-0".into());
    let made = world.pass("pg");
    assert!(
        matches!(&made.control[..], [ControlAction::DeleteDevice { then, .. }, ControlAction::MintKey { reissue: true, .. }] if then.is_empty())
    );
    world.settle();
    assert_eq!(world.minted, 3);
}

#[test]
fn a_foreign_object_is_not_overwritten() {
    let mut world = World::new();
    let role = object(Kind::Role, "pg");
    let foreign = json!({"metadata": {"name": "pg", "namespace": NS, "uid": "x", "labels": {"tailscale.com/managed": "true",
        "tailscale.com/parent-resource-type": "proxygroup", "tailscale.com/parent-resource": "pg"},
        "ownerReferences": [{"uid": "other", "controller": true}]}, "rules": []});
    world.group("pg", json!({"type": "egress"}));
    let mut observed = world.observe("pg");
    observed.owned.insert(role.clone(), foreign.into());
    let made = pass(&observed);
    assert!(made.apply.iter().all(|manifest| manifest.object != role) && made.delete.is_empty());
    let update = made.group.and_then(|update| update.status).expect("a status");
    let ready = crate::model::conditions::get(&update.conditions, "ProxyGroupReady").expect("a condition");
    assert!(ready.reason == "ProxyGroupCreationFailed" && ready.message.starts_with("Role tailscale/pg is in the way"), "{ready:?}");
    assert_eq!(made.events[0].reason, "ProxyGroupCreationFailed");
}

#[test]
fn what_the_other_operator_made_is_taken_over() {
    let mut world = World::new();
    world.group("pg", json!({"type": "egress"}));
    world.service("db", to("pg"), &[5432]);
    let labels = json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "svc", "tailscale.com/parent-resource": "db",
        "tailscale.com/parent-resource-ns": "default", "tailscale.com/proxy-group": "pg", "tailscale.com/svc-type": "egress"});
    let child = json!({"metadata": {"name": "ts-db-x7k2p", "namespace": NS, "uid": "c", "labels": labels}, "spec": {"ports": [
        {"name": "p5432", "protocol": "TCP", "port": 5432, "targetPort": 10432},
        {"name": "tailscale-health-check", "protocol": "TCP", "port": 9002, "targetPort": 9002}]}});
    let slice = |name: &str, by: &str, ready: bool| {
        let mut labels = labels.clone();
        labels["kubernetes.io/service-name"] = json!("ts-db-x7k2p");
        labels["endpointslice.kubernetes.io/managed-by"] = json!(by);
        json!({"metadata": {"name": name, "namespace": NS, "uid": name, "labels": labels},
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}]})
    };
    world.objects.insert(object(Kind::Service, "ts-db-x7k2p"), child.into());
    world.objects.insert(object(Kind::EndpointSlice, "ts-db-x7k2p-ipv4"), slice("ts-db-x7k2p-ipv4", "tailscale.com", true).into());
    let first = world.pass("pg");
    let taken = first.apply.iter().find(|manifest| manifest.object.name == "ts-db-x7k2p").expect("the child is kept");
    assert!(taken.adopt && taken.value["spec"]["selector"]["tailscale.com/parent-resource"] == "pg");
    world.settle();
    assert_eq!(world.entries("pg")["default-db"].ports[0].match_port, 10432, "its port is kept");
    assert_eq!(world.external_name("db"), "ts-db-x7k2p.tailscale.svc.cluster.local");
    let old = object(Kind::EndpointSlice, "ts-db-x7k2p-ipv4");
    assert!(world.objects.contains_key(&old), "Kubernetes has none yet");
    let own = "endpointslice-controller.k8s.io";
    world.objects.insert(object(Kind::EndpointSlice, "ts-db-x7k2p-abc"), slice("ts-db-x7k2p-abc", own, false).into());
    assert!(idle(&world.pass("pg")), "and then none that is ready");
    world.objects.insert(object(Kind::EndpointSlice, "ts-db-x7k2p-abc"), slice("ts-db-x7k2p-abc", own, true).into());
    assert_eq!(world.pass("pg").delete.iter().map(|delete| &delete.object).collect::<Vec<_>>(), [&old]);
}

#[test]
fn names_that_run_together_are_told_apart() {
    let mut world = serving();
    let mut twin = world.services[&("default".to_owned(), "db".to_owned())].clone();
    (twin.metadata.namespace, twin.metadata.name) = (Some("a".into()), Some("b-c".into()));
    twin.status = None;
    world.services.insert(("a".into(), "b-c".into()), twin.clone());
    (twin.metadata.namespace, twin.metadata.name) = (Some("a-b".into()), Some("c".into()));
    world.services.insert(("a-b".into(), "c".into()), twin);
    world.settle();
    assert_eq!((world.entries("pg").len(), world.children().len()), (3, 3));
}

#[test]
fn groups_that_cannot_be_made_say_why() {
    let long = "g".repeat(53);
    let cases = [
        ("pg", json!({"type": "ingress"}), "not served by this version"),
        ("kube-apiserver-auth-proxy", json!({"type": "egress"}), "kept for the Tailscale operator"),
        (long.as_str(), json!({"type": "egress"}), "at most 52 characters"),
        ("pg", json!({"type": "egress", "tailyard": {"ports": {"from": 2, "to": 1}}}), "spec.tailyard.ports"),
        ("pg", json!({"type": "egress", "tailyard": {"drainGraceSeconds": -1}}), "drainGraceSeconds"),
    ];
    for (name, spec, says) in cases {
        let mut world = World::new();
        world.group(name, spec);
        world.settle();
        let ready = world.ready(name);
        assert!(ready.1 == "ProxyGroupInvalid" && ready.2.contains(says), "{ready:?}");
        assert!(!world.objects.keys().any(|object| object.kind == Kind::StatefulSet));
    }
    let mut world = World::new();
    world.class = Class::Missing("c".into());
    world.group("pg", json!({"type": "egress"}));
    world.settle();
    assert!(world.ready("pg").2.contains("ProxyClass c does not exist"));
    world.with_class(json!({"statefulSet": {"pod": {"tailscaleContainer": {"image": "tailscale/k8s-proxy:v1"}}}}));
    world.settle();
    assert!(world.ready("pg").2.contains("kube-apiserver"));
    world.class = Class::None;
    world.settle();
    assert_eq!(world.ready("pg").1, "ProxyGroupReady");
}

#[test]
fn a_service_is_told_of_a_group_that_is_not_there_or_not_egress() {
    let mut world = World::new();
    world.service("db", to("pg"), &[5432]);
    world.settle();
    assert_eq!(world.condition("db", EGRESS_SVC_VALID).map(|held| (held.0, held.1)), Some(("Unknown".into(), "ProxyGroupNotReady".into())));
    world.group("pg", json!({"type": "egress"}));
    world.settle();
    assert_eq!(world.condition("db", EGRESS_SVC_READY).expect("a condition").0, "True");
}

/// Something that users and clusters do.
#[derive(Debug, Clone)]
enum Act {
    Group(u8, u8),
    DeleteGroup(u8),
    Service(u8, u8, Vec<u16>),
    Break(u8, u8),
    Unannotate(u8),
    DeleteService(u8),
    Lose(u8),
    Restart(u8),
    Sleep(u8),
    Wake,
    Time(u8),
}

fn acts() -> impl Strategy<Value = Act> {
    let ports = prop::collection::btree_set(prop::sample::select(vec![80u16, 443, 5432, 9002]), 1..3);
    prop_oneof![
        3 => (0u8..3, 0u8..4).prop_map(|(group, replicas)| Act::Group(group, replicas)),
        1 => (0u8..3).prop_map(Act::DeleteGroup),
        6 => (0u8..4, 0u8..3, ports).prop_map(|(name, group, ports)| Act::Service(name, group, ports.into_iter().collect())),
        1 => (0u8..4, 0u8..3).prop_map(|(name, group)| Act::Break(name, group)),
        1 => (0u8..4).prop_map(Act::Unannotate),
        2 => (0u8..4).prop_map(Act::DeleteService),
        3 => any::<u8>().prop_map(Act::Lose),
        2 => any::<u8>().prop_map(Act::Restart),
        1 => any::<u8>().prop_map(Act::Sleep),
        1 => Just(Act::Wake),
        1 => any::<u8>().prop_map(Act::Time),
    ]
}

impl Act {
    fn on(&self, world: &mut World) {
        let (group, service) = (|group: u8| format!("g{group}"), |name: u8| format!("s{name}"));
        let nth = |count: usize, which: u8| usize::from(which) % count.max(1);
        match self {
            Self::Group(name, replicas) => {
                let deleting = world.groups.get(&group(*name)).is_some_and(|held| held.metadata.deletion_timestamp.is_some());
                if !deleting {
                    world.group(&group(*name), json!({"type": "egress", "replicas": replicas}));
                }
            }
            Self::DeleteGroup(name) => world.delete_group(&group(*name)),
            Self::Service(name, to_group, ports) => world.service(&service(*name), to(&group(*to_group)), ports),
            Self::Break(name, to_group) => {
                world.service(
                    &service(*name),
                    json!({"tailscale.com/proxy-group": group(*to_group), "tailscale.com/tailnet-ip": "x"}),
                    &[80],
                );
            }
            Self::Unannotate(name) => world.service(&service(*name), json!({}), &[80]),
            Self::DeleteService(name) => world.delete_service(&service(*name)),
            Self::Lose(which) => {
                // A state Secret that is lost takes the identity with it; the device is then nobody's.
                let config = |object: &&ObjectRef| object.kind != Kind::Secret;
                let lost = world.objects.keys().filter(config).nth(nth(world.objects.keys().filter(config).count(), *which)).cloned();
                lost.map(|lost| world.objects.remove(&lost));
            }
            Self::Restart(which) => {
                let pod = world.pods.keys().nth(nth(world.pods.len(), *which)).cloned();
                pod.map(|pod| world.pods.remove(&pod));
            }
            Self::Sleep(which) => world.asleep.extend(world.pods.keys().nth(nth(world.pods.len(), *which)).cloned()),
            Self::Wake => world.asleep.clear(),
            Self::Time(seconds) => world.now += i64::from(*seconds),
        }
    }
}

proptest! {
    // The same cases each time, as a run costs seconds; another seed explores others.
    #![proptest_config(ProptestConfig { cases: 48, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    /// Whatever happens in whatever order, passes come to an end, everything wanted is served, everything else is gone.
    #[test]
    fn passes_converge(acts in prop::collection::vec((acts(), 0u8..3), 1..30)) {
        let mut world = World::new();
        for (act, rounds) in acts {
            act.on(&mut world);
            for _ in 0..rounds {
                world.round();
            }
        }
        world.asleep.clear();
        world.settle();
        for ((_, name), service) in &world.services {
            prop_assert!(service.metadata.deletion_timestamp.is_none(), "{} is stuck", name);
            // The one that it names: a group that it was moved from may still be concerned, and serve it meanwhile.
            let Some(group) = service.metadata.annotations.as_ref().and_then(|all| all.get(names::PROXY_GROUP).cloned()) else { continue };
            let serves = world.groups.get(&group).is_some_and(|group| group.spec.replicas != Some(0));
            if serves && validate::service(service).is_empty() {
                prop_assert_eq!(&world.condition(name, EGRESS_SVC_READY).expect("a condition").0, "True", "{}", name);
                let key = format!("default-{name}");
                prop_assert!(world.entries(&group).contains_key(&key));
            }
        }
        prop_assert!(world.groups.values().all(|group| group.metadata.deletion_timestamp.is_none()));
        let replicas: usize = world.groups.values().map(|group| usize::try_from(group.spec.replicas.unwrap_or(2)).expect("a number")).sum();
        prop_assert_eq!((world.devices.len(), world.keys.len()), (replicas, 0), "nothing is left behind");
        for group in world.groups.keys().cloned().collect::<Vec<_>>() {
            world.delete_group(&group);
        }
        for name in world.services.keys().map(|(_, name)| name.clone()).collect::<Vec<_>>() {
            world.delete_service(&name);
        }
        world.settle();
        prop_assert!(world.services.is_empty() && world.groups.is_empty(), "{:?}", world.services.keys());
        prop_assert!(world.objects.is_empty() && world.devices.is_empty(), "{:?}", world.objects.keys());
    }
}
