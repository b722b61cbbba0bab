//! Swaps of the config under live traffic: changes apply at once, and unchanged services are not affected.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use std::time::Duration;

use serde_json::json;
use tailyard::model::base::net::Family;

use crate::proxy::replica::{PATIENCE, Replica, netmap, service};
use kit::netns::{Greeting, Lab, Shape};
use kit::wait::{uninterrupted, until};

/// Time limit for quick operations on a busy machine.
const QUICK: Duration = Duration::from_secs(5);

fn shape() -> Shape {
    Shape { targets: 2, ..Shape::default() }
}

/// Sends data on an established connection and expects its echo.
fn echo(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"ping")?;
    let mut heard = [0; 4];
    stream.read_exact(&mut heard)
}

#[test]
fn replica_serves_fqdn_and_ip_targets_in_both_families() {
    let lab = Lab::build(&shape());
    let (client, proxy) = (&lab.clients[0], &lab.proxies[0]);
    let servers: Vec<_> = lab.targets.iter().map(|target| target.serve(80)).collect();
    let by_ip = json!({"ip": lab.targets[1].tailnet[&Family::V4].to_string()});
    let config = json!({"name": service(&json!({"fqdn": "Target0.tail.lab"}), 10_080, 80), "address": service(&by_ip, 10_081, 80)});
    let replica = Replica::start(proxy, &config, &netmap(proxy, &lab.targets));
    for family in Family::ALL {
        let to = SocketAddr::new(replica.pod(family), 10_080);
        for (proto, answer) in [("TCP", client.ask_tcp(to, QUICK)), ("UDP", client.ask_udp(to, QUICK))] {
            let greeting = answer.unwrap_or_else(|fault| panic!("{to} by {proto}: {fault}"));
            assert_eq!(greeting.name, "target0", "{to} by {proto}");
            assert_eq!(greeting.peer.ip(), proxy.tailnet[&family], "{proto}: the tailnet sees this node's own address");
        }
    }
    let to = SocketAddr::new(replica.pod(Family::V4), 10_081);
    assert_eq!(client.ask_tcp(to, QUICK).expect("served").name, "target1");
    let refused = client.ask_tcp(SocketAddr::new(replica.pod(Family::V6), 10_081), QUICK).expect_err("an IPv4 target");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "no black hole in the family without a target");
    drop(servers);
}

#[test]
fn retargets_under_load_fail_no_connection() {
    let lab = Lab::build(&shape());
    let (client, proxy) = (&lab.clients[0], &lab.proxies[0]);
    let _servers: Vec<_> = lab.targets.iter().map(|target| target.serve(80)).collect();
    let target = |i: usize| json!({"fqdn": format!("target{i}.tail.lab")});
    let config = |i: usize| json!({"moving": service(&target(i), 10_080, 80), "steady": service(&target(0), 10_081, 80)});
    let replica = Replica::start(proxy, &config(0), &netmap(proxy, &lab.targets));
    let (moving, steady) = (SocketAddr::new(replica.pod(Family::V4), 10_080), SocketAddr::new(replica.pod(Family::V4), 10_081));
    let mut steady_flow = client.connect(steady, QUICK).expect("served");
    Greeting::read(&mut steady_flow).expect("a greeting");
    let mut drained = client.connect(moving, QUICK).expect("served");
    Greeting::read(&mut drained).expect("a greeting");
    let done = AtomicBool::new(false);
    scope(|scope| {
        let load = scope.spawn(|| {
            let mut made = 0;
            while !done.load(Ordering::Relaxed) {
                let greeting = client.ask_tcp(moving, QUICK).expect("no connection fails during swaps");
                assert!(greeting.name.starts_with("target"));
                client.ask_tcp(steady, QUICK).expect("no connection fails during swaps");
                made += 2;
            }
            made
        });
        for i in 1..=50 {
            replica.configure(&config(i % 2));
            let wanted = format!("target{}", i % 2);
            until("the swap is in force", PATIENCE, || client.ask_tcp(moving, QUICK).expect("served").name == wanted);
            echo(&mut steady_flow).expect("an untouched flow lives");
        }
        done.store(true, Ordering::Relaxed);
        assert!(load.join().expect("no connection failed") > 100);
    });
    echo(&mut drained).expect("a flow whose old target still exists drains there");
}

