//! Addresses of the cluster that are no targets of DNS names: nodes, API server endpoints and Service ranges, as the watches report them.
//!
//! Where the API server has no `ServiceCIDR`s, the smallest prefixes of the ClusterIPs that are known stand for the Service ranges.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use ipnet::IpNet;

/// Prefix lengths of the largest Service range that an API server accepts as a flag.
const BLOCKS: (u8, u8) = (12, 108);

/// Maximum networks, which each config Secret has.
const MAX_NETS: usize = 8_000;

/// Object that names addresses of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetworkSource {
    Node(String),
    /// EndpointSlice of the Service `default/kubernetes`.
    ApiServer(String),
    ServiceRange(String),
}

#[derive(Debug, Clone, Default)]
pub struct ClusterNetworks {
    by_source: BTreeMap<NetworkSource, Vec<IpNet>>,
    /// Smallest prefix of the known ClusterIPs in each block. It only grows.
    cluster_ips: BTreeMap<IpNet, IpNet>,
    /// All of them, joined at the next read after a change.
    nets: OnceLock<Arc<Vec<IpNet>>>,
}

impl ClusterNetworks {
    /// Sets the addresses of an object; none if it is gone.
    pub fn set(&mut self, source: NetworkSource, nets: Vec<IpNet>) {
        let is_changed = if nets.is_empty() {
            self.by_source.remove(&source).is_some()
        } else {
            self.by_source.insert(source, nets.clone()) != Some(nets)
        };
        if is_changed {
            self.nets = OnceLock::new();
        }
    }

    /// Adds a ClusterIP; returns whether that changes the networks.
    pub fn add_cluster_ip(&mut self, ip: IpAddr) -> bool {
        let length = if ip.is_ipv4() { BLOCKS.0 } else { BLOCKS.1 };
        let Ok(block) = IpNet::new(ip, length).map(|net| net.trunc()) else { return false };
        let former = self.cluster_ips.get(&block).copied();
        let mut widest = former.unwrap_or(ip.into());
        while !widest.contains(&ip) {
            let Some(next) = widest.supernet() else { return false };
            widest = next;
        }
        if former == Some(widest) {
            return false;
        }
        let before = self.nets();
        self.cluster_ips.insert(block, widest);
        self.nets = OnceLock::new();
        before != self.nets()
    }

    /// All networks, sorted, without those that others contain.
    pub fn nets(&self) -> Arc<Vec<IpNet>> {
        let all = || self.by_source.values().flatten().chain(self.cluster_ips.values()).copied();
        Arc::clone(self.nets.get_or_init(|| Arc::new(at_most(MAX_NETS, joined(all())))))
    }
}

/// At most so many networks: the smallest ones grow until they join, so that they contain the same addresses and more.
fn at_most(max: usize, mut nets: Vec<IpNet>) -> Vec<IpNet> {
    let size = |net: &IpNet| net.max_prefix_len() - net.prefix_len();
    while nets.len() > max {
        let smallest = nets.iter().map(size).min();
        nets = joined(nets.into_iter().map(|net| net.supernet().filter(|_| Some(size(&net)) == smallest).unwrap_or(net)));
    }
    nets
}

/// Sorted networks of a list, without those that others contain.
pub fn joined(nets: impl IntoIterator<Item = IpNet>) -> Vec<IpNet> {
    let mut nets = IpNet::aggregate(&nets.into_iter().collect());
    nets.sort();
    nets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().expect("a prefix")
    }

    fn texts(networks: &ClusterNetworks) -> Vec<String> {
        networks.nets().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn nodes_come_and_go_and_neighbours_are_joined() {
        let mut networks = ClusterNetworks::default();
        let node = |name: &str| NetworkSource::Node(name.to_owned());
        for (name, ip) in [("a", "10.0.0.4/32"), ("b", "10.0.0.5/32"), ("c", "10.0.0.9/32")] {
            networks.set(node(name), vec![net(ip)]);
        }
        networks.set(NetworkSource::ServiceRange("kubernetes".into()), vec![net("10.96.0.0/16"), net("fd00:96::/112")]);
        assert_eq!(texts(&networks), ["10.0.0.4/31", "10.0.0.9/32", "10.96.0.0/16", "fd00:96::/112"]);
        networks.set(node("b"), Vec::new());
        assert_eq!(texts(&networks), ["10.0.0.4/32", "10.0.0.9/32", "10.96.0.0/16", "fd00:96::/112"]);
        assert!(!networks.add_cluster_ip("10.96.7.7".parse().expect("an address")), "in a known range");
    }

    #[test]
    fn too_many_networks_join_to_wider_ones() {
        let nets = joined((0..100_u32).map(|number| IpNet::from(IpAddr::from((number * 8).to_be_bytes()))).chain([net("10.0.0.0/8")]));
        let wide = at_most(30, nets.clone());
        assert!(wide.len() <= 30 && nets.iter().all(|net| wide.iter().any(|wide| wide.contains(net))), "{wide:?}");
        assert!(wide.iter().all(|net| *net == "10.0.0.0/8".parse().expect("a prefix") || net.prefix_len() >= 22), "{wide:?}");
        assert_eq!(at_most(101, nets.clone()), nets);
    }

    #[test]
    fn known_cluster_ips_stand_for_the_range_and_never_for_more_than_a_block() {
        let mut networks = ClusterNetworks::default();
        let mut add = |ip: &str| {
            networks.add_cluster_ip(ip.parse().expect("an address"));
            texts(&networks)
        };
        assert_eq!(add("10.96.0.1"), ["10.96.0.1/32"]);
        assert_eq!(add("10.96.0.10"), ["10.96.0.0/28"]);
        assert_eq!(add("10.96.200.3"), ["10.96.0.0/16"]);
        assert_eq!(add("10.96.0.7"), ["10.96.0.0/16"]);
        assert_eq!(add("192.168.3.4"), ["10.96.0.0/16", "192.168.3.4/32"]);
        assert_eq!(add("fd00:96::a"), ["10.96.0.0/16", "192.168.3.4/32", "fd00:96::a/128"]);
    }
}
