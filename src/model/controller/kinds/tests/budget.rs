//! Budgets of shared objects: no tenant makes an object that the API server rejects, and none is refused for what another one wants.

#![allow(clippy::needless_pass_by_value, reason = "a call with a literal reads better")]

use std::sync::Arc;

use k8s_openapi::ByteString;
use proptest::prelude::*;
use serde_json::Value;

use super::publish::publishing;
use super::*;
use crate::model::controller::workload::objects::Manifest;

/// Limit of the API server for the values of a `ConfigMap` or Secret, in bytes.
const MAX_SIZE: usize = 1 << 20;

/// Size of an object as the API server limits it: values of a `ConfigMap` or Secret, else the object.
fn size(manifest: &Manifest) -> usize {
    let values = |key: &str| manifest.value[key].as_object().cloned().unwrap_or_default().into_values();
    let bytes = |value: Value| serde_json::from_value::<ByteString>(value).expect("bytes").0.len();
    let text = |value: Value| value.as_str().expect("text").len();
    match manifest.object.kind {
        Kind::ConfigMap => values("data").map(text).chain(values("binaryData").map(bytes)).sum(),
        Kind::Secret => values("data").map(bytes).sum(),
        _ => manifest.value.to_string().len(),
    }
}

fn check(plan: &GroupPlan) {
    for manifest in &plan.apply {
        assert!(size(manifest) < MAX_SIZE, "{}: {} bytes", manifest.object, size(manifest));
    }
}

/// Text without redundancy.
fn random(length: usize, seed: u64) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b"abcdefghijklmnopqrstuvwxyz234567"[usize::try_from(state >> 59).expect("small")])
    };
    (0..length).map(|_| next()).collect()
}

fn ingress(world: &World, (namespace, name): (&str, &str), created: i64, spec: Value) -> k8s_openapi::api::networking::v1::Ingress {
    let created = k8s_openapi::jiff::Timestamp::from_second(world.now + created).expect("a time").to_string();
    let annotations = json!({"tailscale.com/proxy-group": "in"});
    let metadata = json!({"namespace": namespace, "name": name, "uid": format!("{namespace}/{name}"), "annotations": annotations,
        "creationTimestamp": created});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("an Ingress")
}

/// A published and a deleted Ingress of one namespace, and a new one; `refused` invalid ones of another, which are older.
fn with_refused(refused: usize) -> Observed {
    let mut world = publishing(json!({"type": "ingress"}));
    for name in ["there", "going"] {
        world.ingress(name, "in", (name, "web"));
    }
    world.settle();
    world.delete_ingress("going");
    world.ingress("new", "in", ("new", "web"));
    let mut observed = world.observe("in");
    for index in 0..refused {
        let name = format!("{}.{}", random(63, index as u64 + 1), random(189, index as u64 + 7));
        let mut spec = site(&random(40, index as u64 + 3), "missing");
        spec["ingressClassName"] = json!("tailscale");
        let stored = ingress(&world, ("noisy", &name), -1_000, spec);
        observed.publish.ingresses.insert(("noisy".to_owned(), name), Arc::new(stored));
    }
    observed
}

#[test]
fn refused_ingresses_of_one_namespace_do_not_change_the_plan_of_another() {
    let (uncrowded, crowded) = (with_refused(0), with_refused(6_500));
    let (uncrowded, crowded) = (pass(&uncrowded), pass(&crowded));
    check(&crowded);
    assert_eq!(crowded.faults.len() - uncrowded.faults.len(), 6_500, "each is reported");
    let of_others = |plan: &GroupPlan| {
        let users: Vec<_> = plan.services.iter().filter(|update| update.namespace != "noisy").cloned().collect();
        (plan.apply.clone(), plan.delete.clone(), plan.control.clone(), users)
    };
    assert_eq!(of_others(&uncrowded), of_others(&crowded));
    assert!(!uncrowded.control.is_empty(), "the new name is published");
    assert!(crowded.services.iter().all(|update| update.namespace != "noisy"), "nothing is written to refused Ingresses");
}

#[test]
fn cost_of_refused_ingresses_is_linear() {
    let cost = |refused: usize| {
        let observed = with_refused(refused);
        allocation_counter::measure(|| drop(pass(&observed))).count_total
    };
    let (few, many) = (cost(250), cost(2_000));
    assert!(many < 10 * few, "{few} {many}");
}

#[test]
fn config_of_an_older_version_loses_its_record_of_events() {
    let mut world = publishing(json!({"type": "ingress"}));
    world.ingress("app", "in", ("app", "web"));
    world.settle();
    let config = object(Kind::ConfigMap, "in-ingress-config");
    let current = world.objects[&config].clone();
    world.edit(&config, |stored| {
        stored["binaryData"]["tailyard-emitted-events.json"] = json!(ByteString(b"{\"Ingress default/app\":\"209e2f5bc28e\"}".to_vec()));
        stored["metadata"]["annotations"][crate::model::controller::workload::objects::APPLIED] = json!("another");
    });
    world.settle();
    assert_eq!(world.objects[&config]["binaryData"], current["binaryData"]);
    assert_eq!(world.event_count("IngressInvalid"), 0);
}

