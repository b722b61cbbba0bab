//! Random rulesets and packets from a domain so small that they match each other; shared by the renderers' tests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use proptest::collection::{btree_map, btree_set};
use proptest::prelude::*;

use kit::ruleset_oracle::{FlowVerdict, Packet, SourceAddress, evaluate};
use tailyard::model::base::net::{Family, InterfaceName, Port, PortKey, Proto};
use tailyard::model::firewall::ruleset::{Ruleset, SiblingAddresses};

/// One of a few addresses: `which` is 0 to 7, even ones are IPv4.
fn address(net: u8, which: u8) -> IpAddr {
    let text = if which.is_multiple_of(2) { format!("10.0.{net}.{which}") } else { format!("fd00::{net}:{which}") };
    text.parse().expect("an address")
}

/// Network of the node's own addresses in the tailnet, where listeners are.
pub(crate) const LISTENERS: u8 = 9;

fn addresses(net: u8) -> impl Strategy<Value = BTreeSet<IpAddr>> {
    btree_set((0..8u8).prop_map(move |which| address(net, which)), 0..5)
}

fn keys() -> impl Strategy<Value = PortKey> {
    // Ports with common leading digits in every base that a tree may use, and some without.
    let ports = prop_oneof![9_996..10_004u16, 4_094..4_100u16, Just(1), Just(255), Just(256), Just(65_535)];
    (prop_oneof![Just(Proto::Tcp), Just(Proto::Udp)], ports)
        .prop_map(|(proto, port)| PortKey { proto, port: Port::new(port).expect("not zero") })
}

/// Any ruleset of the small domain.
pub(crate) fn rulesets() -> impl Strategy<Value = Ruleset> {
    let target = (0..8u8, prop_oneof![Just(53u16), Just(5432)]).prop_map(|(which, port)| SocketAddr::new(address(2, which), port));
    let hosts = |net| btree_map((0..4u8).prop_map(move |which| address(net, which)), addresses(2), 0..3);
    let ports = btree_map(keys(), btree_set(target, 0..5), 0..12);
    let siblings = (btree_set(0..4u8, 0..3), addresses(4));
    let listener = ((0..4u8, keys()), prop_oneof![Just(40_001u16), Just(40_002)]).prop_map(|((which, key), port)| {
        (SocketAddr::new(address(3, which), key.port.get()), SocketAddr::new(address(LISTENERS, which % 2), port))
    });
    let listeners = btree_set(listener, 0..4);
    (ports, hosts(1), hosts(3), listeners, btree_set(keys(), 0..2), btree_set(0..2u8, 0..3), siblings).prop_map(
        |(ports, from_cluster, from_tailnet, listeners, reserved, own, (pod, replicas))| {
            let siblings = pod.into_iter().filter_map(|which| SiblingAddresses::new(address(1, which), replicas.iter().copied()));
            let siblings = siblings.map(|of| (Family::of(of.own()), of)).collect();
            let own = own.into_iter().map(|which| address(LISTENERS, which));
            let source: BTreeMap<Family, IpAddr> = own.map(|ip| (Family::of(ip), ip)).collect();
            let interface = InterfaceName::tailscale0();
            let (from_cluster, from_tailnet) = (from_cluster.into(), from_tailnet.into());
            Ruleset {
                source: source.into(),
                ports: ports.into(),
                from_tailnet,
                listeners: listeners.into_iter().collect(),
                from_cluster,
                siblings,
                reserved,
                ..Ruleset::empty(interface)
            }
        },
    )
}

/// Any packet that one of these rulesets may match.
pub(crate) fn packets() -> impl Strategy<Value = Packet> {
    let nets = prop_oneof![Just(1u8), Just(3)];
    (any::<bool>(), nets, 0..4u8, any::<bool>(), keys()).prop_map(|(from_tailnet, net, which, to_pod, key)| Packet {
        from_tailnet,
        dst: address(net, which),
        to_pod,
        proto: key.proto,
        port: key.port,
    })
}

fn one(ports: &[(&str, u16, &[&str])]) -> Ruleset {
    let key = |proto: &str, port| PortKey { proto: proto.parse().expect("a protocol"), port: Port::new(port).expect("not zero") };
    let ports = ports.iter().map(|(proto, port, to)| {
        let targets: BTreeSet<SocketAddr> = to.iter().map(|to| to.parse().expect("a target")).collect();
        (key(proto, *port), targets)
    });
    let source = [(Family::V4, IpAddr::from([100, 64, 0, 1]))].into_iter().collect();
    Ruleset { ports: ports.collect(), source, ..Ruleset::empty(InterfaceName::tailscale0()) }
}

fn packet(dst: &str, port: u16) -> Packet {
    let (dst, port) = (dst.parse().expect("an address"), Port::new(port).expect("not zero"));
    Packet { from_tailnet: false, dst, to_pod: true, proto: Proto::Tcp, port }
}

#[test]
fn match_port_is_translated_in_its_family_and_rejected_in_the_other() {
    let ruleset = one(&[("tcp", 10_042, &["100.64.0.2:5432"])]);
    let to = BTreeSet::from(["100.64.0.2:5432".parse().expect("a target")]);
    let source = SourceAddress::Own("100.64.0.1".parse().expect("an address"));
    assert_eq!(evaluate(&ruleset, &packet("10.42.0.2", 10_042)), FlowVerdict::Dnat { to, source });
    assert_eq!(evaluate(&ruleset, &packet("fd42::2", 10_042)), FlowVerdict::Refuse);
    assert_eq!(evaluate(&ruleset, &packet("10.42.0.2", 10_043)), FlowVerdict::Pass);
    assert_eq!(evaluate(&ruleset, &Packet { proto: Proto::Udp, ..packet("10.42.0.2", 10_042) }), FlowVerdict::Pass);
}

#[test]
fn match_port_ignores_tailnet_sources_and_other_destinations() {
    let ruleset = one(&[("tcp", 10_042, &["100.64.0.2:5432"])]);
    assert_eq!(evaluate(&ruleset, &Packet { from_tailnet: true, ..packet("100.64.0.1", 10_042) }), FlowVerdict::Pass);
    assert_eq!(evaluate(&ruleset, &Packet { to_pod: false, ..packet("10.42.0.3", 10_042) }), FlowVerdict::Pass);
}

#[test]
fn whole_address_mapping_excludes_match_ports_and_reserved_ports() {
    let mut ruleset = one(&[("tcp", 10_042, &[])]);
    let pod: IpAddr = "10.42.0.2".parse().expect("an address");
    ruleset.from_cluster.insert(pod, ["100.64.0.9".parse().expect("an address")].into());
    ruleset.reserved.insert(PortKey { proto: Proto::Tcp, port: Port::new(9002).expect("not zero") });
    assert_eq!(evaluate(&ruleset, &packet("10.42.0.2", 10_042)), FlowVerdict::Refuse);
    assert_eq!(evaluate(&ruleset, &packet("10.42.0.2", 9002)), FlowVerdict::Pass);
    let FlowVerdict::Dnat { to, .. } = evaluate(&ruleset, &packet("10.42.0.2", 80)) else { panic!("relayed") };
    assert_eq!(to, BTreeSet::from(["100.64.0.9:80".parse().expect("a target")]));
}
