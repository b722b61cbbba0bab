//! Service addresses on a control plane without Tailscale Services: every replica advertises them as routes.
//!
//! headscale assigns a route to one approved device that advertises it, and to another when that one leaves. An address belongs to a
//! Service while the config has it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::api::ingress::IngressService;
use crate::model::controller::ingress::advertise::live;
use crate::model::controller::ingress::items::{IngressPlan, Item, ServiceState};
use crate::model::controller::ingress::rejection::Rejection;
use crate::model::controller::ingress::service_state::{MAX_CONTROL_DATA_AGE, lacks_services};
use crate::model::controller::ingress::spec::L4Service;
use crate::model::controller::workload::actions::ControlAction;
use crate::model::controller::workload::device_records::claimed_device;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::observed::replica::ObservedReplica;
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::Pass;
use crate::model::controller::workload::readiness::{elapsed, is_lost};
use crate::model::controller::workload::tailnet_setting::AUTO_APPROVERS;

/// Tailnet addresses of a mapping.
pub(crate) fn addresses(mapping: &IngressService) -> impl Iterator<Item = IpAddr> {
    [&mapping.ipv4, &mapping.ipv6].into_iter().flatten().filter_map(|pair| pair.tailscale_service_ip.parse().ok())
}

fn route(address: IpAddr) -> String {
    IpNet::from(address).to_string()
}

/// Routes to the tailnet addresses of a mapping.
pub(crate) fn mapped_routes(mapping: &IngressService) -> BTreeSet<String> {
    addresses(mapping).map(route).collect()
}

fn routes(own: &[String]) -> BTreeSet<String> {
    own.iter().filter_map(|address| address.parse().ok()).map(route).collect()
}

/// Addresses of a Service: from the group's prefixes, if any, its recorded ones or the first free ones; else its ClusterIPs.
pub(crate) fn allot(
    shape: &RenderContext<'_>,
    before: Option<&IngressService>,
    whole: &L4Service,
    taken: &mut BTreeSet<IpAddr>,
) -> Result<Vec<String>, Rejection> {
    let refused = |message: &str| Rejection::new("NoAddress", message.to_owned());
    let prefixes = shape.service_cidrs();
    let external = !whole.external_name.is_empty();
    if prefixes.is_empty() {
        if external {
            return Err(refused(
                "The control plane has no Tailscale Services, and a Service of type ExternalName has no address to make a route of: \
                 give the ProxyGroup some in spec.tailyard.serviceCIDRs.",
            ));
        }
        return Ok(whole.addresses.iter().map(ToString::to_string).collect());
    }
    let mut own: Vec<IpAddr> = Vec::new();
    for v4 in [true, false] {
        let same = |ip: &IpAddr| ip.is_ipv4() == v4;
        let of_family: Vec<&IpNet> = prefixes.iter().filter(|net| same(&net.addr())).collect();
        if of_family.is_empty() || !(external || whole.addresses.iter().any(same)) {
            continue;
        }
        let former = before.into_iter().flat_map(addresses).find(|ip| of_family.iter().any(|net| net.contains(ip)));
        let free = || of_family.iter().flat_map(|net| usable(net)).find(|ip| !taken.contains(ip));
        let address = former
            .or_else(free)
            .ok_or_else(|| refused("Every address of the ProxyGroup's spec.tailyard.serviceCIDRs is another Service's: add a prefix."))?;
        own.push(address);
    }
    if own.is_empty() {
        return Err(refused(
            "The ProxyGroup's spec.tailyard.serviceCIDRs has no prefix of the family of this Service's address in the cluster: add one.",
        ));
    }
    // Only now: a Service that is refused takes none.
    taken.extend(&own);
    Ok(own.iter().map(ToString::to_string).collect())
}

/// Addresses of a prefix except the network address.
fn usable(net: &IpNet) -> impl Iterator<Item = IpAddr> + use<> {
    let (own, is_single_address) = (net.network(), net.prefix_len() == net.max_prefix_len());
    net.hosts().filter(move |ip| is_single_address || *ip != own)
}

