//! Certificates of advertised names, issued and user-provided: state, conditions and Events.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::publish::{ingress, publishing};
use super::*;
use crate::api::condition::{CERTIFIED, PUBLISHED};
use crate::api::routes::Host;
use crate::model::controller::workload::observed::UserCertificate;
use crate::model::front_end::vhosts::{self, shared_host};
use crate::model::ingress::cert_orders::Certificate;
use crate::model::ingress::certificate::Leaf;

/// Time `day` days after the start.
fn day(day: i64) -> Timestamp {
    Timestamp::from_second(World::new().now + day * 24 * 60 * 60).expect("a time")
}

/// Sets the clock to that day and reconciles.
fn on(world: &mut World, at: i64) {
    world.now = day(at).as_second();
    world.settle();
}

/// Creates an Ingress with an own host that uses this Secret.
fn shows(world: &mut World, name: &str, secret: &str) {
    let tls = json!([{"hosts": [name]}, {"hosts": [format!("{secret}.example.com")], "secretName": secret}]);
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    world.put_ingress(name, json!({"tailscale.com/proxy-group": "in"}), json!({"tls": tls, "defaultBackend": backend}));
}

/// Sets a user-provided certificate that is valid between these days.
pub(super) fn own(world: &mut World, secret: &str, from: i64, until: i64) {
    let certificate = Certificate { id: String::new(), from: day(from), until: day(until) };
    world.own_certificates.insert(secret.into(), UserCertificate::Leaf(Leaf { certificate, names: vec![format!("{secret}.example.com")] }));
}

/// Sets a user-provided certificate that is valid now, for these names.
pub(super) fn own_for(world: &mut World, secret: &str, names: &[&str]) {
    let certificate = Certificate { id: String::new(), from: day(-1), until: day(1_000) };
    let names = names.iter().map(|&name| name.to_owned()).collect();
    world.own_certificates.insert(secret.into(), UserCertificate::Leaf(Leaf { certificate, names }));
}

#[test]
fn missing_certificates_are_named_in_the_group_condition() {
    let mut world = publishing(ingress());
    shows(&mut world, "app", "www");
    world.settle();
    assert_eq!(world.says("in", PUBLISHED).1, "ServicesRejected", "a part of it is not served");
    let lacking = world.says("in", CERTIFIED);
    assert!(lacking.1 == "CertificatesMissing" && lacking.2.contains("www.example.com (Ingress default/app)"), "{lacking:?}");
    assert_eq!(world.event_count("PartiallyAdvertised"), 1);
    own(&mut world, "www", -1, 90);
    world.settle();
    assert_eq!(world.says("in", CERTIFIED).2, "2 of 2 certificates are there.");
    world.edit(&object(Kind::Secret, "app.tail1234.ts.net"), |secret| {
        let status = r#"{"failures":3,"reason":"RateLimited","message":"too many"}"#;
        secret["metadata"]["annotations"]["tailyard.io/acme-order-status"] = json!(status);
    });
    world.settle();
    let failing = world.says("in", CERTIFIED);
    assert!(failing.1 == "CertificatesFailing" && failing.2.contains("app.tail1234.ts.net (RateLimited)"), "{failing:?}");
}

#[test]
fn disabled_https_is_reported_in_the_group_condition() {
    let mut world = World::new();
    world.hosted.no_https = true;
    world.group("in", ingress());
    world.plain("web", json!({}), json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}]}));
    world.ingress("app", "in", ("app", "web"));
    world.settle();
    let failing = world.says("in", CERTIFIED);
    assert!(failing.1 == "CertificatesFailing" && failing.2.contains("app.tail1234.ts.net (HTTPSDisabled)"), "{failing:?}");
    world.hosted.no_https = false;
    world.settle();
    assert_eq!(world.says("in", CERTIFIED).1, "CertificatesIssued");
}

