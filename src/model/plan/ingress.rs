//! L3 ingress services of a group, and single-proxy modes in both directions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use imbl::OrdMap;

use super::{Planned, Reason, egress, source};
use crate::api::ingress::{IngressService, Mapping};
use crate::model::base::net::Family;
use crate::model::base::small_set::SortedSet;
use crate::model::config::IngressConfig;
use crate::model::plan::world::{ServiceListeners, Single, World};

type Hosts = BTreeMap<IpAddr, SortedSet<IpAddr>>;

/// Services by address, with reasons for rejected ones.
#[derive(Default)]
struct ServedByAddress {
    ingress: OrdMap<Arc<str>, Hosts>,
    from_tailnet: OrdMap<IpAddr, SortedSet<IpAddr>>,
    listeners: OrdMap<SocketAddr, SocketAddr>,
    pod: OrdMap<IpAddr, SortedSet<IpAddr>>,
    rejected: BTreeMap<Arc<str>, Vec<Reason>>,
    owners: BTreeMap<IpAddr, Arc<str>>,
}

/// Updates these parts of a plan from `before` to `next.world`.
pub(super) fn update(next: &mut Planned, before: &World) {
    let world = &next.world;
    let same_config = Arc::ptr_eq(&before.ingress, &world.ingress)
        && before.listeners == world.listeners
        && before.single == world.single
        && before.pod_ips == world.pod_ips;
    let single_inputs =
        (world.single == Single::None && !world.via_ingress) || (before.netmap == world.netmap && before.names == world.names);
    let same_answers = before.names == world.names && before.node_addresses().eq(world.node_addresses());
    let same_names = same_answers || (names(&world.ingress).next().is_none() && world.listeners.is_empty());
    let same_services =
        (world.ingress.services.is_empty() && world.listeners.is_empty()) || before.tailscale_services() == world.tailscale_services();
    if same_config && single_inputs && same_names && same_services {
        return;
    }
    let configured = before.ingress.services.keys().chain(before.ingress.malformed.keys()).chain(before.listeners.keys());
    let was: Vec<_> = configured.cloned().chain(single_name(&before.single)).collect();
    let mut served = ServedByAddress::default();
    serve_group(&mut served, world);
    serve_vhosts(&mut served, world);
    serve_single(&mut served, world);
    if world.via_ingress {
        serve_pod(&mut served, world);
    }
    for name in was {
        next.plan.rejected.remove(&name);
    }
    for (name, reasons) in served.rejected {
        next.plan.rejected.insert(name, reasons);
    }
    next.ruleset.from_tailnet = served.from_tailnet;
    next.ruleset.listeners = served.listeners;
    next.ruleset.from_cluster = served.pod.clone();
    (next.plan.ingress, next.plan.pod) = (served.ingress, served.pod);
}

fn serve_group(served: &mut ServedByAddress, world: &World) {
    for (name, fault) in &world.ingress.malformed {
        served.reject(name, Reason::Malformed(fault.clone()));
    }
    for (name, service) in &world.ingress.services {
        if service.external_name.is_empty() {
            serve_mappings(served, name, service);
        } else {
            serve_external(served, world, name, service);
        }
    }
    for (name, addresses) in world.tailscale_services().into_iter().flatten() {
        served.refuse_others(name, addresses);
    }
}

fn serve_mappings(served: &mut ServedByAddress, name: &Arc<str>, service: &IngressService) {
    for mapping in [&service.ipv4, &service.ipv6].into_iter().flatten() {
        match pair(mapping) {
            Ok(Some((from, to))) => served.serve(name, from, [to].into()),
            Ok(None) => {}
            Err(reason) => served.reject(name, reason),
        }
    }
}

/// Serves the ports of virtual hosts by their listeners at this node's own address. tailscaled passes all packets of Tailscale Services on,
/// so their other ports and addresses are refused.
fn serve_vhosts(served: &mut ServedByAddress, world: &World) {
    let (own, granted) = (source(world), world.tailscale_services());
    for (name, ServiceListeners { addresses, ports }) in &*world.listeners {
        let others = granted.and_then(|services| services.get(&**name)).into_iter().flatten();
        for address in addresses.iter().chain(others.filter(|ip| !addresses.contains(*ip))) {
            let is_served = served.claim(name, *address, SortedSet::default()) && addresses.contains(address);
            if let Some(own) = own.get(&Family::of(*address)).filter(|_| is_served) {
                let listener = |(port, to): (&u16, &u16)| (SocketAddr::new(*address, *port), SocketAddr::new(*own, *to));
                served.listeners.extend(ports.iter().map(listener));
            }
        }
    }
}

/// DNS names that are targets in a config.
pub fn names(config: &IngressConfig) -> impl Iterator<Item = &str> {
    config.services.values().map(|service| service.external_name.as_str()).filter(|name| !name.is_empty())
}

/// Serves a service with the addresses of a DNS name as targets, by family. Without any address it is not served, so that it is not
/// advertised.
fn serve_external(served: &mut ServedByAddress, world: &World, name: &Arc<str>, service: &IngressService) {
    if !world.names.contains_key(&service.external_name) {
        return served.reject(name, Reason::NoAnswer(service.external_name.clone()));
    }
    let found = served.answer(name, world, &service.external_name);
    if found.is_empty() {
        return;
    }
    for mapping in [&service.ipv4, &service.ipv6].into_iter().flatten().filter(|mapping| !mapping.tailscale_service_ip.is_empty()) {
        let Ok(from) = mapping.tailscale_service_ip.parse::<IpAddr>() else {
            served.reject(name, Reason::Address(mapping.tailscale_service_ip.clone()));
            continue;
        };
        // A family without target rejects at once.
        served.serve(name, from, found.iter().copied().filter(|ip| Family::of(*ip) == Family::of(from)).collect());
    }
}

