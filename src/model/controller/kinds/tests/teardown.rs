//! Removal of a name while a replica claims in its state Secret that it still advertises it.

use super::publish::{expose, ingress, publishing};
use super::*;

/// Time for which a ready replica may stop to advertise a name: it drains connections meanwhile.
const MIN_WAIT: i64 = 30;
/// Time after which the claim of a replica no longer counts.
const MAX_WAIT: i64 = 1_800;

/// Runs passes and replicas for some time. Without the invariants of the cluster: a claim is not what the control plane has.
fn run(world: &mut World, seconds: i64) {
    for _ in 0..seconds / 10 {
        world.pass("in");
        world.live();
        world.now += 10;
    }
}

/// A served Ingress and a served Service, and a replica that ignores its config from now on.
fn claimed() -> World {
    let mut world = publishing(ingress());
    world.ingress("shop", "in", ("shop", "web"));
    expose(&mut world, "db", json!({}), json!({"clusterIP": "10.96.0.21", "ports": [{"port": 80}]}));
    world.settle();
    assert_eq!(world.hosted.vips.keys().collect::<Vec<_>>(), ["svc:db", "svc:shop"]);
    world.asleep.insert("in-0".into());
    world
}

#[test]
fn name_that_a_replica_claims_for_ever_is_withdrawn_after_a_deadline() {
    let mut world = claimed();
    world.delete_ingress("shop");
    run(&mut world, MIN_WAIT);
    assert_eq!(world.config("in").leaving.keys().collect::<Vec<_>>(), ["svc:shop"], "any leader continues the deadline");
    assert!(world.hosted.vips.contains_key("svc:shop"), "a replica may still drain connections to it");
    run(&mut world, MAX_WAIT);
    assert!(!world.hosted.vips.contains_key("svc:shop"), "the claim of a replica keeps the Tailscale Service");
    assert!(world.ingresses.is_empty(), "the claim of a replica keeps the Ingress");
    assert!(!world.config("in").origins.contains_key("svc:shop") && world.config("in").leaving.is_empty());
    assert_eq!(world.event_count("TailscaleServiceStillAdvertised"), 1);
    let certificates = world.objects.keys().filter(|object| object.name.starts_with("shop."));
    assert_eq!(certificates.count(), 0, "the certificate is deleted with the name");
    assert!(world.hosted.vips.contains_key("svc:db"), "other names stay");
}

#[test]
fn claim_of_a_replica_does_not_keep_a_deleted_service() {
    let mut world = claimed();
    world.delete_service("db");
    run(&mut world, MIN_WAIT + MAX_WAIT);
    assert!(!world.hosted.vips.contains_key("svc:db"), "the claim of a replica keeps the Tailscale Service");
    assert!(!world.services.contains_key(&("default".to_owned(), "db".to_owned())), "the claim of a replica keeps the Service");
    assert!(world.hosted.vips.contains_key("svc:shop"), "other names stay");
}

#[test]
fn claim_does_not_delay_a_name_that_replicas_withdraw() {
    let mut world = claimed();
    world.asleep.clear();
    world.delete_ingress("shop");
    run(&mut world, MIN_WAIT);
    assert!(world.ingresses.is_empty() && !world.hosted.vips.contains_key("svc:shop"));
}

#[test]
fn requested_name_keeps_no_deadline() {
    let mut world = claimed();
    world.delete_ingress("shop");
    run(&mut world, MIN_WAIT);
    world.ingress("other", "in", ("shop", "web"));
    run(&mut world, MIN_WAIT);
    assert!(world.config("in").leaving.is_empty() && world.hosted.vips.contains_key("svc:shop"));
}

#[test]
fn deleted_group_waits_for_no_claim() {
    let mut world = claimed();
    world.delete_group("in");
    run(&mut world, MIN_WAIT);
    assert!(world.groups.is_empty() && world.hosted.vips.is_empty(), "{:?}", world.hosted.vips.keys());
}

#[test]
fn deleted_name_waits_for_its_successor_for_minutes_only() {
    let mut world = claimed();
    world.asleep.clear();
    world.group("other", ingress());
    world.ingress("late", "other", ("shop", "web"));
    world.delete_ingress("shop");
    // No replica of the other group ever serves it.
    run(&mut world, 2 * MIN_WAIT);
    assert!(world.hosted.vips.contains_key("svc:shop"), "it is served until then");
    run(&mut world, MAX_WAIT);
    assert!(!world.hosted.vips.contains_key("svc:shop"));
    assert_eq!(world.ingresses.keys().map(|(_, name)| name.as_str()).collect::<Vec<_>>(), ["late"]);
}

#[test]
fn object_with_an_invalid_group_does_not_keep_a_deleted_group() {
    let mut world = claimed();
    world.asleep.clear();
    world.ingress("shop", "v/nas", ("shop", "web"));
    world.settle();
    assert!(world.hosted.vips.contains_key("svc:shop") && world.config("in").origins.contains_key("svc:shop"));
    world.delete_group("in");
    world.settle();
    assert!(world.groups.is_empty() && world.hosted.vips.is_empty(), "{:?}", world.hosted.vips.keys());
    assert!(world.ingresses.values().all(|stored| stored.metadata.finalizers.as_ref().is_none_or(Vec::is_empty)));
    assert_eq!(world.event_count("InvalidIngressConfiguration"), 2, "by the group and by no group");
}

#[test]
fn repeated_claim_gets_no_new_deadline() {
    let mut world = claimed();
    world.delete_ingress("shop");
    run(&mut world, MIN_WAIT);
    let begun = world.config("in").leaving;
    // The control plane is not asked yet: a name that no replica claims waits for it.
    world.tailnet = TailnetState::Asking;
    world.asleep.clear();
    run(&mut world, MIN_WAIT);
    assert_eq!((world.config("in").leaving, begun.len()), (begun.clone(), 1));
}
