//! Rulesets since the last conntrack cleanup, merged.
//!
//! Rules can come and go between two cleanups and leave flows: their keys are in neither the last nor the current ruleset.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use imbl::OrdMap;
use imbl::ordset::DiffItem;

use crate::model::base::netmap::{NetMap, in_tailscale_range};
use crate::model::base::small_set::SortedSet;
use crate::model::firewall::ruleset::{Delta, Edit, Ruleset, diff};

/// Merged rulesets. The size depends on the number of keys, not of changes.
#[derive(Debug, Clone)]
pub struct RulesetHistory {
    /// Each key with all its targets.
    pub(super) rules: Ruleset,
    pub(super) own: BTreeSet<IpAddr>,
    /// Addresses of sibling replicas.
    pub(super) siblings: BTreeSet<IpAddr>,
    /// Routes of peers at that time.
    tailnet: NetMap,
}

impl RulesetHistory {
    /// A history of only the ruleset in force, with the netmap it was planned for.
    pub fn of(rules: &Ruleset, netmap: Option<&NetMap>) -> Self {
        let mut past = Self { rules: rules.clone(), own: BTreeSet::new(), siblings: BTreeSet::new(), tailnet: NetMap::default() };
        past.add(rules, netmap);
        past
    }

    pub fn add(&mut self, rules: &Ruleset, netmap: Option<&NetMap>) {
        let Delta { ports, from_tailnet, from_cluster, .. } = diff(&self.rules, rules);
        join(&mut self.rules.ports, ports);
        join(&mut self.rules.from_tailnet, from_tailnet);
        join(&mut self.rules.from_cluster, from_cluster);
        self.own.extend(rules.source.values());
        self.siblings.extend(rules.sibling_addresses());
        if let Some(netmap) = netmap {
            let routes = &mut self.tailnet.routes;
            let new = |item| if let DiffItem::Add(route) = item { Some(*route) } else { None };
            let new: Vec<_> = routes.diff(&netmap.routes).filter_map(new).collect();
            routes.extend(new);
        }
    }

    /// Difference to the rules in force.
    pub fn until(&self, now: &Ruleset) -> Delta {
        diff(&self.rules, now)
    }

    /// Whether an address is or was part of the tailnet.
    pub fn knows(&self, ip: IpAddr) -> bool {
        in_tailscale_range(ip) || self.tailnet.routes_to(ip)
    }

    /// Whether the tailnet has lost an address since.
    pub fn has_lost(&self, now: &NetMap) -> bool {
        self.tailnet.routes.diff(&now.routes).any(|item| matches!(item, DiffItem::Remove(_)))
    }
}

/// Adds the new targets to each key.
fn join<K: Ord + Clone, T: Ord + Copy>(map: &mut OrdMap<K, SortedSet<T>>, edits: BTreeMap<K, Edit<SortedSet<T>>>) {
    for (key, edit) in edits {
        if let Some(after) = edit.after {
            map.insert(key, edit.before.iter().flatten().chain(&after).copied().collect());
        }
    }
}
