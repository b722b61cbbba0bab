//! Status of advertised objects: conditions of Services, `status.loadBalancer`, Events and the finalizer.
//!
//! An Ingress has no conditions: its faults are Events, repeated while they last. Unchanged status is not written.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};

use crate::api::condition::{INGRESS_SVC_CONFIGURED, INGRESS_SVC_VALID, reason};
use crate::api::names;
use crate::api::routes::Listener;
use crate::model::base::conditions::ConditionStatus;
use crate::model::controller::ingress::advertise::{live, serves};
use crate::model::controller::ingress::claims::{IngressClaim, subject};
use crate::model::controller::ingress::config::node_site;
use crate::model::controller::ingress::faults::{beside, fault, remark, unadvertised};
use crate::model::controller::ingress::items::{IngressPlan, Item, ServiceState};
use crate::model::controller::ingress::rejection::Rejection;
use crate::model::controller::ingress::routes;
use crate::model::controller::ingress::service_state::is_device;
use crate::model::controller::ingress::spec::{L4Service, PublishTarget, service_name};
use crate::model::controller::ingress::summary::{Extent, SummaryBuilder};
use crate::model::controller::key::PublishSource;
use crate::model::controller::policy::requests::Parent;
use crate::model::controller::workload::actions::ObjectUpdate;
use crate::model::controller::workload::finalizers;
use crate::model::controller::workload::objects::compare::covers;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::observed::TailnetState;
use crate::model::controller::workload::observed::replica::ObservedReplica;
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::Pass;
use crate::model::controller::workload::service_conditions::ServiceConditions;

