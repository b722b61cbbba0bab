//! Proxy of a standalone Service or Ingress: a workload of one replica, by the provisioner of groups.
//!
//! An invalid edit changes nothing that is served. An object that is released keeps its finalizer until Pod, device and Secrets are gone;
//! a lost node or control plane delays that by minutes only.

pub mod admission;
pub mod handover;
pub mod report;
pub mod request;
pub mod takeover;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use serde_json::Value;

use crate::api::condition::reason;
use crate::api::names;
use crate::model::controller::egress::services;
use crate::model::controller::ingress::api_server::{device_fault, plan_device};
use crate::model::controller::ingress::claims::INVALID_CLASS;
use crate::model::controller::ingress::device_site;
use crate::model::controller::ingress::service_state::HANDOVER_POLL_INTERVAL;
use crate::model::controller::ingress::standalone_certificate::retained;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::kinds::standalone::admission::{Admission, admit};
use crate::model::controller::policy::assignment::GroupAssignment;
use crate::model::controller::policy::requests::Parent;
use crate::model::controller::workload::actions::GroupPlan;
use crate::model::controller::workload::admitted_tags::had_tags;
use crate::model::controller::workload::objects::Kind;
use crate::model::controller::workload::objects::rbac::endpoints;
use crate::model::controller::workload::objects::secrets::config_ref;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::observed::{Observed, TailnetState};
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::{Pass, is_terminating, owner};
use crate::model::controller::workload::provision;
use crate::model::controller::workload::provision::{POLL_INTERVAL, Served, remove_rest};
use crate::model::controller::workload::replicas::secrets;
use crate::model::controller::workload::route_overlaps;
use crate::model::controller::workload::spec::ApiServerRequest;
use crate::model::controller::workload::target_rules::takes_allowed;
use crate::model::plan::world::Single;

pub(crate) fn plan<'a>(pass: &Pass<'a>) -> PlanPart<'a> {
    let mut plan = changes(pass);
    plan.plan.proxy = report::state(&plan);
    plan
}

fn changes<'a>(pass: &Pass<'a>) -> PlanPart<'a> {
    let observed = pass.observed;
    let rules = &observed.assignment;
    if !rules.serves(&observed.key) {
        return pass.part();
    }
    let parent = observed.parent();
    match parent.filter(|parent| parent.metadata().deletion_timestamp.is_none()) {
        Some(Parent::Service(service)) if rules.is_standalone(service) => serve(pass, service),
        Some(Parent::Ingress(ingress)) if rules.is_standalone_ingress(ingress) => publish(pass, ingress),
        Some(parent) if rules.of(parent).is_undecided() => hold(pass, parent, rules.of(parent)),
        Some(parent) if rules.of(parent).group().is_none() && rules.uninstall.is_none() && is_unrecorded(pass) => {
            report_unrecorded(pass, parent)
        }
        _ => release(pass, parent),
    }
}

/// Leaves a proxy as it is while the annotation is invalid, or the class is unknown or names no usable group. Reports the fault.
fn hold<'a>(pass: &Pass<'a>, parent: Parent<'_>, assignment: GroupAssignment<'_>) -> PlanPart<'a> {
    let mut plan = pass.part();
    let Some(why) = assignment.fault() else { return plan };
    let reason = if matches!(assignment, GroupAssignment::Unusable(_)) { INVALID_CLASS } else { reason::PROXY_INVALID };
    match parent {
        Parent::Service(service) => report::invalid(&mut plan, service, &[why]),
        Parent::Ingress(ingress) => report::report_fault(&mut plan, ingress, (reason, why)),
    }
    plan
}

/// Whether only the Tailscale operator has written the proxy. Its settings, which may be others, gave the object a proxy.
fn is_unrecorded(pass: &Pass<'_>) -> bool {
    let label = match pass.observed.key {
        WorkloadKey::Ingress(..) => names::CONFIG_PARENT_INGRESS,
        _ => names::CONFIG_PARENT,
    };
    let is_ours = |config: &Value| config["metadata"]["labels"][label].is_string();
    let has_set = pass.observed.of(Kind::StatefulSet).any(|(_, set)| !is_terminating(set));
    has_set && !pass.owned(&config_ref(pass.owner, 0)).is_some_and(|config| is_ours(config))
}

