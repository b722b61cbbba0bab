//! One table of packet flows, checked against two oracles: the evaluator and the kernel.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use socket2::SockRef;
use tailyard::edge::link::routing_rules::sync;
use tailyard::model::base::net::{Family, InterfaceName, Port, PortKey, Proto};
use tailyard::model::base::netmap::{NetMap, SelfNode, SubnetRoutes};
use tailyard::model::base::small_set::SortedSet;
use tailyard::model::config::IngressConfig;
use tailyard::model::firewall::routing::rules;
use tailyard::model::firewall::ruleset::Ruleset;
use tailyard::model::firewall::{Audit, Counters, Traffic};
use tailyard::model::front_end::endpoints::{Endpoint, ServicePort, dialed};
use tailyard::model::front_end::vhosts::Vhosts;
use tailyard::model::plan::Planned;
use tailyard::model::plan::world::World;

use crate::kernel::firewall::{Backend, Firewall, on_every_backend};
use kit::netns::{Greeting, Lab, Node, Server, Shape, TAILNET, TAILNET_MTU};
use kit::ruleset_oracle::{FlowVerdict, Packet, SourceAddress, evaluate};
use kit::wait::uninterrupted;

/// Time limit for a flow that should succeed.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for a refusal on a busy machine; dropped packets take all of `PATIENCE`.
pub(super) const AT_ONCE: Duration = Duration::from_secs(3);

/// Port of the targets.
const SERVICE: u16 = 7001;
/// Port of the cluster's backends.
const BACKEND: u16 = 8080;

/// Client of a flow, and thus the side of the proxy on which it arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Cluster,
    Tailnet,
}

/// Expected outcome of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    /// Each of these answers after enough attempts, and sees the proxy's own address on its side.
    Relayed(&'static [&'static str]),
    /// Refused at once.
    Refused,
    /// The proxy itself answers: the flow is not translated.
    Own,
}

/// Lab with every possible destination of a flow.
pub(super) struct Scene {
    pub(super) lab: Lab,
    _servers: Vec<Server>,
}

impl Scene {
    pub(super) fn build() -> Self {
        Self::of(&Shape { clients: 2, proxies: 1, targets: 3, ..Shape::default() })
    }

    fn of(shape: &Shape) -> Self {
        let lab = Lab::build(shape);
        let proxy = &lab.proxies[0];
        for target in &lab.targets {
            target.ip("route add 100.99.1.0/24 via 100.64.0.1\nroute add fd7a:115c:a1e0:99::/64 via fd7a:115c:a1e0::1\n");
        }
        // Routes as with tailscaled: a Tailscale Service's address is routed to the tailnet.
        proxy.ip("route add 100.99.1.0/24 dev tailscale0\nroute add fd7a:115c:a1e0:99::/64 dev tailscale0\n");
        let mut servers: Vec<Server> = lab.targets.iter().map(|target| target.serve(SERVICE)).collect();
        servers.extend(lab.clients.iter().map(|client| client.serve(BACKEND)));
        servers.extend([9002, 10_001, 10_002, 10_003, 10_004, 10_099, SERVICE].map(|port| proxy.serve(port)));
        Self { lab, _servers: servers }
    }

    pub(super) fn proxy(&self) -> &Node {
        &self.lab.proxies[0]
    }

    /// Sockets of the targets with these numbers.
    fn targets(&self, which: &[usize], families: &[Family]) -> SortedSet<SocketAddr> {
        let one = |(family, i): (&Family, &usize)| SocketAddr::new(self.lab.targets[*i].tailnet[family], SERVICE);
        families.iter().flat_map(|family| which.iter().map(move |i| (family, i))).map(one).collect()
    }

    /// Ruleset with both families, both protocols and every kind of key.
    fn ruleset(&self) -> Ruleset {
        let mut ruleset = Ruleset::empty(InterfaceName::tailscale0());
        ruleset.source = self.proxy().tailnet.clone().into();
        for proto in Proto::ALL {
            let mut map = |port, targets| ruleset.ports.insert(key(proto, port), targets);
            map(10_001, self.targets(&[0], &Family::ALL));
            map(10_002, SortedSet::default());
            map(10_003, self.targets(&[1], &[Family::V4]));
            map(10_004, self.targets(&[0, 1, 2], &Family::ALL));
            let both = [self.targets(&[0, 1], &[Family::V4]), self.targets(&[2], &[Family::V6])];
            map(10_005, both.iter().flatten().copied().collect());
        }
        let backends = |which: &[usize], family| which.iter().map(|i| self.lab.clients[*i].cluster[&family]).collect();
        for family in Family::ALL {
            ruleset.from_tailnet.insert(vip(family, 2), backends(&[0], family));
            ruleset.from_tailnet.insert(vip(family, 3), SortedSet::default());
            ruleset.from_tailnet.insert(vip(family, 4), backends(&[0, 1], family));
        }
        ruleset
    }

