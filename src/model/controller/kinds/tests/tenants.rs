//! Tenancy: which namespaces may use a group, and their limits.

#![allow(clippy::needless_pass_by_value, reason = "a call with a literal reads better")]

use std::sync::Arc;

use serde_json::Value;

use super::publish::{expose, publishing};
use super::*;
use crate::api::condition::{INGRESS_SVC_VALID, PROXY_READY};
use crate::model::controller::policy::assignment::StandaloneScope;
use crate::model::controller::policy::tenancy::parse::parse;
use crate::model::controller::policy::tenancy::{DefaultTenancy, Patterns};

/// Spec of a group with one tenant: namespaces of the team `shop`, with additional fields.
fn tenant(kind: &str, more: Value) -> Value {
    let mut tenant = json!({"namespaceSelector": {"matchLabels": {"team": "shop"}}});
    tenant.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    json!({"type": kind, "tailyard": {"tenants": [tenant]}})
}

/// Sets the team label of the users' namespace.
fn team(world: &mut World, team: &str) {
    world.namespaces.insert("default".to_owned(), Arc::new([("team".to_owned(), team.to_owned())].into()));
}

/// A cluster whose namespaces of the team `shop` may have standalone proxies.
fn standalone_world(more: Value) -> World {
    let mut world = World::new();
    world.assignment.standalone = StandaloneScope::Everywhere;
    let Value::Object(spec) = tenant("egress", more) else { unreachable!() };
    let tenants = parse(&spec["tailyard"]["tenants"].to_string()).expect("tenants");
    world.settings.standalone_tenants = Arc::new(tenants);
    world
}

/// Reason and message of the condition of a standalone Service.
fn proxy(world: &World, name: &str) -> (String, String) {
    world.condition(name, PROXY_READY).map(|(_, reason, message)| (reason, message)).unwrap_or_default()
}

fn whole(address: u8) -> Value {
    json!({"clusterIP": format!("10.96.1.{address}"), "ports": [{"port": 80}]})
}

#[test]
fn egress_service_of_an_unselected_namespace_is_refused() {
    let mut world = World::new();
    team(&mut world, "hr");
    world.group("pg", tenant("egress", json!({})));
    world.service("db", to("pg"), &[5432]);
    world.settle();
    let valid = world.condition("db", EGRESS_SVC_VALID).expect("a condition");
    assert!(valid.0 == "False" && valid.2.contains("Namespace default may not use it in ProxyGroup pg"), "{valid:?}");
    assert!(world.children().is_empty());
    // Only the label changes; the Services do not.
    team(&mut world, "shop");
    world.settle();
    assert_eq!(world.condition("db", EGRESS_SVC_READY).expect("a condition").0, "True");
    let (children, before) = (world.children().len(), world.external_name("db"));
    team(&mut world, "hr");
    world.service("more", to("pg"), &[80]);
    world.settle();
    assert_eq!((world.children().len(), world.external_name("db")), (children, before), "what it has stays, and nothing new is given");
    assert_eq!(world.condition("db", EGRESS_SVC_VALID).expect("a condition").0, "False");
    world.delete_service("db");
    world.settle();
    assert!(world.children().is_empty());
}

#[test]
fn port_quota_of_a_namespace_prefers_oldest_services() {
    let mut world = World::new();
    team(&mut world, "shop");
    world.group("pg", tenant("egress", json!({"maxPorts": 3})));
    world.service("young", to("pg"), &[1, 2]);
    world.now -= 60;
    world.service("old", to("pg"), &[3, 4]);
    world.now += 60;
    world.settle();
    let refused = world.condition("young", EGRESS_SVC_CONFIGURED).expect("a condition");
    assert!(refused.0 == "False" && refused.2.contains("may have 3 ports of ProxyGroup pg and has 2"), "{refused:?}");
    assert_eq!(world.condition("old", EGRESS_SVC_READY).expect("a condition").0, "True");
    world.service("young", to("pg"), &[1]);
    world.settle();
    assert_eq!(world.condition("young", EGRESS_SVC_READY).expect("a condition").0, "True", "one port is left");
    world.service("old", to("pg"), &[3, 4, 5]);
    world.settle();
    assert!(world.condition("old", EGRESS_SVC_CONFIGURED).expect("a condition").2.contains("may have 3 ports"));
    assert_eq!(world.children().len(), 2, "it is served as it was");
    world.delete_service("young");
    world.settle();
    assert_eq!(world.condition("old", EGRESS_SVC_READY).expect("a condition").0, "True");
}

