//! Replacement of many standalone proxies at once.

use super::*;
use crate::model::controller::policy::assignment::StandaloneScope;
use crate::model::controller::workload::naming;

const PROXIES: usize = 25;

fn key(number: usize) -> String {
    format!("default/web-{number:02}")
}

fn pod(number: usize) -> String {
    names::replica(&naming::new_name(&(&*key(number)).into(), &format!("uid-{number}"), 0), 0)
}

/// A cluster with this number of exposed Services.
fn world() -> World {
    let mut world = World::new();
    world.assignment.standalone = StandaloneScope::Everywhere;
    for number in 0..PROXIES {
        let name = format!("web-{number:02}");
        let metadata = json!({"name": name, "namespace": "default", "uid": format!("uid-{number}"),
            "annotations": {"tailscale.com/expose": "true"}});
        let service = serde_json::from_value(json!({"metadata": metadata, "spec": {"clusterIP": "10.96.0.9"}})).expect("a Service");
        world.services.insert(("default".to_owned(), name), service);
    }
    world.settle();
    world
}

/// One pass over each proxy; returns the number of applied `StatefulSet`s.
fn round(world: &mut World) -> usize {
    let is_set = |made: &GroupPlan| made.apply.iter().filter(|manifest| manifest.object.kind == Kind::StatefulSet).count();
    (0..PROXIES).map(|number| is_set(&world.pass(&*key(number)))).sum()
}

#[test]
fn ten_proxies_are_replaced_at_a_time() {
    let mut world = world();
    world.settings.image = "another/image:1".to_owned();
    assert_eq!(round(&mut world), 10);
    assert!(world.pass(&*key(20)).again.is_some(), "the others are requeued");
    for number in 0..10 {
        world.set_ready(&pod(number), &json!({"type": "Ready", "status": "False", "lastTransitionTime": world.time()}));
    }
    assert_eq!(round(&mut world), 0, "none of the first is ready");
    world.now += 60;
    for number in 0..4 {
        world.set_ready(&pod(number), &json!({"type": "Ready", "status": "True"}));
    }
    assert_eq!(round(&mut world), 4);
    world.now += 300;
    assert_eq!(round(&mut world), 10, "proxies that do not become ready are awaited for five minutes");
    assert_eq!(round(&mut world), 1);
    assert_eq!(round(&mut world), 0);
}

#[test]
fn new_and_unready_proxies_are_not_delayed() {
    let mut world = world();
    for number in 0..12 {
        world.set_ready(&pod(number), &json!({"type": "Ready", "status": "False", "lastTransitionTime": world.time()}));
    }
    assert_eq!(round(&mut world), 0);
    world.settings.image = "another/image:1".to_owned();
    assert_eq!(round(&mut world), 12, "those that do not serve lose nothing");
}