    /// Opens one flow: the answer or the error, and the elapsed time.
    fn ask(&self, side: Side, dst: IpAddr, proto: Proto, port: u16) -> (io::Result<Greeting>, Duration) {
        let node = if side == Side::Cluster { &self.lab.clients[0] } else { &self.lab.targets[0] };
        let (start, to) = (Instant::now(), SocketAddr::new(dst, port));
        let answer = if proto == Proto::Tcp { node.ask_tcp(to, PATIENCE) } else { node.ask_udp(to, PATIENCE) };
        (answer, start.elapsed())
    }

    /// Checks one row of the table against both oracles.
    fn check(&self, ruleset: &Ruleset, side: Side, dst: IpAddr, proto: Proto, port: u16, expect: Expect) {
        let row = format!("{side:?} → {dst} {proto}/{port}: {expect:?}");
        let to_pod = self.proxy().cluster.values().chain(self.proxy().tailnet.values()).any(|own| *own == dst);
        let packet = Packet { from_tailnet: side == Side::Tailnet, dst, to_pod, proto, port: Port::new(port).expect("not zero") };
        let verdict = evaluate(ruleset, &packet);
        match (&verdict, expect) {
            (FlowVerdict::Dnat { to, source }, Expect::Relayed(names)) => {
                let names: BTreeSet<&str> = names.iter().copied().collect();
                assert_eq!(to.iter().map(|to| self.owner(to.ip())).collect::<BTreeSet<_>>(), names, "{row}: the evaluator's targets");
                self.check_relayed(&row, &names, *source, side, dst, proto, port);
            }
            (FlowVerdict::Refuse, Expect::Refused) => {
                let (answer, took) = self.ask(side, dst, proto, port);
                let kind = answer.as_ref().map_err(io::Error::kind);
                assert_eq!(kind.err(), Some(io::ErrorKind::ConnectionRefused), "{row}: {answer:?}");
                assert!(took < AT_ONCE, "{row}: took {took:?}");
            }
            (FlowVerdict::Pass, Expect::Own) => {
                let (answer, _) = self.ask(side, dst, proto, port);
                assert_eq!(answer.as_ref().map(|greeting| greeting.name.as_str()).ok(), Some("proxy0"), "{row}: {answer:?}");
            }
            _ => panic!("{row}: the evaluator says {verdict:?}"),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn check_relayed(&self, row: &str, names: &BTreeSet<&str>, source: SourceAddress, side: Side, dst: IpAddr, proto: Proto, port: u16) {
        let near = if side == Side::Cluster { &self.proxy().tailnet } else { &self.proxy().cluster };
        let seen_as = match source {
            SourceAddress::Own(own) => own,
            SourceAddress::Masquerade => near[&Family::of(dst)],
        };
        // 60 flows miss one of three targets with a probability of 1e-10.
        let flows = if names.len() == 1 { 1 } else { 60 };
        let mut answered = BTreeSet::new();
        for _ in 0..flows {
            let (answer, _) = self.ask(side, dst, proto, port);
            let greeting = answer.unwrap_or_else(|fault| panic!("{row}: {fault}"));
            assert_eq!(greeting.peer.ip(), seen_as, "{row}: the source that {} sees", greeting.name);
            answered.insert(greeting.name);
        }
        assert_eq!(answered.iter().map(String::as_str).collect::<BTreeSet<_>>(), *names, "{row}: who answered");
    }

    fn owner(&self, ip: IpAddr) -> &str {
        let all = self.lab.targets.iter().chain(&self.lab.clients);
        let mut owners = all.filter(|node| node.tailnet.values().chain(node.cluster.values()).any(|own| *own == ip));
        owners.next().map_or("nobody", |node| node.name.as_str())
    }

    /// Checks the same row for both protocols.
    fn check_both(&self, ruleset: &Ruleset, side: Side, dst: IpAddr, port: u16, expect: Expect) {
        for proto in Proto::ALL {
            self.check(ruleset, side, dst, proto, port, expect);
        }
    }
}

fn key(proto: Proto, port: u16) -> PortKey {
    PortKey { proto, port: Port::new(port).expect("not zero") }
}

/// Address of a Tailscale Service.
pub(super) fn vip(family: Family, number: u8) -> IpAddr {
    let text = if family == Family::V4 { format!("100.99.1.{number}") } else { format!("fd7a:115c:a1e0:99::{number}") };
    text.parse().expect("an address")
}

fn every_kind_of_flow_matches_the_prediction(backend: Backend) {
    use Expect::{Own, Refused, Relayed};
    use Side::{Cluster, Tailnet};
    let scene = Scene::build();
    let firewall = Firewall::load(backend, scene.proxy(), scene.ruleset());
    for family in Family::ALL {
        let (pod, own) = (scene.proxy().cluster[&family], scene.proxy().tailnet[&family]);
        let four = |yes, no| if family == Family::V4 { yes } else { no };
        let rows: &[(Side, IpAddr, u16, Expect)] = &[
            (Cluster, pod, 10_001, Relayed(&["target0"])),
            (Cluster, own, 10_001, Relayed(&["target0"])),
            (Cluster, pod, 10_002, Refused),
            (Cluster, pod, 10_003, four(Relayed(&["target1"]), Refused)),
            (Cluster, pod, 10_004, Relayed(&["target0", "target1", "target2"])),
            (Cluster, pod, 10_005, four(Relayed(&["target0", "target1"]), Relayed(&["target2"]))),
            (Cluster, pod, 10_099, Own),
            (Cluster, pod, 9002, Own),
            (Tailnet, own, 10_001, Own),
            (Tailnet, own, 10_002, Own),
            (Tailnet, own, 10_004, Own),
            (Tailnet, vip(family, 2), BACKEND, Relayed(&["client0"])),
            (Tailnet, vip(family, 3), BACKEND, Refused),
            (Tailnet, vip(family, 4), BACKEND, Relayed(&["client0", "client1"])),
        ];
        // The client has a route to the proxy's tailnet address, as nodes may have one.
        scene.lab.clients[0].ip(&format!("route replace {own} via {pod}\n"));
        for (side, dst, port, expect) in rows {
            scene.check_both(&firewall.ruleset, *side, *dst, *port, *expect);
        }
    }
}

fn whole_address_mapping_excludes_reserved_ports(backend: Backend) {
    use Expect::{Own, Refused, Relayed};
    let scene = Scene::build();
    let mut ruleset = Ruleset::empty(InterfaceName::tailscale0());
    ruleset.source = scene.proxy().tailnet.clone().into();
    ruleset.reserved = Proto::ALL.map(|proto| key(proto, 9002)).into();
    for family in Family::ALL {
        let target = scene.lab.targets[1].tailnet[&family];
        ruleset.from_cluster.insert(scene.proxy().cluster[&family], SortedSet::from([target]));
    }
    let mut firewall = Firewall::load(backend, scene.proxy(), ruleset);
    let check = |firewall: &Firewall, port, expect| {
        for pod in scene.proxy().cluster.values() {
            scene.check_both(&firewall.ruleset, Side::Cluster, *pod, port, expect);
        }
    };
    check(&firewall, SERVICE, Relayed(&["target1"]));
    check(&firewall, 9002, Own);
    let of = |which: &'static [usize], family| which.iter().map(|i| scene.lab.targets[*i].tailnet[&family]).collect::<SortedSet<IpAddr>>();
    let retarget = |ruleset: &mut Ruleset, which| {
        for family in Family::ALL {
            ruleset.from_cluster.insert(scene.proxy().cluster[&family], of(which, family));
        }
    };
    firewall.change(|ruleset| retarget(ruleset, &[0, 2]));
    check(&firewall, SERVICE, Relayed(&["target0", "target2"]));
    firewall.change(|ruleset| retarget(ruleset, &[]));
    check(&firewall, SERVICE, Refused);
    check(&firewall, 9002, Own);
    firewall.change(|ruleset| ruleset.from_cluster.clear());
    check(&firewall, SERVICE, Own);
}

fn changed_rules_apply_to_the_next_flow(backend: Backend) {
    use Expect::{Own, Refused, Relayed};
    let scene = Scene::build();
    let mut firewall = Firewall::load(backend, scene.proxy(), scene.ruleset());
    let check = |firewall: &Firewall, port, expect| {
        for pod in scene.proxy().cluster.values() {
            scene.check_both(&firewall.ruleset, Side::Cluster, *pod, port, expect);
        }
    };
    let both = |ruleset: &mut Ruleset, port, which: &[usize]| {
        for proto in Proto::ALL {
            ruleset.ports.insert(key(proto, port), scene.targets(which, &Family::ALL));
        }
    };
    check(&firewall, 10_001, Relayed(&["target0"]));
    firewall.change(|ruleset| both(ruleset, 10_001, &[1]));
    check(&firewall, 10_001, Relayed(&["target1"]));
    firewall.change(|ruleset| both(ruleset, 10_001, &[1, 2]));
    check(&firewall, 10_001, Relayed(&["target1", "target2"]));
    firewall.change(|ruleset| both(ruleset, 10_001, &[]));
    check(&firewall, 10_001, Refused);
    firewall.change(|ruleset| both(ruleset, 10_001, &[2]));
    check(&firewall, 10_001, Relayed(&["target2"]));
    firewall.change(|ruleset| both(ruleset, 10_099, &[0]));
    check(&firewall, 10_099, Relayed(&["target0"]));
    firewall.change(|ruleset| Proto::ALL.iter().for_each(|proto| drop(ruleset.ports.remove(&key(*proto, 10_001)))));
    check(&firewall, 10_001, Own);
    assert_eq!(firewall.audit(), Audit::Same);
    firewall.remove();
    let nothing = Ruleset::empty(InterfaceName::tailscale0());
    scene.check_both(&nothing, Side::Cluster, scene.proxy().cluster[&Family::V4], 10_099, Own);
}

fn source_address_follows_the_nodes_own_address(backend: Backend) {
    let scene = Scene::build();
    let mut firewall = Firewall::load(backend, scene.proxy(), scene.ruleset());
    let fresh: [IpAddr; 2] = ["100.64.0.77".parse().expect("an address"), "fd7a:115c:a1e0::77".parse().expect("an address")];
    scene.proxy().ip("addr add 100.64.0.77/24 dev tailscale0\naddr add fd7a:115c:a1e0::77/64 dev tailscale0 nodad preferred_lft 0\n");
    let check = |firewall: &Firewall| {
        for pod in scene.proxy().cluster.values() {
            scene.check_both(&firewall.ruleset, Side::Cluster, *pod, 10_001, Expect::Relayed(&["target0"]));
        }
    };
    firewall.change(|ruleset| ruleset.source = fresh.map(|ip| (Family::of(ip), ip)).into_iter().collect());
    check(&firewall);
    // Masquerading selects the first IPv4 address and a preferred IPv6 one: the old ones.
    firewall.change(|ruleset| ruleset.source.clear());
    check(&firewall);
    firewall.change(|ruleset| ruleset.source = fresh.map(|ip| (Family::of(ip), ip)).into_iter().collect());
    check(&firewall);
}

fn tcp_mss_is_clamped_in_both_directions(backend: Backend) {
    for cluster_mtu in [1500, 9001] {
        segments_fit_the_tailnet(backend, cluster_mtu);
    }
}

fn segments_fit_the_tailnet(backend: Backend, cluster_mtu: u32) {
    let scene = Scene::of(&Shape { clients: 2, proxies: 1, targets: 3, cluster_mtu, ..Shape::default() });
    let target = &scene.lab.targets[2];
    // A target that assumes an MTU of 1500 for its link: only the proxy knows the smaller one.
    target.ip(&format!("link set {TAILNET} mtu 1500\n"));
    for (family, headers, port) in [(Family::V4, 40, 7002), (Family::V6, 60, 7003)] {
        let any = SocketAddr::new(if family == Family::V4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }, port);
        let listener = target.ns.run(|| TcpListener::bind(any)).expect("the namespace").expect("a listener");
        let mut firewall = Firewall::load(backend, scene.proxy(), scene.ruleset());
        let to = SortedSet::from([SocketAddr::new(target.tailnet[&family], port)]);
        firewall.change(|ruleset| drop(ruleset.ports.insert(key(Proto::Tcp, 10_007), to)));
        let pod = SocketAddr::new(scene.proxy().cluster[&family], 10_007);
        let client = scene.lab.clients[0].connect(pod, PATIENCE).unwrap_or_else(|fault| panic!("{pod}: {fault}"));
        let (server, _) = listener.accept().expect("a connection");
        // Maximum segment of TCP: the peer's announced size without the timestamps.
        let fits = TAILNET_MTU - headers - 12;
        let sizes = [&client, &server].map(|stream| SockRef::from(stream).tcp_mss().expect("a TCP socket"));
        assert_eq!(sizes, [fits; 2], "{family}, MTU {cluster_mtu}: towards the client by SYN-ACK, towards the target by SYN");
    }
}

/// Addresses behind a subnet router, outside of the tailnet's ranges.
fn subnet(family: Family, host: u8) -> IpAddr {
    let text = if family == Family::V4 { format!("10.77.0.{host}") } else { format!("fd77::{host}") };
    text.parse().expect("an address")
}

/// A tailnet that disappears: the first target answers at these addresses while it is present, a cluster node while it is not.
struct Away<'a> {
    scene: &'a Scene,
    _served: Server,
}

