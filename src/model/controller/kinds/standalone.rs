//! Proxy of a standalone Service or Ingress: a workload of one replica, by the provisioner of groups.
//!
//! An invalid edit changes nothing that is served. An object that is released keeps its finalizer until Pod, device and Secrets are gone;
//! a lost node or control plane delays that by minutes only.

pub mod admission;
pub mod handover;
pub mod report;
pub mod request;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;

use crate::api::condition::reason;
use crate::api::names;
use crate::model::controller::egress::memo::Memory;
use crate::model::controller::egress::services;
use crate::model::controller::ingress::claims::INVALID_CLASS;
use crate::model::controller::ingress::device_site;
use crate::model::controller::ingress::standalone_certificate::retained;
use crate::model::controller::kinds::spec;
use crate::model::controller::kinds::standalone::admission::{Admission, admit};
use crate::model::controller::policy::assignment::GroupAssignment;
use crate::model::controller::policy::requests::Parent;
use crate::model::controller::workload::actions::GroupPlan;
use crate::model::controller::workload::builder::{GroupPass, going};
use crate::model::controller::workload::objects::rbac::{endpoints, rbac};
use crate::model::controller::workload::objects::shape::{RenderContext, image_path};
use crate::model::controller::workload::objects::standalone_service::headless_service;
use crate::model::controller::workload::objects::{Kind, ObjectRef, Owner};
use crate::model::controller::workload::observed::{Observed, TailnetState};
use crate::model::controller::workload::provision;
use crate::model::controller::workload::rollout::delete_stuck;
use crate::model::controller::workload::secret_name::SecretName;
use crate::model::controller::workload::{pace, replicas, standby};
use crate::model::plan::world::Single;

/// Order of deletion of the objects that remain when the device is deleted.
const REMAINING: [Kind; 7] =
    [Kind::ServiceMonitor, Kind::Secret, Kind::ConfigMap, Kind::Service, Kind::RoleBinding, Kind::Role, Kind::ServiceAccount];

pub(crate) fn plan(work: &mut GroupPass<'_>) {
    let observed = work.observed;
    let rules = &observed.assignment;
    if !rules.standalone.has(observed.key.namespace()) {
        return;
    }
    let owner = work.owner();
    let parent = observed.parent();
    match parent.filter(|parent| parent.metadata().deletion_timestamp.is_none()) {
        Some(Parent::Service(service)) if rules.is_standalone(service) => serve(work, owner, service),
        Some(Parent::Ingress(ingress)) if rules.is_standalone_ingress(ingress) => publish(work, owner, ingress),
        Some(parent) if rules.of(parent).is_undecided() => hold(work, parent, rules.of(parent)),
        _ => release(work, &owner, parent),
    }
}

/// Leaves a proxy as it is while the annotation is invalid, or the class is unknown or names no usable group. Reports the fault.
fn hold(work: &mut GroupPass<'_>, parent: Parent<'_>, assignment: GroupAssignment<'_>) {
    let Some(why) = assignment.fault() else { return };
    let reason = if matches!(assignment, GroupAssignment::Unusable(_)) { INVALID_CLASS } else { reason::PROXY_INVALID };
    match parent {
        Parent::Service(service) => report::invalid(work, service, &[why]),
        Parent::Ingress(ingress) => report::news(work, ingress, (reason, why)),
    }
}

/// Reports an object that the API server has rejected.
pub fn rejected(observed: &Observed, why: &str) -> GroupPlan {
    let mut memory = Memory::default();
    let spec = spec(observed);
    let mut work = GroupPass::new(observed, spec.as_ref(), &mut memory);
    match observed.parent() {
        Some(Parent::Service(service)) => report::failed(&mut work, service, why),
        Some(Parent::Ingress(ingress)) => report::news(&mut work, ingress, (reason::PROXY_FAILED, why.to_owned())),
        None => {}
    }
    work.pass
}

/// Inputs of the objects of a proxy.
fn shape<'a>(work: &mut GroupPass<'a>, owner: Owner, target: Single) -> Option<(bool, RenderContext<'a>)> {
    let spec = work.spec?;
    let (mut usable, class) = provision::class(work);
    let mut shape = RenderContext::new(owner, spec, class, &work.observed.settings);
    shape.target = target;
    shape.node_sites = shape.role().serves_sites;
    if spec.standby && shape.stock() {
        let message = format!("{} needs Tailyard's image: remove the annotation, or change the ProxyClass.", names::STANDBY);
        work.fault(reason::PROXY_FAILED, message);
    }
    if image_path(shape.image()).ends_with("k8s-proxy") {
        work.fault(reason::PROXY_FAILED, "The image of the ProxyClass is for groups of type kube-apiserver: name one of a proxy.".into());
        usable = false;
    }
    Some((usable, shape))
}

fn serve(work: &mut GroupPass<'_>, owner: Owner, service: &Service) {
    match admit(work, Parent::Service(service)) {
        Admission::Granted => {}
        Admission::Undecided => return,
        Admission::Refused(reason, why) => return report::refused(work, service, reason, why),
    }
    let target = match request::read(service, &work.observed.settings) {
        Ok(target) => target,
        Err(wrong) => return report::invalid(work, service, &wrong),
    };
    if !target.is_egress() && report::restore_name(work, service) {
        return;
    }
    let Some((usable, shape)) = shape(work, owner, target) else { return };
    if usable {
        provision(work, &shape);
    }
    provision::denials(work, "");
    report::served(work, service, &shape);
}

