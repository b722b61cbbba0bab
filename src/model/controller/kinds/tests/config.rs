//! Ports and keys of the egress config: stable, allocated and distinct.

use super::*;

#[test]
fn match_ports_are_stable_while_other_ports_change() {
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
fn exhausted_match_ports_are_reported_and_other_services_are_unaffected() {
    let mut world = World::new();
    world.group("pg", json!({"type": "egress", "tailyard": {"matchPortRange": {"start": 10000, "end": 10001}}}));
    world.service("a", to("pg"), &[1, 2]);
    world.settle();
    world.service("b", to("pg"), &[3]);
    world.settle();
    let configured = world.condition("b", EGRESS_SVC_CONFIGURED).expect("a condition");
    assert!(configured.0 == "False" && configured.2.contains("widen spec.tailyard.matchPortRange"), "{configured:?}");
    assert_eq!(world.condition("a", EGRESS_SVC_READY).expect("a condition").0, "True");
    world.delete_service("a");
    world.settle();
    assert_eq!(world.condition("b", EGRESS_SVC_READY).expect("a condition").0, "True");
}

#[test]
fn service_that_needs_more_match_ports_than_are_free_takes_none() {
    for (large, expected) in [(10, "False"), (8, "True")] {
        let mut world = World::new();
        world.group("pg", json!({"type": "egress", "tailyard": {"matchPortRange": {"start": 10000, "end": 10010}}}));
        world.service("first", to("pg"), &[1]);
        world.settle();
        world.service("large", to("pg"), &(1..=large + 1).collect::<Vec<u16>>());
        world.now += 1;
        world.service("small", to("pg"), &[80]);
        world.settle();
        let ready = |name: &str| world.condition(name, EGRESS_SVC_READY).map_or_else(|| "False".to_owned(), |ready| ready.0);
        assert_eq!([ready("first"), ready("large"), ready("small")], ["True", expected, "True"]);
    }
}

#[test]
fn ambiguous_namespace_and_name_pairs_get_separate_entries() {
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
fn services_beyond_the_config_size_are_refused_and_others_stay() {
    let mut world = World::new();
    world.with_class(json!({"statefulSet": {"pod": {"tailscaleContainer": {"image": "tailscale/tailscale:v1.102.0"}}}}));
    let spec = json!({"type": "egress", "tailyard": {"matchPortRange": {"start": 10_000, "end": 60_000}}});
    world.group("pg", spec);
    let ports: Vec<u16> = (1..=400).collect();
    let ready = |world: &World| -> Vec<usize> {
        let there = |index: &usize| world.services.contains_key(&("default".to_owned(), format!("s{index}")));
        let ready = |index: &usize| world.condition(&format!("s{index}"), EGRESS_SVC_READY).is_some_and(|condition| condition.0 == "True");
        (0..45).filter(there).filter(ready).collect()
    };
    for index in 0..20 {
        world.service(&format!("s{index}"), to("pg"), &ports);
    }
    world.settle();
    assert_eq!(ready(&world), (0..20).collect::<Vec<_>>());
    let (names, entries) = (world.external_name("s7"), world.entries("pg"));
    for index in 20..45 {
        world.service(&format!("s{index}"), to("pg"), &ports);
    }
    world.settle();
    let served = ready(&world);
    assert!(served.len() > 20 && served.len() < 45, "{served:?}");
    assert_eq!(served, (0..served.len()).collect::<Vec<_>>(), "the oldest");
    assert_eq!((world.entries("pg").len(), world.children().len()), (served.len(), served.len()), "nothing is made for the others");
    assert!(entries.iter().all(|(key, entry)| world.entries("pg").get(key) == Some(entry)) && world.external_name("s7") == names);
    let condition = world.condition("s44", EGRESS_SVC_CONFIGURED).expect("a condition");
    assert!(condition.0 == "False" && condition.2.contains("is full: use another ProxyGroup"), "{condition:?}");
    world.delete_service("s3");
    world.settle();
    assert_eq!(ready(&world).len(), served.len(), "another takes its place");
}
