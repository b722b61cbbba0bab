#![allow(clippy::needless_pass_by_value, reason = "a call with a literal reads better")]

use http::Request;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::api::proxygroup::ApiServerMode;
use crate::model::api_server::base_path::BasePath;
use crate::model::api_server::route;

use super::*;

const AUTH: ApiServerSite = ApiServerSite {
    mode: ApiServerMode::Auth,
    names: BTreeSet::new(),
    permit_system: BTreeSet::new(),
    permit_all_system: false,
    send_extra: false,
};
const NOAUTH: ApiServerSite = ApiServerSite {
    mode: ApiServerMode::NoAuth,
    names: BTreeSet::new(),
    permit_system: BTreeSet::new(),
    permit_all_system: false,
    send_extra: false,
};

/// WhoIs of a user's device or, with tags, of a tagged node, with these rules.
fn whois(tags: &[&str], rules: Value) -> WhoIs {
    serde_json::from_value(json!({
        "Node": {"Name": "node.tail.ts.net.", "Tags": tags},
        "UserProfile": {"LoginName": "alice@example.com"},
        "CapMap": {"tailscale.com/cap/kubernetes": rules},
    }))
    .expect("an answer")
}

fn caller(whois: &WhoIs, site: ApiServerSite) -> Result<Caller, ApiServerRefusal> {
    caller_in(Some("tail.ts.net"), whois, site)
}

fn caller_in(domain: Option<&str>, whois: &WhoIs, site: ApiServerSite) -> Result<Caller, ApiServerRefusal> {
    Caller::of(whois, ("100.64.0.9".parse().expect("an address"), domain), &site)
}

fn alice() -> Caller {
    caller(&whois(&[], json!([{"impersonate": {"groups": ["dev"]}}])), AUTH).expect("a caller")
}

fn forwarded(caller: &Caller, sent: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in sent {
        headers.append(HeaderName::from_bytes(name.as_bytes()).expect("a name"), HeaderValue::from_str(value).expect("a value"));
    }
    let client = "100.64.0.9".parse().ok();
    caller.forward(&mut headers, RequestInfo { client, host: "api.tail.ts.net", over_tls: true, identity: None, app_caps: &[] });
    headers
}

/// Names and values, without the headers about the connection.
fn pairs(headers: &HeaderMap) -> Vec<(&str, &str)> {
    let pairs = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().expect("text")));
    let mut pairs: Vec<_> = pairs.filter(|(name, _)| !name.starts_with("x-forwarded-")).collect();
    // Values of one name stay in order.
    pairs.sort_by_key(|(name, _)| *name);
    pairs
}

#[test]
fn clients_are_impersonated_as_by_the_tailscale_proxy() {
    let groups = |groups: &[&str]| json!({"impersonate": {"groups": groups}});
    let union =
        json!([groups(&["g1", "g2"]), groups(&["g1", "g3"]), groups(&["g4"]), groups(&["g2"]), {}, {"impersonate": {}}, groups(&[])]);
    let recorded = json!([{"impersonate": {"groups": ["g1"]}, "recorder": ["tag:rec"], "enforceRecorder": true}]);
    let tagged: &[&str] = &["tag:foo", "tag:bar"];
    let cases: [(&[&str], Value, &str, &[&str]); 7] = [
        (&[], json!([]), "alice@example.com", &[]),
        (&[], union, "alice@example.com", &["g1", "g2", "g3", "g4"]),
        (tagged, json!([]), "node.tail.ts.net", tagged),
        (tagged, json!([{}, {"impersonate": {"groups": []}}]), "node.tail.ts.net", tagged),
        (tagged, json!([groups(&["g1"])]), "node.tail.ts.net", &["g1"]),
        (tagged, recorded, "node.tail.ts.net", &["g1"]),
        (&[], Value::Null, "alice@example.com", &[]),
    ];
    for (tags, rules, user, groups) in cases {
        let caller = caller(&whois(tags, rules.clone()), AUTH).expect("a caller");
        let headers = forwarded(&caller, &[]);
        let expected: Vec<_> = groups.iter().map(|group| ("impersonate-group", *group)).chain([("impersonate-user", user)]).collect();
        assert_eq!(pairs(&headers), expected, "{tags:?} {rules}");
    }
}

