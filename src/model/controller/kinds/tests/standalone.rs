//! Standalone Services: from manifest to a working path, changes, release.

#![allow(clippy::needless_pass_by_value, reason = "a call with a literal reads better")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::*;
use crate::api::condition::{PROXY_READY, ROUTES_OVERLAP};
use crate::model::controller::policy::assignment::StandaloneScope;
use crate::model::controller::workload::naming;

mod lifecycle;

/// A cluster that serves standalone Services.
fn world() -> World {
    let mut world = World::new();
    world.assignment.standalone = StandaloneScope::Everywhere;
    world
}

/// Creates a Service, or replaces annotations and spec.
fn put(world: &mut World, annotations: Value, spec: Value) {
    let key = ("default".to_owned(), "web".to_owned());
    let mut service: k8s_openapi::api::core::v1::Service = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "1234-UID", "annotations": annotations}, "spec": spec,
    }))
    .expect("a Service");
    if let Some(stored) = world.services.get(&key) {
        service.status.clone_from(&stored.status);
        service.metadata.finalizers.clone_from(&stored.metadata.finalizers);
    }
    world.services.insert(key, service);
}

fn balanced() -> Value {
    json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"]})
}

fn external() -> Value {
    json!({"type": "ExternalName", "externalName": "placeholder.example"})
}

fn condition(world: &World) -> (String, String, String) {
    world.condition("web", PROXY_READY).expect("a condition")
}

fn workload() -> String {
    naming::new_name(&"default/web".into(), "1234-UID", 0)
}

fn env(world: &World, name: &str) -> Option<String> {
    world.env(&workload(), name)
}

/// Checks that nothing is written at rest, and that nothing of the Service remains after its deletion.
fn ends(mut world: World) {
    let writes = world.writes;
    for _ in 0..100 {
        assert!(idle(&world.pass("default/web")));
    }
    assert_eq!(world.writes, writes);
    world.delete_service("web");
    world.settle();
    assert!(world.services.is_empty(), "{:?}", world.services);
    assert!(world.objects.is_empty() && world.devices.is_empty() && world.keys.is_empty(), "{:?}", world.objects.keys());
}

/// The Tailscale operator's image forwards all that reaches the Pod of an egress Service to the target.
#[test]
fn pods_that_would_forward_their_probes_have_none() {
    let exposed = json!({"type": "ClusterIP", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"]});
    let services = [
        (json!({}), balanced(), false),
        (json!({"tailscale.com/expose": "true"}), exposed, false),
        (json!({"tailscale.com/tailnet-ip": "100.64.0.9"}), external(), true),
        (json!({"tailscale.com/tailnet-fqdn": "db.tail1234.ts.net"}), external(), true),
    ];
    for (annotations, spec, is_egress) in services {
        for image in ["registry.example.com/tailyard:1", "tailscale/tailscale:v1.104.7"] {
            let mut world = world();
            world.with_class(json!({"statefulSet": {"pod": {"tailscaleContainer": {"image": image}}}}));
            put(&mut world, annotations.clone(), spec.clone());
            world.settle();
            let set = &world.objects[&object(Kind::StatefulSet, &workload())];
            let probe = &set["spec"]["template"]["spec"]["containers"][0]["readinessProbe"];
            assert_eq!(probe.is_null(), is_egress && image.starts_with("tailscale/"), "{annotations} {image}: {probe}");
        }
    }
}

#[test]
fn class_in_userspace_is_refused_before_a_pod_is_created() {
    for (annotations, spec) in [(json!({}), balanced()), (json!({"tailscale.com/tailnet-ip": "100.64.0.9"}), external())] {
        let mut world = world();
        world.with_class(json!({"statefulSet": {"pod": {"tailscaleContainer": {"env": [{"name": "TS_USERSPACE", "value": "true"}]}}}}));
        put(&mut world, annotations, spec);
        world.settle();
        let (status, reason, message) = condition(&world);
        assert_eq!((status.as_str(), reason.as_str()), ("False", "ProxyFailed"), "{message}");
        assert!(message.contains("TS_USERSPACE") && message.contains("name another ProxyClass"), "{message}");
        assert!(world.objects.is_empty() && world.minted == 0, "{:?}", world.objects.keys());
        world.class = Class::None;
        world.settle();
        assert_eq!(condition(&world).1, "ProxyCreated");
    }
}

#[test]
fn load_balancer_gets_addresses_when_its_proxy_serves() {
    let mut world = world();
    put(&mut world, json!({}), balanced());
    world.asleep.insert(names::replica(&workload(), 0));
    world.rounds(5);
    let (status, reason, message) = condition(&world);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "ProxyPending"), "{message}");
    assert!(message.contains("has not logged in"), "{message}");
    world.asleep.clear();
    world.settle();
    assert_eq!((condition(&world).0.as_str(), condition(&world).1.as_str()), ("True", "ProxyCreated"));
    assert_eq!((world.minted, world.keys.len()), (1, 0));
    let service = &world.services[&("default".to_owned(), "web".to_owned())];
    assert_eq!(service.metadata.finalizers.as_deref(), Some(&["tailscale.com/finalizer".to_owned()][..]));
    let status = serde_json::to_value(service.status.as_ref().expect("a status")).expect("JSON");
    let host = "default-web.tail1234.ts.net";
    let device = world.devices.values().next().expect("a device");
    assert_eq!(status["loadBalancer"]["ingress"], json!([{"hostname": host}, {"ip": device.addresses.texts()[0]}]));
    assert_eq!(env(&world, "TS_DEST_IP").as_deref(), Some("10.96.0.9"));
    ends(world);
}

