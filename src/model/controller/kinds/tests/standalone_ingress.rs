//! Standalone Ingresses: from manifest to a served name, changes, release.

#![allow(clippy::needless_pass_by_value, reason = "a call with a literal reads better")]

use serde_json::Value;

use super::certificates::own;
use super::*;
use crate::model::controller::policy::assignment::StandaloneScope;
use crate::model::controller::workload::objects::certificate::domain_of;

const KEY: &str = "ingress/default/shop";
const WEEK: i64 = 7 * 24 * 60 * 60;

/// A cluster that serves standalone Ingresses, with a backend.
fn world() -> World {
    let mut world = World::new();
    world.assignment.standalone = StandaloneScope::Everywhere;
    world.plain("web", json!({}), json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}]}));
    world
}

fn put(world: &mut World, annotations: Value, spec: Value) {
    world.put_ingress("shop", annotations, spec);
}

fn workload(world: &World) -> String {
    world.observe(KEY).workload
}

/// `status.loadBalancer.ingress`: host name and ports of each entry.
fn addresses(world: &World) -> Vec<(String, Vec<u64>)> {
    let ingress = &world.ingresses[&("default".to_owned(), "shop".to_owned())];
    let status = serde_json::to_value(&ingress.status).expect("JSON");
    let entries = status["loadBalancer"]["ingress"].as_array().cloned().unwrap_or_default();
    let ports = |entry: &Value| entry["ports"].as_array().into_iter().flatten().filter_map(|port| port["port"].as_u64()).collect();
    entries.iter().map(|entry| (entry["hostname"].as_str().expect("a name").to_owned(), ports(entry))).collect()
}

fn certificates(world: &World) -> Vec<&str> {
    world.objects.values().filter_map(|object| domain_of(object)).collect()
}

/// Checks that nothing is written at rest, and that nothing of the Ingress remains a week after its deletion but the shared ACME account.
fn ends(mut world: World) {
    let writes = world.writes;
    for _ in 0..100 {
        assert!(idle(&world.pass(KEY)));
    }
    assert_eq!(world.writes, writes);
    world.delete_ingress("shop");
    world.settle();
    assert!(world.ingresses.is_empty(), "{:?}", world.ingresses);
    world.now += WEEK;
    world.settle();
    let remaining: Vec<_> = world.objects.keys().map(|object| object.name.as_str()).collect();
    assert_eq!(remaining, [names::ACCOUNTS]);
    assert!(world.devices.is_empty() && world.keys.is_empty());
}

#[test]
fn name_is_shown_once_its_certificate_exists() {
    let mut world = world();
    put(&mut world, json!({"tailscale.com/http-endpoint": "enabled"}), site("shop", "web"));
    world.hosted.no_https = true;
    world.rounds(8);
    assert_eq!(certificates(&world), ["shop.tail1234.ts.net"]);
    assert_eq!(addresses(&world), [("shop.tail1234.ts.net".to_owned(), vec![80])], "plain HTTP needs no certificate");
    put(&mut world, json!({"tailscale.com/http-redirect": "true"}), site("shop", "web"));
    world.settle();
    assert_eq!(addresses(&world), [], "redirects would lead to a port that fails");
    assert_eq!(world.event_count("PartiallyAdvertised"), 1, "HTTPS is disabled");
    world.hosted.no_https = false;
    world.settle();
    assert_eq!(addresses(&world), [("shop.tail1234.ts.net".to_owned(), vec![443, 80])]);
    let ingress = &world.ingresses[&("default".to_owned(), "shop".to_owned())];
    assert_eq!(ingress.metadata.finalizers.as_deref(), Some(&["tailscale.com/finalizer".to_owned()][..]));
    let config = world.config(&workload(&world));
    let site = &config.routes["svc:shop"];
    assert!(site.hosts["shop.tail1234.ts.net"].issue && site.routes.len() == 1 && config.serve.is_empty(), "{config:?}");
    assert_eq!((world.minted, world.hosted.vips.len()), (1, 0));
    ends(world);
}

