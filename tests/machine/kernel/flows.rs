//! Flows in the real kernel: which ones a change ends, how both ends are notified, and the costs.

mod over;
mod passed;
mod stage;

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tailyard::model::base::net::{Family, Proto};
use tailyard::model::firewall::ruleset::Ruleset;
use tailyard::model::flows::flow::{Flow, FlowFilter};
use tailyard::model::flows::tcp_reset::ResetReport;

use self::stage::{Stage, answer, ask, echo, is_reset, key, udp};
use crate::kernel::entries::{Entry, some_client, track};
use crate::kernel::firewall::Backend::{self, IptablesLegacy, IptablesNft, Nftables};
use kit::wait::eventually;

/// Time limit for operations that take milliseconds, on a busy machine; without a reset, an end would wait for many minutes.
const SOON: Duration = Duration::from_secs(10);

/// Generates a test for each case, in a module of the test's name: a failure names the case.
macro_rules! in_cases {
    ($test:ident: $($case:ident($($with:expr),+)),+ $(,)?) => {
        mod $test {
            #[allow(unused_imports, reason = "not every case has a name from outside")]
            use super::*;
            $(#[test] fn $case() { super::$test($($with),+); })+
        }
    };
}

/// Generates a test for every firewall and every family.
macro_rules! in_every_firewall_and_family {
    ($test:ident) => {
        in_cases!($test:
            nftables_ipv4(Nftables, Family::V4), nftables_ipv6(Nftables, Family::V6),
            iptables_nft_ipv4(IptablesNft, Family::V4), iptables_nft_ipv6(IptablesNft, Family::V6),
            iptables_legacy_ipv4(IptablesLegacy, Family::V4), iptables_legacy_ipv6(IptablesLegacy, Family::V6),
        );
    };
}

/// Error of an end, and its time.
type Failure = JoinHandle<(io::ErrorKind, Instant)>;

/// Sends until an error, at most a thousand bytes in each `rest`, and counts the sent bytes.
fn sender(mut stream: TcpStream, sent: Arc<AtomicUsize>, rest: Duration) -> Failure {
    stream.set_write_timeout(Some(SOON)).expect("set");
    thread::spawn(move || {
        loop {
            match stream.write(&[7; 1000]) {
                Ok(size) => sent.fetch_add(size, Ordering::Relaxed),
                Err(error) => return (error.kind(), Instant::now()),
            };
            thread::park_timeout(rest);
        }
    })
}

/// Reads until an error; a regular end of the stream is an error as well.
fn reader(mut stream: TcpStream) -> Failure {
    thread::spawn(move || {
        let fault = io::copy(&mut stream, &mut io::sink()).err().map_or(io::ErrorKind::UnexpectedEof, |error| error.kind());
        (fault, Instant::now())
    })
}

fn any(family: Family) -> SocketAddr {
    SocketAddr::new(if family == Family::V4 { IpAddr::from([0; 4]) } else { IpAddr::from([0_u16; 8]) }, 0)
}

in_every_firewall_and_family!(removed_key_resets_idle_flow_at_both_ends);

fn removed_key_resets_idle_flow_at_both_ends(backend: Backend, family: Family) {
    let tcp = key(Proto::Tcp, 10042);
    let mut stage = Stage::with(backend, tcp, family, 80);
    let listener = stage.listen(0, family, 80);
    let (mut client, mut server) = stage.pair(stage.pod(family, 10042), &listener);
    let start = Instant::now();
    let (deleted, report) = stage.remove(tcp);
    assert!(is_reset(&mut server), "the target's end");
    assert!(is_reset(&mut client), "the client's end");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!((deleted, report.reset), (1, 1));
}

in_cases!(removed_key_resets_active_flow_at_both_ends:
    ipv4_client_sends(Family::V4, true), ipv4_target_sends(Family::V4, false),
    ipv6_client_sends(Family::V6, true), ipv6_target_sends(Family::V6, false),
);

fn removed_key_resets_active_flow_at_both_ends(family: Family, upward: bool) {
    let tcp = key(Proto::Tcp, 10042);
    let mut stage = Stage::with(Nftables, tcp, family, 80);
    let listener = stage.listen(0, family, 80);
    let pair = stage.pair(stage.pod(family, 10042), &listener);
    ends_at_both_ends(pair, Some(upward), || stage.remove(tcp));
}

in_cases!(reset_passes_a_cluster_address_in_front_of_the_pod:
    idle(None), client_sends(Some(true)), target_sends(Some(false)),
);

/// The client's node translates a cluster address and drops packets that its conntrack considers invalid, as kube-proxy does.
fn reset_passes_a_cluster_address_in_front_of_the_pod(sends: Option<bool>) {
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
    let pair = stage.pair(SocketAddr::from(([10, 96, 0, 1], 80)), &listener);
    ends_at_both_ends(pair, sends, || stage.remove(tcp));
}

/// Checks that both ends are reset soon after the change: without traffic, or while the first or the second of them sends.
fn ends_at_both_ends((one, other): (TcpStream, TcpStream), sends: Option<bool>, change: impl FnOnce() -> (usize, ResetReport)) {
    let (one, other) = if sends == Some(false) { (other, one) } else { (one, other) };
    let sent = Arc::new(AtomicUsize::new(0));
    // A reset is reported once: to the reader or to the writer.
    let ends = [if sends.is_some() { sender(one, sent.clone(), Duration::ZERO) } else { reader(one) }, reader(other)];
    if sends.is_some() {
        eventually("data is under way", SOON, || (sent.load(Ordering::Relaxed) > 100_000).then_some(()));
    }
    let start = Instant::now();
    let (deleted, report) = change();
    assert_eq!(deleted, 1);
    for (end, name) in ends.into_iter().zip(["one end", "the other end"]) {
        let (how, at) = end.join().expect("ended");
        assert_eq!(how, io::ErrorKind::ConnectionReset, "{name} ({sends:?}) {report:?}");
        assert!(at - start < SOON, "{name} ({sends:?}): {:?} {report:?}", at - start);
    }
}

in_cases!(unserved_service_address_resets_flow_from_the_tailnet_at_both_ends:
    ipv4_idle(Family::V4, None), ipv4_client_sends(Family::V4, Some(true)), ipv4_target_sends(Family::V4, Some(false)),
    ipv6_idle(Family::V6, None), ipv6_client_sends(Family::V6, Some(true)), ipv6_target_sends(Family::V6, Some(false)),
);

fn unserved_service_address_resets_flow_from_the_tailnet_at_both_ends(family: Family, sends: Option<bool>) {
    let (vip, prefix) = if family == Family::V4 { ("100.99.1.1", 24) } else { ("fd7a:115c:a1e0:99::1", 64) };
    let mut stage = Stage::new(Nftables);
    let (vip, backend): (IpAddr, _) = (vip.parse().expect("an address"), stage.client().cluster[&family]);
    // Routes as with tailscaled: the address of a Tailscale Service is routed to the tailnet, and from there to this node.
    stage.proxy().ip(&format!("route add {}/{prefix} dev tailscale0\n", network(vip)));
    stage.lab.targets[0].ip(&format!("route add {}/{prefix} via {}\n", network(vip), stage.own(family)));
    stage.change(|rules| drop(rules.from_tailnet.insert(vip, [backend].into())));
    let listener = stage.client().ns.run(|| TcpListener::bind((backend, 8080))).expect("ran").expect("bound");
    let mut client = stage.lab.targets[0].connect((vip, 8080).into(), SOON).expect("connected");
    let (mut server, _) = listener.accept().expect("accepted");
    server.set_read_timeout(Some(SOON)).expect("set");
    echo(&mut client, &mut server);
    ends_at_both_ends((client, server), sends, || stage.change(|rules| drop(rules.from_tailnet.remove(&vip))));
}

fn network(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() & !0xff).to_string(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !0xffff).to_string(),
    }
}