#[test]
fn expired_certificate_of_the_group_is_reported_invalid() {
    let mut world = publishing(ingress());
    world.ingress("app", "in", ("app", "web"));
    world.settle();
    assert_eq!(world.says("in", CERTIFIED).1, "CertificatesIssued");
    world.hosted.certificate_end = Some(day(3));
    on(&mut world, 2);
    assert_eq!(world.says("in", CERTIFIED).1, "CertificatesIssued");
    on(&mut world, 3);
    let ended = world.says("in", CERTIFIED);
    assert!(ended.1 == "CertificatesInvalid" && ended.2.contains("app.tail1234.ts.net (Ended)"), "{ended:?}");
}

#[test]
fn expiry_of_a_user_certificate_is_announced() {
    let mut world = publishing(ingress());
    shows(&mut world, "app", "www");
    shows(&mut world, "other", "shop");
    own(&mut world, "www", -1, 90);
    own(&mut world, "shop", -1, 900);
    world.settle();
    assert_eq!((world.events.len(), world.says("in", CERTIFIED).1), (0, "CertificatesIssued".to_owned()));

    on(&mut world, 80);
    let ending = world.says("in", CERTIFIED);
    assert!((&*ending.0, &*ending.1) == ("True", "CertificatesExpiring"), "it serves still: {ending:?}");
    assert!(ending.2.starts_with("1 of 4 certificates") && ending.2.contains("www.example.com (Ingress default/app)"), "{ending:?}");
    assert_eq!((world.event_count("CertificateExpiring"), world.says("in", PUBLISHED).2), (1, "2 of 2 are published.".to_owned()));

    on(&mut world, 91);
    let ended = world.says("in", CERTIFIED);
    assert!((&*ended.0, &*ended.1) == ("False", "CertificatesInvalid"), "{ended:?}");
    let published = world.says("in", PUBLISHED).2;
    assert!(published.starts_with("1 of 2 are not published as requested: Ingress default/app (PartiallyAdvertised)"), "{published}");
    assert_eq!((world.event_count("CertificateExpiring"), world.event_count("PartiallyAdvertised")), (1, 1));
    let summary = world.pass("in").summary.expect("a summary");
    assert_eq!((summary.certified[&Certified::Invalid], summary.certified[&Certified::Issued]), (1, 3), "the other is as it was");
    assert!(world.config("in").routes["svc:app"].hosts.contains_key("www.example.com"), "which clients take it is theirs to say");

    own(&mut world, "www", 92, 182);
    world.settle();
    assert_eq!(world.says("in", CERTIFIED).1, "CertificatesInvalid", "it is not valid yet");
    on(&mut world, 93);
    assert_eq!((world.says("in", CERTIFIED).1, world.says("in", PUBLISHED).0), ("CertificatesIssued".to_owned(), "True".to_owned()));
}

#[test]
fn group_is_requeued_before_a_certificate_expires() {
    let mut world = publishing(ingress());
    // Without Tailscale Services only devices are read every few minutes, and these passes read them.
    world.tailnet = headscale();
    shows(&mut world, "app", "www");
    own(&mut world, "www", -1, 89);
    world.settle();
    let mut next = |at| {
        world.now = day(at).as_second();
        world.pass("in").again.map(|after| after.as_secs() / (24 * 60 * 60))
    };
    assert_eq!([1, 80, 90].map(&mut next), [Some(74), Some(9), None]);
}

#[test]
fn older_object_gets_a_host_on_the_replicas_own_addresses() {
    let mut world = publishing(ingress());
    world.tailnet = headscale();
    own(&mut world, "www", -1, 89);
    for name in ["shop", "aaa"] {
        world.now += 1;
        shows(&mut world, name, "www");
        world.settle();
    }
    let routes = world.config("in").routes;
    assert!(routes["svc:shop"].hosts.contains_key("www.example.com"));
    assert!(!routes.contains_key("svc:aaa"), "it has no host of its own: {routes:?}");
}