#[test]
fn taken_name_is_served_under_the_name_that_the_device_got() {
    let mut world = world();
    world.renamed = "-1";
    put(
        &mut world,
        json!({}),
        json!({"tls": [{"hosts": ["shop.tail1234.ts.net"]}],
        "rules": [{"host": "shop.tail1234.ts.net", "http": {"paths": [{"path": "/a", "pathType": "Exact",
            "backend": {"service": {"name": "web", "port": {"number": 80}}}}]}}]}),
    );
    world.settle();
    assert_eq!(addresses(&world), [("shop-1.tail1234.ts.net".to_owned(), vec![443])]);
    let site = world.config(&workload(&world)).routes["svc:shop"].clone();
    assert_eq!((site.routes[0].host.as_str(), site.routes[0].exact), ("shop-1.tail1234.ts.net", true));
    assert_eq!(certificates(&world), ["shop-1.tail1234.ts.net"]);
    ends(world);
}

#[test]
fn name_that_a_pod_invents_is_not_served() {
    let mut world = world();
    put(&mut world, json!({}), site("shop", "web"));
    world.settle();
    let certified = |world: &World| certificates(world).into_iter().map(str::to_owned).collect::<Vec<_>>();
    let before = (addresses(&world), certified(&world));
    let replica = format!("{}-0", workload(&world));
    for invented in ["shop-7.tail1234.ts.net.", "shop.bank.example.", "pay.tail1234.ts.net.", ""] {
        let name = json!(k8s_openapi::ByteString(invented.as_bytes().to_vec()));
        world.edit(&object(Kind::Secret, &replica), |state| state["data"]["device_fqdn"] = name);
        world.asleep.insert(replica.clone());
        world.rounds(5);
        assert_eq!((addresses(&world), certified(&world)), before, "{invented}");
    }
}

#[test]
fn changed_host_renames_the_device_in_place() {
    let mut world = world();
    put(&mut world, json!({}), site("shop", "web"));
    world.settle();
    let devices: Vec<_> = world.devices.keys().cloned().collect();
    put(&mut world, json!({}), site("store", "web"));
    world.settle();
    assert_eq!(addresses(&world), [("store.tail1234.ts.net".to_owned(), vec![443])]);
    assert_eq!(certificates(&world), ["shop.tail1234.ts.net", "store.tail1234.ts.net"], "that of the former name stays for its week");
    assert_eq!((world.devices.keys().cloned().collect::<Vec<_>>(), world.minted), (devices, 1));
    assert_eq!(world.config(&workload(&world)).routes.keys().collect::<Vec<_>>(), ["svc:store"]);
    ends(world);
}

#[test]
fn invalid_edit_changes_nothing_that_is_served() {
    let mut world = world();
    put(&mut world, json!({}), site("shop", "web"));
    world.settle();
    let (objects, shown) = (world.objects.clone(), addresses(&world));
    put(&mut world, json!({}), site("shop", "missing"));
    world.settle();
    assert_eq!(world.event_count("InvalidIngressConfiguration"), 1);
    assert_eq!((world.objects.clone(), addresses(&world)), (objects, shown));
    put(&mut world, json!({"tailscale.com/tags": "web"}), site("Not a label", "web"));
    world.settle();
    assert_eq!((world.event_count("InvalidIngressConfiguration"), world.config(&workload(&world)).routes.len()), (2, 1));
    put(&mut world, json!({}), site("shop", "web"));
    world.settle();
    ends(world);
}

#[test]
fn never_valid_ingress_has_neither_finalizer_nor_objects() {
    let mut world = world();
    put(&mut world, json!({}), site("shop", "missing"));
    world.settle();
    let ingress = &world.ingresses[&("default".to_owned(), "shop".to_owned())];
    assert!(world.objects.is_empty() && ingress.metadata.finalizers.is_none());
    assert_eq!(world.event_count("InvalidIngressConfiguration"), 1);
}