impl IngressPlan<'_> {
    /// Routes for a replica's config.
    pub(crate) fn routes(&self, work: &Pass<'_>, shape: &RenderContext<'_>, replica: &ObservedReplica) -> BTreeSet<String> {
        let advertised: BTreeSet<&str> = replica.config.iter().flat_map(|config| config.routes()).collect();
        let unknown = self.items.iter().filter(|(_, item)| matches!(item.state, ServiceState::Unknown)).map(|(name, _)| name);
        let staying = self.unchanged.iter().chain(unknown).flat_map(|name| self.recorded_routes(name));
        let staying = staying.filter(|route| advertised.contains(route.as_str()));
        let items = self.items.iter().filter_map(|(name, item)| match &item.state {
            ServiceState::ByRoute(own) if self.ready(work, shape, replica, (name, item), own) => Some(routes(own)),
            _ => None,
        });
        items.flatten().chain(staying).collect()
    }

    pub(crate) fn recorded_routes(&self, name: &str) -> BTreeSet<String> {
        self.before.mappings.get(name).map(mapped_routes).unwrap_or_default()
    }

    /// Routes of a withdrawn name, except those of another name.
    pub(crate) fn former_routes(&self, name: &str) -> BTreeSet<String> {
        let mut former = self.recorded_routes(name);
        let now = |item: &Item| if let ServiceState::ByRoute(own) = &item.state { routes(own) } else { BTreeSet::new() };
        for route in self.items.values().flat_map(now) {
            former.remove(&route);
        }
        former
    }

    /// Approves the routes of the replicas' configs and withdraws those of `gone`, and those of lost replicas that others serve.
    pub(crate) fn approve(&self, work: &mut PlanPart<'_>, shape: &RenderContext<'_>, gone: &BTreeSet<String>) {
        if !lacks_services(work) {
            return;
        }
        let observed = work.observed;
        let former: BTreeSet<String> = gone.iter().flat_map(|name| self.former_routes(name)).collect();
        for (ordinal, replica) in observed.replicas.range(..shape.spec.replicas) {
            // A replica with a record claims the recorded device.
            let Some(record) = replica.device() else { continue };
            let approved = observed.publish.approved.get(&record.id);
            let lost = replica.pod.as_deref().is_some_and(is_lost);
            // headscale moves a route to another device at once if its approval goes; it detects an offline device by itself only later.
            let withdrawn = if lost { served_by_others(work, shape.spec.replicas, *ordinal) } else { BTreeSet::new() };
            let add = &self.routes(work, shape, replica) - &withdrawn;
            let age = approved.map(|current| elapsed(current.at, observed.now));
            let lacks = approved.is_none_or(|existing| !add.is_subset(&existing.routes));
            let remove: BTreeSet<String> =
                former.union(&withdrawn).filter(|route| approved.is_none_or(|entry| entry.routes.contains(*route))).cloned().collect();
            if !remove.is_empty() || (!add.is_empty() && (lacks || age.is_some_and(|age| age >= MAX_CONTROL_DATA_AGE))) {
                let device = claimed_device(work, *ordinal, replica);
                work.plan.control.extend(device.map(|device| ControlAction::ApproveRoutes { ordinal: *ordinal, device, add, remove }));
            } else if let Some(age) = age.filter(|_| !add.is_empty()) {
                work.again(MAX_CONTROL_DATA_AGE.saturating_sub(age));
            }
        }
    }
}

/// Routes that a replica serves: it gets traffic, advertises them, and they are approved for it.
fn served(work: &Pass<'_>, replica: &ObservedReplica) -> BTreeSet<String> {
    let state = replica.state.as_ref().filter(|_| live(replica));
    let approved = replica.device().and_then(|record| work.observed.publish.approved.get(&record.id));
    state.zip(approved).map(|(state, approved)| &state.routes & &approved.routes).unwrap_or_default()
}

fn served_by_others(work: &Pass<'_>, replicas: u32, ordinal: u32) -> BTreeSet<String> {
    let others = work.observed.replicas.range(..replicas).filter(|(other, _)| **other != ordinal);
    others.flat_map(|(_, replica)| served(work, replica)).collect()
}

/// Whether a replica gets traffic, advertises these addresses as routes, and they are approved for it.
pub(crate) fn reached(work: &Pass<'_>, replica: &ObservedReplica, own: &[String]) -> bool {
    live(replica) && routes(own).is_subset(&served(work, replica))
}

/// Whether the approval of a replica's advertised addresses was not read yet.
pub(crate) fn approval_unread(work: &Pass<'_>, replicas: u32, own: &[String]) -> bool {
    let routes = routes(own);
    work.observed.replicas.range(..replicas).filter(|(_, replica)| live(replica)).any(|(_, replica)| {
        let state = replica.state.as_ref().filter(|state| routes.is_subset(&state.routes));
        state.and_then(|_| replica.device()).is_some_and(|record| !work.observed.publish.approved.contains_key(&record.id))
    })
}

/// Why the control plane does not approve a replica's routes, with an action for administrators.
pub(crate) fn denied(work: &Pass<'_>, replicas: u32, own: &[String]) -> Option<Rejection> {
    let devices = work.observed.replicas.range(..replicas).filter_map(|(_, replica)| Some(&replica.device()?.id));
    let routes = routes(own).into_iter().collect::<Vec<_>>().join(",");
    let mut denied = devices.filter_map(|id| Some((id, work.observed.denied.get(&format!("the routes of device {id}"))?)));
    denied.next().map(|(id, denial)| {
        let message = format!(
            "The control plane does not lead {routes} to the replicas. {} Approve it there (headscale nodes approve-routes --identifier {id} \
             --routes {routes}, for each replica and with what it has already), or by {AUTO_APPROVERS}.routes in the policy.",
            denial.why
        );
        Rejection::new("RouteNotApproved", message)
    })
}