#[test]
fn namespace_that_fills_the_config_first_leaves_room_for_another() {
    let mut world = publishing(json!({"type": "ingress"}));
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let large = |host: &str, seed: u64| {
        let path = |path: u64| format!("/{}", random(1_000, 1_000 * seed + path));
        let paths: Vec<_> = (0..80).map(|at| json!({"path": path(at), "pathType": "Prefix", "backend": backend})).collect();
        json!({"ingressClassName": "tailscale", "tls": [{"hosts": [host]}], "rules": [{"http": {"paths": paths}}]})
    };
    world.services.insert(("other".to_owned(), "web".to_owned()), {
        let mut web = world.services[&("default".to_owned(), "web".to_owned())].clone();
        web.metadata.namespace = Some("other".to_owned());
        web
    });
    for index in 0..9_u64 {
        let name = format!("a{index}");
        let stored = ingress(&world, ("default", &name), i64::try_from(index).expect("small"), large(&name, index));
        world.ingresses.insert(("default".to_owned(), name), stored);
    }
    world.rounds(3);
    let of = |world: &World, namespace: &str| world.config("in").origins.values().filter(|origin| origin.namespace == namespace).count();
    let first = of(&world, "default");
    assert!((4..9).contains(&first), "{first}");
    let stored = ingress(&world, ("other", "late"), 100, large("late", 99));
    world.ingresses.insert(("other".to_owned(), "late".to_owned()), stored);
    world.rounds(3);
    assert_eq!((of(&world, "default"), of(&world, "other")), (first, 1), "existing entries stay, and the other namespace has room");
}

#[test]
fn namespace_that_fills_the_egress_config_first_leaves_room_for_another() {
    let mut world = World::new();
    world.with_class(json!({"statefulSet": {"pod": {"tailscaleContainer": {"image": "tailscale/tailscale:v1.102.0"}}}}));
    world.group("pg", json!({"type": "egress", "tailyard": {"matchPortRange": {"start": 10_000, "end": 60_000}}}));
    let ports: Vec<u16> = (1..=400).collect();
    for index in 0..45 {
        world.service(&format!("s{index}"), to("pg"), &ports);
    }
    world.settle();
    let first: Vec<_> = world.entries("pg").into_keys().collect();
    assert!((10..40).contains(&first.len()), "{}", first.len());
    let mut late = world.services[&("default".to_owned(), "s44".to_owned())].clone();
    (late.metadata.namespace, late.metadata.name, late.status) = (Some("other".into()), Some("late".into()), None);
    (late.metadata.uid, late.metadata.finalizers) = (Some("late".into()), None);
    world.services.insert(("other".to_owned(), "late".to_owned()), late);
    world.settle();
    let entries = world.entries("pg");
    assert!(entries.contains_key("other-late"), "{:?}", entries.keys());
    assert!(first.iter().all(|name| entries.contains_key(name)) && entries.len() == first.len() + 1);
}

/// Ingresses of one case: namespace, paths, length of each path, tls entries with certificates of their own, length of the name.
type Wants = Vec<(usize, usize, usize, usize, usize)>;

fn wants() -> impl Strategy<Value = Wants> {
    let paths = prop_oneof![3 => 1..5_usize, 1 => 100..600_usize];
    let entries = prop_oneof![3 => Just(0_usize), 1 => 100..700_usize];
    prop::collection::vec((0..4_usize, paths, 10..1_000_usize, entries, 1..200_usize), 1..14)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5, ..ProptestConfig::default() })]

    /// Whatever tenants write, every object of the plan is below the limit of the API server.
    #[test]
    fn every_planned_object_is_below_one_mebibyte(wants in wants(), stock in any::<bool>(), standalone in any::<bool>()) {
        let mut world = publishing(json!({"type": "ingress"}));
        if stock {
            world.with_class(json!({"statefulSet": {"pod": {"tailscaleContainer": {"image": "tailscale/tailscale:v1.102.0"}}}}));
        }
        if standalone {
            world.assignment.standalone = crate::model::controller::policy::assignment::StandaloneScope::Everywhere;
        }
        let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
        for (index, (namespace, paths, length, entries, name)) in wants.iter().enumerate() {
            let (namespace, name) = (["default", "b", "c", "d"][*namespace], format!("{}{index}", random(*name, index as u64 + 1)));
            let mut web = world.services[&("default".to_owned(), "web".to_owned())].clone();
            web.metadata.namespace = Some(namespace.to_owned());
            world.services.insert((namespace.to_owned(), "web".to_owned()), web);
            let paths: Vec<_> = (0..*paths)
                .map(|path| json!({"path": format!("/{}", random(*length, (index * 1_000 + path) as u64)), "pathType": "Exact", "backend": backend}))
                .collect();
            let mut tls = vec![json!({"hosts": [format!("h{index}")]})];
            for entry in 0..*entries {
                let secret = random(250, (index * 10_000 + entry) as u64);
                world.own_certificates.insert(secret.clone(), crate::model::controller::workload::observed::UserCertificate::Unread);
                tls.push(json!({"hosts": [format!("{}.example.com", random(60, entry as u64 + 5))], "secretName": secret}));
            }
            let spec = json!({"ingressClassName": "tailscale", "tls": tls, "rules": [{"http": {"paths": paths}}]});
            let mut stored = ingress(&world, (namespace, &name), i64::try_from(index).expect("small"), spec);
            if standalone && index % 2 == 0 {
                stored.metadata.annotations = None;
            }
            world.ingresses.insert((namespace.to_owned(), name), stored);
        }
        for _ in 0..4 {
            for key in world.keys_of_work() {
                let plan = world.pass(&key);
                check(&plan);
            }
            world.live();
            world.now += 1;
        }
    }
}
