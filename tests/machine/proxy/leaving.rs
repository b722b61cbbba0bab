//! Drain: unready at once, forwarding until the flows have ended or the grace period is over, then resets at both ends.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use tailyard::model::base::net::Family;

use crate::kernel::entries::{Entry, some_client, track};
use crate::proxy::endpoints::{HOOK, with_hook};
use crate::proxy::replica::{HEALTH_PORT, PATIENCE, Replica, Start, netmap, service};
use kit::netns::{Greeting, Lab, Shape};
use kit::wait::{uninterrupted, until};

/// Time limit for quick operations on a busy machine.
const QUICK: Duration = Duration::from_secs(5);

fn config() -> Value {
    json!({"svc": service(&json!({"fqdn": "target0.tail.lab"}), 10_080, 80)})
}

fn grace(seconds: &str) -> Start {
    Start { args: vec!["--drain-timeout".into(), seconds.into()], ..Start::default() }
}

#[test]
fn idle_replica_exits_before_its_grace_period() {
    let lab = Lab::build(&Shape::default());
    let netmap = netmap(&lab.proxies[0], &lab.targets);
    let mut replica = Replica::launch(&lab.proxies[0], &config().to_string(), &netmap, &grace("1h"));
    replica.wait_ready();
    replica.signal(Signal::SIGTERM);
    assert_eq!(replica.wait_exit(PATIENCE).code(), Some(0));
}

