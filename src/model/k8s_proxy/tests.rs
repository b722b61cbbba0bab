use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::fault::K8sProxyFault;
use super::reference::K8sProxyReference;
use super::*;
use crate::api::routes;
use crate::model::base::netmap::{NetMap, SelfNode};
use crate::model::front_end::vhosts;
use crate::model::settings::{Flags, K8sProxySettings, K8sProxySource, Settings, StateOut, TailnetMode};
use crate::model::tailnet::supervise::conffile;

/// The document that the Tailscale operator 1.104.7 writes for replica 0 of the group `kube`.
fn document() -> Value {
    json!({"Version": "v1alpha1", "AuthKey": "tskey-auth-k1", "State": "kube:kube-0", "LogLevel": "info",
        "App": "k8s-operator-proxygroup-kube-apiserver", "ServerURL": "https://controlplane.tailscale.com", "LocalPort": 9002,
        "MetricsEnabled": true, "HealthCheckEnabled": true, "Hostname": "kube-0", "AcceptRoutes": false,
        "AdvertiseServices": ["svc:kube"], "StaticEndpoints": ["203.0.113.7:31667"],
        "APIServerProxy": {"Enabled": true, "Mode": "auth", "ServiceName": "svc:kube", "IssueCerts": true}})
}

fn parsed(document: &Value) -> Result<K8sProxyConfig, String> {
    K8sProxyConfig::parse(document.to_string().as_bytes()).map_err(|fault| fault.to_string())
}

fn config() -> K8sProxyConfig {
    parsed(&document()).expect("valid")
}

/// The document with another value of a field, or of a field of the section.
fn with(path: &str, value: Value) -> Value {
    let mut document = document();
    match path.split_once('.') {
        Some((section, field)) => document[section][field] = value,
        None => document[path] = value,
    }
    document
}

#[test]
fn every_field_of_the_operators_document_is_read() {
    let service = |text: &str| TailscaleServiceName::parse(text).expect("a name");
    let expected = K8sProxyConfig {
        auth_key: Some(Secret::new("tskey-auth-k1")),
        state: KubernetesName::parse("kube-0"),
        log_level: LogLevel::Info,
        app: Some("k8s-operator-proxygroup-kube-apiserver".into()),
        control_url: ControlUrl::parse("https://controlplane.tailscale.com"),
        local_address: None,
        local_port: 9002,
        metrics: true,
        health_checks: true,
        hostname: Some("kube-0".into()),
        accept_routes: false,
        advertises: [service("svc:kube")].into(),
        api_server: ApiServerSection {
            enabled: true,
            mode: ApiServerMode::Auth,
            service: Some(service("svc:kube")),
            issues_certificates: true,
        },
        static_endpoints: vec!["203.0.113.7:31667".parse().expect("an endpoint")],
    };
    assert_eq!(config(), expected);
    let least = parsed(&json!({"Version": "v1alpha1"})).expect("valid");
    assert_eq!(least.api_server, ApiServerSection { mode: ApiServerMode::Auth, ..ApiServerSection::default() });
    assert_eq!((least.local_port, least.health_checks, least.metrics, least.state), (9002, false, false, None));
}

#[test]
fn values_of_each_field_are_read_in_all_their_forms() {
    let read = |path: &str, value: Value| parsed(&with(path, value)).expect("valid");
    for (text, level) in [("debug", LogLevel::Debug), ("WARN", LogLevel::Warn), ("fatal", LogLevel::Error), ("", LogLevel::Info)] {
        assert_eq!(read("LogLevel", json!(text)).log_level, level, "{text}");
    }
    for text in ["0.0.0.0", "::", "[::]", "10.0.0.5"] {
        assert!(read("LocalAddr", json!(text)).local_address.is_some(), "{text}");
    }
    for (text, is_secret) in [("kube:kube-0", true), ("mem:", false), ("", false)] {
        assert_eq!(read("State", json!(text)).state.is_some(), is_secret, "{text}");
    }
    assert_eq!(read("APIServerProxy.Mode", json!("noauth")).api_server.mode, ApiServerMode::NoAuth);
    assert_eq!(read("AdvertiseServices", json!([])).advertises.len(), 0);
    for path in ["AuthKey", "State", "LogLevel", "LocalPort", "AdvertiseServices", "StaticEndpoints", "APIServerProxy", "AcceptRoutes"] {
        assert!(parsed(&with(path, Value::Null)).is_ok(), "{path}: null is unset");
    }
}

