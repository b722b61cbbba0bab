//! Plans: from all inputs to the services to serve and to reject. Total, deterministic and pure.
//!
//! A plan is computed from the difference to the previous one, the first from the difference to an empty world. So there is one algorithm,
//! and the cost of a change does not depend on the number of services.

pub mod targets;
pub mod world;

mod egress;
mod ingress;
mod reason;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use imbl::OrdMap;
use serde::Serialize;

pub use ingress::names;
pub use reason::Reason;

use crate::model::base::net::{Family, InterfaceName, Port, PortKey};
use crate::model::base::small_set::SortedSet;
use crate::model::firewall::ruleset::{Ruleset, SiblingAddresses};
use crate::model::plan::world::World;

/// Served and rejected services.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Tailnet interface.
    pub interface: InterfaceName,
    /// This node's tailnet addresses, one for each family.
    pub source: OrdMap<Family, IpAddr>,
    /// Egress services by name. Unresolved ones have no targets; ones without usable port are absent.
    pub egress: OrdMap<Arc<str>, Arc<Egress>>,
    /// L3 ingress services and single-proxy ingress, by name: tailnet address and targets.
    pub ingress: OrdMap<Arc<str>, BTreeMap<IpAddr, SortedSet<IpAddr>>>,
    /// Addresses of the Pod with all traffic routed to the tailnet (`TS_TAILNET_TARGET_*`).
    pub pod: OrdMap<IpAddr, SortedSet<IpAddr>>,
    pub reserved: BTreeSet<PortKey>,
    /// Reasons of rejected services and parts, by name.
    pub rejected: OrdMap<Arc<str>, Vec<Reason>>,
}

/// A served egress service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Egress {
    /// Target port by match port.
    pub ports: BTreeMap<PortKey, Port>,
    /// Addresses of the target; empty while unresolved: its ports reject.
    pub targets: SortedSet<IpAddr>,
}

/// A plan with its ruleset, and the inputs of the next one.
#[derive(Debug, Clone)]
pub struct Planned {
    pub world: World,
    pub plan: Plan,
    /// Desired ruleset.
    pub ruleset: Ruleset,
    index: egress::Index,
}

impl Planned {
    pub fn new(world: &World) -> Self {
        Self::nothing(world).next(world)
    }

    /// Plan of the next world, equal to [`Planned::new`] of it.
    #[must_use]
    pub fn next(&self, world: &World) -> Self {
        let same_pod = |a: &World, b: &World| a.interface == b.interface && a.reserved == b.reserved && a.targets == b.targets;
        if !same_pod(&self.world, world) {
            return Self::new(world);
        }
        let mut next = self.clone();
        next.world = world.clone();
        next.plan.source = source(world);
        next.ruleset.source = next.plan.source.clone();
        next.ruleset.siblings = siblings(world);
        egress::update(&mut next, &self.world);
        ingress::update(&mut next, &self.world);
        next
    }

    /// Plan of an empty world.
    fn nothing(world: &World) -> Self {
        let (interface, reserved) = (world.interface.clone(), world.reserved.clone());
        let ruleset = Ruleset { reserved: reserved.clone(), ..Ruleset::empty(interface.clone()) };
        let (egress, ingress, rejected) = (OrdMap::new(), OrdMap::new(), OrdMap::new());
        let plan = Plan { interface, source: OrdMap::new(), egress, ingress, pod: OrdMap::new(), reserved, rejected };
        let targets = world.targets.clone();
        Self {
            world: World { targets, ..World::empty(world.interface.clone(), world.reserved.clone()) },
            plan,
            ruleset,
            index: egress::Index::default(),
        }
    }
}

/// Siblings of the Pod's first address of each family.
fn siblings(world: &World) -> OrdMap<Family, SiblingAddresses> {
    let own: BTreeSet<IpAddr> = world.pod_ips.iter().map(IpAddr::to_canonical).collect();
    let of = |ip| SiblingAddresses::new(ip, world.siblings.difference(&own).copied());
    first_by_family(own.iter().copied()).into_iter().filter_map(|(family, ip)| Some((family, of(ip)?))).collect()
}

/// First address of this node for each family.
fn source(world: &World) -> OrdMap<Family, IpAddr> {
    first_by_family(world.node_addresses())
}

fn first_by_family(addresses: impl Iterator<Item = IpAddr>) -> OrdMap<Family, IpAddr> {
    let mut first = OrdMap::new();
    for ip in addresses {
        first.entry(Family::of(ip)).or_insert(ip);
    }
    first
}