#[test]
fn own_tags_and_stock_image_are_refused() {
    let mut world = world();
    world.settings.tenancy = crate::model::controller::policy::tenancy::DefaultTenancy::Bounded;
    put(&mut world, json!({"tailscale.com/tags": "tag:other"}), site("shop", "web"));
    world.settle();
    assert_eq!((world.event_count("ProxyInvalid"), world.objects.len()), (1, 0));
    let image = json!({"statefulSet": {"pod": {"tailscaleContainer": {"image": "tailscale/tailscale:v1.102.5"}}}});
    world.with_class(image);
    put(&mut world, json!({}), site("shop", "web"));
    world.settle();
    assert_eq!((world.event_count("ProxyFailed"), world.minted), (1, 0));
}

#[test]
fn control_plane_without_certificates_needs_a_certificate_of_the_user() {
    let mut world = world();
    world.tailnet = headscale();
    put(&mut world, json!({}), site("shop", "web"));
    world.settle();
    assert_eq!(world.event_count("NoCertificates"), 1);
    assert!(world.objects.is_empty() && world.minted == 0, "nothing is created: {:?}", world.objects.keys());
    let ingress = &world.ingresses[&("default".to_owned(), "shop".to_owned())];
    assert_eq!(ingress.metadata.finalizers, None);
}

#[test]
fn ingress_without_its_certificate_secret_creates_nothing_until_that_exists() {
    let mut world = world();
    world.tailnet = TailnetState::Asking;
    let spec = json!({"tls": [{"hosts": ["shop"]}, {"hosts": ["www.example.com"], "secretName": "www"}],
        "defaultBackend": {"service": {"name": "web", "port": {"number": 80}}}});
    put(&mut world, json!({}), spec);
    world.settle();
    assert!(world.objects.is_empty(), "the control plane is not known: {:?}", world.objects.keys());
    world.tailnet = headscale();
    world.settle();
    assert!(world.objects.is_empty() && world.minted == 0, "{:?}", world.objects.keys());
    let faults = world.pass(KEY).faults;
    assert!(faults[0].message.contains("There is no Secret www in the namespace tailscale"), "{faults:?}");
    own(&mut world, "www", 1, 365);
    world.settle();
    assert!(world.objects.contains_key(&object(Kind::StatefulSet, &workload(&world))) && world.minted == 1, "{:?}", world.objects.keys());
    assert_eq!(world.pass(KEY).faults.iter().filter(|fault| fault.reason == "NoCertificates").count(), 0);
}

#[test]
fn funnel_is_requested_and_its_error_reported() {
    let mut world = world();
    put(&mut world, json!({"tailscale.com/funnel": "true"}), site("shop", "web"));
    world.settle();
    assert!(world.config(&workload(&world)).routes["svc:shop"].funnel);
    assert_eq!(world.event_count("PartiallyAdvertised"), 0);
    world.hosted.funnel_errors.insert("svc:shop".to_owned(), "the tailnet does not let this node be".to_owned());
    world.settle();
    assert_eq!(world.event_count("PartiallyAdvertised"), 1);
}

#[test]
fn missing_class_is_reported_and_name_stays_while_the_pod_is_replaced() {
    let mut world = world();
    put(&mut world, json!({}), site("shop", "web"));
    world.settle();
    let pod = names::replica(&workload(&world), 0);
    world.set_ready(&pod, &json!({"type": "Ready", "status": "False"}));
    world.settle();
    assert_eq!(addresses(&world).len(), 1);
    world.set_ready(&pod, &json!({"type": "Ready", "status": "True"}));
    world.class = Class::Missing("gone".into());
    world.settle();
    assert_eq!((world.events.len(), addresses(&world).len()), (1, 1), "{:?}", world.events);
}

