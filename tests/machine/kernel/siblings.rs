//! A replica whose tunnel is closed passes new flows to a sibling replica.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use tailyard::edge::link::routing_rules::{open_tunnel, sync};
use tailyard::model::base::net::{Family, InterfaceName, Port, PortKey, Proto};
use tailyard::model::base::small_set::SortedSet;
use tailyard::model::firewall::routing::rules;
use tailyard::model::firewall::ruleset::{Ruleset, SiblingAddresses};

use crate::kernel::firewall::{Backend, Firewall};
use kit::netns::{Greeting, Lab, Node, Server, Shape};
use kit::wait::eventually;

const MATCH_PORT: u16 = 10_001;
const SERVICE: u16 = 7001;
/// Ports of a replica that are no match ports.
const OWN_PORTS: [u16; 2] = [9002, 10_099];
/// Time limit for a flow that should succeed. A lost SYN is sent again after a second.
const AT_ONCE: Duration = Duration::from_millis(900);

/// Two replicas with each other as fallback, a client and a target.
struct Group {
    lab: Lab,
    firewalls: Vec<Firewall>,
    _servers: Vec<Server>,
}

impl Group {
    fn start() -> Self {
        let lab = Lab::build(&Shape { clients: 1, proxies: 2, targets: 1, ..Shape::default() });
        let mut servers = vec![lab.targets[0].serve(SERVICE)];
        servers.extend(lab.proxies.iter().flat_map(|proxy| OWN_PORTS.map(|port| proxy.serve(port))));
        let to: SortedSet<SocketAddr> = lab.targets[0].tailnet.values().map(|ip| SocketAddr::new(*ip, SERVICE)).collect();
        let firewalls = [0, 1].map(|i| {
            let (own, other) = (&lab.proxies[i], &lab.proxies[1 - i]);
            let mut ruleset = Ruleset { source: own.tailnet.clone().into(), ..Ruleset::empty(InterfaceName::tailscale0()) };
            for proto in Proto::ALL {
                ruleset.ports.insert(PortKey { proto, port: Port::new(MATCH_PORT).expect("not zero") }, to.clone());
            }
            let siblings = |family| SiblingAddresses::new(own.cluster[&family], [other.cluster[&family]]);
            ruleset.siblings = Family::ALL.into_iter().filter_map(|family| Some((family, siblings(family)?))).collect();
            show_tunnel(own);
            Firewall::load(Backend::Nftables, own, ruleset)
        });
        Self { firewalls: firewalls.into(), lab, _servers: servers }
    }

    /// Source address that the target sees, for each protocol and family.
    fn sources(&self, replica: usize) -> Vec<Option<IpAddr>> {
        let client = &self.lab.clients[0];
        let ask = |(proto, ip): (Proto, IpAddr)| {
            let to = SocketAddr::new(ip, MATCH_PORT);
            let answer = if proto == Proto::Tcp { client.ask_tcp(to, AT_ONCE) } else { client.ask_udp(to, AT_ONCE) };
            answer.ok().map(|greeting| greeting.peer.ip())
        };
        let each = Proto::ALL.into_iter().flat_map(|proto| self.lab.proxies[replica].cluster.values().map(move |ip| (proto, *ip)));
        each.map(ask).collect()
    }

    /// Tailnet addresses of a replica as sources, for each protocol and family.
    fn own_sources(&self, replica: usize) -> Vec<Option<IpAddr>> {
        Proto::ALL.iter().flat_map(|_| self.lab.proxies[replica].tailnet.values().copied().map(Some)).collect()
    }
}

/// Writes the routing rules, and the route of an open tunnel.
fn show_tunnel(node: &Node) {
    let tailnet = InterfaceName::tailscale0();
    let work = async || {
        sync(&rules(&tailnet, [])).await.expect("rules");
        open_tunnel(&tailnet).await.expect("a route");
    };
    node.ns.block_on(work).expect("the namespace");
}

fn show_no_tunnel(node: &Node) {
    for family in ["-4", "-6"] {
        node.feed(&["ip", family, "route", "del", "default", "table", "151"], "");
    }
}

#[test]
fn replica_without_tunnel_passes_new_flows_to_its_sibling_until_the_tunnel_is_open_again() {
    let group = Group::start();
    let [first, _] = &group.lab.proxies[..] else { panic!("two replicas") };
    assert_eq!(group.sources(0), group.own_sources(0));
    let mut flow = group.lab.clients[0].connect(SocketAddr::new(first.cluster[&Family::V4], MATCH_PORT), AT_ONCE).expect("a flow");
    Greeting::read(&mut flow).expect("a greeting");

    show_no_tunnel(first);
    assert_eq!(group.sources(0), group.own_sources(1), "by the sibling");
    for (port, ip) in OWN_PORTS.iter().flat_map(|port| first.cluster.values().map(move |ip| (*port, *ip))) {
        let answer = group.lab.clients[0].ask_tcp(SocketAddr::new(ip, port), AT_ONCE).expect("an answer of the replica itself");
        assert_eq!(answer.name, "proxy0", "{ip}:{port}");
    }

    show_tunnel(first);
    assert_eq!(group.sources(0), group.own_sources(0));
}

