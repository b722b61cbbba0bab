//! Conntrack cleanup: which flows end after a ruleset change, and how.
//!
//! conntrack keeps a flow on the target of its first packet. So unchanged flows survive any change, and flows to removed targets would
//! hang. Decides only; deletes nothing.

mod past;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use imbl::OrdMap;
use serde::Serialize;

pub use past::RulesetHistory;

use crate::model::base::net::{PortKey, Proto};
use crate::model::base::small_set::SortedSet;
use crate::model::firewall::ruleset::{Delta, Edit, Ruleset};
use crate::model::flows::flow::{Flow, FlowFilter, SRC_NAT, TcpState};

/// Action for a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum FlowAction {
    Keep,
    /// Delete the entry: no end can be notified.
    Delete,
    /// Delete the entry and reset both ends, if any.
    Reset,
}

/// Keys whose flows may end.
type AffectedFlows<'a, K, T> = BTreeMap<&'a K, RemainingTargets<'a, T>>;

/// Targets of a key after the change.
#[derive(Debug, Clone)]
enum RemainingTargets<'a, T> {
    Nothing,
    Targets(&'a SortedSet<T>),
}

impl<T: Ord> RemainingTargets<'_, T> {
    /// Status of a flow of the key with this target.
    fn standing(&self, target: &T) -> FlowStatus {
        match self {
            Self::Nothing => FlowStatus::Removed,
            Self::Targets(targets) if targets.contains(target) => FlowStatus::Same,
            Self::Targets(_) => FlowStatus::Moved,
        }
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
}

/// Status of a flow relative to the ruleset.
enum FlowStatus {
    /// Unaffected.
    Same,
    /// Its key has other targets now.
    Moved,
    /// Its key or its source address is removed.
    Removed,
}

impl<'a> FlowChanges<'a> {
    /// Effects of `delta`, the change from the past rulesets to `after`.
    ///
    /// `reachable`: whether an address still belongs to a peer; true for addresses outside of the tailnet.
    #[must_use]
    pub fn new(past: &'a RulesetHistory, delta: &'a Delta, after: &'a Ruleset, reachable: &'a (dyn Fn(IpAddr) -> bool + Sync)) -> Self {
        let mut ports = touched(&delta.ports);
        // TCP flows drain to their old targets: while those live, none ends and few flows need listing.
        let live = |key: &PortKey| past.rules.ports.get(key).into_iter().flatten().all(|target| reachable(target.ip()));
        ports.retain(|key, targets| key.proto != Proto::Tcp || matches!(targets, RemainingTargets::Nothing) || !live(key));
        let ours = |ip: &IpAddr| after.source.values().any(|own| own == ip);
        Self {
            before: &past.rules,
            after,
            reachable,
            ports,
            from_tailnet: touched(&delta.from_tailnet),
            from_cluster: touched(&delta.from_cluster),
            lost: past.own.iter().copied().filter(|ip| !ours(ip)).collect(),
        }
    }

    /// Compares all flows with the current ruleset: at a start with flows of an earlier process, and when a target leaves the tailnet
    /// while flows drain to it.
    ///
    /// Flows of unknown keys are kept: they may belong to other programs.
    #[must_use]
    pub fn audit(now: &'a Ruleset, reachable: &'a (dyn Fn(IpAddr) -> bool + Sync)) -> Self {
        Self {
            before: now,
            after: now,
            reachable,
            ports: every(&now.ports),
            from_tailnet: every(&now.from_tailnet),
            from_cluster: every(&now.from_cluster),
            lost: Vec::new(),
        }
    }

    /// Whether no flow can end, so that none needs listing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.from_tailnet.is_empty() && self.from_cluster.is_empty() && self.lost.is_empty()
    }

    /// The narrowest filter that matches every flow that may end.
    #[must_use]
    pub fn filter(&self) -> FlowFilter {
        let only_ports = self.from_tailnet.is_empty() && self.from_cluster.is_empty() && self.lost.is_empty();
        let mut keys = self.ports.keys();
        let key = keys.next().filter(|_| only_ports && keys.next().is_none()).map(|key| **key);
        FlowFilter { key, ..FlowFilter::under_way() }
    }

    /// Action for a flow. Flows of unchanged keys are always kept, and so are closed ones (`TIME_WAIT`): they are often a hundred times as
    /// many, and deleting them has no effect.
    #[must_use]
    pub fn verdict(&self, flow: &Flow) -> FlowAction {
        let ends = match self.standing(flow) {
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

    fn standing(&self, flow: &Flow) -> FlowStatus {
        if !flow.is_forwarded() {
            return FlowStatus::Same;
        }
        if flow.status & SRC_NAT != 0 && self.lost.contains(&flow.reply.destination.ip()) {
            return FlowStatus::Removed;
        }
        // In the order of the rules' map lookups. Affected keys first: they are few, and each is or was in the rules.
        let (address, target) = (flow.original.destination.ip(), flow.target());
        if let Some(targets) = self.from_tailnet.get(&address) {
            return targets.standing(&target.ip());
        }
        let key = flow.key();
        let by_port = key.and_then(|key| self.ports.get(&key)).map(|remaining| remaining.standing(&target));
        let by_address = || {
            let rest = self.from_cluster.get(&address)?;
            let is_port = key.is_some_and(|key| self.has(|rules| rules.ports.contains_key(&key)));
            (!is_port).then(|| rest.standing(&target.ip()))
        };
        let standing = by_port.or_else(by_address).filter(|_| !self.has(|rules| rules.from_tailnet.contains_key(&address)));
        standing.unwrap_or(FlowStatus::Same)
    }

    fn has(&self, key: impl Fn(&Ruleset) -> bool) -> bool {
        key(self.before) || key(self.after)
    }
}

impl std::fmt::Debug for FlowChanges<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Cuts");
        debug.field("ports", &self.ports).field("from_tailnet", &self.from_tailnet).field("from_cluster", &self.from_cluster);
        debug.field("lost", &self.lost).finish_non_exhaustive()
    }
}

/// Edits that remove a target.
fn touched<'a, K: Ord, T: Ord>(edits: &'a BTreeMap<K, Edit<SortedSet<T>>>) -> AffectedFlows<'a, K, T> {
    let takes = |edit: &&Edit<SortedSet<T>>| match (&edit.before, &edit.after) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(before), Some(after)) => !before.is_subset(after),
    };
    let remaining_of = |edit: &'a Edit<SortedSet<T>>| edit.after.as_ref().map_or(RemainingTargets::Nothing, RemainingTargets::Targets);
    edits.iter().filter(|(_, edit)| takes(edit)).map(|(key, edit)| (key, remaining_of(edit))).collect()
}

fn every<K: Ord, T: Ord>(map: &OrdMap<K, SortedSet<T>>) -> AffectedFlows<'_, K, T> {
    map.iter().map(|(key, targets)| (key, RemainingTargets::Targets(targets))).collect()
}

#[cfg(test)]
mod tests;
