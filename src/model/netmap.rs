//! The tailnet as the data plane needs it: names, addresses and routes, indexed so that a lookup costs the same at any size.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use imbl::{OrdMap, OrdSet};
use ipnet::IpNet;
use serde::Serialize;

/// A fully qualified name: lower case, no final dot. Comparing two of them is comparing names as DNS does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Fqdn(String);

impl Fqdn {
    /// The name in its canonical spelling; nothing if the text is empty.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let name = text.trim_end_matches('.').to_ascii_lowercase();
        (!name.is_empty()).then_some(Self(name))
    }

    /// The canonical spelling.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Fqdn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// This node, as the control server names it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SelfNode {
    /// Its stable id; empty where the tailnet has none.
    pub stable_id: String,
    /// Its name as the control server spells it, with the final dot.
    pub name: String,
    /// Its own tailnet addresses.
    pub addresses: Vec<IpAddr>,
}

/// A snapshot of the tailnet. Its maps are persistent: a snapshot shares with its successor what did not change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NetMap {
    /// This node; nothing before the first login.
    pub node: Option<SelfNode>,
    /// The addresses of each peer by name.
    pub peers: OrdMap<Fqdn, BTreeSet<IpAddr>>,
    /// The addresses of each extra DNS record (Tailscale Services) by name.
    pub records: OrdMap<Fqdn, BTreeSet<IpAddr>>,
    /// Every prefix that some peer is allowed to answer for (its own addresses among them).
    pub routes: OrdSet<IpNet>,
    /// The names under which this node may ask for certificates.
    pub cert_domains: Vec<String>,
}

impl NetMap {
    /// The addresses that a name leads to: a peer's own, else those of a Tailscale Service that some peer answers for,
    /// else the address of a 4via6 name that some peer routes. Empty if none does.
    #[must_use]
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
        via6(name).map(IpAddr::V6).filter(|ip| self.leads_to(*ip)).into_iter().collect()
    }

    /// Whether some peer answers for the address. Costs one lookup for each prefix length, not one for each peer.
    #[must_use]
    pub fn leads_to(&self, ip: IpAddr) -> bool {
        let longest = if ip.is_ipv4() { 32 } else { 128 };
        (0..=longest).any(|length| IpNet::new(ip, length).is_ok_and(|net| self.routes.contains(&net.trunc())))
    }
}

/// The site prefix of 4via6 addresses, `fd7a:115c:a1e0:b1a::/64`.
const VIA_PREFIX: [u16; 4] = [0xfd7a, 0x115c, 0xa1e0, 0x0b1a];

/// The address that a 4via6 name (`192-168-1-10-via-7[.tailnet.ts.net]`) spells, if it is one.
#[must_use]
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

/// A site number as the peer's own syntax has it: decimal, or with 0x, 0o, 0b or a leading zero for octal.
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
