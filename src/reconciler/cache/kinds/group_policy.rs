//! Policies of a namespace, and the admission objects that enforce them. The work key is the namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::WatchedKind;
use crate::api::proxygrouppolicy::ProxyGroupPolicy;
use crate::model::controller::kinds::group_policy::namespace_of;
use crate::model::controller::workload::objects::{Kind, ObjectRef};
use crate::reconciler::cache::{ClusterCache, Id, WatchRole, WorkKey};

impl WatchedKind for ProxyGroupPolicy {
    type Object = Self;

    fn prune(policy: Self) -> Option<Self> {
        Some(policy)
    }

    fn keys(&self, _cache: &ClusterCache, id: &Id) -> BTreeSet<WorkKey> {
        Self::own_key(id).into_iter().collect()
    }

    fn own_key((namespace, _): &Id) -> Option<WorkKey> {
        Some(WorkKey::GroupPolicies(namespace.clone()))
    }
}

/// Work key of an admission object; `None` for other objects.
pub(super) fn admission_key(kind: Kind, (_, name): &Id) -> Option<WorkKey> {
    namespace_of(kind, name).map(|namespace| WorkKey::GroupPolicies(namespace.to_owned()))
}

impl ClusterCache {
    /// Policies of a namespace; none in an uninstall, so that its admission objects are deleted.
    pub fn group_policies(&self, namespace: &str) -> Vec<Arc<ProxyGroupPolicy>> {
        let all = self.all_of::<ProxyGroupPolicy>().filter(|((of, _), _)| of == namespace && !self.is_uninstall_requested());
        all.map(|(_, policy)| Arc::clone(policy)).collect()
    }

    /// Admission objects of a namespace.
    pub fn admission_objects(&self, namespace: &str) -> BTreeMap<ObjectRef, Arc<Value>> {
        let of_kind = move |kind: Kind| {
            let own = self.objects(WatchRole::Owned(kind)).filter(move |((_, name), _)| namespace_of(kind, name) == Some(namespace));
            own.filter_map(move |((_, name), object)| Some((ObjectRef::new(kind, "", name.clone()), Arc::clone(object.owned()?))))
        };
        Kind::ADMISSION.into_iter().flat_map(of_kind).collect()
    }

    /// Work keys of all admission objects, also of namespaces without a policy.
    pub(in crate::reconciler::cache) fn admission_keys(&self) -> impl Iterator<Item = WorkKey> {
        let of_kind = move |kind: Kind| self.objects(WatchRole::Owned(kind)).filter_map(move |(id, _)| admission_key(kind, id));
        Kind::ADMISSION.into_iter().flat_map(of_kind)
    }
}
