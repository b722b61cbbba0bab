//! Changes to our rules by other programs: an audit detects them, a rewrite repairs them. Also firewalls that are unavailable.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use tailyard::edge::iptables::{Iptables, Variant};
use tailyard::edge::nft::{Nft, NftError};
use tailyard::model::base::net::{Family, InterfaceName, Port, PortKey, Proto};
use tailyard::model::base::small_set::SortedSet;
use tailyard::model::firewall::Audit;
use tailyard::model::firewall::iptables;
use tailyard::model::firewall::nft;
use tailyard::model::firewall::ruleset::Ruleset;

use tempfile::TempDir;

use crate::kernel::firewall::{Backend, Firewall, on_every_backend};
use kit::netns::{Lab, Node, Server, Shape};

const PATIENCE: Duration = Duration::from_secs(10);

fn key(port: u16) -> PortKey {
    PortKey { proto: Proto::Tcp, port: Port::new(port).expect("not zero") }
}

/// One service behind one port, with everything that it needs.
struct Scene {
    lab: Lab,
    _server: Server,
}

impl Scene {
    fn build() -> Self {
        let lab = Lab::build(&Shape::default());
        let server = lab.targets[0].serve(7001);
        Self { lab, _server: server }
    }

    fn proxy(&self) -> &Node {
        &self.lab.proxies[0]
    }

    fn ruleset(&self) -> Ruleset {
        let mut ruleset = Ruleset::empty(InterfaceName::tailscale0());
        ruleset.source = self.proxy().tailnet.clone().into();
        let to: SortedSet<SocketAddr> = self.lab.targets[0].tailnet.values().map(|ip| SocketAddr::new(*ip, 7001)).collect();
        ruleset.ports.insert(key(10_001), to.clone());
        ruleset.ports.insert(key(10_002), to);
        ruleset
    }

    /// Families in which the service answers.
    fn served(&self) -> Vec<Family> {
        let ask = |family| self.lab.clients[0].ask_tcp(SocketAddr::new(self.proxy().cluster[&family], 10_001), PATIENCE);
        Family::ALL.into_iter().filter(|family| ask(*family).is_ok()).collect()
    }
}

fn every_tampering_is_detected_and_repaired(backend: Backend) {
    let scene = Scene::build();
    let firewall = Firewall::load(backend, scene.proxy(), scene.ruleset());
    assert_eq!(scene.served(), Family::ALL);
    let element = "element inet tailyard port4 { tcp . 10001";
    let nft = [
        vec!["nft flush ruleset".to_owned()],
        vec![format!("nft delete {element} }}")],
        vec![format!("nft delete {element} }}"), format!("nft add {element} : 100.64.0.99 . 7001 }}")],
        vec!["nft add element inet tailyard port4 { tcp . 4444 : 100.64.0.99 . 7001 }".to_owned()],
        vec!["nft flush chain inet tailyard from-cluster".to_owned()],
        vec!["nft insert rule inet tailyard prerouting accept".to_owned()],
        vec!["nft add table inet tailyard { flags dormant; }".to_owned()],
        vec!["nft flush set inet tailyard traffic-tcp".to_owned()],
    ];
    let iptables = |program: &str| {
        [
            vec![format!("{program} -t nat -F")],
            vec![format!("{program} -t nat -D PREROUTING -j TAILYARD-PREROUTING")],
            vec![format!("{program} -t nat -F TAILYARD-tcp-271")],
            vec![format!("{program} -t mangle -F TAILYARD-FORWARD")],
            vec![format!("{program} -t nat -I TAILYARD-CLUSTER 1 -p tcp --dport 10001 -j ACCEPT")],
            vec![format!("{program} -t filter -F TAILYARD-REFUSE")],
        ]
    };
    let all: Vec<Vec<String>> = match backend {
        Backend::Nftables | Backend::NftablesJson => nft.into(),
        Backend::IptablesNft => iptables("iptables-nft").into_iter().chain(iptables("ip6tables-nft")).chain([nft[0].clone()]).collect(),
        Backend::IptablesLegacy => iptables("iptables-legacy").into_iter().chain(iptables("ip6tables-legacy")).collect(),
    };
    for tampering in all {
        assert_eq!(firewall.audit(), Audit::Same, "before {tampering:?}");
        for command in &tampering {
            scene.proxy().feed(&command.split(' ').collect::<Vec<_>>(), "");
        }
        assert!(matches!(firewall.audit(), Audit::Drifted { .. }), "after {tampering:?}");
        firewall.rewrite();
        assert_eq!(scene.served(), Family::ALL, "repaired after {tampering:?}");
    }
    assert_eq!(firewall.audit(), Audit::Same);
}

