use proptest::prelude::*;

use super::*;

/// Verb, group, namespace, resource, name and subresource.
type Facts = [&'static str; 6];

fn facts(request: &ApiRequest) -> [&str; 6] {
    [request.verb, &request.group, &request.namespace, &request.resource, &request.name, &request.subresource]
}

fn read(method: &str, target: &str) -> ApiRequest {
    let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
    ApiRequest::read(method, path, query)
}

fn opens_session(method: &str, path: &str) -> bool {
    may_open_session(&ApiRequest::read(method, path, None), method, path)
}

/// Requests, and their facts by the tests of `RequestInfoFactory`.
const REQUESTS: [(&str, &str, Facts); 46] = [
    ("GET", "/", ["get", "", "", "", "", ""]),
    ("GET", "", ["get", "", "", "", "", ""]),
    ("GET", "/api", ["get", "", "", "", "", ""]),
    ("GET", "/api/v1", ["get", "", "", "", "", ""]),
    ("GET", "/apis/apps/v1", ["get", "", "", "", "", ""]),
    ("POST", "/openapi/v3/x", ["post", "", "", "", "", ""]),
    ("OPTIONS", "/version", ["options", "", "", "", "", ""]),
    ("PROPFIND", "/version", ["other", "", "", "", "", ""]),
    ("GET", "/API/v1/pods", ["get", "", "", "", "", ""]),
    ("GET", "/clusters/root/api/v1/pods", ["get", "", "", "", "", ""]),
    ("GET", "/api/v1/pods", ["list", "", "", "pods", "", ""]),
    ("HEAD", "/api/v1/pods", ["list", "", "", "pods", "", ""]),
    ("GET", "/api/v1/pods/", ["list", "", "", "pods", "", ""]),
    ("GET", "//api/v1/pods//", ["list", "", "", "pods", "", ""]),
    ("GET", "/api/v1/namespaces", ["list", "", "", "namespaces", "", ""]),
    ("GET", "/api/v1/namespaces/ns", ["get", "", "ns", "namespaces", "ns", ""]),
    ("PUT", "/api/v1/namespaces/ns/finalize", ["update", "", "ns", "namespaces", "ns", "finalize"]),
    ("PATCH", "/api/v1/namespaces/ns/status", ["patch", "", "ns", "namespaces", "ns", "status"]),
    ("GET", "/api/v1/namespaces/ns/pods", ["list", "", "ns", "pods", "", ""]),
    ("GET", "/api/v1/namespaces/ns/pods?watch=true", ["watch", "", "ns", "pods", "", ""]),
    ("GET", "/api/v1/namespaces/ns/pods?limit=5&w%61tch=1", ["watch", "", "ns", "pods", "", ""]),
    ("GET", "/api/v1/namespaces/ns/pods?watch", ["watch", "", "ns", "pods", "", ""]),
    ("GET", "/api/v1/namespaces/ns/pods?watch=f", ["watch", "", "ns", "pods", "", ""]),
    ("GET", "/api/v1/namespaces/ns/pods?watch=False&watch=true", ["list", "", "ns", "pods", "", ""]),
    ("GET", "/api/v1/namespaces/ns/pods?watch=0", ["list", "", "ns", "pods", "", ""]),
    ("GET", "/api/v1/namespaces/ns/pods?watch=1;x", ["list", "", "ns", "pods", "", ""]),
    ("GET", "/api/v1/namespaces/ns/pods?Watch=true", ["list", "", "ns", "pods", "", ""]),
    ("GET", "/api/v1/namespaces/ns/pods?fieldSelector=a%3Db&labelSelector=c", ["list", "", "ns", "pods", "", ""]),
    ("GET", "/api/v1/namespaces/ns/pods/foo.bar", ["get", "", "ns", "pods", "foo.bar", ""]),
    ("GET", "/api/v1/namespaces/ns/pods/foo?watch=true", ["get", "", "ns", "pods", "foo", ""]),
    ("POST", "/api/v1/namespaces/ns/pods", ["create", "", "ns", "pods", "", ""]),
    ("DELETE", "/api/v1/namespaces/ns/pods", ["deletecollection", "", "ns", "pods", "", ""]),
    ("DELETE", "/api/v1/namespaces/ns/pods/foo", ["delete", "", "ns", "pods", "foo", ""]),
    ("get", "/api/v1/pods", ["other", "", "", "pods", "", ""]),
    ("GET", "/api/v1/nodes/n/proxy/metrics", ["get", "", "", "nodes", "n", "proxy"]),
    (
        "GET",
        "/api/v1/namespaces/ns/services/foo:8080/proxy-subpath/more/segments",
        ["get", "", "ns", "services", "foo:8080", "proxy-subpath"],
    ),
    ("GET", "/api/v1/namespaces/ns/services/x/proxy//a/../b", ["get", "", "ns", "services", "x", "proxy"]),
    ("GET", "/api/v1/watch/pods", ["watch", "", "", "pods", "", ""]),
    ("GET", "/api/v1/watch/namespaces/ns/pods/foo", ["watch", "", "ns", "pods", "foo", ""]),
    ("GET", "/api/v1/proxy/namespaces/ns/pods/foo/exec", ["proxy", "", "ns", "pods", "foo", ""]),
    ("GET", "/api/v1/proxy/nodes/n", ["proxy", "", "", "nodes", "n", ""]),
    ("GET", "/api/v1/watch", ["watch", "", "", "", "", ""]),
    ("GET", "/apis/apps/v1/namespaces/ns/deployments/d/scale", ["get", "apps", "ns", "deployments", "d", "scale"]),
    ("PATCH", "/apis/example.com/v1beta1/widgets/w", ["patch", "example.com", "", "widgets", "w", ""]),
    ("GET", "/apis/apps%2Fv1/namespaces%2fns%2Fpods%2fp%2fexec", ["get", "apps", "ns", "pods", "p", "exec"]),
    ("GET", "/api/v1/namespaces/%ff%2Fpods/p%/exec", ["get", "", "\u{fffd}", "pods", "p%", "exec"]),
];

#[test]
fn requests_have_the_facts_that_the_api_server_reads() {
    for (method, target, expected) in REQUESTS {
        assert_eq!(facts(&read(method, target)), expected, "{method} {target}");
    }
}

#[test]
fn streams_have_a_kind_and_resources_a_bounded_label() {
    assert!(LABELLED_RESOURCES.is_sorted());
    let cases = [
        ("/api/v1/namespaces/ns/pods/p/exec", "exec", "pods"),
        ("/api/v1/namespaces/ns/pods/p/exec/", "exec", "pods"),
        ("/api/v1/namespaces/ns/pods/p/attach", "attach", "pods"),
        ("/api/v1/namespaces/ns/pods/p/portforward", "portforward", "pods"),
        ("/api/v1/namespaces/ns/pods/p:80/proxy/ws", "proxy", "pods"),
        ("/api/v1/namespaces/ns/services/s/proxy", "proxy", "services"),
        ("/api/v1/nodes/n/proxy/exec/ns/p/c", "proxy", "nodes"),
        ("/api/v1/namespaces/ns/pods/p/log", "other", "pods"),
        ("/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/v/console", "other", "other"),
        ("/healthz", "other", "none"),
    ];
    for (path, kind, resource) in cases {
        let request = read("GET", path);
        assert_eq!((request.stream_kind().label(), request.resource_label()), (kind, resource), "{path}");
    }
}

/// Methods and paths that run or reach a program in a container without an upgrade.
const SESSIONS: [(&str, &str); 15] = [
    ("GET", "/api/v1/namespaces/ns/services/s/proxy/shell"),
    ("POST", "/api/v1/namespaces/ns/pods/p/proxy"),
    ("POST", "/api/v1/namespaces/ns/pods/p/exec"),
    ("GET", "/api/v1/namespaces/ns/pods/p/exec/"),
    ("GET", "/api/v1/namespaces/ns/pods/p/attach"),
    ("POST", "/api/v1/namespaces/ns/pods/p/portforward"),
    ("GET", "/api/v1/namespaces/ns/pods/p/exec/more"),
    ("PUT", "/api/v2/namespaces/ns/pods/p/exec"),
    ("GET", "/apis/metrics.k8s.io/v1beta1/namespaces/ns/pods/p/exec"),
    ("POST", "/api/v1/nodes/n/proxy/run/ns/p/c"),
    ("GET", "/api/v1/nodes/https:n:10250/proxy/cri/exec/x"),
    ("GET", "/api/v1/proxy/nodes/n/exec/ns/p/c"),
    ("PATCH", "/api/v1/namespaces/ns/pods/p/ephemeralcontainers"),
    ("PUT", "/api/v1/namespaces/ns/pods/p/ephemeralcontainers"),
    ("POST", "/api/v1/namespaces//pods/p/exec"),
];

#[test]
fn watches_logs_and_streams_are_long_running() {
    let pod = "/api/v1/namespaces/default/pods/web";
    for (target, expected) in [
        (pod, false),
        ("/api/v1/pods?limit=500", false),
        ("/api/v1/pods?watch=false", false),
        ("/api/v1/pods?watch=1", true),
        ("/api/v1/watch/pods", true),
        (&*format!("{pod}/log?follow=true"), true),
        (&*format!("{pod}/exec?command=sh"), true),
        (&*format!("{pod}/attach"), true),
        (&*format!("{pod}/portforward"), true),
        ("/api/v1/nodes/one/proxy/exec/default/web/shell", true),
        ("/api/v1/namespaces/default/services/web:80/proxy/", true),
        (&*format!("{pod}/status"), false),
        ("/version", false),
    ] {
        assert_eq!(read("GET", target).is_long_running(), expected, "{target}");
    }
}

#[test]
fn requests_for_a_program_in_a_container_are_sessions() {
    for (method, path) in SESSIONS {
        assert!(opens_session(method, path), "{method} {path}");
    }
    let others = [
        ("GET", "/api/v1/namespaces/ns/pods/p/log"),
        ("GET", "/api/v1/namespaces/ns/pods/exec"),
        ("GET", "/api/v1/namespaces/exec/pods/attach"),
        ("GET", "/api/v1/namespaces/ns/pods/p/ephemeralcontainers"),
        ("GET", "/apis/apps/v1/namespaces/ns/deployments/d/exec"),
        ("GET", "/api/v1/nodes/n"),
        ("GET", "/exec"),
    ];
    for (method, path) in others {
        assert!(!opens_session(method, path), "{method} {path}");
    }
}

#[test]
fn sessions_in_a_path_that_servers_resolve_differently_are_sessions() {
    for path in [
        "/api/v1/x/../namespaces/ns/pods/p/exec",
        "/healthz/../api/v1/namespaces/ns/pods/p/exec",
        "/healthz/%2e%2E/api/v1/namespaces/ns/pods/p/exec",
        "/api//v1/namespaces/ns/pods/p/exec",
        "/api/v1/namespaces/ns/pods/p/x/../exec",
        "/x/..;/api/v1/pods",
        "/x/..%2fapi/v1/pods",
        "/x\\..\\api",
    ] {
        assert!(opens_session("GET", path), "{path}");
    }
}

/// A path with some characters escaped.
fn escaped(path: &str, choices: &[u8]) -> String {
    let escape = |(byte, choice): (u8, &u8)| match choice {
        0 => format!("%{byte:02X}"),
        1 => format!("%{byte:02x}"),
        _ => char::from(byte).to_string(),
    };
    path.bytes().zip(choices.iter().cycle()).map(escape).collect()
}

proptest! {
    #[test]
    fn escapes_and_outer_slashes_change_no_fact_and_hide_no_session(
        index in 0..REQUESTS.len(),
        session in 0..SESSIONS.len(),
        choices in proptest::collection::vec(0..4_u8, 1..40),
        slashes in "/{1,3}",
    ) {
        let (method, target, expected) = REQUESTS[index];
        let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
        // A malformed escape becomes another one if its percent sign is escaped.
        if !path.contains('%') {
            let path = format!("{slashes}{}{slashes}", escaped(path, &choices));
            let request = ApiRequest::read(method, &path, query);
            prop_assert_eq!(facts(&request), expected, "{}", path);
        }
        let (method, path) = SESSIONS[session];
        let path = format!("{slashes}{}{slashes}", escaped(path, &choices));
        prop_assert!(opens_session(method, &path), "{}", path);
    }

    #[test]
    fn any_path_has_static_labels(
        method in "(GET|POST|DELETE|X)",
        path in "(/|api|apis|v1|namespaces|pods|exec|%2[fF]|%|\\.\\.|;|é){0,12}",
        query in "(watch|=|&|%|1|;){0,6}",
    ) {
        let request = ApiRequest::read(&method, &path, Some(&query));
        prop_assert!(request.resource_label() == "none" || !request.resource.is_empty());
        prop_assert!(request.verb.len() <= "deletecollection".len());
        if request.is_session() {
            prop_assert!(opens_session(&method, &path));
        }
    }
}
