//! Elements of our table's maps and sets, as values for [`super::table`] and [`super::delta`].
//!
//! A key with one target in a family is in the plain map; one with several is in the set of spread keys and [`SLOTS`] times in the slot map,
//! with its targets in rotation; one without target is in neither.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::model::base::net::{Family, InterfaceName, Port, PortKey, Proto};
use crate::model::firewall::ruleset::{Delta, Edit, Ruleset, SLOTS, SiblingAddresses};

/// A map or set of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Set {
    /// Interface of the tailnet → own address.
    Source(Family),
    /// Match port → target.
    Port(Family),
    /// Match ports with several targets in a family.
    PortMany,
    /// Match port and slot → target.
    PortSlot(Family),
    /// Every configured match port of a protocol, with packet counters.
    Traffic(Proto),
    /// Ports of the Pod itself.
    Reserved,
    /// Address of the Pod → sibling replica that gets its flows while its tunnel is closed.
    Fallback(Family),
    /// Addresses of the Pod with a fallback, and of its sibling replicas.
    Replica(Family),
    /// Address and port of a Tailscale Service → listener of this Pod.
    Listener(Family),
    /// Ports of these listeners.
    Listening,
    /// L3 address → target, of one [`PacketSide`].
    Host(PacketSide, Family),
    /// L3 addresses with several targets.
    HostMany(PacketSide, Family),
    /// L3 address and slot → target.
    HostSlot(PacketSide, Family),
    /// L3 addresses without target: rejected.
    HostNone(PacketSide, Family),
}

/// Origin of packets to an L3 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PacketSide {
    /// From the cluster, to an address of the Pod.
    Cluster,
    Tailnet,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ElementKey {
    Interface(InterfaceName),
    /// A port of the set's protocol.
    Number(Port),
    Port(PortKey),
    PortSlot(PortKey, u32),
    Socket(SocketAddr),
    Host(IpAddr),
    HostSlot(IpAddr, u32),
}

/// Value of a map's element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    Address(IpAddr),
    /// An address and port.
    Socket(SocketAddr),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Element {
    pub set: Set,
    pub key: ElementKey,
    /// Its value, if the set is a map.
    pub value: Option<Value>,
}

/// Deletions, then additions, of one transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edits {
    /// Elements of the old ruleset only, in order.
    pub delete: Vec<Element>,
    /// Elements of the new ruleset only, in order.
    pub add: Vec<Element>,
}