fn foreign_rules_are_not_touched(backend: Backend) {
    let scene = Scene::build();
    let family = if backend == Backend::IptablesLegacy { "legacy" } else { "nft" };
    let foreign = format!("iptables-{family} -t filter -A FORWARD -s 192.0.2.1 -j DROP");
    scene.proxy().feed(&foreign.split(' ').collect::<Vec<_>>(), "");
    let mut firewall = Firewall::load(backend, scene.proxy(), scene.ruleset());
    scene.proxy().feed(&foreign.split(' ').collect::<Vec<_>>(), "");
    scene.proxy().feed(&["nft", "add", "table", "inet", "foreign"], "");
    assert_eq!(firewall.audit(), Audit::Same);
    firewall.change(|ruleset| drop(ruleset.ports.remove(&key(10_002))));
    assert_eq!(firewall.audit(), Audit::Same);
    firewall.remove();
    let remaining = scene.proxy().feed(&[&format!("iptables-{family}-save")], "");
    assert_eq!(remaining.lines().filter(|line| line.contains("192.0.2.1")).count(), 2, "foreign rules stand: {remaining}");
    assert!(!remaining.contains("TAILYARD"), "ours do not: {remaining}");
    scene.proxy().feed(&["nft", "list", "table", "inet", "foreign"], "");
}

/// A new process does not know the rules of its predecessor: it replaces them without a gap and leaves none of them.
fn new_process_replaces_the_rules_of_its_predecessor(backend: Backend) {
    let scene = Scene::build();
    let mut more = scene.ruleset();
    more.ports.extend((30_000..30_100).map(|port| (key(port), SortedSet::default())));
    drop(Firewall::load(backend, scene.proxy(), more));
    let firewall = Firewall::load(backend, scene.proxy(), scene.ruleset());
    assert_eq!(scene.served(), Family::ALL);
    assert_eq!(firewall.audit(), Audit::Same);
    firewall.rewrite();
    assert_eq!(firewall.audit(), Audit::Same);
    let dump = match backend {
        Backend::Nftables | Backend::NftablesJson => scene.proxy().feed(&["nft", "list", "ruleset"], ""),
        Backend::IptablesNft => scene.proxy().feed(&["iptables-nft-save"], ""),
        Backend::IptablesLegacy => scene.proxy().feed(&["iptables-legacy-save"], ""),
    };
    assert!(!dump.contains("3000"), "{dump}");
    assert!(dump.matches("PREROUTING -j TAILYARD-PREROUTING").count() <= 1, "jumps are not doubled: {dump}");
}

on_every_backend!(
    every_tampering_is_detected_and_repaired,
    foreign_rules_are_not_touched,
    new_process_replaces_the_rules_of_its_predecessor,
);

/// Only set elements can be missing: restores of iptables replace whole chains.
#[test]
fn patch_of_a_missing_element_changes_nothing() {
    for backend in [Backend::Nftables, Backend::NftablesJson] {
        let scene = Scene::build();
        let mut firewall = Firewall::load(backend, scene.proxy(), scene.ruleset());
        scene.proxy().feed(&["nft", "delete", "element", "inet", "tailyard", "port4", "{ tcp . 10002 }"], "");
        let refused = firewall.try_change(|ruleset| ruleset.ports.clear());
        assert!(refused.is_err(), "{backend:?}: an element is missing");
        assert_eq!(scene.served(), Family::ALL, "{backend:?}: and nothing of the change was done");
        firewall.rewrite();
        assert_eq!(firewall.audit(), Audit::Same, "{backend:?}");
    }
}

#[test]
fn missing_nft_program_is_named() {
    let node = Node::make("bare".to_owned());
    let nft = node.ns.run(|| Nft::open("/nowhere/nft")).expect("the namespace").expect("a socket");
    let fault = node.ns.block_on(|| async { nft.rewrite(&Ruleset::empty(InterfaceName::tailscale0())).await }).expect("the namespace");
    let fault = fault.expect_err("no such program");
    assert!(matches!(fault, NftError::Missing { .. }) && fault.reason() == "Missing", "{fault:?}");
    assert!(fault.to_string().contains("/nowhere/nft"), "{fault}");
}

