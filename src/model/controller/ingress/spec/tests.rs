#![allow(clippy::needless_pass_by_value, reason = "a call with a literal reads better")]

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::ingress::ingress;
use super::serve::serve;
use super::*;
use crate::api::routes::{BackendProtocol, Listener};
use crate::model::controller::policy::tenancy::Patterns;
use crate::model::ingress::cert_orders::Certificate;
use crate::model::ingress::certificate::Leaf;

mod service;

const SUFFIX: &str = "tail1234.ts.net";

fn object(name: &str, spec: Value) -> Service {
    serde_json::from_value(json!({"metadata": {"namespace": "u", "name": name}, "spec": spec})).expect("a Service")
}

/// Parses an Ingress with three backends.
fn read(annotations: Value, spec: Value) -> Result<PublishSpec, Vec<String>> {
    read_in(SUFFIX, annotations, spec)
}

/// Parses it in a tailnet of this domain.
fn read_in(suffix: &str, annotations: Value, spec: Value) -> Result<PublishSpec, Vec<String>> {
    read_by((suffix, true), annotations, spec)
}

/// Parses it. `issues`: whether the control plane issues the certificates of the domain.
fn read_by((suffix, issues): (&str, bool), annotations: Value, spec: Value) -> Result<PublishSpec, Vec<String>> {
    let ports = json!([{"name": "web", "port": 80}, {"name": "tls", "port": 8443, "appProtocol": "https"}, {"name": "rpc", "port": 50, "appProtocol": "kubernetes.io/h2c"}]);
    let plain = object("web", json!({"clusterIP": "10.96.0.20", "ports": ports}));
    let headless = object("headless", json!({"clusterIP": "None", "ports": [{"name": "web", "port": 80}]}));
    let external = object("external", json!({"type": "ExternalName", "externalName": "x.example", "ports": [{"port": 443}]}));
    let all: BTreeMap<_, _> =
        [plain, headless, external].map(|service| (service.metadata.name.clone(), BackendService::from(&service))).into();
    let found = |namespace: &str, name: &str| all.get(&Some(name.to_owned())).filter(|_| namespace == "u");
    let object = json!({"metadata": {"namespace": "u", "name": "app", "annotations": annotations}, "spec": spec});
    let parsed = serde_json::from_value(object).expect("an Ingress");
    let day = |day: i64| Timestamp::from_second(day * 24 * 60 * 60).expect("a time");
    let between = |from, until, name: &str| {
        let certificate = Certificate { id: String::new(), from: day(from), until: day(until) };
        UserCertificate::Leaf(Leaf { certificate, names: vec![name.to_owned()] })
    };
    let own = [
        ("www", between(0, 90, "www.example.com")),
        ("other", between(0, 90, "*.other.example")),
        ("early", between(4, 90, "www.example.com")),
        ("ending", between(-80, 10, "www.example.com")),
        ("ended", between(-90, 2, "www.example.com")),
        ("broken", UserCertificate::Unusable("tls.crt or tls.key is empty".into())),
        ("unlabelled", UserCertificate::Unlabelled),
        ("unread", UserCertificate::Unread),
        ("theirs", between(0, 90, "www.example.com")),
        ("ours", between(0, 90, "www.example.com")),
    ];
    let certificates = &own.map(|(name, own)| (name.to_owned(), own)).into();
    let reserved = [("theirs", "v, uu-*"), ("ours", "v,u*")].map(|(secret, those)| (secret.to_owned(), Patterns::parse(those)));
    let reserved = &reserved.into();
    ingress(&parsed, &SpecContext { suffix, issues, device: None, services: &found, namespace: "ts", certificates, reserved, now: day(3) })
}

fn to(service: &str, port: Value) -> Value {
    json!({"service": {"name": service, "port": port}})
}

fn site(published: &PublishSpec) -> &Site {
    match &published.target {
        PublishTarget::Site(site) => site,
        PublishTarget::Whole(_) => panic!("not a site"),
    }
}