#[test]
fn letter_case_comments_unknown_fields_and_repeated_fields_are_as_in_go() {
    let text = br#"// by hand
        {"version": "v1alpha1", "HOSTNAME": "first", "hostName": "kube-1", "New": {"a": [1, null]}, /* later */
         "apiserverproxy": {"enabled": true, "servicename": "svc:k", "Later": [{}]},}"#;
    let config = K8sProxyConfig::parse(text).expect("valid");
    assert_eq!((config.hostname.as_deref(), config.api_server.enabled), (Some("kube-1"), true));
    assert_eq!(config.api_server.service.expect("a name").as_str(), "svc:k");
}

#[test]
fn version_is_v1alpha1_or_one_with_an_object_of_that_name() {
    let nested = |version: &str| parsed(&json!({"Version": version, "Hostname": "a", "v1alpha1": {"Hostname": "b"}}));
    assert_eq!(nested("v1beta1").expect("valid").hostname.as_deref(), Some("b"), "the object alone counts");
    assert_eq!(nested("v1alpha1"), Err(K8sProxyFault::TwoVersions.to_string()));
    assert_eq!(parsed(&json!({"Hostname": "a"})), Err(K8sProxyFault::NoVersion.to_string()));
    assert_eq!(parsed(&json!({"v1alpha1": {"Hostname": "b"}})), Err(K8sProxyFault::NoVersion.to_string()));
    let later = parsed(&json!({"Version": "v2".repeat(100)})).expect_err("another version");
    assert!(later.starts_with("Version is \"v2v2") && later.len() < 120, "{later}");
}

#[test]
fn invalid_values_are_rejected_with_the_name_of_their_field_and_without_the_value() {
    let (long, many) = ("a".repeat(5000), vec!["svc:kube"; 65]);
    let cases: Vec<(&str, Value)> = vec![
        ("AuthKey", json!(7)),
        ("AuthKey", json!("file:/etc/shadow")),
        ("AuthKey", json!("tskey secret")),
        ("AuthKey", json!(long)),
        ("State", json!("kube:../other")),
        ("State", json!("kube:Secret")),
        ("State", json!("/var/lib/state")),
        ("LogLevel", json!("debug,hyper=trace")),
        ("App", json!("k8s operator")),
        ("App", json!(long)),
        ("ServerURL", json!("file:///etc/passwd")),
        ("ServerURL", json!("https://user:secret@control.example")),
        ("ServerURL", json!("https://")),
        ("LocalAddr", json!("localhost")),
        ("LocalAddr", json!("[10.0.0.1]")),
        ("LocalPort", json!(0)),
        ("LocalPort", json!(65536)),
        ("LocalPort", json!(1.5)),
        ("LocalPort", json!("9002")),
        ("MetricsEnabled", json!("true")),
        ("HealthCheckEnabled", json!(1)),
        ("Hostname", json!("kube-0\n")),
        ("Hostname", json!(long)),
        ("AcceptRoutes", json!("no")),
        ("AdvertiseServices", json!("svc:kube")),
        ("AdvertiseServices", json!(["kube"])),
        ("AdvertiseServices", json!(["svc:"])),
        ("AdvertiseServices", json!(["svc:a.b"])),
        ("AdvertiseServices", json!([7])),
        ("AdvertiseServices", json!(many)),
        ("StaticEndpoints", json!(["203.0.113.7"])),
        ("StaticEndpoints", json!(["203.0.113.7:0"])),
        ("StaticEndpoints", json!(["0.0.0.0:1"])),
        ("StaticEndpoints", json!({})),
        ("APIServerProxy", json!([])),
        ("APIServerProxy.Enabled", json!("true")),
        ("APIServerProxy.Mode", json!("AUTH")),
        ("APIServerProxy.Mode", json!("")),
        ("APIServerProxy.Mode", json!(true)),
        ("APIServerProxy.ServiceName", json!("svc:../../x")),
        ("APIServerProxy.ServiceName", json!("kube")),
        ("APIServerProxy.IssueCerts", json!(0)),
    ];
    for (path, value) in cases {
        let fault = parsed(&with(path, value.clone())).expect_err(path);
        assert!(fault.starts_with(&format!("{path} must be ")), "{path}={value}: {fault}");
        assert!(!fault.contains("secret") && !fault.contains("shadow") && fault.len() < 120, "{fault}");
    }
    let nested = parsed(&json!({"Version": "v2", "v1alpha1": {"LocalPort": -1}})).expect_err("invalid");
    assert!(nested.starts_with("v1alpha1.LocalPort must be "), "{nested}");
}

