//! Objects of a ProxyGroup in the order of their creation, and the deletion of a group.
//!
//! A fault in one part is reported and does not affect the others. No object is deleted before those that need it.

use crate::api::condition::reason;
use crate::api::names;
use crate::api::proxygroup::ProxyGroup;
use crate::model::controller::egress::claims::{ServiceRole, claims};
use crate::model::controller::egress::services;
use crate::model::controller::kinds::proxygroup::{status, validate};
use crate::model::controller::workload::actions::GroupUpdate;
use crate::model::controller::workload::builder::GroupPass;
use crate::model::controller::workload::objects::metrics::metrics_refs;
use crate::model::controller::workload::objects::rbac::rbac;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::objects::{Kind, ObjectRef, Owner};
use crate::model::controller::workload::observed::TailnetState;
use crate::model::controller::workload::provision::{POLL_INTERVAL, WAITS, class, denials, pods};
use crate::model::controller::workload::spec::WorkloadSpec;
use crate::model::controller::workload::{finalizers, replicas, static_endpoints as endpoints};
use crate::model::controller::{egress, ingress};

/// Plans all objects of a group.
pub(crate) fn provision<'a>(work: &mut GroupPass<'a>, group: &ProxyGroup, spec: &'a WorkloadSpec<'a>) {
    let observed = work.observed;
    let (usable, class) = class(work);
    let wanted = spec.replicas;
    let mut shape = RenderContext::new(work.owner(), spec, class, &observed.settings);
    shape.present = observed.replicas.keys().next_back().map_or(0, |last| last + 1).max(wanted);
    shape.wireguard = endpoints::wireguard(work, &shape);
    let plan = shape.role().serves_sites.then(|| ingress::plan(work, &shape));
    if let Some(plan) = &plan {
        shape.certificates = plan.certificates(work, &shape.owner);
        shape.own_certificates = plan.own_certificates();
        shape.node_sites = ingress::node_sites(work, &shape.owner);
    }
    let wrong = validate::group(group, &shape);
    let whole = usable && wrong.is_none();
    if let Some(wrong) = wrong {
        work.fault(reason::PROXY_GROUP_INVALID, wrong);
    }
    finalizer(work, group, true);
    status::tailnet(work, group);
    if whole {
        for manifest in rbac(&shape) {
            work.want(&shape.owner, manifest);
        }
        if let Some(plan) = &plan {
            plan.endpoints(work, &shape);
        }
        let endpoints = endpoints::endpoints(work, &shape);
        replicas::secrets(work, &shape, &endpoints, plan.as_ref());
    }
    if let Some(plan) = plan {
        without(work, &shape.owner, Some("is not of type egress: name a group that is."));
        plan.carry(work, &shape);
    } else {
        egress::egress(work, &shape);
        ingress::teardown::elsewhere(work, "is of type egress, which publishes nothing: name one of type ingress.");
    }
    if whole {
        pods(work, &shape);
    }
    replicas::remove_replicas(work, &shape.owner, wanted);
    denials(work, "");
    status::status(work, group, wanted);
}

fn finalizer(work: &mut GroupPass<'_>, group: &ProxyGroup, wanted: bool) {
    if let Some(finalizers) = finalizers::change(&group.metadata, names::FINALIZER, wanted) {
        work.pass.group.get_or_insert_with(GroupUpdate::default).finalizers = Some(finalizers);
    }
}

/// Deletes a group: its Pods, then its devices, then its finalizer. The garbage collector deletes the rest.
pub(crate) fn end(work: &mut GroupPass<'_>, group: &ProxyGroup) {
    let owner = work.owner();
    without(work, &owner, Some("is being deleted: name another group."));
    work.delete(&owner, &ObjectRef::new(Kind::StatefulSet, &owner.namespace, owner.name.clone()));
    let unpublished = ingress::teardown::end(work, &owner);
    if replicas::remove_replicas(work, &owner, 0) && unpublished {
        for object in metrics_refs(&owner) {
            work.delete(&owner, &object);
        }
        endpoints::surplus(work, &owner, 0);
        finalizer(work, group, false);
        return;
    }
    if let TailnetState::Unavailable(why) = &work.observed.tailnet {
        work.fault(reason::PROXY_GROUP_TAILNET_UNAVAILABLE, format!("{why}{WAITS}"));
    }
    denials(work, WAITS);
    if !work.faults.is_empty() {
        status::status(work, group, 0);
        work.again(POLL_INTERVAL);
    }
}

/// Handles Services that name no usable group.
pub(crate) fn orphans(work: &mut GroupPass<'_>) {
    const MISSING: &str = "does not exist: make it, or name another group.";
    let owner = work.owner();
    without(work, &owner, Some(MISSING));
    ingress::teardown::orphans(work, MISSING);
}

/// Releases Services that are no longer requested, and reports to the others why they are not served, if the report is ours.
pub(crate) fn without(work: &mut GroupPass<'_>, owner: &Owner, why: Option<&str>) {
    for claim in &claims(work.observed, work.memory) {
        match (claim.role, claim.service) {
            (ServiceRole::Serve | ServiceRole::Hold, service) => {
                let Some((why, service)) = why.zip(service) else { continue };
                let assignment = work.observed.assignment.egress(service);
                if assignment.is_faulty() {
                    services::invalid(work, claim.key, service, claim);
                } else {
                    services::waiting(work, claim, service, &assignment.message(&owner.name, why));
                }
            }
            (ServiceRole::Moved, _) => {}
            (ServiceRole::Release, service) => {
                egress::release(work, owner, claim);
                if let Some(service) = service {
                    services::released(work, service, claim);
                }
            }
        }
    }
}
