//! Services with routes, on a control plane without Tailscale Services.

use std::collections::BTreeSet;

use super::publish::{expose, publishing};
use super::world::device_id;
use super::*;
use crate::api::condition::{INGRESS_SVC_CONFIGURED, INGRESS_SVC_VALID};

/// A world whose control plane has no Tailscale Services.
fn headscale(spec: serde_json::Value) -> World {
    let mut world = publishing(spec);
    world.tailnet = world::headscale();
    world.settle();
    world
}

fn address(nth: u8) -> serde_json::Value {
    json!({"clusterIP": format!("10.96.0.{nth}"), "ports": [{"port": 80}]})
}

/// Routes in each replica's config.
fn advertised_routes(world: &World) -> Vec<Vec<String>> {
    let replicas = world.observed_replicas("in");
    replicas.values().map(|replica| replica.config.iter().flat_map(|config| config.routes()).map(str::to_owned).collect()).collect()
}

fn approved(world: &World) -> BTreeSet<String> {
    world.hosted.approved.values().flat_map(|approved| approved.routes.clone()).collect()
}

#[test]
fn cluster_ip_is_advertised_as_a_route_unless_the_group_has_service_cidrs() {
    let mut world = headscale(json!({"type": "ingress"}));
    expose(&mut world, "db", json!({}), address(30));
    world.settle();
    assert_eq!(advertised_routes(&world), [["10.96.0.30/32"], ["10.96.0.30/32"]]);
    assert_eq!((approved(&world), world.hosted.approved.len()), (["10.96.0.30/32".to_owned()].into(), 2));
    let configured = world.condition("db", INGRESS_SVC_CONFIGURED).expect("a condition");
    let says = "2/2 proxy backends ready and advertising, by a route to 10.96.0.30: ";
    assert!(configured.0 == "True" && configured.2.starts_with(says) && configured.2.contains("accept routes"), "{configured:?}");
    let config = world.config("in");
    assert!(config.serve.is_empty() && config.mappings.contains_key("svc:db"), "tailscaled knows nothing of it");
    let writes = world.writes;
    world.settle();
    assert_eq!(world.writes, writes);

    world.delete_service("db");
    world.settle();
    assert_eq!((advertised_routes(&world), approved(&world)), (vec![vec![], vec![]], BTreeSet::new()), "what is said is an empty list");
    assert!(world.config("in").mappings.is_empty() && world.services.len() == 1);
}

#[test]
fn mapping_stays_until_its_route_is_withdrawn_everywhere() {
    let mut world = headscale(json!({"type": "ingress"}));
    expose(&mut world, "db", json!({}), address(30));
    world.settle();
    world.asleep.insert("in-1".into());
    world.delete_service("db");
    world.rounds(5);
    assert!(
        advertised_routes(&world).concat().is_empty() && world.config("in").mappings.contains_key("svc:db"),
        "in-1 advertises it still"
    );
    world.asleep.clear();
    world.settle();
    assert!(world.config("in").mappings.is_empty());
}

#[test]
fn addresses_from_service_cidrs_are_stable_and_unique() {
    let mut world = headscale(json!({"type": "ingress", "tailyard": {"serviceCIDRs": ["10.9.0.0/30", "fd00:9::/64"]}}));
    for (nth, name) in [(30, "a"), (31, "b"), (32, "c")] {
        expose(&mut world, name, json!({}), address(nth));
    }
    world.settle();
    let of = |world: &World, name: &str| {
        world.config("in").mappings.get(name).and_then(|stored| stored.ipv4.clone()).map(|pair| pair.tailscale_service_ip)
    };
    assert_eq!((of(&world, "svc:a"), of(&world, "svc:b"), of(&world, "svc:c")), (Some("10.9.0.1".into()), Some("10.9.0.2".into()), None));
    let valid = world.condition("c", INGRESS_SVC_VALID).expect("a condition");
    assert!(valid.1 == "NoAddress" && valid.2.contains("add a prefix"), "{valid:?}");
    world.delete_service("a");
    world.settle();
    assert_eq!((of(&world, "svc:b"), of(&world, "svc:c")), (Some("10.9.0.2".into()), Some("10.9.0.1".into())));
    expose(&mut world, "c", json!({}), json!({"type": "ExternalName", "externalName": "db.example.com"}));
    world.settle();
    let mapping = world.config("in").mappings["svc:c"].clone();
    let six = mapping.ipv6.expect("it has both families").tailscale_service_ip;
    assert_eq!((mapping.external_name.as_str(), six.as_str()), ("db.example.com", "fd00:9::1"));
}

#[test]
fn service_without_an_address_of_one_family_takes_none_of_the_other() {
    let mut world = headscale(json!({"type": "ingress", "tailyard": {"serviceCIDRs": ["10.9.0.0/30", "fd00:9::/127"]}}));
    for name in ["first", "second"] {
        world.now += 1;
        expose(&mut world, name, json!({}), json!({"type": "ExternalName", "externalName": "db.example.com"}));
    }
    world.now += 1;
    expose(&mut world, "third", json!({}), address(30));
    world.settle();
    let of = |name: &str| {
        let mapping = world.config("in").mappings.get(name).cloned().unwrap_or_default();
        [mapping.ipv4, mapping.ipv6].map(|pair| pair.map(|pair| pair.tailscale_service_ip).unwrap_or_default())
    };
    assert_eq!([of("svc:first"), of("svc:second"), of("svc:third")], [["10.9.0.1", "fd00:9::1"], ["", ""], ["10.9.0.2", ""]]);
}

