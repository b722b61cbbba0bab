//! Pace of replacements: a change of the Pod template of many standalone proxies, such as another image, replaces a few Pods at a time.

use crate::model::controller::key::WorkloadKey;
use std::collections::BTreeSet;
use std::time::Duration;

use crate::model::controller::workload::objects::{Kind, ObjectRef};
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::readiness::{elapsed, is_ready, unready_since};
use crate::model::controller::workload::rollout::{TEMPLATE_REQUEUE, is_outdated, set_ref};

/// Maximum proxies that are being replaced.
const MAX_REPLACED: usize = 10;
/// Time after which an unready proxy is not awaited: others may be replaced meanwhile.
const MAX_WAIT: Duration = Duration::from_mins(5);

/// Keys of the standalone proxies that are being replaced, according to the last pass of each.
#[derive(Debug, Default)]
pub struct Replacements(BTreeSet<WorkloadKey>);

impl Replacements {
    /// Records the plan of a pass.
    pub fn record(&mut self, key: &WorkloadKey, is_replaced: bool) {
        if !is_replaced {
            self.0.remove(key);
        } else if !self.0.contains(key) {
            self.0.insert(key.clone());
        }
    }

    /// Number of others.
    pub fn besides(&self, key: &WorkloadKey) -> usize {
        self.0.len() - usize::from(self.0.contains(key))
    }
}

/// Withholds a changed template of a proxy that serves, while many others are being replaced.
pub(crate) fn pace(work: &mut PlanPart<'_>) {
    let observed = work.observed;
    let Some(pod) = observed.replicas.get(&0).and_then(|replica| replica.pod.as_deref()) else { return };
    let Some(set) = observed.owned.get(&set_ref(work.owner, pod)) else { return };
    let is_changed = |object: &ObjectRef| object.kind == Kind::StatefulSet && observed.owned.contains_key(object);
    let changes = work.plan.apply.iter().any(|manifest| is_changed(&manifest.object));
    let serves = is_ready(pod);
    if changes && serves && observed.replacements >= MAX_REPLACED {
        work.plan.apply.retain(|manifest| !is_changed(&manifest.object));
        return work.again(TEMPLATE_REQUEUE);
    }
    let is_awaited = unready_since(pod).is_some_and(|since| elapsed(since, observed.now) < MAX_WAIT);
    work.plan.replaces = if serves { changes || is_outdated(set, pod) } else { is_awaited };
}
