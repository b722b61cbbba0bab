//! Conflicts between objects of a group: host names, Funnel ports, and shares of its config.
//!
//! The older object wins. The younger is rejected alone, with a message.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::api::routes::Listener;
use crate::model::controller::ingress::share::share;
use crate::model::controller::ingress::spec::PublishTarget;
use crate::model::controller::ingress::{IngressPlan, ServiceState};
use crate::model::controller::key::Publisher;
use crate::model::controller::policy::age::Age;

/// Resolves all conflicts. `packs`: the config is compressed if it is too large.
pub(crate) fn settle(plan: &mut IngressPlan<'_>, packs: bool) {
    let order = by_age(plan);
    share_hosts(plan, &order);
    share_internet_ports(plan, &order);
    share(plan, order, packs);
}

/// Advertised names, oldest objects first.
pub(crate) fn by_age(plan: &IngressPlan<'_>) -> Vec<String> {
    let ages: BTreeMap<&Publisher, Age<'_>> = plan.claims.iter().map(|claim| (&claim.claimant, claim.age())).collect();
    let mut order: Vec<_> = plan.items.iter().map(|(name, item)| (ages.get(&item.claimant), &item.claimant, name)).collect();
    order.sort();
    order.into_iter().map(|(_, _, name)| name.clone()).collect()
}

/// Assigns each host name on the replicas' own addresses to one object.
fn share_hosts(plan: &mut IngressPlan<'_>, order: &[String]) {
    let mut owners: BTreeMap<String, Publisher> = BTreeMap::new();
    for name in order {
        let Some(item) = plan.items.get_mut(name).filter(|item| matches!(item.state, ServiceState::Unsupported)) else { continue };
        let PublishTarget::Site(site) = &mut item.spec.target else { continue };
        let named: Vec<String> = site.hosts.iter().filter(|(_, how)| !how.issue).map(|(host, _)| host.clone()).collect();
        for host in named {
            match owners.entry(host) {
                Entry::Vacant(free) => drop(free.insert(item.claimant.clone())),
                Entry::Occupied(taken) => {
                    site.hosts.remove(taken.key());
                    site.routes.retain(|route| route.host != *taken.key());
                    item.spec.notes.push(format!("host {} is not served: {} named it first.", taken.key(), taken.get()));
                }
            }
        }
    }
}

/// Assigns each Funnel port to one object.
fn share_internet_ports(plan: &mut IngressPlan<'_>, order: &[String]) {
    let mut owners: BTreeMap<u16, Publisher> = BTreeMap::new();
    for name in order {
        let Some(item) = plan.items.get_mut(name).filter(|item| !matches!(item.state, ServiceState::Unsupported)) else { continue };
        let PublishTarget::Site(site) = &mut item.spec.target else { continue };
        if !site.funnel {
            continue;
        }
        let is_https = |(port, listener): (&u16, &Listener)| (*listener == Listener::Https).then_some(*port);
        let ports: Vec<u16> = site.listeners.iter().filter_map(is_https).collect();
        if let Some((port, owner)) = ports.iter().find_map(|port| owners.get_key_value(port)) {
            site.funnel = false;
            item.spec.notes.push(format!(
                "It is not reached from the internet (Funnel): {owner} has port {port} of the ProxyGroup; publish this one by another."
            ));
            continue;
        }
        owners.extend(ports.into_iter().map(|port| (port, item.claimant.clone())));
    }
}
