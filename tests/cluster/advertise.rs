//! Tailscale Services of real tailscaleds: what is served and advertised, and when. The nodes are members of a group; the control plane is
//! the stand-in of Tailscale's hosted one, which routes a service to one approved node that advertises it.
//!
//! Needs root and the programs of `tests/servers/build`.

mod kernel;
mod listener;
mod pod;
mod port;
mod preamble;
mod site;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;
use tailyard::api::names::ACCOUNTS;
use tailyard::api::state::{DISCO_MUTED_SINCE, RECENT_PEERS};

use kit::machine::DEADLINE;
use kit::member::{Member, in_pod, service};
use kit::pebble::{Manner, Pebble};
use kit::tailnet::{Control, Tailnet};
use kit::wait::eventually;
use kit::{apiserver, stock};

/// Timeout of one connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// Timeout of one attempt that is repeated until it succeeds.
const TRY: Duration = Duration::from_millis(100);

fn names(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

/// L3 mapping of a service.
fn mapping(vips: &[IpAddr], to: IpAddr) -> serde_json::Value {
    json!({"IPv4Mapping": {"TailscaleServiceIP": vips[0].to_string(), "ClusterIP": to.to_string()}})
}

#[test]
fn l4_service_is_advertised_when_mapped_and_withdrawn_before_exit() {
    let tailnet = Tailnet::start_with([10, 97, 0], Control::Hosted);
    let vips = service(&tailnet, "svc:db");
    let backend = tailnet.machine("backend");
    let _served = backend.node.serve(7000);
    let (client, _client) = tailnet.node("client");
    let at = SocketAddr::new(vips[0], 7000);

    let wrong = json!({"svc:db": mapping(&vips, "fd00::1".parse().expect("an address"))});
    let mut one = Member::start(&tailnet, "one", &["svc:db"], &wrong, None);
    eventually("a rejected mapping being what is waited for", DEADLINE, || {
        one.get("/readyz").ok()?.contains("services: not advertised and approved yet: svc:db").then_some(())
    });
    assert_eq!(one.advertised(), names(&[]), "nothing is advertised that the kernel does not forward");

    one.ingress(&json!({"svc:db": mapping(&vips, backend.address)}));
    let begin = Instant::now();
    eventually("an answer through the service", DEADLINE, || {
        client.node.ask_tcp(at, TRY).ok().filter(|greeting| greeting.name == "backend")
    });
    println!("mapping written to first answer: {:?}", begin.elapsed());
    one.wait_ready();
    assert_eq!(one.advertised(), names(&["svc:db"]));
    assert!(client.node.ask_udp(at, PATIENCE).is_ok(), "UDP too");

    let two = Member::start(&tailnet, "two", &["svc:db"], &json!({"svc:db": mapping(&vips, backend.address)}), None);
    two.wait_ready();
    assert_eq!(two.advertised(), names(&["svc:db"]));

    // One member leaves under load. It accepts no new connections before the address moves, and open ones may finish: so none is cut.
    let (mut attempts, mut failed) = (0, Vec::new());
    thread::scope(|scope| {
        let leaving = scope.spawn(|| one.shut_down());
        while !leaving.is_finished() || attempts < 50 {
            attempts += 1;
            if let Err(fault) = client.node.ask_tcp(at, PATIENCE) {
                failed.push((attempts, fault));
            }
        }
        let took = leaving.join().expect("no panic");
        println!("left within {took:?}, {attempts} connections meanwhile, failed: {failed:?}");
        assert!(took < Duration::from_secs(15), "{took:?}");
    });
    assert!(failed.is_empty(), "{failed:?} of {attempts}:\n{}", one.output());
    assert!(one.output().contains("rejecting new connections"), "{}", one.output());
    assert!(one.output().contains("no service is routed to this replica any more"), "{}", one.output());
    assert!(one.state(DISCO_MUTED_SINCE).is_some(), "its successor knows since when peers heard nothing");
}

#[test]
fn service_is_reached_with_pod_network_in_the_tailnet_range() {
    let tailnet = Tailnet::start_with([100, 65, 0], Control::Hosted);
    let vips = service(&tailnet, "svc:db");
    let backend = tailnet.machine("backend");
    let _served = backend.node.serve(7000);
    let client = tailnet.machine("client");
    let _tailscaled = client.tailscaled();
    tailnet.join(&client, &["--netfilter-mode=nodivert"]); // otherwise tailscaled's filter drops its own network's packets
    let one = Member::start(&tailnet, "one", &["svc:db"], &json!({"svc:db": mapping(&vips, backend.address)}), None);
    one.wait_ready();
    let at = SocketAddr::new(vips[0], 7000);
    let greeting = eventually("an answer through the service", DEADLINE, || client.node.ask_tcp(at, TRY).ok());
    assert_eq!(greeting.name, "backend");
}

#[test]
fn replica_killed_with_shields_up_accepts_again_and_remembers_peers() {
    let tailnet = Tailnet::start_with([10, 94, 0], Control::Hosted);
    let vips = service(&tailnet, "svc:db");
    let backend = tailnet.machine("backend");
    let _served = backend.node.serve(7000);
    let (mut client, _client) = tailnet.node("client");
    let own = client.tailnet_addresses()[0].to_string();
    let at = SocketAddr::new(vips[0], 7000);
    let mut one = Member::start(&tailnet, "one", &["svc:db"], &json!({"svc:db": mapping(&vips, backend.address)}), None);
    one.wait_ready();
    eventually("an answer through the service", DEADLINE, || client.node.ask_tcp(at, TRY).ok());

    let has_recent_peer = |one: &Member| one.state(RECENT_PEERS).is_some_and(|peers| peers.contains(&own));
    one.killed_once("no new connection being accepted", |one| one.shields_up() == Some(true) && has_recent_peer(one));
    assert!(client.node.ask_tcp(at, TRY).is_err());
    one.run();
    one.wait_ready();
    assert_eq!(one.shields_up(), Some(false), "the shutdown of the previous process is undone");
    assert!(one.output().contains("targets are reachable through the tailnet targets=1"), "{}", one.output());
    eventually("an answer after the restart", DEADLINE, || client.node.ask_tcp(at, TRY).ok());
}

#[test]
fn site_is_served_before_advertised_with_the_client_address() {
    let tailnet = Tailnet::start_with([10, 96, 0], Control::Hosted);
    let vips = service(&tailnet, "svc:web");
    let (mut client, _client) = tailnet.node("client");
    client.tailnet_addresses();
    let forward = json!({"TCPForward": "127.0.0.1:9443", "ProxyProtocol": 2});
    let serve = json!({"Services": {"svc:web": {"TCP": {"443": forward}}}});
    let member = Member::start(&tailnet, "one", &["svc:web", "svc:other"], &json!({}), Some(&json!({})));
    let _listener = preamble::listen(&member.machine.node, 9443);
    eventually("services without a config being waited for", DEADLINE, || {
        member.get("/readyz").ok()?.contains("svc:web (no config of this replica says how it is served)").then_some(())
    });
    member.serve(&serve);
    let at = SocketAddr::new(vips[0], 443);
    let begin = Instant::now();
    let greeting = eventually("an answer through the service", DEADLINE, || client.node.ask_tcp(at, TRY).ok());
    println!("serve config written to first answer: {:?}", begin.elapsed());
    assert!(client.node.tailnet.values().any(|own| *own == greeting.peer.ip()), "{greeting:?} is not the client");
    assert_eq!(member.advertised(), names(&["svc:web"]));
}

/// Routes of a site with a certificate that the group orders, and with another name that has the user's own certificate.
fn routes(host: &str, backend: SocketAddr) -> serde_json::Value {
    json!({"svc:web": {
        "hosts": {host: {"secret": host, "issue": true}, OWN: {"secret": "own"}}, "listeners": {"443": "https", "80": "redirect"},
        "routes": [{"path": "/", "backend": {"namespace": "ts", "service": "web", "address": backend.to_string(), "protocol": "http"}}],
    }})
}

/// Name with the user's own certificate.
const OWN: &str = "own.example.com";

/// Whether a replica's metrics have this line.
fn metric(member: &Member, line: &str) -> bool {
    member.get("/metrics").is_ok_and(|page| page.lines().any(|found| found == line))
}

/// A missing or unusable certificate of the user is reported and does not affect other names; a valid one is then served.
async fn own_certificate(
    cluster: &apiserver::Cluster,
    members: &[Member],
    ask: impl Fn(&str, &Path) -> Result<String, String>,
    dir: &Path,
) {
    let reported = |reason: &str| {
        let line = format!("tailyard_certificate_error{{name=\"{OWN}\",reason=\"{reason}\"}} 1");
        for member in members {
            eventually(reason, DEADLINE, || metric(member, &line).then_some(()));
        }
    };
    reported("NoSecret");
    let missing = format!("tailyard_certificate_missing{{proxied_service=\"svc:web\",name=\"{OWN}\"}} 1");
    assert!(members.iter().all(|member| metric(member, &missing)), "{missing}");
    cluster.make_secret("own", &[("tls.crt", "nothing that anybody could read"), ("tls.key", "x")]).await;
    reported("Chain");
    let made = rcgen::generate_simple_self_signed(vec![OWN.to_owned()]).expect("a certificate");
    let ca = dir.join("own.crt");
    std::fs::write(&ca, made.cert.pem()).expect("written");
    assert!(ask(OWN, &ca).is_err(), "its handshakes are refused");
    cluster.patch_secret("own", &[("tls.crt", &made.cert.pem()), ("tls.key", &made.signing_key.serialize_pem())]).await;
    eventually("an answer by the user's name", DEADLINE, || ask(OWN, &ca).ok());
}

#[test]
fn site_is_reached_over_https_through_either_replica() {
    const HOST: &str = "web.tail-lab.ts.net";
    apiserver::cluster(async |cluster| {
        let tailnet = Tailnet::start_with([10, 98, 0], Control::Hosted);
        tailnet.plug_in(10);
        let pebble = Pebble::start(&tailnet, Manner::default());
        let vips = service(&tailnet, "svc:web");
        let (client, _client) = tailnet.node("client");
        let machine = tailnet.machine("backend");
        let _backend = site::backend(&machine.node, 8080);
        cluster.allow("secrets", &[HOST, ACCOUNTS, "own"], &["get", "list", "watch", "patch", "update"]).await;
        cluster.allow("configmaps", &["web-ingress-config"], &["get", "list", "watch"]).await;
        cluster.allow_in("coordination.k8s.io", "leases", &[], &["get", "create", "update", "patch"]).await;
        cluster.make_secret(HOST, &[("tls.crt", ""), ("tls.key", "")]).await;
        cluster.make_secret(ACCOUNTS, &[]).await;
        let site = routes(HOST, SocketAddr::new(machine.address, 8080)).to_string();
        let serve = json!({"Services": {"svc:web": {"TCP": {"443": {"HTTPS": true}}, "Web": {}}}}).to_string();
        let keys = [("serve-config.json", serve.as_str()), ("tailyard-routes.json", &site), ("ingress-config.json", "{}")];
        cluster.write_config("web-ingress-config", &keys).await;

        let account = cluster.service_account();
        let start = |name: &'static str| {
            Member::launch(&tailnet, name, &json!({"AdvertiseServices": ["svc:web"]}), &json!({}), Some(&json!({})), |machine| {
                let own = [("TAILYARD_ACME_DIRECTORY", pebble.directory()), ("TAILYARD_ACME_CA", pebble.ca().display().to_string())];
                in_pod(machine, &account, "ts/web-ingress-config").into_iter().chain(own).collect()
            })
            .joined()
        };
        let begin = Instant::now();
        let mut members = [start("web-0"), start("web-1")];
        let ca = site::root(&tailnet);
        let url = format!("https://{HOST}/page");
        let answer = eventually("an answer over HTTPS", DEADLINE, || site::curl(&client, &url, vips[0], &ca).ok());
        println!("both replicas started to first answer: {:?}", begin.elapsed());
        assert!(answer.starts_with("backend GET /page HTTP/1.1"), "{answer}");
        members.iter().for_each(Member::wait_ready);
        assert_eq!(pebble.issued(), 1, "the other replica orders nothing");
        for member in &members {
            assert_eq!(member.advertised(), names(&["svc:web"]));
        }
        let plain = site::curl(&client, &format!("http://{HOST}/page"), vips[0], &ca).expect("a redirect");
        assert!(plain.is_empty() || plain.contains("301") || plain.contains("https"), "{plain}");
        let ask = |host: &str, ca: &Path| site::curl(&client, &format!("https://{host}/"), vips[0], ca);
        own_certificate(&cluster, &members, ask, tailnet.dir()).await;
        // The replica that the service is routed to leaves; then the other one serves it.
        let _ = members[0].shut_down();
        eventually("an answer through the other", DEADLINE, || site::curl(&client, &url, vips[0], &ca).ok());
        members[0].run();
        members[0].wait_ready();
        let _ = members[1].shut_down();
        eventually("an answer through the first again", DEADLINE, || site::curl(&client, &url, vips[0], &ca).ok());
        assert_eq!(pebble.issued(), 1);
    });
}

