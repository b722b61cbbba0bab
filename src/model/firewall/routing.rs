//! Routing rules: which packets skip the routing table of tailscaled, and which lookup shows that the tunnel is open.
//!
//! tailscaled routes by a table of its own, ahead of the main one, and puts accepted subnet routes there. One that covers addresses of the
//! cluster would take replies of egress flows, ingress traffic to Services and the replica's own connections into the tailnet.

use std::collections::BTreeSet;

use ipnet::IpNet;

use crate::model::base::net::{Family, InterfaceName};

/// Priority of our rules: before those of tailscaled, 5210 and up.
pub const PRIORITY: u32 = 5190;
/// Priority of the rule for lookups of the tunnel. A client may be in an accepted route, so it is before the others.
pub const TUNNEL_PRIORITY: u32 = PRIORITY - 1;

/// Table with a default route by the tailnet interface while the tunnel is open. The kernel deletes the route with the interface, when
/// tailscaled ends, whatever ended it. Only lookups with the mark [`super::ruleset::FALLBACK_MARK`] use it, and no packet leaves with that
/// mark.
pub const TUNNEL_TABLE: u8 = 151;

/// `RT_TABLE_MAIN` of rtnetlink(7).
const MAIN_TABLE: u8 = 254;
/// Interface of packets of this host itself.
const LOOPBACK: &str = "lo";

/// Which packets a table routes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RoutingRule {
    pub family: Family,
    pub selector: PacketSelector,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PacketSelector {
    /// Packets that arrive on an interface, to a network or any; the main table routes them.
    Arriving { from: String, to: Option<IpNet> },
    /// Lookups with the mark [`super::ruleset::FALLBACK_MARK`]; [`TUNNEL_TABLE`] routes them.
    TunnelLookup,
}

impl PacketSelector {
    /// Priority and table of its rule.
    pub fn place(&self) -> (u32, u8) {
        match self {
            Self::Arriving { .. } => (PRIORITY, MAIN_TABLE),
            Self::TunnelLookup => (TUNNEL_PRIORITY, TUNNEL_TABLE),
        }
    }
}

/// Rules for a tailnet interface and the accepted routes that cover addresses of the cluster.
///
/// What arrives from the tailnet is never forwarded back into it. Packets of this host are routed by destination, because some are for the
/// tailnet. The kernel's reverse path check looks up the way to a client as for a packet of this host, so it passes too.
pub fn rules<'a>(tailnet: &InterfaceName, overlaps: impl IntoIterator<Item = &'a IpNet>) -> BTreeSet<RoutingRule> {
    let every = |selector: PacketSelector| Family::ALL.map(|family| RoutingRule { family, selector: selector.clone() });
    let arriving = PacketSelector::Arriving { from: tailnet.to_string(), to: None };
    let own = |net: &IpNet| PacketSelector::Arriving { from: LOOPBACK.to_owned(), to: Some(*net) };
    let own = overlaps.into_iter().map(|net| RoutingRule { family: Family::of(net.addr()), selector: own(net) });
    every(arriving).into_iter().chain(every(PacketSelector::TunnelLookup)).chain(own).collect()
}