impl Set {
    /// All of them, in order.
    pub const ALL: [Self; 33] = {
        use Family::{V4, V6};
        use PacketSide::{Cluster, Tailnet};
        [
            Self::Source(V4),
            Self::Source(V6),
            Self::Port(V4),
            Self::Port(V6),
            Self::PortMany,
            Self::PortSlot(V4),
            Self::PortSlot(V6),
            Self::Traffic(Proto::Tcp),
            Self::Traffic(Proto::Udp),
            Self::Reserved,
            Self::Fallback(V4),
            Self::Fallback(V6),
            Self::Replica(V4),
            Self::Replica(V6),
            Self::Listener(V4),
            Self::Listener(V6),
            Self::Listening,
            Self::Host(Cluster, V4),
            Self::Host(Cluster, V6),
            Self::Host(Tailnet, V4),
            Self::Host(Tailnet, V6),
            Self::HostMany(Cluster, V4),
            Self::HostMany(Cluster, V6),
            Self::HostMany(Tailnet, V4),
            Self::HostMany(Tailnet, V6),
            Self::HostSlot(Cluster, V4),
            Self::HostSlot(Cluster, V6),
            Self::HostSlot(Tailnet, V4),
            Self::HostSlot(Tailnet, V6),
            Self::HostNone(Cluster, V4),
            Self::HostNone(Cluster, V6),
            Self::HostNone(Tailnet, V4),
            Self::HostNone(Tailnet, V6),
        ]
    };

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        use Family::{V4, V6};
        use PacketSide::{Cluster, Tailnet};
        match self {
            Self::Source(V4) => "source4",
            Self::Source(V6) => "source6",
            Self::Port(V4) => "port4",
            Self::Port(V6) => "port6",
            Self::PortMany => "port-many",
            Self::PortSlot(V4) => "port4-slot",
            Self::PortSlot(V6) => "port6-slot",
            Self::Traffic(Proto::Tcp) => "traffic-tcp",
            Self::Traffic(Proto::Udp) => "traffic-udp",
            Self::Reserved => "reserved",
            Self::Fallback(V4) => "fallback4",
            Self::Fallback(V6) => "fallback6",
            Self::Replica(V4) => "replica4",
            Self::Replica(V6) => "replica6",
            Self::Listener(V4) => "listener4",
            Self::Listener(V6) => "listener6",
            Self::Listening => "listening",
            Self::Host(Cluster, V4) => "pod4",
            Self::Host(Cluster, V6) => "pod6",
            Self::Host(Tailnet, V4) => "vip4",
            Self::Host(Tailnet, V6) => "vip6",
            Self::HostMany(Cluster, V4) => "pod4-many",
            Self::HostMany(Cluster, V6) => "pod6-many",
            Self::HostMany(Tailnet, V4) => "vip4-many",
            Self::HostMany(Tailnet, V6) => "vip6-many",
            Self::HostSlot(Cluster, V4) => "pod4-slot",
            Self::HostSlot(Cluster, V6) => "pod6-slot",
            Self::HostSlot(Tailnet, V4) => "vip4-slot",
            Self::HostSlot(Tailnet, V6) => "vip6-slot",
            Self::HostNone(Cluster, V4) => "pod4-none",
            Self::HostNone(Cluster, V6) => "pod6-none",
            Self::HostNone(Tailnet, V4) => "vip4-none",
            Self::HostNone(Tailnet, V6) => "vip6-none",
        }
    }

    /// Declaration of key and value.
    pub fn shape(self) -> &'static str {
        use Family::{V4, V6};
        match self {
            Self::Source(V4) => "typeof oifname : ip daddr",
            Self::Source(V6) => "typeof oifname : ip6 daddr",
            Self::Port(V4) => "typeof meta l4proto . th dport : ip daddr . th dport",
            Self::Port(V6) => "typeof meta l4proto . th dport : ip6 daddr . th dport",
            Self::PortMany | Self::Reserved => "typeof meta l4proto . th dport",
            Self::PortSlot(V4) => "typeof meta l4proto . th dport . ct mark : ip daddr . th dport",
            Self::PortSlot(V6) => "typeof meta l4proto . th dport . ct mark : ip6 daddr . th dport",
            Self::Traffic(_) | Self::Listening => "type inet_service",
            Self::Listener(V4) => "typeof ip daddr . tcp dport : ip daddr . tcp dport",
            Self::Listener(V6) => "typeof ip6 daddr . tcp dport : ip6 daddr . tcp dport",
            Self::Host(_, V4) | Self::Fallback(V4) => "typeof ip daddr : ip daddr",
            Self::Host(_, V6) | Self::Fallback(V6) => "typeof ip6 daddr : ip6 daddr",
            Self::HostSlot(_, V4) => "typeof ip daddr . ct mark : ip daddr",
            Self::HostSlot(_, V6) => "typeof ip6 daddr . ct mark : ip6 daddr",
            Self::HostMany(_, V4) | Self::HostNone(_, V4) | Self::Replica(V4) => "typeof ip daddr",
            Self::HostMany(_, V6) | Self::HostNone(_, V6) | Self::Replica(V6) => "typeof ip6 daddr",
        }
    }

    /// Whether its elements have values.
    pub fn is_map(self) -> bool {
        matches!(
            self,
            Self::Source(_)
                | Self::Port(_)
                | Self::PortSlot(_)
                | Self::Fallback(_)
                | Self::Listener(_)
                | Self::Host(..)
                | Self::HostSlot(..)
        )
    }

    pub fn counts(self) -> bool {
        matches!(self, Self::Port(_) | Self::PortSlot(_) | Self::Traffic(_))
    }
}

/// All elements of the table, in order.
pub fn elements(ruleset: &Ruleset) -> Vec<Element> {
    let mut list = Vec::with_capacity(3 * ruleset.ports.len() + 16);
    list.extend(ruleset.source.iter().map(|(family, ip)| source(&ruleset.interface, *family, *ip)));
    list.extend(ruleset.reserved.iter().map(|key| Element { set: Set::Reserved, key: ElementKey::Port(*key), value: None }));
    for (key, targets) in &ruleset.ports {
        port(&mut list, *key, targets);
    }
    for (side, map) in [(PacketSide::Cluster, &ruleset.from_cluster), (PacketSide::Tailnet, &ruleset.from_tailnet)] {
        for (ip, targets) in map {
            host(&mut list, side, *ip, targets);
        }
    }
    for (at, to) in &ruleset.listeners {
        list.extend(listener(*at, *to));
    }
    for (family, siblings) in &ruleset.siblings {
        fallback(&mut list, *family, siblings);
    }
    list.sort_unstable();
    list.dedup();
    list
}

