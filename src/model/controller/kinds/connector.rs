//! Connectors: subnet routers, exit nodes and app connectors. A workload of devices that all advertise the same routes.
//!
//! An invalid edit changes nothing that is served. Routes are withdrawn as soon as the spec does not name them, also the last one. A deleted
//! Connector keeps its finalizer until Pods, devices and Secrets are gone; a lost node or control plane delays that by minutes only.

pub mod approval;
pub mod routes;
pub mod status;
pub mod validate;

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::api::condition::reason;
use crate::api::connector::Connector;
use crate::api::names;
use crate::model::controller::ingress::claims::{name_conflict, recorded_hostnames, taken_hostname};
use crate::model::controller::kinds::connector::routes::AdvertisedRoutes;
use crate::model::controller::policy::age::age;
use crate::model::controller::workload::actions::{GroupPlan, GroupUpdate};
use crate::model::controller::workload::admitted_tags::AdmittedTags;
use crate::model::controller::workload::finalizers;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::observed::Observed;
use crate::model::controller::workload::part::{PlanPart, WorkloadFault};
use crate::model::controller::workload::pass::{Pass, owner};
use crate::model::controller::workload::provision;
use crate::model::controller::workload::provision::{POLL_INTERVAL, Served, remove_rest};
use crate::model::controller::workload::replicas::ReplicaAdvertisement;
use crate::model::controller::workload::role::Role;
use crate::model::controller::workload::spec::{HostnamePattern, WorkloadSpec};
use crate::model::controller::workload::static_endpoints;

/// End of the default host name, after the Connector's name.
const HOSTNAME_SUFFIX: &str = "-connector";

/// The workload that a Connector requests.
pub(crate) fn spec(connector: &Connector) -> WorkloadSpec<'_> {
    let spec = &connector.spec;
    WorkloadSpec {
        role: Role::Connector,
        replicas: spec.desired_replicas().min(validate::MAX_REPLICAS),
        tags: Cow::Borrowed(&spec.tags),
        admitted: AdmittedTags::configured(&spec.tags),
        hostname: hostname(connector),
        temporary_hostname: None,
        tailnet: spec.tailnet.as_deref(),
        tenants: &[],
        shares_account: None,
        standby: false,
        serves_on_pod: false,
        api_server: None,
        options: None,
    }
}

fn hostname(connector: &Connector) -> HostnamePattern<'_> {
    let spec = &connector.spec;
    match (&spec.hostname_prefix, &spec.hostname) {
        (Some(prefix), _) => HostnamePattern::Numbered(prefix),
        (None, Some(hostname)) => HostnamePattern::Single(hostname.clone()),
        (None, None) => HostnamePattern::Single(format!("{}{HOSTNAME_SUFFIX}", connector.metadata.name.as_deref().unwrap_or_default())),
    }
}

/// Host names of the devices that a Connector requests.
pub fn hostnames(connector: &Connector) -> BTreeSet<String> {
    let spec = spec(connector);
    (0..spec.replicas).map(|ordinal| spec.hostname(ordinal)).collect()
}

pub(crate) fn plan<'a>(pass: &Pass<'a>) -> PlanPart<'a> {
    let (observed, connector) = (pass.observed, pass.observed.connector.as_deref());
    if !observed.assignment.connectors {
        return pass.part();
    }
    let mut plan = match (connector, observed.ends_since()) {
        (Some(connector), None) => serve(pass, connector),
        // Its definition may be missing. Only a finalizer that was removed by hand ends a Connector with objects.
        (None, None) => pass.part(),
        (connector, Some(_)) => release(pass, connector),
    };
    plan.plan.proxy = status::state(&plan);
    plan
}

/// Reports a Connector with an object that the API server has rejected.
pub fn rejected(observed: &Observed, why: &str) -> GroupPlan {
    let Some(connector) = observed.connector.as_deref() else { return GroupPlan::default() };
    let (spec, owner) = (spec(connector), owner(observed));
    let mut plan = Pass { observed, spec: Some(&spec), owner: &owner }.part();
    plan.fault(reason::PROXY_GROUP_CREATION_FAILED, why.to_owned());
    status::status(&mut plan, connector, None);
    plan.plan
}