#[test]
fn ingress_becomes_a_site_and_a_serve_config() {
    let rules = json!([{"http": {"paths": [
        {"path": "/", "pathType": "Prefix", "backend": to("web", json!({"number": 80}))},
        {"path": "/rpc", "pathType": "Exact", "backend": to("web", json!({"name": "rpc"}))}]}}]);
    let spec = json!({"tls": [{"hosts": ["my-app.somewhere"]}], "rules": rules});
    let published = read(json!({"tailscale.com/http-redirect": "true", "tailscale.com/tags": "tag:a, tag:b"}), spec).expect("valid");
    assert_eq!((published.label.as_str(), published.tags.len(), published.notes.texts().len()), ("my-app", 2, 0));
    assert_eq!(published.ports, ["tcp:443", "tcp:80"]);
    let site = site(&published);
    assert_eq!(site.listeners, BTreeMap::from([(80, Listener::Redirect), (443, Listener::Https)]));
    let routes: Vec<_> = site.routes.iter().map(|route| (route.path.as_str(), route.exact, route.backend.protocol)).collect();
    assert_eq!(routes, [("/", false, BackendProtocol::Http), ("/rpc", true, BackendProtocol::H2c)]);
    let dns = format!("my-app.{SUFFIX}");
    let handlers = json!({"/": {"Proxy": "http://10.96.0.20:80/"}, "/rpc": {"Proxy": "http://10.96.0.20:50/rpc"}});
    let redirects =
        json!({"/": {"Redirect": "301:https://${HOST}${REQUEST_URI}"}, "/rpc": {"Redirect": "301:https://${HOST}${REQUEST_URI}"}});
    let wanted = json!({"TCP": {"80": {"HTTP": true}, "443": {"HTTPS": true}},
        "Web": {format!("{dns}:443"): {"Handlers": handlers}, format!("{dns}:80"): {"Handlers": redirects}}});
    assert_eq!(json!(serve(site, &dns)), wanted);
}

#[test]
fn hosts_with_user_certificates_are_served_beside_the_tailnet_name() {
    let rule = |host: &str| json!({"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": to("web", json!({"name": "tls"}))}]}});
    let tls = json!([{"hosts": ["app"]}, {"hosts": ["www.example.com"], "secretName": "www"}, {"hosts": ["bare.example.com"]}]);
    let rules = json!([rule("www.example.com"), rule("app"), rule("bare.example.com"), {"host": "app"}]);
    let published = read(json!({}), json!({"tls": tls, "rules": rules})).expect("valid");
    let site = site(&published);
    let dns = format!("app.{SUFFIX}");
    let hosts: Vec<_> = site.hosts.iter().map(|(name, host)| (name.as_str(), host.secret.as_str(), host.issue)).collect();
    assert_eq!(hosts, [(dns.as_str(), dns.as_str(), true), ("www.example.com", "www", false)]);
    let routes: Vec<_> = site.routes.iter().map(|route| (route.host.as_str(), route.backend.protocol)).collect();
    assert_eq!(routes, [(dns.as_str(), BackendProtocol::Https), ("www.example.com", BackendProtocol::Https)]);
    assert_eq!(published.notes.texts().len(), 2, "{:?}", published.notes);
}

#[test]
fn invalid_backend_does_not_affect_the_others() {
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
    let published = read(json!({}), json!({"rules": [{"http": {"paths": paths}}]})).expect("one is good");
    assert_eq!((published.notes.texts().len(), published.label.as_str()), (4, "u-app-ingress"));
    assert_eq!(site(&published).routes[0].backend.address, "", "it is reached at its endpoints");
    assert!(serve(site(&published), "x").web["x:443"].handlers.is_empty(), "which the other operator cannot");
}

