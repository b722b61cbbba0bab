//! A standalone proxy with a second Pod that takes over.

use std::time::Duration;

use serde_json::Value;

use super::*;
use crate::api::condition::PROXY_READY;
use crate::model::controller::policy::assignment::StandaloneScope;
use crate::model::controller::workload::naming;
use crate::model::flows::drain::{Budget, DISCO_MUTE_PERIOD};

/// A cluster with an exposed Service.
fn world() -> World {
    let mut world = World::new();
    world.assignment.standalone = StandaloneScope::Everywhere;
    let metadata = json!({"name": "web", "namespace": "default", "uid": "1234", "annotations": {"tailscale.com/expose": "true"}});
    let service = serde_json::from_value(json!({"metadata": metadata, "spec": {"clusterIP": "10.96.0.9"}})).expect("a Service");
    world.services.insert(("default".to_owned(), "web".to_owned()), service);
    world.settle();
    world
}

fn request(world: &mut World, standby: &str) {
    let service = world.services.get_mut(&("default".to_owned(), "web".to_owned())).expect("the Service");
    service.metadata.annotations.get_or_insert_default().insert(names::STANDBY.to_owned(), standby.to_owned());
}

/// `StatefulSet`s of the first Pod and of the second one.
fn sets() -> [ObjectRef; 2] {
    let first = naming::new_name(&"default/web".into(), "1234", 0);
    let second = naming::standby_name(&first);
    [first, second].map(|name| object(Kind::StatefulSet, &name))
}

/// Pod of a `StatefulSet`.
fn pod(set: &ObjectRef) -> String {
    names::replica(&set.name, 0)
}

/// One pass; returns the `StatefulSet`s that it applies.
fn applied(world: &mut World) -> Vec<ObjectRef> {
    let made = world.pass("default/web");
    made.apply.into_iter().map(|manifest| manifest.object).filter(|object| object.kind == Kind::StatefulSet).collect()
}

/// The Pod's container runs, or has not started.
fn set_running(world: &mut World, set: &ObjectRef, running: bool) {
    let state = if running { json!({"running": {}}) } else { json!({"waiting": {}}) };
    let status = json!([{"name": "tailscale", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}]);
    let pod = world.pods.get_mut(&pod(set)).expect("a Pod");
    pod.status.get_or_insert_default().container_statuses = serde_json::from_value(status).expect("statuses");
}

/// The Pod reports, as the one that holds the Lease.
fn activate(world: &mut World, set: &ObjectRef) {
    let uid = world.pods[&pod(set)].metadata.uid.clone().expect("a UID");
    let state = object(Kind::Secret, &pod(&sets()[0]));
    world.edit(&state, |secret| secret["data"]["pod_uid"] = json!(k8s_openapi::ByteString(uid.into_bytes())));
}

/// A settled proxy with standby, whose first Pod is active.
fn pair() -> World {
    let mut world = world();
    request(&mut world, "true");
    world.settle();
    world.asleep.extend(sets().iter().map(pod));
    world
}

#[test]
fn second_pod_shares_identity_and_lease() {
    let world = pair();
    let [first, second] = sets().map(|set| Value::clone(&world.objects[&set]));
    let env = |set: &Value, name: &str| {
        let env = set["spec"]["template"]["spec"]["containers"][0]["env"].as_array().expect("a list").clone();
        env.into_iter().find(|variable| variable["name"] == name).expect("a variable")
    };
    let value = |set: &Value, name: &str| env(set, name)["value"].clone();
    for set in [&first, &second] {
        assert_eq!(value(set, "TAILYARD_ACTIVE_LEASE"), pod(&sets()[0]));
        assert_eq!(value(set, "TAILYARD_DRAIN_TIMEOUT"), "8s");
        assert!(Budget::of(Duration::from_secs(8), true).flows <= DISCO_MUTE_PERIOD);
        assert!(set["spec"]["template"]["spec"]["topologySpreadConstraints"].is_array());
    }
    assert_eq!(value(&second, "POD_NAME"), pod(&sets()[0]));
    assert_eq!(env(&second, "TAILYARD_POD_NAME")["valueFrom"]["fieldRef"]["fieldPath"], "metadata.name");
    assert_eq!(second["spec"]["selector"]["matchLabels"], json!({"app": "1234", "tailyard.io/standby": "true"}));
    let role = &world.objects[&object(Kind::Role, &sets()[0].name)];
    let rules = role["rules"].as_array().expect("rules");
    let names = |resource: &str| -> Vec<_> {
        rules.iter().filter(|rule| rule["resources"] == json!([resource])).map(|rule| &rule["resourceNames"]).collect()
    };
    let lease = json!([pod(&sets()[0])]);
    assert_eq!(names("leases"), [&lease, &lease, &Value::Null], "written, watched, created");
    assert_eq!(names("pods"), [&json!(sets().map(|set| pod(&set)))]);
    assert_eq!((world.minted, world.devices.len()), (1, 1));
}

