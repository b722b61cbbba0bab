//! Certificates of standalone Ingresses: the weekly quota of a namespace, and the Secret of a deleted Ingress.

#![allow(clippy::needless_pass_by_value, reason = "a call with a literal reads better")]

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::*;
use crate::model::controller::ingress::certificate_orders::{OrderRecord, orders_ref};
use crate::model::controller::ingress::standalone_certificate::grants;
use crate::model::controller::policy::assignment::StandaloneScope;
use crate::model::controller::policy::tenancy::DefaultTenancy;
use crate::model::controller::policy::tenancy::parse::parse;
use crate::model::controller::workload::objects::certificate::domain_of;

const DAY: i64 = 24 * 60 * 60;
const SHOP: &str = "shop.tail1234.ts.net";

/// A cluster that serves standalone Ingresses of two namespaces, each with a backend.
fn world() -> World {
    let mut world = World::new();
    world.assignment.standalone = StandaloneScope::Everywhere;
    world.plain("web", json!({}), json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}]}));
    let mut web = world.services[&("default".to_owned(), "web".to_owned())].clone();
    web.metadata.namespace = Some("other".to_owned());
    world.services.insert(("other".to_owned(), "web".to_owned()), web);
    world
}

/// Creates or changes an Ingress of a namespace.
fn put(world: &mut World, namespace: &str, name: &str, annotations: Value, host: &str) {
    let key = ("default".to_owned(), name.to_owned());
    let (own, stored) = ((namespace.to_owned(), name.to_owned()), world.ingresses.remove(&key));
    if let Some(existing) = world.ingresses.remove(&own) {
        world.ingresses.insert(key.clone(), existing);
    }
    world.put_ingress(name, annotations, site(host, "web"));
    let mut ingress = world.ingresses.remove(&key).expect("it was just made");
    ingress.metadata.namespace = Some(namespace.to_owned());
    world.ingresses.extend(stored.map(|stored| (key, stored)));
    world.ingresses.insert(own, ingress);
}

fn delete(world: &mut World, namespace: &str, name: &str) {
    let now = Time(world.time());
    let ingress = world.ingresses.get_mut(&(namespace.to_owned(), name.to_owned())).expect("an Ingress");
    ingress.metadata.deletion_timestamp.get_or_insert(now);
    world.settle();
    assert!(!world.ingresses.contains_key(&(namespace.to_owned(), name.to_owned())), "its finalizer is removed");
}

fn certificates(world: &World) -> Vec<&str> {
    world.objects.values().filter_map(|object| domain_of(object)).collect()
}

fn uid(world: &World, secret: &str) -> String {
    world.objects[&object(Kind::Secret, secret)]["metadata"]["uid"].as_str().expect("a UID").to_owned()
}

fn orders(world: &World, namespace: &str) -> usize {
    world.objects.get(&orders_ref(NS, namespace)).map_or(0, |stored| OrderRecord::read(stored).orders().len())
}

fn ports(world: &World, namespace: &str, name: &str) -> Vec<u64> {
    let status = serde_json::to_value(&world.ingresses[&(namespace.to_owned(), name.to_owned())].status).expect("JSON");
    let ports = status["loadBalancer"]["ingress"][0]["ports"].as_array().cloned().unwrap_or_default();
    ports.iter().filter_map(|port| port["port"].as_u64()).collect()
}

/// Changes the labels of a certificate's Secret, as its proxy may.
fn relabel(world: &mut World, secret: &str, labels: Value) {
    world.edit(&object(Kind::Secret, secret), |stored| {
        for (key, value) in labels.as_object().expect("labels") {
            stored["metadata"]["labels"][key] = value.clone();
        }
        stored["metadata"]["labels"].as_object_mut().expect("labels").retain(|_, value| !value.is_null());
    });
}

fn limited(most: u32) -> World {
    let mut world = world();
    let tenants = json!([{"namespaceSelector": {}, "maxCertificatesPerWeek": most}]);
    world.settings.standalone_tenants = Arc::new(parse(&tenants.to_string()).expect("tenants"));
    for namespace in ["default", "other"] {
        world.namespaces.insert(namespace.to_owned(), Arc::default());
    }
    world
}

