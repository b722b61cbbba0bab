//! Connectors: from manifest to devices, changes of routes and replicas, deletion.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value};

use super::*;
use crate::api::condition::{CONNECTOR_READY, ROUTES_APPROVED};
use crate::api::connector::ConnectorStatus;
use crate::model::controller::kinds::is_released;
use crate::model::controller::workload::naming;
use crate::model::controller::workload::proxy_state::ProxyState;

const NAME: &str = "lab";

fn key() -> WorkloadKey {
    WorkloadKey::Connector(NAME.to_owned())
}

/// A cluster with a Connector, reconciled.
fn connected(spec: Value) -> World {
    let mut world = World::new();
    world.connector(NAME, spec);
    world.settle();
    world
}

fn workload(world: &World) -> String {
    world.observe(key()).workload
}

fn status(world: &World) -> ConnectorStatus {
    world.connectors[NAME].status.clone().expect("a status")
}

/// Status, reason and message of the condition.
fn ready(world: &World) -> (String, String, String) {
    condition(world, CONNECTOR_READY).expect("a condition")
}

fn condition(world: &World, kind: &str) -> Option<(String, String, String)> {
    let status = status(world);
    let found = crate::model::base::conditions::get(&status.conditions, kind)?;
    Some((found.status.clone(), found.reason.clone(), found.message.clone()))
}

/// Config of tailscaled of each replica.
fn configs(world: &World) -> Vec<Map<String, Value>> {
    let replicas = world.observed_replicas(&workload(world));
    replicas.values().filter_map(|replica| replica.config.as_ref()?.document.clone()).collect()
}

fn subnets(routes: &[&str]) -> Value {
    json!({"subnetRouter": {"advertiseRoutes": routes}, "replicas": 2})
}

fn set(world: &World) -> &Value {
    &world.objects[&object(Kind::StatefulSet, &workload(world))]
}

/// Checks that nothing is written at rest, and that nothing of the Connector remains after its deletion.
fn ends(mut world: World) {
    let writes = world.writes;
    for _ in 0..10 {
        assert!(idle(&world.pass(key())));
    }
    assert_eq!(world.writes, writes);
    world.delete_connector(NAME);
    world.settle();
    assert!(world.connectors.is_empty(), "{:?}", world.connectors);
    assert!(world.objects.is_empty() && world.devices.is_empty() && world.keys.is_empty(), "{:?}", world.objects.keys());
}

#[test]
fn replicas_are_spread_with_a_budget_and_have_the_labels_of_the_tailscale_operator() {
    let world = connected(subnets(&["10.40.0.0/14"]));
    let workload = workload(&world);
    assert!(workload.starts_with("ts-lab-") && naming::MAX_NAMES > 1, "{workload}");
    for kind in [Kind::ServiceAccount, Kind::Role, Kind::RoleBinding, Kind::Service, Kind::PodDisruptionBudget, Kind::StatefulSet] {
        let labels = &world.objects[&object(kind, &workload)]["metadata"]["labels"];
        let wanted = json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "connector",
            "tailscale.com/parent-resource": "lab", "tailscale.com/parent-resource-ns": ""});
        assert_eq!(labels, &wanted, "{kind}");
    }
    let config = &world.objects[&object(Kind::Secret, &names::replica_config(&workload, 0))]["metadata"]["labels"];
    assert!(config["tailscale.com/parent-resource"].is_null(), "the Tailscale operator takes no config for a state: {config}");
    let spec = &set(&world)["spec"];
    assert_eq!((&spec["replicas"], &spec["podManagementPolicy"], &spec["serviceName"]), (&json!(2), &json!("Parallel"), &json!(workload)));
    let uid = world.connectors[NAME].metadata.uid.clone();
    assert_eq!(spec["selector"]["matchLabels"], json!({"app": uid}));
    assert!(spec["template"]["spec"]["topologySpreadConstraints"].is_array());
    assert_eq!(world.env(&workload, "TS_INTERNAL_APP").as_deref(), Some("k8s-operator-connector-resource"));
    assert_eq!(world.env(&workload, "TAILYARD_UNREACHABLE_NOTE"), None, "peers choose the device themselves");
    ends(world);
}

