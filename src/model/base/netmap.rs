//! Netmap of the data plane: names, addresses and routes, indexed so that a lookup costs the same at any size.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use imbl::ordset::DiffItem;
use imbl::{OrdMap, OrdSet};
use ipnet::IpNet;
use serde::Serialize;

use crate::api::netmap::{File, Node};
use crate::model::base::net::Family;

/// A fully qualified domain name in lower case without trailing dot. Equality is that of DNS.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Fqdn(String);

impl Fqdn {
    /// Normalizes a name; `None` if the text is empty.
    pub fn new(text: &str) -> Option<Self> {
        let name = text.trim_end_matches('.').to_ascii_lowercase();
        (!name.is_empty()).then_some(Self(name))
    }

    /// Normalized name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Fqdn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// This node, as named by the control server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SelfNode {
    /// Stable ID; empty in tailnets without one.
    pub stable_id: String,
    /// Name as spelled by the control server, with trailing dot.
    pub name: String,
    pub addresses: Vec<IpAddr>,
    /// Tailscale Services that the node is approved to serve, advertised or not, with their addresses.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub services: BTreeMap<String, BTreeSet<IpAddr>>,
    /// Prefixes that are routed to the node, besides its own addresses.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub routes: BTreeSet<IpNet>,
    /// Whether the tailnet allows access from the internet (Funnel).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub funnel: bool,
}

/// A snapshot of the tailnet. Its maps are persistent: consecutive snapshots share unchanged parts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NetMap {
    /// This node; `None` before the first login.
    pub node: Option<SelfNode>,
    pub peers: OrdMap<Fqdn, BTreeSet<IpAddr>>,
    /// Addresses of extra DNS records (Tailscale Services) by name.
    pub records: OrdMap<Fqdn, BTreeSet<IpAddr>>,
    /// All prefixes in the allowed IPs of some peer, including its own addresses.
    pub routes: OrdSet<IpNet>,
    /// Names for which this node may request certificates.
    pub cert_domains: Vec<String>,
}

impl NetMap {
    /// Domain of the tailnet, by the name of this node: without its first label, which is its host name. `None` in a tailnet without one.
    pub fn domain(&self) -> Option<&str> {
        let (_, domain) = self.node.as_ref()?.name.trim_end_matches('.').split_once('.')?;
        (!domain.is_empty()).then_some(domain)
    }

    /// Addresses of a name: a peer's own, else those of a Tailscale Service that some peer serves, else the address of a 4via6 name that
    /// some peer routes. Empty if unresolved.
    pub fn resolve(&self, name: &Fqdn) -> BTreeSet<IpAddr> {
        if let Some(addresses) = self.peers.get(name) {
            return addresses.clone();
        }
        if let Some(records) = self.records.get(name) {
            let answered: BTreeSet<_> = records.iter().copied().filter(|ip| self.routes.contains(&IpNet::from(*ip))).collect();
            if !answered.is_empty() {
                return answered;
            }
        }
        via6(name).map(IpAddr::V6).filter(|ip| self.routes_to(*ip)).into_iter().collect()
    }

    /// Whether some peer routes the address. Costs one lookup per prefix length, not per peer. Exit nodes (default routes) do not count: a
    /// proxy uses none.
    pub fn routes_to(&self, ip: IpAddr) -> bool {
        let longest = if ip.is_ipv4() { 32 } else { 128 };
        (1..=longest).any(|length| IpNet::new(ip, length).is_ok_and(|net| self.routes.contains(&net.trunc())))
    }

    /// Reads the netmap of a file. Returns unreadable entries, which are skipped.
    pub fn from_file(file: &File) -> (Self, Vec<BadEntry>) {
        let mut faults = Vec::new();
        let mut netmap = Self { node: Some(SelfNode { name: file.node.name.clone(), ..SelfNode::default() }), ..Self::default() };
        let own = addresses(&file.node, &mut faults);
        if let Some(node) = &mut netmap.node {
            node.addresses = file.node.addresses.iter().filter_map(|text| text.parse().ok()).filter(|ip| own.contains(ip)).collect();
        }
        for peer in &file.peers {
            let found = addresses(peer, &mut faults);
            netmap.routes.extend(found.iter().map(|ip| IpNet::from(*ip)));
            netmap.routes.extend(peer.routes.iter().filter_map(|text| entry::<IpNet>(&peer.name, text, &mut faults)));
            netmap.peers.extend(Fqdn::new(&peer.name).map(|name| (name, found)));
        }
        for service in &file.services {
            let found = addresses(service, &mut faults);
            netmap.routes.extend(found.iter().map(|ip| IpNet::from(*ip)));
            netmap.records.extend(Fqdn::new(&service.name).map(|name| (name, found)));
        }
        (netmap, faults)
    }
}

