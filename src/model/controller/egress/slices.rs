//! `EndpointSlice`s of children: those that the Tailscale operator wrote, and those that Kubernetes' controller will write.
//!
//! Children select the group's Pods, so their slices need no reconciler. Only in a group of many children the reconciler is faster: it
//! writes what Kubernetes' controller would write, once for each change of a Pod. A slice that is newer than every change stays, whatever
//! its content, so that the two never undo each other's writes.

use std::cmp::Reverse;
use std::time::Duration;

use serde_json::Value;

use crate::api::names;
use crate::model::controller::workload::objects::slice::{MANAGED_BY, PodEndpoint, SERVICE_NAME, SliceOwner};
use crate::model::controller::workload::objects::{Kind, ObjectRef, Owner};
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::is_terminating;
use crate::model::controller::workload::readiness::elapsed;

/// Up to this number of children Kubernetes' controller is as fast: it may send 30 requests at once.
const FEW_CHILDREN: usize = 16;
/// Age of a child without slice: Kubernetes' controller writes the first of many at once.
const MISSING_SLICE_WAIT: Duration = Duration::from_secs(2);
/// The same of the oldest children, as many as [`FEW_CHILDREN`]: Kubernetes' controller is about to write their slices, and has to delete
/// a second one.
const OLDEST_SLICE_WAIT: Duration = Duration::from_secs(10);

/// Maximum slices written by one pass: Pods change meanwhile, and the next pass writes their new state.
pub const MAX_SLICE_WRITES: usize = 256;

/// Whether the Tailscale operator wrote a slice itself.
pub fn is_manual(slice: &Value) -> bool {
    slice["metadata"]["labels"][MANAGED_BY] == "tailscale.com"
}

pub(crate) fn slices(work: &mut PlanPart<'_>, owner: &Owner) {
    manual(work, owner);
    let observed = work.observed;
    let is_child = |child: &Value| child["metadata"]["labels"][names::SERVICE_TYPE] == names::EGRESS && !is_terminating(child);
    let children = || observed.of(Kind::Service).filter(|(_, child)| is_child(child));
    if children().count() <= FEW_CHILDREN {
        return;
    }
    let pods = observed.replicas.iter().filter_map(|(ordinal, replica)| Some(PodEndpoint::new(*ordinal, replica.pod.as_deref()?)));
    let mut pods: Vec<_> = pods.collect();
    let mut stale = Vec::new();
    for (object, child) in children() {
        let slices = observed.slices.get(object.name.as_str()).map(Vec::as_slice).unwrap_or_default();
        stale.extend(SliceOwner::new(object, child).stale(slices, &pods));
    }
    stale.sort_by_key(|slice| (slice.missing(), Reverse(slice.version())));
    let mut missing = 0;
    stale.retain(|slice| {
        let Some((_, created)) = slice.missing() else { return true };
        missing += 1;
        let wait = if missing > FEW_CHILDREN { MISSING_SLICE_WAIT } else { OLDEST_SLICE_WAIT };
        let wait = wait.saturating_sub(elapsed(created, observed.now));
        if !wait.is_zero() {
            work.again(wait);
        }
        wait.is_zero()
    });
    if !stale.is_empty() {
        for pod in &mut pods {
            pod.learn_zone(observed.slices.values().flatten().map(AsRef::as_ref));
        }
    }
    // Of missing ones the newest first: Kubernetes' controller begins with the oldest. Of the others the one written longest ago.
    work.plan.slices = stale.iter().rev().filter_map(|slice| slice.write(&owner.name, &pods)).take(MAX_SLICE_WRITES).collect();
}

/// Deletes slices that the Tailscale operator wrote, once Kubernetes' own have replaced them.
fn manual(work: &mut PlanPart<'_>, owner: &Owner) {
    let child = |slice: &Value| slice["metadata"]["labels"][SERVICE_NAME].as_str().map(str::to_owned);
    let served = |child: &str| work.observed.slices.get(child).is_some_and(|slices| slices.iter().any(|slice| slice.ready));
    let there = |child: &str| work.observed.owned.contains_key(&ObjectRef::new(Kind::Service, &owner.namespace, child));
    let old = work.observed.of(Kind::EndpointSlice).filter(|(_, slice)| is_manual(slice));
    let gone = old.filter(|(_, slice)| child(slice).is_none_or(|child| served(&child) || !there(&child)));
    let gone: Vec<_> = gone.map(|(object, _)| object.clone()).collect();
    for object in gone {
        work.delete(&object);
    }
}
