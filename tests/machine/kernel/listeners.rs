//! Connections to a Tailscale Service that end in the Pod's kernel: the listener sees the client, and no other connection reaches it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tailyard::model::base::net::{Family, InterfaceName};
use tailyard::model::base::netmap::{NetMap, SelfNode};
use tailyard::model::firewall::Audit;
use tailyard::model::plan::Planned;
use tailyard::model::plan::world::{ServiceListeners, VhostListeners, World};

use crate::kernel::firewall::{Backend, Firewall, on_every_backend};
use crate::kernel::packets::{AT_ONCE, PATIENCE, Scene, vip};
use kit::front_end::backend::{self, header};
use kit::front_end::front::{Front, Options, get1, got, service, site};
use kit::netns::{Greeting, Node, TAILNET};

/// Port of the Tailscale Service.
const HTTPS: u16 = 443;
/// Port of the listener.
const LISTENER: u16 = 40_443;
const NAME: &str = "web.tail.ts.net";

fn addresses() -> [IpAddr; 2] {
    Family::ALL.map(|family| vip(family, 5))
}

/// Plan for listeners of one Tailscale Service, by its ports.
fn planned(scene: &Scene, ports: impl IntoIterator<Item = (u16, u16)>) -> Planned {
    let listeners = ServiceListeners { addresses: addresses().into(), ports: ports.into_iter().collect() };
    let listeners = VhostListeners::from([("svc:web".into(), listeners)]);
    let node = SelfNode { addresses: scene.proxy().tailnet.values().copied().collect(), ..SelfNode::default() };
    Planned::new(&World {
        listeners: Arc::new(listeners),
        netmap: Some(Arc::new(NetMap { node: Some(node), ..NetMap::default() })),
        ..World::empty(InterfaceName::tailscale0(), [].into())
    })
}

fn refused(answer: &io::Result<Greeting>) -> bool {
    answer.as_ref().is_err_and(|fault| fault.kind() == io::ErrorKind::ConnectionRefused)
}

fn listener_sees_the_client_and_no_other_connection(backend: Backend) {
    let scene = Scene::build();
    let (proxy, client, neighbour) = (scene.proxy(), &scene.lab.targets[0], &scene.lab.clients[0]);
    let _served = proxy.serve(LISTENER);
    let mut firewall = Firewall::load(backend, proxy, planned(&scene, [(HTTPS, LISTENER)]).ruleset);
    assert_eq!(firewall.audit(), Audit::Same);
    translate_for_the_cluster(proxy, LISTENER);
    for family in Family::ALL {
        let (service, own, pod) = (vip(family, 5), proxy.tailnet[&family], proxy.cluster[&family]);
        let at = |address, port| SocketAddr::new(address, port);
        let greeting = client.ask_tcp(at(service, HTTPS), PATIENCE).expect("an answer");
        assert_eq!((greeting.name.as_str(), greeting.peer.ip()), ("proxy0", client.tailnet[&family]), "{family}");
        for (what, answer) in [
            ("another port", client.ask_tcp(at(service, 80), AT_ONCE)),
            ("the listener's port of the Service", client.ask_tcp(at(service, LISTENER), AT_ONCE)),
            ("UDP", client.ask_udp(at(service, HTTPS), AT_ONCE)),
            ("the node's address", client.ask_tcp(at(own, LISTENER), AT_ONCE)),
            ("the Pod's address", neighbour.ask_tcp(at(pod, LISTENER), AT_ONCE)),
            ("the Pod itself", proxy.ask_tcp(at(own, LISTENER), AT_ONCE)),
        ] {
            assert!(refused(&answer), "{what}, {family}: {answer:?}");
        }
        // A neighbour on the node network may have routes to the addresses.
        neighbour.ip(&format!("route replace {service} via {pod}\nroute replace {own} via {pod}\n"));
        for to in [at(service, HTTPS), at(own, LISTENER), at(pod, HTTPS)] {
            let answer = neighbour.ask_tcp(to, AT_ONCE / 10);
            assert!(answer.is_err(), "a neighbour to {to}: {answer:?}");
        }
    }
    // A removed listener ends no connection.
    let open = Family::ALL.map(|family| client.connect(SocketAddr::new(vip(family, 5), HTTPS), PATIENCE).expect("connected"));
    let nothing = planned(&scene, []).ruleset;
    firewall.change(|rules| *rules = nothing);
    assert_eq!(firewall.audit(), Audit::Same);
    for (family, mut stream) in Family::ALL.into_iter().zip(open) {
        Greeting::read(&mut stream).expect("a greeting");
        assert!(echoes(&mut stream), "{family}");
        assert!(refused(&client.ask_tcp(SocketAddr::new(vip(family, 5), HTTPS), AT_ONCE)), "{family}");
    }
}

/// Another program's rules, which translate connections of the cluster to the Pod's port 443.
fn translate_for_the_cluster(proxy: &Node, listener: u16) {
    let rule = |family: Family| {
        let ip = if family == Family::V4 { "ip" } else { "ip6" };
        let to = SocketAddr::new(proxy.tailnet[&family], listener);
        format!("iifname \"eth0\" {ip} daddr {} tcp dport {HTTPS} dnat {ip} to {to}; ", proxy.cluster[&family])
    };
    let [v4, v6] = Family::ALL.map(rule);
    let table = format!("table inet other {{ chain first {{ type nat hook prerouting priority -150; {v4}{v6}}}; }}\n");
    proxy.feed(&["nft", "-f", "-"], &table);
}