/// Three of ten packets on the tailnet's side are lost.
#[test]
fn lost_probes_and_answers_are_repeated() {
    let tcp = key(Proto::Tcp, 10042);
    let mut stage = Stage::with(Nftables, tcp, Family::V4, 80);
    let listener = stage.listen(0, Family::V4, 80);
    let mut pairs: Vec<_> = (0..20).map(|_| stage.pair(stage.pod(Family::V4, 10042), &listener)).collect();
    let lossy = "table ip loss {
        chain input {
            type filter hook input priority -400
            numgen random mod 10 < 3 drop
        }
    }";
    stage.lab.targets[0].feed(&["nft", "-f", "-"], lossy);
    let (_, report) = stage.remove(tcp);
    assert!(report.unanswered <= 2, "{report:?}");
    let reset = pairs.iter_mut().filter_map(|(client, _)| is_reset(client).then_some(())).count();
    assert!(reset >= 18, "{reset} of 20 clients reset: {report:?}");
}

in_cases!(flow_drains_on_a_retargeted_key_and_is_reset_when_its_target_leaves: ipv4(Family::V4), ipv6(Family::V6));

fn flow_drains_on_a_retargeted_key_and_is_reset_when_its_target_leaves(family: Family) {
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
    assert!(after < SOON, "{after:?}");
}

