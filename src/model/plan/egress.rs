//! Egress services of a plan: owners and targets of match ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use imbl::ordmap::DiffItem;
use imbl::{OrdMap, OrdSet, ordset};
use ipnet::IpNet;

use super::{Egress, Planned, Reason};
use crate::api::egress::{EgressService, EgressTarget, PortMap};
use crate::model::base::net::{Port, PortKey, Proto};
use crate::model::base::netmap::{Fqdn, NetMap};
use crate::model::base::small_set::SortedSet;
use crate::model::plan::world::World;

type Name = Arc<str>;

/// Index of the services that a change affects, so that the next plan evaluates only these.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    /// Services that claim a match port; the first in alphabetical order owns it.
    claims: OrdMap<PortKey, ServiceNames>,
    /// Services with a tailnet name as target.
    by_name: OrdMap<Fqdn, ServiceNames>,
    by_address: OrdMap<IpAddr, ServiceNames>,
}

/// A nonempty set of services; nearly all of many thousand sets have one element and need no tree.
#[derive(Debug, Clone)]
enum ServiceNames {
    One(Name),
    Many(OrdSet<Name>),
}

impl ServiceNames {
    fn iter(&self) -> impl Iterator<Item = &Name> {
        let (one, many) = match self {
            Self::One(name) => (Some(name), None),
            Self::Many(names) => (None, Some(names)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    fn first(&self) -> Option<&Name> {
        self.iter().next()
    }

    fn insert(&mut self, name: &Name) {
        match self {
            Self::One(only) if only == name => {}
            Self::One(only) => *self = Self::Many([Arc::clone(only), Arc::clone(name)].into_iter().collect()),
            Self::Many(names) => drop(names.insert(Arc::clone(name))),
        }
    }

    /// Removes a name; returns whether any remain.
    fn remove(&mut self, name: &Name) -> bool {
        match self {
            Self::One(only) => only != name,
            Self::Many(names) => {
                names.remove(name);
                !names.is_empty()
            }
        }
    }
}

/// Updates the egress part of a plan from `before` to `next.world`.
pub(super) fn update(next: &mut Planned, before: &World) {
    let mut dirty = changed_services(before, &next.world);
    dirty.extend(renamed(&next.index, before.netmap.as_deref(), next.world.netmap.as_deref()));
    dirty.extend(rerouted(&next.index, before.netmap.as_deref(), next.world.netmap.as_deref()));
    dirty.extend(own(&next.index, before, &next.world));
    for name in dirty.clone() {
        dirty.extend(reindex(next, before, &name));
    }
    // Remove before adding: a port may move from one service to another.
    for name in &dirty {
        withdraw(next, name);
    }
    for name in &dirty {
        serve(next, name);
    }
}

/// Services with a changed config entry.
fn changed_services(before: &World, after: &World) -> BTreeSet<Name> {
    fn keys<V: PartialEq>(before: &OrdMap<Name, V>, after: &OrdMap<Name, V>) -> Vec<Name> {
        let key = |item: DiffItem<'_, '_, Name, V>| match item {
            DiffItem::Add(key, _) | DiffItem::Remove(key, _) | DiffItem::Update { new: (key, _), .. } => Arc::clone(key),
        };
        before.diff(after).map(key).collect()
    }
    let mut names: BTreeSet<_> = keys(&before.egress.services, &after.egress.services).into_iter().collect();
    names.extend(keys(&before.egress.malformed, &after.egress.malformed));
    names
}

/// Services with a target address that has a peer in only one of the netmaps.
fn rerouted(index: &Index, before: Option<&NetMap>, after: Option<&NetMap>) -> BTreeSet<Name> {
    let leads = |netmap: Option<&NetMap>, ip| netmap.map(|netmap| netmap.routes_to(ip));
    let users = |prefix: IpNet| index.by_address.range(prefix.network()..=prefix.broadcast());
    let (Some(was), Some(is)) = (before, after) else {
        // Without netmap no address can be evaluated.
        let all_names = (before.is_some() != after.is_some()).then(|| index.by_address.values().flat_map(ServiceNames::iter).cloned());
        return all_names.into_iter().flatten().collect();
    };
    let changed = was.routes.diff(&is.routes).map(|item| match item {
        ordset::DiffItem::Add(prefix) | ordset::DiffItem::Remove(prefix) => *prefix,
    });
    let moved = changed.flat_map(users).filter(|(ip, _)| leads(before, **ip) != leads(after, **ip));
    moved.flat_map(|(_, names)| names.iter()).cloned().collect()
}

/// Services with a target address that is this node's own in only one of the worlds.
fn own(index: &Index, before: &World, after: &World) -> BTreeSet<Name> {
    let changed = before.node_addresses().chain(after.node_addresses()).filter(|ip| before.is_own(*ip) != after.is_own(*ip));
    changed.filter_map(|ip| index.by_address.get(&ip)).flat_map(ServiceNames::iter).cloned().collect()
}

/// Services whose target name resolves differently in another netmap.
fn renamed(index: &Index, before: Option<&NetMap>, after: Option<&NetMap>) -> BTreeSet<Name> {
    let nothing = NetMap::default();
    let (before, after) = (before.unwrap_or(&nothing), after.unwrap_or(&nothing));
    let moved = |name: &Fqdn| before.resolve(name) != after.resolve(name);
    let users = |name: &Fqdn| index.by_name.get(name).into_iter().flat_map(ServiceNames::iter).cloned().collect::<Vec<_>>();
    let changed = before.peers.diff(&after.peers).chain(before.records.diff(&after.records)).map(|item| match item {
        DiffItem::Add(name, _) | DiffItem::Remove(name, _) | DiffItem::Update { new: (name, _), .. } => name,
    });
    // Routes affect only names without peer: Tailscale Services and 4via6.
    let rerouted = before.routes != after.routes;
    let routed = index.by_name.keys().filter(|name| rerouted && !after.peers.contains_key(*name));
    changed.chain(routed).filter(|name| moved(name)).flat_map(users).collect()
}

/// Updates a service's claims and target name in the index; returns other affected services.
fn reindex(next: &mut Planned, before: &World, name: &Name) -> BTreeSet<Name> {
    let (was, is) = (before.egress.services.get(name), next.world.egress.services.get(name));
    let index = &mut next.index;
    let fqdn = |service: &Arc<EgressService>| Fqdn::new(&service.tailnet_target.fqdn);
    remove_name(&mut index.by_name, was.and_then(fqdn), name);
    join(&mut index.by_name, is.and_then(fqdn), name);
    let address = |service: &Arc<EgressService>| parse_address(&service.tailnet_target.ip);
    remove_name(&mut index.by_address, was.and_then(address), name);
    join(&mut index.by_address, is.and_then(address), name);
    let claimed = |service: Option<&Arc<EgressService>>| -> BTreeSet<PortKey> {
        let ports = service.into_iter().flat_map(|service| service.ports.iter());
        ports.filter_map(|port| parse_port(port).ok()).map(|(key, _)| key).collect()
    };
    let (old, new) = (claimed(was), claimed(is));
    let touched: BTreeSet<_> = old.symmetric_difference(&new).copied().collect();
    let mut others = BTreeSet::new();
    for key in touched {
        others.extend(index.claims.get(&key).into_iter().flat_map(ServiceNames::iter).cloned());
        remove_name(&mut index.claims, Some(key).filter(|key| !new.contains(key)), name);
        join(&mut index.claims, Some(key).filter(|key| new.contains(key)), name);
    }
    others
}

fn join<K: Ord + Clone>(index: &mut OrdMap<K, ServiceNames>, key: Option<K>, name: &Name) {
    if let Some(key) = key {
        index.entry(key).or_insert_with(|| ServiceNames::One(Arc::clone(name))).insert(name);
    }
}

fn remove_name<K: Ord + Clone>(index: &mut OrdMap<K, ServiceNames>, key: Option<K>, name: &Name) {
    let Some(key) = key else { return };
    let Some(names) = index.get_mut(&key) else { return };
    if !names.remove(name) {
        index.remove(&key);
    }
}

fn withdraw(next: &mut Planned, name: &Name) {
    next.plan.rejected.remove(name);
    if let Some(gone) = next.plan.egress.remove(name) {
        for key in gone.ports.keys() {
            next.ruleset.ports.remove(key);
        }
    }
}

fn serve(next: &mut Planned, name: &Name) {
    let mut reasons = Vec::new();
    if let Some(fault) = next.world.egress.malformed.get(name) {
        reasons.push(Reason::Malformed(fault.clone()));
    }
    if let Some(service) = next.world.egress.services.get(name) {
        let egress = Egress {
            ports: ports(next, name, service, &mut reasons),
            targets: targets(&service.tailnet_target, &next.world).map_err(|reason| reasons.push(reason)).unwrap_or_default(),
        };
        // Protocols of a port mostly have the same targets and share them.
        let mut places: BTreeMap<Port, SortedSet<SocketAddr>> = BTreeMap::new();
        for (key, port) in &egress.ports {
            let place = || egress.targets.iter().map(|ip| SocketAddr::new(*ip, port.get())).collect();
            next.ruleset.ports.insert(*key, places.entry(*port).or_insert_with(place).clone());
        }
        if !egress.ports.is_empty() {
            next.plan.egress.insert(Arc::clone(name), Arc::new(egress));
        }
    }
    if !reasons.is_empty() {
        next.plan.rejected.insert(Arc::clone(name), reasons);
    }
}

/// Ports of a service, with reasons for the rejected ones. Independent of the list's order.
fn ports(next: &Planned, name: &Name, service: &EgressService, reasons: &mut Vec<Reason>) -> BTreeMap<PortKey, Port> {
    let mut ports = BTreeMap::new();
    let listed: BTreeSet<_> = service.ports.iter().collect();
    for listed in listed {
        let Ok((key, to)) = parse_port(listed).map_err(|reason| reasons.push(reason)) else { continue };
        let owner = next.index.claims.get(&key).and_then(ServiceNames::first).unwrap_or(name);
        if next.world.reserved.contains(&key) {
            reasons.push(Reason::Reserved(key));
        } else if owner != name {
            reasons.push(Reason::Taken { key, owner: Arc::clone(owner) });
        } else if *ports.entry(key).or_insert(to) != to {
            reasons.push(Reason::Taken { key, owner: Arc::clone(name) });
        }
    }
    ports
}

fn parse_port(port: &PortMap) -> Result<(PortKey, Port), Reason> {
    let number = |field, port: u64| u16::try_from(port).ok().and_then(Port::new).ok_or(Reason::Port { field, port });
    let proto: Proto = port.protocol.parse().map_err(|fault| Reason::Protocol { port: port.match_port, fault })?;
    Ok((PortKey { proto, port: number("matchPort", port.match_port)? }, number("targetPort", port.target_port)?))
}

fn targets(target: &EgressTarget, world: &World) -> Result<SortedSet<IpAddr>, Reason> {
    match (target.ip.as_str(), Fqdn::new(&target.fqdn)) {
        ("", Some(name)) => named(&name, &target.fqdn, world).map(SortedSet::from),
        ("", None) | (_, Some(_)) => Err(Reason::Target),
        (text, None) => {
            let ip = parse_address(text).ok_or_else(|| Reason::Address(text.to_owned()))?;
            address(ip, world).map(|ip| [ip].into())
        }
    }
}

/// Permitted addresses of a target by name. `text` is the name as requested.
pub(super) fn named(name: &Fqdn, text: &str, world: &World) -> Result<BTreeSet<IpAddr>, Reason> {
    let found = world.netmap.as_deref().map(|netmap| netmap.resolve(name)).unwrap_or_default();
    let refused = |ip: IpAddr| Some(Reason::Forbidden { address: ip, range: world.targets.refuses(ip, false, text)? });
    let permitted: BTreeSet<IpAddr> = found.iter().copied().filter(|ip| refused(*ip).is_none()).collect();
    if !permitted.is_empty() {
        return Ok(permitted);
    }
    Err(found.iter().find_map(|ip| refused(*ip)).unwrap_or_else(|| Reason::Unresolved(text.to_owned())))
}

/// A target by address, unless forbidden or without peer: by the default route it would leave unencrypted.
pub(super) fn address(ip: IpAddr, world: &World) -> Result<IpAddr, Reason> {
    if let Some(range) = world.targets.refuses(ip, world.is_own(ip), &ip.to_string()) {
        return Err(Reason::Forbidden { address: ip, range });
    }
    let routed = world.netmap.as_ref().is_none_or(|netmap| netmap.routes_to(ip));
    if routed { Ok(ip) } else { Err(Reason::Unrouted(ip)) }
}

fn parse_address(text: &str) -> Option<IpAddr> {
    Some(text.parse::<IpAddr>().ok()?.to_canonical())
}