#[test]
fn loop_over_host_names_stops_at_the_weekly_quota() {
    let mut world = limited(2);
    for host in ["a", "b", "c", "d"] {
        put(&mut world, "default", "shop", json!({}), host);
        world.settle();
    }
    assert_eq!(certificates(&world), ["a.tail1234.ts.net", "b.tail1234.ts.net"]);
    assert!(world.event_count("TooManyCertificates") >= 1, "{:?}", world.events);
    let workload = world.observe("ingress/default/shop").workload;
    assert_eq!(world.config(&workload).routes.keys().collect::<Vec<_>>(), ["svc:b"], "the last one that was permitted is served");
    put(&mut world, "default", "more", json!({}), "more");
    put(&mut world, "other", "else", json!({}), "else");
    world.settle();
    assert_eq!(certificates(&world), ["a.tail1234.ts.net", "b.tail1234.ts.net", "else.tail1234.ts.net"]);
    assert_eq!(ports(&world, "other", "else"), [443], "another namespace is not affected");
    world.now += 7 * DAY;
    world.settle();
    assert_eq!(ports(&world, "default", "more"), [443]);
    assert_eq!(certificates(&world), ["d.tail1234.ts.net", "else.tail1234.ts.net", "more.tail1234.ts.net"]);
}

#[test]
fn owners_that_take_turns_stop_at_the_weekly_quota() {
    for (second, most) in [("default", 3), ("other", 6)] {
        let mut world = limited(3);
        let mut ordered = BTreeSet::new();
        for turn in 0..12 {
            let (namespace, name) = if turn % 2 == 0 { ("default", "a") } else { (second, "b") };
            put(&mut world, namespace, name, json!({}), "shop");
            world.settle();
            ordered.insert(uid(&world, SHOP));
            delete(&mut world, namespace, name);
        }
        assert_eq!(ordered.len(), most, "{second}");
        assert!(world.event_count("TooManyCertificates") >= 1, "{:?}", world.events);
        world.now += 7 * DAY;
        world.settle();
        put(&mut world, "default", "a", json!({}), "shop");
        world.settle();
        assert_eq!(ports(&world, "default", "a"), [443], "a week later");
    }
}

#[test]
fn standalone_certificates_have_the_default_limit() {
    for (tenancy, refused) in [(DefaultTenancy::Bounded, true), (DefaultTenancy::Open, false)] {
        let mut world = world();
        world.settings.tenancy = tenancy;
        put(&mut world, "default", "shop", json!({}), "shop");
        world.settle();
        let mut record = OrderRecord::read(&world.objects[&orders_ref(NS, "default")]);
        for index in 0..49 {
            let (ingress, host) = (format!("i{index}"), format!("h{index}.tail1234.ts.net"));
            record.put(crate::model::controller::ingress::certificate_orders::CertificateOrder {
                ingress,
                host,
                ordered: world.now,
                ..Default::default()
            });
        }
        let manifest = record.manifest(NS, "default", None);
        world.edit(&orders_ref(NS, "default"), |stored| stored["data"] = manifest.value["data"].clone());
        put(&mut world, "default", "more", json!({}), "more");
        world.settle();
        assert_eq!((world.event_count("TooManyCertificates") > 0, ports(&world, "default", "more").is_empty()), (refused, refused));
    }
}

#[test]
fn ingress_that_is_created_again_within_the_week_orders_nothing() {
    let mut world = world();
    put(&mut world, "default", "shop", json!({}), "shop");
    world.settle();
    let (before, count) = (uid(&world, SHOP), orders(&world, "default"));
    for _ in 0..3 {
        delete(&mut world, "default", "shop");
        assert!(world.devices.is_empty() && !world.objects.keys().any(|object| object.kind == Kind::Role), "only the certificate stays");
        world.now += DAY;
        world.settle();
        put(&mut world, "default", "shop", json!({}), "shop");
        world.settle();
        assert_eq!((ports(&world, "default", "shop"), uid(&world, SHOP)), (vec![443], before.clone()));
    }
    assert_eq!((count, orders(&world, "default")), (1, 1));
    delete(&mut world, "default", "shop");
    let writes = world.writes;
    for _ in 0..10 {
        assert!(idle(&world.pass("ingress/default/shop")));
    }
    assert_eq!(world.writes, writes);
    world.now += 7 * DAY;
    world.settle();
    assert_eq!(world.objects.keys().map(|object| object.name.as_str()).collect::<Vec<_>>(), [names::ACCOUNTS], "a week after the order");
}

