//! `EndpointSlice`s of children: what is written, once, and never against Kubernetes' controller.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::Value;

use super::*;
use crate::model::controller::workload::objects::slice::SliceWrite;

/// A group with this number of served Services, without slices.
fn group(families: &'static [&'static str], services: usize) -> World {
    let mut world = with_services(services);
    world.families = families;
    world
}

/// The same with all slices.
fn complete(families: &'static [&'static str], services: usize) -> World {
    let mut world = group(families, services);
    world.settle();
    world.slice_controller(usize::MAX);
    assert!(idle(&world.pass("pg")));
    world
}

fn ready(is_ready: bool) -> Value {
    json!({"type": "Ready", "status": if is_ready { "True" } else { "False" }})
}

fn slices(world: &World) -> Vec<&Value> {
    world.objects.iter().filter(|(object, _)| object.kind == Kind::EndpointSlice).map(|(_, slice)| &**slice).collect()
}

#[test]
fn small_group_writes_no_slices() {
    let mut world = group(&["IPv4"], 16);
    world.settle();
    assert!(slices(&world).is_empty());
    world.service("another", to("pg"), &[80]);
    world.settle();
    assert_eq!(slices(&world).len(), 17);
}

#[test]
fn missing_slices_are_written_as_the_controller_writes_them() {
    for families in [&["IPv4"][..], &["IPv6"], &["IPv4", "IPv6"]] {
        let mut world = group(families, 20);
        let mut waits = false;
        for _ in 0..4 {
            waits |= world.pass("pg").again.is_some_and(|again| again.as_secs() <= 2);
            world.live();
        }
        assert!(waits && slices(&world).is_empty(), "the controller may be faster with the first");
        let expected = 20 * families.len();
        world.now += 2;
        assert_eq!(world.pass("pg").slices.len(), expected - 16, "and is about to write those of the oldest children");
        assert!(world.pass("pg").again.is_some_and(|again| again.as_secs() == 8));
        world.now += 8;
        assert_eq!(world.pass("pg").slices.len(), 16);
        assert_eq!(world.slice_controller(usize::MAX), 0, "nothing is left to do: {:#?}", slices(&world)[0]);
        assert!(idle(&world.pass("pg")));
        let slice = slices(&world)[0];
        assert_eq!(slice["endpoints"].as_array().map(Vec::len), Some(2));
        assert_eq!(slice["metadata"]["ownerReferences"][0]["controller"], true);
    }
}

#[test]
fn child_without_pods_is_left_to_the_controller() {
    let mut world = group(&["IPv4"], 20);
    world.unmade.extend(["pg-0".to_owned(), "pg-1".to_owned()]);
    world.settle();
    assert!(slices(&world).is_empty());
    world.slice_controller(usize::MAX);
    assert!(slices(&world).iter().all(|slice| slice["ports"] == json!([])));
    world.unmade.clear();
    world.live();
    assert_eq!(world.pass("pg").slices.len(), 20);
    assert_eq!(world.slice_controller(usize::MAX), 0);
}

#[test]
fn lost_and_restarted_replicas_change_each_slice_once() {
    let mut world = complete(&["IPv4", "IPv6"], 20);
    world.set_ready("pg-1", &ready(false));
    let made = world.pass("pg").slices;
    assert_eq!(made.len(), 40);
    assert!(made.iter().all(|write| matches!(write, SliceWrite::Change { .. })));
    assert_eq!((world.slice_controller(usize::MAX), world.pass("pg").slices.len()), (0, 0));
    world.pods.remove("pg-1");
    world.live();
    assert_eq!(world.pass("pg").slices.len(), 40, "another Pod");
    assert_eq!((world.slice_controller(usize::MAX), world.pass("pg").slices.len()), (0, 0));
    world.touch("pg-0");
    assert!(world.pass("pg").slices.is_empty(), "a change that concerns no endpoint");
}

#[test]
fn many_slices_are_written_in_turn_with_the_newest_state_of_pods() {
    let mut world = complete(&["IPv4"], 300);
    world.set_ready("pg-1", &ready(false));
    assert_eq!(world.pass("pg").slices.len(), MAX_SLICE_WRITES);
    world.set_ready("pg-1", &ready(true));
    world.set_ready("pg-0", &ready(false));
    let written = |pass: &GroupPlan| pass.slices.len();
    assert_eq!((written(&world.pass("pg")), written(&world.pass("pg"))), (MAX_SLICE_WRITES, 300 - MAX_SLICE_WRITES), "each once more");
    assert_eq!((written(&world.pass("pg")), world.slice_controller(usize::MAX)), (0, 0));
}

#[test]
fn changes_of_a_replica_without_traffic_are_left_to_the_controller() {
    let mut world = complete(&["IPv4"], 20);
    world.set_ready("pg-1", &ready(false));
    assert_eq!(world.pass("pg").slices.len(), 20);
    world.pods.remove("pg-1");
    world.live();
    world.set_ready("pg-1", &ready(false));
    assert!(world.pass("pg").slices.is_empty(), "another Pod, not ready yet");
    assert_eq!(world.slice_controller(5), 5);
    world.set_ready("pg-1", &ready(true));
    assert_eq!((world.pass("pg").slices.len(), world.slice_controller(usize::MAX)), (20, 0));
}

#[test]
fn slice_that_is_newer_than_every_pod_stays() {
    let mut world = complete(&["IPv4"], 20);
    world.set_ready("pg-1", &ready(false));
    assert_eq!(world.slice_controller(12), 12);
    assert_eq!(world.pass("pg").slices.len(), 8, "the controller was faster with the others");
    let slices = world.objects.iter().filter(|(object, _)| object.kind == Kind::EndpointSlice);
    let all: Vec<_> = slices.map(|(object, slice)| (object.clone(), Value::clone(slice))).collect();
    for (object, mut slice) in all {
        slice["endpoints"] = json!([slice["endpoints"][0]]);
        world.put_slice(object, slice);
    }
    assert!(world.pass("pg").slices.is_empty(), "e.g. the node of the other Pod is deleted");
}

