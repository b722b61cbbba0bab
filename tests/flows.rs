//! Flows in the real kernel: which of them a change ends, how their ends learn of it, and what it costs.
//!
//! Needs: namespaces (root, or `unshare -Urnm`), `nft` and `ip`.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

#[path = "flows/lab.rs"]
mod lab;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lab::{Lab, OWN, answer, ask, echo, eventually, is_reset, key, pod, rules, run, target, udp};
use tailyard::edge::conntrack::Conntrack;
use tailyard::model::flow::FlowFilter;
use tailyard::model::net::{Family, Proto};
use tailyard::model::ruleset::Ruleset;

/// An end that sends until it fails.
fn sender(mut stream: TcpStream) -> JoinHandle<io::ErrorKind> {
    stream.set_write_timeout(Some(Duration::from_secs(5))).expect("set");
    thread::spawn(move || {
        loop {
            if let Err(error) = stream.write_all(&[7; 1000]) {
                return error.kind();
            }
        }
    })
}

#[test]
fn both_ends_of_an_idle_flow_of_a_removed_key_are_reset() {
    for family in Family::ALL {
        let (tcp, to) = (key(Proto::Tcp, 10042), target(family, 2, 80));
        let mut lab = Lab::new(rules(&[(tcp, &[to])]));
        let listener = lab.listen(to);
        let (mut client, mut server) = lab.pair(pod(family, 10042), &listener);
        let start = Instant::now();
        let (deleted, report) = lab.change(|rules| rules.ports.clear());
        assert!(is_reset(&mut server), "the target's end");
        assert!(is_reset(&mut client), "the client's end");
        assert!(start.elapsed() < Duration::from_secs(1));
        assert_eq!((deleted, report.reset), (1, 1));
    }
}

#[test]
fn both_ends_of_an_active_flow_of_a_removed_key_are_reset() {
    for (family, upward) in [(Family::V4, true), (Family::V4, false), (Family::V6, true), (Family::V6, false)] {
        let (tcp, to) = (key(Proto::Tcp, 10042), target(family, 2, 80));
        let mut lab = Lab::new(rules(&[(tcp, &[to])]));
        let listener = lab.listen(to);
        let (client, server) = lab.pair(pod(family, 10042), &listener);
        let (from, mut to) = if upward { (client, server) } else { (server, client) };
        let receiver = thread::spawn(move || is_reset(&mut to));
        let sender = sender(from);
        eventually("data flows", Duration::from_secs(3), || lab.flows(FlowFilter::forwarded()).len() == 1);
        let start = Instant::now();
        lab.change(|rules| rules.ports.clear());
        assert_eq!(sender.join().expect("ended"), io::ErrorKind::ConnectionReset, "the sender's end ({family}, upward {upward})");
        assert!(receiver.join().expect("ended"), "the receiver's end ({family}, upward {upward})");
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }
}

#[test]
fn a_cluster_address_in_front_of_the_pod_does_not_keep_the_reset_from_the_client() {
    let (tcp, to) = (key(Proto::Tcp, 10042), target(Family::V4, 2, 80));
    for active in [false, true] {
        let mut lab = Lab::new(rules(&[(tcp, &[to])]));
        run(&lab.client, "ip", "route add 10.96.0.0/16 via 10.9.0.1", "");
        let service = "table ip service {
            chain output {
                type nat hook output priority -100
                ip daddr 10.96.0.1 tcp dport 80 dnat to 10.9.0.1:10042
            }
            chain input {
                type filter hook input priority 0
                ct state invalid drop
            }
        }";
        run(&lab.client, "nft", "-f -", service);
        let listener = lab.listen(to);
        let (mut client, mut server) = lab.pair(SocketAddr::from(([10, 96, 0, 1], 80)), &listener);
        let source = active.then(|| sender(server.try_clone().expect("cloned")));
        let start = Instant::now();
        lab.change(|rules| rules.ports.clear());
        assert!(is_reset(&mut client), "the client's end");
        match source {
            Some(source) => assert_eq!(source.join().expect("ended"), io::ErrorKind::ConnectionReset),
            None => assert!(is_reset(&mut server), "the target's end"),
        }
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }
}