/// Creates an Ingress of a namespace whose first host is its own name, with the Secrets of its other hosts.
fn names_hosts(world: &mut World, (namespace, name): (&str, &str), hosts: &[(&str, &str)]) {
    let own = json!({"hosts": [name]});
    let tls: Vec<_> = [own].into_iter().chain(hosts.iter().map(|(host, secret)| json!({"hosts": [host], "secretName": secret}))).collect();
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    world.put_ingress(name, json!({"tailscale.com/proxy-group": "in"}), json!({"tls": tls, "defaultBackend": backend}));
    let mut ingress = world.ingresses.remove(&("default".to_owned(), name.to_owned())).expect("it was just created");
    let mut web = world.services[&("default".to_owned(), "web".to_owned())].clone();
    for metadata in [&mut ingress.metadata, &mut web.metadata] {
        metadata.namespace = Some(namespace.to_owned());
    }
    world.ingresses.insert((namespace.to_owned(), name.to_owned()), ingress);
    world.services.insert((namespace.to_owned(), "web".to_owned()), web);
}

/// Certificates that the replicas of the group have for their host names, as they read the config.
fn replica_certificates(world: &World) -> BTreeMap<String, Host> {
    let routes = serde_json::to_vec(&world.config("in").routes).expect("JSON");
    let sites = vhosts::read(Some(&routes), None).expect("readable").sites;
    shared_host::certificates(&shared_host::listened(&sites.into(), world.tailnet == headscale()))
}

#[test]
fn tenant_takes_no_certificate_of_another_tenant() {
    type Case<'a> = (&'a [(&'a str, &'a str)], bool, Option<&'a str>);
    let victim = [("www.example.com", "www")];
    // The other tenant's hosts, whether its object is older → the host that it may have.
    let cases: [Case<'_>; 7] = [
        (&[("shop.tail1234.ts.net", "x")], true, None),
        (&[("*.tail1234.ts.net", "x"), ("www.example.com", "x")], true, None),
        (&[("www.example.com", "bad")], true, None),
        (&[("www.example.com", "ended")], true, None),
        (&[("www.example.com", "also")], false, None),
        (&[("www.example.com", "also")], true, None),
        (&[("www.example.com", "www"), ("x.example.com", "x")], false, Some("x.example.com")),
    ];
    for ((hosts, is_older, gets), tailnet) in
        cases.into_iter().flat_map(|case| [World::new().tailnet, headscale()].map(|tailnet| (case, tailnet)))
    {
        let mut world = publishing(ingress());
        world.tailnet = tailnet;
        for secret in ["www", "x"] {
            own(&mut world, secret, -1, 90);
        }
        world.own_certificates.insert("also".into(), world.own_certificates["www"].clone());
        world.own_certificates.insert("bad".into(), UserCertificate::Unusable("tls.crt is empty".into()));
        let ended = Certificate { id: String::new(), from: day(-90), until: day(-1) };
        let ended = Leaf { certificate: ended, names: vec!["www.example.com".into()] };
        world.own_certificates.insert("ended".into(), UserCertificate::Leaf(ended));
        names_hosts(&mut world, ("victim", "shop"), &victim);
        world.settle();
        let before = replica_certificates(&world);
        let now = world.now;
        world.now += if is_older { -86_000 } else { 60 };
        names_hosts(&mut world, ("tenant", "zzz"), hosts);
        world.now = now + 60;
        world.settle();
        let after = replica_certificates(&world);
        for (host, how) in &before {
            let is_given = gets == Some(host.as_str());
            assert_eq!(after.get(host) != Some(how), is_given, "{host} of {hosts:?}, older: {is_older}: {after:?}");
        }
        assert_eq!(gets.filter(|host| !after.contains_key(*host)), None);
        let reported = world.event_count("PartiallyAdvertised") + world.event_count("NoTailscaleServices");
        assert!(reported > 0 || gets.is_some(), "{hosts:?}: {:?}", world.events);
        // It stays so while the object is invalid.
        let key = ("tenant".to_owned(), "zzz".to_owned());
        world.ingresses.get_mut(&key).and_then(|ingress| ingress.spec.as_mut()).expect("a spec").default_backend = None;
        world.settle();
        assert_eq!(replica_certificates(&world), after, "{hosts:?}");
    }
}