/// Leaves a proxy that the object does not request, as far as this reconciler's settings say.
fn report_unrecorded<'a>(pass: &Pass<'a>, parent: Parent<'_>) -> PlanPart<'a> {
    let (mut plan, owner) = (pass.part(), pass.owner);
    let wanted = match parent {
        Parent::Service(_) => format!("annotate it with {}: \"true\"", names::EXPOSE),
        Parent::Ingress(_) => "set ingress.className of the chart (--ingress-class) to its class".to_owned(),
    };
    let why = format!(
        "The Tailscale operator made its proxy {name}, and nothing requests one here: {wanted}, or delete StatefulSet {name} in namespace \
         {namespace}. Until then the proxy stays as it is.",
        name = owner.name,
        namespace = owner.namespace,
    );
    match parent {
        Parent::Service(service) => report::failed(&mut plan, service, &why),
        Parent::Ingress(ingress) => report::report_fault(&mut plan, ingress, (reason::PROXY_FAILED, why)),
    }
    plan
}

/// Reports an object that the API server has rejected.
pub fn rejected(observed: &Observed, why: &str) -> GroupPlan {
    let (parent, owner) = (observed.parent(), owner(observed));
    let spec = parent.map(|parent| request::spec(observed, parent));
    let mut plan = Pass { observed, spec: spec.as_ref(), owner: &owner }.part();
    match parent {
        Some(Parent::Service(service)) => report::failed(&mut plan, service, why),
        Some(Parent::Ingress(ingress)) => report::report_fault(&mut plan, ingress, (reason::PROXY_FAILED, why.to_owned())),
        None => {}
    }
    plan.plan
}

/// Inputs of the objects of a proxy, and whether they may be written. Reports why not.
fn shape<'a>(plan: &mut PlanPart<'a>, target: Single) -> Option<(bool, RenderContext<'a>)> {
    let spec = plan.spec?;
    let class = provision::class(plan);
    let mut usable = class.is_ok() && !provision::awaits_class(plan);
    plan.faults.extend(provision::refused_class(plan));
    let class = class.unwrap_or_else(|fault| {
        plan.faults.push(fault);
        None
    });
    let mut shape = RenderContext::new(plan.owner.clone(), spec, class, &plan.observed.settings);
    shape.target = target;
    shape.node_sites = shape.role().serves_sites;
    shape.takes_allowed_targets = takes_allowed(plan, class);
    if spec.standby && shape.stock() {
        let message = format!("{} needs Tailyard's image: remove the annotation, or change the ProxyClass.", names::STANDBY);
        plan.fault(reason::PROXY_FAILED, message);
    }
    if let Some(fault) = shape.userspace_fault() {
        plan.fault(reason::PROXY_FAILED, fault.to_owned());
        usable = false;
    }
    if shape.is_k8s_proxy() {
        plan.fault(reason::PROXY_FAILED, "The image of the ProxyClass is for groups of type kube-apiserver: name one of a proxy.".into());
        usable = false;
    }
    Some((usable, shape))
}

/// Another object may have the name of one that is refused for another reason.
fn refuse(plan: &mut PlanPart<'_>, reason: &str) {
    let claimant = plan.observed.key.publisher().filter(|_| reason != reason::NAME_CONFLICT);
    plan.plan.refused.extend(claimant);
    plan.plan.new_names.clear();
}