fn serve<'a>(pass: &Pass<'a>, connector: &Connector) -> PlanPart<'a> {
    let mut plan = pass.part();
    let Some(spec) = pass.spec else { return plan };
    finalizer(&mut plan, connector, true);
    let mut wrong = validate::spec(connector, spec);
    let routes = AdvertisedRoutes::parse(&connector.spec, &mut wrong);
    let conflict = if wrong.is_empty() { name_fault(&mut plan, connector, spec) } else { None };
    if !wrong.is_empty() || conflict.is_some() {
        let invalid = wrong.texts().into_iter().map(|message| WorkloadFault { reason: reason::CONNECTOR_INVALID, message });
        plan.faults.extend(invalid.chain(conflict));
        status::status(&mut plan, connector, None);
        return plan;
    }
    let class = provision::class(pass);
    plan.faults.extend(class.as_ref().err().cloned());
    plan.faults.extend(provision::refused_class(pass));
    let mut is_usable = class.is_ok() && !provision::awaits_class(pass);
    let mut shape = RenderContext::new(pass.owner.clone(), spec, class.unwrap_or_default(), &pass.observed.settings);
    shape.present = pass.observed.replicas.keys().next_back().map_or(0, |last| last + 1).max(spec.replicas);
    shape.wireguard = static_endpoints::wireguard(pass, &shape);
    if let Some(fault) = validate::image(&shape) {
        plan.fault(reason::CONNECTOR_INVALID, fault.to_owned());
        is_usable = false;
    }
    let app_connector = Some(connector.spec.app_connector.is_some());
    let advertised = ReplicaAdvertisement { app_connector, routes: routes.texts(), ..ReplicaAdvertisement::default() };
    // The control plane selects one of the replicas for each route.
    let advertised = (0..spec.replicas).map(|ordinal| (ordinal, advertised.clone())).collect();
    let served = Served { is_usable, rights: pass.part(), advertised: Some(advertised), config: pass.part() };
    plan.add(provision::provision(pass, &shape, served));
    provision::report_denials(&mut plan, "");
    status::tailnet(&mut plan, connector);
    status::status(&mut plan, connector, Some(&routes));
    plan
}

/// Why a Connector may not have the host names of its devices: other workloads have one of them. Plans the names that no record has yet.
fn name_fault(plan: &mut PlanPart<'_>, connector: &Connector, spec: &WorkloadSpec<'_>) -> Option<WorkloadFault> {
    let observed = plan.observed;
    if observed.workload.is_empty() {
        plan.again(POLL_INTERVAL);
        let message = "Other workloads have all names that its Pods try: create the Connector under another name.".to_owned();
        return Some(WorkloadFault { reason: reason::PROXY_GROUP_CREATION_FAILED, message });
    }
    let Some((first, hostname)) = taken_hostname(observed, (spec, age(&connector.metadata)), |_| true) else {
        let recorded = recorded_hostnames(observed);
        let new = hostnames(connector).into_iter().filter(|hostname| !recorded.contains(hostname));
        plan.plan.new_names.extend(new);
        return None;
    };
    // The end of the other workload enqueues nothing of this one.
    plan.again(POLL_INTERVAL);
    let message = format!("{} The fields are spec.hostname and spec.hostnamePrefix.", name_conflict(&first, &hostname));
    Some(WorkloadFault { reason: reason::CONNECTOR_INVALID, message })
}

/// Deletes the Pods of a Connector, then their devices, then Secrets and other objects, then the finalizer.
fn release<'a>(pass: &Pass<'a>, connector: Option<&Connector>) -> PlanPart<'a> {
    let (mut plan, are_gone) = provision::remove(pass, (pass.part(), true));
    let is_released = are_gone && remove_rest(&mut plan, &BTreeSet::new());
    match connector {
        Some(connector) if is_released => finalizer(&mut plan, connector, false),
        Some(connector) if !plan.faults.is_empty() => status::status(&mut plan, connector, None),
        _ => {}
    }
    plan
}

fn finalizer(plan: &mut PlanPart<'_>, connector: &Connector, wanted: bool) {
    if let Some(finalizers) = finalizers::change(&connector.metadata, names::FINALIZER, wanted) {
        plan.plan.group.get_or_insert_with(GroupUpdate::default).finalizers = Some(finalizers);
    }
}
