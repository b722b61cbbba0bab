//! Cost of passes: numbers of writes and evaluations.

use std::time::Instant;

use super::*;
use crate::model::controller::workload::actions::Delete;

#[test]
fn services_cost_three_writes_each() {
    let mut world = with_services(0);
    world.settle();
    let before = world.writes;
    for index in 0..100 {
        world.service(&format!("s{index}"), to("pg"), &[80, 443]);
    }
    world.settle();
    let writes = world.writes - before;
    assert!(writes <= 3 * 100 + 5, "{writes} writes");
    assert!((0..100).all(|index| world.condition(&format!("s{index}"), EGRESS_SVC_READY).expect("a condition").0 == "True"));
}

#[test]
fn change_among_many_services_writes_only_the_affected_objects() {
    let mut world = with_services(100);
    world.settle();
    let mut annotations = to("pg");
    annotations["tailscale.com/tailnet-fqdn"] = json!("other.tail1234.ts.net");
    world.service("s7", annotations, &[80]);
    let retarget = world.pass("pg");
    assert_eq!(retarget.apply.iter().map(|manifest| manifest.object.kind).collect::<Vec<_>>(), [Kind::ConfigMap]);
    world.settle();
    world.service("s7", to("pg"), &[80, 81]);
    let port = world.pass("pg");
    let kinds: Vec<_> = port.apply.iter().map(|manifest| manifest.object.kind).collect();
    assert_eq!(kinds, [Kind::Service, Kind::ConfigMap], "the record before the use");
    assert!(port.services.len() <= 1 && port.delete.is_empty());
}

/// Cost of one change of one Service among `services`: evaluated Services, written objects, updates of users' Services.
fn one_change(services: usize) -> [Vec<(u64, usize, usize)>; 2] {
    let mut world = with_services(services);
    world.settle();
    ["retargeted", "given another port"].map(|how| {
        let mut annotations = to("pg");
        annotations["tailscale.com/tailnet-fqdn"] = json!("other.tail1234.ts.net");
        world.service("s7", annotations, if how == "retargeted" { &[80] } else { &[80, 81] });
        let mut passes = Vec::new();
        loop {
            let before = world.memory.passes[&"pg".into()].evaluated();
            let made = world.pass("pg");
            passes.push((world.memory.passes[&"pg".into()].evaluated() - before, made.apply.len(), made.services.len()));
            if idle(&made) {
                return passes;
            }
            world.live();
        }
    })
}

#[test]
fn change_cost_is_independent_of_the_number_of_services() {
    let few = one_change(10);
    assert_eq!(few, one_change(100));
    assert!(few.iter().flatten().all(|(evaluated, ..)| *evaluated <= 1), "{few:?}");
    assert!(few.iter().flatten().any(|(evaluated, ..)| *evaluated == 1), "{few:?}");
}

#[test]
fn idle_pass_evaluates_no_service() {
    let mut world = with_services(20);
    world.settle();
    let before = world.memory.passes[&"pg".into()].evaluated();
    assert!(before >= 20);
    for _ in 0..100 {
        assert!(idle(&world.pass("pg")));
    }
    assert_eq!(world.memory.passes[&"pg".into()].evaluated(), before);
}

#[test]
fn cost_of_deletions_is_linear() {
    let observed = with_services(0).observe("pg");
    let (spec, owner) = (spec(&observed), owner(&observed));
    let pass = Pass { observed: &observed, spec: spec.as_ref(), owner: &owner };
    let cost = |count: usize| {
        let deletions = (0..count).map(|number| Delete { object: object(Kind::Service, &format!("ts-service-{number:06}")), uid: None });
        let mut inner = pass.part();
        inner.plan.delete = deletions.collect();
        let begin = Instant::now();
        let (mut part, mut whole) = (pass.part(), pass.part());
        part.add(inner);
        whole.add(part);
        assert_eq!(whole.finish().delete.len(), count);
        begin.elapsed()
    };
    let least = |count: usize| (0..3).map(|_| cost(count)).min().expect("three");
    let (few, many) = (least(4_000), least(32_000));
    assert!(many < 25 * few, "{few:?} {many:?}");
}

#[test]
fn many_new_services_are_created_oldest_first_in_few_passes() {
    let mut world = with_services(0);
    world.settle();
    for index in 0..600 {
        // Names in the reverse order of their age.
        world.now += 1;
        world.service(&format!("s{:03}", 599 - index), to("pg"), &[80]);
    }
    let created = |made: &GroupPlan| made.apply.iter().filter(|manifest| manifest.object.kind == Kind::Service).count();
    let mut counts = Vec::new();
    loop {
        let made = world.pass("pg");
        counts.push(created(&made));
        let oldest: Vec<_> = made.apply.iter().map(|manifest| manifest.object.name.as_str()).collect();
        assert!(counts.len() > 1 || oldest.iter().any(|name| name.starts_with("ts-s599-")), "{oldest:?}");
        assert!(counts.len() > 1 || !oldest.iter().any(|name| name.starts_with("ts-s000-")), "{oldest:?}");
        if made.again != Some(std::time::Duration::ZERO) {
            break;
        }
    }
    assert_eq!(counts, [150, 150, 150, 150], "a quarter of the Services");
    assert_eq!(world.entries("pg").len(), 600);
    world.settle();
    assert!((0..600).all(|index| world.external_name(&format!("s{index:03}")).starts_with("ts-s")));
}

#[test]
fn rejected_children_do_not_delay_newer_ones() {
    let mut world = with_services(0);
    world.settle();
    for index in 0..400 {
        world.now += 1;
        world.service(&format!("s{index:03}"), to("pg"), &[80]);
    }
    let is_rejected = |name: &str| name[..7] < *"ts-s200";
    for _ in 0..4 {
        world.pass("pg");
        world.objects.retain(|object, _| object.kind != Kind::Service || !is_rejected(&object.name));
    }
    assert_eq!(world.children().iter().filter(|child| !is_rejected(&child.name)).count(), 200);
}

#[test]
fn lost_children_are_restored_at_once() {
    let mut world = with_services(200);
    world.settle();
    world.objects.retain(|object, _| !object.name.starts_with("ts-s"));
    let made = world.pass("pg");
    assert_eq!(made.apply.iter().filter(|manifest| manifest.object.kind == Kind::Service).count(), 200);
    assert_eq!(world.entries("pg").len(), 200, "replicas serve them meanwhile");
}