#[test]
fn live_certificate_outlives_the_week_of_its_order() {
    let mut world = world();
    put(&mut world, "default", "shop", json!({}), "shop");
    world.settle();
    let before = uid(&world, SHOP);
    world.now += 30 * DAY;
    world.settle();
    assert_eq!((ports(&world, "default", "shop"), uid(&world, SHOP), orders(&world, "default")), (vec![443], before, 1));
    delete(&mut world, "default", "shop");
    assert_eq!(world.objects.keys().map(|object| object.name.as_str()).collect::<Vec<_>>(), [names::ACCOUNTS]);
}

/// Labels by which a Secret is a certificate of this standalone Ingress.
fn labels_of(namespace: &str, name: &str) -> Value {
    json!({"tailyard.io/parent-ingress": name, "tailyard.io/parent-namespace": namespace})
}

#[test]
fn secret_of_a_deleted_ingress_is_never_given_to_another_owner() {
    for relabelled in [false, true] {
        let mut world = world();
        put(&mut world, "default", "shop", json!({}), "shop");
        world.settle();
        let first = uid(&world, SHOP);
        if relabelled {
            relabel(&mut world, SHOP, labels_of("other", "mine"));
        }
        delete(&mut world, "default", "shop");
        assert_eq!(uid(&world, SHOP), first, "it stays for its week");
        put(&mut world, "other", "mine", json!({}), "shop");
        for _ in 0..40 {
            world.round();
            let names_it = world.objects.iter().any(|(object, role)| object.kind == Kind::Role && grants(role, SHOP));
            let is_first = world.objects.get(&object(Kind::Secret, SHOP)).is_some_and(|secret| secret["metadata"]["uid"] == *first);
            assert!(!(names_it && is_first), "the proxy of another Ingress may use it");
        }
        world.settle();
        assert_eq!(ports(&world, "other", "mine"), [443]);
        let second = uid(&world, SHOP);
        assert_ne!(second, first);
        delete(&mut world, "other", "mine");
        put(&mut world, "default", "shop", json!({}), "shop");
        world.settle();
        assert_eq!(ports(&world, "default", "shop"), [443]);
        assert!(![first, second].contains(&uid(&world, SHOP)), "nor does the first one get that of the second");
    }
}

#[test]
fn secret_of_a_deleted_ingress_is_never_given_to_a_group() {
    let mut world = world();
    world.group("in", json!({"type": "ingress"}));
    put(&mut world, "default", "shop", json!({}), "shop");
    world.settle();
    let first = uid(&world, SHOP);
    let labels = json!({"tailyard.io/parent-ingress": null, "tailyard.io/parent-namespace": null,
        "tailscale.com/parent-resource-type": "ingress", "tailscale.com/parent-resource": "mine",
        "tailscale.com/parent-resource-ns": "other", "tailscale.com/proxy-group": "in"});
    relabel(&mut world, SHOP, labels);
    delete(&mut world, "default", "shop");
    put(&mut world, "other", "mine", json!({"tailscale.com/proxy-group": "in"}), "shop");
    for _ in 0..40 {
        world.round();
        let role = world.objects.get(&object(Kind::Role, "in"));
        let is_first = world.objects.get(&object(Kind::Secret, SHOP)).is_some_and(|secret| secret["metadata"]["uid"] == *first);
        assert!(!(is_first && role.is_some_and(|role| grants(role, SHOP))), "replicas of the group may use it");
    }
    world.settle();
    assert_eq!(ports(&world, "other", "mine"), [443]);
    assert_ne!(uid(&world, SHOP), first);
}

#[test]
fn certificate_of_an_older_version_is_recorded_and_stays() {
    let mut world = world();
    put(&mut world, "default", "shop", json!({}), "shop");
    world.settle();
    let before = uid(&world, SHOP);
    world.objects.remove(&orders_ref(NS, "default"));
    world.settle();
    assert_eq!((ports(&world, "default", "shop"), uid(&world, SHOP), orders(&world, "default")), (vec![443], before, 1));
}