#[test]
fn refused_nft_text_is_an_error() {
    let node = Node::make("bare".to_owned());
    // `false` refuses all arguments of `nft`, like a version that is too old.
    let mut nft = node.ns.run(|| Nft::open("false")).expect("the namespace").expect("a socket");
    let fault = node.ns.block_on(async || nft.probe(&InterfaceName::tailscale0()).await).expect("the namespace");
    assert_eq!(fault.expect_err("refused").reason(), "Refused");
}

#[test]
fn firewall_probe_leaves_no_rules() {
    let node = Node::make("bare".to_owned());
    let interface = InterfaceName::tailscale0();
    let mut nft = node.ns.run(|| Nft::open("nft")).expect("the namespace").expect("a socket");
    node.ns.block_on(async || nft.probe(&interface).await).expect("the namespace").expect("nftables works here");
    assert_eq!(node.feed(&["nft", "list", "ruleset"], ""), "");
    for (variant, save) in [(Variant::Legacy, "iptables-legacy-save"), (Variant::Nft, "iptables-nft-save")] {
        let work = || async { Iptables::open(variant).probe(&interface).await };
        node.ns.block_on(work).expect("the namespace").unwrap_or_else(|fault| panic!("{variant:?}: {fault}"));
        assert!(!node.feed(&[save], "").contains("TAIL"), "{variant:?}");
    }
}

#[test]
fn rules_are_loaded_without_conntrack_timeouts_if_the_kernel_lacks_them() {
    let node = Node::make("former".to_owned());
    // Refuses what an nft on such a kernel refuses.
    let directory = TempDir::new().expect("a directory");
    let program = directory.path().join("nft");
    let script = "#!/bin/sh\ntext=$(cat)\ncase $text in *'ct timeout'*) exit 1;; esac\nprintf '%s\\n' \"$text\" | nft -f -\n";
    fs::write(&program, script).expect("written");
    fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("executable");
    let mut nft = node.ns.run(|| Nft::open(program)).expect("the namespace").expect("a socket");
    let ruleset = Ruleset::empty(InterfaceName::tailscale0());
    node.ns.block_on(async || nft.probe(&ruleset.interface).await).expect("the namespace").expect("supported");
    node.ns.block_on(async || nft.rewrite(&ruleset).await).expect("the namespace").expect("loaded");
    let rules = node.feed(&["nft", "list", "ruleset"], "");
    assert!(rules.contains("chain if-closed") && !rules.contains("timeout"), "{rules}");
}

#[test]
fn muted_replica_drops_only_disco_packets() {
    let node = Node::make("muted".to_owned());
    node.feed(&["ip", "link", "set", "lo", "up"], "");
    let mut nft = node.ns.run(|| Nft::open("nft")).expect("the namespace").expect("a socket");
    let mute = |on| node.ns.block_on(|| async { nft.mute(on).await }).expect("the namespace").expect("nftables works here");
    // Disco packets begin with these six bytes, those of WireGuard with a small number.
    let heard = || {
        let listener = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let (to, from) = (listener.local_addr().expect("an address"), UdpSocket::bind("127.0.0.1:0").expect("a port"));
        for packet in [&b"TS\xf0\x9f\x92\xacping"[..], b"TS\xf0\x9f", b"\x01\0\0\0initiation"] {
            from.send_to(packet, to).expect("a sender is never refused");
        }
        let (mut heard, mut buffer) = (Vec::new(), [0; 64]);
        while heard.last().is_none_or(|last: &Vec<u8>| last[0] != 1) {
            let length = listener.recv(&mut buffer).expect("a packet");
            heard.push(buffer[..length].to_vec());
        }
        heard.into_iter().filter(|packet| packet.starts_with(b"TS")).count()
    };
    let heard = || node.ns.run(heard).expect("the namespace");
    assert_eq!(heard(), 2);
    for _ in 0..2 {
        mute(true);
        assert_eq!(heard(), 1, "a name with the same prefix belongs to another owner");
    }
    mute(false);
    assert_eq!(heard(), 2);
    mute(true);
    node.ns.block_on(async || nft.probe(&InterfaceName::tailscale0()).await).expect("the namespace").expect("nftables works here");
    assert_eq!(node.feed(&["nft", "list", "ruleset"], ""), "", "a start takes back what a predecessor left");
}

