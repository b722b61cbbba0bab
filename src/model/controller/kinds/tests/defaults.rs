//! Objects without annotation: default groups, the group of the `IngressClass`, opting out, and the former `externalName`.

use super::publish::{ingress, publishing};
use super::*;
use crate::api::condition::INGRESS_SVC_VALID;
use crate::model::controller::policy::assignment::ClassParameters;

/// Annotations of an egress Service that names no group.
fn unnamed() -> serde_json::Value {
    json!({"tailscale.com/tailnet-fqdn": "db.tail1234.ts.net"})
}

/// A cluster with a default egress group and one served Service that names no group.
fn serving_by_default() -> World {
    let mut world = World::new();
    world.assignment.defaults.egress = Some("pg".into());
    world.group("pg", json!({"type": "egress"}));
    world.service("db", unnamed(), &[5432]);
    world.settle();
    world
}

/// Sets an annotation of a Service, or removes it.
fn annotate(world: &mut World, name: &str, key: &str, value: Option<&str>) {
    let service = world.services.get_mut(&("default".to_owned(), name.to_owned())).expect("a Service");
    let annotations = service.metadata.annotations.get_or_insert_default();
    match value {
        Some(value) => drop(annotations.insert(key.to_owned(), value.to_owned())),
        None => drop(annotations.remove(key)),
    }
}

fn annotation(world: &World, name: &str, key: &str) -> Option<String> {
    world.services[&("default".to_owned(), name.to_owned())].metadata.annotations.as_ref()?.get(key).cloned()
}

/// An Ingress that names no group.
fn unnamed_ingress(world: &mut World, name: &str) {
    world.put_ingress(name, json!({}), site(name, "web"));
}

/// Names in the config of a group.
fn published(world: &World, group: &str) -> Vec<String> {
    world.config(group).origins.into_keys().collect()
}

#[test]
fn default_egress_group_serves_a_service_until_it_opts_out() {
    for way in ["annotation", "namespace", "default"] {
        let mut world = serving_by_default();
        assert!(world.external_name("db").starts_with("ts-db-"), "{way}");
        match way {
            "annotation" => annotate(&mut world, "db", names::PROXY_GROUP, Some("")),
            "namespace" => drop(world.assignment.namespaces.remove("default")),
            _ => world.assignment.defaults.egress = None,
        }
        world.settle();
        assert_eq!((world.children().len(), world.entries("pg").len()), (0, 0), "{way}");
        assert_eq!((world.external_name("db").as_str(), world.condition("db", EGRESS_SVC_VALID)), ("placeholder", None), "{way}");
        annotate(&mut world, "db", names::PROXY_GROUP, Some("pg"));
        world.settle();
        assert!(world.external_name("db").starts_with("ts-db-"), "{way}: an annotation wins");
    }
}

#[test]
fn service_without_request_is_in_no_default_group() {
    let mut world = publishing(ingress());
    world.assignment.defaults.ingress = Some("in".into());
    world.assignment.defaults.egress = Some("in".into());
    world.service("plain", json!({}), &[80]);
    world.settle();
    assert_eq!(world.external_name("plain"), "placeholder");
    assert_eq!((published(&world, "in"), world.events.len()), (vec![], 0));
    assert!(world.services.values().all(|service| service.status.is_none() && service.metadata.finalizers.is_none()));
}

#[test]
fn changed_default_moves_a_service_without_interruption() {
    let mut world = serving_by_default();
    world.group("other", json!({"type": "egress"}));
    world.settle();
    let old = world.external_name("db");
    world.asleep.extend(["other-0".to_owned(), "other-1".to_owned()]);
    world.assignment.defaults.egress = Some("other".into());
    world.settle();
    assert_eq!((world.external_name("db"), world.children().len()), (old.clone(), 2), "the old group serves");
    world.asleep.clear();
    world.settle();
    assert_ne!(world.external_name("db"), old);
    assert_eq!((world.children().len(), world.entries("pg").len(), world.entries("other").len()), (1, 0, 1));
    assert_eq!(annotation(&world, "db", names::FORMER_EXTERNAL_NAME).as_deref(), Some("placeholder"));
}

#[test]
fn unusable_default_group_is_reported_with_its_setting() {
    let mut world = World::new();
    world.assignment.defaults.egress = Some("pg".into());
    world.assignment.defaults.ingress = Some("pg".into());
    world.service("db", unnamed(), &[5432]);
    world.settle();
    let valid = world.condition("db", EGRESS_SVC_VALID).expect("a condition");
    let missing = "ProxyGroup pg, the default of --default-egress-group (chart: defaultProxyGroups.egress), does not exist: create it, or name \
         another group.";
    assert_eq!((valid.1.as_str(), valid.2.as_str()), ("ProxyGroupNotReady", missing));
    world.group("pg", json!({"type": "egress"}));
    unnamed_ingress(&mut world, "app");
    world.plain("web", json!({"tailscale.com/expose": "true"}), json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}]}));
    let made = world.pass("pg");
    let wrong = "ProxyGroup pg, the default of --default-ingress-group (chart: defaultProxyGroups.ingress), is of type egress, which publishes \
         nothing: name one of type ingress.";
    let reported: Vec<_> = made.faults.iter().map(|event| (event.reason, event.message.as_str())).collect();
    assert_eq!(reported, [("ProxyGroupNotReady", wrong); 2], "the Ingress and the Service");
    world.settle();
    assert_eq!(world.condition("web", INGRESS_SVC_VALID).expect("a condition").2, wrong);
    assert_eq!(world.condition("db", EGRESS_SVC_READY).expect("a condition").0, "True");
}