#[test]
fn client_port_can_be_reused_after_a_tls_connection() {
    const HOST: &str = "web.tail-lab.ts.net";
    apiserver::cluster(async |cluster| {
        let tailnet = Tailnet::start_with([10, 92, 0], Control::Hosted);
        tailnet.plug_in(10);
        let vips = service(&tailnet, "svc:web");
        let (client, _client) = tailnet.node("client");
        let machine = tailnet.machine("backend");
        let _backend = site::backend(&machine.node, 8080);
        let made = rcgen::generate_simple_self_signed(vec![HOST.to_owned()]).expect("a certificate");
        cluster.allow("secrets", &["own"], &["get", "list", "watch"]).await;
        cluster.allow("configmaps", &["web"], &["get", "list", "watch"]).await;
        cluster.make_secret("own", &[("tls.crt", &made.cert.pem()), ("tls.key", &made.signing_key.serialize_pem())]).await;
        let address = SocketAddr::new(machine.address, 8080).to_string();
        let backend = json!({"namespace": "ts", "service": "web", "address": address, "protocol": "http"});
        let site = json!({"svc:web": {
            "hosts": {HOST: {"secret": "own"}}, "listeners": {"443": "https", "80": "redirect"},
            "routes": [{"path": "/", "backend": backend}],
        }});
        let serve = json!({"Services": {"svc:web": {"TCP": {"443": {"HTTPS": true}}, "Web": {}}}}).to_string();
        let keys = [("serve-config.json", serve.as_str()), ("tailyard-routes.json", &site.to_string()), ("ingress-config.json", "{}")];
        cluster.write_config("web", &keys).await;
        let account = cluster.service_account();
        let conf = json!({"AdvertiseServices": ["svc:web"]});
        let member =
            Member::launch(&tailnet, "web-0", &conf, &json!({}), Some(&json!({})), |machine| in_pod(machine, &account, "ts/web")).joined();
        member.wait_ready();
        eventually("a way to the service", DEADLINE, || client.node.connect(SocketAddr::new(vips[0], 443), TRY).ok());
        let asking = port::Client { node: &client.node, host: HOST, at: vips[0], authority: made.cert.der().clone() };
        assert_eq!(asking.twice(443), Some(["HTTP/1.1 200 OK"; 2].map(str::to_owned)), "{}", member.output());
        // Known behaviour of tailscaled: if its own TCP closes a connection first, it ignores the client's port for a minute.
        assert_eq!(asking.twice(80), None, "tailscaled answers by now: docs/failures.md and bench/words/tls.md say that it does not");
    });
}

