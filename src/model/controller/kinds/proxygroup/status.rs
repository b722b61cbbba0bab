//! Status of a group: devices and conditions.
//!
//! A replica counts while it is alive, not because it once wrote a status. The first fault in order of severity is reported.

use crate::api::condition::{
    API_SERVER_CONFIGURED, API_SERVER_VALID, CERTIFIED, Condition, PROXY_GROUP_AVAILABLE, PROXY_GROUP_READY, PUBLISHED, ROUTES_OVERLAP,
    TRUE, reason,
};
use crate::api::names;
use crate::api::proxygroup::{ProxyGroup, ProxyGroupStatus, TailnetDevice};
use crate::model::base::conditions;
use crate::model::base::conditions::{ConditionStatus, DesiredCondition};
use crate::model::controller::workload::actions::{GroupUpdate, WorkloadStatus};
use crate::model::controller::workload::identity::DeviceName;
use crate::model::controller::workload::observed::replica::ObservedReplica;
use crate::model::controller::workload::part::{PlanPart, WorkloadFault};
use crate::model::controller::workload::pass::Pass;
use crate::model::controller::workload::provision::report_tailnet;
use crate::model::controller::workload::readiness;
use crate::model::controller::workload::replicas::warn_other_tags;
use crate::model::controller::workload::route_overlaps;

/// Most severe reasons: reported before any other.
const WEIGHT: [&str; 2] = [reason::PROXY_GROUP_INVALID, reason::PROXY_GROUP_TAILNET_UNAVAILABLE];

pub(crate) fn status(work: &mut PlanPart<'_>, group: &ProxyGroup, wanted: u32) {
    let before = group.status.clone().unwrap_or_default();
    let devices: Vec<_> = work.observed.replicas.range(..wanted).filter_map(|(_, replica)| device(replica, &before.devices)).collect();
    let running = u32::try_from(devices.len()).unwrap_or(u32::MAX);
    let extra = work.observed.replicas.range(wanted..).filter(|(_, replica)| replica.pod.is_some()).count();
    let is_api_server = work.spec.is_some_and(|spec| spec.api_server.is_some());
    let url = if is_api_server { work.url.clone() } else { before.url.clone() };
    let mut status = ProxyGroupStatus { devices, url, ..before.clone() };
    let message = format!("{running}/{wanted} ProxyGroup pods running");
    let reason = if running == wanted { reason::PROXY_GROUP_AVAILABLE } else { reason::PROXY_GROUP_CREATING };
    let available = if running > 0 { ConditionStatus::True } else { ConditionStatus::False };
    let now = work.observed.now;
    let condition = DesiredCondition { kind: PROXY_GROUP_AVAILABLE, status: available, reason, message: message.clone(), generation: 0 };
    conditions::set(&mut status.conditions, &condition, now);
    let pod_fault = (running < wanted).then(|| pod_fault(work, wanted)).flatten();
    let message = pod_fault.as_ref().map_or_else(|| message.clone(), |(pod, fault)| format!("{message}; Pod {pod}: {fault}"));
    let is_partial = running < wanted;
    let extra = (extra > 0).then(|| format!("waiting for {extra} ProxyGroup pods to shut down"));
    let (ready, reason, message) = match unready(work, &before.conditions, (is_partial.then(|| message.clone()), extra)) {
        Some((reason, message)) => (ConditionStatus::False, reason, message),
        None => (ConditionStatus::True, reason::PROXY_GROUP_READY, message),
    };
    let generation = group.metadata.generation.unwrap_or(0);
    let condition = DesiredCondition { kind: PROXY_GROUP_READY, status: ready, reason, message: message.clone(), generation };
    let edited =
        conditions::get(&before.conditions, PROXY_GROUP_READY).is_some_and(|existing| existing.observed_generation != Some(generation));
    let changed = conditions::set(&mut status.conditions, &condition, now);
    if edited {
        warn_other_tags(work, wanted);
    }
    published(work, &mut status);
    match route_overlaps::condition(work, wanted) {
        Some(overlap) => drop(conditions::set(&mut status.conditions, &overlap, now)),
        None => drop(conditions::remove(&mut status.conditions, ROUTES_OVERLAP)),
    }
    // The number of running Pods may change while the fault lasts.
    let reported = conditions::get(&before.conditions, PROXY_GROUP_READY).map_or("", |ready| ready.message.as_str());
    if changed && (!work.faults.is_empty() || pod_fault.is_some_and(|(_, fault)| !reported.contains(&fault))) {
        work.warn_workload(reason, message);
    }
    if status != before {
        work.plan.group.get_or_insert_with(GroupUpdate::default).status = Some(WorkloadStatus::Group(status));
    }
}