impl<'a> Away<'a> {
    fn prepare(scene: &'a Scene, meant: &[IpAddr]) -> Self {
        let (stranger, target) = (&scene.lab.clients[1], &scene.lab.targets[0]);
        for ip in meant {
            stranger.ip(&format!("addr add {ip} dev lo\n"));
            if !target.tailnet.values().any(|own| own == ip) {
                target.ip(&format!("addr add {ip} dev lo\n"));
            }
        }
        Self { scene, _served: stranger.serve(SERVICE) }
    }

    /// Routes an address through the tailnet, or to the cluster.
    fn route(&self, ip: IpAddr, away: bool) {
        let family = Family::of(ip);
        let own = self.scene.lab.targets[0].tailnet[&family];
        let by = if away {
            format!("via {} dev eth0", self.scene.lab.clients[1].cluster[&family])
        } else if ip == own {
            format!("dev {TAILNET}")
        } else {
            format!("via {own} dev {TAILNET}")
        };
        self.scene.proxy().ip(&format!("route replace {ip} {by}\n"));
        // A UDP server on the wildcard address responds from the source address of its route.
        let back = self.scene.proxy().tailnet[&family];
        self.scene.lab.targets[0].ip(&format!("route replace {back} dev {TAILNET} src {ip}\n"));
    }