#[test]
fn serve_config_of_the_stock_proxy_is_replaced() {
    let tailnet = Tailnet::start_with([10, 93, 0], Control::Hosted);
    let vips = service(&tailnet, "svc:web");
    service(&tailnet, "svc:old");
    let (client, _client) = tailnet.node("client");
    let web = |host: &str| json!({format!("{host}.tail-lab.ts.net:443"): {"Handlers": {"/": {"Proxy": "http://10.0.0.1:80/"}}}});
    let leftover = json!({"Services": {
        "svc:web": {"TCP": {"443": {"HTTPS": true}}, "Web": web("web")},
        "svc:old": {"TCP": {"443": {"HTTPS": true}}, "Web": web("old")},
    }});
    let ours = json!({"Services": {"svc:web": {"TCP": {"443": {"TCPForward": "127.0.0.1:9443", "ProxyProtocol": 2}}}}});
    let member = Member::launch(&tailnet, "one", &json!({}), &json!({}), Some(&ours), |machine| {
        let tailscaled = stock::start(&tailnet, machine, &[]);
        stock::serve(machine, &leftover, &["svc:web", "svc:old"]);
        tailscaled.shut_down();
        // Its config advertises no service: with this setting, served ones are advertised.
        vec![("TS_EXPERIMENTAL_SERVICE_AUTO_ADVERTISEMENT", "true".to_owned())]
    })
    .joined();
    let _listener = preamble::listen(&member.machine.node, 9443);
    let greeting = eventually("an answer", DEADLINE, || client.node.ask_tcp(SocketAddr::new(vips[0], 443), TRY).ok());
    assert_eq!(greeting.name, "one");
    member.wait_ready();
    assert_eq!(member.advertised(), names(&["svc:web"]));
    let applied: serde_json::Value = serde_json::from_str(&member.machine.tailscale(&["serve", "status", "--json"])).expect("a config");
    assert_eq!(applied["Services"], ours["Services"], "nothing is left of what was there");
    // The Tailscale operator reads it from the state.
    let status: serde_json::Value = serde_json::from_str(&member.machine.tailscale(&["status", "--json"])).expect("a status");
    let endpoint = status["CertDomains"][0].as_str().unwrap_or("no-https").to_owned();
    eventually("the name for HTTPS", DEADLINE, || (member.state("https_endpoint").as_ref() == Some(&endpoint)).then_some(()));
}

