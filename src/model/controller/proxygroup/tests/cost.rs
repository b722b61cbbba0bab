//! Cost of passes: numbers of writes and evaluations.

use super::*;

#[test]
fn services_cost_at_most_five_writes_each() {
    let mut world = World::new();
    world.group("pg", json!({"type": "egress"}));
    world.settle();
    let before = world.writes;
    for index in 0..100 {
        world.service(&format!("s{index}"), to("pg"), &[80, 443]);
    }
    world.settle();
    let writes = world.writes - before;
    assert!(writes <= 5 * 100 + 5, "{writes} writes");
    assert!((0..100).all(|index| world.condition(&format!("s{index}"), EGRESS_SVC_READY).expect("a condition").0 == "True"));
}

#[test]
fn change_among_many_services_writes_only_the_affected_objects() {
    let mut world = World::new();
    world.group("pg", json!({"type": "egress"}));
    for index in 0..300 {
        world.service(&format!("s{index}"), to("pg"), &[80]);
    }
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
    let mut world = World::new();
    world.group("pg", json!({"type": "egress"}));
    for index in 0..services {
        world.service(&format!("s{index}"), to("pg"), &[80]);
    }
    world.settle();
    ["retargeted", "given another port"].map(|how| {
        let mut annotations = to("pg");
        annotations["tailscale.com/tailnet-fqdn"] = json!("other.tail1234.ts.net");
        world.service("s7", annotations, if how == "retargeted" { &[80] } else { &[80, 81] });
        let mut passes = Vec::new();
        loop {
            let before = world.memories["pg"].evaluated();
            let made = world.pass("pg");
            passes.push((world.memories["pg"].evaluated() - before, made.apply.len(), made.services.len()));
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
    assert_eq!(few, one_change(400));
    assert!(few.iter().flatten().all(|(evaluated, ..)| *evaluated <= 1), "{few:?}");
    assert!(few.iter().flatten().any(|(evaluated, ..)| *evaluated == 1), "{few:?}");
}

#[test]
fn idle_pass_evaluates_no_service() {
    let mut world = World::new();
    world.group("pg", json!({"type": "egress"}));
    for index in 0..20 {
        world.service(&format!("s{index}"), to("pg"), &[80]);
    }
    world.settle();
    let before = world.memories["pg"].evaluated();
    assert!(before >= 20);
    for _ in 0..100 {
        assert!(idle(&world.pass("pg")));
    }
    assert_eq!(world.memories["pg"].evaluated(), before);
}
