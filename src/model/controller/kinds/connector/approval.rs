//! Approval of a Connector's routes: reads at the control plane, and the condition that names advertised routes that are not approved.
//!
//! Devices advertise what their config says. Peers use a route of a device that the control plane has approved for it. Nothing that is
//! served depends on these reads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::api::condition::{Condition, ROUTES_APPROVED, reason};
use crate::model::base::conditions;
use crate::model::base::conditions::{ConditionStatus, DesiredCondition};
use crate::model::controller::ingress::service_state::MAX_CONTROL_DATA_AGE;
use crate::model::controller::ingress::summary::list;
use crate::model::controller::workload::actions::ControlAction;
use crate::model::controller::workload::device_records::reread;
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::readiness::elapsed;
use crate::model::controller::workload::tailnet_setting::AUTO_APPROVERS;

/// Interval of reads while a route is not approved.
const UNAPPROVED_INTERVAL: Duration = Duration::from_secs(30);
/// Minimum interval of reads for each device of all workloads: each read is two requests.
const DEVICE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum reads in one pass, and the time until the next ones.
const MAX_READS: usize = 8;
const NEXT_READS_DELAY: Duration = Duration::from_secs(2);

/// Sets or removes the condition, and plans reads. While a device is not read or does not advertise all routes yet, the former condition stays
/// unless a route is not approved.
pub(crate) fn report(
    work: &mut PlanPart<'_>,
    routes: &BTreeSet<String>,
    (replicas, generation): (u32, i64),
    conditions: &mut Vec<Condition>,
) {
    let observed = work.observed;
    let devices =
        observed.replicas.range(..replicas).filter_map(|(_, replica)| Some((replica.claimed_record()?, replica.state.as_deref()?)));
    let devices: Vec<_> = devices.filter(|_| !routes.is_empty()).collect();
    let count = u32::try_from(observed.devices.index.count()).unwrap_or(u32::MAX);
    let (mut missing, mut fault, mut is_complete) = (BTreeMap::<_, Vec<String>>::new(), None, true);
    let (mut due, mut next): (Vec<(Option<Timestamp>, ControlAction)>, _) = (Vec::new(), None);
    for (record, state) in &devices {
        let read = observed.publish.approved.get(&record.id);
        let mut interval = MAX_CONTROL_DATA_AGE;
        if let Some(read) = read {
            let advertised = routes.intersection(&state.routes);
            let lacking: Vec<String> = advertised.filter(|route| !read.routes.contains(*route)).cloned().collect();
            fault = fault.or(read.fault.as_deref());
            if !lacking.is_empty() && read.fault.is_none() {
                interval = UNAPPROVED_INTERVAL;
                let host = record.name.as_ref().map(|name| name.host().to_owned());
                missing.entry(lacking).or_default().extend(host);
            }
        }
        is_complete &= read.is_some() && routes.is_subset(&state.routes);
        let interval = interval.max(DEVICE_INTERVAL.saturating_mul(count));
        let wait = read.map_or(Duration::ZERO, |read| interval.saturating_sub(elapsed(read.at, observed.now)));
        if wait.is_zero() {
            due.push((read.map(|read| read.at), ControlAction::ReadRoutes { device: reread(record) }));
        }
        next = next.into_iter().chain([if wait.is_zero() { interval } else { wait }]).min();
    }
    if observed.tailnet.is_ready() {
        due.sort_by_key(|(at, _)| *at);
        let next = if due.len() > MAX_READS { Some(NEXT_READS_DELAY) } else { next };
        work.plan.control.extend(due.into_iter().take(MAX_READS).map(|(_, read)| read));
        if let Some(next) = next {
            work.again(next);
        }
    }
    if devices.is_empty() {
        conditions::remove(conditions, ROUTES_APPROVED);
    } else if is_complete || !missing.is_empty() {
        let (status, reason, message) = outcome(&missing, fault, (routes.len(), devices.len()));
        conditions::set(conditions, &DesiredCondition { kind: ROUTES_APPROVED, status, reason, message, generation }, observed.now);
    }
}

/// Status, reason and message. `missing`: devices by the routes that are not approved for them.
fn outcome(
    missing: &BTreeMap<Vec<String>, Vec<String>>,
    fault: Option<&str>,
    (routes, devices): (usize, usize),
) -> (ConditionStatus, &'static str, String) {
    if !missing.is_empty() {
        let named: Vec<String> = missing.iter().map(|(routes, hosts)| format!("{} ({})", list(hosts), list(routes))).collect();
        let message = format!(
            "The control plane has not approved routes that devices advertise, and peers do not use them: {}. Approve them there, or list them \
             in {AUTO_APPROVERS}.routes of the policy, an exit node in {AUTO_APPROVERS}.exitNode.",
            list(&named)
        );
        return (ConditionStatus::False, reason::ROUTES_NOT_APPROVED, message);
    }
    if let Some(fault) = fault {
        let message = format!("Whether the routes are approved is unknown: {fault}");
        return (ConditionStatus::Unknown, reason::ROUTES_UNREADABLE, message);
    }
    (ConditionStatus::True, reason::ROUTES_APPROVED, format!("{routes} routes of {devices} devices are approved"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_bounded_at_the_maximum_of_routes_and_devices() {
        let routes = |device: usize| (device..1_000).map(|number| format!("fd7a:115c:a1e0:b1a:0:{number:x}:a2c:0/116")).collect();
        let missing = (0..100).map(|device| (routes(device), vec!["h".repeat(63); 100])).collect();
        let (status, _, message) = outcome(&missing, None, (1_000, 100));
        assert!(status == ConditionStatus::False && message.contains("and 95 more") && message.len() < 5_000, "{message}");
    }
}