impl IngressPlan<'_> {
    /// Updates the status of all objects; `gone` are fully withdrawn names.
    pub(crate) fn report(&self, work: &mut PlanPart<'_>, shape: &RenderContext<'_>, gone: &BTreeSet<String>) {
        let mut summary = SummaryBuilder::default();
        for claim in &self.claims {
            let item = self.items.get(&service_name(&claim.label)).filter(|item| claim.is_requested && item.claimant == claim.claimant);
            match item {
                Some(item) => Self::published(work, shape, (claim, item), &mut summary),
                None if claim.ours => {
                    // The proxy of an Ingress exists before its name.
                    let remaining = work.observed.key.is_standalone()
                        || claim.recorded.iter().any(|name| !gone.contains(name))
                        || work.observed.publish.served_by_others.contains(&claim.claimant);
                    let refused = self.refused.get(&claim.claimant);
                    if claim.is_requested {
                        summary.name(&claim.claimant, refused.map(|refused| (Extent::Whole, refused)), false);
                        report_fault(work, claim, refused);
                    }
                    unserved(work, claim, refused, remaining);
                }
                None => {}
            }
        }
        summary.write(work);
        if !work.observed.key.is_standalone() {
            let new = self.items.iter().filter(|(name, _)| !self.recorded(name));
            work.plan.new_names.extend(new.map(|(_, item)| item.spec.label.clone()));
        }
        let refused = self.refused.iter().filter(|(_, refused)| refused.is_final());
        work.plan.refused.extend(refused.map(|(claimant, _)| claimant.clone()));
    }

    fn published(
        work: &mut PlanPart<'_>,
        shape: &RenderContext<'_>,
        (claim, item): (&IngressClaim<'_>, &Item),
        summary: &mut SummaryBuilder,
    ) {
        let name = service_name(&item.spec.label);
        // The object's own proxy gives up the name at the finalizer: not for a group without a ready replica.
        let accepts = !is_device(work, &name) || work.observed.replicas.values().any(live);
        let finalized = accepts || finalizers::has(claim.object.metadata(), claim.finalizer);
        summary.certificates(work, &shape.owner, item);
        // An unavailable control plane is not waited for.
        let is_awaited =
            || matches!(item.state, ServiceState::ByRoute(_)) || !matches!(work.observed.tailnet, TailnetState::Unavailable(_));
        let is_undecided = undecided(work, shape, item) && is_awaited();
        let serving = serving(work, shape, item, &name);
        let fault = fault(work, shape, item, &name);
        let remark = remark(work, shape, item, &name);
        let status = match &item.state {
            _ if is_undecided => balancer(claim),
            // The name stays while the Pod is replaced.
            ServiceState::Device if serving == 0 => balancer(claim),
            _ if !balances(claim.object) => balancer(claim),
            _ if serving > 0 => Self::status(work, shape, item),
            _ => json!({}),
        };
        let status = if status == json!({}) && moves(work, claim) { balancer(claim) } else { status };
        let conditions = conditions(work, claim).filter(|_| !is_undecided).and_then(|mut conditions| {
            conditions.set(INGRESS_SVC_VALID, ConditionStatus::True, "IngressSvcValid", "The Service is valid.".to_owned());
            let (status, reason, message) = configured(serving, shape.spec.replicas, fault.as_ref(), &beside(work, item, &name, serving));
            conditions.set(INGRESS_SVC_CONFIGURED, status, reason, message);
            conditions.changed()
        });
        let waits = unadvertised(work, shape, (claim, item), (&status, serving)).filter(|_| fault.is_none());
        let waits = waits.as_ref().map(|waits| (Extent::Nothing, waits));
        let shown = fault.as_ref().map(|fault| (Extent::Whole, fault)).or(remark.as_ref().map(|(extent, remark)| (*extent, remark)));
        if is_undecided {
            summary.unknown();
        } else {
            summary.name(&claim.claimant, shown.or(waits), serving > 0 && waits.is_none());
        }
        // A Service whose state is not known yet has its previous conditions.
        let is_reported = !is_undecided || matches!(claim.object, Parent::Ingress(_));
        for (_, fault) in shown.into_iter().chain(waits).filter(|_| is_reported) {
            report_fault(work, claim, Some(fault));
        }
        update(work, claim, finalized, conditions, status);
    }

    /// `status.loadBalancer` of an advertised object.
    fn status(work: &Pass<'_>, shape: &RenderContext<'_>, item: &Item) -> Value {
        match (&item.spec.target, &item.state) {
            (PublishTarget::Site(_), ServiceState::Unsupported) => node_status(work, shape, item),
            (PublishTarget::Site(site), _) => {
                let certified = work.observed.is_certified(&item.dns);
                // Our replicas redirect only to ports with a certificate.
                let plain = |port: &u16, listener: &Listener| match item.state {
                    ServiceState::Device => *listener == Listener::Http,
                    _ => *port != 443,
                };
                let shown = site.listeners.iter().rev().filter(|(port, listener)| certified || plain(port, listener));
                let ports: Vec<_> = shown.map(|(port, _)| json!({"port": port, "protocol": "TCP"})).collect();
                if ports.is_empty() { json!({}) } else { json!({"ingress": [{"hostname": item.dns, "ports": ports}]}) }
            }
            (PublishTarget::Whole(whole), ServiceState::ByRoute(own)) => {
                // A ClusterIP is not an external address.
                let in_cluster = |ip: &String| ip.parse().is_ok_and(|ip| whole.addresses.contains(&ip));
                let entries: Vec<_> = own.iter().filter(|ip| !in_cluster(ip)).map(|ip| json!({"ip": ip})).collect();
                if entries.is_empty() { json!({}) } else { json!({"ingress": entries}) }
            }
            (PublishTarget::Whole(whole), state) => {
                let own = if let ServiceState::Owned(own) = state { own.as_slice() } else { &[] };
                let mut ips = mapped(own, whole).into_iter();
                let first = ips.next().map_or_else(|| json!({"hostname": item.dns}), |ip| json!({"hostname": item.dns, "ip": ip}));
                json!({"ingress": std::iter::once(first).chain(ips.map(|ip| json!({"ip": ip}))).collect::<Vec<_>>()})
            }
        }
    }
}