fn serve<'a>(pass: &Pass<'a>, service: &Service) -> PlanPart<'a> {
    let mut plan = pass.part();
    match admit(&mut plan, Parent::Service(service)) {
        Admission::Granted => {}
        Admission::Undecided => return plan,
        Admission::Refused(reason, why) => {
            refuse(&mut plan, reason);
            give_up_name(&mut plan, Parent::Service(service));
            report::refused(&mut plan, service, reason, why);
            return plan;
        }
    }
    if let Some(request) = pass.spec.and_then(|spec| spec.api_server) {
        return serve_api_server(plan, service, request);
    }
    let target = match request::read(service, &pass.observed.settings, had_tags(pass.observed.replicas.get(&0))) {
        Ok(target) => target,
        Err(wrong) => {
            refuse(&mut plan, reason::PROXY_INVALID);
            report::invalid(&mut plan, service, &wrong);
            return plan;
        }
    };
    if !target.is_egress() && report::restore_name(&mut plan, service) {
        return plan;
    }
    let Some((is_usable, shape)) = shape(&mut plan, target) else { return plan };
    let served = Served { is_usable, rights: pass.part(), advertised: None, config: pass.part() };
    plan.add(provision::provision(pass, &shape, served));
    provision::report_denials(&mut plan, "");
    report::served(&mut plan, service, &shape, None);
    plan
}

/// Plans the operator's device, which serves the Kubernetes API. A faulty request changes nothing that is served.
fn serve_api_server<'a>(mut plan: PlanPart<'a>, service: &Service, request: ApiServerRequest<'_>) -> PlanPart<'a> {
    let pass = *plan;
    let Some((is_usable, mut shape)) = shape(&mut plan, Single::None) else { return plan };
    let fault = device_fault(request, &shape).or_else(|| pass.observed.takeover_fault.clone());
    if let Some(fault) = fault {
        // The end of the Tailscale operator enqueues nothing.
        plan.again(POLL_INTERVAL);
        refuse(&mut plan, reason::PROXY_FAILED);
        report::refused(&mut plan, service, reason::PROXY_FAILED, fault);
        return plan;
    }
    let (site, part) = plan_device(&pass, &shape, request);
    plan.add(part);
    shape.certificates = site.certificates(&pass);
    shape.own_certificates = site.own_certificates();
    let awaited = site.awaited_certificate(&pass);
    let served = Served { is_usable, rights: pass.part(), advertised: None, config: site.plan_writes(&pass, &shape) };
    plan.add(provision::provision(&pass, &shape, served));
    provision::report_denials(&mut plan, "");
    report::served(&mut plan, service, &shape, awaited);
    plan
}

fn publish<'a>(pass: &Pass<'a>, ingress: &Ingress) -> PlanPart<'a> {
    let mut plan = pass.part();
    match admit(&mut plan, Parent::Ingress(ingress)) {
        Admission::Granted => {}
        Admission::Undecided => return plan,
        Admission::Refused(reason, why) => {
            refuse(&mut plan, reason);
            give_up_name(&mut plan, Parent::Ingress(ingress));
            report::report_fault(&mut plan, ingress, (reason, why));
            return plan;
        }
    }
    if let Some(overlap) = route_overlaps::condition(pass, 1) {
        report::report_fault(&mut plan, ingress, (reason::ROUTE_COVERS_CLUSTER, overlap.message));
    }
    let Some((mut is_usable, mut shape)) = shape(&mut plan, Single::None) else { return plan };
    let read = request::ingress(ingress, &shape, had_tags(pass.observed.replicas.get(&0)))
        .and_then(|()| device_site::plan_standalone(pass, &shape));
    let site = match read {
        Ok((site, part)) => {
            plan.add(part);
            site
        }
        Err(wrong) => {
            refuse(&mut plan, wrong.0);
            report::report_fault(&mut plan, ingress, wrong);
            return plan;
        }
    };
    if waits_for_control_plane(&mut plan, ingress) {
        return plan;
    }
    if shape.stock() {
        let message = "The image of the ProxyClass is the Tailscale operator's, which does not read the routes of the proxy of an Ingress: \
                       take Tailyard's image.";
        plan.fault(reason::PROXY_FAILED, message.into());
        is_usable = false;
    }
    shape.certificates = site.certificates(pass);
    shape.own_certificates = site.own_certificates();
    let rights = site.endpoints(pass, &shape);
    let served = Served { is_usable, rights, advertised: None, config: site.plan_writes(pass, &shape) };
    plan.add(provision::provision(pass, &shape, served));
    provision::report_denials(&mut plan, "");
    if let TailnetState::Unavailable(why) = &pass.observed.tailnet {
        plan.fault(reason::PROXY_FAILED, why.clone());
    }
    let fault = report::fault(&plan, None);
    let moving = || handover::joining(pass.observed).map(|message| (reason::PROXY_MOVING, message));
    let pod_fault = || report::pod_fault(pass).map(|message| (reason::PROXY_PENDING, message));
    if let Some(fault) = fault.or_else(moving).or_else(pod_fault) {
        report::report_fault(&mut plan, ingress, fault);
    }
    report::report_tags(&mut plan, ingress);
    plan
}