fn echoes(stream: &mut TcpStream) -> bool {
    stream.write_all(b"echo").is_ok() && stream.read_exact(&mut [0; 4]).is_ok()
}

/// While tailscaled and its routes are away, a node of the cluster would get the replies.
fn replies_leave_only_by_the_tailnet(backend: Backend) {
    let scene = Scene::build();
    let (proxy, client, stranger) = (scene.proxy(), &scene.lab.targets[0], &scene.lab.clients[1]);
    let _served = proxy.serve(LISTENER);
    let _firewall = Firewall::load(backend, proxy, planned(&scene, [(HTTPS, LISTENER)]).ruleset);
    let count = "table inet leak { counter leaked { }; chain in { type filter hook prerouting priority -300; \
                 tcp sport { 443, 40443 } counter name leaked; }; }\n";
    stranger.feed(&["nft", "-f", "-"], count);
    for family in Family::ALL {
        let mut stream = client.connect(SocketAddr::new(vip(family, 5), HTTPS), PATIENCE).expect("connected");
        Greeting::read(&mut stream).expect("a greeting");
        let address = client.tailnet[&family];
        proxy.ip(&format!("route replace {address} via {} dev eth0\n", stranger.cluster[&family]));
        stream.set_read_timeout(Some(Duration::from_millis(500))).expect("a socket");
        assert!(!echoes(&mut stream), "{family}");
        let leaked = stranger.feed(&["nft", "list", "counter", "inet", "leak", "leaked"], "");
        assert!(leaked.contains("packets 0 "), "{family}: {leaked}");
        // It continues when the route returns.
        proxy.ip(&format!("route replace {address} dev {TAILNET}\n"));
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.read_exact(&mut [0; 4]).unwrap_or_else(|fault| panic!("{family}: {fault}"));
    }
}

/// A site whose requests arrive at the front end of a proxy, by the kernel's TCP.
fn front_end_serves_clients_of_the_service_alone(backend: Backend) {
    let scene = Scene::build();
    let (proxy, client, neighbour) = (scene.proxy(), &scene.lab.targets[0], &scene.lab.clients[0]);
    let requests = async || {
        let upstream = backend::Backend::new("a").await;
        let mut site = site(NAME, &service(upstream.address, "http"));
        site["addresses"] = json!(addresses());
        let mut front = Front::with(json!({"svc:web": site}), Options { kernel_tcp: true, ..Options::default() }).await;
        let status = front.placed("svc:web", |status| status.kernel.len() == 2).await;
        let mut ruleset = planned(&scene, status.kernel.iter().map(|(port, to)| (*port, *to))).ruleset;
        let listener = |family| SocketAddr::new(proxy.tailnet[&family], status.kernel[&HTTPS]);
        // A rule that is wrong: another Tailscale Service, whose access rules are others.
        ruleset.listeners.extend(Family::ALL.map(|family| (SocketAddr::new(vip(family, 6), HTTPS), listener(family))));
        let firewall = Firewall::load(backend, proxy, ruleset);
        for family in Family::ALL {
            let received = ask(&front, client, SocketAddr::new(vip(family, 5), HTTPS)).await.expect("an answer");
            assert_eq!(header(&received, "x-forwarded-for"), Some(&*client.tailnet[&family].to_string()));
            let other = ask(&front, client, SocketAddr::new(vip(family, 6), HTTPS)).await;
            assert_eq!(other, None, "another Tailscale Service, {family}");
        }
        // Without rules the listener's port is reachable, but only connections to the Tailscale Service are served.
        firewall.remove();
        translate_for_the_cluster(proxy, status.kernel[&HTTPS]);
        for family in Family::ALL {
            let pod = SocketAddr::new(proxy.cluster[&family], HTTPS);
            for (what, from, to) in [("the node's address", client, listener(family)), ("the Pod's address", neighbour, pod)] {
                from.connect(to, PATIENCE).unwrap_or_else(|fault| panic!("{what}, {family}: {fault}"));
                assert_eq!(ask(&front, from, to).await, None, "{what}, {family}");
            }
        }
    };
    proxy.ns.block_on(requests).expect("the namespace");
}

/// The request as the backend received it.
async fn ask(front: &Front, client: &Node, to: SocketAddr) -> Option<serde_json::Value> {
    let stream = client.connect(to, PATIENCE).ok()?;
    stream.set_nonblocking(true).ok()?;
    let stream = front.secure(tokio::net::TcpStream::from_std(stream).ok()?, NAME, "http/1.1").await.ok()?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
    tokio::spawn(connection);
    let received = got(sender.send_request(get1(&format!("https://{NAME}/path")))).await;
    assert_eq!(received.status, StatusCode::OK, "{received:?}");
    Some(received.echoed())
}

on_every_backend!(
    listener_sees_the_client_and_no_other_connection,
    replies_leave_only_by_the_tailnet,
    front_end_serves_clients_of_the_service_alone,
);