#[test]
fn service_of_two_families_is_served_and_shown_in_both() {
    for (ips, first, other) in
        [(["10.96.0.9", "fd00:96::9"], "10.96.0.9", "fd00:96::9"), (["fd00:96::9", "10.96.0.9"], "fd00:96::9", "10.96.0.9")]
    {
        let mut world = world();
        let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "clusterIP": ips[0], "clusterIPs": ips});
        put(&mut world, json!({}), spec);
        world.settle();
        assert_eq!(env(&world, "TS_DEST_IP").as_deref(), Some(first));
        assert_eq!(env(&world, "TAILYARD_OTHER_DEST_IP").as_deref(), Some(other));
        let service = &world.services[&("default".to_owned(), "web".to_owned())];
        let status = serde_json::to_value(service.status.as_ref().expect("a status")).expect("JSON");
        let own = world.devices.values().next().expect("a device").addresses.texts();
        assert_eq!(own.len(), 2, "{own:?}");
        let shown = json!([{"hostname": "default-web.tail1234.ts.net"}, {"ip": own[0]}, {"ip": own[1]}]);
        assert_eq!(status["loadBalancer"]["ingress"], shown);
        ends(world);
    }
}

#[test]
fn class_with_refused_variables_is_for_existing_proxies_only() {
    let refuse = |world: &mut World| {
        world.with_class(json!({"statefulSet": {"pod": {"tailscaleContainer": {"env": [{"name": "TS_DEBUG_MTU", "value": "1200"}]}}}}));
        let Class::Ready(class) = world.class.clone() else { panic!("a class") };
        world.class = Class::Refused(class);
    };
    let to = |name: &str| json!({"tailscale.com/tailnet-fqdn": name});
    let (mut new, mut world) = (world(), world());
    refuse(&mut new);
    put(&mut new, to("db.tail1234.ts.net"), external());
    new.settle();
    assert_eq!((condition(&new).0.as_str(), new.objects.len()), ("False", 0));
    assert!(condition(&new).2.contains("ProxyClass c has variables that the proxy refuses"), "{:?}", condition(&new));
    put(&mut world, to("db.tail1234.ts.net"), external());
    world.settle();
    refuse(&mut world);
    put(&mut world, to("other.tail1234.ts.net"), external());
    world.settle();
    assert_eq!(env(&world, "TS_TAILNET_TARGET_FQDN").as_deref(), Some("other.tail1234.ts.net."));
    assert_eq!(env(&world, "TS_DEBUG_MTU").as_deref(), Some("1200"), "the rest of the class counts");
    let (status, _, message) = condition(&world);
    assert!(status == "True" && message.contains("ProxyClass c has variables that the proxy refuses"), "{status} {message}");
    ends(world);
}

#[test]
fn exposed_services_forward_to_address_or_name() {
    let expose = json!({"tailscale.com/expose": "true"});
    for (spec, variable, value) in [
        (json!({"clusterIP": "10.96.0.9"}), "TS_DEST_IP", "10.96.0.9"),
        (json!({"type": "ExternalName", "externalName": "db.example.com"}), "TS_EXPERIMENTAL_DEST_DNS_NAME", "db.example.com"),
    ] {
        let mut world = world();
        put(&mut world, expose.clone(), spec);
        world.settle();
        assert_eq!(condition(&world).0, "True");
        assert_eq!(env(&world, variable).as_deref(), Some(value));
        ends(world);
    }
}

