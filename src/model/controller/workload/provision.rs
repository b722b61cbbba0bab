//! One order of creation and one of deletion, for every workload.
//!
//! A fault in one part is reported and does not affect the others. No object is deleted before those that need it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::api::condition::reason;
use crate::api::names;
use crate::api::proxyclass::ProxyClassSpec;
use crate::model::controller::workload::actions::ControlAction;
use crate::model::controller::workload::objects::disruption::disruption_budget;
use crate::model::controller::workload::objects::metrics::{metrics, metrics_refs};
use crate::model::controller::workload::objects::rbac::{impersonation, impersonation_refs, rbac};
use crate::model::controller::workload::objects::secrets::config_ref;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::objects::standalone_service::headless_service;
use crate::model::controller::workload::objects::statefulset::stateful_set;
use crate::model::controller::workload::objects::{Kind, ObjectRef};
use crate::model::controller::workload::observed::{Class, TailnetState};
use crate::model::controller::workload::part::{PlanPart, WorkloadFault};
use crate::model::controller::workload::pass::{Ownership, Pass, is_terminating};
use crate::model::controller::workload::replicas::{ReplicaAdvertisement, remove_replicas, secrets};
use crate::model::controller::workload::rollout::delete_stuck;
use crate::model::controller::workload::secret_name::SecretName;
use crate::model::controller::workload::{pace, standby, static_endpoints};

/// Suffix of the message while a deletion waits for the control plane.
const WAITS: &str = " The deletion waits for that for five minutes, and then goes on without it.";

/// Requeue interval while a deletion waits for the control plane.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Order of deletion of the objects that remain when the devices are deleted.
pub(crate) const REMAINING: [Kind; 10] = [
    Kind::ServiceMonitor,
    Kind::PodDisruptionBudget,
    Kind::Secret,
    Kind::ConfigMap,
    Kind::Service,
    Kind::RoleBinding,
    Kind::Role,
    Kind::ClusterRoleBinding,
    Kind::ClusterRole,
    Kind::ServiceAccount,
];

/// What the kind of a workload adds to it.
#[derive(Debug)]
pub(crate) struct Served<'a> {
    /// Whether class and request are valid; else only the rest is planned.
    pub(crate) is_usable: bool,
    /// Rights beyond the workload's own objects.
    pub(crate) rights: PlanPart<'a>,
    /// Names and routes by ordinal, if the reconciler decides them.
    pub(crate) advertised: Option<BTreeMap<u32, ReplicaAdvertisement>>,
    /// Config and objects of what the replicas serve.
    pub(crate) config: PlanPart<'a>,
}

/// Plans a workload in the order of creation: rights, Secrets, what it serves, Pods. Then surplus replicas are removed.
pub(crate) fn provision<'a>(pass: &Pass<'a>, shape: &RenderContext<'_>, served: Served<'a>) -> PlanPart<'a> {
    let mut plan = pass.part();
    if served.is_usable {
        plan.add(rights(pass, shape));
        plan.add(served.rights);
        let (services, endpoints) = static_endpoints::endpoints(pass, shape);
        plan.add(services);
        plan.add(secrets(pass, shape, &endpoints, served.advertised.as_ref()));
    }
    plan.add(served.config);
    if served.is_usable {
        plan.add(pods(pass, shape));
    }
    plan.add(remove_replicas(pass, shape.spec.replicas).0);
    plan
}

/// Plans the deletion of a workload: its Pods, then what it advertises, then its devices and Secrets. Returns whether they are gone. Else
/// the faults say what the deletion waits for.
pub(crate) fn remove<'a>(pass: &Pass<'a>, (withdrawal, is_withdrawn): (PlanPart<'a>, bool)) -> (PlanPart<'a>, bool) {
    let mut plan = pass.part();
    for set in standby::sets(pass.owner) {
        plan.delete(&set);
    }
    plan.add(withdrawal);
    let (replicas, are_removed) = remove_replicas(pass, 0);
    plan.add(replicas);
    let are_gone = are_removed && is_withdrawn;
    if !are_gone {
        report_wait(&mut plan);
    }
    (plan, are_gone)
}

