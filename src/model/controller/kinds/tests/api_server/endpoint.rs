//! Port and certificate of the Kubernetes API: by HTTP, with a certificate of its own, and without Tailscale Services.

use super::*;
use crate::model::controller::kinds::tests::certificates::own_for;
use crate::model::controller::workload::observed::UserCertificate;

/// A group with this endpoint.
fn with_endpoint(endpoint: Value) -> Value {
    json!({"tailyard": {"kubeAPIServer": endpoint}})
}

/// Hosts and listeners of the site.
fn listened(world: &World) -> (Value, Value) {
    let site = serde_json::to_value(&world.config("kube").routes["svc:kube"]).expect("JSON");
    (site["hosts"].clone(), site["listeners"].clone())
}

fn is_certificate_ordered(world: &World) -> bool {
    world.objects.contains_key(&object(Kind::Secret, "kube.tail1234.ts.net"))
}

#[test]
fn plain_http_needs_no_certificate() {
    let mut world = kube(with_endpoint(json!({"http": true})));
    world.hosted.no_https = true;
    world.settle();
    assert_eq!(url(&world).as_deref(), Some("http://kube.tail1234.ts.net"));
    assert_eq!(listened(&world), (json!({}), json!({"80": "http"})));
    let names = |world: &World| world.config("kube").routes["svc:kube"].api_server.as_ref().map(|site| site.names.clone());
    assert_eq!(names(&world), Some(["kube.tail1234.ts.net".to_owned()].into()), "requests for others are refused");
    assert_eq!(world.hosted.vips["svc:kube"].ports, ["tcp:80"]);
    assert!(!is_certificate_ordered(&world) && state(&world, CERTIFIED).is_none());
    assert_eq!(world.ready("kube").1, "ProxyGroupReady");
    world.hosted.no_https = false;
    world.group("kube", spec(json!({})));
    world.settle();
    assert_eq!((url(&world).as_deref(), is_certificate_ordered(&world)), (Some("https://kube.tail1234.ts.net"), true));
    assert_eq!(world.hosted.vips["svc:kube"].ports, ["tcp:443"]);
}

#[test]
fn certificate_of_its_own_replaces_that_of_the_control_plane() {
    let mut world = kube(with_endpoint(json!({"certificateSecret": "own"})));
    world.settle();
    let configured = |world: &World| world.says("kube", CONFIGURED);
    let missing = configured(&world);
    assert!(missing.0 == "False" && missing.2.contains("there is no Secret own"), "{missing:?}");
    assert_eq!((url(&world), is_certificate_ordered(&world)), (None, false));
    world.own_certificates.insert("own".into(), UserCertificate::Unlabelled);
    world.settle();
    assert!(configured(&world).2.contains("allow-ingress-tls"), "{:?}", configured(&world));
    own_for(&mut world, "own", &["other.example.com"]);
    world.settle();
    assert!(configured(&world).0 == "False" && configured(&world).2.contains("kube.tail1234.ts.net has no certificate"));
    own_for(&mut world, "own", &["kube.tail1234.ts.net"]);
    world.settle();
    assert_eq!(configured(&world).2, "2/2 proxy backends ready and advertising");
    assert_eq!(url(&world).as_deref(), Some("https://kube.tail1234.ts.net"));
    assert_eq!(listened(&world), (json!({"kube.tail1234.ts.net": {"secret": "own"}}), json!({"443": "https"})));
    let rules = world.objects[&object(Kind::Role, "kube")]["rules"].to_string();
    assert!(rules.contains("\"own\"") && !is_certificate_ordered(&world), "{rules}");
    world.group("kube", spec(with_endpoint(json!({"certificateSecret": "own", "http": true}))));
    world.settle();
    let ready = world.ready("kube");
    assert!(ready.1 == "ProxyGroupInvalid" && ready.2.contains("certificateSecret or http"), "{ready:?}");
    assert_eq!(url(&world).as_deref(), Some("https://kube.tail1234.ts.net"), "the last valid config stays");
}

#[test]
fn each_replica_has_a_name_of_its_own_without_tailscale_services() {
    let hosts = json!({"kube-0.tail1234.ts.net": {"secret": "own"}, "kube-1.tail1234.ts.net": {"secret": "own"}});
    let names = json!(["kube-0.tail1234.ts.net", "kube-1.tail1234.ts.net"]);
    for (endpoint, expected, without_tls, shown) in [
        (json!({"http": true}), (json!({}), json!({"80": "http"})), names, "http://kube-0.tail1234.ts.net"),
        (json!({"certificateSecret": "own"}), (hosts, json!({"443": "https"})), Value::Null, "https://kube-0.tail1234.ts.net"),
    ] {
        let mut world = kube(with_endpoint(endpoint.clone()));
        world.tailnet = headscale();
        own_for(&mut world, "own", &["*.tail1234.ts.net"]);
        world.settle();
        assert_eq!((url(&world).as_deref(), listened(&world)), (Some(shown), expected.clone()), "{endpoint}");
        assert_eq!(site_of(&world, "svc:kube")["names"], without_tls, "{endpoint}");
        let configured = world.says("kube", CONFIGURED);
        assert!(configured.0 == "True" && configured.2.contains("a name of its own: kube-0.tail1234.ts.net, kube-1"), "{configured:?}");
        assert_eq!((world.ready("kube").1.as_str(), world.hosted.vips.len()), ("ProxyGroupReady", 0));
        world.tailnet = TailnetState::Asking;
        world.rounds(5);
        assert_eq!((url(&world).as_deref(), listened(&world)), (Some(shown), expected), "{endpoint}: after a restart");
        world.tailnet = headscale();
        world.delete_group("kube");
        world.settle();
        assert!(world.groups.is_empty() && world.objects.is_empty(), "{:?}", world.objects.keys().collect::<Vec<_>>());
    }
}