#[test]
fn shut_replica_answers_no_new_connection_and_keeps_open_ones() {
    let node = Node::make("shut".to_owned());
    node.feed(&["ip", "link", "set", "lo", "up"], "");
    let nft = node.ns.run(|| Nft::open("nft")).expect("the namespace").expect("a socket");
    let lo: InterfaceName = "lo".parse().expect("a name");
    let listener = node.ns.run(|| TcpListener::bind("127.0.0.1:0")).expect("the namespace").expect("a port");
    let to = listener.local_addr().expect("an address");
    let connect = || node.ns.run(move || TcpStream::connect_timeout(&to, Duration::from_millis(300))).expect("the namespace");
    let mut open = connect().expect("a connection");
    let (mut accepted, _) = listener.accept().expect("a connection");
    node.ns.block_on(|| async { nft.drop_new_connections(&lo).await }).expect("the namespace").expect("nftables works here");
    assert_eq!(connect().expect_err("no answer").kind(), ErrorKind::TimedOut, "dropped, not refused");
    open.write_all(b"x").expect("sent");
    accepted.read_exact(&mut [0]).expect("an open connection continues");
    node.ns.block_on(|| async { nft.mute(false).await }).expect("the namespace").expect("nftables works here");
    connect().expect("a connection");
    assert_eq!(node.feed(&["nft", "list", "ruleset"], ""), "");
}

#[test]
fn printed_rules_load_into_an_empty_namespace() {
    let scene = Scene::build();
    let ruleset = scene.ruleset();
    scene.proxy().feed(&["nft", "-f", "-"], &nft::table(&ruleset));
    assert_eq!(scene.served(), Family::ALL);
    scene.proxy().feed(&["nft", "-f", "-"], &nft::table(&ruleset));
    scene.proxy().feed(&["nft", "flush", "ruleset"], "");
    assert_eq!(scene.served(), []);
    for family in Family::ALL {
        let program = if family == Family::V4 { "iptables-nft-restore" } else { "ip6tables-nft-restore" };
        scene.proxy().feed(&[program], &iptables::restore(&ruleset, family));
    }
    assert_eq!(scene.served(), Family::ALL);
}

#[test]
fn only_foreign_changes_cause_notifications() {
    let scene = Scene::build();
    let mut firewall = Firewall::load(Backend::Nftables, scene.proxy(), scene.ruleset());
    let nft = firewall.nft().clone();
    // A reader of notifications belongs to the runtime that opens it: everything runs in one.
    let ns = scene.proxy().ns.clone();
    let before = firewall.ruleset.clone();
    firewall.ruleset.ports.remove(&key(10_002));
    let (after, delta) = (firewall.ruleset.clone(), tailyard::model::firewall::ruleset::diff(&before, &firewall.ruleset));
    ns.block_on(|| async {
        let mut changes = nft.changes().expect("notices");
        nft.patch(&before, &delta, &after).await.expect("a patch");
        let own = tokio::time::timeout(Duration::from_millis(200), changes.next()).await;
        assert!(own.is_err(), "our own batch is no news");
        let mut foreign = tokio::process::Command::new("nft");
        assert!(foreign.args(["add", "table", "inet", "foreign"]).status().await.expect("nft").success());
        tokio::time::timeout(PATIENCE, changes.next()).await.expect("in time").expect("a notice");
        assert_eq!(nft.audit(&after).await.expect("an audit"), Audit::Same);
        // More notifications than the socket buffer holds: the kernel drops some, which is a change as well.
        let script = (0..2000).map(|i| format!("add table inet t{i}\nadd chain inet t{i} c")).collect::<Vec<_>>().join("\n");
        scene.proxy().feed(&["nft", "-f", "-"], &script);
        for _ in 0..3 {
            scene.proxy().feed(&["nft", "-f", "-"], &script);
        }
        tokio::time::timeout(PATIENCE, changes.next()).await.expect("in time").expect("a notice, dropped ones included");
    })
    .expect("the namespace");
}