#[test]
fn a_client_whose_target_has_left_the_tailnet_is_reset_and_one_whose_target_lives_drains() {
    for family in Family::ALL {
        let (tcp, old, new) = (key(Proto::Tcp, 10042), target(family, 3, 80), target(family, 2, 80));
        let mut lab = Lab::new(rules(&[(tcp, &[old])]));
        let (listener, _other) = (lab.listen(old), lab.listen(new));
        let (mut client, mut server) = lab.pair(pod(family, 10042), &listener);
        lab.change(|rules| rules.ports = [(tcp, [new].into())].into());
        echo(&mut client, &mut server);
        lab.change(|rules| rules.ports = [(tcp, [old].into())].into());
        run(&lab.tailnet, "ip", &format!("addr del {}/{} dev tailscale0", old.ip(), if old.is_ipv4() { 24 } else { 64 }), "");
        let start = Instant::now();
        lab.change_with(|rules| rules.ports = [(tcp, [new].into())].into(), &|ip| ip != old.ip());
        assert!(is_reset(&mut client), "the client's end");
        println!("{family} client of a lost target reset after {:?}", start.elapsed());
    }
}

#[test]
fn udp_moves_to_the_new_target_with_the_next_datagram_and_is_refused_when_its_key_is_gone() {
    for family in Family::ALL {
        let (port, old, new) = (key(Proto::Udp, 10053), target(family, 2, 53), target(family, 3, 53));
        let mut lab = Lab::new(rules(&[(port, &[old])]));
        let (one, two) = (udp(&lab.tailnet, old), udp(&lab.tailnet, new));
        let client = udp(&lab.client, SocketAddr::new(if family == Family::V4 { [0; 4].into() } else { [0_u16; 8].into() }, 0));
        thread::scope(|scope| {
            scope.spawn(|| answer(&one, "old"));
            assert_eq!(ask(&client, pod(family, 10053)).expect("answered"), "old");
        });
        let (deleted, _) = lab.change(|rules| rules.ports = [(port, [new].into())].into());
        assert_eq!(deleted, 1);
        thread::scope(|scope| {
            scope.spawn(|| answer(&two, "new"));
            assert_eq!(ask(&client, pod(family, 10053)).expect("answered"), "new");
        });
        lab.change(|rules| rules.ports.clear());
        let refused = ask(&client, pod(family, 10053)).expect_err("refused");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}

#[test]
fn flows_of_untouched_keys_run_through_a_hundred_changes() {
    let (kept, other) = (key(Proto::Tcp, 10001), key(Proto::Tcp, 10002));
    let (to, one, two) = (target(Family::V4, 2, 80), target(Family::V4, 3, 80), target(Family::V4, 4, 80));
    let mut lab = Lab::new(rules(&[(kept, &[to])]));
    let listener = lab.listen(to);
    let mut pairs: Vec<_> = (0..10).map(|_| lab.pair(pod(Family::V4, 10001), &listener)).collect();
    for round in 0..100 {
        lab.change(|rules| match round % 4 {
            0 => drop(rules.ports.insert(other, [one].into())),
            1 => drop(rules.ports.insert(other, [two].into())),
            2 => drop(rules.ports.insert(other, [].into())),
            _ => drop(rules.ports.remove(&other)),
        });
        let (client, server) = &mut pairs[round % 10];
        echo(client, server);
    }
    for (client, server) in &mut pairs {
        echo(client, server);
    }
}

#[test]
fn a_replica_that_leaves_resets_idle_and_active_flows_at_both_ends() {
    let (four, six) = (key(Proto::Tcp, 10004), key(Proto::Tcp, 10006));
    let targets = [target(Family::V4, 2, 80), target(Family::V6, 2, 80)];
    let mut lab = Lab::new(rules(&[(four, &targets[..1]), (six, &targets[1..])]));
    let listeners = targets.map(|to| lab.listen(to));
    let pods = [pod(Family::V4, 10004), pod(Family::V6, 10006)];
    let mut idle: Vec<_> = (0..200).map(|round| lab.pair(pods[round % 2], &listeners[round % 2])).collect();
    let active: Vec<_> = (0..20).map(|round| lab.pair(pods[round % 2], &listeners[round % 2])).collect();
    let active: Vec<_> =
        active.into_iter().map(|(client, mut server)| (sender(client), thread::spawn(move || is_reset(&mut server)))).collect();
    let start = Instant::now();
    let (deleted, report) = lab.change(|rules| *rules = Ruleset::empty(rules.interface.clone()));
    for (client, server) in &mut idle {
        assert!(is_reset(server), "an idle target's end");
        assert!(is_reset(client), "an idle client's end");
    }
    for (sender, receiver) in active {
        assert_eq!(sender.join().expect("ended"), io::ErrorKind::ConnectionReset);
        assert!(receiver.join().expect("ended"), "an active target's end");
    }
    println!("200 idle and 20 active flows ended at both ends in {:?}: {deleted} {report:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(deleted, 220);
}

#[test]
fn flows_of_an_address_that_is_no_longer_ours_end_and_new_ones_leave_by_the_new_one() {
    let (tcp, port) = (key(Proto::Tcp, 10042), key(Proto::Udp, 10053));
    let (to, dns) = (target(Family::V4, 2, 80), target(Family::V4, 2, 53));
    let mut lab = Lab::new(rules(&[(tcp, &[to]), (port, &[dns])]));
    let (listener, resolver) = (lab.listen(to), udp(&lab.tailnet, dns));
    let (mut client, server) = lab.pair(pod(Family::V4, 10042), &listener);
    assert_eq!(server.peer_addr().expect("connected").ip().to_string(), OWN[0]);
    let asker = udp(&lab.client, SocketAddr::from(([0; 4], 0)));
    let ask_once = |lab: &Lab| {
        let _ = lab;
        thread::scope(|scope| {
            let from = scope.spawn(|| answer(&resolver, "it"));
            assert_eq!(ask(&asker, pod(Family::V4, 10053)).expect("answered"), "it");
            from.join().expect("answered").ip().to_string()
        })
    };
    assert_eq!(ask_once(&lab), OWN[0]);
    run(&lab.proxy, "ip", "addr add 100.64.0.77/24 dev tailscale0", "");
    run(&lab.proxy, "ip", "addr del 100.64.0.1/24 dev tailscale0", "");
    run(&lab.proxy, "ip", "addr add 100.64.0.77/24 dev tailscale0", "");
    let start = Instant::now();
    lab.change(|rules| drop(rules.source.insert(Family::V4, "100.64.0.77".parse().expect("an address"))));
    assert!(is_reset(&mut client), "the client's end");
    println!("client of a lost source reset after {:?}", start.elapsed());
    assert_eq!(ask_once(&lab), "100.64.0.77");
    let (_client, server) = lab.pair(pod(Family::V4, 10042), &listener);
    assert_eq!(server.peer_addr().expect("connected").ip().to_string(), "100.64.0.77");
}

#[test]
fn a_deletion_never_hits_a_younger_flow_of_the_same_client() {
    let (port, old, new) = (key(Proto::Udp, 10053), target(Family::V4, 2, 53), target(Family::V4, 3, 53));
    let mut lab = Lab::new(rules(&[(port, &[old])]));
    let client = udp(&lab.client, SocketAddr::from(([0; 4], 0)));
    client.connect(pod(Family::V4, 10053)).expect("connected");
    let (_one, _two) = (udp(&lab.tailnet, old), udp(&lab.tailnet, new));
    for round in 0..50 {
        client.send(b"?").expect("sent");
        let older = lab.flows(FlowFilter { key: Some(port), ..FlowFilter::forwarded() });
        assert_eq!(older.len(), 1, "round {round}");
        let to = if round % 2 == 0 { new } else { old };
        assert_eq!(lab.change(|rules| rules.ports = [(port, [to].into())].into()).0, 1);
        client.send(b"?").expect("sent");
        let younger = lab.flows(FlowFilter::forwarded());
        assert_eq!((younger.len(), younger[0].original), (1, older[0].original));
        let deleted = lab.proxy.run(|| Conntrack::open().expect("open").delete(&older[0]).expect("asked")).expect("ran");
        assert!(!deleted, "round {round}: the younger flow was taken for the older");
        assert_eq!(lab.flows(FlowFilter::forwarded()).len(), 1);
    }
}

#[test]
fn a_full_table_is_seen_and_does_not_harm_flows_that_exist() {
    let (tcp, to) = (key(Proto::Tcp, 10042), target(Family::V4, 2, 80));
    let lab = Lab::new(rules(&[(tcp, &[to])]));
    let listener = lab.listen(to);
    let (mut client, mut server) = lab.pair(pod(Family::V4, 10042), &listener);
    let mut conntrack = lab.proxy.run(Conntrack::open).expect("ran").expect("open");
    let before = conntrack.pressure().expect("read");
    assert!((1..before.limit).contains(&before.entries), "{before:?}");
    assert!(before.limit <= 1 << 20, "a table of {} cannot be filled in a test: lower net.netfilter.nf_conntrack_max", before.limit);
    let start = Instant::now();
    let sockets = before.limit / 60_000 + 1;
    for _ in 0..sockets {
        let socket = udp(&lab.client, SocketAddr::from(([0; 4], 0)));
        for port in 1..=60_000 {
            // A refusal of an earlier datagram is no matter.
            let _ = socket.send_to(b"", pod(Family::V4, port));
        }
    }
    let full = conntrack.pressure().expect("read");
    println!("filled in {:?}: {full:?}", start.elapsed());
    assert!(full.entries >= full.limit - full.limit / 100, "{full:?}");
    assert!(full.dropped + full.evicted > before.dropped + before.evicted, "{full:?}");
    echo(&mut client, &mut server);
}
