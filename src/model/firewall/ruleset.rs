//! The ruleset: the kernel's maps, independent of the firewall.
//!
//! Static rules are in the encoders ([`crate::model::firewall::nft`], [`crate::model::firewall::iptables`]). A [`Ruleset`] is computed from a
//! plan; [`diff`] compares two.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use serde::Serialize;

use crate::model::base::net::{Family, InterfaceName, PortKey};
use crate::model::base::small_set::SortedSet;

/// Number of slots for the targets of one key with several targets in a family.
///
/// A fixed number keeps the rules static. 60 divides evenly among 2 to 6 targets; it is also the maximum number of targets.
pub const SLOTS: usize = 60;

/// Mark of our probe and reset segments, which bypass conntrack. Outside of tailscaled's 0xff0000.
pub const PROBE_MARK: u32 = 0x5459;

/// Mark of a route lookup that shows whether the tunnel is open ([`crate::model::firewall::routing`]), and connection mark of flows to a
/// sibling replica. Neither a slot nor in tailscaled's 0xff0000.
pub const FALLBACK_MARK: u32 = 0x0100_0000;

/// Content of the kernel's NAT maps.
///
/// The maps are persistent: copies share structure, and [`diff`] skips shared parts, so the cost of a change does not depend on the number
/// of keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ruleset {
    /// Tailnet interface.
    pub interface: InterfaceName,
    /// This node's tailnet addresses: source of traffic to the tailnet. A family without one is masqueraded.
    pub source: OrdMap<Family, IpAddr>,
    /// Targets of packets from the cluster to a match port. Without a target of the packet's family they are rejected (TCP reset, ICMP
    /// port unreachable).
    pub ports: OrdMap<PortKey, SortedSet<SocketAddr>>,
    /// Targets of packets from the tailnet to an address, any protocol and port, same family. Without target they are rejected.
    pub from_tailnet: OrdMap<IpAddr, SortedSet<IpAddr>>,
    /// Listener of this Pod for TCP connections from the tailnet to an address and port; precedes `from_tailnet`. Other packets to the
    /// listener are rejected.
    #[serde(skip_serializing_if = "OrdMap::is_empty")]
    pub listeners: OrdMap<SocketAddr, SocketAddr>,
    /// Targets of packets from the cluster to an address of the Pod, any protocol and port except reserved ones, same family. Without
    /// target they are rejected.
    pub from_cluster: OrdMap<IpAddr, SortedSet<IpAddr>>,
    /// Sibling replicas. While the tunnel of this replica is closed, one of them gets its new flows to match ports. nftables only.
    #[serde(skip_serializing_if = "OrdMap::is_empty")]
    pub siblings: OrdMap<Family, SiblingAddresses>,
    /// Ports of the Pod itself, excluded from `from_cluster`.
    pub reserved: BTreeSet<PortKey>,
}

impl Ruleset {
    /// A ruleset that forwards nothing: before the first plan and after a drain.
    pub fn empty(interface: InterfaceName) -> Self {
        Self {
            interface,
            source: OrdMap::new(),
            ports: OrdMap::new(),
            from_tailnet: OrdMap::new(),
            listeners: OrdMap::new(),
            from_cluster: OrdMap::new(),
            siblings: OrdMap::new(),
            reserved: BTreeSet::new(),
        }
    }

    /// Addresses of all sibling replicas.
    pub fn sibling_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.siblings.values().flat_map(SiblingAddresses::others).copied()
    }

    pub fn forwards(&self) -> bool {
        !(self.ports.is_empty() && self.from_tailnet.is_empty() && self.from_cluster.is_empty())
    }
}

/// Address of this replica in the cluster, and those of its siblings in the same family: at least one, none its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SiblingAddresses {
    own: IpAddr,
    others: SortedSet<IpAddr>,
}

impl SiblingAddresses {
    /// `None` if no other replica has an address of this family.
    pub fn new(own: IpAddr, replicas: impl IntoIterator<Item = IpAddr>) -> Option<Self> {
        let is_other = |ip: &IpAddr| *ip != own && Family::of(*ip) == Family::of(own);
        let others: SortedSet<IpAddr> = replicas.into_iter().filter(is_other).collect();
        (!others.is_empty()).then_some(Self { own, others })
    }