#[test]
fn names_and_tags_outside_the_tenant_allowance_are_refused() {
    let mut world = publishing(tenant("ingress", json!({"names": ["shop", "shop-*"], "tags": ["tag:shop"]})));
    team(&mut world, "shop");
    expose(&mut world, "shop-db", json!({"tailscale.com/tags": "tag:shop"}), whole(1));
    expose(&mut world, "payroll", json!({}), whole(2));
    expose(&mut world, "shop-hr", json!({"tailscale.com/tags": "tag:hr-only"}), whole(3));
    world.settle();
    assert_eq!(world.config("in").mappings.keys().collect::<Vec<_>>(), ["svc:shop-db"]);
    assert_eq!(world.hosted.vips.keys().collect::<Vec<_>>(), ["svc:shop-db"], "nothing of the others reaches the control plane");
    let why = |world: &World, name: &str| world.condition(name, INGRESS_SVC_VALID).expect("a condition").2;
    assert!(why(&world, "payroll").contains("may not use the name payroll"), "{}", why(&world, "payroll"));
    assert!(why(&world, "shop-hr").contains("may not give an object the tag tag:hr-only"), "{}", why(&world, "shop-hr"));
    team(&mut world, "hr");
    expose(&mut world, "shop", json!({}), whole(4));
    world.settle();
    assert_eq!(world.config("in").mappings.keys().collect::<Vec<_>>(), ["svc:shop-db"], "what is published stays");
    assert!(why(&world, "shop").contains("may not use it"));
}

#[test]
fn group_without_tenants_refuses_object_tags_unless_open() {
    for (tenancy, published) in [(DefaultTenancy::Bounded, 0), (DefaultTenancy::Open, 1)] {
        let mut world = World::new();
        world.settings.tenancy = tenancy;
        world.group("in", json!({"type": "ingress"}));
        expose(&mut world, "db", json!({"tailscale.com/tags": "tag:hr-only"}), whole(1));
        world.settle();
        assert_eq!(world.hosted.vips.len(), published, "{tenancy:?}");
    }
}

#[test]
fn permitted_tags_and_those_in_use_need_no_tenancy() {
    let tags = json!({"tailscale.com/tags": "tag:used"});
    let with_tags = |more: Value| {
        let mut all = tags.clone();
        all.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        all
    };
    let mut world = publishing(json!({"type": "ingress"}));
    world.assignment.standalone = StandaloneScope::Everywhere;
    expose(&mut world, "grouped", tags.clone(), whole(1));
    world.plain("alone", with_tags(json!({"tailscale.com/expose": "true"})), whole(2));
    world.settle();
    let is_valid = |world: &World, name: &str| world.condition(name, INGRESS_SVC_VALID).expect("a condition").0 == "True";
    assert!(is_valid(&world, "grouped") && proxy(&world, "alone").0 == "ProxyCreated");
    world.settings.tenancy = DefaultTenancy::Bounded;
    world.settle();
    assert!(is_valid(&world, "grouped") && proxy(&world, "alone").0 == "ProxyCreated", "its device has the tag");
    expose(&mut world, "late", tags.clone(), whole(3));
    world.plain("other", with_tags(json!({"tailscale.com/expose": "true"})), whole(4));
    expose(&mut world, "grouped", json!({"tailscale.com/tags": "tag:used,tag:hr"}), whole(1));
    world.settle();
    assert!(!is_valid(&world, "late") && !is_valid(&world, "grouped"));
    assert!(proxy(&world, "other").1.contains("the tag tag:used is not permitted"), "{:?}", proxy(&world, "other"));
    world.settings.permitted_tags = Patterns::parse("tag:used, tag:h*");
    world.settle();
    assert!(is_valid(&world, "late") && is_valid(&world, "grouped") && proxy(&world, "other").0 == "ProxyCreated");
}

