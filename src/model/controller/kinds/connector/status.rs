//! Status of a Connector: devices in the order of their ordinals, routes, and whether every device is in the tailnet.

use crate::api::condition::{CONNECTOR_READY, FALSE, ROUTES_APPROVED, ROUTES_OVERLAP, reason};
use crate::api::connector::{Connector, ConnectorDevice, ConnectorStatus};
use crate::api::names;
use crate::model::base::conditions;
use crate::model::base::conditions::{ConditionStatus, DesiredCondition};
use crate::model::controller::kinds::connector::approval;
use crate::model::controller::kinds::connector::routes::AdvertisedRoutes;
use crate::model::controller::kinds::proxygroup::status::{is_unread, live_name};
use crate::model::controller::workload::actions::{GroupUpdate, WorkloadStatus};
use crate::model::controller::workload::observed::replica::ObservedReplica;
use crate::model::controller::workload::part::{PlanPart, WorkloadFault};
use crate::model::controller::workload::provision::report_tailnet;
use crate::model::controller::workload::proxy_state::ProxyState;
use crate::model::controller::workload::replicas::warn_other_tags;
use crate::model::controller::workload::route_overlaps;

/// Plans the status. `routes`: what the devices advertise now; `None`: what they advertised before.
pub(crate) fn status(work: &mut PlanPart<'_>, connector: &Connector, routes: Option<&AdvertisedRoutes>) {
    let before = connector.status.clone().unwrap_or_default();
    let wanted = work.spec.map_or(0, |spec| spec.replicas);
    // An invalid spec changes no device, and a deletion ends them one after the other.
    let devices = devices(work, if routes.is_some() { wanted } else { u32::MAX }, &before.devices);
    let first = devices.first().cloned().unwrap_or_default();
    let running = devices.len();
    let mut status = ConnectorStatus { devices, tailnet_ips: first.tailnet_ips, hostname: first.hostname, ..before.clone() };
    if let Some(routes) = routes {
        let subnets = connector.spec.subnet_router.as_ref();
        status.subnet_routes = subnets.map(|subnets| subnets.advertise_routes.join(",")).unwrap_or_default();
        status.is_exit_node = routes.has_exit();
        status.is_app_connector = connector.spec.app_connector.is_some();
    }
    let now = work.observed.now;
    let (ready, reason, message) = ready(work, (running, wanted), routes);
    let generation = connector.metadata.generation.unwrap_or_default();
    let former = conditions::get(&before.conditions, CONNECTOR_READY);
    let is_edited = former.is_some_and(|former| former.observed_generation != Some(generation));
    let former = former.map_or_else(String::new, |former| former.message.clone());
    let condition = DesiredCondition { kind: CONNECTOR_READY, status: ready, reason, message: message.clone(), generation };
    conditions::set(&mut status.conditions, &condition, now);
    match route_overlaps::condition(work, wanted) {
        Some(overlap) => drop(conditions::set(&mut status.conditions, &overlap, now)),
        None => drop(conditions::remove(&mut status.conditions, ROUTES_OVERLAP)),
    }
    if let Some(routes) = routes {
        approval::report(work, &routes.texts(), (wanted, generation), &mut status.conditions);
    }
    if is_edited {
        warn_other_tags(work, wanted);
    }
    if !work.faults.is_empty() && former != message {
        work.warn_workload(reason, message);
    }
    if status != before {
        work.plan.group.get_or_insert_with(GroupUpdate::default).status = Some(WorkloadStatus::Connector(status));
    }
}

/// Reports faults of the control plane. Before the first response the previous condition stays.
pub(crate) fn tailnet(work: &mut PlanPart<'_>, connector: &Connector) {
    let previous = {
        let conditions = connector.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let former = conditions::get(conditions, CONNECTOR_READY).filter(|former| former.reason == reason::CONNECTOR_CREATION_FAILED);
        former.map(|former| former.message.clone())
    };
    report_tailnet(work, previous.filter(|_| work.faults.is_empty()));
}

/// State of a Connector that is not in deletion, as its conditions report it.
pub(crate) fn state(work: &PlanPart<'_>) -> Option<ProxyState> {
    let connector = work.observed.connector.as_deref().filter(|_| work.observed.ends_since().is_none())?;
    let planned = work.plan.group.as_ref().and_then(|update| update.status.clone()?.connector());
    let status = planned.as_ref().or(connector.status.as_ref())?;
    let ready = conditions::get(&status.conditions, CONNECTOR_READY).map(|ready| ProxyState::of_reason(&ready.reason))?;
    let is_unapproved = conditions::get(&status.conditions, ROUTES_APPROVED).is_some_and(|approved| approved.status == FALSE);
    Some(if is_unapproved { ready.max(ProxyState::Pending) } else { ready })
}

fn ready(
    work: &PlanPart<'_>,
    (running, wanted): (usize, u32),
    routes: Option<&AdvertisedRoutes>,
) -> (ConditionStatus, &'static str, String) {
    if let Some(fault) = work.faults.iter().min_by_key(|fault| fault.reason != reason::CONNECTOR_INVALID) {
        return (ConditionStatus::False, reason_of(fault), fault.message.clone());
    }
    let extra = work.observed.replicas.range(wanted..).filter(|(_, replica)| replica.pod.is_some()).count();
    let count = format!("{running} of {wanted} devices are in the tailnet");
    if running < usize::try_from(wanted).unwrap_or(usize::MAX) {
        let fault = (0..wanted).find_map(|ordinal| {
            let pod = names::replica(&work.owner.name, ordinal);
            Some(format!("{count}; Pod {pod}: {}", work.observed.pod_fault(ordinal)?.text()))
        });
        return (ConditionStatus::False, reason::CONNECTOR_CREATING, fault.unwrap_or(count));
    }
    if extra > 0 {
        return (ConditionStatus::False, reason::CONNECTOR_CREATING, format!("waiting for {extra} Pods to shut down"));
    }
    let routes = routes.map_or(0, AdvertisedRoutes::count);
    let message = match (wanted, routes) {
        (0, _) => "the Connector has no devices, as spec.replicas is 0".to_owned(),
        (_, 0) => count,
        (_, routes) => format!("{count} and advertise {routes} routes"),
    };
    (ConditionStatus::True, reason::CONNECTOR_CREATED, message)
}

/// Reason of a fault in the condition: those of the provisioner are a group's.
fn reason_of(fault: &WorkloadFault) -> &'static str {
    match fault.reason {
        reason::CONNECTOR_INVALID => reason::CONNECTOR_INVALID,
        reason::PROXY_GROUP_CREATING => reason::CONNECTOR_CREATING,
        _ => reason::CONNECTOR_CREATION_FAILED,
    }
}

fn devices(work: &PlanPart<'_>, until: u32, shown: &[ConnectorDevice]) -> Vec<ConnectorDevice> {
    work.observed.replicas.range(..until).filter_map(|(_, replica)| device(replica, shown)).collect()
}

/// Verified device of a live replica, with name and addresses of its record. Before there is a complete record, the device that the status
/// shows under this name stays.
fn device(replica: &ObservedReplica, shown: &[ConnectorDevice]) -> Option<ConnectorDevice> {
    let reported = live_name(replica)?;
    match replica.claimed_record() {
        Some(record) => {
            let hostname = record.name.as_ref()?.as_str().to_owned();
            Some(ConnectorDevice { hostname, tailnet_ips: record.addresses.texts() })
        }
        None if is_unread(replica) => shown.iter().find(|device| device.hostname == reported.as_str()).cloned(),
        None => None,
    }
}