#[test]
fn slice_with_fields_of_others_is_left_to_the_controller() {
    let hints = |endpoint: &mut Value| endpoint["hints"] = json!({"forZones": [{"name": "a"}]});
    let host = |endpoint: &mut Value| endpoint["hostname"] = json!("pg-0");
    let foreign = |endpoint: &mut Value| endpoint["targetRef"]["name"] = json!("debug");
    let zone = |endpoint: &mut Value| endpoint["zone"] = json!("a");
    for (change, changed) in [(hints as fn(&mut Value), 19), (host, 19), (foreign, 19), (zone, 20)] {
        let mut world = complete(&["IPv4"], 20);
        let first = world.objects.iter().find(|(object, _)| object.kind == Kind::EndpointSlice);
        let (object, mut slice) = first.map(|(object, slice)| (object.clone(), Value::clone(slice))).expect("a slice");
        change(&mut slice["endpoints"][0]);
        world.put_slice(object, slice);
        world.set_ready("pg-1", &ready(false));
        assert_eq!(world.pass("pg").slices.len(), changed);
        let zones = slices(&world).iter().filter(|slice| slice["endpoints"][0]["zone"] == "a").count();
        assert_eq!(zones, if changed == 20 { 20 } else { 0 }, "a node's zone is the same in all slices");
    }
}

#[test]
fn hints_of_the_traffic_distribution_are_written_as_the_controller_writes_them() {
    for (distribution, zone) in [("PreferSameZone", Some("a")), ("PreferSameNode", Some("a")), ("PreferSameNode", None)] {
        let mut world = group(&["IPv4", "IPv6"], 0);
        world.group("pg", json!({"type": "egress", "tailyard": {"trafficDistribution": distribution}}));
        world.settle();
        for pod in world.pods.values_mut() {
            let labels = pod.metadata.labels.get_or_insert_default();
            labels.extend(zone.map(|zone| ("topology.kubernetes.io/zone".to_owned(), zone.to_owned())));
        }
        for index in 0..20 {
            world.service(&format!("s{index}"), to("pg"), &[80]);
        }
        world.settle();
        world.now += 10;
        world.settle();
        assert!(slices(&world).iter().all(|slice| !slice["endpoints"][1]["hints"].is_null()), "{distribution}: {:#}", slices(&world)[0]);
        assert_eq!((slices(&world).len(), world.slice_controller(usize::MAX)), (40, 0), "{distribution}: {:#}", slices(&world)[0]);
        world.set_ready("pg-1", &ready(false));
        assert_eq!((world.pass("pg").slices.len(), world.slice_controller(usize::MAX)), (40, 0), "{distribution}");
        assert!(
            slices(&world).iter().all(|slice| slice["endpoints"][1]["hints"].is_null()),
            "{distribution}: an unready endpoint has none"
        );
        // Hints of another writer, or for another topology, are not touched.
        world.group("pg", json!({"type": "egress"}));
        world.settle();
        world.set_ready("pg-1", &ready(true));
        assert!(world.pass("pg").slices.is_empty(), "{distribution}: the controller removes the hints first");
    }
}

#[derive(Debug, Clone)]
enum Act {
    Ready(u8, bool),
    Restart(u8),
    Touch(u8),
    Service(u8),
    DeleteService(u8),
    Pass,
    Controller(usize),
    Time(u8),
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0u8..2, any::<bool>()).prop_map(|(pod, ready)| Act::Ready(pod, ready)),
        2 => (0u8..2).prop_map(Act::Restart),
        1 => (0u8..2).prop_map(Act::Touch),
        1 => (0u8..30).prop_map(Act::Service),
        1 => (0u8..30).prop_map(Act::DeleteService),
        6 => Just(Act::Pass),
        4 => (0usize..12).prop_map(Act::Controller),
        1 => (0u8..3).prop_map(Act::Time),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    /// Reconciler and controller write in any order: both come to rest with the content that the controller wants, and each slice is
    /// written at most once by the reconciler for each change of a Pod.
    #[test]
    fn reconciler_and_controller_converge(acts in prop::collection::vec(acts(), 1..40)) {
        let mut world = complete(&["IPv4", "IPv6"], 20);
        let (mut changes, mut written) = (1, 0);
        for act in acts {
            match act {
                Act::Ready(pod, is_ready) => world.set_ready(&format!("pg-{pod}"), &ready(is_ready)),
                Act::Restart(pod) => {
                    world.pods.remove(&format!("pg-{pod}"));
                    world.live();
                }
                Act::Touch(pod) => world.touch(&format!("pg-{pod}")),
                Act::Service(number) => world.service(&format!("s{number}"), to("pg"), &[80]),
                Act::DeleteService(number) => world.delete_service(&format!("s{number}")),
                Act::Pass => written += world.pass("pg").slices.len(),
                Act::Controller(most) => drop(world.slice_controller(most)),
                Act::Time(seconds) => world.now += i64::from(seconds),
            }
            changes += usize::from(matches!(act, Act::Ready(..) | Act::Restart(_) | Act::Touch(_) | Act::Service(_)));
        }
        prop_assert!(written <= 60 * changes, "{} writes", written);
        world.settle();
        world.slice_controller(usize::MAX);
        for _ in 0..3 {
            world.now += 5;
            prop_assert!(world.pass("pg").slices.is_empty());
            prop_assert_eq!(world.slice_controller(usize::MAX), 0);
        }
    }
}
