#![allow(clippy::needless_pass_by_value, reason = "a call with a literal reads better")]

use serde_json::{Value, json};

use super::*;
use crate::api::routes::{Listener, Protocol};
use crate::api::vip::{OWNERS, VipService};

const SUFFIX: &str = "tail1234.ts.net";

fn service(name: &str, spec: Value) -> Service {
    serde_json::from_value(json!({"metadata": {"namespace": "u", "name": name}, "spec": spec})).expect("a Service")
}

/// What an Ingress comes to, with three backends.
fn read(annotations: Value, spec: Value) -> Result<Wish, Vec<String>> {
    let ports = json!([{"name": "web", "port": 80}, {"name": "tls", "port": 8443, "appProtocol": "https"}, {"name": "rpc", "port": 50, "appProtocol": "kubernetes.io/h2c"}]);
    let plain = service("web", json!({"clusterIP": "10.96.0.20", "ports": ports}));
    let headless = service("headless", json!({"clusterIP": "None", "ports": [{"name": "web", "port": 80}]}));
    let external = service("external", json!({"type": "ExternalName", "externalName": "x.example", "ports": [{"port": 443}]}));
    let all = [plain, headless, external];
    let found = |namespace: &str, name: &str| all.iter().find(|service| namespace == "u" && service.metadata.name.as_deref() == Some(name));
    let object = json!({"metadata": {"namespace": "u", "name": "app", "annotations": annotations}, "spec": spec});
    let parsed = serde_json::from_value(object).expect("an Ingress");
    ingress(&parsed, &Context { suffix: SUFFIX, services: &found, certificates: &["www".to_owned()].into() })
}

fn to(service: &str, port: Value) -> Value {
    json!({"service": {"name": service, "port": port}})
}

fn site(wish: &Wish) -> &Site {
    match &wish.target {
        Target::Site(site) => site,
        Target::Addresses(_) => panic!("not a site"),
    }
}

#[test]
fn an_ingress_becomes_a_site_and_the_other_operators_serve_config() {
    let rules = json!([{"http": {"paths": [
        {"path": "/", "pathType": "Prefix", "backend": to("web", json!({"number": 80}))},
        {"path": "/rpc", "pathType": "Exact", "backend": to("web", json!({"name": "rpc"}))}]}}]);
    let spec = json!({"tls": [{"hosts": ["my-app.somewhere"]}], "rules": rules});
    let wish = read(json!({"tailscale.com/http-redirect": "true", "tailscale.com/tags": "tag:a, tag:b"}), spec).expect("valid");
    assert_eq!((wish.label.as_str(), wish.tags.len(), wish.notes.len()), ("my-app", 2, 0));
    assert_eq!(wish.ports, ["tcp:443", "tcp:80"]);
    let site = site(&wish);
    assert_eq!(site.listeners, BTreeMap::from([(80, Listener::Redirect), (443, Listener::Https)]));
    let routes: Vec<_> = site.routes.iter().map(|route| (route.path.as_str(), route.exact, route.backend.protocol)).collect();
    assert_eq!(routes, [("/", false, Protocol::Http), ("/rpc", true, Protocol::H2c)]);
    let dns = format!("my-app.{SUFFIX}");
    let handlers = json!({"/": {"Proxy": "http://10.96.0.20:80/"}, "/rpc": {"Proxy": "http://10.96.0.20:50/rpc"}});
    let redirects =
        json!({"/": {"Redirect": "301:https://${HOST}${REQUEST_URI}"}, "/rpc": {"Redirect": "301:https://${HOST}${REQUEST_URI}"}});
    let wanted = json!({"TCP": {"80": {"HTTP": true}, "443": {"HTTPS": true}},
        "Web": {format!("{dns}:443"): {"Handlers": handlers}, format!("{dns}:80"): {"Handlers": redirects}}});
    assert_eq!(json!(serve(site, &dns)), wanted);
}