#[test]
fn objects_may_name_the_tags_of_their_group_and_the_default_ones() {
    for (own, requested, published) in [
        (json!(["tag:web"]), "tag:web", 1),
        (json!(["tag:web"]), "tag:web,tag:k8s", 1),
        (json!([]), "tag:k8s", 1),
        (json!(["tag:web"]), "tag:web,tag:hr-only", 0),
    ] {
        let mut world = World::new();
        world.settings.tenancy = DefaultTenancy::Bounded;
        world.group("in", json!({"type": "ingress", "tags": own}));
        expose(&mut world, "db", json!({"tailscale.com/tags": requested}), whole(1));
        world.settle();
        assert_eq!(world.hosted.vips.len(), published, "{requested} beside {own}");
    }
}

#[test]
fn name_quota_of_a_namespace_prefers_oldest_objects() {
    let mut world = publishing(tenant("ingress", json!({"maxNames": 2})));
    team(&mut world, "shop");
    for (address, name) in ["c", "b", "a"].into_iter().enumerate() {
        world.now += 10;
        expose(&mut world, name, json!({}), whole(u8::try_from(address).expect("small")));
    }
    world.settle();
    assert_eq!(world.config("in").mappings.keys().collect::<Vec<_>>(), ["svc:b", "svc:c"]);
    let refused = world.condition("a", INGRESS_SVC_VALID).expect("a condition");
    assert!(refused.2.contains("Namespace default has 2 of 2 names in ProxyGroup in"), "{refused:?}");
    world.delete_service("c");
    world.settle();
    assert_eq!(world.config("in").mappings.keys().collect::<Vec<_>>(), ["svc:a", "svc:b"]);
}

#[test]
fn weekly_certificate_quota_counts_deleted_names() {
    const DAY: i64 = 24 * 60 * 60;
    let mut world = publishing(tenant("ingress", json!({"maxCertificatesPerWeek": 2})));
    team(&mut world, "shop");
    let secrets = |world: &World| {
        let names = world.objects.keys().filter(|object| object.kind == Kind::Secret && object.name.ends_with(".ts.net"));
        names.map(|object| object.name.clone()).collect::<Vec<_>>()
    };
    for name in ["a", "b", "c"] {
        world.ingress(name, "in", (name, "web"));
        world.settle();
        world.delete_ingress(name);
        world.settle();
        world.now += DAY;
    }
    world.ingress("d", "in", ("d", "web"));
    world.settle();
    assert_eq!(secrets(&world), [""; 0], "two were ordered within a week, and are gone");
    assert_eq!(world.event_count("TooManyCertificates"), 2);
    assert_eq!(world.config("in").orders["default"].len(), 2);
    world.now += 4 * DAY + DAY / 2;
    world.settle();
    assert_eq!(secrets(&world), ["d.tail1234.ts.net"], "the first order is a week old");
    assert_eq!(world.config("in").orders["default"].len(), 1);
    world.now += 7 * DAY;
    world.settle();
    assert!(world.config("in").orders.is_empty(), "the record ends");
}

#[test]
fn standalone_service_outside_of_the_tenants_is_refused_alone() {
    let mut world = standalone_world(json!({"names": ["default-*"]}));
    let exposed = || json!({"tailscale.com/expose": "true"});
    world.plain("web", exposed(), whole(1));
    world.settle();
    assert_eq!((proxy(&world, "web").0.as_str(), world.objects.len()), ("", 0), "the labels of the namespace are not listed");
    team(&mut world, "hr");
    world.settle();
    let why = "Namespace default may not use the tailnet without a ProxyGroup: an administrator can allow it in standalone.tenants of the \
               chart (--standalone-tenants).";
    assert_eq!(proxy(&world, "web"), ("NotAllowed".to_owned(), why.to_owned()));
    assert_eq!((world.objects.len(), world.minted, world.event_count("NotAllowed")), (0, 0, 1));
    team(&mut world, "shop");
    world.plain("payroll", json!({"tailscale.com/expose": "true", "tailscale.com/hostname": "payroll"}), whole(2));
    world.plain("tagged", json!({"tailscale.com/expose": "true", "tailscale.com/tags": "tag:other"}), whole(3));
    world.settle();
    assert_eq!(proxy(&world, "web").0, "ProxyCreated");
    assert!(proxy(&world, "payroll").1.contains("may not use the name payroll"), "{:?}", proxy(&world, "payroll"));
    assert!(proxy(&world, "tagged").1.contains("may not give an object the tag tag:other"), "{:?}", proxy(&world, "tagged"));
    assert_eq!(world.minted, 1);
    let writes = world.writes;
    assert!(idle(&world.pass("default/payroll")) && world.writes == writes, "it is reported once");
}