    pub fn own(&self) -> IpAddr {
        self.own
    }

    pub fn others(&self) -> &[IpAddr] {
        &self.others
    }

    /// The sibling that gets this replica's flows: the next address in their order, so that each replica is the fallback of one other.
    pub fn fallback(&self) -> IpAddr {
        let next = self.others.partition_point(|ip| *ip < self.own);
        self.others[next % self.others.len()]
    }
}

/// Change of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Edit<V> {
    /// Old value; `None` for a new key.
    pub before: Option<V>,
    /// New value; `None` for a removed key.
    pub after: Option<V>,
}

/// Difference between two rulesets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Delta {
    /// The static part differs (interface, reserved ports): rewrite the table.
    pub rewrite: bool,
    /// Changes of the node's own addresses.
    pub source: BTreeMap<Family, Edit<IpAddr>>,
    /// Changes of match ports.
    pub ports: BTreeMap<PortKey, Edit<SortedSet<SocketAddr>>>,
    /// Changes of addresses served to the tailnet.
    pub from_tailnet: BTreeMap<IpAddr, Edit<SortedSet<IpAddr>>>,
    /// Changes of listeners.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub listeners: BTreeMap<SocketAddr, Edit<SocketAddr>>,
    /// Changes of addresses served to the cluster.
    pub from_cluster: BTreeMap<IpAddr, Edit<SortedSet<IpAddr>>>,
    /// Changes of sibling replicas.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub siblings: BTreeMap<Family, Edit<SiblingAddresses>>,
}

impl Delta {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        !self.rewrite && self.keys() == 0
    }

    /// Number of changed keys.
    pub fn keys(&self) -> usize {
        let maps = [self.source.len(), self.ports.len(), self.from_tailnet.len(), self.listeners.len(), self.from_cluster.len()];
        maps.iter().sum::<usize>() + self.siblings.len()
    }

    /// The ruleset that `before` becomes, the static part excepted: the inverse of [`diff`].
    #[cfg(test)]
    pub(crate) fn apply(&self, before: &Ruleset) -> Ruleset {
        let mut after = before.clone();
        edit_map(&mut after.source, &self.source);
        edit_map(&mut after.ports, &self.ports);
        edit_map(&mut after.from_tailnet, &self.from_tailnet);
        edit_map(&mut after.listeners, &self.listeners);
        edit_map(&mut after.from_cluster, &self.from_cluster);
        edit_map(&mut after.siblings, &self.siblings);
        after
    }
}

#[cfg(test)]
fn edit_map<K: Ord + Clone, V: Clone>(map: &mut OrdMap<K, V>, edits: &BTreeMap<K, Edit<V>>) {
    for (key, edit) in edits {
        match &edit.after {
            Some(value) => map.insert(key.clone(), value.clone()),
            None => map.remove(key),
        };
    }
}

pub fn diff(before: &Ruleset, after: &Ruleset) -> Delta {
    Delta {
        rewrite: before.interface != after.interface || before.reserved != after.reserved,
        source: diff_map(&before.source, &after.source),
        ports: diff_map(&before.ports, &after.ports),
        from_tailnet: diff_map(&before.from_tailnet, &after.from_tailnet),
        listeners: diff_map(&before.listeners, &after.listeners),
        from_cluster: diff_map(&before.from_cluster, &after.from_cluster),
        siblings: diff_map(&before.siblings, &after.siblings),
    }
}

fn diff_map<K: Ord + Clone, V: PartialEq + Clone>(before: &OrdMap<K, V>, after: &OrdMap<K, V>) -> BTreeMap<K, Edit<V>> {
    let edit = |item| match item {
        DiffItem::Add(key, value) => (K::clone(key), Edit { before: None, after: Some(V::clone(value)) }),
        DiffItem::Remove(key, value) => (K::clone(key), Edit { before: Some(V::clone(value)), after: None }),
        DiffItem::Update { old: (key, was), new: (_, is) } => {
            (K::clone(key), Edit { before: Some(V::clone(was)), after: Some(V::clone(is)) })
        }
    };
    before.diff(after).map(edit).collect()
}