/// Why a group is not ready: its most severe fault, else the Kubernetes API that it may not publish, missing or extra Pods, or the Kubernetes
/// API that no replica serves.
fn unready(work: &PlanPart<'_>, before: &[Condition], pods: (Option<String>, Option<String>)) -> Option<(&'static str, String)> {
    let weight = |fault: &&WorkloadFault| WEIGHT.iter().position(|reason| *reason == fault.reason).unwrap_or(WEIGHT.len());
    let fault = work.faults.iter().min_by_key(weight).map(|fault| (fault.reason, fault.message.clone()));
    let (missing, extra) = pods;
    let creating = |message: Option<String>| message.map(|message| (reason::PROXY_GROUP_CREATING, message));
    fault
        .or_else(|| unmet(work, before, API_SERVER_VALID).map(|message| (reason::PROXY_GROUP_INVALID, message)))
        .or_else(|| creating(missing))
        .or_else(|| creating(extra))
        .or_else(|| creating(unmet(work, before, API_SERVER_CONFIGURED)))
}

/// Message of a condition of the Kubernetes API that is not true.
fn unmet(work: &PlanPart<'_>, before: &[Condition], kind: &str) -> Option<String> {
    if let Some(existing) = conditions::get(before, kind).filter(|_| work.keeps_conditions) {
        return (existing.status != TRUE).then(|| existing.message.clone());
    }
    let wanted = work.conditions.iter().find(|wanted| wanted.kind == kind)?;
    (wanted.status != ConditionStatus::True).then(|| wanted.message.clone())
}

/// Adds the conditions of advertised names, if the group advertises.
fn published(work: &PlanPart<'_>, status: &mut ProxyGroupStatus) {
    for kind in [PUBLISHED, CERTIFIED, API_SERVER_VALID, API_SERVER_CONFIGURED] {
        let present = conditions::get(&status.conditions, kind).is_some();
        match work.conditions.iter().find(|wanted| wanted.kind == kind) {
            _ if present && work.keeps_conditions => {}
            Some(wanted) => drop(conditions::set(&mut status.conditions, wanted, work.observed.now)),
            None => drop(conditions::remove(&mut status.conditions, kind)),
        }
    }
}

/// Reports faults of the control plane. Before the first response the previous condition stays.
pub(crate) fn tailnet(work: &mut PlanPart<'_>, group: &ProxyGroup) {
    let previous = {
        let conditions = group.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        conditions::get(conditions, PROXY_GROUP_READY)
            .filter(|ready| ready.reason == reason::PROXY_GROUP_TAILNET_UNAVAILABLE)
            .map(|ready| ready.message.clone())
    };
    report_tailnet(work, previous);
}

/// The first Pod that does not exist or does not run for a known reason, with the reason.
fn pod_fault(work: &Pass<'_>, wanted: u32) -> Option<(String, String)> {
    let fault = |ordinal| Some((names::replica(&work.owner.name, ordinal), work.observed.pod_fault(ordinal)?.text()));
    (0..wanted).find_map(fault)
}

/// Verified device of a live replica in the tailnet, with name and addresses of its record. Before there is a complete record, the device
/// that the status shows under this host name stays.
pub(crate) fn device(replica: &ObservedReplica, shown: &[TailnetDevice]) -> Option<TailnetDevice> {
    let reported = live_name(replica)?;
    let mut device = match replica.claimed_record() {
        Some(record) => {
            let hostname = record.name.as_ref()?.host().to_owned();
            TailnetDevice { hostname, tailnet_ips: record.addresses.texts(), static_endpoints: Vec::new() }
        }
        None if is_unread(replica) => shown.iter().find(|device| device.hostname == reported.host())?.clone(),
        None => return None,
    };
    let endpoints = replica.config.as_ref().and_then(|config| config.document.as_ref()?.get("StaticEndpoints")?.as_array());
    let endpoints = endpoints.into_iter().flatten().filter_map(|endpoint| endpoint.as_str().map(str::to_owned));
    device.static_endpoints = endpoints.collect();
    Some(device)
}

/// Name that a live replica reports: its Pod is ready and has joined.
pub(crate) fn live_name(replica: &ObservedReplica) -> Option<&DeviceName> {
    let (pod, state) = (replica.pod.as_deref()?, replica.state.as_deref()?);
    let same = state.pod_uid.as_deref()?.eq_ignore_ascii_case(pod.metadata.uid.as_deref()?);
    state.device_name.as_ref().filter(|_| same && readiness::is_ready(pod))
}

/// Whether a claimed device has no complete record yet, and no other record contradicts the claim.
pub(crate) fn is_unread(replica: &ObservedReplica) -> bool {
    let claim = replica.state.as_ref().and_then(|state| state.device_id.as_ref());
    claim.is_some_and(|claim| replica.device().is_none_or(|record| record.id == *claim && !record.is_complete()))
}
