//! Flows in the real kernel: which of them a change ends, how their ends learn of it, and what it costs.

#[path = "flows/stage.rs"]
mod stage;

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tailyard::model::flow::FlowFilter;
use tailyard::model::net::{Family, Proto};
use tailyard::model::ruleset::Ruleset;

use self::stage::{Stage, answer, ask, echo, is_reset, key, udp};
use crate::firewall::Backend::{self, IptablesLegacy, IptablesNft, Nftables};

const SECOND: Duration = Duration::from_secs(1);
const BACKENDS: [Backend; 3] = [Nftables, IptablesNft, IptablesLegacy];

/// An end that sends until it fails: how it failed.
fn sender(mut stream: TcpStream) -> JoinHandle<io::ErrorKind> {
    stream.set_write_timeout(Some(SECOND * 5)).expect("set");
    thread::spawn(move || {
        loop {
            if let Err(error) = stream.write_all(&[7; 1000]) {
                return error.kind();
            }
        }
    })
}

fn any(family: Family) -> SocketAddr {
    SocketAddr::new(if family == Family::V4 { IpAddr::from([0; 4]) } else { IpAddr::from([0_u16; 8]) }, 0)
}

#[test]
fn both_ends_of_an_idle_flow_of_a_removed_key_are_reset() {
    for (backend, family) in BACKENDS.into_iter().flat_map(|backend| Family::ALL.map(|family| (backend, family))) {
        let tcp = key(Proto::Tcp, 10042);
        let mut stage = Stage::with(backend, tcp, family, 80);
        let listener = stage.listen(0, family, 80);
        let (mut client, mut server) = stage.pair(stage.pod(family, 10042), &listener);
        let start = Instant::now();
        let (deleted, report) = stage.remove(tcp);
        assert!(is_reset(&mut server), "the target's end ({backend:?}, {family})");
        assert!(is_reset(&mut client), "the client's end ({backend:?}, {family})");
        assert!(start.elapsed() < SECOND, "{backend:?}, {family}: {:?}", start.elapsed());
        assert_eq!((deleted, report.reset), (1, 1));
    }
}

#[test]
fn both_ends_of_an_active_flow_of_a_removed_key_are_reset() {
    for (family, upward) in [(Family::V4, true), (Family::V4, false), (Family::V6, true), (Family::V6, false)] {
        let tcp = key(Proto::Tcp, 10042);
        let mut stage = Stage::with(Nftables, tcp, family, 80);
        let listener = stage.listen(0, family, 80);
        let (client, server) = stage.pair(stage.pod(family, 10042), &listener);
        let (from, mut to) = if upward { (client, server) } else { (server, client) };
        let receiver = thread::spawn(move || is_reset(&mut to));
        let sender = sender(from);
        let start = Instant::now();
        stage.remove(tcp);
        assert_eq!(sender.join().expect("ended"), io::ErrorKind::ConnectionReset, "the sender's end ({family}, upward {upward})");
        assert!(receiver.join().expect("ended"), "the receiver's end ({family}, upward {upward})");
        assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
    }
}

/// The client's node translates a cluster address and drops what its own connection tracking finds wrong, as kube-proxy does.
#[test]
fn a_cluster_address_in_front_of_the_pod_does_not_keep_the_reset_from_the_client() {
    for active in [false, true] {
        let tcp = key(Proto::Tcp, 10042);
        let mut stage = Stage::with(Nftables, tcp, Family::V4, 80);
        let pod = stage.pod(Family::V4, 10042);
        stage.client().ip(&format!("route add 10.96.0.0/16 via {}\n", pod.ip()));
        let service = format!(
            "table ip service {{
                chain output {{
                    type nat hook output priority -100
                    ip daddr 10.96.0.1 tcp dport 80 dnat to {pod}
                }}
                chain input {{
                    type filter hook input priority 0
                    ct state invalid drop
                }}
            }}"
        );
        stage.client().feed(&["nft", "-f", "-"], &service);
        let listener = stage.listen(0, Family::V4, 80);
        let (mut client, mut server) = stage.pair(SocketAddr::from(([10, 96, 0, 1], 80)), &listener);
        let source = active.then(|| sender(server.try_clone().expect("cloned")));
        let start = Instant::now();
        stage.remove(tcp);
        assert!(is_reset(&mut client), "the client's end");
        match source {
            Some(source) => assert_eq!(source.join().expect("ended"), io::ErrorKind::ConnectionReset),
            None => assert!(is_reset(&mut server), "the target's end"),
        }
        assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
    }
}