/// Plans the deletion of what is left of a workload without devices in the proxies' namespace, except `retained`. Objects of another workload of
/// the same parent, if there is one, are deleted by the next passes. Returns whether nothing else is left.
pub(crate) fn remove_rest(plan: &mut PlanPart<'_>, retained: &BTreeSet<ObjectRef>) -> bool {
    let pass = **plan;
    let (observed, owner) = (pass.observed, pass.owner);
    let deleted: BTreeSet<ObjectRef> = plan.plan.delete.iter().map(|delete| delete.object.clone()).collect();
    let undeleted = |object: &ObjectRef| !deleted.contains(object) && !retained.contains(object);
    let several = observed.of(Kind::StatefulSet).any(|(object, _)| undeleted(object));
    let rest = REMAINING.iter().flat_map(|kind| observed.of(*kind)).map(|(object, _)| object).filter(|object| undeleted(object));
    for object in rest.filter(|object| pass.is_apart(object) && (!several || object.name == owner.name)) {
        plan.delete(object);
    }
    // A Pod may put a finalizer on its Secrets: they do not hold the object.
    let is_pods = |object: &ObjectRef| object.kind == Kind::Secret && !matches!(SecretName::parse(&object.name), SecretName::Config { .. });
    // Nor does a binding in a namespace of users, who may put one on it.
    let remains = observed.owned.iter().any(|(object, value)| is_terminating(value) && !is_pods(object) && pass.is_apart(object));
    !several && !remains
}

/// Reports faults of the control plane. Before its first response the previous one stays.
pub(crate) fn report_tailnet(work: &mut PlanPart<'_>, previous: Option<String>) {
    let why = match &work.observed.tailnet {
        TailnetState::Ready { .. } => None,
        TailnetState::Asking => previous,
        TailnetState::Unavailable(why) => Some(why.clone()),
    };
    if let Some(why) = why {
        work.fault(reason::PROXY_GROUP_TAILNET_UNAVAILABLE, why);
    }
}

/// Reports what the deletion of a workload waits for.
fn report_wait(plan: &mut PlanPart<'_>) {
    // An object that only moves waits as long as that takes.
    let more = if plan.observed.ends_since().is_some() { WAITS } else { "" };
    if let TailnetState::Unavailable(why) = &plan.observed.tailnet {
        plan.fault(reason::PROXY_GROUP_TAILNET_UNAVAILABLE, format!("{why}{more}"));
    }
    report_denials(plan, more);
    if !plan.faults.is_empty() {
        plan.again(POLL_INTERVAL);
    }
}

/// `ServiceAccount` and rights of the Pods, and the Service that names them.
fn rights<'a>(pass: &Pass<'a>, shape: &RenderContext<'_>) -> PlanPart<'a> {
    let mut plan = pass.part();
    let service = shape.role().has_headless_service().then(|| headless_service(shape));
    for manifest in rbac(shape).into_iter().chain(service) {
        plan.want(manifest);
    }
    // The account of others may not impersonate: an account gets the right once it exists as the workload's own.
    let account = ObjectRef::new(Kind::ServiceAccount, &shape.owner.namespace, shape.owner.name.clone());
    let ownership = pass.owned(&account).map(|account_object| plan.ownership(&account, account_object));
    let impersonation = impersonation(shape);
    let may_impersonate = impersonation.is_some() && ownership != Some(Ownership::Foreign);
    // Former versions gave the operator's device roles with another name.
    let names = if may_impersonate { impersonation_refs(pass.owner).to_vec() } else { Vec::new() };
    let existing = [Kind::ClusterRoleBinding, Kind::ClusterRole].into_iter().flat_map(|kind| pass.observed.of(kind));
    for (object, _) in existing.filter(|(object, _)| !names.contains(object)) {
        plan.delete(object);
    }
    if may_impersonate && ownership == Some(Ownership::Ours) {
        for manifest in impersonation.into_iter().flatten() {
            plan.want(manifest);
        }
    }
    plan
}