/// Whether a new proxy waits until the control plane says whether it issues certificates: without one it would serve nothing.
fn waits_for_control_plane(plan: &mut PlanPart<'_>, ingress: &Ingress) -> bool {
    let observed = plan.observed;
    if observed.tailnet.capabilities().is_some() || observed.of(Kind::StatefulSet).next().is_some() {
        return false;
    }
    plan.plan = GroupPlan::default();
    if let TailnetState::Unavailable(why) = &observed.tailnet {
        report::report_fault(plan, ingress, (reason::PROXY_FAILED, why.clone()));
    }
    true
}

/// Gives the device of a proxy its temporary host name, if it may not have the requested one.
fn give_up_name(plan: &mut PlanPart<'_>, parent: Parent<'_>) {
    let pass = **plan;
    let is_due = pass.spec.is_some_and(|spec| spec.temporary_hostname.is_some()) && handover::has_name(pass.observed, parent);
    if is_due && let Some((true, shape)) = shape(plan, Single::None) {
        plan.add(secrets(&pass, &shape, &BTreeMap::new(), None));
    }
}

/// What a proxy needs while it stays, as its object moves to a group that does not serve it yet: `None` if it does not stay. The device
/// gives up its name for the group.
fn stays<'a>(pass: &Pass<'a>, parent: Parent<'_>) -> Option<PlanPart<'a>> {
    let group = handover::awaited_group(pass.observed, parent)?;
    let mut plan = pass.part();
    give_up_name(&mut plan, parent);
    if let Some(message) = handover::leaving(pass.observed, parent, group) {
        report::moving(&mut plan, parent, message);
    }
    plan.again(HANDOVER_POLL_INTERVAL);
    Some(plan)
}

/// Deletes a proxy: its Pod, then its device, then its Secrets and the other objects, then the finalizer.
fn release<'a>(pass: &Pass<'a>, parent: Option<Parent<'_>>) -> PlanPart<'a> {
    if let Some(plan) = parent.and_then(|parent| stays(pass, parent)) {
        return plan;
    }
    let (observed, owner) = (pass.observed, pass.owner);
    let host = services::host(pass, &owner.name);
    let moves = match parent {
        Some(Parent::Service(service)) if service.metadata.deletion_timestamp.is_none() => {
            Some(service).filter(|service| observed.assignment.egress(service).group().is_some())
        }
        _ => None,
    };
    // The group changes the name when its replicas serve the Service.
    if moves.is_some_and(|service| services::external_name(service) == host) {
        return pass.part();
    }
    let (mut plan, are_gone) = provision::remove(pass, (pass.part(), true));
    if !are_gone {
        if let Some(parent) = parent {
            report::waiting(&mut plan, parent);
        }
        return plan;
    }
    let (certificates, retained) = retained(pass, parent.is_none());
    plan.add(certificates);
    let is_released = remove_rest(&mut plan, &retained);
    // A binding in the namespace of the Ingress is deleted with it.
    let bindings = observed.of(Kind::RoleBinding).map(|(object, _)| object).filter(|_| parent.is_some());
    for object in bindings.filter(|object| object.namespace != owner.namespace && object.name == names::endpoints(&owner.name)) {
        plan.want(endpoints(owner, &object.namespace, false));
    }
    match parent.filter(|_| is_released) {
        Some(Parent::Service(service)) => report::released(&mut plan, service, moves.is_some()),
        Some(Parent::Ingress(ingress)) => report::withdrawn(&mut plan, ingress),
        None => {}
    }
    plan
}