#[test]
fn connection_whose_first_packet_a_dying_tailscaled_lost_is_passed_to_the_sibling_when_it_is_repeated() {
    let group = Group::start();
    let first = &group.lab.proxies[0];
    let [four, six] = Family::ALL.map(|family| first.tailnet[&family]);
    let chain = format!("type filter hook input priority 0; ip saddr {four} drop; ip6 saddr {six} drop;");
    group.lab.targets[0].feed(&["nft", "-f", "-"], &format!("table inet lost {{\nchain input {{ {chain}\n}}\n}}\n"));
    thread::scope(|scope| {
        let client = &group.lab.clients[0];
        let connect = |ip: &IpAddr| {
            let to = SocketAddr::new(*ip, MATCH_PORT);
            scope.spawn(move || client.ask_tcp(to, Duration::from_secs(20)))
        };
        let clients: Vec<_> = first.cluster.values().map(connect).collect();
        // Until their first packets are lost.
        let entries = || first.feed(&["cat", "/proc/net/nf_conntrack"], "").lines().filter(|line| line.contains("dport=10001")).count();
        eventually("entries", Duration::from_secs(10), || (entries() == clients.len()).then_some(()));
        first.ip("link del tailscale0\n");
        let sources: Vec<IpAddr> = clients.into_iter().map(|client| client.join().expect("asked").expect("an answer").peer.ip()).collect();
        assert_eq!(sources, group.lab.proxies[1].tailnet.values().copied().collect::<Vec<_>>());
    });
}

#[test]
fn replicas_without_tunnel_do_not_pass_flows_to_each_other() {
    let group = Group::start();
    for replica in &group.lab.proxies {
        replica.ip("link del tailscale0\n");
    }
    assert_eq!(group.sources(0), [None; 4]);
    for replica in &group.lab.proxies {
        let entries = replica.feed(&["cat", "/proc/net/nf_conntrack"], "");
        let clients = entries.lines().filter(|line| line.contains("dport=10001")).filter_map(|line| {
            let source = line.split_whitespace().find_map(|field| field.strip_prefix("src="))?;
            source.parse::<IpAddr>().ok()
        });
        let of_replicas: Vec<IpAddr> =
            clients.filter(|ip| group.lab.proxies.iter().any(|other| other.cluster.values().any(|own| own == ip))).collect();
        assert_eq!(of_replicas, [IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED); 0], "{}", replica.name);
    }
}

#[test]
fn changed_siblings_are_used_for_the_next_flow() {
    let mut group = Group::start();
    group.lab.proxies[0].ip("link del tailscale0\n");
    assert_eq!(group.sources(0), group.own_sources(1));
    let siblings = group.firewalls[0].ruleset.siblings.clone();
    group.firewalls[0].change(|ruleset| ruleset.siblings.clear());
    assert_eq!(group.sources(0), [None; 4]);
    group.firewalls[0].change(|ruleset| ruleset.siblings = siblings);
    assert_eq!(group.sources(0), group.own_sources(1));
}

#[test]
fn datagrams_to_a_former_sibling_do_not_leave() {
    let mut group = Group::start();
    show_no_tunnel(&group.lab.proxies[0]);
    let to = SocketAddr::new(group.lab.proxies[0].cluster[&Family::V4], MATCH_PORT);
    let (client, from) = (&group.lab.clients[0], group.own_sources(1)[0]);
    // One source port: the flow stays.
    let socket = client.ns.run(|| UdpSocket::bind("0.0.0.0:0")).expect("the namespace").expect("a port");
    socket.set_read_timeout(Some(AT_ONCE)).expect("a timeout");
    let ask = || {
        socket.send_to(b"hello", to).expect("sent");
        let mut answer = [0; 512];
        let line = socket.recv(&mut answer).ok().map(|length| [&answer[..length], b"\n"].concat())?;
        Some(Greeting::read(&mut &line[..]).expect("a greeting").peer.ip())
    };
    assert_eq!(ask(), from, "by the sibling");
    group.firewalls[0].change(|ruleset| ruleset.siblings.clear());
    show_tunnel(&group.lab.proxies[0]);
    assert_eq!(ask(), None, "its address may be another Pod's");
}
