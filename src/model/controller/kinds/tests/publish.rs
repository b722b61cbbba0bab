//! Ingress groups: advertised names, rejections and reports.

#![allow(clippy::needless_pass_by_value, reason = "a call with a literal reads better")]

use std::collections::BTreeMap;
use std::iter;

use super::*;
use crate::api::condition::{INGRESS_SVC_CONFIGURED, INGRESS_SVC_VALID, PUBLISHED};
use crate::api::routes;
use crate::api::vip::VipService;
use crate::model::config::source::{Document, ServeDocument};

/// A cluster with an ingress group and a backend.
pub(super) fn publishing(spec: serde_json::Value) -> World {
    publishing_by(None, spec)
}

/// The same, with a class.
fn publishing_by(class: Option<serde_json::Value>, spec: serde_json::Value) -> World {
    let mut world = World::new();
    if let Some(class) = class {
        world.with_class(class);
    }
    world.group("in", spec);
    world.plain("web", json!({}), json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}]}));
    world.settle();
    world
}

pub(super) fn ingress() -> serde_json::Value {
    json!({"type": "ingress"})
}

/// Creates a Service that requests a name, with additional annotations.
pub(super) fn expose(world: &mut World, name: &str, more: serde_json::Value, spec: serde_json::Value) {
    let mut annotations = json!({"tailscale.com/proxy-group": "in", "tailscale.com/expose": "true", "tailscale.com/hostname": name});
    annotations.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    world.plain(name, annotations, spec);
}

#[test]
fn external_name_is_published_without_endpoints() {
    let mut world = publishing(ingress());
    expose(&mut world, "db", json!({}), json!({"type": "ExternalName", "externalName": "db.example.com"}));
    world.hosted.unbacked.insert(("default".to_owned(), "db".to_owned()));
    world.settle();
    let mapping = world.config("in").mappings["svc:db"].clone();
    let pairs = [mapping.ipv4.expect("a pair"), mapping.ipv6.expect("a pair")];
    assert!(pairs.iter().all(|pair| pair.cluster_ip.is_empty() && !pair.tailscale_service_ip.is_empty()), "{pairs:?}");
    assert_eq!(mapping.external_name, "db.example.com");
    let configured = world.condition("db", INGRESS_SVC_CONFIGURED).expect("a condition");
    assert_eq!((configured.0.as_str(), configured.2.as_str()), ("True", "2/2 proxy backends ready and advertising"));
}

#[test]
fn status_of_a_service_shows_the_families_that_are_mapped() {
    let (four, six) = ("10.96.0.21", "fd00:96::21");
    for ips in [vec![four], vec![six], vec![four, six], vec![six, four]] {
        let mut world = publishing(ingress());
        let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "clusterIP": ips[0], "clusterIPs": ips, "ports": [{"port": 80}]});
        expose(&mut world, "db", json!({}), spec);
        world.settle();
        let service = &world.services[&("default".to_owned(), "db".to_owned())];
        let shown = serde_json::to_value(service.status.as_ref().and_then(|status| status.load_balancer.as_ref())).expect("JSON");
        let shown: Vec<_> =
            shown["ingress"].as_array().expect("entries").iter().map(|entry| entry["ip"].as_str().expect("an address")).collect();
        let mapping = world.config("in").mappings["svc:db"].clone();
        let pair = |ip: &&str| if ip.contains(':') { mapping.ipv6.clone() } else { mapping.ipv4.clone() };
        let mapped: Vec<_> = ips.iter().map(|ip| pair(ip).expect("a pair")).collect();
        assert_eq!(mapped.iter().map(|pair| pair.cluster_ip.as_str()).collect::<Vec<_>>(), ips);
        assert_eq!(shown, mapped.iter().map(|pair| pair.tailscale_service_ip.as_str()).collect::<Vec<_>>(), "{ips:?}");
    }
}