#[test]
fn names_with_certificates_of_their_own_are_served_beside_it() {
    let rule = |host: &str| json!({"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": to("web", json!({"name": "tls"}))}]}});
    let tls = json!([{"hosts": ["app"]}, {"hosts": ["www.example.com"], "secretName": "www"}, {"hosts": ["bare.example.com"]}]);
    let rules = json!([rule("www.example.com"), rule("app"), rule("bare.example.com"), {"host": "app"}]);
    let wish = read(json!({}), json!({"tls": tls, "rules": rules})).expect("valid");
    let site = site(&wish);
    let dns = format!("app.{SUFFIX}");
    let hosts: Vec<_> = site.hosts.iter().map(|(name, host)| (name.as_str(), host.secret.as_str(), host.issue)).collect();
    assert_eq!(hosts, [(dns.as_str(), dns.as_str(), true), ("www.example.com", "www", false)]);
    let routes: Vec<_> = site.routes.iter().map(|route| (route.host.as_str(), route.backend.protocol)).collect();
    assert_eq!(routes, [(dns.as_str(), Protocol::Https), ("www.example.com", Protocol::Https)]);
    assert_eq!(wish.notes.len(), 2, "{:?}", wish.notes);
}

#[test]
fn one_bad_backend_takes_nothing_from_the_others() {
    let path = |path: &str, backend: Value| json!({"path": path, "pathType": "Prefix", "backend": backend});
    let bad = [
        to("none", json!({"number": 80})),
        to("web", json!({"number": 81})),
        to("external", json!({"number": 443})),
        json!({"resource": {"kind": "X", "name": "x"}}),
    ];
    let mut paths: Vec<_> = bad.iter().enumerate().map(|(at, backend)| path(&format!("/{at}"), backend.clone())).collect();
    let wrong = read(json!({}), json!({"rules": [{"http": {"paths": paths}}]})).expect_err("nothing is left");
    assert!(wrong.len() == 1 && wrong[0].contains("does not exist") && wrong[0].contains("has no port"), "{wrong:?}");
    paths.push(path("/good", to("headless", json!({"number": 80}))));
    let wish = read(json!({}), json!({"rules": [{"http": {"paths": paths}}]})).expect("one is good");
    assert_eq!((wish.notes.len(), wish.label.as_str()), (4, "u-app-ingress"));
    assert_eq!(site(&wish).routes[0].backend.address, "", "it is reached at its endpoints");
    assert!(serve(site(&wish), "x").web["x:443"].handlers.is_empty(), "which the other operator cannot");
}

#[test]
fn each_violation_is_a_sentence() {
    let backend = to("web", json!({"number": 80}));
    for (annotations, spec, says) in [
        (json!({"tailscale.com/tags": "web"}), json!({"defaultBackend": backend}), "is not a tag"),
        (json!({}), json!({"defaultBackend": backend, "tls": [{"hosts": ["A_b"]}]}), "must be a DNS label"),
        (json!({}), json!({}), "give it a rule"),
        (json!({}), json!({"rules": [{}]}), "give it a rule"),
    ] {
        let wrong = read(annotations, spec.clone()).expect_err("it is wrong");
        assert!(wrong.len() == 1 && wrong[0].contains(says), "{spec}: {wrong:?}");
    }
}

