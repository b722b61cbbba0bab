//! Static endpoints: a node port for each replica and external addresses of nodes, so that peers reach it directly.
//!
//! Ports are stable, and so is an address while its node has it. A missing port or address is reported as a fault of the group and does
//! not affect replicas that have theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use k8s_openapi::api::core::v1::Node;

use crate::api::condition::reason;
use crate::api::proxyclass::NodePorts;
use crate::model::controller::workload::objects::Kind;
use crate::model::controller::workload::objects::nodeport::{held_ports, node_port, node_port_ref};
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::Pass;

/// Maximum addresses for a replica, tailscaled's limit.
const ADDRESSES: usize = 2;
/// Default node port range of an API server.
const USUAL: RangeInclusive<u16> = 30_000..=32_767;

/// Port of tailscaled for a group with static endpoints: the recorded one, else one derived from its name that is neither a match port
/// nor a port of the replica.
pub(crate) fn wireguard(work: &Pass<'_>, shape: &RenderContext<'_>) -> Option<u16> {
    shape.class?.static_endpoints.as_ref()?;
    let services = work.observed.of(Kind::Service).filter(|(object, _)| object.name.ends_with("-nodeport"));
    let taken_ports = services.filter_map(|(_, service)| held_ports(service)).map(|(wireguard, _)| wireguard).next();
    let hash = shape.owner.name.bytes().fold(0u16, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    let reserved = shape.reserved();
    let free = |port: &u16| !shape.ports().contains(*port) && !reserved.contains(port);
    let usual = (0..10_000).map(|step| 20_000 + hash.wrapping_add(step) % 10_000);
    taken_ports.or_else(|| usual.chain(30_000..=u16::MAX).find(free))
}

/// Plans the Services and returns the endpoints of each replica.
pub(crate) fn endpoints<'a>(pass: &Pass<'a>, shape: &RenderContext<'_>) -> (PlanPart<'a>, BTreeMap<u32, Vec<String>>) {
    let mut work = pass.part();
    let endpoints = shape.class.and_then(|class| class.static_endpoints.as_ref()).zip(shape.wireguard);
    let Some((requested, wireguard)) = endpoints else {
        return (surplus(pass, 0), BTreeMap::new());
    };
    let addresses = addresses(pass, shape, &requested.node_port);
    if addresses.is_empty() {
        let message = "No node that spec.staticEndpoints of the ProxyClass selects has an address of type ExternalIP: change the selector.";
        work.fault(reason::PROXY_GROUP_CREATION_FAILED, message.into());
    }
    let current_port =
        |ordinal: u32| pass.owned(&node_port_ref(&shape.owner, ordinal)).and_then(|existing| held_ports(existing)).map(|(_, port)| port);
    let allowed = |port: u16| {
        requested.node_port.ports.iter().any(|range| (range.port..=range.end_port.unwrap_or(range.port)).contains(&port.into()))
    };
    let reused: BTreeMap<u32, u16> =
        (0..shape.spec.replicas).filter_map(|ordinal| Some((ordinal, current_port(ordinal).filter(|port| allowed(*port))?))).collect();
    let mut taken: BTreeSet<u16> = reused.values().chain(&work.observed.node_ports).copied().collect();
    let mut found = BTreeMap::new();
    for ordinal in 0..shape.spec.replicas {
        let Some(port) = reused.get(&ordinal).copied().or_else(|| free(&requested.node_port, &taken)) else {
            let message = "All ports of spec.staticEndpoints of the ProxyClass are taken, or the API server refuses them \
                (its --service-node-port-range): change its ranges.";
            work.fault(reason::PROXY_GROUP_CREATION_FAILED, message.into());
            break;
        };
        taken.insert(port);
        work.want(node_port(&shape.owner, ordinal, wireguard, port));
        found.insert(ordinal, addresses.iter().map(|ip| SocketAddr::new(*ip, port).to_string()).collect());
    }
    (work, found)
}

/// A free port. The API server's range cannot be queried: ports of the default range come first.
fn free(requested: &NodePorts, taken: &BTreeSet<u16>) -> Option<u16> {
    let candidates = || requested.ports.iter().flat_map(|range| range.port..=range.end_port.unwrap_or(range.port));
    let ports = || candidates().filter_map(|port| u16::try_from(port).ok());
    let usual = ports().filter(|port| USUAL.contains(port));
    usual.chain(ports().filter(|port| !USUAL.contains(port))).find(|port| *port > 0 && !taken.contains(port))
}

/// Deletes the Services of replicas from ordinal `from` on.
pub(crate) fn surplus<'a>(pass: &Pass<'a>, from: u32) -> PlanPart<'a> {
    let mut work = pass.part();
    let prefix = format!("{}-", pass.owner.name);
    let ordinal = |name: &str| name.strip_prefix(&prefix)?.strip_suffix("-nodeport")?.parse::<u32>().ok();
    let services = pass.observed.of(Kind::Service).map(|(object, _)| object);
    for object in services.filter(|object| ordinal(&object.name).is_some_and(|ordinal| ordinal >= from)) {
        work.delete(object);
    }
    work
}

/// Node addresses to advertise: those in use first, in their order.
fn addresses(work: &Pass<'_>, shape: &RenderContext<'_>, endpoints: &NodePorts) -> Vec<IpAddr> {
    let selected = |node: &&std::sync::Arc<Node>| {
        let label = |key: &String| node.metadata.labels.as_ref().and_then(|labels| labels.get(key));
        endpoints.selector.iter().all(|(key, value)| label(key) == Some(value))
    };
    let there: BTreeSet<IpAddr> = work.observed.nodes.iter().filter(selected).flat_map(|node| external(node)).collect();
    let replicas =
        work.observed.replicas.range(..shape.spec.replicas).filter_map(|(_, replica)| replica.config.as_ref()?.document.as_ref());
    let used = replicas.filter_map(|document| document.get("StaticEndpoints")?.as_array()).flatten();
    let used = used.filter_map(|endpoint| endpoint.as_str()?.parse::<SocketAddr>().ok()).map(|endpoint| endpoint.ip());
    let mut chosen = Vec::new();
    for ip in used.filter(|ip| there.contains(ip)).chain(there.iter().copied()) {
        if chosen.len() < ADDRESSES && !chosen.contains(&ip) {
            chosen.push(ip);
        }
    }
    chosen
}

fn external(node: &Node) -> impl Iterator<Item = IpAddr> {
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref()).into_iter().flatten();
    addresses.filter(|address| address.type_ == "ExternalIP").filter_map(|address| address.address.parse().ok())
}