    /// Connects to the Pod without the tailnet, and with it again.
    fn check(&self, port: u16, meant: &[IpAddr]) {
        let pod = SocketAddr::new(self.scene.proxy().cluster[&Family::of(meant[0])], port);
        let asker = &self.scene.lab.clients[0];
        for ip in meant {
            self.route(*ip, true);
        }
        for (proto, answer) in [(Proto::Tcp, asker.ask_tcp(pod, AT_ONCE / 10)), (Proto::Udp, asker.ask_udp(pod, AT_ONCE / 10))] {
            let fault = answer.as_ref().map_err(io::Error::kind).err();
            let dropped = fault.is_some_and(|kind| matches!(kind, io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock));
            assert!(dropped, "{pod} by {proto}, meant for {meant:?} while the tailnet is away: {answer:?}");
        }
        for ip in meant {
            self.route(*ip, false);
        }
        let udp = (meant.len() == 1).then(|| (Proto::Udp, asker.ask_udp(pod, PATIENCE)));
        for (proto, answer) in [(Proto::Tcp, asker.ask_tcp(pod, PATIENCE))].into_iter().chain(udp) {
            let name = answer.as_ref().map(|greeting| greeting.name.as_str());
            assert_eq!(name.ok(), Some("target0"), "{pod} by {proto}, meant for {meant:?} in the tailnet: {answer:?}");
        }
    }
}