#[test]
fn faults_of_an_ingress_are_few_and_short_whatever_their_number_and_length() {
    let backend = || to("web", json!({"number": 80}));
    let rules = |host: fn(usize) -> String, path: fn(usize) -> String, backend: Value| {
        let paths = |number| json!([{"path": path(number), "pathType": "Prefix", "backend": backend}]);
        let rule = |number| json!({"host": host(number), "http": {"paths": paths(number)}});
        json!({"defaultBackend": to("web", json!({"number": 80})), "rules": (0..10_000).map(rule).collect::<Vec<_>>()})
    };
    let tls = |secret: Value| {
        let entry = |number| json!({"hosts": [format!("h{number}.{}example.com", "a.".repeat(100))], "secretName": secret});
        json!({"defaultBackend": backend(), "tls": (0..4_999).map(entry).collect::<Vec<_>>()})
    };
    let tags = |tags: String| json!({"tailscale.com/tags": tags});
    let cases = [
        ("hosts without certificate", json!({}), rules(|number| format!("h{number}.example.com"), |_| "/".into(), backend()), true),
        ("other labels", json!({}), rules(|number| format!("h{number}"), |_| "/".into(), backend()), true),
        ("paths without slash", json!({}), rules(|_| String::new(), |number| number.to_string(), backend()), true),
        ("long path", json!({}), rules(|_| String::new(), |_| "x".repeat(300), backend()), true),
        ("missing Services", json!({}), rules(|_| String::new(), |number| format!("/{number}"), to("none", json!({"number": 80}))), true),
        ("no Secret", json!({}), tls(json!("none")), true),
        ("no Secret named", json!({}), tls(Value::Null), true),
        ("a Secret of others", json!({}), tls(json!("theirs")), true),
        ("certificates of other hosts", json!({}), tls(json!("ending")), true),
        ("tags", tags("a,".repeat(100_000)), json!({"defaultBackend": backend()}), false),
        ("a long tag", tags("é".repeat(100_000)), json!({"defaultBackend": backend()}), false),
        (
            "no route",
            tags("a,".repeat(100_000)),
            json!({"rules": rules(|_| String::new(), |_| "x".repeat(300), backend())["rules"]}),
            false,
        ),
    ];
    for (case, annotations, spec, is_served) in cases {
        let parsed = read(annotations, spec);
        assert_eq!(parsed.is_ok(), is_served, "{case}");
        let texts = parsed.map_or_else(|wrong| wrong, |published| [published.notes.texts(), published.warnings.texts()].concat());
        let bytes = texts.iter().map(String::len).sum::<usize>();
        assert!((1..=22).contains(&texts.len()) && bytes < 32 * 1024, "{case}: {} texts of {bytes} bytes", texts.len());
    }
}

