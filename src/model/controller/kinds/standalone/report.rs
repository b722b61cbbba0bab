//! Finalizer, condition, `externalName` and addresses of a standalone Service; Events and release of a standalone Ingress.
//!
//! The condition holds while the path works: the current Pod is ready, is logged in, and has reported its addresses, which it does once its
//! rules are in force and its target is known. A change of reason or message is reported once.

use crate::model::controller::key::WorkloadKey;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use serde_json::{Value, json};

use crate::api::condition::{PROXY_READY, ROUTES_OVERLAP, reason};
use crate::api::names;
use crate::api::proxygroup::TailnetDevice;
use crate::model::base::conditions;
use crate::model::base::conditions::ConditionStatus;
use crate::model::controller::egress::services::{external_name, host, is_child, own_name, restored};
use crate::model::controller::ingress::report::{balancer_of, foreign_balancer};
use crate::model::controller::key::PublishSource;
use crate::model::controller::kinds::proxygroup::status;
use crate::model::controller::kinds::standalone::handover;
use crate::model::controller::policy::requests::{Parent, is_balanced};
use crate::model::controller::workload::actions::{ExternalNameUpdate, Notice, ObjectUpdate, device_of_replica};
use crate::model::controller::workload::finalizers;
use crate::model::controller::workload::ingress_summary::IngressSummary;
use crate::model::controller::workload::objects::Owner;
use crate::model::controller::workload::objects::compare::covers;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::observed::replica::ObservedReplica;
use crate::model::controller::workload::observed::{Class, TailnetState};
use crate::model::controller::workload::part::{PlanPart, WorkloadFault};
use crate::model::controller::workload::pass::Pass;
use crate::model::controller::workload::provision::refused_class;
use crate::model::controller::workload::proxy_state::ProxyState;
use crate::model::controller::workload::replicas::other_tags;
use crate::model::controller::workload::rollout::{is_current, set_ref};
use crate::model::controller::workload::route_overlaps;
use crate::model::controller::workload::service_conditions::{ServiceChanges, ServiceConditions};
use crate::model::plan::world::Single;

/// Content of the condition.
struct ProxyCondition {
    status: ConditionStatus,
    reason: &'static str,
    message: String,
    /// Whether a change is a warning for the Service's owner.
    warns: bool,
}

impl ProxyCondition {
    fn unready(reason: &'static str, message: String) -> Self {
        Self { status: ConditionStatus::False, reason, message, warns: reason != reason::PROXY_PENDING }
    }
}

/// Reports a Service whose objects are planned. `awaited`: why its proxy serves nothing yet.
pub(crate) fn served(work: &mut PlanPart<'_>, service: &Service, shape: &RenderContext<'_>, awaited: Option<String>) {
    if keeps_report(work, service) {
        ServiceConditions::new(work, service).update(work, true, (None, None));
        return;
    }
    let device = device(work, &shape.owner);
    let reached = device.as_ref().map(|(device, name)| (device, name.as_str()));
    let host = host(work, &shape.owner.name);
    let points = external_name(service) == host;
    let switches = shape.target.is_egress() && !points && reached.is_some();
    let external_name = switches.then(|| ExternalNameUpdate { former: own_name(work, service), name: Some(host.clone()) });
    let condition = condition(work, shape, reached.map(|(_, name)| name), &host);
    let condition = match awaited.filter(|_| condition.status == ConditionStatus::True) {
        Some(awaited) => ProxyCondition::unready(reason::PROXY_PENDING, awaited),
        None => condition,
    };
    let load_balancer = addresses(work, service, shape, reached);
    set(work, service, condition, true, (external_name, load_balancer));
}

/// Reports an invalid Service. It is served as before.
pub(crate) fn invalid(work: &mut PlanPart<'_>, service: &Service, wrong: &[String]) {
    let message = format!("The Service is not valid: {}", wrong.join(" "));
    let condition = ProxyCondition::unready(reason::PROXY_INVALID, message);
    set(work, service, condition, is_finalized(service), (None, None));
}

/// Reports that tenants do not permit the proxy of a Service. One that exists stays as it is.
pub(crate) fn refused(work: &mut PlanPart<'_>, service: &Service, reason: &'static str, why: String) {
    set(work, service, ProxyCondition::unready(reason, why), is_finalized(service), (None, None));
}

/// Reports that the API server has rejected an object of a Service.
pub(crate) fn failed(work: &mut PlanPart<'_>, service: &Service, why: &str) {
    let condition = ProxyCondition::unready(reason::PROXY_FAILED, why.to_owned());
    set(work, service, condition, is_finalized(service), (None, None));
}