#[test]
fn a_flow_drains_on_a_target_that_lives_and_its_client_is_reset_when_that_leaves_the_tailnet() {
    for family in Family::ALL {
        let tcp = key(Proto::Tcp, 10042);
        let mut stage = Stage::with(Nftables, tcp, family, 80);
        let (old, new) = (stage.target(0, family, 80), stage.target(1, family, 80));
        let (listener, _other) = (stage.listen(0, family, 80), stage.listen(1, family, 80));
        let (mut client, mut server) = stage.pair(stage.pod(family, 10042), &listener);
        assert_eq!(stage.point(tcp, &[new]).0, 0);
        echo(&mut client, &mut server);
        stage.point(tcp, &[old]);
        stage.lab.targets[0].ip("link set tailscale0 down\n");
        let start = Instant::now();
        let end = thread::spawn(move || is_reset(&mut client).then(|| start.elapsed()));
        stage.change_knowing(&|ip| ip != old.ip(), |rules| drop(rules.ports.insert(tcp, [new].into())));
        let after = end.join().expect("ended").expect("the client's end is reset");
        assert!(after < SECOND, "{after:?}");
    }
}

#[test]
fn udp_moves_to_the_new_target_with_the_next_datagram_and_is_refused_when_its_key_is_gone() {
    for (backend, family) in BACKENDS.into_iter().flat_map(|backend| Family::ALL.map(|family| (backend, family))) {
        let port = key(Proto::Udp, 10053);
        let mut stage = Stage::with(backend, port, family, 53);
        let (old, new, pod) = (stage.target(0, family, 53), stage.target(1, family, 53), stage.pod(family, 10053));
        let (one, two) = (udp(&stage.lab.targets[0], old), udp(&stage.lab.targets[1], new));
        let client = udp(stage.client(), any(family));
        thread::scope(|scope| {
            scope.spawn(|| answer(&one, "old"));
            assert_eq!(ask(&client, pod).expect("answered"), "old");
        });
        assert_eq!(stage.point(port, &[new]).0, 1);
        thread::scope(|scope| {
            scope.spawn(|| answer(&two, "new"));
            assert_eq!(ask(&client, pod).expect("answered"), "new");
        });
        stage.remove(port);
        assert_eq!(ask(&client, pod).expect_err("refused").kind(), io::ErrorKind::ConnectionRefused);
    }
}

#[test]
fn flows_of_untouched_keys_run_through_a_hundred_changes() {
    let (kept, other) = (key(Proto::Tcp, 10001), key(Proto::Tcp, 10002));
    let mut stage = Stage::with(Nftables, kept, Family::V4, 80);
    let (one, two, pod) = (stage.target(0, Family::V4, 81), stage.target(1, Family::V4, 81), stage.pod(Family::V4, 10001));
    let listener = stage.listen(0, Family::V4, 80);
    let mut pairs: Vec<_> = (0..10).map(|_| stage.pair(pod, &listener)).collect();
    for round in 0..100 {
        let (deleted, _) = match round % 4 {
            0 => stage.point(other, &[one]),
            1 => stage.point(other, &[two]),
            2 => stage.point(other, &[]),
            _ => stage.remove(other),
        };
        assert_eq!(deleted, 0);
        let (client, server) = &mut pairs[round % 10];
        echo(client, server);
    }
    for (client, server) in &mut pairs {
        echo(client, server);
    }
}

#[test]
fn a_replica_that_leaves_resets_idle_and_active_flows_at_both_ends() {
    BACKENDS.into_iter().for_each(leave);
}

fn leave(backend: Backend) {
    let keys = [key(Proto::Tcp, 10004), key(Proto::Tcp, 10006)];
    let mut stage = Stage::new(backend);
    for (key, family) in keys.into_iter().zip(Family::ALL) {
        stage.point(key, &[stage.target(0, family, 80)]);
    }
    let listeners = Family::ALL.map(|family| stage.listen(0, family, 80));
    let pods = [stage.pod(Family::V4, 10004), stage.pod(Family::V6, 10006)];
    let mut idle: Vec<_> = (0..200).map(|round| stage.pair(pods[round % 2], &listeners[round % 2])).collect();
    let active: Vec<_> = (0..20).map(|round| stage.pair(pods[round % 2], &listeners[round % 2])).collect();
    let reader = |mut end: TcpStream| thread::spawn(move || is_reset(&mut end));
    let active: Vec<_> = active.into_iter().map(|(client, server)| (sender(client), reader(server))).collect();
    let start = Instant::now();
    let (deleted, report) = stage.change(|rules| *rules = Ruleset::empty(rules.interface.clone()));
    for (client, server) in &mut idle {
        assert!(is_reset(server), "an idle target's end");
        assert!(is_reset(client), "an idle client's end");
    }
    for (sender, receiver) in active {
        assert_eq!(sender.join().expect("ended"), io::ErrorKind::ConnectionReset);
        assert!(receiver.join().expect("ended"), "an active target's end");
    }
    println!("{backend:?}: 200 idle and 20 active flows ended at both ends in {:?}: {report:?}", start.elapsed());
    assert!(start.elapsed() < SECOND * 2, "{:?}", start.elapsed());
    assert_eq!(deleted, 220);
}