/// Without tailscaled its routes are gone, and a cluster node with the target's address would receive the traffic.
fn match_port_traffic_leaves_only_by_the_tailnet(backend: Backend) {
    let scene = Scene::build();
    let targets = &scene.lab.targets[0].tailnet;
    let rows: Vec<(u16, IpAddr)> = Family::ALL
        .into_iter()
        .flat_map(|family| [(10_001, targets[&family]), (10_006, subnet(family, 5)), (10_007, link_local(family))])
        .collect();
    let away = Away::prepare(&scene, &rows.iter().map(|(_, ip)| *ip).collect::<Vec<_>>());
    let mut ruleset = scene.ruleset();
    for (port, ip) in &rows {
        for proto in Proto::ALL {
            let current = ruleset.ports.get(&key(proto, *port)).map(|current| current.to_vec()).unwrap_or_default();
            let to = current.into_iter().filter(|to| to.ip() != *ip).chain([SocketAddr::new(*ip, SERVICE)]).collect();
            ruleset.ports.insert(key(proto, *port), to);
        }
    }
    let _firewall = Firewall::load(backend, scene.proxy(), ruleset);
    for (port, ip) in rows {
        away.check(port, &[ip]);
    }
}

/// The tailnet's links have a smaller MTU than the cluster's: the ICMP error for a datagram that must not be fragmented reaches the client
/// through the NAT.
fn oversized_datagram_gets_its_icmp_error_through_nat(backend: Backend) {
    for cluster_mtu in [1500, 9001] {
        let scene = Scene::of(&Shape { clients: 2, proxies: 1, targets: 3, cluster_mtu, ..Shape::default() });
        let _firewall = Firewall::load(backend, scene.proxy(), scene.ruleset());
        let client = &scene.lab.clients[0];
        for (family, any) in [(Family::V4, "0.0.0.0:0"), (Family::V6, "[::]:0")] {
            let row = format!("{family}, MTU {cluster_mtu}");
            let socket = client.ns.run(|| UdpSocket::bind(any)).expect("the namespace").expect("a socket");
            socket.connect(SocketAddr::new(scene.proxy().cluster[&family], 10_001)).expect("a socket");
            socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
            // It fits the client's link, and the kernel sets DF (don't fragment).
            let datagram = vec![b'?'; cluster_mtu as usize - 100];
            socket.send(&datagram).expect("sent");
            let fault = uninterrupted(|| socket.recv(&mut [0; 512])).expect_err("too big");
            assert_eq!(fault.raw_os_error(), Some(nix::errno::Errno::EMSGSIZE as i32), "{row}: {fault}");
            // Now the client knows the path MTU, and fragments by itself.
            socket.send(&datagram).expect("sent");
            let mut buffer = [0; 512];
            let size = uninterrupted(|| socket.recv(&mut buffer)).unwrap_or_else(|fault| panic!("{row}: {fault}"));
            assert!(buffer[..size].starts_with(b"target0 "), "{row}");
        }
    }
}