#[test]
fn retarget_moves_udp_and_removed_port_resets_flows() {
    let lab = Lab::build(&shape());
    let (client, proxy) = (&lab.clients[0], &lab.proxies[0]);
    let _servers: Vec<_> = lab.targets.iter().map(|target| target.serve(80)).collect();
    let config = |i: usize| json!({"svc": service(&json!({"fqdn": format!("target{i}.tail.lab")}), 10_080, 80)});
    let replica = Replica::start(proxy, &config(0), &netmap(proxy, &lab.targets));
    let to = SocketAddr::new(replica.pod(Family::V4), 10_080);
    let socket = client.ns.run(|| std::net::UdpSocket::bind("0.0.0.0:0")).expect("the namespace").expect("a socket");
    socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a socket");
    socket.connect(to).expect("a socket");
    let ask = || {
        let mut buffer = [0; 256];
        socket.send(b"?").ok()?;
        let size = uninterrupted(|| socket.recv(&mut buffer)).ok()?;
        String::from_utf8_lossy(&buffer[..size]).split(' ').next().map(str::to_owned)
    };
    until("UDP is served", PATIENCE, || ask().as_deref() == Some("target0"));
    let mut idle = client.connect(to, QUICK).expect("served");
    Greeting::read(&mut idle).expect("a greeting");
    replica.configure(&config(1));
    until("the same UDP flow reaches the new target", PATIENCE, || ask().as_deref() == Some("target1"));
    replica.configure(&json!({}));
    idle.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let fault = uninterrupted(|| idle.read(&mut [0; 1])).expect_err("the flow of a removed port ends with a reset");
    assert_eq!(fault.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn changed_peer_address_is_used_and_old_flows_end() {
    let lab = Lab::build(&shape());
    let (client, proxy) = (&lab.clients[0], &lab.proxies[0]);
    let _servers: Vec<_> = lab.targets.iter().map(|target| target.serve(80)).collect();
    let mut tailnet = netmap(proxy, &lab.targets[..1]);
    let config = json!({"svc": service(&json!({"fqdn": "target0.tail.lab"}), 10_080, 80)});
    let replica = Replica::start(proxy, &config, &tailnet);
    let to = SocketAddr::new(replica.pod(Family::V4), 10_080);
    let mut old = client.connect(to, QUICK).expect("served");
    Greeting::read(&mut old).expect("a greeting");
    tailnet["peers"][0]["addresses"] = json!([lab.targets[1].tailnet[&Family::V4].to_string()]);
    replica.tailnet(&tailnet);
    until("the name is routed to the new address", PATIENCE, || client.ask_tcp(to, QUICK).is_ok_and(|greeting| greeting.name == "target1"));
    old.set_read_timeout(Some(PATIENCE)).expect("a socket");
    assert_eq!(uninterrupted(|| old.read(&mut [0; 1])).expect_err("its target is gone").kind(), std::io::ErrorKind::ConnectionReset);
    tailnet["peers"] = json!([]);
    replica.tailnet(&tailnet);
    let refused = || client.ask_tcp(to, QUICK).is_err_and(|fault| fault.kind() == std::io::ErrorKind::ConnectionRefused);
    until("a name that has left the tailnet is refused at once", PATIENCE, refused);
}

#[test]
fn changed_own_address_is_used_as_source() {
    let lab = Lab::build(&shape());
    let (client, proxy) = (&lab.clients[0], &lab.proxies[0]);
    let _server = lab.targets[0].serve(80);
    let mut tailnet = netmap(proxy, &lab.targets);
    let config = json!({"svc": service(&json!({"fqdn": "target0.tail.lab"}), 10_080, 80)});
    let replica = Replica::start(proxy, &config, &tailnet);
    proxy.ip("addr add 100.64.0.99/24 dev tailscale0\n");
    tailnet["self"]["addresses"] = json!(["100.64.0.99"]);
    replica.tailnet(&tailnet);
    let to = SocketAddr::new(replica.pod(Family::V4), 10_080);
    until("the target sees the new address", PATIENCE, || {
        client.ask_tcp(to, QUICK).is_ok_and(|greeting| greeting.peer.ip().to_string() == "100.64.0.99")
    });
}

#[test]
fn ten_thousand_services_are_served_and_a_change_applies_at_once() {
    let lab = Lab::build(&shape());
    let (client, proxy) = (&lab.clients[0], &lab.proxies[0]);
    let _servers: Vec<_> = lab.targets.iter().map(|target| target.serve(80)).collect();
    let config = |last: usize| {
        let entry = |i: u16| {
            let target = if i == 9_999 { last } else { 0 };
            (format!("svc-{i}"), service(&json!({"fqdn": format!("target{target}.tail.lab")}), 10_000 + i, 80))
        };
        serde_json::Value::Object((0..10_000).map(entry).collect())
    };
    let replica = Replica::start(proxy, &config(0), &netmap(proxy, &lab.targets));
    for port in [10_000, 14_321, 19_999] {
        let to = SocketAddr::new(replica.pod(Family::V6), port);
        assert_eq!(client.ask_tcp(to, QUICK).expect("served").name, "target0");
    }
    replica.configure(&config(1));
    let to = SocketAddr::new(replica.pod(Family::V4), 19_999);
    until("the swap is in force", PATIENCE, || client.ask_tcp(to, QUICK).expect("served").name == "target1");
    until("all are in the status", PATIENCE, || replica.status()["services"].as_object().is_some_and(|services| services.len() == 10_000));
}