#[test]
fn unknown_class_keeps_the_proxy_and_another_class_releases_it() {
    let mut world = world();
    put(&mut world, json!({}), site("shop", "web"));
    world.settle();
    let objects = world.objects.clone();
    world.assignment.parameters = crate::model::controller::policy::assignment::ClassParameters::Unknown;
    world.settle();
    assert_eq!(world.objects, objects);
    world.assignment.parameters = crate::model::controller::policy::assignment::ClassParameters::Unset;
    let key = ("default".to_owned(), "shop".to_owned());
    world.ingresses.get_mut(&key).and_then(|ingress| ingress.spec.as_mut()).expect("a spec").ingress_class_name = Some("nginx".into());
    world.settle();
    let ingress = &world.ingresses[&key];
    assert_eq!((ingress.metadata.finalizers.as_deref().unwrap_or_default(), addresses(&world)), (&[][..], Vec::new()));
    world.now += WEEK;
    world.settle();
    assert!(world.devices.is_empty() && certificates(&world).is_empty(), "{:?}", world.objects.keys());
}

/// Removes the only object that the Tailscale operator's proxy of this workload lacks.
fn forget_config(world: &mut World) {
    let config = names::replica_config(&workload(world), 0);
    let taken = world.objects.len();
    world.objects.retain(|object, _| object.name != config);
    assert_eq!(world.objects.len(), taken - 1);
}

#[test]
fn proxy_of_the_tailscale_operator_that_nothing_requests_here_stays_until_its_ingress_is_deleted() {
    let mut world = world();
    put(&mut world, json!({}), site("shop", "web"));
    world.settle();
    forget_config(&mut world);
    let (key, objects, devices) = (("default".to_owned(), "shop".to_owned()), world.objects.clone(), world.devices.clone());
    world.ingresses.get_mut(&key).and_then(|ingress| ingress.spec.as_mut()).expect("a spec").ingress_class_name = Some("vpn".into());
    world.settle();
    assert_eq!((&world.objects, &world.devices, addresses(&world).len()), (&objects, &devices, 1));
    assert_eq!(world.ingresses[&key].metadata.finalizers.as_ref().map(Vec::len), Some(1));
    assert_eq!(world.event_count("ProxyFailed"), 1);
    world.delete_ingress("shop");
    world.settle();
    assert!(world.ingresses.is_empty(), "{:?}", world.ingresses);
}

#[test]
fn ingress_moves_between_group_and_standalone() {
    let mut world = world();
    world.group("in", json!({"type": "ingress"}));
    put(&mut world, json!({}), site("shop", "web"));
    world.settle();
    put(&mut world, json!({"tailscale.com/proxy-group": "in"}), site("shop", "web"));
    world.settle();
    assert_eq!(addresses(&world), [("shop.tail1234.ts.net".to_owned(), vec![443])]);
    assert!(world.hosted.vips.contains_key("svc:shop") && world.devices.len() == 2, "{:?}", world.devices);
    put(&mut world, json!({}), site("shop", "web"));
    world.settle();
    assert_eq!(addresses(&world), [("shop.tail1234.ts.net".to_owned(), vec![443])]);
    assert!(world.hosted.vips.is_empty() && world.devices.len() == 3, "{:?}", world.devices);
    let finalizers = world.ingresses[&("default".to_owned(), "shop".to_owned())].metadata.finalizers.clone();
    assert_eq!(finalizers.as_deref(), Some(&["tailscale.com/finalizer".to_owned()][..]));
}

#[test]
fn address_of_the_next_class_stays_when_a_proxy_or_group_releases_the_ingress() {
    let key = ("default".to_owned(), "shop".to_owned());
    let ours = json!([{"hostname": "shop.tail1234.ts.net", "ports": [{"port": 443, "protocol": "TCP"}]}]);
    let (ip, name) = (json!([{"ip": "203.0.113.1"}]), json!([{"hostname": "lb.example.com"}]));
    for annotations in [json!({}), json!({"tailscale.com/proxy-group": "in"})] {
        for (shown, wanted) in [(&ip, &ip), (&name, &name), (&ours, &Value::Null)] {
            let mut world = world();
            world.group("in", json!({"type": "ingress"}));
            put(&mut world, annotations.clone(), site("shop", "web"));
            world.settle();
            assert_eq!(addresses(&world).len(), 1);
            let ingress = world.ingresses.get_mut(&key).expect("an Ingress");
            ingress.spec.as_mut().expect("a spec").ingress_class_name = Some("nginx".into());
            ingress.status = serde_json::from_value(json!({"loadBalancer": {"ingress": shown}})).expect("a status");
            world.settle();
            let ingress = &world.ingresses[&key];
            let status = json!(ingress.status);
            let finalizers = ingress.metadata.finalizers.as_deref().unwrap_or_default();
            assert_eq!((&status["loadBalancer"]["ingress"], finalizers), (wanted, &[][..]), "{annotations} {shown}");
        }
    }
}