/// Elements to change, computed from the changed keys alone: the cost does not depend on the size of the rulesets.
pub fn edits(before: &Ruleset, delta: &Delta, after: &Ruleset) -> Edits {
    let (mut old, mut new) = (Vec::new(), Vec::new());
    for (family, edit) in &delta.source {
        old.extend(edit.before.map(|ip| source(&before.interface, *family, ip)));
        new.extend(edit.after.map(|ip| source(&after.interface, *family, ip)));
    }
    for (key, Edit { before, after }) in &delta.ports {
        for (list, targets) in [(&mut old, before), (&mut new, after)] {
            if let Some(targets) = targets {
                port(list, *key, targets);
            }
        }
    }
    for (side, map) in [(PacketSide::Cluster, &delta.from_cluster), (PacketSide::Tailnet, &delta.from_tailnet)] {
        for (ip, Edit { before, after }) in map {
            for (list, targets) in [(&mut old, before), (&mut new, after)] {
                if let Some(targets) = targets {
                    host(list, side, *ip, targets);
                }
            }
        }
    }
    if !delta.listeners.is_empty() {
        // Listeners of several addresses share a port.
        old.extend(before.listeners.iter().flat_map(|(at, to)| listener(*at, *to)));
        new.extend(after.listeners.iter().flat_map(|(at, to)| listener(*at, *to)));
    }
    for (family, Edit { before, after }) in &delta.siblings {
        for (list, siblings) in [(&mut old, before), (&mut new, after)] {
            if let Some(siblings) = siblings {
                fallback(list, *family, siblings);
            }
        }
    }
    let (old, new): (BTreeSet<_>, BTreeSet<_>) = (old.into_iter().collect(), new.into_iter().collect());
    Edits { delete: old.difference(&new).cloned().collect(), add: new.difference(&old).cloned().collect() }
}

fn source(interface: &InterfaceName, family: Family, ip: IpAddr) -> Element {
    Element { set: Set::Source(family), key: ElementKey::Interface(interface.clone()), value: Some(Value::Address(ip)) }
}

fn port(list: &mut Vec<Element>, key: PortKey, targets: &[SocketAddr]) {
    list.push(Element { set: Set::Traffic(key.proto), key: ElementKey::Number(key.port), value: None });
    let mut many = false;
    for family in Family::ALL {
        let targets: Vec<SocketAddr> = targets.iter().copied().filter(|to| Family::of(to.ip()) == family).collect();
        if let [target] = targets[..] {
            list.push(Element { set: Set::Port(family), key: ElementKey::Port(key), value: Some(Value::Socket(target)) });
        } else {
            many |= !targets.is_empty();
            let slot =
                |(slot, to)| Element { set: Set::PortSlot(family), key: ElementKey::PortSlot(key, slot), value: Some(Value::Socket(to)) };
            list.extend(deal(&targets).map(slot));
        }
    }
    if many {
        list.push(Element { set: Set::PortMany, key: ElementKey::Port(key), value: None });
    }
}

fn host(list: &mut Vec<Element>, side: PacketSide, ip: IpAddr, targets: &[IpAddr]) {
    let family = Family::of(ip);
    let targets: Vec<IpAddr> = targets.iter().copied().filter(|to| Family::of(*to) == family).collect();
    let key = ElementKey::Host(ip);
    match targets[..] {
        [] => list.push(Element { set: Set::HostNone(side, family), key, value: None }),
        [target] => list.push(Element { set: Set::Host(side, family), key, value: Some(Value::Address(target)) }),
        _ => {
            list.push(Element { set: Set::HostMany(side, family), key, value: None });
            list.extend(deal(&targets).map(|(slot, to)| Element {
                set: Set::HostSlot(side, family),
                key: ElementKey::HostSlot(ip, slot),
                value: Some(Value::Address(to)),
            }));
        }
    }
}

fn listener(at: SocketAddr, to: SocketAddr) -> impl Iterator<Item = Element> {
    let map = Element { set: Set::Listener(Family::of(at.ip())), key: ElementKey::Socket(at), value: Some(Value::Socket(to)) };
    let port = Port::new(to.port()).map(|port| Element { set: Set::Listening, key: ElementKey::Number(port), value: None });
    [map].into_iter().chain(port)
}

fn fallback(list: &mut Vec<Element>, family: Family, siblings: &SiblingAddresses) {
    let (own, value) = (ElementKey::Host(siblings.own()), Some(Value::Address(siblings.fallback())));
    list.push(Element { set: Set::Fallback(family), key: own, value });
    let replica = |ip: &IpAddr| Element { set: Set::Replica(family), key: ElementKey::Host(*ip), value: None };
    list.extend(siblings.others().iter().chain([&siblings.own()]).map(replica));
}

/// Every slot with its target; empty without targets.
fn deal<T: Copy>(targets: &[T]) -> impl Iterator<Item = (u32, T)> {
    (0..).zip(targets.iter().copied().cycle().take(SLOTS))
}
