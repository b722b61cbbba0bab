//! From everything known to what is to be served: [`Planned`] is total, deterministic and does nothing.
//!
//! A plan is computed from the difference to the one before; the first one from the difference to nothing. So there is
//! one way to compute it, and one change among ten thousand services costs what one change costs.

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
use crate::model::firewall::ruleset::Ruleset;
use crate::model::plan::world::World;

/// What is to be served, and what is not and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The interface behind which the tailnet is.
    pub interface: InterfaceName,
    /// This node's own tailnet addresses, one of each family.
    pub source: OrdMap<Family, IpAddr>,
    /// The egress services by name; one without a single usable port is not here, one that is unresolved is, without targets.
    pub egress: OrdMap<Arc<str>, Arc<Egress>>,
    /// The L3 ingress services and the single-proxy ingress, by name: the tailnet's address and the addresses behind it.
    pub ingress: OrdMap<Arc<str>, BTreeMap<IpAddr, SortedSet<IpAddr>>>,
    /// Addresses of the Pod itself that lead to the tailnet whole (`TS_TAILNET_TARGET_*`).
    pub pod: OrdMap<IpAddr, SortedSet<IpAddr>>,
    pub reserved: BTreeSet<PortKey>,
    /// What is not served, by service name; a service may be partly served.
    pub rejected: OrdMap<Arc<str>, Vec<Reason>>,
}

/// One egress service as it will be served.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Egress {
    /// The target's port by match port.
    pub ports: BTreeMap<PortKey, Port>,
    /// Every address of the target; empty while it is unresolved, and then its ports refuse.
    pub targets: SortedSet<IpAddr>,
}

/// A plan, the ruleset that it comes to, and what the next one is computed from.
#[derive(Debug, Clone)]
pub struct Planned {
    pub world: World,
    pub plan: Plan,
    /// What the kernel is to hold.
    pub ruleset: Ruleset,
    index: egress::Index,
}

impl Planned {
    #[must_use]
    pub fn new(world: &World) -> Self {
        Self::nothing(world).next(world)
    }

    /// The plan of the world that follows, equal to [`Planned::new`] of it.
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
        egress::update(&mut next, &self.world);
        ingress::update(&mut next, &self.world);
        next
    }

    /// The plan of a world in which nothing is configured and nothing known but the Pod itself.
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

/// This node's first address of each family.
fn source(world: &World) -> OrdMap<Family, IpAddr> {
    let addresses: Vec<IpAddr> = world.node_addresses().collect();
    addresses.into_iter().rev().map(|ip| (Family::of(ip), ip)).collect()
}
