//! Evaluation of a ruleset, packet by packet: the oracle against which renderers and kernels are tested.
//!
//! It evaluates only the first packet of a flow; the following ones share its verdict until conntrack drops the flow. It does not depend on
//! any firewall's implementation.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use tailyard::model::base::net::{Family, Port, PortKey, Proto};
use tailyard::model::firewall::ruleset::{Ruleset, SLOTS};

/// First packet of a flow, on arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// It arrives from the tailnet's interface.
    pub from_tailnet: bool,
    pub dst: IpAddr,
    pub to_pod: bool,
    pub proto: Proto,
    pub port: Port,
}

/// Verdict on a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowVerdict {
    Dnat {
        /// Targets; each has its share of the flows.
        to: BTreeSet<SocketAddr>,
        /// Source address as the target sees it.
        source: SourceAddress,
    },
    /// Translated to this listener of the Pod, which sees the client's address.
    Listener(SocketAddr),
    /// Refused at once: TCP reset, ICMP port unreachable.
    Refuse,
    /// Not handled by the ruleset.
    Pass,
}

/// Source of a relayed flow, as the target sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceAddress {
    /// This node's own tailnet address, if the target is behind the tailnet's interface; elsewhere as [`SourceAddress::Masquerade`].
    Own(IpAddr),
    /// The address of the interface by which the flow leaves.
    Masquerade,
}

/// Evaluates a packet.
#[must_use]
pub fn evaluate(ruleset: &Ruleset, packet: &Packet) -> FlowVerdict {
    let family = Family::of(packet.dst);
    let key = PortKey { proto: packet.proto, port: packet.port };
    let at = SocketAddr::new(packet.dst, packet.port.get());
    if let Some(to) = ruleset.listeners.get(&at).filter(|_| packet.from_tailnet && packet.proto == Proto::Tcp) {
        return FlowVerdict::Listener(*to);
    }
    if packet.from_tailnet {
        return ruleset.from_tailnet.get(&packet.dst).map_or(FlowVerdict::Pass, |to| relay(whole(to, packet), SourceAddress::Masquerade));
    }
    if !packet.to_pod {
        return FlowVerdict::Pass;
    }
    let source = ruleset.source.get(&family).map_or(SourceAddress::Masquerade, |own| SourceAddress::Own(*own));
    if let Some(targets) = ruleset.ports.get(&key) {
        let of_family = targets.iter().copied().filter(|to| Family::of(to.ip()) == family);
        return relay(of_family.take(SLOTS).collect(), source);
    }
    let taken = ruleset.from_cluster.get(&packet.dst).filter(|_| !ruleset.reserved.contains(&key));
    taken.map_or(FlowVerdict::Pass, |to| relay(whole(to, packet), source))
}

fn relay(to: BTreeSet<SocketAddr>, source: SourceAddress) -> FlowVerdict {
    if to.is_empty() { FlowVerdict::Refuse } else { FlowVerdict::Dnat { to, source } }
}

/// Targets of a whole address: the packet's port is unchanged.
fn whole(targets: &[IpAddr], packet: &Packet) -> BTreeSet<SocketAddr> {
    let of_family = targets.iter().filter(|to| Family::of(**to) == Family::of(packet.dst));
    of_family.take(SLOTS).map(|to| SocketAddr::new(*to, packet.port.get())).collect()
}