/// Address of a cloud metadata service.
fn link_local(family: Family) -> IpAddr {
    let text = if family == Family::V4 { "169.254.169.254" } else { "fd00:ec2::254" };
    text.parse().expect("an address")
}

fn whole_address_traffic_leaves_only_by_the_tailnet(backend: Backend) {
    let scene = Scene::build();
    let all: Vec<IpAddr> = Family::ALL.into_iter().flat_map(|family| [subnet(family, 5), subnet(family, 6)]).collect();
    let away = Away::prepare(&scene, &all);
    let mut firewall = Firewall::load(backend, scene.proxy(), Ruleset::empty(InterfaceName::tailscale0()));
    for hosts in [&[5_u8][..], &[5, 6]] {
        firewall.change(|ruleset| {
            ruleset.source = scene.proxy().tailnet.clone().into();
            for (family, pod) in &scene.proxy().cluster {
                ruleset.from_cluster.insert(*pod, hosts.iter().map(|host| subnet(*family, *host)).collect());
            }
        });
        for family in Family::ALL {
            away.check(SERVICE, &hosts.iter().map(|host| subnet(family, *host)).collect::<Vec<_>>());
        }
    }
}

/// tailscaled's rules beside ours: packets from 100.64.0.0/10 that do not arrive from the tailnet are dropped.
const TAILSCALED: &str = "*filter
:ts-input - [0:0]
:ts-forward - [0:0]
-I INPUT 1 -j ts-input
-A ts-input -i tailscale0 -j ACCEPT
-A ts-input -s 100.64.0.0/10 ! -i tailscale0 -j DROP
-I FORWARD 1 -j ts-forward
-A ts-forward -i tailscale0 -j MARK --set-xmark 0x40000/0xff0000
-A ts-forward -m mark --mark 0x40000/0xff0000 -j ACCEPT
-A ts-forward -s 100.64.0.0/10 -o tailscale0 -j DROP
-A ts-forward -o tailscale0 -j ACCEPT
COMMIT
*nat
:ts-postrouting - [0:0]
-I POSTROUTING 1 -j ts-postrouting
-A ts-postrouting -m mark --mark 0x40000/0xff0000 -j MASQUERADE
COMMIT
";

fn pod_network_in_the_tailnet_range_is_forwarded(backend: Backend) {
    use Expect::{Refused, Relayed};
    let scene = Scene::of(&Shape { clients: 2, proxies: 1, targets: 3, cluster4: [100, 100, 0], ..Shape::default() });
    let program = if backend == Backend::IptablesLegacy { "iptables-legacy-restore" } else { "iptables-nft-restore" };
    scene.proxy().feed(&[program, "--noflush", "--wait", "20"], TAILSCALED);
    let firewall = Firewall::load(backend, scene.proxy(), scene.ruleset());
    let (pod, target) = (scene.proxy().cluster[&Family::V4], scene.lab.targets[0].tailnet[&Family::V4]);
    scene.lab.clients[0].ip(&format!("route add {target}/32 via {pod}\n"));
    let around = scene.lab.clients[0].ask_tcp(SocketAddr::new(target, SERVICE), Duration::from_millis(300));
    assert_eq!(around.map_err(|fault| fault.kind()), Err(io::ErrorKind::TimedOut), "tailscaled's rules are in force");
    scene.check_both(&firewall.ruleset, Side::Cluster, pod, 10_001, Relayed(&["target0"]));
    scene.check_both(&firewall.ruleset, Side::Cluster, pod, 10_004, Relayed(&["target0", "target1", "target2"]));
    scene.check_both(&firewall.ruleset, Side::Cluster, pod, 10_002, Refused);
    scene.check_both(&firewall.ruleset, Side::Tailnet, vip(Family::V4, 2), BACKEND, Relayed(&["client0"]));
}

/// A Service of one family in a group: the replica's plan, loaded in the kernel.
fn address_without_mapping_is_refused_at_once(backend: Backend) {
    use Expect::{Refused, Relayed};
    let scene = Scene::build();
    for (family, other) in [(Family::V4, Family::V6), (Family::V6, Family::V4)] {
        let mapping = format!(
            r#"{{"svc:web":{{"{family}Mapping":{{"TailscaleServiceIP":"{}","ClusterIP":"{}"}}}}}}"#,
            vip(family, 5),
            scene.lab.clients[0].cluster[&family]
        );
        let services = [("svc:web".to_owned(), [vip(family, 5), vip(other, 5)].into())].into();
        let addresses = scene.proxy().tailnet.values().copied().collect();
        let node = SelfNode { addresses, services, ..SelfNode::default() };
        let world = World {
            ingress: Arc::new(IngressConfig::parse(mapping.as_bytes()).expect("a config")),
            netmap: Some(Arc::new(NetMap { node: Some(node), ..NetMap::default() })),
            ..World::empty(InterfaceName::tailscale0(), BTreeSet::new())
        };
        let firewall = Firewall::load(backend, scene.proxy(), Planned::new(&world).ruleset);
        scene.check_both(&firewall.ruleset, Side::Tailnet, vip(family, 5), BACKEND, Relayed(&["client0"]));
        scene.check_both(&firewall.ruleset, Side::Tailnet, vip(other, 5), BACKEND, Refused);
    }
}