#[test]
fn faults_of_a_proxy_have_its_reasons_and_not_those_of_groups() {
    for (class, reason) in [(Class::Missing("c".into()), "ProxyFailed"), (Class::NotReady("c".into()), "ProxyPending")] {
        let mut world = world();
        put(&mut world, json!({}), site("shop", "web"));
        world.class = class;
        let plan = world.pass(KEY);
        assert_eq!(plan.faults.iter().map(|fault| fault.reason).collect::<Vec<_>>(), [reason]);
    }
    let mut world = world();
    put(&mut world, json!({}), site("shop", "web"));
    let denial = ControlPlaneError { why: "no keys".into(), since: world.time(), refused: None };
    world.denied.insert("an auth key for replica 0".into(), denial);
    world.rounds(2);
    assert_eq!(world.pass(KEY).faults.iter().map(|fault| fault.reason).collect::<Vec<_>>(), ["ProxyFailed"]);
}

#[test]
fn state_of_a_proxy_follows_its_ingress() {
    use crate::model::controller::workload::proxy_state::ProxyState;
    let mut world = world();
    put(&mut world, json!({}), site("shop", "missing"));
    assert_eq!(world.pass(KEY).proxy, Some(ProxyState::Rejected));
    put(&mut world, json!({}), site("shop", "web"));
    world.hosted.no_https = true;
    assert_eq!(world.pass(KEY).proxy, Some(ProxyState::Pending));
    world.hosted.no_https = false;
    world.settle();
    assert_eq!(world.pass(KEY).proxy, Some(ProxyState::Ready));
    world.class = Class::Missing("gone".into());
    assert_eq!(world.pass(KEY).proxy, Some(ProxyState::Failed));
    world.class = Class::None;
    world.delete_ingress("shop");
    world.settle();
    assert_eq!(world.pass(KEY).proxy, None);
}

#[test]
fn accepted_route_over_the_cluster_is_a_lasting_event_of_the_ingress() {
    let mut world = world();
    put(&mut world, json!({}), site("shop", "web"));
    world.settle();
    let overlaps = |world: &mut World| {
        let faults = world.pass(KEY).faults.into_iter().filter(|fault| fault.reason == "RouteCoversCluster");
        faults.map(|fault| (fault.subject.name().to_owned(), fault.message)).collect::<Vec<_>>()
    };
    assert_eq!(overlaps(&mut world), []);
    let state = object(Kind::Secret, &names::replica(&workload(&world), 0));
    let report = k8s_openapi::ByteString(br#"{"10.0.2.0/24":"10.0.2.7"}"#.to_vec());
    world.edit(&state, |secret| secret["data"]["tailyard-overlapping-routes.json"] = json!(report));
    world.settle();
    let found = overlaps(&mut world);
    assert!(matches!(&found[..], [(name, message)] if name == "shop" && message.contains("this cluster: 10.0.2.0/24.")), "{found:?}");
    assert_eq!(world.event_count("RouteCoversCluster"), 1);
    assert_eq!(world.pass(KEY).proxy, Some(crate::model::controller::workload::proxy_state::ProxyState::Ready), "it is served");
    world.edit(&state, |secret| secret["data"]["tailyard-overlapping-routes.json"] = Value::Null);
    world.settle();
    assert_eq!(overlaps(&mut world), []);
    ends(world);
}