#[test]
fn second_pod_waits_for_the_lease_in_the_template_of_the_first() {
    let mut world = world();
    let [first, second] = sets();
    request(&mut world, "true");
    assert_eq!(applied(&mut world), std::slice::from_ref(&first));
    let mut changed = Value::clone(&world.objects[&first]);
    changed["metadata"]["generation"] = json!(2);
    changed["status"] = json!({"observedGeneration": 1, "updateRevision": "old"});
    let labels = Some([("controller-revision-hash".to_owned(), "old".to_owned())].into());
    world.pods.get_mut(&pod(&first)).expect("a Pod").metadata.labels = labels;
    world.objects.insert(first.clone(), std::sync::Arc::new(changed.clone()));
    assert!(applied(&mut world).is_empty(), "Kubernetes has not observed the template");
    changed["status"] = json!({"observedGeneration": 2, "updateRevision": "new"});
    world.objects.insert(first.clone(), std::sync::Arc::new(changed));
    assert!(applied(&mut world).is_empty(), "the Pod has the former template");
    world.pods.get_mut(&pod(&first)).expect("a Pod").metadata.labels = None;
    assert_eq!(applied(&mut world), [second]);
}

#[test]
fn template_changes_in_the_waiting_pod_first() {
    for active in 0..2 {
        let mut world = pair();
        let mut sets = sets().to_vec();
        activate(&mut world, &sets[active]);
        let active = sets.remove(active);
        let waiting = sets.remove(0);
        set_running(&mut world, &waiting, true);
        world.settings.image = "another/image:1".to_owned();
        assert_eq!(applied(&mut world), std::slice::from_ref(&waiting));
        set_running(&mut world, &waiting, false);
        assert!(applied(&mut world).is_empty(), "it does not run yet");
        assert!(world.pass("default/web").again.is_some());
        assert_eq!(world.condition("web", PROXY_READY).expect("a condition").0, "True");
        set_running(&mut world, &waiting, true);
        assert_eq!(applied(&mut world), [active]);
    }
}

#[test]
fn removed_standby_is_gone_before_the_lease_is() {
    let mut world = pair();
    let [first, second] = sets();
    activate(&mut world, &second);
    request(&mut world, "false");
    let made = world.pass("default/web");
    assert_eq!(made.delete.iter().map(|delete| &delete.object).collect::<Vec<_>>(), [&second]);
    assert!(applied(&mut world).is_empty(), "its Pod exists");
    world.controller();
    assert_eq!(applied(&mut world), std::slice::from_ref(&first));
    assert!(!world.objects[&first]["spec"].to_string().contains("TAILYARD_ACTIVE_LEASE"));
}

#[test]
fn device_is_deleted_after_both_pods() {
    let mut world = pair();
    activate(&mut world, &sets()[1]);
    world.delete_service("web");
    world.pass("default/web");
    let [first, second] = sets();
    assert!(!world.objects.contains_key(&first) && !world.objects.contains_key(&second));
    world.pods.remove(&pod(&second));
    world.pass("default/web");
    assert_eq!(world.devices.len(), 1, "the first Pod exists");
    world.controller();
    world.settle();
    assert!(world.objects.is_empty() && world.devices.is_empty() && world.keys.is_empty(), "{:?}", world.objects.keys());
}