/// Any client can call the hook, and decides when a call begins and ends.
#[test]
fn prestop_hook_calls_of_any_length_and_end_leave_the_drain_its_time() {
    // Begin and end of a call, in seconds after SIGTERM.
    const CALLS: [Option<(f32, f32)>; 6] =
        [None, Some((-3.0, -2.5)), Some((-3.0, -0.2)), Some((-0.5, -0.2)), Some((-3.0, 1.0)), Some((0.5, 1.0))];
    let lab = Lab::build(&Shape { proxies: 6, ..Shape::default() });
    let client = &lab.clients[0];
    let mut config = config();
    // An endpoint to probe keeps a call open.
    config["svc"]["healthCheckEndpoint"] = "http://127.0.0.1:9002/healthz".into();
    let start = Start { env: with_hook(), ..grace("24s") };
    let launch = |proxy| Replica::launch(proxy, &config.to_string(), &netmap(proxy, &lab.targets), &start);
    let mut replicas: Vec<_> = lab.proxies.iter().map(launch).collect();
    replicas.iter_mut().for_each(Replica::wait_ready);
    let mut calls: Vec<Option<TcpStream>> = CALLS.map(|_| None).into();
    let begins = CALLS.iter().enumerate().filter_map(|(number, call)| Some((call.as_ref()?.0, number, true)));
    let ends = CALLS.iter().enumerate().filter_map(|(number, call)| Some((call.as_ref()?.1, number, false)));
    let mut events: Vec<_> = begins.chain(ends).chain([(0.0, usize::MAX, false)]).collect();
    events.sort_by(|(one, ..), (other, ..)| one.total_cmp(other));
    let began = Instant::now();
    for (offset, number, begins) in events {
        sleep((began + Duration::from_secs_f32(offset + 3.0)).saturating_duration_since(Instant::now()));
        if number == usize::MAX {
            for replica in &replicas {
                replica.signal(Signal::SIGTERM);
            }
        } else if begins {
            let mut call = client.connect(SocketAddr::new(replicas[number].pod(Family::V4), HEALTH_PORT), QUICK).expect("accepted");
            call.write_all(format!("GET {HOOK} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).expect("sent");
            calls[number] = Some(call);
        } else {
            calls[number] = None;
        }
    }
    for (replica, call) in replicas.iter_mut().zip(CALLS) {
        replica.signal(Signal::SIGTERM);
        assert_eq!(replica.wait_exit(PATIENCE).code(), Some(0), "{call:?}");
        let log = replica.log();
        let budget = log.lines().find(|line| line.contains("draining: ")).expect("a budget");
        let flows = budget.split("flows: ").nth(1).and_then(|text| text.split('.').next()?.trim_end_matches("s,").parse().ok());
        // Half of the drain timeout is the hook's, three seconds are for the rest.
        assert!(matches!(flows, Some(8 | 9)), "{call:?}: {budget}");
    }
}

#[test]
fn idle_flows_are_reset_after_the_grace_period() {
    let lab = Lab::build(&Shape::default());
    let (client, proxy) = (&lab.clients[0], &lab.proxies[0]);
    let _server = lab.targets[0].serve(80);
    let mut replica = Replica::launch(proxy, &config().to_string(), &netmap(proxy, &lab.targets), &grace("9s"));
    replica.wait_ready();
    let mut flows: Vec<_> = Family::ALL
        .into_iter()
        .flat_map(|family| (0..20).map(move |_| family))
        .map(|family| client.connect(SocketAddr::new(replica.pod(family), 10_080), QUICK).expect("served"))
        .collect();
    for flow in &mut flows {
        Greeting::read(flow).expect("a greeting");
    }
    replica.signal(Signal::SIGTERM);
    until("unready", PATIENCE, || replica.get("/readyz").is_ok_and(|answer| answer.status == 503));
    let late = client.ask_tcp(SocketAddr::new(replica.pod(Family::V4), 10_080), QUICK);
    assert!(late.is_ok(), "it goes on forwarding what still arrives: {late:?}");
    for flow in &mut flows {
        flow.set_read_timeout(Some(PATIENCE)).expect("a socket");
        assert_eq!(uninterrupted(|| flow.read(&mut [0; 1])).expect_err("the replica leaves").kind(), ErrorKind::ConnectionReset);
    }
    assert_eq!(replica.wait_exit(PATIENCE).code(), Some(0));
}

/// A client's kernel may use a port again soon after its connection was reset. Its node's conntrack has that connection for 10 s more.
#[test]
fn client_reaches_another_replica_from_the_port_of_a_connection_that_was_reset() {
    let lab = Lab::build(&Shape { proxies: 2, ..Shape::default() });
    let (client, proxy, other) = (&lab.clients[0], &lab.proxies[0], &lab.proxies[1]);
    let (_server, _other) = (lab.targets[0].serve(80), other.serve(10_080));
    let mut replica = Replica::launch(proxy, &config().to_string(), &netmap(proxy, &lab.targets), &grace("6s"));
    replica.wait_ready();
    client.ip(&format!("route add 10.96.0.7/32 via {}", replica.pod(Family::V4)));
    let route_service = |to: IpAddr| {
        let chain = format!("type nat hook output priority -100; ip daddr 10.96.0.7 tcp dport 80 dnat to {to}:10080");
        client.feed(
            &["nft", "-f", "-"],
            &format!("table ip service\ndelete table ip service\ntable ip service {{ chain output {{ {chain}\n }}\n }}"),
        );
    };
    let connect = || -> io::Result<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((client.cluster[&Family::V4], 40_000)).into())?;
        socket.connect_timeout(&SocketAddr::from(([10, 96, 0, 7], 80)).into(), QUICK)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(socket.into())
    };
    let connect = || client.ns.run(connect).expect("the namespace");
    route_service(replica.pod(Family::V4));
    let mut flow = connect().expect("served");
    Greeting::read(&mut flow).expect("a greeting");
    replica.signal(Signal::SIGTERM);
    route_service(other.cluster[&Family::V4]);
    assert_eq!(uninterrupted(|| flow.read(&mut [0; 1])).expect_err("the replica leaves").kind(), ErrorKind::ConnectionReset);
    drop(flow);
    assert_eq!(replica.wait_exit(PATIENCE).code(), Some(0));
    let mut flow = connect().expect("another replica");
    assert_eq!(Greeting::read(&mut flow).expect("a greeting").name, other.name);
}

