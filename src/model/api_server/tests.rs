use http::{HeaderMap, Request};

use crate::model::front_end::vhosts::headers::Upgrades;

use super::*;

fn routed(target: &str, base: &str) -> Result<ApiRoute, ApiServerRefusal> {
    let (head, ()) = Request::get(target).body(()).expect("a request").into_parts();
    route(&head, &BasePath::read(base).expect("a path"))
}

#[test]
fn path_is_sent_as_received() {
    for target in [
        "/",
        "/api/v1/namespaces/ns/services/x/proxy//a/../b;c=1/%2F%zz?watch=1;2&x=%",
        "/api/v1/namespaces/ns/pods/p/exec/?command=a&command=b%20c&tty=1",
        "//other.example/api",
    ] {
        assert_eq!(routed(target, "").expect("a route").path.as_str(), target);
    }
    let route = routed("/api/v1/namespaces/ns/pods?watch=1", "/k8s/clusters/c-1").expect("a route");
    assert_eq!((route.request.verb, route.request.namespace.as_str()), ("watch", "ns"), "facts are those below the base path");
    assert_eq!(route.path.as_str(), "/k8s/clusters/c-1/api/v1/namespaces/ns/pods?watch=1");
}

#[test]
fn unclear_requests_are_refused_with_their_code() {
    assert_eq!(routed("/../c-2/api/v1/secrets", "/k8s/clusters/c-1").expect_err("refused").code(), 400);
    assert_eq!(routed("https://api.tail.ts.net/api", "").expect_err("refused").code(), 400);
    let (head, ()) = Request::builder().method("TRACE").uri("/").body(()).expect("a request").into_parts();
    assert_eq!(route(&head, &BasePath::default()).expect_err("refused").code(), 405);
}

#[test]
fn clients_may_upgrade_to_the_protocols_of_kubectl_only() {
    let upgrades = Upgrades::read(UPGRADES).expect("protocols");
    let wanted = |upgrade: &'static str| {
        let header = |name: &'static str, value: &'static str| (name.parse().expect("a name"), value.parse().expect("a value"));
        let headers: HeaderMap = [header("connection", "Upgrade"), header("upgrade", upgrade)].into_iter().collect();
        upgrades.wanted(&headers).map(|protocol| protocol.to_str().expect("text").to_owned())
    };
    for (upgrade, expected) in [
        ("SPDY/3.1", Some("spdy/3.1")),
        ("websocket", Some("websocket")),
        ("WebSocket", Some("websocket")),
        ("h2c", None),
        ("h2c, websocket", Some("websocket")),
        ("TLS/1.0, HTTP/1.1", None),
        ("SPDY/3.1.1", None),
    ] {
        assert_eq!(wanted(upgrade).as_deref(), expected, "{upgrade}");
    }
}
