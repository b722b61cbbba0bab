//! The operator's device: requested by the reconciler's own Service, it serves the Kubernetes API under the name of the operator.

#![allow(clippy::needless_pass_by_value, reason = "a call with a literal reads better")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::certificates::own_for;
use super::*;
use crate::api::condition::PROXY_READY;
use crate::api::proxygroup::{ApiServerMode, Impersonation};
use crate::model::controller::kinds::standalone::takeover;
use crate::model::controller::policy::assignment::StandaloneScope;
use crate::model::controller::policy::operator_device::OperatorDevice;
use crate::model::controller::workload::naming;

const KEY: &str = "tailscale/tailyard-api-server";
const DNS: &str = "tailscale-operator.tail1234.ts.net";

fn id() -> (String, String) {
    (NS.to_owned(), names::API_SERVER_SERVICE.to_owned())
}

fn all() -> Impersonation {
    Impersonation { users: vec!["*".to_owned()], groups: vec!["*".to_owned()] }
}

fn device(mode: ApiServerMode) -> OperatorDevice {
    let (hostname, tags) = ("tailscale-operator".to_owned(), vec!["tag:k8s-operator".to_owned()]);
    OperatorDevice { mode, impersonation: all(), hostname, tags, is_http: false, certificate: None }
}

/// A reconciler that serves no objects of users, and permits no `ProxyGroup` to impersonate.
fn world() -> World {
    let mut world = World::new();
    world.assignment.standalone = StandaloneScope::Nowhere;
    world.assignment.own_namespace = NS.to_owned();
    world.settings.tenancy = crate::model::controller::policy::tenancy::DefaultTenancy::Bounded;
    world
}

/// Sets the device, as a restart of the reconciler with other settings does, and writes the Service for it.
fn put(world: &mut World, device: &OperatorDevice) {
    world.assignment.device = Some(device.clone());
    let mut service: k8s_openapi::api::core::v1::Service = serde_json::from_value(device.service(NS).value).expect("a Service");
    service.metadata.uid = Some("1234".to_owned());
    if let Some(stored) = world.services.get(&id()) {
        service.status.clone_from(&stored.status);
        service.metadata.finalizers.clone_from(&stored.metadata.finalizers);
    }
    world.services.insert(id(), service);
}

fn served(mode: ApiServerMode) -> World {
    let mut world = world();
    put(&mut world, &device(mode));
    world.settle();
    world
}

fn workload() -> String {
    naming::new_name(&KEY.into(), "1234", 0)
}

/// Status, reason and message of the Service.
fn condition(world: &World) -> (String, String, String) {
    let stored = crate::model::base::conditions::of_service(&world.services[&id()], PROXY_READY).expect("a condition");
    (stored.status.clone(), stored.reason.clone(), stored.message.clone())
}

fn site(world: &World) -> Value {
    serde_json::to_value(&world.config(&workload()).routes["svc:tailscale-operator"]).expect("JSON")
}

fn impersonation(kind: Kind) -> ObjectRef {
    ObjectRef::new(kind, "", names::API_SERVER_ROLE)
}

/// Checks that nothing is written at rest, and that the device ends with its request.
fn ends(mut world: World) {
    let writes = world.writes;
    for _ in 0..100 {
        assert!(idle(&world.pass(KEY)));
    }
    assert_eq!(world.writes, writes);
    is_released(world);
}

/// Checks that nothing of the device remains after the end of the request but the shared ACME account.
fn is_released(mut world: World) {
    let now = Time(world.time());
    world.services.get_mut(&id()).expect("the Service").metadata.deletion_timestamp = Some(now);
    world.settle();
    let remaining: Vec<_> = world.objects.keys().map(|object| object.name.as_str()).filter(|name| *name != names::ACCOUNTS).collect();
    assert_eq!(remaining, [""; 0]);
    assert!(world.services.is_empty() && world.devices.is_empty() && world.keys.is_empty());
}

#[test]
fn device_serves_the_kubernetes_api_with_identity_standby_and_rights_of_its_own() {
    for (mode, impersonates) in [(ApiServerMode::Auth, true), (ApiServerMode::NoAuth, false)] {
        let world = served(mode.clone());
        let reached = format!("The Kubernetes API is reached in the tailnet as https://{DNS}.");
        assert_eq!(condition(&world), ("True".to_owned(), "ProxyCreated".to_owned(), reached));
        let api = if impersonates { json!({"mode": "auth", "sendExtra": true}) } else { json!({"mode": "noauth"}) };
        let hosts = json!({DNS: {"secret": DNS, "issue": true}});
        assert_eq!(site(&world), json!({"hosts": hosts, "listeners": {"443": "https"}, "routes": [], "apiServer": api}));
        assert!(world.objects.contains_key(&object(Kind::Secret, DNS)));
        let devices: Vec<_> = world.devices.values().collect();
        assert_eq!((devices.len(), devices[0].tags.as_slice()), (1, &["tag:k8s-operator".to_owned()][..]));
        assert_eq!(world.env(&workload(), "TS_INTERNAL_APP").as_deref(), Some("k8s-operator-proxy"));
        assert!(world.objects.contains_key(&object(Kind::StatefulSet, &naming::standby_name(&workload()))), "a standby");
        for kind in [Kind::ClusterRole, Kind::ClusterRoleBinding] {
            assert_eq!(world.objects.contains_key(&impersonation(kind)), impersonates, "{kind}");
        }
        if impersonates {
            let subject = json!({"kind": "ServiceAccount", "name": workload(), "namespace": NS});
            assert_eq!(world.objects[&impersonation(Kind::ClusterRoleBinding)]["subjects"], json!([subject]));
        }
        ends(world);
    }
}

