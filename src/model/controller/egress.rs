//! Egress Services of a group: child Services and the egress config.
//!
//! A child is the record of its ports: it is created before the config names them and deleted before the config drops them. Conditions and
//! `externalName` of users' Services: [`services`].

pub mod acks;
pub mod capacity;
pub mod claims;
pub mod memo;
pub mod quota;
pub mod services;
pub mod slices;
pub mod validate;

use crate::api::egress;
use crate::model::controller::egress::claims::claims;
use crate::model::controller::workload::observed::ChildOwner;
use std::sync::Arc;
use std::time::Duration;

use crate::api::condition::{EGRESS_SVC_READY, TRUE};
use crate::api::names;
use crate::model::base::conditions;
use crate::model::controller::egress::acks::{AckSummary, ReplicaAcks};
use crate::model::controller::egress::claims::{ServiceClaim, ServiceRole};
use crate::model::controller::egress::memo::{Entries, Memory, ServedService};
use crate::model::controller::egress::services::{ServiceOutcome, ServingChild, host};
use crate::model::controller::policy::tenancy::Tenancy;
use crate::model::controller::workload::match_ports::MatchPorts;
use crate::model::controller::workload::objects::child::ChildService;
use crate::model::controller::workload::objects::services::{egress_config_ref, next_port};
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::objects::{Kind, ObjectRef, Owner};
use crate::model::controller::workload::part::{PlanPart, object_conflict};
use crate::model::controller::workload::pass::Pass;
use crate::model::controller::workload::readiness;

/// New children of one pass, unless a quarter of the group's Services is more: so that a group of any size is created by few passes.
const MIN_NEW_CHILDREN: usize = 128;

/// Plans children, config and status of all egress Services.
pub(crate) fn egress<'a>(pass: &Pass<'a>, shape: &RenderContext<'_>, memory: &mut Memory) -> PlanPart<'a> {
    let mut part = pass.part();
    let work = &mut part;
    let tenancy = Tenancy::of(shape.spec.tenants, shape.settings.tenancy, &work.observed.namespaces);
    memory.on(shape, &tenancy);
    let mut claims = claims(pass.observed, memory);
    quota::deny(&mut claims, &tenancy, &shape.owner.name);
    let observed = work.owned(&egress_config_ref(&shape.owner));
    let plain = |claim: &ServiceClaim<'_>| claim.role == ServiceRole::Serve && claim.object.is_some();
    // Parsed only if needed.
    let before = if claims.iter().all(plain) { Arc::default() } else { memory.before(observed) };
    let mut ports = MatchPorts::new(shape.ports(), shape.reserved(), observed.and_then(|existing| next_port(existing)));
    // Existing Services come before new ones, and unchangeable ones before the others.
    for first in [true, false] {
        for claim in claims.iter_mut().filter(|claim| (claim.role != ServiceRole::Serve) == first) {
            claim.keep(work.observed.key.group_name(), &before, &mut ports);
        }
    }
    let exceeding = quota::exceeding(&claims, &tenancy, &shape.owner.name);
    let mut outcomes = outcomes(work, &claims, |work, claim| match exceeding.get(&claim.key) {
        Some(why) => ServiceOutcome::Refused(why.clone()),
        None => one(work, shape, claim, &mut ports),
    });
    let mut entries: Arc<Entries> = Arc::new(claims.iter().zip(&outcomes).filter_map(|both| named(both, &before)).collect());
    let mut config = memory.config(&shape.owner, &entries, shape.spec.replicas, ports.next());
    let adds = || {
        let before = memory.before(observed);
        entries.keys().any(|name| !before.contains_key(name))
    };
    let is_short = capacity::is_short(&config, shape.stock(), adds);
    let fitting = || capacity::fitting(&claims, &memory.before(observed), (&entries, &config), shape);
    if let Some(fitting) = is_short.then(fitting).flatten() {
        entries = Arc::new(fitting);
        capacity::refuse(work, &claims, &entries, &mut outcomes, shape.stock());
        // Ports of rejected Services are not used: the next search starts at the same place.
        let next = observed.and_then(|found| next_port(found)).unwrap_or(ports.next());
        config = memory.config(&shape.owner, &entries, shape.spec.replicas, next);
    }
    if outcomes.iter().any(|outcome| matches!(outcome, ServiceOutcome::Later)) {
        work.again(Duration::ZERO);
    }
    let written = memory.has_config(observed) || work.write(config.manifest());
    let replica_acks = ReplicaAcks::of(work.observed, shape.spec.replicas, config.fingerprint().to_owned());
    update_statuses(work, memory, (claims, outcomes), written, replica_acks);
    slices::slices(work, &shape.owner);
    part
}