in_every_firewall_and_family!(next_datagram_goes_to_the_new_target_and_is_refused_without_one);

fn next_datagram_goes_to_the_new_target_and_is_refused_without_one(backend: Backend, family: Family) {
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

#[test]
fn flows_of_unchanged_keys_survive_a_hundred_changes() {
    let (steady, other) = (key(Proto::Tcp, 10001), key(Proto::Tcp, 10002));
    let mut stage = Stage::with(Nftables, steady, Family::V4, 80);
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

in_cases!(changes_under_load_refuse_no_connection_of_a_retargeted_key:
    nftables(Nftables), iptables_nft(IptablesNft), iptables_legacy(IptablesLegacy),
);

/// iptables applies a change table by table and family by family; no packet of an unchanged key may be affected.
fn changes_under_load_refuse_no_connection_of_a_retargeted_key(backend: Backend) {
    let (steady, other) = (key(Proto::Tcp, 10001), key(Proto::Tcp, 10002));
    let mut stage = Stage::new(backend);
    let _servers: Vec<_> = stage.lab.targets.iter().map(|target| target.serve(80)).collect();
    let both = |stage: &Stage, index| Family::ALL.map(|family| stage.target(index, family, 80));
    stage.point(steady, &both(&stage, 0));
    let (client, pods, done) = (stage.client().clone(), Family::ALL.map(|family| stage.pod(family, 10001)), AtomicBool::new(false));
    let ask = |pod| {
        let (mut made, mut failed) = (0, Vec::new());
        while !done.load(Ordering::Relaxed) && made < 100_000 {
            made += 1;
            failed.extend(client.ask_tcp(pod, SOON).err());
        }
        (made, failed)
    };
    thread::scope(|scope| {
        let ask = &ask;
        let loads = pods.map(|pod| (pod, scope.spawn(move || ask(pod))));
        for round in 0..10 {
            stage.point(other, &both(&stage, round % 2));
            stage.point(steady, &both(&stage, (round + 1) % 2));
            stage.remove(other);
            if round % 5 == 0 {
                stage.rewrite();
            }
        }
        done.store(true, Ordering::Relaxed);
        for (pod, load) in loads {
            let (made, failed) = load.join().expect("a load");
            assert!(made > 10 && failed.is_empty(), "{} of {made} to {pod} failed: {failed:?}", failed.len());
        }
    });
}

in_cases!(closing_replica_resets_idle_and_active_flows_at_both_ends:
    nftables(Nftables), iptables_nft(IptablesNft), iptables_legacy(IptablesLegacy),
);

fn closing_replica_resets_idle_and_active_flows_at_both_ends(backend: Backend) {
    let keys = [key(Proto::Tcp, 10004), key(Proto::Tcp, 10006)];
    let mut stage = Stage::new(backend);
    for (key, family) in keys.into_iter().zip(Family::ALL) {
        stage.point(key, &[stage.target(0, family, 80)]);
    }
    let listeners = Family::ALL.map(|family| stage.listen(0, family, 80));
    let pods = [stage.pod(Family::V4, 10004), stage.pod(Family::V6, 10006)];
    let mut idle: Vec<_> = (0..200).map(|round| stage.pair(pods[round % 2], &listeners[round % 2])).collect();
    let active: Vec<_> = (0..20).map(|round| stage.pair(pods[round % 2], &listeners[round % 2])).collect();
    let active: Vec<_> =
        active.into_iter().map(|(client, server)| (sender(client, Arc::default(), Duration::from_millis(1)), reader(server))).collect();
    let start = Instant::now();
    let (deleted, report) = stage.change(|rules| *rules = Ruleset::empty(rules.interface.clone()));
    let families = || Family::ALL.into_iter().cycle();
    for ((client, server), family) in idle.iter_mut().zip(families()) {
        assert!(is_reset(server), "an idle target's end, {family}");
        assert!(is_reset(client), "an idle client's end, {family}");
    }
    for ((sender, receiver), family) in active.into_iter().zip(families()) {
        assert_eq!(sender.join().expect("ended").0, io::ErrorKind::ConnectionReset, "an active client's end, {family}");
        assert_eq!(receiver.join().expect("ended").0, io::ErrorKind::ConnectionReset, "an active target's end, {family}");
    }
    println!("{backend:?}: 200 idle and 20 active flows ended at both ends in {:?}: {report:?}", start.elapsed());
    assert!(start.elapsed() < SOON * 2, "{:?}", start.elapsed());
    assert_eq!(deleted, 220);
}

#[test]
fn changed_own_address_resets_old_flows_and_is_used_by_new_ones() {
    let (tcp, port) = (key(Proto::Tcp, 10042), key(Proto::Udp, 10053));
    let mut stage = Stage::with(Nftables, tcp, Family::V4, 80);
    stage.point(port, &[stage.target(0, Family::V4, 53)]);
    let (listener, resolver) = (stage.listen(0, Family::V4, 80), udp(&stage.lab.targets[0], stage.target(0, Family::V4, 53)));
    let (tcp_pod, udp_pod) = (stage.pod(Family::V4, 10042), stage.pod(Family::V4, 10053));
    let (mut client, server) = stage.pair(tcp_pod, &listener);
    assert_eq!(server.peer_addr().expect("connected").ip(), stage.own(Family::V4));
    let asker = udp(stage.client(), any(Family::V4));
    let source_address = || {
        thread::scope(|scope| {
            let from = scope.spawn(|| answer(&resolver, "it"));
            assert_eq!(ask(&asker, udp_pod).expect("answered"), "it");
            from.join().expect("answered").ip()
        })
    };
    assert_eq!(source_address(), stage.own(Family::V4));
    let new = IpAddr::from([100, 64, 0, 77]);
    stage.proxy().ip(&format!("addr del {}/24 dev tailscale0\naddr add {new}/24 dev tailscale0\n", stage.own(Family::V4)));
    let start = Instant::now();
    let end = thread::spawn(move || is_reset(&mut client).then(|| start.elapsed()));
    stage.change(|rules| assert!(rules.source.insert(Family::V4, new).is_some()));
    let after = end.join().expect("ended").expect("the client's end is reset");
    assert!(after < SOON, "{after:?}");
    assert_eq!(source_address(), new);
    let (_client, server) = stage.pair(tcp_pod, &listener);
    assert_eq!(server.peer_addr().expect("connected").ip(), new);
}

/// The only tracked flow. A datagram may be delayed, as the first one is during neighbour resolution.
fn tracked(stage: &Stage, filter: FlowFilter) -> Flow {
    eventually("one flow", SOON, || <[Flow; 1]>::try_from(stage.flows(filter)).ok().map(|[flow]| flow))
}

#[test]
fn deletion_never_hits_a_newer_flow_of_the_same_client() {
    let port = key(Proto::Udp, 10053);
    let mut stage = Stage::with(Nftables, port, Family::V4, 53);
    let targets = [stage.target(1, Family::V4, 53), stage.target(0, Family::V4, 53)];
    let client = udp(stage.client(), any(Family::V4));
    client.connect(stage.pod(Family::V4, 10053)).expect("connected");
    let _sinks = [0, 1].map(|index| udp(&stage.lab.targets[index], stage.target(index, Family::V4, 53)));
    for round in 0..50 {
        client.send(b"?").expect("sent");
        let older = tracked(&stage, FlowFilter { key: Some(port), ..FlowFilter::forwarded() });
        assert_eq!(stage.point(port, &[targets[round % 2]]).0, 1);
        client.send(b"?").expect("sent");
        assert_eq!(tracked(&stage, FlowFilter::forwarded()).original, older.original);
        assert_eq!(stage.conntrack().delete_all([&older]).expect("asked"), 0, "round {round}: the younger flow was taken for the older");
        assert_eq!(stage.flows(FlowFilter::forwarded()).len(), 1);
    }
}

#[test]
fn full_conntrack_table_is_reported_and_existing_flows_survive() {
    let tcp = key(Proto::Tcp, 10042);
    let stage = Stage::with(Nftables, tcp, Family::V4, 80);
    // No entry may expire while others are created, however slow this machine is.
    stage.proxy().sysctl("net.netfilter.nf_conntrack_udp_timeout", "600");
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
            // Refusals of earlier datagrams are ignored.
            let _ = socket.send_to(b"", stage.pod(Family::V4, port));
        }
    }
    let full = conntrack.pressure().expect("read");
    println!("the table filled in {:?}: {full:?}", start.elapsed());
    assert!(full.entries >= full.limit - full.limit / 100, "{full:?}");
    assert!(full.dropped + full.evicted > before.dropped + before.evicted, "{full:?}");
    echo(&mut client, &mut server);
}

