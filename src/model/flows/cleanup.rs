//! Conntrack cleanup: which flows end after a ruleset change, and how (UDP: entry deleted; TCP: reset at both ends).
//!
//! Connection tracking keeps a flow on the target of its first packet. So flows of unchanged keys continue, and a UDP flow would use its
//! old target after a retarget. Decisions only: nothing is deleted here.

mod past;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use imbl::OrdMap;
pub use past::RulesetHistory;

use crate::model::base::net::{PortKey, Proto};
use crate::model::base::small_set::SortedSet;
use crate::model::firewall::ruleset::{Delta, Edit, FALLBACK_MARK, Ruleset};
use crate::model::flows::flow::{Flow, FlowFilter, SRC_NAT, TcpState};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowAction {
    Keep,
    /// Delete the entry: no end can be notified.
    Delete,
    /// Delete the entry and reset both ends, if any.
    Reset,
}

/// Keys whose flows may end, with their remaining targets; `None` if the key was removed.
type AffectedFlows<'a, K, T> = BTreeMap<&'a K, Option<&'a SortedSet<T>>>;

/// Status of a flow to `target`, given the remaining targets of its key.
fn status<T: Ord>(remaining: Option<&SortedSet<T>>, target: &T) -> FlowStatus {
    match remaining {
        None => FlowStatus::Removed,
        Some(targets) if targets.contains(target) => FlowStatus::Same,
        Some(_) => FlowStatus::Moved,
    }
}

/// Effects of a ruleset change on flows.
#[derive(Clone)]
pub struct FlowChanges<'a> {
    before: &'a Ruleset,
    after: &'a Ruleset,
    reachable: &'a (dyn Fn(IpAddr) -> bool + Sync),
    ports: AffectedFlows<'a, PortKey, SocketAddr>,
    from_tailnet: AffectedFlows<'a, IpAddr, IpAddr>,
    from_cluster: AffectedFlows<'a, IpAddr, IpAddr>,
    /// Former addresses of this node.
    lost: Vec<IpAddr>,
    /// Addresses of the sibling replicas, if they may have changed: another Pod may have that of a former one.
    siblings: Option<BTreeSet<IpAddr>>,
}

enum FlowStatus {
    Same,
    /// Its key has other targets now.
    Moved,
    /// Its key or its source address was removed.
    Removed,
}

impl<'a> FlowChanges<'a> {
    /// Effects of `delta`, the change from the past rulesets to `after`.
    ///
    /// `reachable` says whether an address is still in use: true for every address outside of the tailnet.
    pub fn new(past: &'a RulesetHistory, delta: &'a Delta, after: &'a Ruleset, reachable: &'a (dyn Fn(IpAddr) -> bool + Sync)) -> Self {
        let mut ports = touched(&delta.ports);
        // TCP flows drain to their old targets: while these are reachable, none ends and few flows need listing.
        let live = |key: &PortKey| past.rules.ports.get(key).into_iter().flatten().all(|target| reachable(target.ip()));
        ports.retain(|key, targets| key.proto != Proto::Tcp || targets.is_none() || !live(key));
        let siblings: BTreeSet<IpAddr> = after.sibling_addresses().collect();
        let siblings = (past.siblings != siblings || !delta.siblings.is_empty()).then_some(siblings);
        let ours = |ip: &IpAddr| after.source.values().any(|own| own == ip);
        Self {
            before: &past.rules,
            after,
            reachable,
            ports,
            from_tailnet: touched(&delta.from_tailnet),
            from_cluster: touched(&delta.from_cluster),
            lost: past.own.iter().copied().filter(|ip| !ours(ip)).collect(),
            siblings,
        }
    }

    /// Compares all flows with the current ruleset: at startup, for flows of an earlier process, and when a target leaves the tailnet while
    /// flows drain to it.
    ///
    /// Flows of keys that are not in the ruleset are ignored, as another program may own them. At startup siblings may not be known yet.
    pub fn audit(now: &'a Ruleset, reachable: &'a (dyn Fn(IpAddr) -> bool + Sync)) -> Self {
        Self {
            before: now,
            after: now,
            reachable,
            ports: every(&now.ports),
            from_tailnet: every(&now.from_tailnet),
            from_cluster: every(&now.from_cluster),
            lost: Vec::new(),
            siblings: Some(now.sibling_addresses().collect()).filter(|siblings: &BTreeSet<_>| !siblings.is_empty()),
        }
    }

