//! Objects of a group: creation, repair, adoption, foreign owners and deletion.

use super::*;

#[test]
fn each_deleted_owned_object_is_recreated() {
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
        world.edit(&object, |stored| *stored.pointer_mut(pointer).expect("a field") = value);
        let repaired = world.pass("pg");
        assert_eq!(repaired.apply.iter().map(|manifest| &manifest.object).collect::<Vec<_>>(), [&object]);
        assert!(idle(&world.pass("pg")));
    }
}

#[test]
fn rollout_of_several_pods_at_once_is_corrected_and_its_default_is_never_written() {
    let mut world = serving();
    let set = object(Kind::StatefulSet, "pg");
    assert_eq!(world.objects[&set]["spec"]["updateStrategy"], json!(null), "an API server that drops the field gets it never");
    for (at_once, writes) in [(json!(1), 0), (json!(3), 1), (json!("50%"), 1)] {
        let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": at_once}});
        world.edit(&set, |stored| stored["spec"]["updateStrategy"] = strategy);
        let made = world.pass("pg").apply;
        assert_eq!(made.len(), writes, "{at_once}");
        let written = |manifest: &crate::model::controller::workload::objects::Manifest| {
            manifest.value["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == 1
        };
        assert!(made.iter().all(written), "{made:?}");
        world.settle();
        assert!(idle(&world.pass("pg")), "{at_once}: then it stays");
    }
}

#[test]
fn init_container_runs_the_command_of_its_own_image() {
    let (stock, own) = ("r/tailscale:v1", "r/tailyard:v1");
    for (main, init, command) in [
        (own, own, "tailyard"),
        (own, stock, "/bin/sh"),
        (stock, own, "tailyard"),
        (stock, stock, "/bin/sh"),
        (own, "", "tailyard"),
        (stock, "", "/bin/sh"),
    ] {
        let mut world = World::new();
        let init_container = if init.is_empty() { json!({}) } else { json!({"image": init}) };
        world
            .with_class(json!({"statefulSet": {"pod": {"tailscaleContainer": {"image": main}, "tailscaleInitContainer": init_container}}}));
        world.group("pg", json!({"type": "egress", "proxyClass": "c"}));
        world.settle();
        let container = &world.objects[&object(Kind::StatefulSet, "pg")]["spec"]["template"]["spec"]["initContainers"][0];
        let image = if init.is_empty() { main } else { init };
        assert_eq!((&container["image"], &container["command"][0]), (&json!(image), &json!(command)), "{main} {init}");
    }
}

#[test]
fn foreign_object_is_not_overwritten() {
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
    let update = made.group.and_then(|update| update.status?.group()).expect("a status");
    let ready = crate::model::base::conditions::get(&update.conditions, "ProxyGroupReady").expect("a condition");
    assert!(ready.reason == "ProxyGroupCreationFailed" && ready.message.starts_with("Role tailscale/pg already exists"), "{ready:?}");
    assert_eq!(made.events[0].reason, "ProxyGroupCreationFailed");
}

#[test]
fn foreign_child_service_is_reported_to_group_and_service() {
    let mut world = serving();
    world.service("web", to("pg"), &[80]);
    let child = world.pass("pg").apply.iter().find(|manifest| manifest.object.name.starts_with("ts-web-")).expect("a child").object.clone();
    let mut world = serving();
    world.service("web", to("pg"), &[80]);
    let mut observed = world.observe("pg");
    observed.owned.insert(child.clone(), json!({"metadata": {"name": child.name, "namespace": NS, "uid": "x"}, "spec": {}}).into());
    let made = pass(&observed);
    assert!(made.apply.iter().all(|manifest| manifest.object != child) && made.delete.is_empty());
    let has_event =
        |subject: &WorkloadKey| made.events.iter().any(|event| event.subject == *subject && event.message.contains(&child.to_string()));
    assert!(has_event(&"pg".into()), "{:?}", made.events);
    assert!(has_event(&"default/web".into()), "{:?}", made.events);
    let update = made.services.iter().find(|update| update.name == "web").and_then(|update| update.conditions.clone()).expect("conditions");
    let configured = crate::model::base::conditions::get(&update, EGRESS_SVC_CONFIGURED).expect("a condition");
    assert!(configured.status == "False" && configured.message.contains("already exists"), "{configured:?}");
    assert_eq!(world.condition("db", EGRESS_SVC_READY).expect("a condition").0, "True", "the other one is served");
}

#[test]
fn objects_of_the_tailscale_operator_are_adopted() {
    let mut world = with_services(0);
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
        json!({"metadata": {"name": name, "namespace": NS, "uid": name, "labels": labels}, "addressType": "IPv4",
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
fn group_and_services_are_deleted_in_any_order() {
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
fn invalid_groups_report_the_reason() {
    let long = "g".repeat(53);
    let cases = [
        ("pg", json!({"type": "of-a-later-version"}), "not served by this version"),
        ("kube-apiserver-auth-proxy", json!({"type": "egress"}), "reserved for the Tailscale operator"),
        ("tailscale", json!({"type": "ingress"}), "is reserved for groups of type ingress"),
        (long.as_str(), json!({"type": "egress"}), "at most 52 characters"),
        ("pg", json!({"type": "egress", "tailyard": {"matchPortRange": {"start": 2, "end": 1}}}), "spec.tailyard.matchPortRange"),
        ("pg", json!({"type": "egress", "tailyard": {"drainTimeoutSeconds": -1}}), "drainTimeoutSeconds"),
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
    world.with_class(json!({"statefulSet": {"pod": {"tailscaleContainer": {"env": [{"name": "TS_USERSPACE", "value": "true"}]}}}}));
    world.settle();
    let ready = world.ready("pg");
    assert!(ready.1 == "ProxyGroupInvalid" && ready.2.contains("TS_USERSPACE"), "{ready:?}");
    assert!(!world.objects.keys().any(|object| object.kind == Kind::StatefulSet), "no Pod before a class that can serve");
    world.class = Class::None;
    world.settle();
    assert_eq!(world.ready("pg").1, "ProxyGroupReady");
}

#[test]
fn tailscaled_port_is_outside_a_custom_match_port_range() {
    let mut world = World::new();
    world.with_class(json!({"staticEndpoints": {"nodePort": {"ports": [{"port": 31_000, "endPort": 31_010}]}}}));
    world.group("pg", json!({"type": "egress", "tailyard": {"matchPortRange": {"start": 20_000, "end": 29_999}}}));
    world.settle();
    let port = world.env("pg", "PORT").expect("a port");
    assert!(!(20_000..=29_999).contains(&port.parse::<u16>().expect("a port")), "{port}");
}
