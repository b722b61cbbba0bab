//! Moves of Ingresses and exposed Services between a proxy of their own and a group: the former side serves until the latter does.
//!
//! The simulated control plane has the rules of Tailscale's: a Tailscale Service and a device never have the same name.

use serde_json::Value;

use super::world::device_id;
use super::*;
use crate::api::condition::{INGRESS_SVC_CONFIGURED, PROXY_READY};
use crate::model::controller::policy::assignment::StandaloneScope;
use crate::model::controller::workload::control_plane::Capabilities;
use crate::model::controller::workload::objects::certificate::domain_of;

mod taken_over;
mod without_tailscale_services;

/// A kind of object that moves, and its key.
#[derive(Debug, Clone, Copy)]
enum Case {
    Ingress,
    Service,
}

const CASES: [Case; 2] = [Case::Ingress, Case::Service];
const DOMAIN: &str = "tail1234.ts.net";

impl Case {
    fn key(self) -> &'static str {
        match self {
            Self::Ingress => "ingress/default/shop",
            Self::Service => "default/shop",
        }
    }

    /// Creates the object without a group or in one, or moves it.
    fn put(self, world: &mut World, group: Option<&str>) {
        let mut annotations = group.map_or_else(|| json!({}), |group| json!({"tailscale.com/proxy-group": group}));
        match self {
            Self::Ingress => {
                let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
                world.put_ingress("shop", annotations, json!({"tls": [{"hosts": ["shop"]}], "defaultBackend": backend}));
            }
            Self::Service => {
                annotations["tailscale.com/hostname"] = json!("shop");
                let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "clusterIP": "10.96.0.9",
                    "clusterIPs": ["10.96.0.9"], "ports": [{"port": 80, "protocol": "TCP"}]});
                world.plain("shop", annotations, spec);
            }
        }
    }

    fn delete(self, world: &mut World) {
        match self {
            Self::Ingress => world.delete_ingress("shop"),
            Self::Service => world.delete_service("shop"),
        }
    }

    fn status(self, world: &World) -> Value {
        let key = ("default".to_owned(), "shop".to_owned());
        match self {
            Self::Ingress => json!(world.ingresses[&key].status),
            Self::Service => json!(world.services[&key].status),
        }
    }

    /// Host names in the status.
    fn names(self, world: &World) -> Vec<String> {
        let status = self.status(world);
        let entries = status["loadBalancer"]["ingress"].as_array().cloned().unwrap_or_default();
        entries.iter().filter_map(|entry| entry["hostname"].as_str().map(str::to_owned)).collect()
    }

    fn finalizers(self, world: &World) -> Vec<String> {
        let key = ("default".to_owned(), "shop".to_owned());
        let metadata = match self {
            Self::Ingress => &world.ingresses[&key].metadata,
            Self::Service => &world.services[&key].metadata,
        };
        metadata.finalizers.clone().unwrap_or_default()
    }

    /// Finalizer of a group.
    fn of_group(self) -> &'static str {
        match self {
            Self::Ingress => names::INGRESS_FINALIZER,
            Self::Service => names::SERVICE_FINALIZER,
        }
    }

    /// Pod of its own proxy.
    fn pod(self, world: &World) -> String {
        names::replica(&world.observe(self.key()).workload, 0)
    }

    /// Host name of the device of its own proxy.
    fn device(self, world: &World) -> Option<String> {
        world.devices.get(&device_id(&self.pod(world))).map(|device| device.hostname.clone())
    }

    /// Whether its own proxy serves, and whether the group does.
    fn served(self, world: &World) -> (bool, bool) {
        let by_group = world.observed_replicas("in").values().any(|replica| serves(replica, "svc:shop"));
        (world.pods.contains_key(&self.pod(world)) && self.device(world).is_some(), by_group)
    }

    /// Runs passes, each of a new leader, until a condition holds; at any time one side serves.
    fn run_until(self, world: &mut World, is_done: impl Fn(&World) -> bool) {
        for _ in 0..40 {
            *world = world.clone();
            world.round();
            let served = self.served(world);
            assert!(served.0 || served.1, "interrupted: {:?}", self.status(world));
            if is_done(world) {
                return;
            }
        }
        panic!("no end: {:?} {:?}", self.finalizers(world), self.status(world));
    }
}