    /// Whether no flow can end, so that no listing is needed.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.is_about_ports()
    }

    fn is_about_ports(&self) -> bool {
        self.from_tailnet.is_empty() && self.from_cluster.is_empty() && self.lost.is_empty() && self.siblings.is_none()
    }

    /// Smallest listing that includes every flow that may end.
    pub fn filter(&self) -> FlowFilter {
        let mut keys = self.ports.keys();
        let key = keys.next().filter(|_| self.is_about_ports() && keys.next().is_none()).map(|key| **key);
        FlowFilter { key, ..FlowFilter::under_way() }
    }

    /// Action for a flow. A flow of an unchanged key never ends. After a retarget a UDP flow ends, a TCP flow only if its old target is
    /// unreachable. Entries in `TIME_WAIT` remain: they often outnumber live flows a hundred to one.
    pub fn verdict(&self, flow: &Flow) -> FlowAction {
        let ends = match self.status(flow) {
            _ if flow.tcp == Some(TcpState::TimeWait) => false,
            FlowStatus::Same => false,
            FlowStatus::Moved => !flow.is_tcp() || !(self.reachable)(flow.target().ip()),
            FlowStatus::Removed => true,
        };
        if !ends {
            FlowAction::Keep
        } else if flow.is_tcp() && flow.tcp.is_none_or(TcpState::has_ends) {
            FlowAction::Reset
        } else {
            FlowAction::Delete
        }
    }

    fn status(&self, flow: &Flow) -> FlowStatus {
        if !flow.is_forwarded() {
            return FlowStatus::Same;
        }
        if flow.status & SRC_NAT != 0 && self.lost.contains(&flow.reply.destination.ip()) {
            return FlowStatus::Removed;
        }
        if flow.mark & FALLBACK_MARK != 0 && self.siblings.as_ref().is_some_and(|siblings| !siblings.contains(&flow.target().ip())) {
            return FlowStatus::Removed;
        }
        // In the order of the rules' map lookups. Affected keys first: they are few, and each is or was in the rules.
        let (address, target) = (flow.original.destination.ip(), flow.target());
        if let Some(targets) = self.from_tailnet.get(&address) {
            // A listener of this Pod ends its connections itself.
            let is_listener = self.after.source.values().any(|own| *own == target.ip());
            return if is_listener { FlowStatus::Same } else { status(*targets, &target.ip()) };
        }
        let key = flow.key();
        let by_port = key.and_then(|key| self.ports.get(&key)).map(|remaining| status(*remaining, &target));
        let by_address = || {
            let rest = self.from_cluster.get(&address)?;
            let is_port = key.is_some_and(|key| self.has(|rules| rules.ports.contains_key(&key)));
            (!is_port).then(|| status(*rest, &target.ip()))
        };
        let found = by_port.or_else(by_address).filter(|_| !self.has(|rules| rules.from_tailnet.contains_key(&address)));
        found.unwrap_or(FlowStatus::Same)
    }

    fn has(&self, key: impl Fn(&Ruleset) -> bool) -> bool {
        key(self.before) || key(self.after)
    }
}

/// Edits that remove a key or a target.
fn touched<K: Ord, T: Ord>(edits: &BTreeMap<K, Edit<SortedSet<T>>>) -> AffectedFlows<'_, K, T> {
    let takes = |edit: &&Edit<SortedSet<T>>| match (&edit.before, &edit.after) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(before), Some(after)) => !before.is_subset(after),
    };
    edits.iter().filter(|(_, edit)| takes(edit)).map(|(key, edit)| (key, edit.after.as_ref())).collect()
}

fn every<K: Ord, T: Ord>(map: &OrdMap<K, SortedSet<T>>) -> AffectedFlows<'_, K, T> {
    map.iter().map(|(key, targets)| (key, Some(targets))).collect()
}

#[cfg(test)]
mod tests;