#[test]
fn clients_without_identity_or_with_a_void_grant_are_refused() {
    for policy in [AUTH, NOAUTH] {
        let refusal = caller(&whois(&["tag:foo"], json!([[]])), policy).expect_err("void");
        assert_eq!(refusal.code(), 403);
        assert!(refusal.to_string().contains("rule 1 of tailscale.com/cap/kubernetes"), "{refusal}");
    }
    let mut nameless = whois(&["tag:foo"], json!([]));
    nameless.node.name = ".".to_owned();
    assert_eq!(caller(&nameless, AUTH), Err(ApiServerRefusal::Nameless), "the user of a tagged node is not its identity");
    nameless.node.tags.clear();
    assert!(caller(&nameless, AUTH).is_ok());
    nameless.user_profile.login_name.clear();
    assert_eq!(caller(&nameless, AUTH), Err(ApiServerRefusal::Nameless));
    nameless.user_profile.login_name = "a\r\nImpersonate-Group: system:masters".to_owned();
    assert!(matches!(caller(&nameless, AUTH), Err(ApiServerRefusal::Subject(SubjectError::Invalid(_)))));
}

#[test]
fn tagged_device_and_user_never_have_each_others_names() {
    let of = |domain: Option<&str>, tags: &[&str], node: &str, login: &str| {
        let mut whois = whois(tags, json!([]));
        node.clone_into(&mut whois.node.name);
        login.clone_into(&mut whois.user_profile.login_name);
        caller_in(domain, &whois, AUTH).map(|caller| caller.user().expect("mode auth").to_owned())
    };
    let (tail, hs) = (Some("tail.ts.net"), Some("hs.example"));
    let tagged = |domain, node: &str| of(domain, &["tag:ci"], node, "bob");
    let user = |domain, login: &str| of(domain, &[], "laptop.b.tail.ts.net.", login);
    let is_refused = |result: &Result<String, _>| matches!(result, Err(ApiServerRefusal::Ambiguous(_)));
    let hostile =
        ["alice@example.com.", "alice@example.com", "alice", "alice.", "alice.smith", "al ice.tail.ts.net.", ".tail.ts.net.", "a..net."];
    for name in hostile {
        for domain in [tail, hs, None] {
            assert!(is_refused(&tagged(domain, name)), "a tagged device {name:?} in {domain:?}");
        }
    }
    for (domain, name) in
        [(hs, "a.b.hs.example."), (hs, "ci.tail.ts.net."), (hs, "cihs.example."), (None, "ci.tail.ts.net."), (tail, "ci.example.")]
    {
        assert!(is_refused(&tagged(domain, name)), "{name:?} is no device in {domain:?}");
    }
    for (domain, name) in [(tail, "ci-1.tail.ts.net."), (hs, "ci.hs.example."), (tail, "shared.other.ts.net.")] {
        assert_eq!(tagged(domain, name).as_deref(), Ok(name.trim_end_matches('.')));
    }
    for login in ["ci.tail.ts.net", "a.b.tail.ts.net"] {
        assert!(is_refused(&user(tail, login)), "a user {login:?}, wherever the dots of the device's host name are");
    }
    let ambiguous = tagged(tail, "alice").expect_err("refused");
    assert_eq!((ambiguous.code().as_u16(), ambiguous.is_transient()), (403, false));
    for login in ["alice", "alice.smith", "alice@tail.ts.net", "alice@mail.tail.ts.net", "alice@github", "tail.ts.net", "xtail.ts.net"] {
        for domain in [tail, hs, None] {
            assert_eq!(user(domain, login).as_deref(), Ok(login), "a user in {domain:?}");
        }
    }
}

#[test]
fn users_and_groups_of_kubernetes_itself_need_a_setting() {
    let masters = whois(&[], json!([{"impersonate": {"groups": ["dev", "system:masters"]}}]));
    let mut admin = whois(&[], json!([]));
    admin.user_profile.login_name = "system:admin".to_owned();
    let tagged = whois(&["system:nodes"], json!([]));
    for whois in [&masters, &admin, &tagged] {
        let refusal = caller(whois, AUTH).expect_err("refused");
        assert!(matches!(refusal, ApiServerRefusal::Subject(SubjectError::System(_))), "{refusal}");
        assert_eq!(refusal.code(), 403);
        let permits = |list: &[&str]| {
            let permit_system = list.iter().map(|name| (*name).to_owned()).collect();
            caller(whois, ApiServerSite { permit_system, ..AUTH }).is_ok()
        };
        assert!(permits(&["system:masters", "system:admin", "system:nodes"]));
        assert!(!permits(&["system:anonymous"]) && !permits(&["*"]));
        assert!(caller(whois, NOAUTH).is_ok(), "nothing is impersonated");
    }
    let by_grants = |whois: &WhoIs| caller(whois, ApiServerSite { permit_all_system: true, ..AUTH }).is_ok();
    assert!(by_grants(&masters) && !by_grants(&admin) && !by_grants(&tagged), "under the Tailscale operator, what a grant names");
}