/// Accepted routes that cover addresses of the cluster, with one of these.
pub type RouteOverlaps = BTreeMap<IpNet, IpAddr>;

/// Subnet routes of a netmap: no default route, and no peer's own address.
#[derive(Debug, Default)]
pub struct SubnetRoutes {
    /// Those that the subnets were found in.
    routes: OrdSet<IpNet>,
    subnets: BTreeSet<IpNet>,
}

impl SubnetRoutes {
    /// Takes those of a netmap. Costs the difference to the one before.
    pub fn follow(&mut self, netmap: &NetMap) {
        for change in self.routes.diff(&netmap.routes) {
            match change {
                DiffItem::Add(net) if is_subnet(net) => drop(self.subnets.insert(*net)),
                DiffItem::Add(_) => {}
                DiffItem::Remove(net) => drop(self.subnets.remove(net)),
            }
        }
        self.routes.clone_from(&netmap.routes);
    }

    /// Those that contain one of these addresses of the cluster, with the first of the first set. Costs one lookup in each set per subnet.
    /// The address of a route that is among the former ones stays: endpoints come and go.
    pub fn overlaps(&self, cluster: [&BTreeSet<IpAddr>; 2], former: Option<&RouteOverlaps>) -> RouteOverlaps {
        let covered = |net: &IpNet| cluster.iter().find_map(|set| set.range(net.network()..=net.broadcast()).next().copied());
        let named = |net: &IpNet, ip| *former.and_then(|former| former.get(net)).unwrap_or(&ip);
        self.subnets.iter().filter_map(|net| Some((*net, named(net, covered(net)?)))).collect()
    }
}

fn is_subnet(net: &IpNet) -> bool {
    let is_host = net.prefix_len() == net.max_prefix_len();
    net.prefix_len() > 0 && !(is_host && in_tailscale_range(net.addr()))
}

/// An invalid address or prefix in a netmap file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {text:?} is not an address or prefix")]
pub struct BadEntry {
    /// Node that the entry belongs to.
    pub name: String,
    pub text: String,
}

fn addresses(node: &Node, faults: &mut Vec<BadEntry>) -> BTreeSet<IpAddr> {
    node.addresses.iter().filter_map(|text| entry(&node.name, text, faults)).collect()
}

fn entry<T: std::str::FromStr>(name: &str, text: &str, faults: &mut Vec<BadEntry>) -> Option<T> {
    let parsed = text.parse().ok();
    if parsed.is_none() {
        faults.push(BadEntry { name: name.to_owned(), text: text.to_owned() });
    }
    parsed
}

/// Range of Tailscale addresses.
pub const fn tailnet_range(family: Family) -> &'static str {
    match family {
        Family::V4 => "100.64.0.0/10",
        Family::V6 => "fd7a:115c:a1e0::/48",
    }
}

/// Whether an address is in Tailscale's ranges ([`tailnet_range`]).
pub fn in_tailscale_range(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64,
        IpAddr::V6(ip) => ip.segments()[..3] == [0xfd7a, 0x115c, 0xa1e0],
    }
}

/// Site prefix of 4via6 addresses, `fd7a:115c:a1e0:b1a::/64`.
pub const VIA_PREFIX: [u16; 4] = [0xfd7a, 0x115c, 0xa1e0, 0x0b1a];

/// Address of a 4via6 name (`192-168-1-10-via-7[.tailnet.ts.net]`); `None` for other names.
pub fn via6(name: &Fqdn) -> Option<Ipv6Addr> {
    let (label, rest) = name.as_str().split_once('.').unwrap_or((name.as_str(), ""));
    let tailnet = |zone: &str| rest == zone || rest.strip_suffix(zone).is_some_and(|head| head.ends_with('.'));
    if !(rest.is_empty() || tailnet("ts.net") || tailnet("tailscale.net")) {
        return None;
    }
    let (address, site) = label.split_once("-via-")?;
    let [a, b, c, d]: [u8; 4] = address.split('-').map(str::parse).collect::<Result<Vec<_>, _>>().ok()?.try_into().ok()?;
    let site = site_id(site)?;
    let [p0, p1, p2, p3] = VIA_PREFIX;
    let low = |hi, lo| u16::from_be_bytes([hi, lo]);
    let [s0, s1, s2, s3] = site.to_be_bytes();
    Some(Ipv6Addr::new(p0, p1, p2, p3, low(s0, s1), low(s2, s3), low(a, b), low(c, d)))
}

