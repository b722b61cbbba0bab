//! Tests of parsing and routing.

use super::*;
use crate::api::proxygroup::ApiServerMode;
use crate::api::routes::BackendProtocol;

const OPERATOR: &str = r#"{"Services":{
  "svc:my-app":{"TCP":{"80":{"HTTP":true},"443":{"HTTPS":true}},"Web":{
    "my-app.tail1234.ts.net:443":{"Handlers":{"/":{"Proxy":"http://10.96.0.20:80/"},"/api/":{"Proxy":"https+insecure://10.96.0.21:443/api/"}}},
    "my-app.tail1234.ts.net:80":{"Handlers":{"/":{"Redirect":"301:https://${HOST}${REQUEST_URI}"}}}}},
  "svc:l3":{"Tun":true}}}"#;

const ROUTES: &str = r#"{
  "svc:web":{"hosts":{"Web.tail.ts.net":{"secret":"web","issue":true},"shop.example.com":{"secret":"mine"},"*.wild.example.com":{"secret":"wild"}},
    "listeners":{"443":"https","80":"redirect"},
    "routes":[
      {"path":"/","backend":{"namespace":"a","service":"web","portName":"http","address":"10.96.0.1:80"}},
      {"path":"/api","backend":{"address":"10.96.0.2:80","protocol":"h2c"}},
      {"path":"/api/v1","exact":true,"backend":{"address":"10.96.0.3:80"}},
      {"host":"shop.example.com","path":"/api","backend":{"address":"10.96.0.4:443","protocol":"https"}},
      {"path":"/broken","backend":{"address":"nowhere"}}]},
  "svc:bad":{"listeners":"x"}}"#;

fn of(routes: Option<&str>, serve: Option<&str>) -> ReadVhosts {
    read(routes.map(str::as_bytes), serve.map(str::as_bytes)).expect("readable")
}

/// Backend address and path of a routed request.
fn goes(site: &Vhost, port: u16, host: &str, target: &str) -> String {
    match site.decide(port, host, target) {
        RouteDecision::Proxy(proxied, path) => format!("{} {path}", proxied.backend.address),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_serve_config_of_the_operator_is_served() {
    let read = of(None, Some(OPERATOR));
    assert!(read.faults.is_empty() && read.sites.len() == 1, "{read:?}");
    let site = &read.sites["svc:my-app"];
    let name = "my-app.tail1234.ts.net";
    assert!(site.hosts[name].issue && site.is_over_tls());
    assert_eq!(goes(site, 443, name, "/x?y=1"), "10.96.0.20:80 /x?y=1");
    assert_eq!(goes(site, 443, name, "/api"), "10.96.0.21:443 /api");
    assert_eq!(goes(site, 443, name, "/api/v1/"), "10.96.0.21:443 /api/v1/");
    assert_eq!(goes(site, 443, name, "/apis"), "10.96.0.20:80 /apis");
    assert_eq!(site.backends().filter(|backend| backend.protocol == BackendProtocol::Https).count(), 1);
    let redirect = RouteDecision::Redirect(301, "https://my-app.tail1234.ts.net/x?y=1".to_owned());
    assert_eq!(site.decide(80, "MY-APP", "/x?y=1"), redirect);
    assert_eq!(site.decide(443, "other.tail1234.ts.net", "/"), RouteDecision::Misdirected);
}

#[test]
fn routes_file_overrides_the_serve_config() {
    let read = of(Some(ROUTES), Some(OPERATOR));
    assert_eq!(read.sites.keys().collect::<Vec<_>>(), ["svc:web"]);
    assert_eq!(read.faults.keys().collect::<Vec<_>>(), ["svc:bad", "svc:web"]);
    let site = &read.sites["svc:web"];
    let name = "web.tail.ts.net";
    assert_eq!(goes(site, 443, name, "/"), "10.96.0.1:80 /");
    assert_eq!(goes(site, 443, name, "/api/v1"), "10.96.0.3:80 /api/v1");
    assert_eq!(goes(site, 443, name, "/api/v1/x"), "10.96.0.2:80 /api/v1/x");
    assert_eq!(goes(site, 443, "WEB.tail.ts.net.:443", "/static/../api"), "10.96.0.2:80 /api");
    assert_eq!(goes(site, 443, "shop.example.com", "/api/v1/x"), "10.96.0.4:443 /api/v1/x");
    assert_eq!(goes(site, 443, "a.wild.example.com", "/"), "10.96.0.1:80 /");
    assert_eq!(site.decide(443, "a.b.wild.example.com", "/"), RouteDecision::Misdirected);
    assert!(matches!(site.decide(443, name, "/broken/x"), RouteDecision::Broken(_)), "no wider route takes it");
    assert_eq!(site.decide(80, "web", "/a?b"), RouteDecision::Redirect(301, "https://web.tail.ts.net/a?b".to_owned()));
    assert_eq!(site.decide(80, "x.wild.example.com", "/"), RouteDecision::Redirect(301, "https://x.wild.example.com/".to_owned()));
}

#[test]
fn mount_prefix_is_replaced_by_the_backend_path() {
    let text = |proxy: &str| {
        format!(
            r#"{{"Services":{{"svc:a":{{"TCP":{{"80":{{"HTTP":true}}}},"Web":{{"a.b:80":{{"Handlers":{{"/m/":{{"Proxy":"{proxy}"}}}}}}}}}}}}}}"#
        )
    };
    let at = |proxy: &str| goes(&of(None, Some(&text(proxy))).sites["svc:a"], 80, "a.b", "/m/x?q");
    assert_eq!(at("http://10.0.0.1:1/other"), "10.0.0.1:1 /other/x?q");
    assert_eq!(at("http://10.0.0.1"), "10.0.0.1:80 /x?q");
    assert_eq!(at("3000"), "127.0.0.1:3000 /x?q");
    assert_eq!(at("http://[fd00::1]:8080/m"), "[fd00::1]:8080 /m/x?q");
    assert!(at("https://10.0.0.1").starts_with("Broken"), "an unchecked certificate is not reported as checked");
    assert!(at("unix:/x").starts_with("Broken"));
}

#[test]
fn path_is_rewritten_by_the_matched_prefix() {
    let text = r#"{"Services":{"svc:a":{"TCP":{"80":{"HTTP":true}},"Web":{"a.b:80":{"Handlers":{
        "/":{"Proxy":"http://10.0.0.1/root1"},"/public":{"Proxy":"http://10.0.0.2/root2/"},"/bare":{"Proxy":"http://10.0.0.3"}}}}}}}"#;
    let site = &of(None, Some(text)).sites["svc:a"];
    let table = [
        ("/public/x", "10.0.0.2:80 /root2/x"),
        ("/%70ublic/x?q=/../a", "10.0.0.2:80 /root2/x?q=/../a"),
        ("//public/x", "10.0.0.2:80 /root2/x"),
        ("/y/../public/x", "10.0.0.2:80 /root2/x"),
        ("/public/a%20b/%2e%2e/c//d", "10.0.0.2:80 /root2/c/d"),
        ("/public/a//b%2Fc/", "10.0.0.2:80 /root2/a//b%2Fc/"),
        ("/public/../other", "10.0.0.1:80 /root1/other"),
        ("/../secret", "10.0.0.1:80 /root1/secret"),
        ("/public", "10.0.0.2:80 /root2"),
        ("/bare", "10.0.0.3:80 /"),
        ("/bare?q", "10.0.0.3:80 /?q"),
        ("/public/..;/secret", "Ambiguous"),
        ("/public\\..\\secret", "Ambiguous"),
        ("*", "10.0.0.1:80 *"),
    ];
    for (target, expected) in table {
        assert_eq!(goes(site, 80, "a.b", target), expected, "{target}");
    }
}