#[test]
fn streams_continue_while_no_right_is_lost() {
    let rule = |groups: &[&str], enforces: bool| json!([{"impersonate": {"groups": groups}, "enforceRecorder": enforces}]);
    let of = |rules: Value| caller(&whois(&[], rules), AUTH).expect("a caller");
    let before = of(rule(&["dev", "ops"], false));
    for (later, continues) in [
        (rule(&["dev", "ops"], false), true),
        (rule(&["ops", "new", "dev"], false), true),
        (rule(&["dev"], false), false),
        (json!([]), false),
        (rule(&["dev", "ops"], true), false),
    ] {
        assert_eq!(before.is_within(&of(later.clone())), continues, "{later}");
    }
    let tagged = caller(&whois(&["tag:dev"], rule(&["dev", "ops"], false)), AUTH).expect("a caller");
    assert!(!before.is_within(&tagged), "another user");
    assert!(of(rule(&[], true)).is_within(&of(json!([]))));
}

#[test]
fn extra_values_name_node_address_and_login() {
    let policy = ApiServerSite { send_extra: true, ..AUTH };
    let extra = |tags: &[&str]| {
        let headers = forwarded(&caller(&whois(tags, json!([])), policy.clone()).expect("a caller"), &[]);
        let pairs = pairs(&headers).into_iter().filter(|(name, _)| name.starts_with("impersonate-extra-"));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<Vec<_>>()
    };
    let value = |key: &str, value: &str| (format!("impersonate-extra-tailyard.io%2f{key}"), value.to_owned());
    let user = [value("address", "100.64.0.9"), value("login", "alice@example.com"), value("node", "node.tail.ts.net")];
    assert_eq!(extra(&[]), user);
    assert_eq!(extra(&["tag:foo"]), [value("address", "100.64.0.9"), value("node", "node.tail.ts.net")]);
}

/// Headers by which clients name users or bring credentials.
const CLAIMS: [&str; 22] = [
    "Authorization",
    "authorization",
    "authorization-",
    "_authorization",
    "Proxy-Authorization",
    "Impersonate-User",
    "IMPERSONATE-USER",
    "impersonate_user",
    "impersonate.user",
    "-impersonate--user",
    "Impersonate-Group",
    "Impersonate-Uid",
    "Impersonate-Extra-Scopes",
    "Impersonate-Extra-tailyard.io%2fnode",
    "Impersonate-Anything",
    "X-Remote-User",
    "X-Remote-Group",
    "X-Remote-Uid",
    "X-Remote-Extra-Scopes",
    "x_remote_user",
    "Tailscale-User-Login",
    "X-Forwarded-For",
];

#[test]
fn claims_of_clients_are_replaced_in_any_spelling() {
    let identity = [("impersonate-group", "dev"), ("impersonate-user", "alice@example.com")];
    for name in CLAIMS {
        let sent = [(name, "root"), (name, "system:masters")];
        let headers = forwarded(&alice(), &sent);
        assert_eq!(pairs(&headers), identity, "{name}");
        assert_eq!(headers.get_all("x-forwarded-for").iter().collect::<Vec<_>>(), ["100.64.0.9"]);
        // A header that Connection names is removed, ours are not.
        for connection in [name, "impersonate-user, Impersonate-Group", "close, Authorization", "Connection", "upgrade"] {
            let headers = forwarded(&alice(), &[("connection", connection), (name, "root"), ("upgrade", "h2c"), ("http2-settings", "AAA")]);
            assert_eq!(pairs(&headers), identity, "{name}, Connection: {connection}");
        }
    }
    // Names of pseudo-header fields are no names of headers.
    for name in [":authority", ":path", "impersonate-user:", "impersonate user", "impersonate-user\r\nx", "ımpersonate-user"] {
        assert!(HeaderName::from_bytes(name.as_bytes()).is_err(), "{name}");
    }
}

#[test]
fn other_headers_are_forwarded() {
    let others = [
        ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io"),
        ("audit-id", "1"),
        ("content-type", "application/apply-patch+yaml"),
        ("kubectl-command", "kubectl get"),
        ("sec-websocket-key", "x"),
        ("sec-websocket-protocol", "v5.channel.k8s.io"),
        ("user-agent", "kubectl"),
        ("x-stream-protocol-version", "v4.channel.k8s.io"),
        ("x-stream-protocol-version", "channel.k8s.io"),
    ];
    let headers = forwarded(&alice(), &others);
    assert_eq!(pairs(&headers).into_iter().filter(|(name, _)| !name.starts_with("impersonate-")).collect::<Vec<_>>(), others);
}

