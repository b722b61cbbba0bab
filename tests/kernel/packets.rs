//! One table of packet flows, two oracles: the evaluator says what the table says, and so does the kernel.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use tailyard::model::eval::{Packet, Source, Verdict, evaluate};
use tailyard::model::net::{Family, InterfaceName, Port, PortKey, Proto};
use tailyard::model::ruleset::Ruleset;

use crate::firewall::{Backend, Firewall};
use crate::lab::{Greeting, Lab, Node, Server, Shape};

/// How long a flow that should work may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a refusal may take.
const AT_ONCE: Duration = Duration::from_millis(100);

/// The port that targets serve.
const SERVICE: u16 = 7001;
/// The port that the cluster's backends serve.
const BACKEND: u16 = 8080;

/// Who opens a flow, and so on which side of the proxy it comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Cluster,
    Tailnet,
}

/// What is to become of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    /// One of these answers, each if asked often enough, and sees the proxy's own address on its side.
    Relayed(&'static [&'static str]),
    /// Refused at once.
    Refused,
    /// The proxy itself answers: nothing was done to it.
    Own,
}

/// The lab with everything that a flow may end at.
struct Scene {
    lab: Lab,
    _servers: Vec<Server>,
}

impl Scene {
    fn build() -> Self {
        let lab = Lab::build(&Shape { clients: 2, proxies: 1, targets: 3, ..Shape::default() });
        let proxy = &lab.proxies[0];
        for target in &lab.targets {
            target.ip("route add 100.99.1.0/24 via 100.64.0.1\nroute add fd7a:115c:a1e0:99::/64 via fd7a:115c:a1e0::1\n");
        }
        // As tailscaled has it: a Tailscale Service's address leads to the tailnet.
        proxy.ip("route add 100.99.1.0/24 dev tailscale0\nroute add fd7a:115c:a1e0:99::/64 dev tailscale0\n");
        let mut servers: Vec<Server> = lab.targets.iter().map(|target| target.serve(SERVICE)).collect();
        servers.extend(lab.clients.iter().map(|client| client.serve(BACKEND)));
        servers.extend([9002, 10_001, 10_002, 10_003, 10_004, 10_099, SERVICE].map(|port| proxy.serve(port)));
        Self { lab, _servers: servers }
    }

    fn proxy(&self) -> &Node {
        &self.lab.proxies[0]
    }

    /// The targets' sockets of the given numbers.
    fn targets(&self, which: &[usize], families: &[Family]) -> BTreeSet<SocketAddr> {
        let one = |(family, i): (&Family, &usize)| SocketAddr::new(self.lab.targets[*i].tailnet[family], SERVICE);
        families.iter().flat_map(|family| which.iter().map(move |i| (family, i))).map(one).collect()
    }

    /// Both families, both protocols, every kind of key.
    fn ruleset(&self) -> Ruleset {
        let mut ruleset = Ruleset::empty(InterfaceName::tailscale0());
        ruleset.source = self.proxy().tailnet.clone().into();
        for proto in Proto::ALL {
            let mut map = |port, targets| ruleset.ports.insert(key(proto, port), targets);
            map(10_001, self.targets(&[0], &Family::ALL));
            map(10_002, BTreeSet::new());
            map(10_003, self.targets(&[1], &[Family::V4]));
            map(10_004, self.targets(&[0, 1, 2], &Family::ALL));
            map(10_005, self.targets(&[0, 1], &[Family::V4]).union(&self.targets(&[2], &[Family::V6])).copied().collect());
        }
        let backends = |which: &[usize], family| which.iter().map(|i| self.lab.clients[*i].cluster[&family]).collect();
        for family in Family::ALL {
            ruleset.from_tailnet.insert(vip(family, 2), backends(&[0], family));
            ruleset.from_tailnet.insert(vip(family, 3), BTreeSet::new());
            ruleset.from_tailnet.insert(vip(family, 4), backends(&[0, 1], family));
        }
        ruleset
    }