#[test]
fn service_is_mapped_once_its_name_has_an_address_of_either_family() {
    let mut world = publishing(ingress());
    (world.hosted.late, world.hosted.v6_only) = (3, true);
    let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "clusterIP": "fd00:96::21", "clusterIPs": ["fd00:96::21"], "ports": [{"port": 80}]});
    expose(&mut world, "db", json!({}), spec);
    let entry = |world: &World| {
        let service = &world.services[&("default".to_owned(), "db".to_owned())];
        serde_json::to_value(service.status.as_ref().and_then(|status| status.load_balancer.as_ref())).expect("JSON")["ingress"][0].clone()
    };
    while world.hosted.late > 0 {
        world.round();
        assert!(!world.config("in").mappings.contains_key("svc:db"), "there is nothing yet to map");
        assert_eq!(entry(&world)["ip"], serde_json::Value::Null);
    }
    world.settle();
    let mapping = world.config("in").mappings["svc:db"].clone();
    assert_eq!((mapping.ipv4.is_some(), mapping.ipv6.is_some()), (false, true), "{mapping:?}");
    let address = world.hosted.vips["svc:db"].addrs[0].clone();
    assert_eq!(entry(&world)["ip"], json!(address));
    assert_eq!(world.condition("db", INGRESS_SVC_CONFIGURED).expect("a condition").0, "True");
}

#[test]
fn addresses_of_a_control_plane_are_written_in_canonical_form() {
    let mut world = publishing(ingress());
    let ips = ["10.96.0.21", "fd00:96::21"];
    let spec =
        json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "clusterIP": ips[0], "clusterIPs": ips, "ports": [{"port": 80}]});
    expose(&mut world, "db", json!({}), spec);
    world.settle();
    let addrs = ["FD7A:115C:A1E0:0:0::0B", "::ffff:100.101.0.1", "100.101.0.01"].map(str::to_owned).to_vec();
    world.hosted.vips.get_mut("svc:db").expect("a Tailscale Service").addrs = addrs;
    world.now += 3600;
    world.settle();
    let service = &world.services[&("default".to_owned(), "db".to_owned())];
    let shown = json!(service.status.as_ref().and_then(|status| status.load_balancer.as_ref()));
    let shown: Vec<_> = shown["ingress"].as_array().expect("entries").iter().map(|entry| entry["ip"].clone()).collect();
    assert_eq!(shown, ["100.101.0.1", "fd7a:115c:a1e0::b"]);
}

#[test]
fn objects_whose_names_begin_with_a_digit_are_served() {
    let mut world = publishing(ingress());
    world.group("pg", json!({"type": "egress"}));
    world.service("1db", to("pg"), &[5432]);
    expose(&mut world, "2web", json!({}), json!({"clusterIP": "10.96.0.22", "ports": [{"port": 80}]}));
    expose(&mut world, "3far", json!({}), json!({"type": "ExternalName", "externalName": "4db.default.svc.cluster.local"}));
    world.plain("5backend", json!({}), json!({"clusterIP": "10.96.0.25", "ports": [{"port": 80}]}));
    world.ingress("6site", "in", ("7site", "5backend"));
    world.settle();
    assert!(world.external_name("1db").starts_with("ts-1db-"), "{}", world.external_name("1db"));
    for (name, condition) in [("1db", EGRESS_SVC_READY), ("2web", INGRESS_SVC_CONFIGURED), ("3far", INGRESS_SVC_CONFIGURED)] {
        assert_eq!(world.condition(name, condition).expect("a condition").0, "True", "{name}");
    }
    assert_eq!(world.hosted.vips.keys().collect::<Vec<_>>(), ["svc:2web", "svc:3far", "svc:7site"]);
    let mappings = world.config("in").mappings;
    assert_eq!((mappings.len(), mappings["svc:3far"].external_name.as_str()), (2, "4db.default.svc.cluster.local"));
}