/// Reports why an object is not released yet.
pub(crate) fn waiting(work: &mut PlanPart<'_>, parent: Parent<'_>) {
    let Some(message) = work.faults.first().map(|fault| fault.message.clone()) else { return };
    match parent {
        Parent::Service(service) => {
            set(work, service, ProxyCondition::unready(reason::PROXY_FAILED, message), is_finalized(service), (None, None));
        }
        Parent::Ingress(ingress) => report_fault(work, ingress, (reason::PROXY_FAILED, message)),
    }
}

/// Reports a fault of an Ingress, reason and message, while it lasts. An Ingress has no conditions.
pub(crate) fn report_fault(work: &mut PlanPart<'_>, ingress: &Ingress, (reason, message): (&'static str, String)) {
    work.lasting((&Parent::Ingress(ingress).publisher()).into(), reason, message);
}

/// Reports that the device of an Ingress has other tags than requested.
pub(crate) fn report_tags(work: &mut PlanPart<'_>, ingress: &Ingress) {
    if !other_tags(work, 1).is_empty() {
        let message = "Its device has other tags than requested: delete the device at the control plane, and the proxy joins again with the \
                       new tags.";
        report_fault(work, ingress, (reason::PARTIALLY_ADVERTISED, message.to_owned()));
    }
}

/// Reports a move to a group while it lasts.
pub(crate) fn moving(work: &mut PlanPart<'_>, parent: Parent<'_>, message: String) {
    let (subject, reason) = ((&parent.publisher()).into(), reason::PROXY_MOVING);
    work.plan.faults.push(Notice { subject, warning: false, reason, message });
}

/// State of the proxy after a plan; `None` without an object that requests one.
pub(crate) fn state(work: &PlanPart<'_>) -> Option<ProxyState> {
    let (observed, plan) = (work.observed, &work.plan);
    let is_live = |parent: &Parent<'_>| parent.metadata().deletion_timestamp.is_none();
    match observed.parent().filter(is_live)? {
        Parent::Service(service) => {
            let planned = plan.services.iter().find_map(|update| update.conditions.as_deref());
            let observed = service.status.as_ref().and_then(|status| status.conditions.as_deref());
            let condition = planned.or(observed)?.iter().find(|condition| condition.type_ == PROXY_READY)?;
            Some(ProxyState::of_reason(&condition.reason))
        }
        Parent::Ingress(ingress) => {
            let faults = plan.faults.iter().filter(|fault| fault.subject == observed.key);
            let worst = faults.map(|fault| ProxyState::of_reason(fault.reason)).max();
            let rules = &observed.assignment;
            if worst.is_none() && !rules.is_standalone_ingress(ingress) {
                return None;
            }
            let is_served = plan.summary.as_ref().is_some_and(IngressSummary::is_complete);
            let served = if is_served { ProxyState::Ready } else { ProxyState::Pending };
            Some(worst.map_or(served, |worst| worst.max(served)))
        }
    }
}

/// Releases an Ingress whose objects are deleted. The status of one that a group serves is the group's, and an address of another controller
/// stays.
pub(crate) fn withdrawn(work: &mut PlanPart<'_>, ingress: &Ingress) {
    let metadata = &ingress.metadata;
    let in_group = work.observed.assignment.ingress(ingress).group().is_some();
    let foreign = foreign_balancer(Parent::Ingress(ingress));
    let cleared = metadata.deletion_timestamp.is_none() && !in_group && balancer_of(Parent::Ingress(ingress)) != foreign;
    let update = ObjectUpdate::new(PublishSource::Ingress, metadata, names::FINALIZER, false);
    work.plan.update(ObjectUpdate { load_balancer: cleared.then_some(foreign), ..update });
}

/// Releases a Service whose objects are deleted. `egress`: an egress group has it now, with the finalizer.
pub(crate) fn released(work: &mut PlanPart<'_>, service: &Service, egress: bool) {
    let mut conditions = ServiceConditions::new(work, service);
    let remains = service.metadata.deletion_timestamp.is_none();
    let changed = remains && conditions.remove(PROXY_READY);
    if remains {
        conditions.remove(ROUTES_OVERLAP);
    }
    let external_name = if remains && !egress { restored(work, service) } else { None };
    let published = work.observed.assignment.published(service).group().is_some();
    let cleared = remains && !published && balancer(service) != json!([]) && is_balanced(service);
    let dead = external_name.as_ref().is_none_or(|update| update.name.is_none())
        && is_child(work, crate::model::controller::egress::services::external_name(service));
    if changed && dead && !egress {
        let message = "No proxy serves this Service any more, and its spec.externalName is still the name of one: set spec.externalName, or \
             delete the Service.";
        work.warn(subject(service), "EgressReleased", message.into());
    }
    let load_balancer = cleared.then(|| json!({}));
    conditions.update(work, egress && is_finalized(service), (external_name, load_balancer));
}