#[test]
fn a_service_is_published_by_its_addresses() {
    let read = |spec: Value| super::service(&service("web", spec));
    let both = read(json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"]})).expect("valid");
    assert_eq!(both.target, Target::Addresses(vec!["10.0.0.1".parse().expect("an IP"), "fd00::1".parse().expect("an IP")]));
    assert_eq!((both.label.as_str(), both.ports), ("u-web", vec!["do-not-validate".to_owned()]));
    for spec in [json!({"clusterIP": "None"}), json!({"type": "ExternalName"}), json!({})] {
        assert!(read(spec).expect_err("no address")[0].contains("no address"));
    }
}

fn asked() -> Asked {
    Asked { name: "svc:a".into(), tags: vec!["tag:k8s".into()], ports: vec!["tcp:443".into()], share: false, adopt: false }
}

fn me() -> Owner {
    Owner { id: "me".into(), former: vec!["old".into()], opt_in: false }
}

fn held(owners: &str) -> VipService {
    let annotations = [(OWNERS.to_owned(), owners.to_owned())].into();
    let Asked { name, tags, ports, .. } = asked();
    VipService { name, tags, ports, annotations, addrs: vec!["100.99.0.1".into()], ..VipService::default() }
}

fn refs(ids: &[&str]) -> String {
    json!({"ownerRefs": ids.iter().map(|id| json!({"operatorID": id})).collect::<Vec<_>>()}).to_string()
}

fn written(verdict: Verdict) -> VipService {
    match verdict {
        Verdict::Write { service, .. } => *service,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_service_is_made_joined_and_left_by_clusters() {
    let made = written(judge(None, &asked(), &me(), false));
    assert_eq!((made.annotations[OWNERS].as_str(), made.addrs.len()), (refs(&["me"]).as_str(), 0));
    assert_eq!(judge(Some(&held(&refs(&["me"]))), &asked(), &me(), false), Verdict::Settled);
    let joined = written(judge(Some(&held(&refs(&["them"]))), &asked(), &me(), false));
    assert_eq!((joined.annotations[OWNERS].as_str(), joined.addrs.len()), (refs(&["them", "me"]).as_str(), 1));
    let taken = written(judge(Some(&held(&refs(&["old"]))), &asked(), &me(), false));
    assert_eq!(taken.annotations[OWNERS], refs(&["me"]), "what we were called before is ours");

    assert_eq!(release(None, &me()), Release::Nothing);
    assert_eq!(release(Some(&held(&refs(&["them"]))), &me()), Release::Nothing);
    assert_eq!(release(Some(&held(&refs(&["me"]))), &me()), Release::Delete);
    let Release::Write(left) = release(Some(&joined), &me()) else { panic!("they have it still") };
    assert_eq!(*left, held(&refs(&["them"])));
}

#[test]
fn what_is_not_ours_is_left_alone() {
    let foreign = VipService { annotations: BTreeMap::new(), ..held("") };
    assert_eq!(judge(Some(&foreign), &asked(), &me(), false), Verdict::Refused(Refusal::Foreign));
    assert_eq!(judge(Some(&held("not JSON")), &Asked { adopt: true, ..asked() }, &me(), true), Verdict::Refused(Refusal::Foreign));
    assert_eq!(written(judge(Some(&foreign), &Asked { adopt: true, ..asked() }, &me(), false)).annotations[OWNERS], refs(&["me"]));
    assert_eq!(written(judge(Some(&foreign), &asked(), &me(), true)).annotations[OWNERS], refs(&["me"]), "its owners got lost");
    let alone = r#"{"ownerRefs":[{"operatorID":"them","resource":{"kind":"ProxyGroup","name":"g","uid":"u"}}]}"#;
    assert_eq!(judge(Some(&held(alone)), &asked(), &me(), false), Verdict::Refused(Refusal::Alone));
    let careful = Owner { opt_in: true, ..me() };
    let twin = held(&refs(&["them"]));
    assert_eq!(judge(Some(&twin), &asked(), &careful, false), Verdict::Refused(Refusal::Twin));
    assert!(matches!(judge(Some(&twin), &Asked { share: true, ..asked() }, &careful, false), Verdict::Write { ours: false, .. }));
}

#[test]
fn clusters_that_want_different_things_come_to_rest() {
    let other = Asked { ports: vec!["tcp:443".into(), "tcp:80".into()], tags: vec!["tag:other".into()], ..asked() };
    let them = Owner { id: "them".into(), ..Owner::default() };
    let mut service = written(judge(None, &asked(), &me(), false));
    for _ in 0..3 {
        for (asked, owner) in [(&other, &them), (&asked(), &me())] {
            if let Verdict::Write { service: written, .. } = judge(Some(&service), asked, owner, true) {
                service = *written;
            }
        }
    }
    assert_eq!((service.ports.as_slice(), service.tags.as_slice()), (other.ports.as_slice(), asked().tags.as_slice()));
    for (asked, owner) in [(&other, &them), (&asked(), &me())] {
        assert_eq!(judge(Some(&service), asked, owner, true), Verdict::Settled);
    }
}
