//! Events about Pods that `StatefulSet`s cannot create: of each known set the newest one.
//!
//! Pods with the Tailscale operator's image may create Events. Those about unknown sets are not stored, so that the number of Events is that
//! of the sets at most.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use super::{CachedObject, ClusterCache, Id, WatchRole};
use crate::model::controller::workload::observed::replica::ObservedReplica;
use crate::model::controller::workload::pod_fault::CreateFailure;

impl ClusterCache {
    /// Whether an Event is about a known set, and newer than the stored one, which is removed.
    pub(super) fn admits_failure(&mut self, id: &Id, version: u64, event: &CachedObject) -> bool {
        let CachedObject::CreateFailure(failure) = event else { return false };
        if self.named_workload(&failure.set).is_none() {
            return false;
        }
        let role = WatchRole::CreateFailure;
        let other = self.indices.create_failures.get(&failure.set).map(|(other, _)| other).filter(|other| *other != id).cloned();
        let is_newest = other.as_ref().is_none_or(|other| !self.store(role).newer_than(other, version));
        if let Some(other) = other.filter(|_| is_newest) {
            self.drop_stored(role, &other);
        }
        is_newest
    }

    /// Removes the Event about a set that is not known any more.
    pub(super) fn forget_failure(&mut self, set: &str) {
        if self.named_workload(set).is_none()
            && let Some((event, _)) = self.indices.create_failures.remove(set)
        {
            self.store(WatchRole::CreateFailure).objects.remove(&event);
        }
    }

    /// Why Pods of a workload cannot be created.
    pub(super) fn create_failure(
        &self,
        workload: &str,
        replicas: &BTreeMap<u32, ObservedReplica>,
        now: Timestamp,
    ) -> Option<CreateFailure> {
        let (_, failure) = self.indices.create_failures.get(workload)?;
        CreateFailure::current([&**failure], replicas.values().filter_map(|replica| replica.pod.as_deref()), now).cloned()
    }
}
