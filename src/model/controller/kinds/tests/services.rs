//! Users' Services: conditions, and when `externalName` points to a group.

use super::*;

#[test]
fn annotated_service_becomes_ready() {
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
fn children_have_the_traffic_distribution_of_their_group() {
    let mut world = serving();
    let of_child = |world: &World| {
        let child = world.children()[0].clone();
        world.objects[&child]["spec"]["trafficDistribution"].clone()
    };
    assert_eq!(of_child(&world), json!(null));
    for (wanted, expected) in
        [("PreferSameZone", json!("PreferSameZone")), ("PreferSameNode", json!("PreferSameNode")), ("Later", json!(null))]
    {
        world.group("pg", json!({"type": "egress", "tailyard": {"trafficDistribution": wanted}}));
        world.settle();
        assert_eq!(of_child(&world), expected);
        assert!(idle(&world.pass("pg")));
    }
}

#[test]
fn external_name_is_set_after_every_replica_acknowledges() {
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
fn replica_not_ready_for_long_does_not_block_services() {
    let mut world = with_services(0);
    world.settle();
    world.asleep.insert("pg-1".into());
    let pod = world.pods.get_mut("pg-1").expect("a Pod");
    let since = world.now;
    let status = json!({"podIP": "10.9.9.9", "podIPs": [{"ip": "10.9.9.9"}], "conditions": [{"type": "Ready", "status": "False",
        "lastTransitionTime": k8s_openapi::jiff::Timestamp::from_second(since).expect("a time").to_string()}]});
    pod.status = serde_json::from_value(status).expect("a status");
    world.service("db", to("pg"), &[5432]);
    world.rounds(10);
    assert_eq!(world.external_name("db"), "placeholder", "waited for at first");
    world.now += 60;
    world.round();
    assert!(world.external_name("db").starts_with("ts-db-"));
    assert_eq!(world.condition("db", EGRESS_SVC_READY).expect("a condition").1, "PartiallyReadyToRouteTraffic");
}

#[test]
fn replica_without_pod_does_not_block_services() {
    let mut world = World::new();
    world.group("pg", json!({"type": "egress", "replicas": 3}));
    world.unmade.insert("pg-2".into());
    world.service("db", to("pg"), &[5432]);
    world.rounds(10);
    assert_eq!(world.external_name("db"), "placeholder", "waited for at first");
    assert!(world.pass("pg").again.is_some_and(|again| again.as_secs() <= 60), "and looked at in time");
    world.now += 60;
    world.round();
    assert!(world.external_name("db").starts_with("ts-db-"));
    let ready = world.condition("db", EGRESS_SVC_READY).expect("a condition");
    assert_eq!((ready.1.as_str(), ready.2.as_str()), ("PartiallyReadyToRouteTraffic", "2 out of 3 replicas are ready to route traffic"));
    world.unmade.clear();
    world.settle();
    assert_eq!(world.condition("db", EGRESS_SVC_READY).expect("a condition").1, "ReadyToRouteTraffic");
}

#[test]
fn external_name_is_not_set_without_replicas() {
    let mut world = with_services(0);
    world.unmade.extend(["pg-0".to_owned(), "pg-1".to_owned()]);
    world.service("db", to("pg"), &[5432]);
    world.settle();
    assert_eq!(world.external_name("db"), "placeholder");
    assert_eq!(world.condition("db", EGRESS_SVC_READY).expect("a condition").1, "NotReadyToRouteTraffic");
}

#[test]
fn replica_status_must_match_config_and_pod() {
    for (from, to) in [
        (r#""tailnetTargetIPs":["100.64.0.9"]"#, r#""tailnetTargetIPs":[]"#),
        ("db.tail1234.ts.net", "db.tail5678.ts.net"),
        (r#""targetPort":5432"#, r#""targetPort":5433"#),
        (r#""podIPv4":"10."#, r#""podIPv4":"11."#),
    ] {
        let mut world = serving();
        world.asleep.insert("pg-1".into());
        world.edit(&object(Kind::Secret, "pg-1"), |state| {
            let text: k8s_openapi::ByteString = serde_json::from_value(state["data"]["egress-services"].clone()).expect("a status");
            let text = String::from_utf8(text.0).expect("JSON");
            assert!(text.contains(from), "{from} in {text}");
            state["data"]["egress-services"] = json!(k8s_openapi::ByteString(text.replace(from, to).into_bytes()));
        });
        world.settle();
        let ready = world.condition("db", EGRESS_SVC_READY).expect("a condition");
        assert_eq!(ready.2, "1 out of 2 replicas are ready to route traffic", "{to}");
    }
}

#[test]
fn reverted_external_name_is_restored_at_once() {
    let mut world = serving();
    let name = world.external_name("db");
    let status = json!(k8s_openapi::ByteString(b"{}".to_vec()));
    world.edit(&object(Kind::Secret, "pg-1"), |state| state["data"]["egress-services"] = status);
    world.asleep.insert("pg-1".into());
    let mut pod = serde_json::to_value(&world.pods["pg-1"]).expect("JSON");
    pod["status"]["conditions"][0]["status"] = json!("False");
    pod["status"]["conditions"][0]["lastTransitionTime"] = json!(world.time().to_string());
    world.pods.insert("pg-1".into(), serde_json::from_value(pod).expect("a Pod"));
    let service = world.services.get_mut(&("default".to_owned(), "db".to_owned())).expect("a Service");
    service.spec.as_mut().expect("a spec").external_name = Some("placeholder".into());
    world.pass("pg");
    assert_eq!(world.external_name("db"), name, "pg-0 serves it");

    world.service("db", to("pg"), &[5432, 5433]);
    let service = world.services.get_mut(&("default".to_owned(), "db".to_owned())).expect("a Service");
    service.spec.as_mut().expect("a spec").external_name = Some("placeholder".into());
    world.pass("pg");
    world.pass("pg");
    assert_ne!(world.external_name("db"), name, "it was never pointed at this config");
}

#[test]
fn invalid_service_keeps_its_mapping() {
    let mut world = serving();
    let (name, entries) = (world.external_name("db"), world.entries("pg"));
    world.service("db", json!({"tailscale.com/proxy-group": "pg", "tailscale.com/tailnet-ip": "nonsense"}), &[5432]);
    let first_pass = world.pass("pg");
    assert_eq!(first_pass.events.iter().map(|event| event.reason).collect::<Vec<_>>(), ["INVALIDSERVICE"]);
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
    assert_eq!((world.children().len(), world.entries("pg").len()), (2, 1), "a client may still use the old DNS answer");
    world.settle();
    assert_eq!((world.children().len(), world.entries("pg").len(), world.entries("other").len()), (1, 0, 1));
    assert!(world.condition("db", EGRESS_SVC_CONFIGURED).expect("a condition").1.contains(":other:"));
}

#[test]
fn released_service_is_cleaned_up_for_every_cause() {
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
        let remaining = world.services.get(&("default".to_owned(), "db".to_owned()));
        assert_eq!(remaining.is_none(), way == "deleted");
        let clean = |service: &Service| service.metadata.finalizers.iter().flatten().count() == 0 && !claims::recorded(service);
        assert!(remaining.is_none_or(clean), "{way}: {remaining:?}");
        let reported = usize::from(way != "deleted");
        assert_eq!(world.event_count("EgressReleased"), reported, "{way}: its name no longer resolves, which is reported once");
    }
}

#[test]
fn service_naming_a_missing_group_is_not_valid() {
    let mut world = World::new();
    world.service("db", to("pg"), &[5432]);
    world.settle();
    assert_eq!(
        world.condition("db", EGRESS_SVC_VALID).map(|stored| (stored.0, stored.1)),
        Some(("Unknown".into(), "ProxyGroupNotReady".into()))
    );
    world.group("pg", json!({"type": "egress"}));
    world.settle();
    assert_eq!(world.condition("db", EGRESS_SVC_READY).expect("a condition").0, "True");
}

#[test]
fn short_wait_for_replicas_writes_nothing_to_the_service() {
    let mut world = with_services(0);
    world.settle();
    world.asleep.extend(["pg-0".to_owned(), "pg-1".to_owned()]);
    world.service("db", to("pg"), &[5432]);
    let since = world.now;
    while world.now < since + 15 {
        assert!(world.pass("pg").services.is_empty(), "after {} s", world.now - since);
        assert!(world.pass("pg").again.is_some_and(|again| again.as_secs() <= 15));
        world.now += 5;
    }
    let made = world.pass("pg").services;
    assert!(made[0].finalizers.is_some() && made[0].external_name.is_none(), "{made:?}");
    assert_eq!(world.condition("db", EGRESS_SVC_READY).expect("a condition").1, "NotReadyToRouteTraffic");
    world.asleep.clear();
    world.settle();
    world.service("web", to("pg"), &[80]);
    let mut updates = Vec::new();
    while world.condition("web", EGRESS_SVC_READY).is_none() {
        updates.extend(world.pass("pg").services);
        world.live();
    }
    assert_eq!(updates.len(), 1, "{updates:?}");
    assert!(updates[0].finalizers.is_some() && updates[0].external_name.is_some() && updates[0].conditions.is_some(), "{updates:?}");
}

#[test]
fn moved_service_reports_the_wait_at_once() {
    let mut world = serving();
    world.group("other", json!({"type": "egress"}));
    world.settle();
    world.asleep.extend(["other-0".to_owned(), "other-1".to_owned()]);
    world.service("db", to("other"), &[5432]);
    world.pass("other");
    let (status, reason, _) = world.condition("db", EGRESS_SVC_READY).expect("a condition");
    let lingers = "its old child lingers from the new readiness on";
    assert_eq!((status.as_str(), reason.as_str()), ("False", "NotReadyToRouteTraffic"), "{lingers}");
}
