//! One node's part of the netmap: name, addresses and routed prefixes; and the data of this node itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use crate::api::localapi::{CapMap, PeerNode, PeerStatus};
use crate::model::base::netmap::{Fqdn, SelfNode, in_tailscale_range};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) name: Option<Fqdn>,
    pub(super) addresses: BTreeSet<IpAddr>,
    /// Its own addresses and those of Tailscale Services: usable with any preferences.
    own: BTreeSet<IpNet>,
    /// Subnets: usable only if the preferences accept routes.
    subnets: BTreeSet<IpNet>,
}

impl Peer {
    pub(super) fn of_node(node: &PeerNode) -> Self {
        Self::new(&node.name, &node.addresses, node.allowed_ips.as_deref(), node.expired)
    }

    pub(super) fn of_status(peer: &PeerStatus) -> Self {
        Self::new(&peer.dns_name, &peer.tailscale_ips, peer.allowed_ips.as_deref(), peer.expired)
    }

    /// Parses a peer. One with an expired key is empty: the daemon sends it no packets.
    fn new(name: &str, own: &[String], allowed: Option<&[String]>, expired: bool) -> Self {
        if expired {
            return Self::default();
        }
        let addresses: BTreeSet<IpAddr> = addresses(own).into_iter().collect();
        let nets = allowed.unwrap_or(own).iter().filter_map(|text| prefix(text)).filter(|net| net.prefix_len() > 0);
        let (own, subnets) = nets.partition(|net| {
            net.prefix_len() == net.max_prefix_len() && (addresses.contains(&net.addr()) || in_tailscale_range(net.addr()))
        });
        Self { name: Fqdn::new(name), addresses, own, subnets }
    }

    /// Prefixes routed to it. `accept`: whether routes are accepted; unknown counts as yes.
    pub(super) fn routes(&self, accept: Option<bool>) -> impl Iterator<Item = IpNet> + '_ {
        let subnets = self.subnets.iter().filter(move |_| accept.unwrap_or(true));
        self.own.iter().chain(subnets).copied()
    }
}

/// Parses an address with or without prefix length.
fn prefix(text: &str) -> Option<IpNet> {
    text.parse::<IpNet>().map(|net| net.trunc()).or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok()
}

/// This node, from a message of the bus.
pub(super) fn self_node(node: &PeerNode) -> SelfNode {
    this(&node.stable_id, &node.name, &node.addresses, node.allowed_ips.as_deref(), &node.cap_map)
}

pub(super) fn self_status(node: &PeerStatus) -> SelfNode {
    this(&node.stable_id, &node.dns_name, &node.tailscale_ips, node.allowed_ips.as_deref(), &node.cap_map)
}

fn this(id: &str, name: &str, own: &[String], allowed: Option<&[String]>, granted: &CapMap) -> SelfNode {
    let addresses = addresses(own);
    let mappings = granted.service_host.iter().filter_map(|value| BTreeMap::<String, Vec<String>>::deserialize(value).ok());
    let services = mappings.flatten().map(|(name, texts)| (name, self::addresses(&texts).into_iter().collect())).collect();
    let routes = allowed.unwrap_or_default().iter().filter_map(|text| prefix(text));
    let routes = routes.filter(|net| !addresses.iter().any(|own| IpNet::from(*own) == *net)).collect();
    SelfNode { stable_id: id.to_owned(), name: name.to_owned(), addresses, services, routes, funnel: granted.funnel }
}

fn addresses(texts: &[String]) -> Vec<IpAddr> {
    texts.iter().filter_map(|text| prefix(text)).map(|net| net.addr()).collect()
}