/// A neighbour on the node network may have a route to the address of a Tailscale Service: only the tailnet is forwarded to its backends.
fn neighbour_reaches_no_tailscale_service(backend: Backend) {
    let scene = Scene::build();
    let firewall = Firewall::load(backend, scene.proxy(), scene.ruleset());
    let neighbour = &scene.lab.clients[1];
    for family in Family::ALL {
        let service = vip(family, 2);
        neighbour.ip(&format!("route replace {service} via {}\n", scene.proxy().cluster[&family]));
        let to = SocketAddr::new(service, BACKEND);
        for answer in [neighbour.ask_tcp(to, AT_ONCE), neighbour.ask_udp(to, AT_ONCE)] {
            assert!(answer.is_err(), "{to}: {answer:?}");
        }
        scene.check_both(&firewall.ruleset, Side::Tailnet, service, BACKEND, Expect::Relayed(&["client0"]));
    }
}

/// Writes tailscaled's table, ahead of the main one, with these routes: another node of the tailnet advertises them.
fn accept(proxy: &Node, routes: &[impl std::fmt::Display]) {
    for family in ["-4", "-6"] {
        proxy.feed(&["ip", family, "rule", "add", "pref", "5270", "lookup", "52"], "");
    }
    proxy.ip(&routes.iter().map(|net| format!("route add {net} dev {TAILNET} table 52\n")).collect::<Vec<_>>().concat());
}

/// A route over the Pods of another zone covers no address of the replica, but backends of its HTTP front end.
fn accepted_route_over_backends_takes_no_request(backend: Backend) {
    let scene = Scene::build();
    let (proxy, client) = (scene.proxy(), &scene.lab.clients[0]);
    let _firewall = Firewall::load(backend, proxy, scene.ruleset());
    let backends = Family::ALL.map(|family| SocketAddr::new(client.cluster[&family], BACKEND));
    let covering = backends.map(|backend| IpNet::from(backend.ip()));
    accept(proxy, &covering);
    let mut subnets = SubnetRoutes::default();
    subnets.follow(&NetMap { routes: covering.into_iter().collect(), ..NetMap::default() });
    let own: BTreeSet<IpAddr> = proxy.cluster.values().copied().collect();
    let endpoints = backends.map(|address| Endpoint { address, topology: Arc::default() });
    let port = ServicePort { namespace: "shop".into(), service: "web".into(), port: "http".into() };
    for (endpoints, is_reached) in [(Vec::new(), false), (endpoints.to_vec(), true)] {
        let dialed = dialed(&Vhosts::new(), &[(port.clone(), endpoints)].into());
        let rules = rules(&InterfaceName::tailscale0(), subnets.overlaps([&own, &dialed], None).keys());
        proxy.ns.block_on(|| sync(&rules)).expect("the namespace").expect("routing rules");
        for to in backends {
            let answer = proxy.ask_tcp(to, if is_reached { PATIENCE } else { Duration::from_millis(300) });
            assert_eq!(answer.is_ok(), is_reached, "{to}: {answer:?}");
        }
    }
}

/// The routes have the cluster's own ranges.
fn accepted_route_over_the_cluster_takes_no_traffic(backend: Backend) {
    use Expect::{Own, Refused, Relayed};
    let scene = Scene::build();
    let (proxy, client) = (scene.proxy(), &scene.lab.clients[0]);
    let covering = ["10.42.0.0/24", "fd42::/64"];
    accept(proxy, &covering);
    // The strictest check of source addresses.
    proxy.sysctl("net.ipv4.conf.all.rp_filter", "1");
    let firewall = Firewall::load(backend, proxy, scene.ruleset());
    let cut = client.ask_tcp(SocketAddr::new(proxy.cluster[&Family::V6], 10_001), Duration::from_millis(300));
    assert_eq!(cut.map_err(|fault| fault.kind()), Err(io::ErrorKind::TimedOut), "the route takes replies");
    let rules = rules(&InterfaceName::tailscale0(), &covering.map(|net| net.parse().expect("a prefix")));
    proxy.ns.block_on(|| sync(&rules)).expect("the namespace").expect("routing rules");
    for family in Family::ALL {
        let (pod, backend) = (proxy.cluster[&family], SocketAddr::new(client.cluster[&family], BACKEND));
        scene.check_both(&firewall.ruleset, Side::Cluster, pod, 10_001, Relayed(&["target0"]));
        scene.check_both(&firewall.ruleset, Side::Cluster, pod, 10_002, Refused);
        scene.check_both(&firewall.ruleset, Side::Cluster, pod, 9002, Own);
        scene.check_both(&firewall.ruleset, Side::Tailnet, vip(family, 2), BACKEND, Relayed(&["client0"]));
        scene.check_both(&firewall.ruleset, Side::Tailnet, vip(family, 3), BACKEND, Refused);
        let own = proxy.ask_tcp(backend, PATIENCE).expect("an answer");
        assert_eq!(own.peer.ip(), pod, "the replica's own connection");
    }
}