/// Addresses of a mapping; `None` if one is empty (the Tailscale Service lacks that family).
fn pair(mapping: &Mapping) -> Result<Option<(IpAddr, IpAddr)>, Reason> {
    let parse = |text: &str| text.parse::<IpAddr>().map_err(|_| Reason::Address(text.to_owned()));
    if mapping.tailscale_service_ip.is_empty() || mapping.cluster_ip.is_empty() {
        return Ok(None);
    }
    let (from, to) = (parse(&mapping.tailscale_service_ip)?, parse(&mapping.cluster_ip)?);
    if Family::of(from) == Family::of(to) { Ok(Some((from, to))) } else { Err(Reason::Families { from, to }) }
}

/// Service name of a single-proxy mode: its setting.
fn single_name(single: &Single) -> Option<Arc<str>> {
    single.variable().map(Arc::from)
}

fn serve_single(served: &mut ServedByAddress, world: &World) {
    let Some(name) = single_name(&world.single) else { return };
    let own: BTreeSet<IpAddr> = world.node_addresses().collect();
    let (to, unresolved): (BTreeSet<IpAddr>, _) = match &world.single {
        Single::None => return,
        Single::DestIp { ip, .. } => (world.single.cluster_addresses().collect(), ip.to_string()),
        Single::TailnetIp(ip) => {
            let target = egress::address(*ip, world).map_err(|reason| served.reject(&name, reason));
            (target.into_iter().collect(), ip.to_string())
        }
        Single::DestDns(host) => (served.answer(&name, world, host), host.clone()),
        Single::TailnetFqdn(fqdn) => {
            let text = world.single.value().unwrap_or_default();
            let found = egress::named(fqdn, &text, world).map_err(|reason| {
                if matches!(reason, Reason::Forbidden { .. }) {
                    served.reject(&name, reason);
                }
            });
            (found.unwrap_or_default(), fqdn.to_string())
        }
    };
    if to.is_empty() && !served.rejected.contains_key(&name) {
        served.reject(&name, Reason::Unresolved(unresolved));
    }
    let to_cluster = world.single.is_ingress();
    let on = if to_cluster { &own } else { &world.pod_ips };
    let of = |addresses: &BTreeSet<IpAddr>, family| -> SortedSet<IpAddr> {
        addresses.iter().copied().filter(|ip| Family::of(*ip) == family).collect()
    };
    let is_served = Family::ALL.into_iter().any(|family| !of(on, family).is_empty() && !of(&to, family).is_empty());
    for family in Family::ALL {
        let (on, targets) = (of(on, family), of(&to, family));
        // A target may have a family that the cluster or the tailnet lacks.
        if on.is_empty() && !targets.is_empty() && !is_served {
            served.reject(&name, Reason::NoAddress(family));
        }
        // A family without target stays the node's own, unless there is no target at all: then it rejects.
        for address in on.iter().filter(|_| !targets.is_empty() || to.is_empty()) {
            if to_cluster {
                served.serve(&name, *address, targets.clone());
            } else {
                served.pod.insert(*address, targets.clone());
            }
        }
    }
}

/// Routes the Pod's addresses to the node's tailnet addresses, where tailscaled listens.
fn serve_pod(served: &mut ServedByAddress, world: &World) {
    for pod in &world.pod_ips {
        let to: SortedSet<IpAddr> = world.node_addresses().filter(|ip| Family::of(*ip) == Family::of(*pod)).take(1).collect();
        if !to.is_empty() {
            served.pod.insert(*pod, to);
        }
    }
}

impl ServedByAddress {
    /// Permitted addresses of a DNS name; the others are rejected one by one.
    fn answer(&mut self, name: &Arc<str>, world: &World, host: &str) -> BTreeSet<IpAddr> {
        let mut allowed = world.names.get(host).cloned().unwrap_or_default();
        allowed.retain(|ip| {
            let refused = world.targets.refuses_service(*ip, world.is_own(*ip), (&**name, host));
            refused.inspect(|range| self.reject(name, Reason::Forbidden { address: *ip, range: *range })).is_none()
        });
        allowed
    }

    fn serve(&mut self, name: &Arc<str>, from: IpAddr, to: SortedSet<IpAddr>) {
        if self.claim(name, from, to.clone()) {
            self.ingress.entry(Arc::clone(name)).or_default().insert(from, to);
        }
    }

    /// Sets the targets of an address, unless another service owns it; returns whether it does not.
    fn claim(&mut self, name: &Arc<str>, from: IpAddr, to: SortedSet<IpAddr>) -> bool {
        if let Some(owner) = self.owners.get(&from).filter(|owner| *owner != name) {
            let owner = Arc::clone(owner);
            self.reject(name, Reason::AddressTaken { address: from, owner });
            return false;
        }
        self.owners.insert(from, Arc::clone(name));
        self.from_tailnet.insert(from, to);
        true
    }

    /// Refuses traffic to the addresses of a served Tailscale Service that have no mapping: those of a family that the Service in the
    /// cluster lacks. tailscaled passes their packets on, and they would be routed back into the tailnet.
    fn refuse_others(&mut self, name: &str, addresses: &BTreeSet<IpAddr>) {
        let Some(name) = self.ingress.get_key_value(name).map(|(name, _)| Arc::clone(name)) else { return };
        let others: Vec<IpAddr> = addresses.iter().copied().filter(|ip| !self.owners.contains_key(ip)).collect();
        for address in others {
            self.serve(&name, address, SortedSet::default());
        }
    }

    fn reject(&mut self, name: &Arc<str>, reason: Reason) {
        self.rejected.entry(Arc::clone(name)).or_default().push(reason);
    }
}