#[test]
fn withdrawn_tenant_leaves_a_standalone_proxy_as_it_is() {
    let mut world = standalone_world(json!({}));
    team(&mut world, "shop");
    world.plain("web", json!({"tailscale.com/expose": "true"}), whole(1));
    world.settle();
    assert_eq!(proxy(&world, "web").0, "ProxyCreated");
    let objects = world.objects.clone();
    team(&mut world, "hr");
    world.settle();
    assert_eq!((proxy(&world, "web").0.as_str(), world.objects == objects, world.devices.len()), ("NotAllowed", true, 1));
    world.delete_service("web");
    world.settle();
    assert!(world.objects.is_empty() && world.devices.is_empty(), "its deletion needs no right");
}

#[test]
fn number_of_standalone_proxies_is_limited_and_existing_ones_stay() {
    let mut world = standalone_world(json!({"maxNames": 2}));
    team(&mut world, "shop");
    world.names_before = 2;
    world.plain("web", json!({"tailscale.com/expose": "true"}), whole(1));
    world.settle();
    let (reason, message) = proxy(&world, "web");
    assert!(reason == "TooManyNames" && message.contains("may have 2 standalone proxies") && message.contains("maxNames"), "{message}");
    assert!(world.objects.is_empty() && world.pass("default/web").again.is_some(), "it is tried again");
    world.names_before = 1;
    world.settle();
    assert_eq!(proxy(&world, "web").0, "ProxyCreated");
    world.names_before = 7;
    world.settle();
    assert_eq!(proxy(&world, "web").0, "ProxyCreated");
}

#[test]
fn group_with_tenants_restricts_standalone_proxies_without_tenants() {
    let mut world = standalone_world(json!({}));
    world.settings.standalone_tenants = Arc::default();
    let exposed = || json!({"tailscale.com/expose": "true"});
    world.plain("web", exposed(), whole(1));
    world.put_ingress("shop", json!({}), site("shop", "web"));
    world.settle();
    assert_eq!(proxy(&world, "web").0, "ProxyCreated");
    world.restricted_group = Some("in".to_owned());
    world.settle();
    assert_eq!((proxy(&world, "web").0.as_str(), world.event_count("NotAllowed")), ("ProxyCreated", 0), "what is served stays");
    world.plain("late", exposed(), whole(2));
    world.put_ingress("shop", json!({"tailscale.com/funnel": "true"}), site("shop", "web"));
    world.settle();
    let why = "ProxyGroup in has tenants, and proxies without a ProxyGroup have none: an administrator can allow namespaces in \
               standalone.tenants of the chart (--standalone-tenants).";
    assert_eq!(proxy(&world, "late"), ("NotAllowed".to_owned(), why.to_owned()));
    assert_eq!((world.event_count("NotAllowed"), world.minted), (2, 2), "also a new Funnel");
    world.plain("web", json!({"tailscale.com/expose": "true", "tailscale.com/hostname": "payroll"}), whole(1));
    world.settle();
    assert_eq!(proxy(&world, "web"), ("NotAllowed".to_owned(), why.to_owned()), "another name is new");
}

#[test]
fn funnel_needs_a_tenant_that_permits_it() {
    let funnel = json!({"tailscale.com/funnel": "true"});
    let spec = site("shop", "web");
    for permitted in [false, true] {
        let mut world = standalone_world(json!({"funnel": permitted}));
        team(&mut world, "shop");
        world.plain("web", json!({}), whole(1));
        world.put_ingress("shop", funnel.clone(), spec.clone());
        world.settle();
        assert_eq!((world.event_count("NotAllowed"), world.minted), if permitted { (0, 1) } else { (1, 0) });
    }
    let mut world = publishing(tenant("ingress", json!({})));
    team(&mut world, "shop");
    world.put_ingress("app", json!({"tailscale.com/proxy-group": "in", "tailscale.com/funnel": "true"}), spec);
    world.settle();
    assert_eq!(world.event_count("NotAllowed"), 1);
}