#[test]
fn hostile_texts_are_rejected() {
    let deep = "[".repeat(MAX_BYTES);
    let nested = format!("{{\"Version\":\"v1alpha1\",\"a\":{}", "{\"a\":".repeat(10_000));
    let large = format!("{{\"Version\":\"v1alpha1\"}}{}", " ".repeat(MAX_BYTES));
    let reason = |text: &[u8]| K8sProxyConfig::parse(text).map_err(|fault| fault.reason());
    for text in [
        r#"{"AuthKey":"tskey-1" "#,
        r#"{"AuthKey":"tskey-1\x"}"#,
        r#"{"AuthKey":"tskey-1\uZZ"}"#,
        r#"{"AuthKey":tskey-1}"#,
        r#"{"AuthKey":"tskey-1"#,
    ] {
        let fault = K8sProxyConfig::parse(text.as_bytes()).expect_err("invalid").to_string();
        assert!(fault.starts_with("it is not HuJSON") && !fault.contains("tskey"), "{fault}");
    }
    for (text, expected) in [
        (&b""[..], "Shape"),
        (b"null", "Shape"),
        (b"[]", "Shape"),
        (b"{\"Version\":\"v1alpha1\"", "Syntax"),
        (b"{\"Version\":\"v1alpha1\"} {}", "Syntax"),
        (b"\xff{}", "Syntax"),
        (b"{}", "Version"),
        (deep.as_bytes(), "Syntax"),
        (nested.as_bytes(), "Syntax"),
        (large.as_bytes(), "TooLarge"),
    ] {
        assert_eq!(reason(text), Err(expected), "{:?}", String::from_utf8_lossy(&text[..text.len().min(60)]));
    }
}

#[test]
fn reference_is_a_secret_or_a_file() {
    let secret = |namespace: &str, name: &str| K8sProxyReference::Secret {
        namespace: KubernetesName::parse(namespace).expect("a name"),
        name: KubernetesName::parse(name).expect("a name"),
    };
    assert_eq!(K8sProxyReference::parse("kube:tailscale/kube-0-config"), Some(secret("tailscale", "kube-0-config")));
    assert_eq!(K8sProxyReference::parse("/etc/proxy/config.hujson"), Some(K8sProxyReference::File("/etc/proxy/config.hujson".into())));
    let long = "a".repeat(10_000);
    for text in
        ["", "kube:", "kube:name", "kube:/name", "kube:ns/", "kube:ns/a/b", "kube:Ns/name", "kube:ns/$(POD_NAME)-config", "/etc/", &long]
    {
        assert_eq!(K8sProxyReference::parse(text), None, "{text}");
    }
}