/// Restores the `externalName` of a Service that requested egress before: its proxy would forward to itself. Returns whether the Service
/// cannot be served in this pass.
pub(crate) fn restore_name(work: &mut PlanPart<'_>, service: &Service) -> bool {
    let restored = restored(work, service);
    if restored.is_some() {
        return ServiceConditions::new(work, service).update(work, is_finalized(service), (restored, None));
    }
    let own = is_child(work, external_name(service));
    if own {
        invalid(work, service, &["spec.externalName is the name of a proxy: set it to the target's name.".to_owned()]);
    }
    own
}

fn set(work: &mut PlanPart<'_>, service: &Service, condition: ProxyCondition, finalized: bool, changes: ServiceChanges) {
    let ProxyCondition { status, reason, message, warns } = condition;
    let mut conditions = ServiceConditions::new(work, service);
    if conditions.set(PROXY_READY, status, reason, message.clone()) && warns {
        work.warn(subject(service), reason, message);
    }
    match route_overlaps::condition(work, 1) {
        Some(overlap) => drop(conditions.set(ROUTES_OVERLAP, overlap.status, overlap.reason, overlap.message)),
        None => drop(conditions.remove(ROUTES_OVERLAP)),
    }
    conditions.update(work, finalized, changes);
}

/// Whether the report of a served Service stays, as the device of its live Pod has no complete record yet: after an upgrade, or a take-over
/// while the control plane is away.
fn keeps_report(work: &PlanPart<'_>, service: &Service) -> bool {
    let replica = work.observed.replicas.get(&0);
    let is_live = replica.is_some_and(|replica| status::live_name(replica).is_some() && status::is_unread(replica));
    conditions::is_true(service, PROXY_READY) && is_live && work.faults.is_empty() && rejected_target(work).is_none()
}

/// Why the target is not served, as its proxy reports.
fn rejected_target<'a>(work: &Pass<'a>) -> Option<&'a str> {
    let state = work.observed.replicas.get(&0)?.state.as_ref()?;
    state.rejected_target.as_deref()
}

/// Device of a ready Pod of the current template whose target is served, with its name in the tailnet.
fn device(work: &PlanPart<'_>, owner: &Owner) -> Option<(TailnetDevice, String)> {
    let replica = work.observed.replicas.get(&0)?;
    let pod = replica.pod.as_deref()?;
    let object = set_ref(owner, pod);
    let is_current = is_current(work.owned(&object)?, pod) && !work.is_planned(&object);
    let name = replica.device_name()?.as_str().to_owned();
    let is_reached = is_current && rejected_target(work).is_none() && handover::joining(work.observed).is_none();
    status::device(replica, &[]).filter(|_| is_reached).map(|device| (device, name))
}

/// The fault that is reported, with its reason: those of groups are not a proxy's.
pub(crate) fn fault(work: &PlanPart<'_>, tolerated: Option<&WorkloadFault>) -> Option<(&'static str, String)> {
    let pending = matches!(work.observed.class, Class::NotReady(_) | Class::Refused(_));
    let reason = if pending { reason::PROXY_PENDING } else { reason::PROXY_FAILED };
    work.faults.iter().find(|fault| Some(*fault) != tolerated).map(|fault| (reason, fault.message.clone()))
}