/// Closed connections are most of the tracked entries, and flows without an end of their own have to be deleted: neither delays the resets.
#[test]
fn idle_flows_are_reset_in_time_with_a_large_conntrack_table() {
    const TIME_WAIT: u8 = 7;
    let lab = Lab::build(&Shape::default());
    let (client, proxy) = (&lab.clients[0], &lab.proxies[0]);
    let _server = lab.targets[0].serve(80);
    let mut replica = Replica::launch(proxy, &config().to_string(), &netmap(proxy, &lab.targets), &grace("6s"));
    replica.wait_ready();
    let pod = SocketAddr::new(replica.pod(Family::V4), 10_080);
    let mut flows: Vec<_> = (0..50).map(|_| client.connect(pod, QUICK).expect("served")).collect();
    for flow in &mut flows {
        Greeting::read(flow).expect("a greeting");
    }
    let target = SocketAddr::new(lab.targets[0].tailnet[&Family::V4], 80);
    let (SocketAddr::V4(service), SocketAddr::V4(target)) = (pod, target) else { panic!("IPv4") };
    let entry = |tcp| move |number| Entry { client: some_client(number), service, target: Some(target), tcp };
    let (over, datagrams) = ((0..10_000).map(entry(Some(TIME_WAIT))), (0..10_000).map(entry(None)));
    proxy.ns.run(|| track(over.chain(datagrams))).expect("the namespace").expect("tracked");
    replica.signal(Signal::SIGTERM);
    for flow in &mut flows {
        flow.set_read_timeout(Some(PATIENCE)).expect("a socket");
        assert_eq!(uninterrupted(|| flow.read(&mut [0; 1])).expect_err("the replica leaves").kind(), ErrorKind::ConnectionReset);
    }
    assert_eq!(replica.wait_exit(PATIENCE).code(), Some(0));
    let log = replica.log();
    assert!(!log.contains("some flows may not have been reset"), "{log}");
}

#[test]
fn replica_exits_when_its_last_flow_ends() {
    let lab = Lab::build(&Shape::default());
    let (client, proxy) = (&lab.clients[0], &lab.proxies[0]);
    let _server = lab.targets[0].serve(80);
    let mut replica = Replica::launch(proxy, &config().to_string(), &netmap(proxy, &lab.targets), &grace("1h"));
    replica.wait_ready();
    let flow = client.connect(SocketAddr::new(replica.pod(Family::V4), 10_080), QUICK).expect("served");
    replica.signal(Signal::SIGTERM);
    until("draining", PATIENCE, || replica.get("/readyz").is_ok_and(|answer| answer.body.contains("draining")));
    assert!(replica.exited().is_none(), "it waits for its flow");
    drop(flow);
    assert_eq!(replica.wait_exit(PATIENCE).code(), Some(0));
}

/// The drain timeout is an hour, and a flow does not end: only the second signal can end the process within a test's time limit. It is a
/// requested exit, so the status is 0; the flow is not reset, and the rules that forward it stay.
#[test]
fn second_signal_ends_the_drain_with_status_0_without_resets() {
    let lab = Lab::build(&Shape::default());
    let (client, proxy) = (&lab.clients[0], &lab.proxies[0]);
    let _server = lab.targets[0].serve(80);
    let mut replica = Replica::launch(proxy, &config().to_string(), &netmap(proxy, &lab.targets), &grace("1h"));
    replica.wait_ready();
    let mut flow = client.connect(SocketAddr::new(replica.pod(Family::V4), 10_080), QUICK).expect("served");
    Greeting::read(&mut flow).expect("a greeting");
    replica.signal(Signal::SIGTERM);
    until("draining", PATIENCE, || replica.get("/readyz").is_ok_and(|answer| answer.status == 503 && answer.body.contains("draining")));
    assert!(replica.exited().is_none(), "it waits for its flow");
    replica.signal(Signal::SIGTERM);
    assert_eq!(replica.wait_exit(PATIENCE).code(), Some(0));
    let log = replica.log();
    assert!(log.contains("second signal, aborting drain"), "{log}");
    assert!(!log.contains("all flows have ended") && !log.contains("resetting the remaining flows"), "the drain was not over: {log}");
    flow.write_all(b"!").expect("the flow is still forwarded");
    flow.read_exact(&mut [0]).expect("the flow is still forwarded");
}