#[test]
fn readiness_waits_for_approval_and_tailscaled_recovers() {
    let tailnet = Tailnet::start_with([10, 95, 0], Control::Hosted);
    let (mut client, _client) = tailnet.node("client");
    client.tailnet_addresses();
    let backend = tailnet.machine("backend");
    let _plain = backend.node.serve(7000);
    let _announced = preamble::listen_at(&backend.node, backend.address, 9000);
    let serve = json!({"Services": {"svc:late": {"TCP": {"443": {"TCPForward": "127.0.0.1:9443", "ProxyProtocol": 2}}}}});
    let vips = service(&tailnet, "svc:db");
    let mut l3 = mapping(&vips, backend.address);
    l3["proxyProtocol"] = json!([9000]);
    let member = Member::start(&tailnet, "one", &["svc:late", "svc:db"], &json!({"svc:db": l3}), Some(&serve));
    let _listener = preamble::listen(&member.machine.node, 9443);
    eventually("a service that does not exist being waited for", DEADLINE, || {
        member.get("/readyz").ok()?.contains("svc:late (the control server has not approved this node for it)").then_some(())
    });
    let late = service(&tailnet, "svc:late");
    member.wait_ready();

    let at = |vip: IpAddr, port| SocketAddr::new(vip, port);
    let ask = |what: &str, to| eventually(what, DEADLINE, || client.node.ask_tcp(to, TRY).ok());
    assert_eq!(ask("the kernel's port", at(vips[0], 7000)).name, "backend");
    let announced = ask("the announced port", at(vips[0], 9000));
    assert!(client.node.tailnet.values().any(|own| *own == announced.peer.ip()), "{announced:?} is not the client");

    member.machine.kill("tailscaled", Signal::SIGKILL);
    eventually("its death being noticed", DEADLINE, || {
        member.get("/readyz").is_ok_and(|answer| answer.starts_with("HTTP/1.1 503")).then_some(())
    });
    member.wait_ready();
    assert_eq!(member.advertised(), names(&["svc:db", "svc:late"]));
    assert_eq!(ask("the listener after that", at(late[0], 443)).name, "one");
    assert_eq!(ask("the kernel's port after that", at(vips[0], 7000)).name, "backend");
}