/// A cluster with a group, and an object in it or with a proxy of its own, which is served.
fn world(case: Case, group: Option<&str>) -> World {
    let mut world = World::new();
    world.assignment.standalone = StandaloneScope::Everywhere;
    world.plain("web", json!({}), json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}]}));
    world.group("in", json!({"type": "ingress"}));
    case.put(&mut world, group);
    world.settle();
    assert_eq!(case.served(&world), (group.is_none(), group.is_some()));
    assert_eq!(case.names(&world), [format!("shop.{DOMAIN}")]);
    world
}

/// An object of a group that moves to a proxy of its own, whose Pod is not ready.
fn joining(case: Case) -> World {
    let mut world = world(case, Some("in"));
    case.put(&mut world, None);
    let pod = case.pod(&world);
    world.asleep.insert(pod);
    world.settle();
    world
}

/// UIDs of the certificates.
fn certificates(world: &World) -> Vec<Value> {
    world.objects.values().filter(|object| domain_of(object).is_some()).map(|object| object["metadata"]["uid"].clone()).collect()
}

/// Checks that nothing of the object remains a week after its deletion.
fn ends_now(case: Case, mut world: World) {
    case.delete(&mut world);
    world.settle();
    world.now += 7 * 24 * 60 * 60;
    world.settle();
    assert!(world.hosted.vips.is_empty() && certificates(&world).is_empty() && world.keys.is_empty());
    assert_eq!((world.devices.len(), world.services.len(), world.ingresses.len()), (2, 1, 0), "those of the group, and the backend");
}

/// The same, and that nothing is written at rest.
fn ends(case: Case, mut world: World) {
    let writes = world.writes;
    world.settle();
    assert_eq!(world.writes, writes);
    ends_now(case, world);
}

#[test]
fn proxy_serves_until_the_group_does() {
    for case in CASES {
        let mut world = world(case, None);
        let before = certificates(&world);
        case.put(&mut world, Some("in"));
        case.run_until(&mut world, |world| case.device(world).is_none());
        assert_eq!(case.served(&world), (false, true));
        world.settle();
        assert_eq!(case.names(&world), [format!("shop.{DOMAIN}")]);
        assert_eq!(case.finalizers(&world), [case.of_group()]);
        assert_eq!(certificates(&world), before, "no other certificate is ordered");
        ends(case, world);
    }
}

#[test]
fn group_serves_until_the_proxy_does() {
    for case in CASES {
        let mut world = world(case, Some("in"));
        let before = certificates(&world);
        case.put(&mut world, None);
        let pod = case.pod(&world);
        world.asleep.insert(pod);
        for _ in 0..10 {
            world.round();
        }
        assert_eq!((case.served(&world), case.names(&world)), ((false, true), vec![format!("shop.{DOMAIN}")]));
        world.asleep.clear();
        case.run_until(&mut world, |world| world.hosted.vips.is_empty());
        case.run_until(&mut world, |world| case.device(world).as_deref() == Some("shop"));
        world.settle();
        assert_eq!((case.served(&world), case.names(&world)), ((true, false), vec![format!("shop.{DOMAIN}")]));
        assert_eq!(case.finalizers(&world), [names::FINALIZER]);
        assert_eq!(certificates(&world), before, "no other certificate is ordered");
        ends(case, world);
    }
}

#[test]
fn unusable_group_leaves_the_proxy_as_it_is() {
    for case in CASES {
        for group in ["missing", "out"] {
            let mut world = world(case, None);
            world.group("out", json!({"type": "egress", "replicas": 1}));
            world.settle();
            let (names, objects) = (case.names(&world), world.objects.clone());
            case.put(&mut world, Some(group));
            world.settle();
            assert_eq!((case.names(&world), case.device(&world).as_deref()), (names, Some("shop")), "{group}");
            assert_eq!(world.objects, objects);
            assert_eq!(world.event_count("ProxyMoving"), 1);
            world.delete_group("out");
            world.settle();
            ends(case, world);
        }
    }
}

#[test]
fn group_without_ready_replica_does_not_get_the_name() {
    for case in CASES {
        let mut world = world(case, None);
        for ordinal in 0..2 {
            world.set_ready(&names::replica("in", ordinal), &json!({"type": "Ready", "status": "False"}));
        }
        case.put(&mut world, Some("in"));
        world.settle();
        assert_eq!((case.device(&world).as_deref(), world.hosted.vips.len()), (Some("shop"), 0));
        assert_eq!(case.finalizers(&world), [names::FINALIZER]);
        world.set_ready("in-0", &json!({"type": "Ready", "status": "True"}));
        case.run_until(&mut world, |world| case.device(world).is_none());
        world.settle();
        ends(case, world);
    }
}

