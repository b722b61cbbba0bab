//! Plan of a `ProxyGroup`: what it serves, its deletion, and objects that name a group that does not exist.

use crate::api::condition::reason;
use crate::api::names;
use crate::api::proxygroup::ProxyGroup;
use crate::model::controller::egress::memo::Memory;
use crate::model::controller::egress::{egress, without};
use crate::model::controller::ingress;
use crate::model::controller::ingress::claims::{name_conflict, taken_hostname};
use crate::model::controller::ingress::domain::node_sites;
use crate::model::controller::ingress::items::IngressPlan;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::kinds::proxygroup::{status, validate};
use crate::model::controller::policy::age::age;
use crate::model::controller::workload::actions::GroupUpdate;
use crate::model::controller::workload::finalizers;
use crate::model::controller::workload::objects::metrics::metrics_refs;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::objects::{Kind, ObjectRef};
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::Pass;
use crate::model::controller::workload::provision::{
    POLL_INTERVAL, REMAINING, Served, awaits_class, class, provision as workload, refused_class, remove, report_denials,
};
use crate::model::controller::workload::spec::WorkloadSpec;
use crate::model::controller::workload::static_endpoints;

/// Condition of a group while an uninstall is requested.
const UNINSTALLED: &str = "Tailyard is being uninstalled: the group has no replicas. To cancel, remove the annotation tailyard.io/uninstall \
     of the Lease tailyard-reconciler.";

/// Plans all objects of a group.
pub(crate) fn provision<'a>(pass: &Pass<'a>, group: &ProxyGroup, spec: &'a WorkloadSpec<'a>, memory: &mut Memory) -> PlanPart<'a> {
    let (observed, wanted) = (pass.observed, spec.replicas);
    let mut plan = pass.part();
    let class = class(pass);
    plan.faults.extend(class.as_ref().err().cloned());
    plan.faults.extend(refused_class(pass));
    let is_class_usable = class.is_ok() && !awaits_class(pass);
    let mut shape = RenderContext::new(pass.owner.clone(), spec, class.unwrap_or_default(), &observed.settings);
    shape.present = observed.replicas.keys().next_back().map_or(0, |last| last + 1).max(wanted);
    shape.wireguard = static_endpoints::wireguard(pass, &shape);
    shape.has_former_pods = observed.replicas.values().any(|replica| replica.has_account(names::API_SERVER_ACCOUNT));
    let published = shape.role().serves_sites.then(|| ingress::plan(pass, &shape)).map(|(published, part)| {
        plan.add(part);
        published
    });
    if let Some(published) = &published {
        shape.certificates = published.certificates(pass);
        shape.own_certificates = published.own_certificates();
        shape.node_sites = node_sites(pass);
    }
    let wrong = validate::group(group, &shape);
    let reserved = validate::reserved_account(&shape);
    let exists = pass.owned(&ObjectRef::new(Kind::StatefulSet, &pass.owner.namespace, pass.owner.name.clone())).is_some();
    let taken = name_fault(&mut plan, group, spec);
    let is_usable = is_class_usable && wrong.is_none() && taken.is_none() && (reserved.is_none() || exists);
    for wrong in [wrong, taken, reserved].into_iter().flatten() {
        plan.fault(reason::PROXY_GROUP_INVALID, wrong);
    }
    finalizer(&mut plan, group, true);
    status::tailnet(&mut plan, group);
    plan.add(workload(pass, &shape, served(pass, &shape, published, (is_usable, memory))));
    report_denials(&mut plan, "");
    status::status(&mut plan, group, wanted);
    plan
}

/// Why a group may not have the host names of its replicas: a device of a Connector has one of them. Other objects get none of a group's.
fn name_fault(plan: &mut PlanPart<'_>, group: &ProxyGroup, spec: &WorkloadSpec<'_>) -> Option<String> {
    let is_connector = |workload: &WorkloadKey| matches!(workload, WorkloadKey::Connector(_));
    let (first, hostname) = taken_hostname(plan.observed, (spec, age(&group.metadata)), is_connector)?;
    // The end of the Connector enqueues no group.
    plan.again(POLL_INTERVAL);
    Some(format!("{} The field is spec.hostnamePrefix.", name_conflict(&first, &hostname)))
}