#[test]
fn wildcard_matches_exactly_one_label() {
    let site = &of(Some(ROUTES), None).sites["svc:web"];
    for name in ["a/b.wild.example.com", "a@b.wild.example.com", "a b.wild.example.com", ".wild.example.com"] {
        assert_eq!(site.decide(443, name, "/"), RouteDecision::Misdirected, "{name}");
    }
}

#[test]
fn invalid_documents_are_rejected() {
    assert!(read(Some(b"{"), None).is_err());
    let error = read(None, Some(b"[1]")).expect_err("no object").to_string();
    assert!(error.starts_with("serve-config.json is not readable"), "{error}");
    assert_eq!(of(None, None), ReadVhosts::default());
    assert_eq!(of(None, Some("null")), ReadVhosts::default());
}

#[test]
fn site_of_the_api_server_is_rejected_with_an_unknown_mode_and_has_a_node_for_itself() {
    let site = |host: &str, api_server: &str| {
        format!(r#"{{"hosts":{{"{host}":{{"secret":"{host}"}}}},"listeners":{{"443":"https"}},"routes":[],"apiServer":{api_server}}}"#)
    };
    let text = format!(
        r#"{{"svc:a":{},"svc:b":{},"svc:c":{}}}"#,
        site("a.b", r#"{"mode":"noauth","permitSystem":["system:masters"]}"#),
        site("b.b", r#"{"mode":"later"}"#),
        site("c.b", "null")
    );
    let ReadVhosts { sites, faults } = of(Some(&text), None);
    let modes: Vec<_> = sites.iter().map(|(name, site)| (name.as_str(), site.api_server.as_ref().map(|site| &site.mode))).collect();
    assert_eq!(modes, [("svc:a", Some(&ApiServerMode::NoAuth)), ("svc:c", None)]);
    assert!(faults.keys().eq(["svc:b"]) && faults["svc:b"][0].contains("\"later\""), "{faults:?}");
    let (node, faults) = shared_host::merged(&sites);
    assert!(node.api_server.is_none() && node.hosts.keys().eq(["c.b"]) && faults.keys().eq(["svc:a"]), "{faults:?}");
    let single = Vhosts::from([("svc:a".to_owned(), Arc::clone(&sites["svc:a"]))]);
    let (node, faults) = shared_host::merged(&single);
    assert!(node.api_server == sites["svc:a"].api_server && faults.is_empty());
}
