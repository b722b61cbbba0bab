//! Deletion of standalone proxies, and moves between kinds of proxies.

use super::*;

#[test]
fn lost_state_or_failed_key_gets_another_key() {
    let mut world = world();
    put(&mut world, json!({}), balanced());
    world.settle();
    world.edit(&object(Kind::Secret, &names::replica(&workload(), 0)), |secret| {
        secret["data"]["reissue_authkey"] = json!("");
        secret["data"]["device_id"] = Value::Null;
    });
    let pass = world.pass("default/web");
    assert!(matches!(&pass.control[..], [ControlAction::MintKey { reissue: true, replaces: Some(_), .. }]), "{:?}", pass.control);
    assert!(world.devices.is_empty(), "the replaced device is deleted");
}

#[test]
fn lost_node_delays_a_deletion_for_minutes_only() {
    let mut world = world();
    put(&mut world, json!({}), balanced());
    world.settle();
    let pod = names::replica(&workload(), 0);
    let mut lost = world.pods[&pod].clone();
    lost.metadata.deletion_timestamp = Some(Time(world.time()));
    world.delete_service("web");
    for _ in 0..5 {
        world.pass("default/web");
        world.pods.insert(pod.clone(), lost.clone());
    }
    assert_eq!(world.devices.len(), 1, "its Pod may still serve");
    world.now += 121;
    for _ in 0..5 {
        world.pass("default/web");
        world.collect();
    }
    assert!(world.services.is_empty() && world.devices.is_empty() && world.objects.is_empty(), "{:?}", world.objects.keys());
}

#[test]
fn unavailable_control_plane_delays_a_deletion_for_minutes_only() {
    let mut world = world();
    put(&mut world, json!({}), balanced());
    world.settle();
    world.tailnet = TailnetState::Unavailable("down.".into());
    world.delete_service("web");
    world.rounds(5);
    let waits = "down. The deletion waits for that for five minutes, and then goes on without it.";
    assert_eq!((condition(&world).1.as_str(), condition(&world).2.as_str()), ("ProxyFailed", waits));
    world.now += 300;
    world.rounds(5);
    assert!(world.services.is_empty() && world.objects.is_empty());
    assert_eq!(world.event_count("DeviceOrphaned"), 1);
}

#[test]
fn egress_that_becomes_ingress_does_not_forward_to_itself() {
    let mut world = world();
    put(&mut world, json!({"tailscale.com/tailnet-ip": "100.64.0.7"}), external());
    world.settle();
    let service = world.services.get_mut(&("default".to_owned(), "web".to_owned())).expect("a Service");
    let annotations = service.metadata.annotations.as_mut().expect("annotations");
    annotations.remove("tailscale.com/tailnet-ip");
    annotations.insert("tailscale.com/expose".into(), "true".into());
    world.settle();
    assert_eq!(env(&world, "TS_EXPERIMENTAL_DEST_DNS_NAME").as_deref(), Some("placeholder.example"));
    assert_eq!(condition(&world).0, "True");
}

#[test]
fn service_moves_between_group_and_standalone() {
    let mut world = world();
    world.group("pg", json!({"type": "egress"}));
    world.service("web", to("pg"), &[5432]);
    world.settle();
    let key = ("default".to_owned(), "web".to_owned());
    let group_host = world.external_name("web");
    let annotate = |world: &mut World, group: Option<&str>| {
        let annotations = world.services.get_mut(&key).expect("a Service").metadata.annotations.as_mut().expect("annotations");
        match group {
            Some(group) => drop(annotations.insert(names::PROXY_GROUP.into(), group.into())),
            None => drop(annotations.remove(names::PROXY_GROUP)),
        }
    };
    annotate(&mut world, None);
    world.settle();
    assert_eq!(condition(&world).0, "True");
    assert_ne!(world.external_name("web"), group_host);
    assert_eq!(world.condition("web", EGRESS_SVC_READY), None);
    annotate(&mut world, Some("pg"));
    world.settle();
    assert_eq!(world.external_name("web"), group_host);
    assert_eq!(world.condition("web", PROXY_READY), None);
    let sets = world.objects.keys().filter(|object| object.kind == Kind::StatefulSet).count();
    assert_eq!((sets, world.devices.len()), (1, 2), "those of the group");
    annotate(&mut world, None);
    let annotations = world.services.get_mut(&key).expect("a Service").metadata.annotations.as_mut().expect("annotations");
    annotations.retain(|name, _| name == names::FORMER_EXTERNAL_NAME);
    world.settle();
    assert_eq!(world.external_name("web"), "placeholder", "the name before the first move");
}

#[test]
fn proxies_outside_of_the_scope_are_not_touched() {
    let mut world = world();
    put(&mut world, json!({}), balanced());
    world.settle();
    world.assignment.standalone = StandaloneScope::Nowhere;
    let (writes, objects) = (world.writes, world.objects.clone());
    world.delete_service("web");
    world.settle();
    assert_eq!((world.writes, &world.objects), (writes, &objects));
    // A Service of a namespace that is not watched is unknown, not absent.
    world.assignment.standalone = StandaloneScope::new(true, &["other".to_owned()]);
    world.services.clear();
    world.settle();
    assert_eq!((world.writes, &world.objects), (writes, &objects));
    world.assignment.standalone = StandaloneScope::new(true, &["default".to_owned()]);
    world.settle();
    assert!(world.objects.is_empty() && world.devices.is_empty(), "{:?}", world.objects.keys());
}

#[test]
fn proxy_of_the_tailscale_operator_that_nothing_requests_here_stays_until_it_is_deleted() {
    for set_only in [true, false] {
        let mut world = world();
        put(&mut world, json!({}), balanced());
        world.settle();
        let config = names::replica_config(&workload(), 0);
        world.objects.retain(|object, _| object.name != config);
        let (objects, devices) = (world.objects.clone(), world.devices.clone());
        // OPERATOR_DEFAULT_LOAD_BALANCER of that operator has no meaning here.
        put(&mut world, json!({}), json!({"type": "LoadBalancer", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"]}));
        world.settle();
        assert_eq!((&world.objects, &world.devices), (&objects, &devices));
        let (_, reason, message) = condition(&world);
        assert!(reason == "ProxyFailed" && message.contains("tailscale.com/expose"), "{reason} {message}");
        if set_only {
            world.objects.retain(|object, _| object.kind != Kind::StatefulSet);
        } else {
            world.delete_service("web");
        }
        world.settle();
        assert!(!world.objects.keys().any(|object| object.name == workload()), "{set_only} {:?}", world.objects.keys());
    }
}