#[test]
fn replica_without_approval_counts_as_no_backend() {
    let mut world = publishing(ingress());
    world.hosted.unapproved.insert("svc:db".to_owned());
    expose(&mut world, "db", json!({}), json!({"clusterIP": "10.96.0.21", "ports": [{"port": 80}]}));
    world.settle();
    let configured = world.condition("db", INGRESS_SVC_CONFIGURED).expect("a condition");
    assert_eq!((configured.0.as_str(), configured.1.as_str()), ("False", "IngressSvcNoBackendsConfigured"));
    assert!(configured.2.starts_with("0/2 proxy backends ready and advertising; 2 not approved for svc:db"), "{}", configured.2);
    world.hosted.unapproved.clear();
    world.settle();
    let configured = world.condition("db", INGRESS_SVC_CONFIGURED).expect("a condition");
    assert_eq!((configured.0.as_str(), configured.2.as_str()), ("True", "2/2 proxy backends ready and advertising"));
}

#[test]
fn lost_config_during_withdrawal_leaves_no_tailscale_service() {
    let mut world = publishing(ingress());
    expose(&mut world, "db", json!({}), json!({"clusterIP": "10.96.0.21", "ports": [{"port": 80}]}));
    world.settle();
    assert_eq!(world.hosted.vips.len(), 1);
    // The replicas withdraw it before the config is lost.
    world.delete_service("db");
    world.pass("in");
    world.live();
    world.objects.remove(&object(Kind::ConfigMap, "in-ingress-config"));
    world.memory.passes.clear();
    world.settle();
    assert!(world.hosted.vips.is_empty() && world.config("in").names().is_empty());
}

#[test]
fn proxy_protocol_ports_are_in_the_config() {
    let mut world = publishing(ingress());
    let spec = || json!({"clusterIP": "10.96.0.21", "ports": [{"port": 25}, {"port": 80}]});
    expose(&mut world, "mail", json!({"tailyard.io/proxy-protocol": "25"}), spec());
    world.settle();
    assert_eq!(world.config("in").mappings["svc:mail"].proxy_protocol, [25].into());
    expose(&mut world, "mail", json!({"tailyard.io/proxy-protocol": "26"}), spec());
    world.settle();
    let valid = world.condition("mail", INGRESS_SVC_VALID).expect("a condition");
    assert!(valid.1 == "IngressSvcInvalid" && valid.2.contains("tailyard.io/proxy-protocol"), "{valid:?}");
    assert_eq!(world.config("in").mappings["svc:mail"].proxy_protocol, [25].into(), "the last good one goes on");
}

#[test]
fn userspace_group_serves_sites_and_refuses_l4_services() {
    let container = json!({"env": [{"name": "TS_USERSPACE", "value": "true"}]});
    let init = json!({"securityContext": {"privileged": false, "capabilities": {"drop": ["ALL"]}}});
    let class = json!({"statefulSet": {"pod": {"tailscaleContainer": container, "tailscaleInitContainer": init}}});
    let mut world = publishing_by(Some(class), ingress());
    with_paths(&mut world, "site", 1);
    expose(&mut world, "db", json!({}), json!({"clusterIP": "10.96.0.21", "ports": [{"port": 80}]}));
    world.settle();
    assert_eq!(world.config("in").names(), ["svc:site".to_owned()].into());
    let valid = world.condition("db", INGRESS_SVC_VALID).expect("a condition");
    assert!(valid.1 == "IngressSvcInvalid" && valid.2.contains("TS_USERSPACE"), "{valid:?}");
    let pod = &world.objects[&object(Kind::StatefulSet, "in")]["spec"]["template"]["spec"];
    assert_eq!(pod["initContainers"], serde_json::Value::Null, "nothing is to be switched on");
    assert_eq!(world.env("in", "TS_INGRESS_PROXIES_CONFIG_PATH"), None);
}