#[test]
fn routes_follow_the_spec_down_to_none_without_a_restart() {
    let exit = json!(["0.0.0.0/0", "::/0"]);
    let specs = [
        (subnets(&["10.40.0.0/14", "10.0.0.0/24"]), json!(["10.0.0.0/24", "10.40.0.0/14"]), false),
        (json!({"exitNode": true, "replicas": 2}), exit, false),
        (json!({"appConnector": {"routes": ["198.51.100.0/24"]}, "replicas": 2}), json!(["198.51.100.0/24"]), true),
        (json!({"appConnector": {}, "replicas": 2}), json!([]), true),
    ];
    for (first, ..) in &specs {
        for (next, routes, is_app_connector) in &specs {
            let mut world = connected(first.clone());
            let (template, pods) = (set(&world)["spec"].clone(), world.pods.clone());
            world.connector(NAME, next.clone());
            world.settle();
            let configs = configs(&world);
            assert_eq!(configs.len(), 2);
            for config in configs {
                assert_eq!(
                    (&config["AdvertiseRoutes"], &config["AppConnector"]),
                    (routes, &json!({"Advertise": is_app_connector})),
                    "{first} {next}"
                );
            }
            assert_eq!((&set(&world)["spec"], &world.pods), (&template, &pods), "{first} {next}: nothing restarts");
            assert_eq!(ready(&world).0, "True", "{first} {next}");
        }
    }
}