#[test]
fn only_the_service_of_the_reconciler_requests_the_device() {
    let own = |namespace: &str, name: &str| {
        let mut value = device(ApiServerMode::Auth).service(namespace).value;
        (value["metadata"]["name"], value["metadata"]["uid"]) = (json!(name), json!("1"));
        serde_json::from_value::<k8s_openapi::api::core::v1::Service>(value).expect("a Service")
    };
    for (namespace, name) in [("default", names::API_SERVER_SERVICE), (NS, "api")] {
        let mut world = world();
        world.assignment.device = Some(device(ApiServerMode::Auth));
        world.services.insert((namespace.to_owned(), name.to_owned()), own(namespace, name));
        world.settle();
        assert!(world.objects.is_empty() && world.devices.is_empty(), "{namespace}/{name}: {:?}", world.objects.keys());
    }
    let mut world = world();
    put(&mut world, &device(ApiServerMode::Auth));
    let service = world.services.get_mut(&id()).expect("the Service");
    service.metadata.annotations.as_mut().expect("annotations").remove(names::API_SERVER_MODE);
    world.assignment.device = None;
    world.settle();
    assert!(world.objects.is_empty(), "a user's Service of this name");
    put(&mut world, &device(ApiServerMode::Auth));
    world.assignment.device = None;
    world.settle();
    assert!(world.objects.is_empty() && world.devices.is_empty(), "the settings request none");
}

#[test]
fn device_follows_from_the_settings_alone() {
    let changes = [
        json!({names::API_SERVER_MODE: "noauth"}),
        json!({names::API_SERVER_MODE: "other"}),
        json!({names::API_SERVER_HTTP: "true"}),
        json!({names::API_SERVER_CERTIFICATE: "own"}),
        json!({names::HOSTNAME: "kube"}),
        json!({names::HOSTNAME: null}),
        json!({names::TAGS: "tag:admin"}),
        json!({names::TAGS: null}),
        json!({names::STANDBY: null}),
        json!({names::EXPOSE: "true"}),
        json!({names::TAILNET_FQDN: "db.tail1234.ts.net"}),
        json!({names::PROXY_GROUP: "in", names::EXPOSE: "true"}),
        json!({names::API_SERVER_MODE: null}),
        json!({names::API_SERVER_MODE: ""}),
        json!({names::API_SERVER_MODE: null, names::EXPOSE: "true"}),
        json!({names::API_SERVER_MODE: null, names::TAILNET_FQDN: "db.tail1234.ts.net"}),
        json!({names::API_SERVER_MODE: null, names::PROXY_GROUP: "in", names::EXPOSE: "true"}),
    ];
    let served = served(ApiServerMode::Auth);
    let scopes = || [StandaloneScope::Nowhere, StandaloneScope::Everywhere];
    for (is_new, scope) in [false, true].into_iter().flat_map(|is_new| scopes().map(|scope| (is_new, scope))) {
        for change in &changes {
            let mut world = if is_new { world() } else { served.fork() };
            put(&mut world, &device(ApiServerMode::Auth));
            world.assignment.standalone = scope.clone();
            let annotations = world.services.get_mut(&id()).expect("the Service").metadata.annotations.as_mut().expect("annotations");
            for (key, value) in change.as_object().expect("a map") {
                match value.as_str() {
                    Some(value) => drop(annotations.insert(key.clone(), value.to_owned())),
                    None => drop(annotations.remove(key)),
                }
            }
            let service = &world.services[&id()];
            let groups = [world.assignment.published(service), world.assignment.egress(service)];
            assert!(groups.iter().all(|group| group.group().is_none()), "{change}");
            world.settle();
            assert_eq!(condition(&world).0, "True", "{change}");
            let devices = |world: &World| world.devices.values().map(|device| json!([device.hostname, device.tags])).collect::<Vec<_>>();
            assert_eq!(devices(&world), devices(&served), "{change}");
            assert_eq!(site(&world), site(&served), "{change}");
            assert!(world.objects.keys().eq(served.objects.keys()), "{change}");
            assert!(is_new || world.objects == served.objects, "{change}");
        }
    }
}