/// Addresses of a Tailscale Service that are forwarded, in the order of the Service's families. A DNS name may lack a family, so only the first
/// one is shown for it.
fn mapped<'a>(own: &'a [String], whole: &L4Service) -> Vec<&'a String> {
    let of_family = |is_v4: bool| own.iter().find(|own| own.parse::<IpAddr>().is_ok_and(|own| own.is_ipv4() == is_v4));
    if whole.external_name.is_empty() {
        return whole.addresses.iter().filter_map(|ip| of_family(ip.is_ipv4())).collect();
    }
    of_family(true).or(own.first()).into_iter().collect()
}

fn report_fault(work: &mut PlanPart<'_>, claim: &IngressClaim<'_>, fault: Option<&Rejection>) {
    if let Some(Rejection { reason, message }) = fault {
        work.lasting(subject(&claim.claimant), reason, message.clone());
    }
}

/// Whether the state of a name still depends on a control plane request.
fn undecided(work: &Pass<'_>, shape: &RenderContext<'_>, item: &Item) -> bool {
    match &item.state {
        ServiceState::Unknown => true,
        ServiceState::ByRoute(own) => {
            routes::denied(work, shape.spec.replicas, own).is_none() && routes::approval_unread(work, shape.spec.replicas, own)
        }
        _ => false,
    }
}

/// Number of replicas that serve a name.
pub(crate) fn serving(work: &Pass<'_>, shape: &RenderContext<'_>, item: &Item, name: &str) -> usize {
    let node = matches!(item.state, ServiceState::Unsupported | ServiceState::Device) && node_site(item).is_some();
    let serves = |replica: &ObservedReplica| match &item.state {
        ServiceState::ByRoute(own) => routes::reached(work, replica, own),
        _ if node => live(replica),
        _ => serves(replica, name),
    };
    work.observed.replicas.range(..shape.spec.replicas).filter(|(_, replica)| serves(replica)).count()
}

/// The conditions of a Service; `None` for an Ingress, which has none.
fn conditions<'a>(work: &Pass<'_>, claim: &IngressClaim<'a>) -> Option<ServiceConditions<'a>> {
    let Parent::Service(service) = claim.object else { return None };
    Some(ServiceConditions::new(work, service))
}

/// Status, reason and message of [`INGRESS_SVC_CONFIGURED`].
fn configured(serving: usize, wanted: u32, fault: Option<&Rejection>, beside: &str) -> (ConditionStatus, &'static str, String) {
    let counts = format!("{serving}/{wanted} proxy backends ready and advertising{beside}");
    match fault {
        Some(fault) => (ConditionStatus::False, fault.reason, fault.message.clone()),
        None if serving > 0 => (ConditionStatus::True, reason::INGRESS_SVC_CONFIGURED, counts),
        None => (ConditionStatus::False, reason::INGRESS_SVC_NO_BACKENDS, counts),
    }
}

/// Updates the status of an object without an advertised name; `remaining`: a part still exists.
pub(crate) fn unserved(work: &mut PlanPart<'_>, claim: &IngressClaim<'_>, refused: Option<&Rejection>, remaining: bool) {
    let conditions = conditions(work, claim).and_then(|mut conditions| {
        conditions.remove(INGRESS_SVC_CONFIGURED);
        match refused {
            Some(Rejection { reason, message }) => {
                let invalid = matches!(*reason, reason::INGRESS_SVC_INVALID | reason::NAME_CONFLICT);
                let (status, reason) =
                    if invalid { (ConditionStatus::False, reason::INGRESS_SVC_INVALID) } else { (ConditionStatus::Unknown, *reason) };
                conditions.set(INGRESS_SVC_VALID, status, reason, message.clone())
            }
            None => conditions.remove(INGRESS_SVC_VALID),
        };
        conditions.changed()
    });
    // The address of the last valid config stays while it is served.
    let balancer = if remaining || moves(work, claim) { balancer(claim) } else { foreign_balancer(claim.object) };
    update(work, claim, remaining, conditions, balancer);
}