#[test]
fn status_of_another_load_balancer_class_is_not_written() {
    let mut world = world();
    let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "cloud", "clusterIP": "10.96.0.9"});
    put(&mut world, json!({"tailscale.com/expose": "true"}), spec);
    let key = ("default".to_owned(), "web".to_owned());
    let status = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}});
    world.services.get_mut(&key).expect("a Service").status = serde_json::from_value(status.clone()).expect("a status");
    world.settle();
    assert_eq!(condition(&world).0, "True");
    world.services.get_mut(&key).expect("a Service").metadata.annotations = None;
    world.settle();
    let found = serde_json::to_value(world.services[&key].status.as_ref().expect("a status")).expect("JSON");
    assert_eq!((&found["loadBalancer"], world.objects.len()), (&status["loadBalancer"], 0));
}

#[test]
fn egress_service_points_to_its_proxy_and_back() {
    let host = format!("{}.tailscale.svc.cluster.local", workload());
    for (annotations, variable, value) in [
        (json!({"tailscale.com/tailnet-ip": "100.64.0.7"}), "TS_TAILNET_TARGET_IP", "100.64.0.7"),
        (json!({"tailscale.com/tailnet-fqdn": "db.tail1234.ts.net"}), "TS_TAILNET_TARGET_FQDN", "db.tail1234.ts.net."),
    ] {
        let mut world = world();
        put(&mut world, annotations, external());
        world.asleep.insert(names::replica(&workload(), 0));
        world.rounds(5);
        assert_eq!(world.external_name("web"), "placeholder.example", "no path yet");
        world.asleep.clear();
        world.settle();
        assert_eq!(world.external_name("web"), host);
        assert_eq!(env(&world, variable).as_deref(), Some(value));
        ends(world.fork());
        let service = world.services.get_mut(&("default".to_owned(), "web".to_owned())).expect("a Service");
        service.metadata.annotations.as_mut().expect("annotations").retain(|key, _| key == names::FORMER_EXTERNAL_NAME);
        world.settle();
        assert_eq!(world.external_name("web"), "placeholder.example");
        assert!(world.objects.is_empty() && world.devices.is_empty(), "{:?}", world.objects.keys());
        assert_eq!(world.condition("web", PROXY_READY), None);
        let service = &world.services[&("default".to_owned(), "web".to_owned())];
        assert_eq!(service.metadata.finalizers.as_deref().unwrap_or_default(), [""; 0]);
    }
}

#[test]
fn changed_name_and_target_keep_the_device() {
    let mut world = world();
    put(&mut world, json!({}), balanced());
    world.settle();
    let devices: Vec<_> = world.devices.keys().cloned().collect();
    let mut spec = balanced();
    spec["clusterIP"] = json!("10.96.0.10");
    spec["clusterIPs"] = json!(["10.96.0.10"]);
    put(&mut world, json!({"tailscale.com/hostname": "shop"}), spec);
    world.settle();
    assert_eq!(env(&world, "TS_DEST_IP").as_deref(), Some("10.96.0.10"));
    assert_eq!(world.devices.keys().cloned().collect::<Vec<_>>(), devices);
    let config = &world.objects[&object(Kind::Secret, &names::replica_config(&workload(), 0))];
    let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(Value::clone(config)).expect("a Secret");
    let text = &secret.data.expect("data")[names::CONFIG_KEY].0;
    let document: Value = serde_json::from_slice(text).expect("JSON");
    assert_eq!((&document["Hostname"], &document["NoStatefulFiltering"]), (&json!("shop"), &json!(true)));
    assert!(document["AuthKey"].is_null(), "used");
    assert_eq!(world.minted, 1);
    put(&mut world, json!({"tailscale.com/hostname": "shop", "tailscale.com/tags": "tag:other"}), balanced());
    world.settle();
    assert!(condition(&world).2.contains("other tags than requested"), "{}", condition(&world).2);
}

#[test]
fn invalid_edit_changes_nothing_that_is_served() {
    let mut world = world();
    put(&mut world, json!({}), balanced());
    world.settle();
    let objects = world.objects.clone();
    put(&mut world, json!({"tailscale.com/tags": "web"}), balanced());
    world.settle();
    let (status, reason, message) = condition(&world);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "ProxyInvalid"));
    assert!(message.contains("tailscale.com/tags"), "{message}");
    assert_eq!(world.event_count("ProxyInvalid"), 1);
    assert_eq!(world.objects, objects);
    ends(world);
}

#[test]
fn never_valid_service_has_neither_finalizer_nor_objects() {
    let mut world = world();
    put(&mut world, json!({"tailscale.com/expose": "true"}), json!({}));
    world.settle();
    assert_eq!(condition(&world).1, "ProxyInvalid");
    let service = &world.services[&("default".to_owned(), "web".to_owned())];
    assert!(world.objects.is_empty() && service.metadata.finalizers.is_none());
}