fn flows_and_bytes_are_counted_by_match_port(backend: Backend) {
    let scene = Scene::build();
    let mut firewall = Firewall::load(backend, scene.proxy(), scene.ruleset());
    let ask = |port, proto| {
        for family in Family::ALL {
            let answer = scene.ask(Side::Cluster, scene.proxy().cluster[&family], proto, port).0;
            answer.unwrap_or_else(|fault| panic!("{family} {proto}/{port}: {fault}"));
        }
    };
    for _ in 0..5 {
        ask(10_001, Proto::Tcp);
        ask(10_004, Proto::Udp);
    }
    let counted = firewall.counters();
    let of = |traffic: &Traffic, proto, port| traffic.get(&key(proto, port)).copied().unwrap_or_default();
    let (tcp, udp) = (of(&counted, Proto::Tcp, 10_001), of(&counted, Proto::Udp, 10_004));
    assert_eq!((tcp.flows, udp.flows), (10, 10), "five of each family");
    // A handshake, a greeting and two FINs are at least seven segments.
    assert!(tcp.packets >= 70 && tcp.bytes >= 70 * 40, "{tcp:?}");
    assert_eq!(udp.packets, 20, "a question and an answer each");
    assert_eq!(of(&counted, Proto::Udp, 10_001), Counters::default());
    // Refused packets have no flow, and the other direction is not counted here.
    assert_eq!(of(&counted, Proto::Tcp, 10_002).flows, 0);
    firewall.change(|ruleset| drop(ruleset.ports.insert(key(Proto::Tcp, 10_001), scene.targets(&[1], &Family::ALL))));
    ask(10_001, Proto::Tcp);
    let after = of(&firewall.counters(), Proto::Tcp, 10_001);
    assert!(after.packets > tcp.packets && after.bytes > tcp.bytes, "a retarget keeps them: {after:?} after {tcp:?}");
}

fn ten_thousand_ports_load_and_change(backend: Backend) {
    let scene = Scene::build();
    let mut ruleset = scene.ruleset();
    let nowhere = |i: u16| SocketAddr::from(([100, 64, 9, 9], i));
    ruleset.ports.extend((20_000..30_000).map(|port| (key(Proto::Tcp, port), SortedSet::from([nowhere(port)]))));
    let start = Instant::now();
    let mut firewall = Firewall::load(backend, scene.proxy(), ruleset);
    let loaded = start.elapsed();
    assert_eq!(firewall.audit(), Audit::Same);
    let pod = scene.proxy().cluster[&Family::V4];
    let start = Instant::now();
    firewall.change(|ruleset| drop(ruleset.ports.insert(key(Proto::Tcp, 29_999), scene.targets(&[0], &Family::ALL))));
    println!("{backend:?}: 10,000 ports in {loaded:?}, one change in {:?}", start.elapsed());
    scene.check(&firewall.ruleset, Side::Cluster, pod, Proto::Tcp, 29_999, Expect::Relayed(&["target0"]));
    assert_eq!(firewall.audit(), Audit::Same);
}

on_every_backend!(
    every_kind_of_flow_matches_the_prediction,
    whole_address_mapping_excludes_reserved_ports,
    changed_rules_apply_to_the_next_flow,
    source_address_follows_the_nodes_own_address,
    tcp_mss_is_clamped_in_both_directions,
    oversized_datagram_gets_its_icmp_error_through_nat,
    pod_network_in_the_tailnet_range_is_forwarded,
    address_without_mapping_is_refused_at_once,
    neighbour_reaches_no_tailscale_service,
    accepted_route_over_the_cluster_takes_no_traffic,
    accepted_route_over_backends_takes_no_request,
    match_port_traffic_leaves_only_by_the_tailnet,
    whole_address_traffic_leaves_only_by_the_tailnet,
    flows_and_bytes_are_counted_by_match_port,
    ten_thousand_ports_load_and_change,
);
