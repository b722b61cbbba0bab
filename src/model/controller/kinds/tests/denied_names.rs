//! Names that the control plane refuses: faults of their objects, which delay no other name and no release.

use std::collections::BTreeSet;

use super::publish::{ingress, publishing};
use super::*;
use crate::model::controller::workload::service_requests::take_turn;

/// Names of a tenant that the control plane refuses, as those of devices.
const REFUSED: usize = 40;

/// Namespace of that tenant.
const TENANT: &str = "tenant";

/// Runs a pass over the group: the control plane refuses the tenant's names, and the others while `refuses_all`. Returns the number of
/// requests for Tailscale Services.
fn round(world: &mut World, refuses_all: bool) -> usize {
    let mut plan = pass(&world.observe("in"));
    let turn = take_turn(std::mem::take(&mut plan.control), &world.denied, world.time());
    for action in turn.due.iter().filter(|action| action.is_for_service()) {
        if refuses_all || action.what().contains("svc:device-") {
            let since = world.denied.get(&action.what()).map_or(world.time(), |denial| denial.since);
            let denial = ControlPlaneError { since, why: "it is the name of a device.".into(), refused: Some(world.time()) };
            world.denied.insert(action.what(), denial);
        } else {
            world.denied.remove(&action.what());
        }
    }
    let requests = turn.due.iter().filter(|action| action.is_for_service()).count();
    plan.control = turn.due;
    world.act(&"in".into(), &plan);
    world.live();
    world.now += 1;
    requests
}

/// A group that serves an Ingress `old`, and older Ingresses of a tenant.
fn with_refused() -> World {
    let mut world = publishing(ingress());
    let backend = world.services[&("default".to_owned(), "web".to_owned())].clone();
    world.services.insert((TENANT.to_owned(), "web".to_owned()), backend);
    for number in 0..REFUSED {
        let name = format!("device-{number}");
        world.ingress(&name, "in", (&name, "web"));
        let mut ingress = world.ingresses.remove(&("default".to_owned(), name.clone())).expect("it was just made");
        ingress.metadata.namespace = Some(TENANT.to_owned());
        world.ingresses.insert((TENANT.to_owned(), name), ingress);
    }
    world.now += 1;
    world.ingress("old", "in", ("old", "web"));
    for _ in 0..20 {
        round(&mut world, false);
    }
    world
}

#[test]
fn refused_names_of_a_tenant_delay_no_name_and_no_release_of_another() {
    let mut world = with_refused();
    let is_served = |world: &World, name: &str| {
        let ingress = world.ingresses.get(&("default".to_owned(), name.to_owned()));
        ingress.is_some_and(|ingress| json!(ingress.status)["loadBalancer"]["ingress"].is_array())
    };
    assert!(is_served(&world, "old"), "{:?}", world.hosted.vips.keys());
    world.ingress("new", "in", ("new", "web"));
    world.delete_ingress("old");
    for _ in 0..10 {
        round(&mut world, false);
    }
    assert!(is_served(&world, "new") && !world.ingresses.contains_key(&("default".to_owned(), "old".to_owned())));
    assert_eq!(world.hosted.vips.keys().collect::<Vec<_>>(), ["svc:new"]);
}

#[test]
fn refused_name_is_a_fault_of_its_object_and_not_of_the_group() {
    let world = with_refused();
    assert_eq!(world.ready("in").0, "True", "{:?}", world.ready("in"));
    let plan = pass(&world.observe("in"));
    let reported = plan.faults.iter().filter(|fault| fault.reason == "TailscaleServiceDenied");
    let reported: BTreeSet<_> = reported.map(|fault| fault.subject.clone()).collect();
    let expected = (0..REFUSED).map(|number| WorkloadKey::Ingress(TENANT.to_owned(), format!("device-{number}")));
    assert_eq!(reported, expected.collect());
    let again = plan.again.expect("a request that waits");
    assert!((1..=600).contains(&again.as_secs()), "{again:?}");
}

#[test]
fn refused_names_are_requested_ever_less_often() {
    let mut world = with_refused();
    world.now += 3_600;
    let requests: usize = (0..600).map(|_| round(&mut world, false)).sum();
    assert!((REFUSED..=3 * REFUSED).contains(&requests), "{requests} requests in ten minutes");
}

#[test]
fn refused_release_is_a_fault_of_the_deleted_object() {
    let mut world = with_refused();
    world.delete_ingress("old");
    for _ in 0..10 {
        round(&mut world, true);
    }
    let faults = pass(&world.observe("in")).faults;
    let old = WorkloadKey::Ingress("default".to_owned(), "old".to_owned());
    assert!(faults.iter().any(|fault| fault.subject == old && fault.reason == "TailscaleServiceDenied"), "{faults:?}");
    assert_eq!(world.ready("in").0, "True");
    world.now += 600;
    for _ in 0..10 {
        round(&mut world, false);
    }
    assert!(!world.hosted.vips.contains_key("svc:old") && !world.ingresses.contains_key(&("default".to_owned(), "old".to_owned())));
}

#[test]
fn deletion_of_a_group_reports_the_release_that_it_waits_for() {
    let mut world = with_refused();
    world.delete_group("in");
    for _ in 0..10 {
        round(&mut world, true);
    }
    let ready = world.ready("in");
    assert!(ready.2.contains("it is the name of a device.") && ready.2.contains("waits for that for five minutes"), "{ready:?}");
}