/// Plans the Services. Of many new ones the oldest come first, and only as many as are served soon.
fn outcomes<'a>(
    work: &mut PlanPart<'_>,
    claims: &[ServiceClaim<'a>],
    mut plan: impl FnMut(&mut PlanPart<'_>, &ServiceClaim<'a>) -> ServiceOutcome,
) -> Vec<ServiceOutcome> {
    // Ports in the config: the child was deleted by others, and replicas still serve it.
    let is_new = |claim: &ServiceClaim<'_>| claim.role == ServiceRole::Serve && claim.object.is_none() && claim.reserved.is_empty();
    let existing = |claim| if is_new(claim) { ServiceOutcome::Later } else { plan(work, claim) };
    let mut outcomes: Vec<_> = claims.iter().map(existing).collect();
    let mut new: Vec<_> = (0..claims.len()).filter(|at| is_new(&claims[*at])).collect();
    new.sort_by_key(|at| (claims[*at].age(), claims[*at].key));
    let most = work.plan.apply.len() + MIN_NEW_CHILDREN.max(claims.len() / 4);
    for at in new {
        if work.plan.apply.len() >= most {
            break;
        }
        outcomes[at] = plan(work, &claims[at]);
    }
    outcomes
}

/// Config entry of a Service, if any: the previous one if the new one is not served.
fn named((claim, outcome): (&ServiceClaim<'_>, &ServiceOutcome), before: &Entries) -> Option<(Arc<str>, Arc<egress::EgressService>)> {
    let entry = match (outcome, &claim.served) {
        (ServiceOutcome::Known, Some(served)) => &served.entry,
        (ServiceOutcome::Served(serving), _) => &serving.entry,
        _ => claim.object.and_then(|_| before.get(&claim.name))?,
    };
    Some((Arc::clone(&claim.name), Arc::clone(entry)))
}

/// Updates the users' Services and remembers the results.
fn update_statuses(
    work: &mut PlanPart<'_>,
    memory: &mut Memory,
    (claims, outcomes): (Vec<ServiceClaim<'_>>, Vec<ServiceOutcome>),
    written: bool,
    replica_acks: ReplicaAcks,
) {
    let pending = claims.iter().filter(|claim| claim.served.is_none()).count();
    let context = services::ReportContext { written, same: memory.matches(&replica_acks), replica_acks: &replica_acks };
    let mut served = Vec::with_capacity(claims.len());
    for (claim, outcome) in claims.into_iter().zip(outcomes) {
        let acks = services::update_status(work, &claim, &outcome, &context);
        served.extend(remembered(claim, outcome, acks));
    }
    memory.keep(served, pending, replica_acks);
}

/// Result to remember for a served Service with an up-to-date child.
fn remembered(claim: ServiceClaim<'_>, outcome: ServiceOutcome, acks: Option<AckSummary>) -> Option<Arc<ServedService>> {
    match (outcome, claim.served, claim.service, claim.object) {
        (ServiceOutcome::Known, Some(served), ..) if served.acks == acks => Some(served),
        (ServiceOutcome::Known, Some(served), ..) => Some(Arc::new(ServedService { acks, ..(*served).clone() })),
        (ServiceOutcome::Served(ServingChild { child, entry, settled: true }), _, Some(service), Some(object)) => {
            let (service, object, name) = (Arc::clone(service), Arc::clone(object), claim.name);
            (name == claims::plain(claim.key)).then(|| Arc::new(ServedService { service, object, child, entry, name, acks }))
        }
        _ => None,
    }
}

/// Plans one child, or its deletion.
fn one(work: &mut PlanPart<'_>, shape: &RenderContext<'_>, claim: &ServiceClaim<'_>, ports: &mut MatchPorts) -> ServiceOutcome {
    for object in &claim.surplus {
        work.delete(object);
    }
    match claim.role {
        ServiceRole::Serve if claim.served.is_some() => return ServiceOutcome::Known,
        ServiceRole::Serve => {}
        ServiceRole::Hold => return ServiceOutcome::Held,
        ServiceRole::Moved if !retired(work, claim) => return ServiceOutcome::Held,
        ServiceRole::Moved | ServiceRole::Release => {
            release(work, claim);
            return ServiceOutcome::Released;
        }
    }
    // Before a port is taken: a Service without child uses none.
    if let Some(conflict) = name_conflict(work, &shape.owner, claim) {
        let object = ObjectRef::new(Kind::Service, &shape.owner.namespace, claims::name_of_child(work.observed, claim));
        if work.foreign(&object) {
            work.faults.push(object_conflict(&shape.owner, &object));
        }
        return ServiceOutcome::Refused(conflict);
    }
    let Some((child, service)) = claims::child(work.observed, claim, ports, shape).zip(claim.service) else {
        let range = shape.ports();
        return ServiceOutcome::Refused(format!(
            "Range {range} has fewer free ports than the Service needs: widen spec.tailyard.matchPortRange of the ProxyGroup, or use another group."
        ));
    };
    let settled = claim.object.is_some_and(|existing| child.holds(existing)) || work.write(child.manifest());
    let entry = Arc::new(entry(work, service, &child));
    ServiceOutcome::Served(ServingChild { child: Arc::new(child), entry, settled })
}

/// Why a Service cannot have its child: an object of that name exists, or is planned for an older Service.
fn name_conflict(work: &PlanPart<'_>, owner: &Owner, claim: &ServiceClaim<'_>) -> Option<String> {
    let name = claims::name_of_child(work.observed, claim);
    let (namespace, service) = claim.key;
    let of_another =
        |child: &ChildOwner| child.key != owner.key || (child.parent.0.as_str(), child.parent.1.as_str()) != (namespace, service);
    let object = ObjectRef::new(Kind::Service, &owner.namespace, name.as_str());
    let is_taken = work.observed.children.get(name.as_str()).is_some_and(of_another)
        || (claim.object.is_none() && work.is_planned(&object))
        || work.foreign(&object);
    is_taken.then(|| format!("{object} already exists and does not belong to this Service. Delete it, or rename the Service."))
}

/// Deletes the child of a Service that is no longer requested.
pub(crate) fn release(work: &mut PlanPart<'_>, claim: &ServiceClaim<'_>) {
    if let Some(record) = &claim.record {
        let object = ObjectRef::new(Kind::Service, &work.owner.namespace, record.name);
        work.delete(&object);
    }
}

/// Releases Services that are no longer requested, and reports to the others why they are not served, if the report is ours.
pub(crate) fn without<'a>(pass: &Pass<'a>, memory: &Memory, why: Option<&str>) -> PlanPart<'a> {
    let mut work = pass.part();
    for claim in &claims(pass.observed, memory) {
        match (claim.role, claim.service) {
            (ServiceRole::Serve | ServiceRole::Hold, service) => {
                let Some((why, service)) = why.zip(service) else { continue };
                let assignment = pass.observed.assignment.egress(service);
                if assignment.is_faulty() {
                    services::invalid(&mut work, claim.key, service, claim);
                } else {
                    services::waiting(&mut work, claim, service, &assignment.message(&pass.owner.name, why));
                }
            }
            (ServiceRole::Moved, _) => {}
            (ServiceRole::Release, service) => {
                release(&mut work, claim);
                if let Some(service) = service {
                    services::released(&mut work, service, claim);
                }
            }
        }
    }
    work
}

