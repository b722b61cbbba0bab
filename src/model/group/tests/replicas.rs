//! Replicas: their keys, and how they leave.

use super::*;

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
fn a_replica_counts_while_it_is_alive() {
    for (pointer, value) in [
        ("/metadata/uid", json!("another")),
        ("/metadata/deletionTimestamp", json!("2027-01-15T08:00:00Z")),
        ("/status/conditions/0/status", json!("False")),
    ] {
        let mut world = serving();
        world.asleep.insert("pg-1".into());
        let mut pod = serde_json::to_value(&world.pods["pg-1"]).expect("JSON");
        pod["metadata"]["deletionTimestamp"] = json!(null);
        *pod.pointer_mut(pointer).expect("a field") = value;
        world.pods.insert("pg-1".into(), serde_json::from_value(pod).expect("a Pod"));
        world.pass("pg");
        assert_eq!(world.groups["pg"].status.as_ref().expect("a status").devices.len(), 1, "{pointer}");
        assert_eq!((world.ready("pg").1.as_str(), world.ready("pg").2.as_str()), ("ProxyGroupCreating", "1/2 ProxyGroup pods running"));
    }
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
