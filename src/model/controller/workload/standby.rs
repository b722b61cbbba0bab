//! Warm standby of a standalone proxy: a second Pod that takes over its identity.
//!
//! A Lease decides which Pod is active. Two rules hold: the second Pod never exists beside a Pod of a template without the Lease,
//! and a template changes in the waiting Pod first, in the active one once the other waits again.

use k8s_openapi::api::core::v1::Pod;

use crate::model::controller::workload::naming::standby_name;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::objects::statefulset::standby_set;
use crate::model::controller::workload::objects::{Kind, ObjectRef, Owner};
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::Pass;
use crate::model::controller::workload::rollout::{TEMPLATE_REQUEUE, is_current, pods, set_ref};

/// `StatefulSet`s of a workload: of the first Pod and of the second one.
pub(crate) fn sets(owner: &Owner) -> [ObjectRef; 2] {
    [owner.name.clone(), standby_name(&owner.name)].map(|name| ObjectRef::new(Kind::StatefulSet, &owner.namespace, name))
}

/// Plans the second Pod, or its removal. The `StatefulSet` of the first one is planned already.
pub(crate) fn standby(work: &mut PlanPart<'_>, shape: &RenderContext<'_>) {
    let [first, second] = sets(work.owner);
    if !shape.standby() {
        work.delete(&second);
        if work.owned(&second).is_some() || pod_of(work, &second).is_some() {
            withhold(work, &first);
        }
        return;
    }
    let existing = work.owned(&second).map(|set| &**set);
    if existing.is_some() || has_lease(work, &first) {
        work.want(standby_set(shape, existing));
    }
    let is_first_active = pods(work).next().is_none_or(|pod| set_ref(work.owner, pod) == first);
    let (active, waiting) = if is_first_active { (first, second) } else { (second, first) };
    if existing.is_some() && work.is_planned(&active) && !waits(work, &waiting) {
        withhold(work, &active);
    }
}

/// Whether the first `StatefulSet`, and its Pod if there is one, have the template with the Lease.
fn has_lease(work: &PlanPart<'_>, first: &ObjectRef) -> bool {
    let Some(set) = work.owned(first) else { return false };
    !work.is_planned(first) && pod_of(work, first).is_none_or(|pod| is_current(set, pod))
}

/// Whether the Pod of a `StatefulSet` runs its current template.
fn waits(work: &PlanPart<'_>, object: &ObjectRef) -> bool {
    let (Some(set), Some(pod)) = (work.owned(object), pod_of(work, object)) else { return false };
    let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    let runs =
        !containers.is_empty() && containers.iter().all(|container| container.state.as_ref().is_some_and(|state| state.running.is_some()));
    runs && pod.metadata.deletion_timestamp.is_none() && !work.is_planned(object) && is_current(set, pod)
}

fn pod_of<'a>(work: &Pass<'a>, object: &ObjectRef) -> Option<&'a Pod> {
    pods(work).find(|pod| set_ref(work.owner, pod) == *object)
}

fn withhold(work: &mut PlanPart<'_>, object: &ObjectRef) {
    work.plan.apply.retain(|manifest| manifest.object != *object);
    work.again(TEMPLATE_REQUEUE);
}