/// Whether the other side has a part of an object that moves between a group and a proxy of its own: its address stays meanwhile.
fn moves(work: &Pass<'_>, claim: &IngressClaim<'_>) -> bool {
    let other = if work.observed.key.is_standalone() { claim.claimant.source.finalizer() } else { names::FINALIZER };
    finalizers::has(claim.object.metadata(), other)
}

/// Whether the API accepts an address in the status of such an object, and no other load balancer class writes it.
fn balances(object: Parent<'_>) -> bool {
    match object {
        Parent::Ingress(_) => true,
        Parent::Service(service) => service.spec.as_ref().is_some_and(|spec| {
            let class = spec.load_balancer_class.as_deref();
            spec.type_.as_deref() == Some("LoadBalancer") && class.is_none_or(|class| class == names::LOAD_BALANCER_CLASS)
        }),
    }
}

/// `status.loadBalancer` without our addresses: the controller of another class writes its own as soon as the object has that class. Those of
/// an Ingress are ours if they have a host name, ports and no IP address.
pub(crate) fn foreign_balancer(object: Parent<'_>) -> Value {
    let existing = balancer_of(object);
    let is_ours = |entry: &Value| entry["ip"].is_null() && entry["hostname"].is_string() && entry["ports"].is_array();
    match object {
        Parent::Service(_) if balances(object) => json!({}),
        Parent::Service(_) => existing,
        Parent::Ingress(_) => {
            let entries = existing["ingress"].as_array().into_iter().flatten();
            let foreign: Vec<_> = entries.filter(|entry| !is_ours(entry)).collect();
            if foreign.is_empty() { json!({}) } else { json!({ "ingress": foreign }) }
        }
    }
}

/// Whether the status has the desired content; the API adds fields for a Service.
fn same(source: PublishSource, existing: &Value, wanted: &Value) -> bool {
    if source == PublishSource::Ingress {
        return existing == wanted;
    }
    let count = |status: &Value| status["ingress"].as_array().map_or(0, Vec::len);
    count(existing) == count(wanted) && covers(existing, wanted)
}

/// `status.loadBalancer` of a virtual host on the replicas' own addresses.
fn node_status(work: &Pass<'_>, shape: &RenderContext<'_>, item: &Item) -> Value {
    let Some(site) = node_site(item) else { return json!({}) };
    let ports: Vec<_> = site.listeners.keys().rev().map(|port| json!({"port": port, "protocol": "TCP"})).collect();
    let live = work.observed.replicas.range(..shape.spec.replicas).filter(|(_, replica)| live(replica));
    let names = live.filter_map(|(_, replica)| replica.device_name());
    let entries: Vec<_> = names.map(|name| json!({"hostname": name.as_str(), "ports": ports})).collect();
    json!({"ingress": entries})
}

/// Observed `status.loadBalancer`.
fn balancer(claim: &IngressClaim<'_>) -> Value {
    balancer_of(claim.object)
}

pub(crate) fn balancer_of(object: Parent<'_>) -> Value {
    let balancer = match object {
        Parent::Ingress(ingress) => ingress.status.as_ref().map(|status| json!(status.load_balancer)),
        Parent::Service(service) => service.status.as_ref().map(|status| json!(status.load_balancer)),
    };
    balancer.filter(|balancer| !balancer.is_null()).unwrap_or_else(|| json!({}))
}

/// Plans finalizer, conditions and status of an object. Without `conditions` they stay unchanged.
fn update(work: &mut PlanPart<'_>, claim: &IngressClaim<'_>, finalized: bool, conditions: Option<Vec<Condition>>, wanted: Value) {
    let (source, metadata) = (claim.claimant.source, claim.object.metadata());
    // An object that is being deleted gets no new finalizer.
    let finalized = finalized && (finalizers::has(metadata, claim.finalizer) || metadata.deletion_timestamp.is_none());
    let load_balancer = (!same(source, &balancer(claim), &wanted)).then_some(wanted);
    let update = ObjectUpdate::new(source, metadata, claim.finalizer, finalized);
    work.plan.update(ObjectUpdate { conditions, load_balancer, ..update });
}