#[test]
fn features_not_possible_with_routes_are_reported() {
    let mut world = headscale(json!({"type": "ingress"}));
    expose(&mut world, "db", json!({}), json!({"type": "ExternalName", "externalName": "db.example.com"}));
    expose(&mut world, "mail", json!({"tailyard.io/proxy-protocol": "true"}), address(30));
    world.settle();
    let valid = world.condition("db", INGRESS_SVC_VALID).expect("a condition");
    assert!(valid.1 == "NoAddress" && valid.2.contains("spec.tailyard.serviceCIDRs"), "{valid:?}");
    let valid = world.condition("mail", INGRESS_SVC_VALID).expect("a condition");
    assert!(valid.1 == "IngressSvcInvalid" && valid.2.contains("remove tailyard.io/proxy-protocol"), "{valid:?}");
    for bad in ["100.64.3.0/24", "0.0.0.0/0", "fd7a:115c:a1e0:1::/64", "::ffff:10.9.0.0/120", "10.9.0.1-9", "ten"] {
        let mut world = World::new();
        world.group("in", json!({"type": "ingress", "tailyard": {"serviceCIDRs": ["10.9.0.0/24", bad]}}));
        world.settle();
        let ready = world.ready("in");
        assert!(ready.1 == "ProxyGroupInvalid" && ready.2.contains(bad), "{ready:?}");
    }
}

#[test]
fn unapproved_route_names_the_command() {
    let mut world = headscale(json!({"type": "ingress"}));
    let what = "the routes of device nin0".to_owned();
    let why = "approve routes of a device: the control plane answers 404: Not Found.".to_owned();
    world.denied.insert(what, ControlPlaneError { since: world.time(), why, refused: None });
    expose(&mut world, "db", json!({}), address(30));
    world.settle_denied("in");
    let configured = world.condition("db", INGRESS_SVC_CONFIGURED).expect("a condition");
    assert_eq!((configured.0.as_str(), configured.1.as_str()), ("False", "RouteNotApproved"));
    assert!(configured.2.contains("headscale nodes approve-routes --identifier nin0 --routes 10.96.0.30/32"), "{configured:?}");
    assert_eq!(world.event_count("RouteNotApproved"), 1);
    world.denied.clear();
    world.settle();
    assert_eq!(world.condition("db", INGRESS_SVC_CONFIGURED).expect("a condition").0, "True");
}

#[test]
fn restart_writes_nothing_and_repeats_no_event() {
    let mut world = headscale(json!({"type": "ingress"}));
    expose(&mut world, "db", json!({}), address(30));
    let annotations = json!({"tailscale.com/proxy-group": "in", "tailscale.com/http-endpoint": "enabled"});
    world.put_ingress("app", annotations, json!({"defaultBackend": {"service": {"name": "web", "port": {"number": 80}}}}));
    world.ingress("none", "in", ("none", "web"));
    world.settle();
    assert_eq!(world.event_count("NoTailscaleServices"), 2, "neither has a host of its own");
    let (writes, events) = (world.writes, world.events.len());
    let ready = std::mem::replace(&mut world.tailnet, TailnetState::Asking);
    (world.memory.passes, world.hosted.approved) = (std::collections::BTreeMap::new(), std::collections::BTreeMap::new());
    world.settle();
    assert_eq!((world.writes, world.events.len()), (writes, events), "the control plane was not queried yet");
    world.tailnet = ready;
    world.settle();
    assert_eq!((world.writes, world.events.len()), (writes, events));
}

#[test]
fn revoked_route_approval_is_restored() {
    let mut world = headscale(json!({"type": "ingress"}));
    expose(&mut world, "db", json!({}), address(30));
    world.settle();
    assert!(world.pass("in").again.is_some_and(|again| again.as_secs() <= 300), "it is looked at in time");
    world.now += 300;
    let again = world.pass("in").control;
    assert!(again.iter().filter(|action| matches!(action, ControlAction::ApproveRoutes { .. })).count() == 2, "{again:?}");
}

#[test]
fn lost_replica_keeps_only_routes_that_no_other_serves() {
    let mut world = headscale(json!({"type": "ingress"}));
    expose(&mut world, "db", json!({}), address(30));
    world.settle();
    let routes_of = |world: &World| ["in-0", "in-1"].map(|replica| world.hosted.approved[&device_id(replica)].routes.len());
    world.set_ready("in-0", &json!({"type": "Ready", "status": "False", "reason": "TailyardUnreachable"}));
    world.settle();
    assert_eq!(routes_of(&world), [0, 1], "the route moves to the other replica");
    let writes = world.writes;
    world.now += 600;
    world.settle();
    assert_eq!((world.writes, routes_of(&world)), (writes, [0, 1]));

    world.set_ready("in-1", &json!({"type": "Ready", "status": "False", "reason": "TailyardUnreachable"}));
    world.settle();
    assert_eq!(routes_of(&world)[1], 1, "no other replica serves it");
    for replica in ["in-0", "in-1"] {
        world.set_ready(replica, &json!({"type": "Ready", "status": "True"}));
    }
    world.settle();
    assert_eq!(routes_of(&world), [1, 1]);
}