#[test]
fn flows_of_an_address_that_is_no_longer_ours_end_and_new_ones_leave_by_the_new_one() {
    let (tcp, port) = (key(Proto::Tcp, 10042), key(Proto::Udp, 10053));
    let mut stage = Stage::with(Nftables, tcp, Family::V4, 80);
    stage.point(port, &[stage.target(0, Family::V4, 53)]);
    let (listener, resolver) = (stage.listen(0, Family::V4, 80), udp(&stage.lab.targets[0], stage.target(0, Family::V4, 53)));
    let (tcp_pod, udp_pod) = (stage.pod(Family::V4, 10042), stage.pod(Family::V4, 10053));
    let (mut client, server) = stage.pair(tcp_pod, &listener);
    assert_eq!(server.peer_addr().expect("connected").ip(), stage.own(Family::V4));
    let asker = udp(stage.client(), any(Family::V4));
    let seen = || {
        thread::scope(|scope| {
            let from = scope.spawn(|| answer(&resolver, "it"));
            assert_eq!(ask(&asker, udp_pod).expect("answered"), "it");
            from.join().expect("answered").ip()
        })
    };
    assert_eq!(seen(), stage.own(Family::V4));
    let new = IpAddr::from([100, 64, 0, 77]);
    stage.proxy().ip(&format!("addr del {}/24 dev tailscale0\naddr add {new}/24 dev tailscale0\n", stage.own(Family::V4)));
    let start = Instant::now();
    let end = thread::spawn(move || is_reset(&mut client).then(|| start.elapsed()));
    stage.change(|rules| assert!(rules.source.insert(Family::V4, new).is_some()));
    let after = end.join().expect("ended").expect("the client's end is reset");
    assert!(after < SECOND, "{after:?}");
    assert_eq!(seen(), new);
    let (_client, server) = stage.pair(tcp_pod, &listener);
    assert_eq!(server.peer_addr().expect("connected").ip(), new);
}

#[test]
fn a_deletion_never_hits_a_younger_flow_of_the_same_client() {
    let port = key(Proto::Udp, 10053);
    let mut stage = Stage::with(Nftables, port, Family::V4, 53);
    let targets = [stage.target(1, Family::V4, 53), stage.target(0, Family::V4, 53)];
    let client = udp(stage.client(), any(Family::V4));
    client.connect(stage.pod(Family::V4, 10053)).expect("connected");
    let _sinks = [0, 1].map(|index| udp(&stage.lab.targets[index], stage.target(index, Family::V4, 53)));
    for round in 0..50 {
        client.send(b"?").expect("sent");
        let older = stage.flows(FlowFilter { key: Some(port), ..FlowFilter::forwarded() });
        assert_eq!(older.len(), 1, "round {round}");
        assert_eq!(stage.point(port, &[targets[round % 2]]).0, 1);
        client.send(b"?").expect("sent");
        let younger = stage.flows(FlowFilter::forwarded());
        assert_eq!((younger.len(), younger[0].original), (1, older[0].original));
        assert!(!stage.conntrack().delete(&older[0]).expect("asked"), "round {round}: the younger flow was taken for the older");
        assert_eq!(stage.flows(FlowFilter::forwarded()).len(), 1);
    }
}

#[test]
fn a_full_table_is_seen_and_does_not_harm_flows_that_exist() {
    let tcp = key(Proto::Tcp, 10042);
    let stage = Stage::with(Nftables, tcp, Family::V4, 80);
    let listener = stage.listen(0, Family::V4, 80);
    let (mut client, mut server) = stage.pair(stage.pod(Family::V4, 10042), &listener);
    let mut conntrack = stage.conntrack();
    let before = conntrack.pressure().expect("read");
    assert!((1..before.limit).contains(&before.entries), "{before:?}");
    assert!(before.limit <= 1 << 20, "a table of {} cannot be filled in a test: lower net.netfilter.nf_conntrack_max", before.limit);
    let start = Instant::now();
    for _ in 0..=before.limit / 60_000 {
        let socket = udp(stage.client(), any(Family::V4));
        for port in 1..=60_000 {
            // A refusal of an earlier datagram is no matter.
            let _ = socket.send_to(b"", stage.pod(Family::V4, port));
        }
    }
    let full = conntrack.pressure().expect("read");
    println!("the table filled in {:?}: {full:?}", start.elapsed());
    assert!(full.entries >= full.limit - full.limit / 100, "{full:?}");
    assert!(full.dropped + full.evicted > before.dropped + before.evicted, "{full:?}");
    echo(&mut client, &mut server);
}