#[test]
fn features_missing_in_the_stock_image_are_reported_once() {
    for (more, spec) in [
        (json!({}), json!({"type": "ExternalName", "externalName": "db.example.com"})),
        (json!({"tailyard.io/proxy-protocol": "true"}), json!({"clusterIP": "10.96.0.21", "ports": [{"port": 25}]})),
    ] {
        let mut world = World::new();
        world.with_class(json!({"statefulSet": {"pod": {"tailscaleContainer": {"image": "tailscale/tailscale:v1.102.0"}}}}));
        world.group("in", ingress());
        expose(&mut world, "db", more, spec);
        world.settle();
        let valid = world.condition("db", INGRESS_SVC_VALID).expect("a condition");
        assert!(valid.1 == "IngressSvcInvalid" && valid.2.contains("take Tailyard's image"), "{valid:?}");
        assert_eq!((world.event_count("IngressSvcInvalid"), world.config("in").mappings.len()), (1, 0));
    }
}

#[test]
fn unpublished_objects_are_named_and_not_repeated_after_a_restart() {
    let mut world = publishing(ingress());
    world.ingress("good", "in", ("good", "web"));
    world.now += 1;
    world.ingress("bad", "in", ("bad", "missing"));
    world.ingress("twin", "in", ("good", "web"));
    world.ingress("theirs", "in", ("theirs", "web"));
    let foreign = VipService { name: "svc:theirs".into(), ..VipService::default() };
    world.hosted.vips.insert("svc:theirs".into(), foreign);
    expose(&mut world, "lonely", json!({}), json!({"clusterIP": "10.96.0.21", "ports": [{"port": 80}]}));
    world.hosted.unbacked.insert(("default".to_owned(), "lonely".to_owned()));
    world.settle();
    let published = world.says("in", PUBLISHED);
    let wanted = "3 of 5 are not published as requested: Ingress default/bad (InvalidIngressConfiguration), Ingress default/theirs \
                  (InvalidTailscaleService), Ingress default/twin (NameConflict).";
    assert!(published.0 == "False" && published.1 == "ServicesRejected" && published.2.starts_with(wanted), "{published:?}");
    let counts = ["InvalidIngressConfiguration", "InvalidTailscaleService", "NameConflict"].map(|reason| world.event_count(reason));
    assert_eq!(counts, [1, 1, 1]);

    let events = world.events.len();
    (world.memory.passes, world.hosted.listed) = (std::collections::BTreeMap::new(), None);
    let ready = std::mem::replace(&mut world.tailnet, TailnetState::Asking);
    let writes = world.writes;
    world.rounds(10);
    assert_eq!((world.writes, world.says("in", PUBLISHED)), (writes, published.clone()), "the control plane was not queried yet");
    world.tailnet = ready;
    world.settle();
    assert_eq!((world.events.len(), world.writes, world.says("in", PUBLISHED)), (events, writes, published));

    world.delete_ingress("twin");
    world.delete_ingress("theirs");
    world.ingress("bad", "in", ("bad", "web"));
    world.settle();
    let waiting = world.says("in", PUBLISHED);
    assert!(waiting.1 == "ServicesPending" && waiting.2.contains("Service default/lonely"), "{waiting:?}");
    world.hosted.unbacked.clear();
    world.settle();
    assert_eq!(world.says("in", PUBLISHED).2, "3 of 3 are published.");
    let summary = world.pass("in").summary.expect("a summary");
    assert_eq!((summary.published[&PublishState::Whole], summary.certified[&Certified::Issued]), (3, 2));
}