#[test]
fn object_that_names_another_secret_has_its_host_still() {
    for (tailnet, change) in
        [World::new().tailnet, headscale()].into_iter().flat_map(|tailnet| [(tailnet.clone(), "also"), (tailnet, "next")])
    {
        let mut world = publishing(ingress());
        world.tailnet = tailnet;
        own(&mut world, "www", -1, 90);
        for secret in ["also", "next"] {
            world.own_certificates.insert(secret.into(), world.own_certificates["www"].clone());
        }
        names_hosts(&mut world, ("victim", "shop"), &[("www.example.com", "www")]);
        world.settle();
        world.now -= 86_000;
        names_hosts(&mut world, ("tenant", "older"), &[("www.example.com", "also")]);
        world.now += 86_060;
        world.settle();
        let shop = world.ingresses.get_mut(&("victim".to_owned(), "shop".to_owned())).and_then(|ingress| ingress.spec.as_mut());
        shop.and_then(|spec| spec.tls.as_mut()).expect("tls")[1].secret_name = Some(change.to_owned());
        world.settle();
        let secret = world.config("in").routes.get("svc:shop").and_then(|site| Some(site.hosts.get("www.example.com")?.secret.clone()));
        assert_eq!(secret.as_deref(), Some(change));
        assert_eq!(replica_certificates(&world)["www.example.com"].secret, change);
    }
}