/// A cluster with an object whose device has given up its name for a group that does not serve it.
fn halfway(case: Case) -> World {
    let mut world = world(case, None);
    world.asleep.extend(["in-0".to_owned(), "in-1".to_owned()]);
    case.put(&mut world, Some("in"));
    world.settle();
    assert_eq!((case.served(&world), case.device(&world).as_deref()), ((true, false), Some("shop-standalone")));
    assert!(world.event_count("ProxyMoving") > 0);
    assert_eq!(case.names(&world), [format!("shop.{DOMAIN}")], "its addresses serve");
    world
}

#[test]
fn move_to_a_group_is_cancelled_by_an_edit() {
    for case in CASES {
        let mut world = halfway(case);
        let before = certificates(&world);
        case.put(&mut world, None);
        case.run_until(&mut world, |world| case.device(world).as_deref() == Some("shop"));
        world.asleep.clear();
        world.settle();
        assert_eq!((case.served(&world), case.names(&world)), ((true, false), vec![format!("shop.{DOMAIN}")]));
        assert_eq!((case.finalizers(&world), world.hosted.vips.len()), (vec![names::FINALIZER.to_owned()], 0));
        assert_eq!(certificates(&world), before);
        ends(case, world);
    }
}

#[test]
fn move_to_a_proxy_is_cancelled_by_an_edit() {
    for case in CASES {
        let mut world = joining(case);
        case.put(&mut world, Some("in"));
        case.run_until(&mut world, |world| case.finalizers(world) == [case.of_group()]);
        world.settle();
        assert_eq!((case.served(&world), case.names(&world)), ((false, true), vec![format!("shop.{DOMAIN}")]));
        ends(case, world);
    }
}

#[test]
fn deletion_during_a_move_releases_both_sides() {
    for case in CASES {
        let mut world = halfway(case);
        world.asleep.clear();
        ends_now(case, world);
        let world = joining(case);
        assert_eq!(case.served(&world), (false, true));
        ends_now(case, world);
    }
}

#[test]
fn invalid_request_of_a_proxy_leaves_the_group_as_it_is() {
    let mut world = world(Case::Ingress, Some("in"));
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    world.settings.tenancy = crate::model::controller::policy::tenancy::DefaultTenancy::Bounded;
    let annotations = json!({"tailscale.com/tags": "tag:other"});
    world.put_ingress("shop", annotations, json!({"tls": [{"hosts": ["shop"]}], "defaultBackend": backend}));
    world.settle();
    assert_eq!((Case::Ingress.served(&world), world.event_count("ProxyInvalid")), ((false, true), 1));
    assert_eq!(Case::Ingress.names(&world), [format!("shop.{DOMAIN}")]);
    ends(Case::Ingress, world);
}

#[test]
fn deleted_group_releases_the_name_to_the_proxy() {
    for case in CASES {
        let mut world = joining(case);
        world.delete_group("in");
        world.settle();
        world.asleep.clear();
        world.settle();
        assert_eq!((case.device(&world).as_deref(), case.names(&world)), (Some("shop"), vec![format!("shop.{DOMAIN}")]));
        assert_eq!(case.finalizers(&world), [names::FINALIZER]);
    }
}

#[test]
fn other_host_name_needs_no_temporary_one() {
    let mut world = world(Case::Ingress, None);
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let put = |world: &mut World, host: &str, annotations: Value| {
        world.put_ingress("shop", annotations, json!({"tls": [{"hosts": [host]}], "defaultBackend": backend}));
    };
    put(&mut world, "store", json!({"tailscale.com/proxy-group": "in"}));
    for _ in 0..40 {
        world.round();
        assert!(Case::Ingress.device(&world).is_none_or(|name| name == "shop"));
        let serving = world.observed_replicas("in").values().any(|replica| serves(replica, "svc:store"));
        assert!(serving || Case::Ingress.served(&world).0);
    }
    assert_eq!((Case::Ingress.names(&world), certificates(&world).len()), (vec![format!("store.{DOMAIN}")], 2), "one of the former name");
    assert_eq!(Case::Ingress.device(&world), None);
    put(&mut world, "shop", json!({}));
    for _ in 0..40 {
        world.round();
        let serving = world.observed_replicas("in").values().any(|replica| serves(replica, "svc:store"));
        assert!(serving || Case::Ingress.names(&world) == [format!("shop.{DOMAIN}")], "{:?}", Case::Ingress.names(&world));
    }
    world.settle();
    assert_eq!((world.hosted.vips.len(), certificates(&world).len()), (0, 1));
    ends(Case::Ingress, world);
}
