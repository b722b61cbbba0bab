//! Groups of types that this reconciler does not serve.
//!
//! The Tailscale operator may serve them. So nothing is created, changed or reported while another controller has its finalizer or
//! conditions on the group, or may still add them: two writers of one status would never stop.

use std::time::Duration;

use crate::api::condition::reason;
use crate::api::proxygroup::ProxyGroup;
use crate::model::controller::egress::memo::Memory;
use crate::model::controller::egress::without;
use crate::model::controller::kinds::proxygroup::status;
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::Pass;
use crate::model::controller::workload::readiness::elapsed;

/// Time for another controller to take the group before we report that none has.
const TIMEOUT: Duration = Duration::from_mins(5);
/// Message after that time.
const MESSAGE: &str = "Groups of this type are not served by this version of Tailyard, and no other controller manages this one: leave the \
     ProxyGroup to the Tailscale operator.";

/// Reconciles our part: Services that name the group for egress.
pub(crate) fn plan_unmanaged<'a>(pass: &Pass<'a>, group: &ProxyGroup, memory: &Memory) -> PlanPart<'a> {
    if is_managed_by_another(group) || group.metadata.deletion_timestamp.is_some() {
        return without(pass, memory, None);
    }
    let age = group.metadata.creation_timestamp.as_ref().map(|created| elapsed(created.0, pass.observed.now));
    if let Some(rest) = age.and_then(|age| TIMEOUT.checked_sub(age)).filter(|rest| !rest.is_zero()) {
        let mut plan = without(pass, memory, None);
        plan.again(rest);
        return plan;
    }
    let mut plan = without(pass, memory, Some("is not of type egress: name a group that is."));
    plan.fault(reason::PROXY_GROUP_INVALID, MESSAGE.into());
    status::status(&mut plan, group, group.spec.replicas.unwrap_or_default().try_into().unwrap_or_default());
    plan
}

/// Whether another controller manages the group.
fn is_managed_by_another(group: &ProxyGroup) -> bool {
    let conditions = group.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let is_ours = conditions.iter().any(|condition| condition.message == MESSAGE);
    group.metadata.finalizers.as_ref().is_some_and(|all| !all.is_empty()) || (!conditions.is_empty() && !is_ours)
}