#[test]
fn unready_pod_of_an_older_template_does_not_block_a_correction() {
    let mut world = world();
    put(&mut world, json!({}), balanced());
    world.settle();
    let (set, pod) = (object(Kind::StatefulSet, &workload()), names::replica(&workload(), 0));
    let mut stuck = Value::clone(&world.objects[&set]);
    stuck["status"] = json!({"updateRevision": "new"});
    let uid = stuck["metadata"]["uid"].as_str().expect("a UID").to_owned();
    world.objects.insert(set.clone(), std::sync::Arc::new(stuck));
    let metadata = &mut world.pods.get_mut(&pod).expect("a Pod").metadata;
    metadata.labels = Some([("controller-revision-hash".to_owned(), "old".to_owned())].into());
    metadata.owner_references =
        serde_json::from_value(json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "x", "uid": uid}])).expect("a list");
    let pass = world.pass("default/web");
    assert_eq!(pass.delete.len(), 0, "Kubernetes replaces a ready Pod");
    assert_eq!(condition(&world).1, "ProxyPending");
    world.set_ready(&pod, &json!({"type": "Ready", "status": "False"}));
    assert_eq!(world.pass("default/web").delete[0].object, set);
    world.controller();
    world.settle();
    assert_eq!((condition(&world).0.as_str(), world.minted), ("True", 1));
}

#[test]
fn rejected_target_is_reported_and_gets_no_traffic() {
    let mut world = world();
    put(&mut world, json!({"tailscale.com/tailnet-fqdn": "db.tail1234.ts.net"}), external());
    world.asleep.insert(names::replica(&workload(), 0));
    world.round();
    world.asleep.clear();
    let state = object(Kind::Secret, &names::replica(&workload(), 0));
    let reason = k8s_openapi::ByteString(b"no peer is named so".to_vec());
    world.edit(&state, |secret| secret["data"] = json!({"tailyard-rejected-target": reason}));
    world.settle();
    let (_, reason, message) = condition(&world);
    assert_eq!((reason.as_str(), message.as_str()), ("ProxyFailed", "The target is not served: no peer is named so"));
    assert_eq!((world.external_name("web").as_str(), world.event_count("ProxyFailed")), ("placeholder.example", 1));
    world.edit(&state, |secret| drop(secret["data"].as_object_mut().expect("data").remove("tailyard-rejected-target")));
    world.settle();
    assert_eq!(condition(&world).0, "True");
}

#[test]
fn accepted_route_over_the_cluster_is_a_condition_of_the_service() {
    let mut world = world();
    put(&mut world, json!({}), balanced());
    world.settle();
    assert_eq!(world.condition("web", ROUTES_OVERLAP), None);
    let state = object(Kind::Secret, &names::replica(&workload(), 0));
    let report = k8s_openapi::ByteString(br#"{"10.96.0.0/12":"10.96.0.1","10.244.0.0/16":"10.244.1.7"}"#.to_vec());
    world.edit(&state, |secret| secret["data"]["tailyard-overlapping-routes.json"] = json!(report));
    world.settle();
    let (status, reason, message) = world.condition("web", ROUTES_OVERLAP).expect("a condition");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "RouteCoversCluster"));
    assert!(message.contains("this cluster: 10.96.0.0/12, 10.244.0.0/16."), "{message}");
    assert_eq!(condition(&world).0, "True", "it is served");
    world.edit(&state, |secret| secret["data"]["tailyard-overlapping-routes.json"] = Value::Null);
    world.settle();
    assert_eq!(world.condition("web", ROUTES_OVERLAP), None);
    ends(world);
}

#[test]
fn state_of_a_proxy_follows_the_condition_of_its_service() {
    use crate::model::controller::workload::proxy_state::ProxyState;
    let mut world = world();
    put(&mut world, json!({"tailscale.com/hostname": "a.b"}), balanced());
    assert_eq!(world.pass("default/web").proxy, Some(ProxyState::Rejected));
    put(&mut world, json!({}), balanced());
    assert_eq!(world.pass("default/web").proxy, Some(ProxyState::Pending));
    world.settle();
    assert_eq!(world.pass("default/web").proxy, Some(ProxyState::Ready));
    let observed = world.observe("default/web");
    assert_eq!(super::super::standalone::rejected(&observed, "no").services.len(), 1);
    world.delete_service("web");
    assert_eq!(world.pass("default/web").proxy, None);
}
