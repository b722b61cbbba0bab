//! Conflicts between objects of a group: room in its config, host names, Funnel ports.
//!
//! The older object wins. The younger is rejected alone, with a message.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::api::routes::{Listener, Site};
use crate::model::controller::ingress::config::put;
use crate::model::controller::ingress::spec::PublishTarget;
use crate::model::controller::ingress::{IngressPlan, Rejection, ServiceState};
use crate::model::controller::workload::key::Publisher;
use crate::model::controller::workload::objects::ingress::IngressConfigMap;
use crate::model::controller::workload::objects::services::ROOM as CONFIG_ROOM;

/// Upper bound of a route's size in bytes besides path and host, counted twice for the serve config.
const ROUTE_SIZE: usize = 1 << 10;
/// Maximum JSON bytes for one byte of text.
const ESCAPED: usize = 6;
/// Message for objects that do not fit.
const FULL: &str = "The ingress config of the ProxyGroup is full: use another ProxyGroup, or fewer and shorter paths.";

/// Resolves all conflicts. `packs`: the config is compressed if it is too large.
pub(crate) fn settle(plan: &mut IngressPlan<'_>, packs: bool) {
    let order = by_age(plan);
    share_hosts(plan, &order);
    share_internet_ports(plan, &order);
    if upper_bound(plan) > CONFIG_ROOM {
        fit(plan, order, packs);
    }
}

/// Advertised names, oldest objects first.
pub(crate) fn by_age(plan: &IngressPlan<'_>) -> Vec<String> {
    let created: BTreeMap<&Publisher, i64> = plan.claims.iter().map(|claim| (&claim.claimant, claim.created())).collect();
    let mut order: Vec<_> = plan.items.iter().map(|(name, item)| (created.get(&item.claimant), &item.claimant, name)).collect();
    order.sort();
    order.into_iter().map(|(_, _, name)| name.clone()).collect()
}

/// Assigns each host name on the replicas' own addresses to one object.
fn share_hosts(plan: &mut IngressPlan<'_>, order: &[String]) {
    let mut owners: BTreeMap<String, Publisher> = BTreeMap::new();
    for name in order {
        let Some(item) = plan.items.get_mut(name).filter(|item| matches!(item.standing, ServiceState::Unsupported)) else { continue };
        let PublishTarget::Site(site) = &mut item.wish.target else { continue };
        let named: Vec<String> = site.hosts.iter().filter(|(_, how)| !how.issue).map(|(host, _)| host.clone()).collect();
        for host in named {
            match owners.entry(host) {
                Entry::Vacant(free) => drop(free.insert(item.claimant.clone())),
                Entry::Occupied(taken) => {
                    site.hosts.remove(taken.key());
                    site.routes.retain(|route| route.host != *taken.key());
                    item.wish.notes.push(format!("host {} is not served: {} named it first.", taken.key(), taken.get()));
                }
            }
        }
    }
}

/// Assigns each Funnel port to one object.
fn share_internet_ports(plan: &mut IngressPlan<'_>, order: &[String]) {
    let mut owners: BTreeMap<u16, Publisher> = BTreeMap::new();
    for name in order {
        let Some(item) = plan.items.get_mut(name).filter(|item| !matches!(item.standing, ServiceState::Unsupported)) else { continue };
        let PublishTarget::Site(site) = &mut item.wish.target else { continue };
        if !site.funnel {
            continue;
        }
        let ports = https_ports(site);
        if let Some((port, owner)) = ports.iter().find_map(|port| owners.get_key_value(port)) {
            site.funnel = false;
            item.wish.notes.push(format!(
                "It is not reached from the internet (Funnel): {owner} has port {port} of the ProxyGroup; publish this one by another."
            ));
            continue;
        }
        owners.extend(ports.into_iter().map(|port| (port, item.claimant.clone())));
    }
}

fn https_ports(site: &Site) -> Vec<u16> {
    site.listeners.iter().filter(|(_, listener)| **listener == Listener::Https).map(|(port, _)| *port).collect()
}

/// Upper bound of the config's size, without building it.
fn upper_bound(plan: &IngressPlan<'_>) -> usize {
    let site = |site: &Site| {
        let hosts: usize = site.hosts.keys().map(|host| ROUTE_SIZE + 2 * host.len()).sum();
        let routes = site.routes.iter().map(|route| ROUTE_SIZE + 2 * ESCAPED * (route.path.len() + route.host.len()));
        ROUTE_SIZE + hosts + routes.sum::<usize>()
    };
    let items = plan.items.values().map(|item| match &item.wish.target {
        PublishTarget::Site(wanted) => site(wanted),
        PublishTarget::Whole(_) => 2 * ROUTE_SIZE,
    });
    let unchanged = plan.unchanged.iter().chain(&plan.leaving).map(|name| plan.before.routes.get(name).map_or(2 * ROUTE_SIZE, site));
    items.chain(unchanged).sum()
}

/// Rejects objects that do not fit. Existing entries stay; then the oldest come first.
fn fit(plan: &mut IngressPlan<'_>, order: Vec<String>, packs: bool) {
    let before = |name: &String| {
        let mut config = IngressConfigMap::default();
        config.keep(name, &plan.before);
        config.size(packs)
    };
    let (recorded, new): (Vec<String>, Vec<String>) = order.into_iter().partition(|name| plan.recorded(name));
    let sizes: BTreeMap<String, usize> = recorded.iter().map(|name| (name.clone(), before(name))).collect();
    let mut size: usize = plan.unchanged.iter().chain(&plan.leaving).map(before).chain(sizes.values().copied()).sum();
    for name in recorded.iter().chain(&new) {
        let mut wanted = IngressConfigMap::default();
        put(&mut wanted, &plan.before, name, &plan.items[name]);
        let without = size - sizes.get(name).copied().unwrap_or_default();
        let with = without + wanted.size(packs);
        if with <= CONFIG_ROOM {
            size = with;
            continue;
        }
        if let Some(item) = plan.items.remove(name) {
            plan.refused.insert(item.claimant, Rejection::new("ConfigFull", FULL.to_owned()));
        }
        if plan.recorded(name) {
            plan.unchanged.insert(name.clone());
        }
    }
}
