//! Certificates of advertised names, issued and user-provided: state, conditions and Events.

use k8s_openapi::jiff::Timestamp;

use super::publish::{ingress, publishing};
use super::*;
use crate::api::condition::{CERTIFIED, PUBLISHED};
use crate::model::controller::workload::observed::UserCertificate;
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
    assert!(published.starts_with("1 of 2 are not published as they ask: Ingress default/app (PartiallyAdvertised)"), "{published}");
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