    /// Asks by one flow: who answered, or why not, and how long that took.
    fn ask(&self, side: Side, dst: IpAddr, proto: Proto, port: u16) -> (io::Result<Greeting>, Duration) {
        let node = if side == Side::Cluster { &self.lab.clients[0] } else { &self.lab.targets[0] };
        let (start, to) = (Instant::now(), SocketAddr::new(dst, port));
        let answer = if proto == Proto::Tcp { node.ask_tcp(to, PATIENCE) } else { node.ask_udp(to, PATIENCE) };
        (answer, start.elapsed())
    }

    /// Holds one row of the table against both oracles.
    fn check(&self, ruleset: &Ruleset, side: Side, dst: IpAddr, proto: Proto, port: u16, expect: Expect) {
        let row = format!("{side:?} → {dst} {proto}/{port}: {expect:?}");
        let to_pod = self.proxy().cluster.values().chain(self.proxy().tailnet.values()).any(|own| *own == dst);
        let packet = Packet { from_tailnet: side == Side::Tailnet, dst, to_pod, proto, port: Port::new(port).expect("not zero") };
        let verdict = evaluate(ruleset, &packet);
        match (&verdict, expect) {
            (Verdict::Dnat { to, source }, Expect::Relayed(names)) => {
                let names: BTreeSet<&str> = names.iter().copied().collect();
                assert_eq!(to.iter().map(|to| self.owner(to.ip())).collect::<BTreeSet<_>>(), names, "{row}: the evaluator's targets");
                self.check_relayed(&row, &names, *source, side, dst, proto, port);
            }
            (Verdict::Refuse, Expect::Refused) => {
                let (answer, took) = self.ask(side, dst, proto, port);
                let kind = answer.as_ref().map_err(io::Error::kind);
                assert_eq!(kind.err(), Some(io::ErrorKind::ConnectionRefused), "{row}: {answer:?}");
                assert!(took < AT_ONCE, "{row}: took {took:?}");
            }
            (Verdict::Pass, Expect::Own) => {
                let (answer, _) = self.ask(side, dst, proto, port);
                assert_eq!(answer.as_ref().map(|greeting| greeting.name.as_str()).ok(), Some("proxy0"), "{row}: {answer:?}");
            }
            _ => panic!("{row}: the evaluator says {verdict:?}"),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn check_relayed(&self, row: &str, names: &BTreeSet<&str>, source: Source, side: Side, dst: IpAddr, proto: Proto, port: u16) {
        let near = if side == Side::Cluster { &self.proxy().tailnet } else { &self.proxy().cluster };
        let seen_as = match source {
            Source::Own(own) => own,
            Source::Masquerade => near[&Family::of(dst)],
        };
        // The chance that one of three targets is missed by 60 flows is one in ten thousand million.
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

    /// The same rows for both protocols.
    fn check_both(&self, ruleset: &Ruleset, side: Side, dst: IpAddr, port: u16, expect: Expect) {
        for proto in Proto::ALL {
            self.check(ruleset, side, dst, proto, port, expect);
        }
    }
}

fn key(proto: Proto, port: u16) -> PortKey {
    PortKey { proto, port: Port::new(port).expect("not zero") }
}

/// A Tailscale Service's address.
fn vip(family: Family, number: u8) -> IpAddr {
    let text = if family == Family::V4 { format!("100.99.1.{number}") } else { format!("fd7a:115c:a1e0:99::{number}") };
    text.parse().expect("an address")
}

fn every_kind_of_flow(backend: Backend) {
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
        // The client knows the way to the proxy's tailnet address, as a node's routes may have it.
        scene.lab.clients[0].ip(&format!("route replace {own} via {pod}\n"));
        for (side, dst, port, expect) in rows {
            scene.check_both(&firewall.ruleset, *side, *dst, *port, *expect);
        }
    }
}

/// Every test on every firewall.
macro_rules! on_every_backend {
    ($($test:ident),+ $(,)?) => {
        mod nftables { $(#[test] fn $test() { super::$test(super::Backend::Nftables); })+ }
        mod nftables_json { $(#[test] fn $test() { super::$test(super::Backend::NftablesJson); })+ }
        mod iptables_nft { $(#[test] fn $test() { super::$test(super::Backend::IptablesNft); })+ }
        mod iptables_legacy { $(#[test] fn $test() { super::$test(super::Backend::IptablesLegacy); })+ }
    };
}

on_every_backend!(every_kind_of_flow);