/// The Tailscale operator removes the field with the last route, and tailscaled has the routes still.
#[test]
fn routes_of_a_config_without_the_field_are_withdrawn() {
    let mut world = connected(json!({"appConnector": {}}));
    let secret = object(Kind::Secret, &names::replica_config(&workload(&world), 0));
    world.edit(&secret, |stored| {
        let config = k8s_openapi::ByteString(br#"{"Version":"alpha0"}"#.to_vec());
        stored["data"] = json!({"cap-106.hujson": config});
    });
    world.settle();
    assert_eq!(configs(&world)[0]["AdvertiseRoutes"], json!([]));
}

#[test]
fn status_shows_routes_and_devices_in_stable_order() {
    let mut world =
        connected(json!({"subnetRouter": {"advertiseRoutes": ["10.40.0.0/14", "10.0.0.0/24"]}, "exitNode": true, "replicas": 3}));
    let shown = status(&world);
    assert_eq!((shown.subnet_routes.as_str(), shown.is_exit_node, shown.is_app_connector), ("10.40.0.0/14,10.0.0.0/24", true, false));
    let hosts: Vec<_> = shown.devices.iter().map(|device| device.hostname.as_str()).collect();
    let wanted = ["lab-connector.tail1234.ts.net", "lab-connector-1.tail1234.ts.net", "lab-connector-2.tail1234.ts.net"];
    assert_eq!((hosts, shown.hostname.as_str()), (wanted.to_vec(), wanted[0]));
    assert_eq!((shown.tailnet_ips.len(), &shown.tailnet_ips), (2, &shown.devices[0].tailnet_ips));
    let (is_ready, reason, message) = ready(&world);
    assert_eq!((is_ready.as_str(), reason.as_str()), ("True", "ConnectorCreated"), "{message}");
    assert!(message.starts_with("3 of 3 devices are in the tailnet and advertise 4 routes"), "{message}");
    world.connector(NAME, json!({"appConnector": {}}));
    world.settle();
    let shown = status(&world);
    assert_eq!((shown.subnet_routes.as_str(), shown.is_exit_node, shown.is_app_connector), ("", false, true));
    world.connector(NAME, json!({"exitNode": true}));
    world.settle();
    let shown = status(&world);
    assert_eq!((shown.is_exit_node, shown.is_app_connector, shown.devices.len()), (true, false, 1), "no field stays");
    ends(world);
}

#[test]
fn unapproved_routes_are_named_per_device_until_they_are_approved() {
    let mut world = connected(subnets(&["10.0.0.0/8", "10.40.0.0/14"]));
    let approved = |world: &World| condition(world, ROUTES_APPROVED).expect("a condition");
    assert_eq!(approved(&world), ("True".into(), "RoutesApproved".into(), "2 routes of 2 devices are approved".into()));
    assert_eq!(world.pass(key()).proxy, Some(ProxyState::Ready));
    let of_second = format!("{} 10.40.0.0/14", world::device_id(&names::replica(&workload(&world), 1)));
    world.hosted.unapproved = ["10.0.0.0/8".to_owned(), of_second].into();
    world.rounds(3);
    assert_eq!(approved(&world).0, "True", "not read again yet");
    world.now += 300;
    world.rounds(3);
    let (is_approved, reason, message) = approved(&world);
    assert_eq!((is_approved.as_str(), reason.as_str()), ("False", "RoutesNotApproved"));
    let devices = "lab-connector (10.0.0.0/8), lab-connector-1 (10.0.0.0/8, 10.40.0.0/14)";
    assert!(message.contains(devices) && message.contains("autoApprovers.routes"), "{message}");
    assert_eq!((ready(&world).0.as_str(), world.pass(key()).proxy), ("True", Some(ProxyState::Pending)));
    world.hosted.unapproved.clear();
    world.now += 30;
    world.rounds(3);
    assert_eq!((approved(&world).0.as_str(), world.pass(key()).proxy), ("True", Some(ProxyState::Ready)));
    world.hosted.routes_fault = Some("no scope.".to_owned());
    world.now += 300;
    world.rounds(3);
    let unknown = "Whether the routes are approved is unknown: no scope.";
    assert_eq!(approved(&world), ("Unknown".into(), "RoutesUnreadable".into(), unknown.into()));
    assert_eq!(world.pass(key()).proxy, Some(ProxyState::Ready));
    world.connector(NAME, json!({"appConnector": {}}));
    world.settle();
    assert_eq!(condition(&world, ROUTES_APPROVED), None, "it advertises no routes");
    ends(world);
}

#[test]
fn reads_of_approved_routes_have_a_rate() {
    let mut world = connected(json!({"exitNode": true, "replicas": 20}));
    world.hosted.unapproved = ["::/0".to_owned()].into();
    world.now += 300;
    let reads =
        |world: &mut World| world.pass(key()).control.iter().filter(|action| matches!(action, ControlAction::ReadRoutes { .. })).count();
    let found: Vec<_> = (0..4).map(|_| reads(&mut world)).collect();
    assert_eq!(found, [8, 8, 4, 0]);
    world.now += 29;
    assert_eq!(reads(&mut world), 0);
    world.now += 1;
    assert_eq!(reads(&mut world), 8);
}

#[test]
fn devices_have_host_names_of_their_own() {
    for (spec, wanted) in [
        (json!({"exitNode": true}), &["lab-connector"][..]),
        (json!({"exitNode": true, "hostname": "way-out"}), &["way-out"]),
        (json!({"exitNode": true, "hostnamePrefix": "way"}), &["way-0"]),
        (json!({"exitNode": true, "hostnamePrefix": "way", "replicas": 2}), &["way-0", "way-1"]),
        (json!({"exitNode": true, "replicas": 3}), &["lab-connector", "lab-connector-1", "lab-connector-2"]),
    ] {
        let world = connected(spec.clone());
        let found: Vec<_> = configs(&world).iter().map(|config| config["Hostname"].as_str().expect("a name").to_owned()).collect();
        assert_eq!(found, wanted, "{spec}");
    }
}

#[test]
fn number_of_replicas_changes_devices_and_zero_means_none() {
    let mut world = connected(subnets(&["10.0.0.0/8"]));
    let template = set(&world)["spec"]["template"].clone();
    for count in [4, 1, 0, 2] {
        world.connector(NAME, json!({"exitNode": true, "replicas": count}));
        world.settle();
        let devices = (world.devices.len(), configs(&world).len(), world.pods.len(), status(&world).devices.len());
        assert_eq!(devices, (count, count, count, count));
        assert_eq!(set(&world)["spec"]["template"], template, "no other Pod restarts");
        assert_eq!(ready(&world).0, "True", "{count}");
    }
    world.connector(NAME, json!({"exitNode": true, "replicas": 0}));
    world.settle();
    assert_eq!(ready(&world).2, "the Connector has no devices, as spec.replicas is 0");
    ends(world);
}

#[test]
fn device_of_a_surplus_replica_is_deleted_after_its_pod() {
    let mut world = connected(subnets(&["10.0.0.0/8"]));
    world.connector(NAME, json!({"exitNode": true, "replicas": 1}));
    for _ in 0..5 {
        world.pass(key());
        assert_eq!(world.devices.len(), 2, "its Pod forwards still");
    }
    world.settle();
    assert_eq!(world.devices.len(), 1);
}

#[test]
fn invalid_edit_changes_no_object_and_is_reported_once() {
    for spec in [
        json!({}),
        json!({"exitNode": true, "appConnector": {}}),
        subnets(&["10.0.0.1/8"]),
        subnets(&["0.0.0.0/0"]),
        json!({"exitNode": true, "replicas": -1}),
        json!({"exitNode": true, "replicas": 2, "hostname": "x"}),
    ] {
        let mut world = connected(subnets(&["10.0.0.0/8"]));
        let (objects, before) = (world.objects.clone(), status(&world));
        world.connector(NAME, spec.clone());
        world.settle();
        world.rounds(20);
        assert_eq!(world.objects, objects, "{spec}");
        let (is_ready, reason, message) = ready(&world);
        assert_eq!(
            (is_ready.as_str(), reason.as_str(), world.event_count("ConnectorInvalid")),
            ("False", "ConnectorInvalid", 1),
            "{message}"
        );
        let shown = status(&world);
        assert_eq!((shown.subnet_routes, shown.devices), (before.subnet_routes, before.devices), "{spec}: what is advertised still");
        world.connector(NAME, subnets(&["10.0.0.0/8"]));
        world.settle();
        assert_eq!(ready(&world).0, "True", "{spec}");
        ends(world);
    }
}

#[test]
fn new_connector_that_is_invalid_creates_nothing_and_can_be_deleted() {
    let mut world = connected(json!({}));
    assert_eq!((ready(&world).1.as_str(), world.objects.len()), ("ConnectorInvalid", 0));
    world.delete_connector(NAME);
    world.settle();
    assert!(world.connectors.is_empty());
}

#[test]
fn class_that_is_missing_or_not_ready_makes_the_connector_unready() {
    for (class, fix) in [
        (Class::Missing("c".into()), "ProxyClass c does not exist: create it, or change spec.proxyClass."),
        (Class::NotReady("c".into()), "is not ready"),
    ] {
        let mut world = World::new();
        world.class = class;
        world.connector(NAME, json!({"exitNode": true, "proxyClass": "c"}));
        world.settle();
        let (is_ready, reason, message) = ready(&world);
        assert_eq!((is_ready.as_str(), reason.as_str()), ("False", "ConnectorCreating"));
        assert!(message.contains(fix) && world.devices.is_empty(), "{message}");
        world.class = Class::None;
        world.settle();
        assert_eq!(ready(&world).0, "True");
    }
}

#[test]
fn missing_device_makes_the_connector_unready() {
    let mut world = connected(subnets(&["10.0.0.0/8"]));
    let pod = names::replica(&workload(&world), 1);
    world.set_ready(&pod, &json!({"type": "Ready", "status": "False"}));
    world.settle();
    let (is_ready, reason, message) = ready(&world);
    assert_eq!((is_ready.as_str(), reason.as_str()), ("False", "ConnectorCreating"));
    assert!(message.starts_with("1 of 2 devices are in the tailnet"), "{message}");
    let hosts: Vec<_> = status(&world).devices.into_iter().map(|device| device.hostname).collect();
    assert_eq!(hosts, ["lab-connector.tail1234.ts.net"]);
}

#[test]
fn class_with_static_endpoints_makes_devices_reachable_at_node_ports() {
    let mut world = World::new();
    world.with_class(json!({"staticEndpoints": {"nodePort": {"ports": [{"port": 30_000, "endPort": 30_010}]}}}));
    world.connector(NAME, json!({"exitNode": true, "replicas": 2, "proxyClass": "c"}));
    world.rounds(10);
    let workload = workload(&world);
    for ordinal in 0..2 {
        let service = &world.objects[&object(Kind::Service, &format!("{workload}-{ordinal}-nodeport"))];
        assert_eq!(service["spec"]["type"], "NodePort");
        let labels = json!({"tailscale.com/managed": "true", "tailyard.io/parent-connector": "lab"});
        assert_eq!(service["metadata"]["labels"], labels, "the Tailscale operator accepts one Service with its labels only");
    }
    ends(world);
}

#[test]
fn lost_node_delays_a_deletion_for_minutes_only() {
    let mut world = connected(subnets(&["10.0.0.0/8"]));
    let pod = names::replica(&workload(&world), 1);
    let mut lost = world.pods[&pod].clone();
    lost.metadata.deletion_timestamp = Some(Time(world.time()));
    world.delete_connector(NAME);
    for _ in 0..5 {
        world.pass(key());
        world.live();
        world.pods.insert(pod.clone(), lost.clone());
    }
    assert_eq!((world.devices.len(), world.connectors.len()), (1, 1), "its Pod may still forward");
    world.now += 121;
    for _ in 0..5 {
        world.pass(key());
        world.collect();
    }
    assert!(world.connectors.is_empty() && world.devices.is_empty() && world.objects.is_empty(), "{:?}", world.objects.keys());
}

#[test]
fn unavailable_tailnet_delays_a_deletion_for_minutes_only() {
    let mut world = connected(json!({"exitNode": true, "replicas": 2, "tailnet": "other"}));
    world.tailnet = TailnetState::Unavailable("Tailnet other does not exist.".into());
    world.delete_connector(NAME);
    world.rounds(5);
    let (_, reason, message) = ready(&world);
    let waits = "Tailnet other does not exist. The deletion waits for that for five minutes, and then goes on without it.";
    assert_eq!((reason.as_str(), message.as_str()), ("ConnectorCreationFailed", waits));
    world.now += 300;
    world.rounds(5);
    assert!(world.connectors.is_empty() && world.objects.is_empty(), "{:?}", world.objects.keys());
    assert_eq!(world.event_count("DeviceOrphaned"), 2);
}

/// As without the definition of the kind.
#[test]
fn objects_of_a_connector_that_does_not_exist_stay_for_the_next_one() {
    let mut world = connected(subnets(&["10.0.0.0/8"]));
    let (objects, minted) = (world.objects.clone(), world.minted);
    world.connectors.clear();
    world.settle();
    assert_eq!((&world.objects, world.devices.len()), (&objects, 2));
    world.connector(NAME, subnets(&["10.0.0.0/8"]));
    world.settle();
    assert_eq!((world.minted, world.devices.len(), ready(&world).0.as_str()), (minted, 2, "True"), "the same devices");
    ends(world);
}

#[test]
fn connector_of_another_operator_is_not_written() {
    let mut world = World::new();
    world.assignment.connectors = false;
    world.connector(NAME, json!({"exitNode": true}));
    world.settle();
    assert_eq!((world.writes, world.connectors[NAME].metadata.finalizers.clone(), is_released(&world.observe(key()))), (0, None, true));
}

#[test]
fn uninstall_releases_the_connector_and_the_object_stays() {
    let mut world = connected(subnets(&["10.0.0.0/8"]));
    assert!(!is_released(&world.observe(key())));
    world.assignment.uninstall = Some(world.time());
    world.settle();
    assert!(is_released(&world.observe(key())) && world.objects.is_empty() && world.devices.is_empty(), "{:?}", world.objects.keys());
    assert_eq!(world.connectors[NAME].metadata.finalizers.as_deref(), Some(&[][..]));
    world.assignment.uninstall = None;
    world.settle();
    assert_eq!((world.devices.len(), ready(&world).0), (2, "True".into()), "cancelled");
}

/// Objects as the Tailscale operator creates them: config and state in one Secret, under its own name.
#[test]
fn objects_of_the_tailscale_operator_are_adopted_with_their_devices() {
    let mut world = World::new();
    world.connector(NAME, json!({"exitNode": true}));
    world.connectors.get_mut(NAME).expect("a Connector").metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
    let uid = world.connectors[NAME].metadata.uid.clone().expect("a UID");
    let labels = json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "connector",
        "tailscale.com/parent-resource": NAME, "tailscale.com/parent-resource-ns": ""});
    let name = "ts-lab-x7k2p";
    let metadata =
        |name: &str| json!({"name": name, "namespace": NS, "uid": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"});
    let template = json!({"metadata": {"labels": {"app": uid}}, "spec": {"serviceAccountName": "proxies", "containers": []}});
    let spec = json!({"replicas": 1, "serviceName": name, "selector": {"matchLabels": {"app": uid}}, "template": template});
    world.objects.insert(object(Kind::StatefulSet, name), json!({"metadata": metadata(name), "spec": spec}).into());
    world.objects.insert(object(Kind::Service, name), json!({"metadata": metadata(name), "spec": {"clusterIP": "None"}}).into());
    let id = world::device_id("ts-lab-x7k2p-0");
    let text = |text: &str| k8s_openapi::ByteString(text.as_bytes().to_vec());
    let data = json!({"device_id": text(id.as_str()), "_machinekey": text("m"), "cap-107.hujson": text("{}")});
    world.objects.insert(object(Kind::Secret, "ts-lab-x7k2p-0"), json!({"metadata": metadata("ts-lab-x7k2p-0"), "data": data}).into());
    world.joined(id, vec!["tag:k8s".into()]);
    world.live();
    world.settle();
    let set = set(&world);
    assert_eq!((workload(&world).as_str(), &set["spec"]["selector"]["matchLabels"]), (name, &json!({"app": uid})));
    assert_eq!((&set["spec"]["podManagementPolicy"], &set["spec"]["serviceName"]), (&json!("OrderedReady"), &json!(name)), "immutable");
    assert_eq!((world.minted, world.devices.len(), ready(&world).0.as_str()), (0, 1, "True"), "the same device");
    let state = &world.objects[&object(Kind::Secret, "ts-lab-x7k2p-0")]["data"];
    assert!(state["_machinekey"].is_string(), "{state}");
    ends(world);
}
