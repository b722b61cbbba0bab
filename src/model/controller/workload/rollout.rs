//! Whether a Pod runs the template of its `StatefulSet`, and deletion of a `StatefulSet` that cannot replace its Pod.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::model::controller::workload::objects::{Kind, ObjectRef, Owner};
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::Pass;
use crate::model::controller::workload::readiness::is_ready;

/// Requeue delay of a withheld template.
pub(crate) const TEMPLATE_REQUEUE: Duration = Duration::from_secs(15);

/// Deletes each `StatefulSet` whose unready Pod has an older template. With `OrderedReady` Kubernetes would replace the Pod only once it is
/// ready, which it may never be; the next pass creates the `StatefulSet` again.
pub(crate) fn delete_stuck(work: &mut PlanPart<'_>) {
    let pods: Vec<_> = pods(work).collect();
    for pod in pods {
        let object = set_ref(work.owner, pod);
        let Some(set) = work.owned(&object) else { continue };
        let uid = set["metadata"]["uid"].as_str();
        let is_own = pod.metadata.owner_references.iter().flatten().any(|reference| Some(reference.uid.as_str()) == uid);
        let waits = !is_ready(pod) && pod.metadata.deletion_timestamp.is_none();
        if is_own && waits && is_outdated(set, pod) && !work.is_planned(&object) {
            work.delete(&object);
        }
    }
}

/// Pods of a workload: the active one first.
pub(crate) fn pods<'a>(work: &Pass<'a>) -> impl Iterator<Item = &'a Pod> {
    let active = work.observed.replicas.get(&0).and_then(|replica| replica.pod.as_deref());
    active.into_iter().chain(work.observed.waiting.as_deref())
}

/// `StatefulSet` of a Pod: of the first one, or of the second one of a proxy with standby.
pub(crate) fn set_ref(owner: &Owner, pod: &Pod) -> ObjectRef {
    let name = pod.metadata.name.as_deref().and_then(|name| name.rsplit_once('-')).map_or(owner.name.as_str(), |(set, _)| set);
    ObjectRef::new(Kind::StatefulSet, &owner.namespace, name)
}

/// Whether a Pod has the template of its `StatefulSet`, which Kubernetes has observed.
pub(crate) fn is_current(set: &Value, pod: &Pod) -> bool {
    let generation = set["metadata"]["generation"].as_u64();
    generation <= set["status"]["observedGeneration"].as_u64().or(generation) && !is_outdated(set, pod)
}

/// Whether a Pod has an older template than its `StatefulSet`.
pub(crate) fn is_outdated(set: &Value, pod: &Pod) -> bool {
    let revision = pod.metadata.labels.as_ref().and_then(|labels| labels.get("controller-revision-hash"));
    set["status"]["updateRevision"].as_str().zip(revision).is_some_and(|(update, revision)| update != revision)
}