fn condition(work: &PlanPart<'_>, shape: &RenderContext<'_>, reached: Option<&str>, host: &str) -> ProxyCondition {
    // A proxy that serves goes on without the refused variables.
    let refused = refused_class(work).filter(|_| reached.is_some());
    if let Some((reason, message)) = fault(work, refused.as_ref()) {
        return ProxyCondition::unready(reason, message);
    }
    if let Some(name) = reached {
        let scheme = shape.spec.api_server.map(|request| if request.is_http { "http" } else { "https" });
        let mut message = match (scheme, &shape.target) {
            (Some(scheme), _) => format!("The Kubernetes API is reached in the tailnet as {scheme}://{name}."),
            (_, Single::TailnetIp(target)) => format!("The Service routes to {target} by {host}."),
            (_, Single::TailnetFqdn(target)) => format!("The Service routes to {target} by {host}."),
            _ => format!("The Service is reached in the tailnet as {name}."),
        };
        let others = !other_tags(work, 1).is_empty();
        if others {
            message.push_str(
                " Its device has other tags than requested: change them at the control plane, or delete the device there, and the proxy \
                 joins again with the new tags.",
            );
        }
        let warns = others || refused.is_some();
        message.extend(refused.map(|fault| format!(" {}", fault.message)));
        return ProxyCondition { status: ConditionStatus::True, reason: reason::PROXY_CREATED, message, warns };
    }
    if let TailnetState::Unavailable(why) = &work.observed.tailnet {
        return ProxyCondition::unready(reason::PROXY_FAILED, why.clone());
    }
    if let Some(why) = rejected_target(work) {
        return ProxyCondition::unready(reason::PROXY_FAILED, format!("The target is not served: {why}"));
    }
    if let Some(message) = handover::joining(work.observed) {
        return ProxyCondition { warns: true, ..ProxyCondition::unready(reason::PROXY_PENDING, message) };
    }
    if let Some(fault) = pod_fault(work) {
        return ProxyCondition { warns: true, ..ProxyCondition::unready(reason::PROXY_PENDING, fault) };
    }
    let replica = work.observed.replicas.get(&0);
    let waits = match replica.map(|replica| (replica.pod.is_some(), replica.has_device())) {
        Some((true, true)) if replica.is_some_and(is_unconfirmed) => {
            // The request is in progress unless it was denied: no write for that.
            let is_denied = work.observed.denied.contains_key(&device_of_replica(0));
            if is_denied { "the control plane has not confirmed its device" } else { "its Pod has not logged in to the tailnet" }
        }
        Some((true, true)) => "its Pod is not ready, or is being replaced",
        Some((true, false)) => "its Pod has not logged in to the tailnet",
        _ => "its Pod does not exist",
    };
    ProxyCondition::unready(reason::PROXY_PENDING, format!("Proxy {} does not serve yet: {waits}.", shape.owner.name))
}

/// Why the Pod of a proxy does not exist or does not run.
pub(crate) fn pod_fault(work: &Pass<'_>) -> Option<String> {
    let (name, fault) = (&work.owner.name, work.observed.pod_fault(0)?);
    Some(format!("Proxy {name} does not serve yet: Pod {}: {}", names::replica(name, 0), fault.text()))
}

/// Whether a live Pod claims a device without a complete record.
fn is_unconfirmed(replica: &ObservedReplica) -> bool {
    status::live_name(replica).is_some() && replica.claimed_record().is_none()
}

/// New addresses of a Service of type `LoadBalancer`, if changed. They stay while the Pod is replaced.
fn addresses(work: &Pass<'_>, service: &Service, shape: &RenderContext<'_>, reached: Option<(&TailnetDevice, &str)>) -> Option<Value> {
    shape.cluster_addresses().next()?;
    // A group serves it until the proxy does.
    let in_group = finalizers::has(&service.metadata, names::SERVICE_FINALIZER);
    let is_known = in_group || work.observed.replicas.get(&0).is_some_and(ObservedReplica::has_device);
    let wanted = match reached {
        Some((device, name)) => {
            let is_served = |ip: &&String| {
                ip.parse::<std::net::IpAddr>().is_ok_and(|ip| shape.cluster_addresses().any(|to| to.is_ipv4() == ip.is_ipv4()))
            };
            let ips = device.tailnet_ips.iter().filter(is_served).map(|ip| json!({"ip": ip}));
            [json!({"hostname": name})].into_iter().chain(ips).collect()
        }
        None if is_known => return None,
        None => Vec::new(),
    };
    let existing = balancer(service);
    let same = existing.as_array().is_some_and(|existing| existing.len() == wanted.len()) && covers(&existing, &json!(wanted));
    (is_balanced(service) && !same).then(|| json!({"ingress": wanted}))
}

/// Observed addresses.
fn balancer(service: &Service) -> Value {
    let ingress = service.status.as_ref().and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref());
    serde_json::to_value(ingress.map(Vec::as_slice).unwrap_or_default()).unwrap_or_default()
}

fn is_finalized(service: &Service) -> bool {
    finalizers::has(&service.metadata, names::FINALIZER)
}

fn subject(service: &Service) -> WorkloadKey {
    (&Parent::Service(service).publisher()).into()
}