#[test]
fn failed_funnel_is_reported_once() {
    let mut world = publishing(ingress());
    world.put_ingress("app", json!({"tailscale.com/proxy-group": "in", "tailscale.com/funnel": "true"}), site("app", "web"));
    world.ingress("inside", "in", ("inside", "web"));
    let why = "the tailnet does not let this node be";
    world.hosted.funnel_errors = [("svc:app".into(), why.into()), ("svc:inside".into(), why.into())].into();
    world.settle();
    let published = world.says("in", PUBLISHED).2;
    assert!(published.starts_with("1 of 2 are not published as requested: Ingress default/app (PartiallyAdvertised)"), "{published}");
    assert_eq!(world.event_count("PartiallyAdvertised"), 1);
    world.memory.passes.clear();
    world.settle();
    assert_eq!(world.event_count("PartiallyAdvertised"), 1, "not by one who begins anew");
    world.hosted.funnel_errors.clear();
    world.settle();
    assert_eq!((world.says("in", PUBLISHED).2, world.event_count("PartiallyAdvertised")), ("2 of 2 are published.".to_owned(), 1));
}

#[test]
fn object_naming_a_group_of_the_wrong_type_is_invalid() {
    let mut world = publishing(ingress());
    world.group("pg", json!({"type": "egress"}));
    world.exposed("db", "pg", "db");
    world.service("out", to("in"), &[5432]);
    world.ingress("app", "pg", ("app", "web"));
    world.settle();
    let valid = world.condition("db", INGRESS_SVC_VALID).expect("a condition");
    assert!(valid.1 == "ProxyGroupNotReady" && valid.2.contains("pg is of type egress, which publishes nothing"), "{valid:?}");
    let valid = world.condition("out", EGRESS_SVC_VALID).expect("a condition");
    assert!(valid.1 == "ProxyGroupNotReady" && valid.2.contains("in is not of type egress"), "{valid:?}");
    assert_eq!(world.event_count("ProxyGroupNotReady"), 2, "the Service and the Ingress that are to be published");
    world.plain("db", json!({}), json!({"clusterIP": "10.96.0.22", "ports": [{"port": 80}]}));
    world.settle();
    assert_eq!(world.condition("db", INGRESS_SVC_VALID), None, "what was said of it goes");
}

#[test]
fn acme_directory_comes_from_class_or_settings() {
    let directory = |world: &World| world.env("in", "TS_DEBUG_ACME_DIRECTORY_URL");
    let mut world = publishing(ingress());
    assert_eq!(directory(&world), None);
    world.settings.acme_directory = Some("https://ca.example/directory".into());
    world.settle();
    assert_eq!(directory(&world).as_deref(), Some("https://ca.example/directory"));
    world.with_class(json!({"useLetsEncryptStagingEnvironment": true}));
    world.settle();
    assert_eq!(directory(&world).as_deref(), Some("https://acme-staging-v02.api.letsencrypt.org/directory"));
}

#[test]
fn endpoints_role_binding_exists_while_the_backend_is_served() {
    let mut world = publishing(ingress());
    world.ingress("app", "in", ("app", "web"));
    world.settle();
    let binding = ObjectRef::new(Kind::RoleBinding, "default", "tailyard-endpoints-in");
    assert_eq!(world.objects[&binding]["subjects"], json!([{"kind": "ServiceAccount", "name": "in", "namespace": NS}]));
    assert_eq!(world.objects[&binding]["roleRef"]["name"], "tailyard-endpoints");
    world.delete_ingress("app");
    world.settle();
    assert!(world.objects[&binding]["subjects"].is_null(), "{:?}", world.objects[&binding]);
}

/// Creates an Ingress with `count` paths.
fn with_paths(world: &mut World, name: &str, count: usize) {
    with(world, name, (0..count).map(|nth| format!("/{nth}")));
}

/// Creates an Ingress with a tenth as many paths of random letters, which hardly compress.
fn with_random_paths(world: &mut World, name: &str, count: usize) {
    let mut random = fastrand::Rng::with_seed(count as u64);
    with(world, name, (0..count / 10).map(|_| iter::once('/').chain((0..1_100).map(|_| random.alphanumeric())).collect()));
}

