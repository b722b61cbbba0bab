//! What the kernel is to hold, independent of the firewall that holds it: a handful of maps.
//!
//! The static rules around these maps are the renderers' business ([`crate::model::firewall::nft`], [`crate::model::firewall::iptables`]) and the same
//! for any content. A [`Ruleset`] is computed from a plan; [`diff`] says what changed between two of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use serde::Serialize;

use crate::model::base::net::{Family, InterfaceName, PortKey};
use crate::model::base::small_set::SortedSet;

/// How many places one key's targets are dealt into when it has more than one in a family.
///
/// A fixed number keeps the rules static whatever the number of targets. 60 deals evenly to 2, 3, 4, 5 and 6 targets;
/// it is also the largest number of targets that a key can use.
pub const SLOTS: usize = 60;

/// The mark of our own probe and reset segments; they bypass connection tracking. Outside tailscaled's 0xff0000.
pub const PROBE_MARK: u32 = 0x5459;

/// The content of the kernel's NAT maps.
///
/// The maps are persistent: a copy shares what it has in common with its origin, and [`diff`] skips what is shared, so
/// one change among ten thousand keys costs what one change costs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ruleset {
    /// The interface behind which the tailnet is.
    pub interface: InterfaceName,
    /// This node's own tailnet addresses: the source of everything forwarded to the tailnet. A family without one is masqueraded.
    pub source: OrdMap<Family, IpAddr>,
    /// Packets of the cluster to a match port of this Pod go to one of these targets; a key without a target
    /// in the packet's family is refused (TCP reset, ICMP port unreachable).
    pub ports: OrdMap<PortKey, SortedSet<SocketAddr>>,
    /// Packets of the tailnet to this address, any protocol and port, go to one of these addresses of the same family; none: refused.
    pub from_tailnet: OrdMap<IpAddr, SortedSet<IpAddr>>,
    /// Packets of the cluster to this address of the Pod, any protocol and port but the reserved ones, go to one of these
    /// addresses of the same family; none: refused.
    pub from_cluster: OrdMap<IpAddr, SortedSet<IpAddr>>,
    /// Ports of the Pod's own that `from_cluster` never takes.
    pub reserved: BTreeSet<PortKey>,
}

impl Ruleset {
    /// A ruleset that forwards nothing: what stands before the first snapshot and at the end of a drain.
    #[must_use]
    pub fn empty(interface: InterfaceName) -> Self {
        Self {
            interface,
            source: OrdMap::new(),
            ports: OrdMap::new(),
            from_tailnet: OrdMap::new(),
            from_cluster: OrdMap::new(),
            reserved: BTreeSet::new(),
        }
    }

    /// Whether anything goes anywhere by it.
    #[must_use]
    pub fn forwards(&self) -> bool {
        !(self.ports.is_empty() && self.from_tailnet.is_empty() && self.from_cluster.is_empty())
    }
}

/// How one key of a map changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Edit<V> {
    /// What stood there; nothing if the key is new.
    pub before: Option<V>,
    /// What is to stand there; nothing if the key goes.
    pub after: Option<V>,
}

/// What to change in the kernel to turn one ruleset into another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Delta {
    /// The static part differs (another interface, other ports of the Pod's own): the table is rewritten whole.
    pub rewrite: bool,
    /// Changes of the node's own addresses.
    pub source: BTreeMap<Family, Edit<IpAddr>>,
    /// Changes of match ports.
    pub ports: BTreeMap<PortKey, Edit<SortedSet<SocketAddr>>>,
    /// Changes of addresses served to the tailnet.
    pub from_tailnet: BTreeMap<IpAddr, Edit<SortedSet<IpAddr>>>,
    /// Changes of addresses served to the cluster.
    pub from_cluster: BTreeMap<IpAddr, Edit<SortedSet<IpAddr>>>,
}

impl Delta {
    /// Whether nothing is to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.rewrite && self.keys() == 0
    }

    /// The number of keys that change.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.source.len() + self.ports.len() + self.from_tailnet.len() + self.from_cluster.len()
    }

    /// The ruleset that `before` becomes, the static part excepted: the inverse of [`diff`].
    #[cfg(test)]
    pub(crate) fn apply(&self, before: &Ruleset) -> Ruleset {
        let mut after = before.clone();
        edit_map(&mut after.source, &self.source);
        edit_map(&mut after.ports, &self.ports);
        edit_map(&mut after.from_tailnet, &self.from_tailnet);
        edit_map(&mut after.from_cluster, &self.from_cluster);
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

/// What to change to get from `before` to `after`.
#[must_use]
pub fn diff(before: &Ruleset, after: &Ruleset) -> Delta {
    Delta {
        rewrite: before.interface != after.interface || before.reserved != after.reserved,
        source: diff_map(&before.source, &after.source),
        ports: diff_map(&before.ports, &after.ports),
        from_tailnet: diff_map(&before.from_tailnet, &after.from_tailnet),
        from_cluster: diff_map(&before.from_cluster, &after.from_cluster),
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