#[test]
fn noauth_forwards_the_clients_own_credentials_only() {
    let noauth = caller(&whois(&[], json!([])), NOAUTH).expect("a caller");
    let sent = [
        ("authorization", "Bearer x"),
        ("impersonate-user", "bob"),
        ("impersonate-group", "a"),
        ("impersonate-group", "b"),
        ("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.eA, v4.channel.k8s.io"),
        ("x-remote-user", "root"),
        ("x-forwarded-for", "1.2.3.4"),
        ("proxy-authorization", "Basic x"),
    ];
    let headers = forwarded(&noauth, &sent);
    let mut expected = sent[..5].to_vec();
    expected.sort_by_key(|(name, _)| *name);
    assert_eq!(pairs(&headers), expected);
    assert_eq!(headers["x-forwarded-for"], "100.64.0.9");
}

#[test]
fn bearer_tokens_among_websocket_protocols_are_removed() {
    let token = "base64url.bearer.authorization.k8s.io.eA";
    let protocols = |sent: &[&str]| {
        let sent: Vec<_> = sent.iter().map(|value| ("Sec-WebSocket-Protocol", *value)).collect();
        let headers = forwarded(&alice(), &sent);
        headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().map(|value| value.to_str().expect("text").to_owned()).collect::<Vec<_>>()
    };
    let both = format!("{token},v4.channel.k8s.io");
    assert_eq!(protocols(&[&both]), ["v4.channel.k8s.io"]);
    assert_eq!(protocols(&["v5.channel.k8s.io", token, "v4.channel.k8s.io"]), ["v5.channel.k8s.io, v4.channel.k8s.io"]);
    assert_eq!(protocols(&[&token.to_uppercase(), "Älice, x"]), [""; 0]);
    assert_eq!(protocols(&[token]), [""; 0]);
}

#[test]
fn trailers_name_no_user() {
    let mut fields: HeaderMap = CLAIMS.iter().map(|name| (name.parse().expect("a name"), HeaderValue::from_static("root"))).collect();
    fields.insert("x-checksum", HeaderValue::from_static("1"));
    trailers(&mut fields);
    assert_eq!(fields.keys().collect::<Vec<_>>(), ["x-checksum"]);
    assert!(!forwarded(&alice(), &[("trailer", "impersonate-user"), ("te", "trailers")]).contains_key("trailer"));
}

#[test]
fn sessions_are_refused_under_an_enforced_recorder() {
    let (exec, upgraded, list) = ("/api/v1/namespaces/ns/pods/p/exec/", "/apis/example.com/v1/widgets/w/console", "/api/v1/pods");
    let decide = |rule: Value, path: &str, headers: &[(&str, &str)]| {
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).expect("a request").into_parts();
        let route = route(&head, &BasePath::default()).expect("a route");
        caller(&whois(&[], json!([rule])), NOAUTH).expect("a caller").permit(&route)
    };
    let refused = Err(ApiServerRefusal::Unrecorded);
    for upgrade in ["SPDY/3.1", "spdy/3.1", "WebSocket", "other"] {
        let headers = [("Connection", "x, Upgrade"), ("Upgrade", upgrade)];
        for path in [exec, upgraded, list] {
            assert_eq!(decide(json!({"enforceRecorder": true}), path, &headers), refused, "{path} {upgrade}");
            assert_eq!(decide(json!({"recorderAddrs": ["100.64.0.7:80"]}), path, &headers), Ok(()));
        }
    }
    assert_eq!(decide(json!({"enforceRecorder": true, "recorderAddrs": ["100.64.0.7:80"]}), exec, &[]), refused);
    assert_eq!(decide(json!({"enforceRecorder": true}), list, &[]), Ok(()));
    assert_eq!(decide(json!({"enforceRecorder": true, "enableEvents": true}), list, &[]), Err(ApiServerRefusal::Unreported));
    assert_eq!(decide(json!({"enableEvents": true}), exec, &[]), Ok(()));
}

proptest! {
    #[test]
    fn identity_never_depends_on_headers_of_the_client(
        sent in proptest::collection::vec((
            "(Connection|impersonate|x|remote|user|group|authorization|-|_|\\.){1,5}",
            "(root|close|, |impersonate-user|impersonate-group|x-forwarded-for){0,3}",
        ), 0..6),
    ) {
        let sent: Vec<_> = sent.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let caller = alice();
        let headers = forwarded(&caller, &sent);
        for (name, expected) in [("impersonate-user", "alice@example.com"), ("impersonate-group", "dev"), ("x-forwarded-for", "100.64.0.9")] {
            prop_assert_eq!(headers.get_all(name).iter().collect::<Vec<_>>(), [expected]);
        }
        let ours = caller.identity.expect("mode auth");
        prop_assert!(headers.keys().all(|name| ours.contains_key(name) || !(is_credential(name) || is_remote_user(name))), "{:?}", headers);
        prop_assert!(!headers.contains_key("connection"));
    }
}
