//! Replicas: auth keys and removal.

use super::world::device_id;
use super::*;
use crate::api::condition::ROUTES_OVERLAP;
use crate::model::base::conditions;
use crate::model::controller::workload::identity::{Device, DeviceId};

#[test]
fn scale_down_removes_pod_then_device_then_secrets() {
    let mut world = serving();
    world.group("pg", json!({"type": "egress", "replicas": 1}));
    let before = world.objects[&object(Kind::StatefulSet, "pg")].clone();
    let first = world.pass("pg");
    assert_eq!(first.apply.iter().filter(|manifest| manifest.object.kind == Kind::StatefulSet).count(), 1);
    assert!(first.control.is_empty() && first.delete.is_empty());
    let after = &world.objects[&object(Kind::StatefulSet, "pg")];
    assert_eq!(before["spec"]["template"], after["spec"]["template"], "scaling restarts no Pod");
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
fn device_of_a_dead_replica_is_not_in_the_status() {
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
fn stock_image_starts_after_its_auth_keys_exist() {
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
    assert_eq!(before["spec"]["template"], after["spec"]["template"], "scaling within ten restarts no Pod");
}

#[test]
fn unused_auth_key_is_revoked() {
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
fn accepted_routes_over_the_cluster_are_a_condition_of_the_group() {
    let mut world = serving();
    let overlap = |world: &World| {
        let conditions = &world.groups["pg"].status.as_ref().expect("a status").conditions;
        conditions::get(conditions, ROUTES_OVERLAP).map(|found| found.message.clone())
    };
    assert_eq!(overlap(&world), None);
    let state = object(Kind::Secret, "pg-0");
    let report = |text: &str| json!(k8s_openapi::ByteString(text.as_bytes().to_vec()));
    let key = "tailyard-overlapping-routes.json";
    let many: Vec<_> = (1..=7).map(|number| format!(r#""10.{number}.0.0/16":"10.{number}.0.1""#)).collect();
    world.edit(&state, |secret| secret["data"][key] = report(&format!("{{{}}}", many.join(","))));
    world.settle();
    let message = overlap(&world).expect("a condition");
    assert!(message.contains(": 10.1.0.0/16, 10.2.0.0/16, 10.3.0.0/16, 10.4.0.0/16, 10.5.0.0/16, 2 more."), "{message}");
    world.edit(&state, |secret| secret["data"][key] = report(r#"{"any text":"10.1.0.1"}"#));
    world.settle();
    assert_eq!(overlap(&world), None, "a report that is no list of routes says nothing");
}

#[test]
fn failed_auth_key_is_replaced_once() {
    let mut world = serving();
    world.edit(&object(Kind::Secret, "pg-0"), |state| state["data"]["reissue_authkey"] = json!(""));
    world.asleep.insert("pg-0".into());
    let made = world.pass("pg");
    assert!(
        matches!(&made.control[..], [ControlAction::MintKey { reissue: true, replaces: Some(device), .. }] if device.id == device_id("pg-0"))
    );
    world.settle();
    assert_eq!(world.minted, 3);
}

#[test]
fn unavailable_control_plane_delays_only_devices() {
    let mut world = serving();
    world.tailnet = TailnetState::Unavailable("Tailnet t does not exist: create it.".into());
    world.service("web", to("pg"), &[80]);
    world.settle();
    assert_eq!(world.condition("web", EGRESS_SVC_READY).expect("a condition").0, "True", "what forwards goes on");
    assert_eq!(world.ready("pg").1, "ProxyGroupTailnetUnavailable");
    world.delete_group("pg");
    world.rounds(20);
    assert!(world.groups.contains_key("pg") && world.pods.is_empty(), "Pods go, the devices are waited for");
    world.now += 300;
    let last = world.pass("pg");
    assert_eq!(last.events.iter().filter(|event| event.reason == "DeviceOrphaned").count(), 2);
    world.settle();
    assert!(world.groups.is_empty());
}

#[test]
fn edit_of_tags_that_replicas_have_not_joined_with_is_reported_once() {
    let mut world = serving();
    let reported = |world: &mut World| {
        let events: Vec<_> = (0..3).flat_map(|_| world.pass("pg").events).filter(|event| event.reason == "TagsNotApplied").collect();
        events.into_iter().map(|event| event.message).collect::<Vec<_>>()
    };
    assert_eq!(reported(&mut world), Vec::<String>::new());
    world.group("pg", json!({"type": "egress", "replicas": 2, "tags": ["tag:other"]}));
    let messages = reported(&mut world);
    assert_eq!((messages.len(), messages[0].contains("pg-0, pg-1")), (1, true), "{messages:?}");
    world.group("pg", json!({"type": "egress", "replicas": 2}));
    assert_eq!(reported(&mut world), Vec::<String>::new(), "they have the tags again that they joined with");
}

/// Writes the state Secret of a replica, as its Pod may.
fn write_state(world: &mut World, replica: &str, values: &[(&str, &str)]) {
    world.edit(&object(Kind::Secret, replica), |state| {
        for (key, value) in values {
            state["data"][key] = json!(k8s_openapi::ByteString(value.as_bytes().to_vec()));
        }
    });
    world.asleep.insert(replica.into());
}

/// Adds a device that does not belong to the group.
fn add_victim(world: &mut World, id: &str, hostname: &str, tag: &str) -> DeviceId {
    let id = DeviceId::parse(id).expect("an ID");
    let device = Device { hostname: hostname.into(), tags: vec![tag.into()], created: Some(world.time()), ..Device::default() };
    world.devices.insert(id.clone(), device);
    id
}

#[test]
fn foreign_device_claim_deletes_only_the_recorded_device() {
    for (hostname, tag) in [("payroll-0", "tag:k8s"), ("pg-0", "tag:payroll")] {
        let mut world = serving();
        let victim = add_victim(&mut world, "nVictim", hostname, tag);
        write_state(&mut world, "pg-0", &[("device_id", "nVictim"), ("reissue_authkey", "")]);
        world.rounds(5);
        assert!(world.devices.contains_key(&victim), "{hostname} {tag}");
        assert!(!world.devices.contains_key(&device_id("pg-0")), "its own device is replaced");

        world.delete_group("pg");
        world.rounds(5);
        assert_eq!(world.devices.into_keys().collect::<Vec<_>>(), [victim], "{hostname} {tag}");
    }
}

#[test]
fn foreign_device_claim_without_a_record_deletes_nothing() {
    for (hostname, tag) in [("payroll-0", "tag:k8s"), ("pg-0", "tag:payroll")] {
        let mut world = World::new();
        world.group("pg", json!({"type": "egress", "replicas": 1}));
        world.asleep.insert("pg-0".into());
        world.settle();
        let victim = add_victim(&mut world, "nVictim", hostname, tag);
        write_state(&mut world, "pg-0", &[("device_id", "nVictim")]);
        world.delete_group("pg");
        world.rounds(5);
        assert!(world.devices.contains_key(&victim), "{hostname} {tag}");
    }
}

#[test]
fn device_id_with_path_characters_is_ignored() {
    for hostile in ["../tailnet/-/vip-services/svc:payroll", "../tailnet/-/keys/kOAUTHCLIENT?x=", "../user/1", "n%2f..", ""] {
        let mut world = serving();
        write_state(&mut world, "pg-0", &[("device_id", hostile)]);
        let made = world.pass("pg");
        let touched = |action: &ControlAction| matches!(action, ControlAction::DeleteDevice { .. } | ControlAction::RecordDevice { .. });
        assert!(!made.control.iter().any(touched), "{hostile}: {:?}", made.control);
    }
}

#[test]
fn recorded_device_is_replaced_only_after_its_deletion() {
    let mut world = serving();
    let twin = add_victim(&mut world, "nTwin", "pg-0", "tag:k8s");
    write_state(&mut world, "pg-0", &[("device_id", "nTwin")]);
    let recorded = |world: &World| world.observed_replicas("pg")[&0].device().map(|record| record.id.clone());
    world.rounds(3);
    assert_eq!(recorded(&world), Some(device_id("pg-0")), "a twin of another cluster is not taken for it");
    world.devices.remove(&device_id("pg-0"));
    world.round();
    assert_eq!(recorded(&world), Some(twin), "a login without a new key, after the old device was deleted by hand");
}

#[test]
fn key_reissue_is_rate_limited() {
    let mut world = serving();
    write_state(&mut world, "pg-0", &[("device_id", "")]);
    let made = world.pass("pg");
    assert!(matches!(&made.control[..], [ControlAction::MintKey { reissue: true, replaces: None, .. }]), "{:?}", made.control);
}