/// Only the machine's own namespace may set `nf_conntrack_max`, and the limit applies to each namespace; so the table is filled to it.
#[test]
fn full_conntrack_table_refuses_new_flows_until_there_is_room() {
    let tcp = key(Proto::Tcp, 10042);
    let stage = Stage::with(Nftables, tcp, Family::V4, 80);
    let listener = stage.listen(0, Family::V4, 80);
    let (mut client, mut server) = stage.pair(stage.pod(Family::V4, 10042), &listener);
    let mut conntrack = stage.conntrack();
    let before = conntrack.pressure().expect("read");
    assert!(before.limit <= 1 << 20, "a table of {} cannot be filled in a test: lower net.netfilter.nf_conntrack_max", before.limit);
    let service = SocketAddrV4::new([10, 1, 1, 1].into(), 53);
    let living = (0..before.limit + 1_000).map(|number| Entry { client: some_client(number), service, target: None, tcp: None });
    stage.proxy().ns.run(|| track(living)).expect("ran").expect("filled");
    let full = conntrack.pressure().expect("read");
    assert!(full.entries >= full.limit, "{full:?}");
    let fault = stage.client().connect(stage.pod(Family::V4, 10042), Duration::from_secs(1)).expect_err("there is no room for it");
    assert_eq!(fault.kind(), io::ErrorKind::TimedOut, "dropped, not refused");
    let refused = conntrack.pressure().expect("read");
    assert!(refused.dropped > before.dropped, "{refused:?}");
    echo(&mut client, &mut server);
    let other = |flow: &tailyard::model::flows::flow::Flow| flow.proto == 17;
    let room: Vec<_> = stage.flows(FlowFilter::default()).into_iter().filter(other).take(20_000).collect();
    conntrack.delete_all(&room).expect("deleted");
    stage.pair(stage.pod(Family::V4, 10042), &listener);
}