#[test]
fn host_without_certificate_is_not_taken_from_a_wildcard_of_another_object() {
    for (secret, is_taken) in [("bad", false), ("x", false), ("www", true)] {
        let mut world = publishing(ingress());
        world.tailnet = headscale();
        for secret in ["www", "x"] {
            own(&mut world, secret, -1, 90);
        }
        let all = Certificate { id: String::new(), from: day(-1), until: day(90) };
        world.own_certificates.insert("all".into(), UserCertificate::Leaf(Leaf { certificate: all, names: vec!["*.example.com".into()] }));
        names_hosts(&mut world, ("tenant", "aaa"), &[("www.example.com", secret)]);
        world.now += 60;
        names_hosts(&mut world, ("victim", "shop"), &[("*.example.com", "all")]);
        world.settle();
        assert_eq!(replica_certificates(&world).contains_key("www.example.com"), is_taken, "{secret}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    /// The certificates of a site do not depend on what another one names, unless that has a certificate for the host, or neither has, and is
    /// older.
    #[test]
    fn another_object_changes_no_certificate(
        one in prop::collection::btree_map(0_usize..5, 0_usize..4, 0..4),
        other in prop::collection::btree_map(0_usize..5, 0_usize..4, 0..4),
        (is_older, on_node, is_first) in any::<(bool, bool, bool)>(),
    ) {
        let hosts = ["www.example.com", "x.example.com", "shop.tail1234.ts.net", "app.tail1234.ts.net", "*.tail1234.ts.net"];
        let secrets = ["www", "x", "also", "bad"];
        let certified = |host: usize, secret: usize| matches!((host, secret), (0, 0 | 2) | (1, 1));
        let named = |chosen: &BTreeMap<usize, usize>| chosen.iter().map(|(host, secret)| (hosts[*host], secrets[*secret])).collect::<Vec<_>>();
        let certificates = |with_other: bool| {
            let mut world = publishing(ingress());
            if on_node {
                world.tailnet = headscale();
            }
            for secret in ["www", "x"] {
                own(&mut world, secret, -1, 90);
            }
            world.own_certificates.insert("also".into(), world.own_certificates["www"].clone());
            world.own_certificates.insert("bad".into(), UserCertificate::Unusable("tls.crt is empty".into()));
            names_hosts(&mut world, ("victim", "shop"), &named(&one));
            if with_other {
                world.now += if is_older { -60 } else { 60 };
                names_hosts(&mut world, ("tenant", if is_first { "aaa" } else { "zzz" }), &named(&other));
            }
            world.settle();
            (world.config("in").routes.get("svc:shop").map(|site| site.hosts.clone()).unwrap_or_default(), replica_certificates(&world))
        };
        let ((own, without), (_, with)) = (certificates(false), certificates(true));
        for host in own.keys() {
            let number = hosts.iter().position(|named| named == host);
            let secret_of = |chosen: &BTreeMap<usize, usize>| number.and_then(|number| Some((number, *chosen.get(&number)?)));
            let rank = |(host, secret): (usize, usize), is_older: bool| (!certified(host, secret), !is_older);
            let precedes = secret_of(&other).zip(secret_of(&one)).is_some_and(|(other, one)| rank(other, is_older) < rank(one, !is_older));
            prop_assert!(precedes || with.get(host) == without.get(host), "{}: {:?} {:?}", host, without, with);
        }
    }
}

/// Rules of the group's Role.
fn role_secrets(world: &World) -> String {
    world.objects[&object(Kind::Role, "in")]["rules"].to_string()
}

#[test]
fn domain_claimed_by_a_replica_does_not_widen_the_role() {
    let mut world = publishing(ingress());
    shows(&mut world, "shop", "www");
    world.settle();
    assert!(role_secrets(&world).contains("shop.tail1234.ts.net"));
    for replica in ["in-0", "in-1"] {
        let name = json!(k8s_openapi::ByteString(b"in-0.oauth.".to_vec()));
        world.edit(&object(Kind::Secret, replica), |state| state["data"]["device_fqdn"] = name);
        world.asleep.insert(replica.into());
    }
    let foreign = object(Kind::Secret, "shop.oauth");
    let labels =
        json!({"tailscale.com/managed": "true", "tailscale.com/secret-type": "certs", "tailscale.com/parent-resource-type": "ingress"});
    let secret =
        json!({"metadata": {"name": "shop.oauth", "namespace": "tailscale", "uid": "x", "labels": labels}, "data": {"key": "eA=="}});
    world.objects.insert(foreign.clone(), secret.clone().into());
    world.rounds(5);
    let role = role_secrets(&world);
    assert!(role.contains("shop.tail1234.ts.net") && !role.contains("oauth"), "{role}");
    assert_eq!(*world.objects[&foreign], secret, "nor is it relabelled");
}

#[test]
fn role_does_not_name_secrets_of_another_group() {
    for is_managed in [true, false] {
        let mut world = publishing(ingress());
        let labels =
            json!({"tailscale.com/managed": "true", "tailscale.com/secret-type": "certs", "tailscale.com/parent-resource-type": "other"});
        let labels = if is_managed { labels } else { json!({}) };
        let secret =
            json!({"metadata": {"name": "shop.tail1234.ts.net", "namespace": "tailscale", "uid": "x", "labels": labels}, "data": {}});
        let object = object(Kind::Secret, "shop.tail1234.ts.net");
        world.objects.insert(object.clone(), secret.into());
        shows(&mut world, "shop", "www");
        let is_former = |world: &World| world.objects.get(&object).is_some_and(|secret| secret["metadata"]["uid"] == "x");
        for _ in 0..5 {
            world.round();
            assert!(!is_former(&world) || !role_secrets(&world).contains("shop.tail1234.ts.net"));
        }
        // One with labels of ours that no record has is created again; another one is an administrator's.
        assert_eq!(is_former(&world), !is_managed);
        assert_eq!(world.ready("in").2.contains("already exists"), !is_managed, "{:?}", world.ready("in"));
    }
}