#[test]
fn device_is_not_shown_before_its_certificate_exists() {
    let mut world = world();
    put(&mut world, &device(ApiServerMode::Auth));
    world.hosted.no_https = true;
    world.rounds(10);
    let (status, reason, message) = condition(&world);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "ProxyFailed"));
    assert!(message.contains("enable HTTPS certificates"), "{message}");
    world.hosted.no_https = false;
    world.settle();
    assert_eq!(condition(&world).0, "True");
    ends(world);
}

#[test]
fn faulty_request_names_a_setting_and_changes_nothing_that_is_served() {
    let valid = || device(ApiServerMode::Auth);
    let stock = json!({"statefulSet": {"pod": {"tailscaleContainer": {"image": "tailscale/tailscale:v1.104.7"}}}});
    let table = [
        (OperatorDevice { is_http: true, certificate: Some("own".into()), ..valid() }, None, "HTTP needs no certificate"),
        (OperatorDevice { impersonation: Impersonation::default(), ..valid() }, None, "apiServerProxyConfig.allowImpersonation"),
        (valid(), Some(stock), "Only Tailyard's image"),
    ];
    for (device, class, says) in table {
        let mut new = world();
        let mut existing = served(ApiServerMode::NoAuth);
        let objects = existing.objects.clone();
        for world in [&mut new, &mut existing] {
            if let Some(class) = &class {
                world.with_class(class.clone());
            }
            put(world, &device);
            world.settle();
            let (status, reason, message) = condition(world);
            assert_eq!((status.as_str(), reason.as_str()), ("False", "ProxyFailed"), "{says}");
            assert!(message.contains(says), "{message}");
        }
        assert!(new.objects.is_empty() && new.minted == 0, "{says}: {:?}", new.objects.keys());
        assert_eq!(existing.objects, objects, "{says}");
    }
}

#[test]
fn headscale_serves_by_http_or_with_a_certificate_of_its_own() {
    let mut world = world();
    world.tailnet = headscale();
    put(&mut world, &device(ApiServerMode::Auth));
    world.settle();
    let (status, _, message) = condition(&world);
    assert!(status == "False" && message.contains("http or certificateSecret"), "{message}");
    put(&mut world, &OperatorDevice { is_http: true, ..device(ApiServerMode::Auth) });
    world.settle();
    let (status, _, message) = condition(&world);
    assert!(status == "True" && message.contains("http://tailscale-operator."), "{message}");
    let plain = site(&world);
    assert_eq!((&plain["listeners"], &plain["hosts"]), (&json!({"80": "http"}), &json!({})));
    put(&mut world, &OperatorDevice { certificate: Some("own".into()), ..device(ApiServerMode::Auth) });
    world.settle();
    assert_eq!(condition(&world).0, "False", "there is no such Secret");
    let name = world.observe(KEY).replicas[&0].device_name().expect("a name").clone();
    own_for(&mut world, "own", &[name.as_str()]);
    world.settle();
    assert_eq!(condition(&world).0, "True");
    assert_eq!(site(&world)["hosts"], json!({name.as_str(): {"secret": "own"}}));
    is_released(world);
}

#[test]
fn change_of_the_host_name_keeps_the_device_and_deletes_the_former_certificate() {
    let mut world = served(ApiServerMode::Auth);
    let before: Vec<_> = world.devices.keys().cloned().collect();
    put(&mut world, &OperatorDevice { hostname: "kube".into(), ..device(ApiServerMode::Auth) });
    world.settle();
    assert!(condition(&world).2.contains("https://kube.tail1234.ts.net"), "{:?}", condition(&world));
    assert_eq!(world.devices.keys().cloned().collect::<Vec<_>>(), before);
    assert!(!world.objects.contains_key(&object(Kind::Secret, DNS)));
    ends(world);
}

#[test]
fn device_of_the_tailscale_operator_is_taken_over_with_its_state() {
    let mut world = world();
    put(&mut world, &device(ApiServerMode::Auth));
    assert!(takeover::is_due(&world.observe(KEY)));
    world.takeover_fault = Some("The Tailscale operator runs.".to_owned());
    world.settle();
    assert_eq!(condition(&world).2, "The Tailscale operator runs.");
    assert!(world.objects.is_empty() && takeover::is_due(&world.observe(KEY)), "nothing is written before");
    world.takeover_fault = None;
    world.settle();
    assert!(!takeover::is_due(&world.observe(KEY)), "it has a device");
    let mut deleted = world.fork();
    let now = Time(deleted.time());
    deleted.services.get_mut(&id()).expect("the Service").metadata.deletion_timestamp = Some(now);
    assert!(!takeover::is_due(&deleted.observe(KEY)));
    ends(world);
}