fn with(world: &mut World, name: &str, paths: impl Iterator<Item = String>) {
    world.now += 1;
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let paths: Vec<_> = paths.map(|path| json!({"path": path, "pathType": "Prefix", "backend": backend})).collect();
    let spec = json!({"tls": [{"hosts": [name]}], "rules": [{"http": {"paths": paths}}]});
    world.put_ingress(name, json!({"tailscale.com/proxy-group": "in"}), spec);
}

/// Creates an Ingress with this number of paths.
type Make = fn(&mut World, &str, usize);

/// Checks that a group of this class rejects only what is too large for it.
fn refuse_what_does_not_fit(class: Option<serde_json::Value>, large: Make) -> World {
    let mut world = publishing_by(class, ingress());
    with_paths(&mut world, "first", 10);
    world.settle();
    large(&mut world, "large", 6_500);
    with_paths(&mut world, "zz-last", 10);
    world.settle();
    let config = world.config("in");
    assert_eq!(config.routes.keys().collect::<Vec<_>>(), ["svc:first", "svc:zz-last"]);
    assert!(config.size(false) <= 900 << 10);
    assert_eq!(world.event_count("ConfigFull"), 1);
    assert!(world.says("in", PUBLISHED).2.contains("Ingress default/large (ConfigFull)"), "{:?}", world.says("in", PUBLISHED));
    world
}

#[test]
fn oversized_ingress_is_refused_alone() {
    refuse_what_does_not_fit(None, with_random_paths);
    let stock = json!({"statefulSet": {"pod": {"tailscaleContainer": {"image": "tailscale/tailscale:v1.102.0"}}}});
    let mut world = refuse_what_does_not_fit(Some(stock), with_paths);
    with_paths(&mut world, "first", 6_500);
    world.settle();
    assert_eq!(world.config("in").routes["svc:first"].routes.len(), 10, "what is published goes on as it was");
    world.delete_ingress("first");
    world.settle();
    assert_eq!(world.config("in").routes.keys().collect::<Vec<_>>(), ["svc:zz-last"], "and ends when it is deleted");
}

#[test]
fn large_config_is_compressed_for_replicas_that_support_it() {
    let mut world = publishing(ingress());
    with_paths(&mut world, "large", 6_500);
    world.settle();
    let config = world.config("in");
    assert!(config.size(false) > 900 << 10 && config.size(true) < 300 << 10, "{} {}", config.size(false), config.size(true));
    let stored = &world.objects[&object(Kind::ConfigMap, "in-ingress-config")];
    let data: BTreeMap<String, k8s_openapi::ByteString> = serde_json::from_value(stored["binaryData"].clone()).expect("keys");
    assert!(data.contains_key(routes::KEY_COMPRESSED) && !data.contains_key(routes::KEY), "{:?}", data.keys());
    let keys = data.into_iter().map(|(key, value)| (key, value.0.into())).collect();
    let read = ServeDocument::read(&ServeDocument::unpacked(keys), None).expect("the data plane reads it");
    assert_eq!((read.served.sites.len(), read.served.faults.len()), (1, 0));
    assert_eq!(world.event_count("ConfigFull"), 0);

    world.delete_ingress("large");
    with_paths(&mut world, "small", 10);
    world.settle();
    let stored = &world.objects[&object(Kind::ConfigMap, "in-ingress-config")];
    assert!(stored["binaryData"].get(routes::KEY).is_some(), "what fits again is plain again");
}

#[test]
fn older_object_gets_the_funnel_port() {
    let mut world = publishing(ingress());
    let funnel = json!({"tailscale.com/proxy-group": "in", "tailscale.com/funnel": "true"});
    for name in ["zz-first", "aa-second"] {
        world.now += 1;
        world.put_ingress(name, funnel.clone(), site(name, "web"));
    }
    world.settle();
    let routes = world.config("in").routes;
    assert_eq!((routes["svc:zz-first"].funnel, routes["svc:aa-second"].funnel), (true, false));
    assert_eq!(world.event_count("PartiallyAdvertised"), 1);
}