/// What a group serves, and faults of the objects that name it and are of another type.
fn served<'a>(
    pass: &Pass<'a>,
    shape: &RenderContext<'_>,
    published: Option<IngressPlan<'a>>,
    (is_usable, memory): (bool, &mut Memory),
) -> Served<'a> {
    let Some(published) = published else {
        let mut config = egress(pass, shape, memory);
        config.add(ingress::teardown::wrong_type(pass, memory, "is of type egress, which publishes nothing: name one of type ingress."));
        return Served { is_usable, rights: pass.part(), advertised: None, config };
    };
    let (rights, advertised) = (published.endpoints(pass, shape), published.by_ordinal(pass, shape));
    let mut config = without(pass, memory, Some("is not of type egress: name a group that is."));
    config.add(published.plan_writes(pass, shape));
    if shape.spec.api_server.is_some() {
        let fault = "is of type kube-apiserver, which publishes the Kubernetes API alone: name one of type ingress.";
        config.add(ingress::teardown::wrong_type(pass, memory, fault));
    }
    Served { is_usable, rights, advertised: Some(advertised), config }
}

/// Adds our finalizer to a group, or removes it and that of the Tailscale operator for the Kubernetes API, of which nothing is left.
fn finalizer(plan: &mut PlanPart<'_>, group: &ProxyGroup, wanted: bool) {
    let changed = finalizers::change(&group.metadata, names::FINALIZER, wanted);
    let is_other = |name: &String| wanted || name != names::API_SERVER_FINALIZER;
    if let Some(finalizers) = changed.map(|all| all.into_iter().filter(is_other).collect()) {
        plan.plan.group.get_or_insert_with(GroupUpdate::default).finalizers = Some(finalizers);
    }
}

/// Deletes a group: its Pods, then its devices, then its finalizer. The garbage collector deletes the rest, unless the group itself stays,
/// as in an uninstall.
pub(crate) fn end<'a>(pass: &Pass<'a>, group: &ProxyGroup, memory: &Memory) -> PlanPart<'a> {
    let mut plan = without(pass, memory, Some("is being deleted: name another group."));
    let (removal, are_gone) = remove(pass, ingress::teardown::end(pass));
    plan.add(removal);
    if are_gone {
        for object in metrics_refs(pass.owner) {
            plan.delete(&object);
        }
        plan.add(static_endpoints::surplus(pass, 0));
        finalizer(&mut plan, group, false);
    }
    if pass.observed.assignment.uninstall.is_some() {
        plan.add(remaining(pass, are_gone));
        plan.fault(reason::PROXY_GROUP_NOT_READY, UNINSTALLED.into());
    }
    if !(are_gone && plan.faults.is_empty()) {
        status::status(&mut plan, group, 0);
    }
    plan
}

/// Deletes what the garbage collector would delete with the group.
fn remaining<'a>(pass: &Pass<'a>, are_gone: bool) -> PlanPart<'a> {
    let mut part = pass.part();
    let kinds = REMAINING.iter().filter(|_| are_gone);
    for (object, _) in kinds.flat_map(|kind| pass.observed.of(*kind)).filter(|(object, _)| pass.is_apart(object)) {
        part.delete(object);
    }
    part
}

/// Handles Services that name no usable group.
pub(crate) fn orphans<'a>(pass: &Pass<'a>, memory: &Memory) -> PlanPart<'a> {
    const MISSING: &str = "does not exist: create it, or name another group.";
    let mut plan = without(pass, memory, Some(MISSING));
    plan.add(ingress::teardown::orphans(pass, MISSING));
    plan
}