/// Environment of a Pod of the group, by the Tailscale operator.
fn pod() -> BTreeMap<String, String> {
    let pairs = [
        ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
        ("KUBERNETES_SERVICE_PORT_HTTPS", "443"),
        ("POD_NAME", "kube-0"),
        ("POD_UID", "7d5c"),
        ("POD_IP", "10.0.0.5"),
        ("POD_IPS", "10.0.0.5,fd00::5"),
        ("TS_K8S_PROXY_CONFIG", "kube:tailscale/kube-0-config"),
        ("TS_DEBUG_ACME_FORCE_RENEWAL", "true"),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn settings(env: &BTreeMap<String, String>, config: K8sProxyConfig) -> Settings {
    let source = K8sProxySource::read(env, &Flags::proxy()).expect("valid").expect("a reference");
    let document = K8sProxySettings { reference: source.reference, config: Arc::new(config) };
    Settings::of_k8s_proxy(env, &Flags::proxy(), document).expect("valid")
}

#[test]
fn settings_follow_from_the_pod_and_the_document() {
    let read = settings(&pod(), config());
    let TailnetMode::Tailscaled(daemon) = &read.tailnet else { panic!("no tailscaled") };
    assert!(daemon.userspace && daemon.pod_dir().is_some() && !read.forwards() && read.limits_advertising() && !read.auto_advertise);
    assert_eq!(daemon.env["TS_INTERNAL_APP"], "k8s-operator-proxygroup-kube-apiserver");
    assert_eq!(read.state, StateOut::Secret("kube-0".into()));
    let http = read.http.expect("health checks");
    assert_eq!((http.address.to_string().as_str(), http.metrics), ("10.0.0.5:9002", true));
    assert_eq!((read.log.filter.as_str(), read.pod.name.as_deref(), read.connector), ("info", Some("kube-0"), false));

    let quiet = parsed(&json!({"Version": "v1alpha1", "Hostname": "solo", "App": "k8s-operator-connector-resource"})).expect("valid");
    let mut env = pod();
    env.remove("POD_NAME");
    let read = settings(&env, quiet);
    assert_eq!((read.http, read.state, read.connector), (None, StateOut::None, false), "nothing that the document does not enable");
    assert_eq!(read.pod.name.as_deref(), Some("solo"));
}

#[test]
fn variables_of_a_class_count_where_the_document_says_something_else() {
    let mut env = pod();
    env.extend(
        [("TAILYARD_LOG_FILTER", "debug"), ("TS_LOCAL_ADDR_PORT", "[::]:9100")].map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    let read = settings(&env, config());
    assert_eq!((read.log.filter.as_str(), read.http.expect("health checks").address.port()), ("debug", 9100));
    env.remove("KUBERNETES_SERVICE_HOST");
    let faults = K8sProxySource::read(&env, &Flags::proxy()).expect_err("outside a cluster").to_string();
    assert_eq!(faults, "TS_K8S_PROXY_CONFIG needs a cluster (KUBERNETES_SERVICE_HOST is unset)");
    env.insert("TS_K8S_PROXY_CONFIG".into(), "kube:kube-0".into());
    let faults = K8sProxySource::read(&env, &Flags::proxy()).expect_err("no namespace").to_string();
    assert!(faults.contains("is not kube:NAMESPACE/SECRET, or the path of a file"), "{faults}");
    env.remove("TS_K8S_PROXY_CONFIG");
    assert_eq!(K8sProxySource::read(&env, &Flags::proxy()), Ok(None));
}

#[test]
fn tailscaled_config_has_the_fields_of_the_document() {
    let text = translation::daemon_config(&config());
    let file = conffile::check(&text).expect("a config of tailscaled");
    assert_eq!((file.auth_key, file.locked, file.shields_up), (Some(Secret::new("tskey-auth-k1")), false, false));
    assert_eq!(file.services, ["svc:kube".to_owned()].into());
    let written: Value = serde_json::from_slice(&text).expect("JSON");
    let expected = json!({"Version": "alpha0", "Locked": false, "AcceptDNS": false, "AcceptRoutes": false, "AuthKey": "tskey-auth-k1",
        "Hostname": "kube-0", "ServerURL": "https://controlplane.tailscale.com", "AdvertiseServices": ["svc:kube"],
        "StaticEndpoints": ["203.0.113.7:31667"]});
    assert_eq!(written, expected);
    let least = parsed(&json!({"Version": "v1alpha1"})).expect("valid");
    assert!(!String::from_utf8(translation::daemon_config(&least)).expect("text").contains("AuthKey"), "no key is no field");
}

#[test]
fn virtual_host_has_the_name_of_the_service_in_the_domain_of_the_tailnet() {
    let site = |config: &K8sProxyConfig, domain: Option<&str>| {
        let values = translation::serve_values(config, domain)?;
        let read = vhosts::read(values.get(routes::KEY).map(Vec::as_slice), None).expect("readable");
        assert!(read.faults.is_empty(), "{:?}", read.faults);
        Some(read.sites)
    };
    let sites = site(&config(), Some("Tail1234.ts.net")).expect("a domain");
    let kube = &sites["svc:kube"];
    let expected = routes::Host { secret: "kube.tail1234.ts.net".into(), issue: true };
    assert_eq!(kube.hosts, [("kube.tail1234.ts.net".to_owned(), expected)].into());
    assert_eq!(kube.listeners, [(443, routes::Listener::Https)].into());
    let api_server = kube.api_server.as_ref().expect("the API server");
    assert!(api_server.mode.impersonates() && api_server.permit_all_system && !api_server.send_extra);

    assert_eq!(site(&config(), None), None, "no name before the domain is known");
    for (path, value) in
        [("APIServerProxy.Enabled", json!(false)), ("APIServerProxy.ServiceName", json!("")), ("APIServerProxy", Value::Null)]
    {
        let config = parsed(&with(path, value)).expect("valid");
        assert_eq!(site(&config, None).map(|sites| sites.len()), Some(0), "{path}: nothing is served");
    }
}

#[test]
fn domain_is_the_nodes_name_without_its_first_label() {
    for (name, expected) in [("kube-0.tail1234.ts.net.", Some("tail1234.ts.net")), ("kube-0.", None), ("", None), ("kube-0", None)] {
        let netmap = NetMap { node: Some(SelfNode { name: name.into(), ..SelfNode::default() }), ..NetMap::default() };
        assert_eq!(netmap.domain(), expected, "{name:?}");
    }
    assert_eq!(NetMap::default().domain(), None);
}

#[test]
fn reload_applies_what_needs_no_restart_and_names_the_rest() {
    let first = config();
    let mut newer = with("APIServerProxy", json!({"Enabled": true, "Mode": "noauth", "ServiceName": "svc:api", "IssueCerts": false}));
    newer
        .as_object_mut()
        .expect("an object")
        .extend([("AuthKey".to_owned(), json!("tskey-auth-k2")), ("LogLevel".to_owned(), json!("debug"))]);
    let newer = parsed(&newer).expect("valid");
    assert_eq!(first.unapplied(&newer), ["LogLevel", "APIServerProxy.Mode", "APIServerProxy.IssueCerts"]);
    let reloaded = first.reloaded(newer);
    assert_eq!((&reloaded.api_server.mode, reloaded.api_server.issues_certificates), (&ApiServerMode::Auth, true));
    assert_eq!(reloaded.api_server.service.as_ref().expect("a name").as_str(), "svc:api");
    assert_eq!(reloaded.auth_key, Some(Secret::new("tskey-auth-k2")));
    assert_eq!(first.unapplied(&first), [""; 0]);
}

#[test]
fn debug_output_has_no_auth_key() {
    assert!(!format!("{:?}", config()).contains("k1"));
}

proptest! {
    #[test]
    fn accepted_documents_are_configs_of_tailscaled_and_of_the_front_end(
        field in prop::sample::select(vec!["AuthKey", "State", "Hostname", "App", "ServerURL", "LocalAddr", "LogLevel", "APIServerProxy.ServiceName"]),
        text in "(svc:|kube:|https://)?[ -~\u{0}-\u{1f}é]{0,80}",
    ) {
        if let Ok(config) = parsed(&with(field, json!(text))) {
            prop_assert!(conffile::check(&translation::daemon_config(&config)).is_ok());
            let values = translation::serve_values(&config, Some("tail.ts.net")).expect("a domain");
            let read = vhosts::read(values.get(routes::KEY).map(Vec::as_slice), None).expect("readable");
            prop_assert!(read.faults.is_empty());
            settings(&pod(), config);
        }
    }
}