#[test]
fn each_violation_has_a_message() {
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
fn user_certificate_is_validated_for_its_host_alone() {
    let backend = to("web", json!({"number": 80}));
    let cases = [
        ("www", "www.example.com", true, None),
        ("other", "www.other.example", true, None),
        ("unread", "www.example.com", true, None),
        ("www", "a.example.com", true, Some("is for www.example.com, and not for a.example.com")),
        ("broken", "a.example.com", true, Some("cannot be used, as tls.crt or tls.key is empty")),
        ("unlabelled", "a.example.com", false, Some("lacks the label tailyard.io/allow-ingress-tls=true")),
        ("theirs", "www.example.com", false, Some("annotation tailyard.io/namespaces does not name this namespace")),
        ("ours", "www.example.com", true, None),
        ("none", "a.example.com", false, Some("no Secret none in the namespace ts of the proxies")),
        ("early", "www.example.com", true, Some("not valid before 1970-01-05T00:00:00Z")),
        ("ended", "www.example.com", true, Some("in Secret ts/ended ended at 1970-01-03T00:00:00Z")),
        ("ending", "www.example.com", true, Some("that ends at 1970-01-11T00:00:00Z. Renew it")),
    ];
    for (secret, host, named, says) in cases {
        let tls = json!([{"hosts": ["app"]}, {"hosts": [host], "secretName": secret}]);
        let published = read(json!({}), json!({"tls": tls, "defaultBackend": backend})).expect("the rest of it is served");
        assert_eq!(
            (site(&published).hosts.contains_key(host), published.flaws.len()),
            (named, usize::from(says.is_some())),
            "{secret} {host}"
        );
        let (expected, other) = if secret == "ending" {
            (published.warnings.texts(), published.notes.texts())
        } else {
            (published.notes.texts(), published.warnings.texts())
        };
        assert_eq!((expected.len(), other.len()), (published.flaws.len(), 0), "{secret} {host}");
        assert!(says.is_none_or(|says| expected[0].contains(says)), "{secret} {host}: {expected:?}");
    }
}

#[test]
fn names_of_the_tailnet_are_served_only_to_the_object_that_has_them() {
    let rule = |host: &str| json!([{"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": to("web", json!({"number": 80}))}]}}]);
    let within = |labels: &str| format!("{labels}.{SUFFIX}");
    // host, domain, whether its certificates are issued → whether the host is served with a certificate of the user, number of notes
    let cases = [
        (within("shop"), SUFFIX, true, false, 1),
        (within("SHOP"), SUFFIX, true, false, 1),
        (within("*"), SUFFIX, true, false, 1),
        (within("a.shop"), SUFFIX, true, false, 1),
        (within("app"), SUFFIX, true, false, 0),
        (within("shop").replace(SUFFIX, &format!("x{SUFFIX}")), SUFFIX, true, true, 0),
        (format!("{SUFFIX}.example"), SUFFIX, true, true, 0),
        (within("shop"), SUFFIX, false, true, 0),
        (within("shop"), "", true, true, 0),
    ];
    for (host, suffix, issues, served, notes) in cases {
        let tls = json!([{"hosts": ["app"]}, {"hosts": [host], "secretName": "unread"}]);
        let spec = json!({"tls": tls, "rules": rule(&host), "defaultBackend": to("web", json!({"number": 80}))});
        let published = read_by((suffix, issues), json!({}), spec).expect("the rest of it is served");
        let hosts = &site(&published).hosts;
        assert_eq!(
            hosts.contains_key(&host.to_ascii_lowercase()) && !hosts[&host.to_ascii_lowercase()].issue,
            served,
            "{host} {suffix} {issues}"
        );
        let refusal = published.notes.texts().iter().filter(|note| note.contains("it is in the domain of the tailnet")).count();
        assert_eq!((refusal, published.flaws.len()), (notes, 0), "{host} {suffix}: {:?}", published.notes);
        let route = published.notes.texts().iter().any(|note| note.contains("the rule for host"));
        assert_eq!(route, notes > 0, "{host} {suffix}: {:?}", published.notes);
    }
}

#[test]
fn whole_name_in_a_rule_is_the_own_name_also_before_the_domain_is_known() {
    let rule = |host: &str| json!([{"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": to("web", json!({"number": 80}))}]}}]);
    let garden = json!([{"hosts": ["garden"]}]);
    let whole = format!("garden.{SUFFIX}");
    // domain, spec.tls, host of the rule → host of the route
    let served = [
        ("", garden.clone(), whole.as_str(), "garden"),
        ("", garden.clone(), "garden", "garden"),
        ("", Value::Null, "u-app-ingress.tail1234.ts.net", "u-app-ingress"),
        (SUFFIX, garden.clone(), whole.as_str(), whole.as_str()),
        (SUFFIX, json!([{"hosts": [whole]}]), whole.as_str(), whole.as_str()),
    ];
    for (suffix, tls, host, routed) in served {
        let published = read_in(suffix, json!({}), json!({"tls": tls, "rules": rule(host)})).expect(host);
        assert_eq!((site(&published).routes[0].host.as_str(), published.notes.texts().len()), (routed, 0), "{suffix} {host}");
    }
    let refused = [
        (
            "",
            garden.clone(),
            "other.tail1234.ts.net",
            "its name here is garden, and spec.tls names no certificate for other.tail1234.ts.net.",
        ),
        (SUFFIX, garden, "garden.tail9.ts.net", "and spec.tls names no certificate for garden.tail9.ts.net."),
        (SUFFIX, Value::Null, "my-service", "Set spec.tls[0].hosts to [my-service] to name it so."),
        ("", Value::Null, "my-service", "its name here is u-app-ingress. Set spec.tls[0].hosts to [my-service] to name it so."),
    ];
    for (suffix, tls, host, why) in refused {
        let wrong = read_in(suffix, json!({}), json!({"tls": tls, "rules": rule(host)})).expect_err(host).join(" ");
        assert!(wrong.contains(why), "{suffix} {host}: {wrong}");
    }
}