#[test]
fn headscale_replicas_fail_over_a_shared_route() {
    const VIP: &str = "10.9.0.1";
    let tailnet = Tailnet::start([10, 94, 0]);
    let backend = tailnet.machine("backend");
    let _served = backend.node.serve(7000);
    let client = tailnet.machine("client");
    let _client = client.tailscaled();
    tailnet.join(&client, &["--accept-routes"]);
    let vip: IpAddr = VIP.parse().expect("an address");
    let conf = json!({"AdvertiseRoutes": [format!("{VIP}/32")]});
    let mapped = json!({"svc:db": mapping(&[vip], backend.address)});
    let start =
        |name: &'static str, config: &serde_json::Value| Member::launch(&tailnet, name, &conf, config, None, |_| Vec::new()).joined();
    let approve = |name: &str| {
        let id = tailnet.node_id(name).to_string();
        tailnet.headscale(&["nodes", "approve-routes", "-i", &id, "-r", &format!("{VIP}/32")]);
    };
    let mut one = start("one", &json!({"svc:db": mapping(&[vip], "fd00::1".parse().expect("an address"))}));
    eventually("joined", DEADLINE, || tailnet.knows("one").then_some(()));
    approve("one");
    let offered = || tailnet.headscale(&["nodes", "list-routes", "-o", "json"]);
    assert!(!offered().contains("\"available_routes\":[\"10.9.0.1/32\"]"), "{}", offered());
    one.ingress(&mapped);
    let at = SocketAddr::new(vip, 7000);
    let answered =
        |what: &str| eventually(what, DEADLINE, || client.node.ask_tcp(at, TRY).ok().filter(|greeting| greeting.name == "backend"));
    answered("an answer by the route");
    one.wait_ready();
    let two = start("two", &mapped);
    eventually("joined", DEADLINE, || tailnet.knows("two").then_some(()));
    approve("two");
    two.wait_ready();
    let begin = Instant::now();
    let duration = one.shut_down();
    answered("an answer through the other");
    assert!(duration < DEADLINE, "{duration:?}");
    println!("left within {duration:?}, answered by the other {:?} after the signal", begin.elapsed());
}
