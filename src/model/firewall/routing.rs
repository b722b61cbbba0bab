//! Routing rules: which packets skip the routing table of tailscaled.
//!
//! tailscaled routes by a table of its own, ahead of the main one, and puts accepted subnet routes there. One that covers addresses of the
//! cluster would take replies of egress flows, ingress traffic to Services and the replica's own connections into the tailnet.

use std::collections::BTreeSet;

use ipnet::IpNet;

use crate::model::base::net::{Family, InterfaceName};

/// Priority of our rules: before those of tailscaled, 5210 and up.
pub const PRIORITY: u32 = 5190;

/// Interface of packets of this host itself.
const LOOPBACK: &str = "lo";

/// Packets that the main table routes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RoutingRule {
    pub family: Family,
    /// Interface on which they arrive.
    pub from: String,
    /// Their destination; `None` for any.
    pub to: Option<IpNet>,
}

/// Rules for a tailnet interface and the accepted routes that cover addresses of the cluster.
///
/// What arrives from the tailnet is never forwarded back into it. Packets of this host are routed by destination, because some are for the
/// tailnet. The kernel's reverse path check looks up the way to a client as for a packet of this host, so it passes too.
pub fn rules<'a>(tailnet: &InterfaceName, overlaps: impl IntoIterator<Item = &'a IpNet>) -> BTreeSet<RoutingRule> {
    let arriving = Family::ALL.map(|family| RoutingRule { family, from: tailnet.to_string(), to: None });
    let own = overlaps.into_iter().map(|net| RoutingRule { family: Family::of(net.addr()), from: LOOPBACK.to_owned(), to: Some(*net) });
    arriving.into_iter().chain(own).collect()
}