/// Whether a moved Service's `externalName` has pointed elsewhere for longer than DNS caches keep the old answer.
fn retired(work: &mut PlanPart<'_>, claim: &ServiceClaim<'_>) -> bool {
    let (Some(service), Some(record)) = (claim.service, &claim.record) else { return true };
    let name = services::external_name(service);
    let ready = conditions::of_service(service, EGRESS_SVC_READY).filter(|ready| ready.status == TRUE);
    let Some(ready) = ready.filter(|_| name != host(work, record.name)) else { return false };
    let linger = work.observed.settings.linger;
    let since = readiness::elapsed(ready.last_transition_time.0, work.observed.now);
    if since < linger {
        work.again(linger.saturating_sub(since));
    }
    since >= linger
}

fn entry(work: &Pass<'_>, service: &k8s_openapi::api::core::v1::Service, child: &ChildService) -> egress::EgressService {
    let text = |key: &str| crate::model::controller::egress::validate::annotation(service, key).unwrap_or_default().to_owned();
    let port = |port: &crate::model::controller::workload::objects::child::ChildPort| egress::PortMap {
        protocol: port.protocol.to_owned(),
        match_port: port.match_port.into(),
        target_port: port.port.into(),
    };
    egress::EgressService {
        health_check_endpoint: format!("http://{}:{}/healthz", host(work, &child.name), child.health),
        tailnet_target: egress::EgressTarget { ip: text(names::TAILNET_IP), fqdn: text(names::TAILNET_FQDN) },
        ports: child.ports.iter().map(port).collect(),
    }
}
