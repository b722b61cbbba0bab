//! Denials of the control plane, and groups of other controllers.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::*;

/// The control plane denies this request from now on.
fn deny(world: &mut World, what: &str) {
    let denial = ControlPlaneError { since: world.time(), why: format!("{what}: the control plane answers 403: no."), refused: None };
    world.denied.insert(what.to_owned(), denial);
}

#[test]
fn control_plane_denial_is_reported_by_the_group_and_blocks_nothing_else() {
    let mut world = World::new();
    deny(&mut world, "an auth key for replica 0");
    world.group("pg", json!({"type": "egress"}));
    world.service("db", to("pg"), &[5432]);
    world.settle_denied("pg");
    let ready = world.ready("pg");
    assert!(ready.1 == "ProxyGroupCreationFailed" && ready.2.contains("403"), "{ready:?}");
    assert_eq!((world.minted, world.event_count("ProxyGroupCreationFailed")), (1, 1), "the other replica has its key; said once");
    world.denied.clear();
    world.settle();
    assert_eq!(world.ready("pg").1, "ProxyGroupReady");
}

#[test]
fn undeletable_device_delays_group_deletion_for_five_minutes() {
    let mut world = serving();
    deny(&mut world, "the end of the device of replica 1");
    world.delete_group("pg");
    world.settle_denied("pg");
    let ready = world.ready("pg");
    assert!(ready.2.contains("403") && ready.2.contains("waits for that for five minutes"), "{ready:?}");
    assert_eq!((world.devices.len(), world.event_count("DeviceOrphaned")), (1, 0), "what can be deleted is");
    world.now += 300;
    world.settle();
    assert!(world.groups.is_empty());
    assert_eq!((world.devices.len(), world.event_count("DeviceOrphaned")), (1, 1), "what stays is named");
}

#[test]
fn late_denial_delays_group_deletion_for_five_minutes() {
    let mut world = serving();
    world.delete_group("pg");
    // Its Pods drain slowly.
    let set = object(Kind::StatefulSet, "pg");
    let stored = world.objects[&set].clone();
    world.pass("pg");
    world.objects.insert(set.clone(), stored);
    world.now += 3_600;
    world.objects.remove(&set);
    world.live();
    deny(&mut world, "the end of the device of replica 1");
    world.settle_denied("pg");
    assert!(world.groups.contains_key("pg"), "it was denied just now");
    world.now += 300;
    world.settle();
    assert!(world.groups.is_empty());
}

#[test]
fn claims_of_other_devices_do_not_prolong_group_deletion() {
    let mut world = serving();
    deny(&mut world, "the end of the device of replica 1");
    deny(&mut world, "auth key k2");
    world.delete_group("pg");
    let state = object(Kind::Secret, "pg-1");
    let config = object(Kind::Secret, "pg-1-config");
    let mut stored = Value::clone(&world.objects[&config]);
    stored["metadata"]["annotations"].as_object_mut().expect("annotations").remove(names::DEVICE);
    world.objects.insert(config, Arc::new(stored));
    for number in 0..31 {
        let Some(stored) = world.objects.get(&state) else { break };
        let mut stored = Value::clone(stored);
        stored["data"]["device_id"] = json!(k8s_openapi::ByteString(format!("nOther{number}").into_bytes()));
        world.objects.insert(state.clone(), Arc::new(stored));
        world.settle_denied("pg");
        world.now += 10;
    }
    world.settle();
    assert!(world.groups.is_empty());
    assert_eq!(world.event_count("DeviceOrphaned"), 1);
}

#[test]
fn state_secret_of_a_removed_replica_stays_until_its_device_is_deleted() {
    let mut world = serving();
    deny(&mut world, "the end of the device of replica 1");
    world.group("pg", json!({"type": "egress", "replicas": 1}));
    world.settle_denied("pg");
    world.now += 3_600;
    world.settle_denied("pg");
    assert!(world.objects.contains_key(&object(Kind::Secret, "pg-1")) && world.ready("pg").2.contains("403"));
    assert_eq!(world.condition("db", EGRESS_SVC_READY).expect("a condition").0, "True");
    world.denied.clear();
    world.settle();
    assert_eq!((world.devices.len(), world.ready("pg").1.as_str()), (1, "ProxyGroupReady"));
}

#[test]
fn unqueried_control_plane_changes_no_condition() {
    let mut world = serving();
    world.tailnet = TailnetState::Asking;
    assert!(idle(&world.pass("pg")), "a new leader begins so");
    let why = "Tailnet t: the control plane refuses the credentials.";
    world.tailnet = TailnetState::Unavailable(why.into());
    world.settle();
    world.tailnet = TailnetState::Asking;
    assert!(idle(&world.pass("pg")));
    assert_eq!(world.ready("pg").2, why, "what was said of it holds until it is asked");
    world.delete_group("pg");
    world.settle();
    world.now += 3_600;
    world.settle();
    assert!(world.groups.contains_key("pg") && world.devices.len() == 2, "and nothing is given up");
    world.tailnet = world::ready();
    world.settle();
    assert!(world.groups.is_empty() && world.devices.is_empty());
}

/// A new group of an unserved type.
fn ingress() -> World {
    let mut world = World::new();
    world.settings.types.retain(|served| *served != ProxyGroupType::KubeApiServer);
    world.group("pg", json!({"type": "kube-apiserver"}));
    let now = world.time();
    world.groups.get_mut("pg").expect("a group").metadata.creation_timestamp = Some(Time(now));
    world.service("db", to("pg"), &[5432]);
    world
}

#[test]
fn group_of_an_unserved_type_is_left_to_its_controller() {
    let mut world = ingress();
    let first = world.pass("pg");
    assert!(idle(&first) && first.again.is_some_and(|again| again.as_secs() == 300), "{first:?}");
    let group = world.groups.get_mut("pg").expect("a group");
    group.metadata.finalizers = Some(vec!["tailscale.com/finalizer".into()]);
    world.now += 3_600;
    assert!(idle(&world.pass("pg")), "his finalizer says whose it is");
    world.delete_group("pg");
    assert!(idle(&world.pass("pg")), "its end is his too");

    let mut world = ingress();
    let theirs = json!({"conditions": [{"type": "ProxyGroupReady", "status": "True", "reason": "ProxyGroupReady", "message": "2/2",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    world.groups.get_mut("pg").expect("a group").status = serde_json::from_value(theirs).expect("a status");
    world.now += 3_600;
    assert!(idle(&world.pass("pg")), "and so do his conditions");
}

#[test]
fn group_of_a_type_without_controller_is_reported_invalid() {
    let mut world = ingress();
    world.now += 300;
    world.settle();
    assert!(world.ready("pg").1 == "ProxyGroupInvalid" && world.objects.is_empty(), "{:?}", world.objects.keys());
    assert_eq!(world.condition("db", EGRESS_SVC_VALID).expect("a condition").1, "ProxyGroupNotReady");
    let group = world.groups.get_mut("pg").expect("a group");
    group.metadata.finalizers = Some(vec!["tailscale.com/finalizer".into()]);
    group.status = None;
    assert!(idle(&world.pass("pg")), "whoever comes later has it");
}