/// Plans the Pods and the objects for scraping them. A changed template of a single Pod is rolled out here; Kubernetes does it for several.
fn pods<'a>(pass: &Pass<'a>, shape: &RenderContext<'_>) -> PlanPart<'a> {
    let mut plan = pass.part();
    let is_replicated = shape.role().is_replicated;
    if is_replicated {
        plan.want(disruption_budget(shape));
    }
    let set = ObjectRef::new(Kind::StatefulSet, &shape.owner.namespace, shape.owner.name.clone());
    let existing = pass.owned(&set).map(|existing| &**existing);
    // The Tailscale operator's image reads its config at start and exits without one.
    let config = |ordinal| pass.owned(&config_ref(&shape.owner, ordinal));
    let configured = |ordinal| config(ordinal).is_some_and(|secret| !secret["data"][names::CONFIG_KEY].is_null());
    // Pods that may not impersonate yet would refuse each client, and those of the Tailscale operator run on until then.
    let has_rights = shape.impersonation().is_none() || impersonation_refs(&shape.owner).iter().all(|object| pass.owned(object).is_some());
    if has_rights && (existing.is_some() || !shape.stock() || (0..shape.spec.replicas).all(configured)) {
        plan.want(stateful_set(shape, existing));
    }
    let scraped = metrics(shape);
    for object in metrics_refs(&shape.owner) {
        if !scraped.iter().any(|manifest| manifest.object == object) {
            plan.delete(&object);
        }
    }
    for manifest in scraped {
        plan.want(manifest);
    }
    if !is_replicated {
        standby::standby(&mut plan, shape);
        pace::pace(&mut plan);
        delete_stuck(&mut plan);
    }
    plan
}

/// The workload's class, if it has one.
///
/// # Errors
///
/// The class is missing or not ready; the message names an action.
pub(crate) fn class<'a>(pass: &Pass<'a>) -> Result<Option<&'a ProxyClassSpec>, WorkloadFault> {
    let message = match &pass.observed.class {
        Class::None => return Ok(None),
        Class::Ready(class) | Class::Refused(class) => return Ok(Some(&class.spec)),
        Class::Missing(name) => {
            let field = if pass.observed.key.is_standalone() { names::PROXY_CLASS } else { "spec.proxyClass" };
            format!("ProxyClass {name} does not exist: create it, or change {field}.")
        }
        Class::NotReady(name) => format!("ProxyClass {name} is not ready: its conditions say what to change."),
    };
    Err(WorkloadFault { reason: reason::PROXY_GROUP_CREATING, message })
}

/// The fault of a class that existing proxies use without the variables that the proxy refuses.
pub(crate) fn refused_class(pass: &Pass<'_>) -> Option<WorkloadFault> {
    let Class::Refused(class) = &pass.observed.class else { return None };
    let name = class.metadata.name.as_deref().unwrap_or_default();
    let message = format!("ProxyClass {name} has variables that the proxy refuses, and no new proxy gets it: its conditions name them.");
    Some(WorkloadFault { reason: reason::PROXY_GROUP_CREATING, message })
}

/// Whether the workload is new and must wait for its class.
pub(crate) fn awaits_class(pass: &Pass<'_>) -> bool {
    let set = ObjectRef::new(Kind::StatefulSet, &pass.owner.namespace, pass.owner.name.clone());
    matches!(pass.observed.class, Class::Refused(_)) && pass.owned(&set).is_none()
}

/// Reports requests of a plan that the control plane has denied and that are repeated. A refused Tailscale Service is a fault of its object,
/// and of a workload whose deletion waits for it. `more` follows each message.
pub(crate) fn report_denials(plan: &mut PlanPart<'_>, more: &str) {
    let observed = plan.observed;
    let denied = |action: &ControlAction| Some((action.is_for_service(), observed.denied.get(&action.what())?));
    let denied: Vec<_> = plan.plan.control.iter().filter_map(denied).collect();
    for (is_for_service, denial) in denied {
        if is_for_service && denial.refused.is_some() {
            let wait = denial.wait(observed.now);
            if !wait.is_zero() {
                plan.again(wait);
            }
            if observed.ends_since().is_none() {
                continue;
            }
        }
        plan.fault(reason::PROXY_GROUP_CREATION_FAILED, format!("{}{more}", denial.why));
    }
}