/// Parses a site ID with the syntax of Tailscale: decimal, or with 0x, 0o, 0b, or a leading zero for octal.
fn site_id(text: &str) -> Option<u32> {
    if text.starts_with('+') || text.starts_with('-') {
        return None;
    }
    let radix = |prefix: &str, radix| text.strip_prefix(prefix).map(|digits| u32::from_str_radix(digits, radix).ok());
    radix("0x", 16)
        .or_else(|| radix("0o", 8))
        .or_else(|| radix("0b", 2))
        .or_else(|| (text.len() > 1).then(|| radix("0", 8)).flatten())
        .unwrap_or_else(|| text.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Fqdn {
        Fqdn::new(text).expect("a name")
    }

    fn example() -> NetMap {
        let text = r#"{"self":{"name":"eg-0.tail.lab","addresses":["100.64.0.1"]},
            "peers":[{"name":"DB.tail.lab.","addresses":["100.64.0.2","fd7a::2"]},
                     {"name":"router","addresses":["100.64.0.3"],"routes":["fd7a:115c:a1e0:b1a:0:7::/96","10.1.0.0/16"]}],
            "services":[{"name":"web.tail.lab","addresses":["100.99.1.2"]}]}"#;
        let (netmap, faults) = NetMap::from_file(&serde_json::from_str(text).expect("a file"));
        assert_eq!(faults, []);
        netmap
    }

    /// Addresses of a name, as text.
    fn resolved(netmap: &NetMap, text: &str) -> Vec<String> {
        netmap.resolve(&name(text)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn resolve_ignores_case_and_final_dot() {
        let netmap = example();
        for spelling in ["db.tail.lab", "db.TAIL.lab", "DB.tail.lab."] {
            assert_eq!(resolved(&netmap, spelling), ["100.64.0.2", "fd7a::2"], "{spelling}");
        }
        assert_eq!(resolved(&netmap, "Router."), ["100.64.0.3"], "each name has its own node's addresses");
        assert_eq!(resolved(&netmap, "WEB.tail.lab"), ["100.99.1.2"]);
        for other in ["unknown.tail.lab", "tail.lab", "router.tail.lab", "db"] {
            assert!(resolved(&netmap, other).is_empty(), "{other}");
        }
        assert_eq!(Fqdn::new("."), None);
    }

    #[test]
    fn service_resolves_only_while_a_peer_routes_its_address() {
        let mut netmap = example();
        assert_eq!(resolved(&netmap, "web.tail.lab"), ["100.99.1.2"]);
        netmap.routes.remove(&"100.99.1.2/32".parse::<IpNet>().expect("a prefix"));
        assert!(resolved(&netmap, "web.tail.lab").is_empty());
        assert_eq!(resolved(&netmap, "db.tail.lab"), ["100.64.0.2", "fd7a::2"], "others keep their routes");
    }

    #[test]
    fn name_4via6_resolves_to_the_address_of_its_site() {
        let found = example().resolve(&name("192-168-1-10-via-7.tail1.ts.net"));
        assert_eq!(found, [IpAddr::V6("fd7a:115c:a1e0:b1a:0:7:c0a8:10a".parse().expect("an address"))].into());
        assert_eq!(example().resolve(&name("192-168-1-10-via-8")).len(), 0, "no peer routes site 8");
    }

    #[test]
    fn site_ids_of_4via6_names_are_parsed_in_any_base() {
        let site = |text: &str| via6(&name(&format!("1-2-3-4-via-{text}"))).map(|ip| ip.segments()[5]);
        assert_eq!([site("0x10"), site("020"), site("16"), site("0b10000")], [Some(16); 4]);
        assert_eq!([site("-1"), site(""), site("x"), site("4294967296")], [None; 4]);
        assert_eq!(via6(&name("1-2-3-via-7")), None);
        assert_eq!(via6(&name("1-2-3-4-via-7.example.com")), None);
    }

    #[test]
    fn subnet_routes_cover_their_addresses_and_exit_nodes_do_not() {
        let ip = |text: &str| text.parse().expect("an address");
        assert!(example().routes_to(ip("10.1.255.1")));
        assert!(!example().routes_to(ip("10.2.0.1")));
        let mut exit = example();
        exit.routes.extend(["0.0.0.0/0", "::/0"].map(|text| text.parse::<IpNet>().expect("a prefix")));
        assert!(!exit.routes_to(ip("10.2.0.1")), "an exit node is not a way to an address");
        assert_eq!(exit.resolve(&name("192-168-1-10-via-8")).len(), 0, "nor to a site");
    }

    #[test]
    fn overlaps_are_the_subnet_routes_that_cover_cluster_addresses() {
        let mut netmap = example();
        let routes = ["fd00:10::/56", "10.244.0.0/16", "10.244.2.0/24", "100.70.0.0/16", "0.0.0.0/0"];
        netmap.routes.extend(routes.map(|text| text.parse::<IpNet>().expect("a prefix")));
        let mut subnets = SubnetRoutes::default();
        subnets.follow(&netmap);
        let found = |cluster: &[&str]| {
            let cluster = cluster.iter().map(|text| text.parse().expect("an address")).collect();
            let found = subnets.overlaps([&cluster, &BTreeSet::new()], None);
            found.into_iter().map(|(net, ip)| format!("{net} {ip}")).collect::<Vec<_>>()
        };
        assert_eq!(found(&["10.244.2.7", "10.244.3.9"]), ["10.244.0.0/16 10.244.2.7", "10.244.2.0/24 10.244.2.7"]);
        assert_eq!(found(&["fd00:10::7", "10.96.0.1"]), ["fd00:10::/56 fd00:10::7"]);
        assert_eq!(found(&["100.70.1.1"]), ["100.70.0.0/16 100.70.1.1"], "a Pod network in the tailnet's range");
        assert!(found(&["100.64.0.2", "192.168.1.1"]).is_empty(), "a peer's address, and an address of an exit node's default route");
    }

    #[test]
    fn address_of_a_reported_overlap_stays_while_the_route_covers_another_one() {
        let (mut netmap, mut subnets) = (example(), SubnetRoutes::default());
        subnets.follow(&netmap);
        let set = |texts: &[&str]| texts.iter().map(|text| text.parse().expect("an address")).collect::<BTreeSet<IpAddr>>();
        let own = set(&["10.1.9.1"]);
        let before = subnets.overlaps([&BTreeSet::new(), &set(&["10.1.2.1", "10.2.0.1"])], None);
        assert_eq!(before, [("10.1.0.0/16".parse().expect("a prefix"), "10.1.2.1".parse().expect("an address"))].into());
        assert_eq!(subnets.overlaps([&own, &set(&["10.1.2.2"])], Some(&before)), before);
        assert_eq!(subnets.overlaps([&own, &set(&["10.1.2.2"])], None).values().copied().collect::<BTreeSet<_>>(), own, "the first set");
        assert!(subnets.overlaps([&BTreeSet::new(), &set(&["10.2.0.1"])], Some(&before)).is_empty());
        netmap.routes.remove(&"10.1.0.0/16".parse::<IpNet>().expect("a prefix"));
        subnets.follow(&netmap);
        assert!(subnets.overlaps([&own, &own], Some(&before)).is_empty());
    }

    proptest::proptest! {
        /// The subnets after any changes are those of the last netmap, and cover what a look at each address finds.
        #[test]
        fn overlaps_after_changes_are_those_of_the_newest_netmap(
            steps in proptest::collection::vec(proptest::collection::btree_set((0..4_u8, 0..4_u8, 0..33_u8), 0..12), 1..5),
            cluster in proptest::collection::btree_set((0..4_u8, 0..4_u8), 0..8),
        ) {
            let ip = |net: u8, host: u8| IpAddr::from([[10, 100, 0, 172][usize::from(net)], 64, net, host]);
            let cluster: BTreeSet<IpAddr> = cluster.into_iter().map(|(net, host)| ip(net, host)).collect();
            let (one, other): (BTreeSet<_>, BTreeSet<_>) = cluster.iter().partition(|ip| ip.to_string().ends_with('1'));
            let mut subnets = SubnetRoutes::default();
            for step in steps {
                let nets = step.into_iter().map(|(net, host, length)| IpNet::new(ip(net, host), length).expect("a prefix").trunc());
                let netmap = NetMap { routes: nets.collect(), ..NetMap::default() };
                subnets.follow(&netmap);
                let covers = |net: &&IpNet| {
                    let is_peer = net.prefix_len() == 32 && in_tailscale_range(net.addr());
                    net.prefix_len() > 0 && !is_peer && cluster.iter().any(|ip| net.contains(ip))
                };
                let wanted: BTreeSet<IpNet> = netmap.routes.iter().filter(covers).copied().collect();
                let found = subnets.overlaps([&one, &other], None);
                proptest::prop_assert!(found.iter().all(|(net, ip)| net.contains(ip) && cluster.contains(ip)));
                proptest::prop_assert_eq!(found.into_keys().collect::<BTreeSet<_>>(), wanted);
            }
        }
    }

    #[test]
    fn invalid_peer_entry_is_skipped_and_reported() {
        let file = serde_json::from_str(r#"{"peers":[{"name":"a","addresses":["100.64.0.2","nonsense"]}]}"#).expect("a file");
        let (netmap, faults) = NetMap::from_file(&file);
        assert_eq!(resolved(&netmap, "a"), ["100.64.0.2"]);
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(faults, [r#"a: "nonsense" is not an address or prefix"#]);
    }
}