fn publish(work: &mut GroupPass<'_>, owner: Owner, ingress: &Ingress) {
    match admit(work, Parent::Ingress(ingress)) {
        Admission::Granted => {}
        Admission::Undecided => return,
        Admission::Refused(reason, why) => return report::news(work, ingress, (reason, why)),
    }
    let Some((mut usable, mut shape)) = shape(work, owner, Single::None) else { return };
    let read = request::ingress(ingress, &shape).and_then(|()| device_site::alone(work, &shape));
    let plan = match read {
        Ok(plan) => plan,
        Err(wrong) => return report::news(work, ingress, wrong),
    };
    if shape.stock() {
        let message = "The image of the ProxyClass is the Tailscale operator's, which does not read the routes of the proxy of an Ingress: \
                       take Tailyard's image.";
        work.fault(reason::PROXY_FAILED, message.into());
        usable = false;
    }
    shape.certificates = plan.certificates(work, &shape.owner);
    shape.own_certificates = plan.own_certificates();
    if usable {
        plan.endpoints(work, &shape);
        provision(work, &shape);
    }
    provision::denials(work, "");
    if let TailnetState::Unavailable(why) = &work.observed.tailnet {
        work.fault(reason::PROXY_FAILED, why.clone());
    }
    plan.carry(work, &shape);
    let fault = work.faults.first().map(|fault| (fault.reason, fault.message.clone()));
    let moving = || handover::joining(work.observed).map(|message| (reason::PROXY_MOVING, message));
    if let Some(news) = fault.or_else(moving) {
        report::news(work, ingress, news);
    }
}

/// Plans the objects of a proxy.
fn provision(work: &mut GroupPass<'_>, shape: &RenderContext<'_>) {
    for manifest in rbac(shape).into_iter().chain([headless_service(shape)]) {
        work.want(&shape.owner, manifest);
    }
    replicas::secrets(work, shape, &BTreeMap::new(), None);
    provision::pods(work, shape);
    standby::standby(work, shape);
    pace::pace(work, &shape.owner);
    delete_stuck(work, &shape.owner);
}

/// Whether a proxy stays because its object moves to a group that does not serve it yet. The device gives up its name for the group.
fn stays(work: &mut GroupPass<'_>, owner: &Owner, parent: Parent<'_>) -> bool {
    let observed = work.observed;
    let Some(group) = handover::awaited_group(observed, parent) else { return false };
    if handover::is_withheld(observed, parent)
        && let Some((true, shape)) = shape(work, owner.clone(), Single::None)
    {
        replicas::secrets(work, &shape, &BTreeMap::new(), None);
    }
    if let Some(message) = handover::leaving(observed, parent, group) {
        report::moving(work, parent, message);
    }
    work.again(handover::POLL_INTERVAL);
    true
}

/// Deletes a proxy: its Pod, then its device, then its Secrets and the other objects, then the finalizer.
fn release(work: &mut GroupPass<'_>, owner: &Owner, parent: Option<Parent<'_>>) {
    if parent.is_some_and(|parent| stays(work, owner, parent)) {
        return;
    }
    let observed = work.observed;
    let host = services::host(work, &owner.name);
    let moves = match parent {
        Some(Parent::Service(service)) if service.metadata.deletion_timestamp.is_none() => {
            Some(service).filter(|service| observed.assignment.egress(service).group().is_some())
        }
        _ => None,
    };
    // The group changes the name when its replicas serve the Service.
    if moves.is_some_and(|service| services::external_name(service) == host) {
        return;
    }
    for set in standby::sets(owner) {
        work.delete(owner, &set);
    }
    if !replicas::remove_replicas(work, owner, 0) {
        if let TailnetState::Unavailable(why) = &observed.tailnet {
            work.fault(reason::PROXY_FAILED, why.clone());
        }
        provision::denials(work, provision::WAITS);
        if let Some(parent) = parent {
            report::waiting(work, parent);
        }
        if !work.faults.is_empty() {
            work.again(provision::POLL_INTERVAL);
        }
        return;
    }
    let retained = retained(work, owner, parent.is_none());
    let deleted: BTreeSet<ObjectRef> = work.pass.delete.iter().map(|delete| delete.object.clone()).collect();
    let undeleted = |object: &ObjectRef| !deleted.contains(object) && !retained.contains(object);
    // Objects of another workload of the same parent, if there is one, are deleted by the next passes.
    let own: Vec<_> = REMAINING.iter().flat_map(|kind| observed.of(*kind)).map(|(object, _)| object.clone()).filter(undeleted).collect();
    let several = observed.of(Kind::StatefulSet).any(|(object, _)| undeleted(object));
    for object in own.iter().filter(|object| !several || object.name == owner.name) {
        if object.namespace == owner.namespace {
            work.delete(owner, object);
        } else if parent.is_some() {
            // A binding in the namespace of the Ingress is deleted with it.
            work.want(owner, endpoints(owner, &object.namespace, false));
        }
    }
    // A Pod may put a finalizer on its Secrets: they do not hold the object.
    let is_pods = |object: &ObjectRef| object.kind == Kind::Secret && !matches!(SecretName::parse(&object.name), SecretName::Config { .. });
    let remains = observed.owned.iter().any(|(object, value)| going(value) && !is_pods(object));
    match parent.filter(|_| !several && !remains) {
        Some(Parent::Service(service)) => report::released(work, service, moves.is_some()),
        Some(Parent::Ingress(ingress)) => report::withdrawn(work, ingress),
        None => {}
    }
}