#[test]
fn tenancy_of_a_default_group_holds() {
    let mut world = World::new();
    world.assignment.defaults.egress = Some("pg".into());
    world.group("pg", json!({"type": "egress", "tailyard": {"tenants": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]}}));
    world.service("db", unnamed(), &[5432]);
    world.settle();
    assert!(world.condition("db", EGRESS_SVC_VALID).expect("a condition").2.contains("may not use it in ProxyGroup pg"));
    assert_eq!(world.children().len(), 0);
}

#[test]
fn edited_class_parameters_move_an_ingress() {
    let mut world = publishing(ingress());
    world.assignment.parameters = ClassParameters::Group("in".into());
    world.assignment.defaults.ingress = Some("unused".into());
    unnamed_ingress(&mut world, "app");
    world.settle();
    assert_eq!(published(&world, "in"), ["svc:app"]);
    world.group("new", ingress());
    world.settle();
    world.assignment.parameters = ClassParameters::Group("new".into());
    world.settle();
    assert_eq!((published(&world, "in"), published(&world, "new")), (vec![], vec!["svc:app".to_owned()]));
}

#[test]
fn invalid_class_parameters_change_no_served_ingress() {
    let mut world = publishing(ingress());
    world.assignment.defaults.ingress = Some("in".into());
    unnamed_ingress(&mut world, "app");
    world.settle();
    let before = world.config("in");
    for parameters in [ClassParameters::Invalid("why".into()), ClassParameters::Unknown] {
        let is_reported = parameters != ClassParameters::Unknown;
        world.assignment.parameters = parameters;
        world.settle();
        assert_eq!(world.config("in").origins, before.origins);
        assert_eq!(world.config("in").serve, before.serve);
        world.events.clear();
        unnamed_ingress(&mut world, "late");
        world.settle();
        assert_eq!(published(&world, "in"), ["svc:app"], "no other group is tried");
        assert_eq!(world.event_count("InvalidIngressClass"), usize::from(is_reported));
        world.delete_ingress("late");
        world.settle();
    }
    world.assignment.parameters = ClassParameters::Invalid("why".into());
    world.delete_ingress("app");
    world.settle();
    assert_eq!((published(&world, "in"), world.ingresses.len()), (vec![], 0), "a deletion waits for nothing");
}

#[test]
fn former_external_name_is_restored_when_a_service_leaves() {
    for (recorded, restored) in [
        (Some("placeholder"), true),
        (Some("legacy.example.com."), true),
        (None, false),
        (Some(""), false),
        (Some("no name"), false),
        (Some("Upper.example.com"), false),
        (Some("ts-x.tailscale.svc.cluster.local"), false),
    ] {
        let mut world = serving();
        let ours = world.external_name("db");
        assert_eq!(annotation(&world, "db", names::FORMER_EXTERNAL_NAME).as_deref(), Some("placeholder"));
        annotate(&mut world, "db", names::FORMER_EXTERNAL_NAME, recorded);
        annotate(&mut world, "db", names::PROXY_GROUP, None);
        world.settle();
        let expected = recorded.filter(|_| restored).map_or(ours, str::to_owned);
        assert_eq!((world.external_name("db"), annotation(&world, "db", names::FORMER_EXTERNAL_NAME)), (expected, None), "{recorded:?}");
        assert_eq!(world.event_count("EgressReleased"), usize::from(!restored), "{recorded:?}");
    }
}

#[test]
fn former_external_name_is_restored_when_the_group_is_deleted() {
    let mut world = serving();
    world.delete_group("pg");
    world.settle();
    assert_eq!((world.external_name("db").as_str(), annotation(&world, "db", names::FORMER_EXTERNAL_NAME)), ("placeholder", None));
    assert_eq!(world.children().len(), 1, "it keeps its ports for a new group of the name");
    world.group("pg", json!({"type": "egress"}));
    world.settle();
    assert!(world.external_name("db").starts_with("ts-db-"));
    assert_eq!(annotation(&world, "db", names::FORMER_EXTERNAL_NAME).as_deref(), Some("placeholder"));
}

#[test]
fn service_that_names_a_missing_group_is_served_by_the_former_one() {
    let mut world = serving();
    let ours = world.external_name("db");
    annotate(&mut world, "db", names::PROXY_GROUP, Some("missing"));
    world.settle();
    assert_eq!((world.external_name("db"), world.children().len()), (ours, 1));
}
