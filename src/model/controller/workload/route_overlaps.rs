//! Condition for accepted routes that cover addresses of the cluster, as replicas report them.

use std::collections::BTreeSet;

use ipnet::IpNet;

use crate::api::condition::{ROUTES_OVERLAP, reason};
use crate::model::base::conditions::{ConditionStatus, DesiredCondition};
use crate::model::controller::workload::pass::Pass;

/// Maximum routes in a message.
const MAX_NAMED: usize = 5;

/// The condition while one of the first `wanted` replicas reports such a route. The report of a replica stays until its next one.
pub(crate) fn condition(work: &Pass<'_>, wanted: u32) -> Option<DesiredCondition<'static>> {
    let reports = work.observed.replicas.range(..wanted).filter_map(|(_, replica)| replica.state.as_ref());
    let routes: BTreeSet<IpNet> = reports.flat_map(|state| state.overlaps.keys().copied()).collect();
    if routes.is_empty() {
        return None;
    }
    let mut listed: Vec<String> = routes.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    listed.extend((routes.len() > MAX_NAMED).then(|| format!("{} more", routes.len() - MAX_NAMED)));
    let message = format!(
        "The proxy accepts routes of the tailnet that cover addresses of this cluster: {}. It does not use them for replies and its own \
         connections. Advertise other subnets, or remove acceptRoutes from the ProxyClass.",
        listed.join(", ")
    );
    let (status, reason) = (ConditionStatus::True, reason::ROUTE_COVERS_CLUSTER);
    Some(DesiredCondition { kind: ROUTES_OVERLAP, status, reason, message, generation: 0 })
}
