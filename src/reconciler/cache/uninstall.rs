//! Progress of an uninstall: which workloads are released, and what remains.
//!
//! The indices follow the usual rules, so that a pass sees every object of its workload; only the passes see that no object is assigned.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use super::kinds::WatchedKind;
use super::{ClusterCache, WatchRole, WorkKey};
use crate::api::names;
use crate::api::proxyclass::ProxyClass;
use crate::api::tailnet::Tailnet;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::kinds::ExcludingSetting;
use crate::model::controller::policy::assignment::AssignmentRules;
use crate::model::controller::workload::finalizers;
use crate::model::controller::workload::objects::Kind;
use crate::model::controller::workload::objects::certificate::accounts_ref;

#[derive(Debug, Default)]
pub(super) struct Uninstall {
    requested: Option<Timestamp>,
    /// Whether nothing of a workload remains, as of its last pass.
    released: BTreeMap<WorkloadKey, bool>,
}

impl ClusterCache {
    /// Begins or cancels an uninstall.
    pub fn set_uninstall(&mut self, requested: Option<Timestamp>) {
        self.uninstall = Uninstall { requested, released: BTreeMap::new() };
    }

    /// Records whether something of a workload remains.
    pub fn set_released(&mut self, key: &WorkloadKey, is_released: bool) {
        self.uninstall.released.insert(key.clone(), is_released);
    }

    pub fn is_uninstall_requested(&self) -> bool {
        self.uninstall.requested.is_some()
    }

    /// Whether an uninstall has released every workload: what workloads use is released then.
    pub fn is_uninstalled(&self) -> bool {
        self.uninstall.requested.is_some() && self.unreleased().is_empty()
    }

    /// What an uninstall has not released yet: workloads, then the classes and Tailnets that they use, the objects that
    /// enforce policies, and the nameserver.
    pub fn remaining(&self) -> Vec<WorkKey> {
        let workloads = self.unreleased();
        if !workloads.is_empty() {
            return workloads.into_iter().map(WorkKey::Workload).collect();
        }
        let classes = self.all_of::<ProxyClass>().filter_map(|(id, class)| Some((ProxyClass::own_key(id)?, &class.metadata)));
        let tailnets = self.all_of::<Tailnet>().filter_map(|(id, tailnet)| Some((Tailnet::own_key(id)?, &tailnet.metadata)));
        let used = classes.chain(tailnets).filter(|(_, metadata)| finalizers::has(metadata, names::FINALIZER)).map(|(key, _)| key);
        let policed: BTreeSet<_> = self.admission_keys().collect();
        used.chain(policed).chain(self.nameserver_leftovers()).collect()
    }

    fn unreleased(&self) -> Vec<WorkloadKey> {
        let workloads = self.all().into_iter().filter_map(|key| if let WorkKey::Workload(key) = key { Some(key) } else { None });
        workloads.filter(|key| self.uninstall.released.get(key) != Some(&true)).collect()
    }

    /// The setting by which no pass releases an object that this reconciler served earlier; `None` before its pass in an uninstall.
    pub fn excluded_by(&self, key: &WorkKey) -> Option<ExcludingSetting> {
        let WorkKey::Workload(key) = key else { return None };
        self.uninstall.released.get(key)?;
        let group = key.group().and_then(|name| self.group(name));
        ExcludingSetting::find(key, group.as_deref(), &self.types, &self.assignment)
    }

    /// Whether the Secret of shared ACME accounts exists, and no proxy that another operator created uses it.
    pub fn has_unused_accounts(&self, namespace: &str) -> bool {
        let has_proxies = self.objects(WatchRole::Owned(Kind::StatefulSet)).next().is_some();
        !has_proxies && self.owned_object(&accounts_ref(namespace)).is_some()
    }

    /// Names of the groups that exist.
    pub fn group_names(&self) -> Vec<String> {
        self.groups().map(|(name, _)| name.clone()).collect()
    }

    /// Rules of the passes: in an uninstall no object is assigned.
    pub(super) fn rules_of_passes(&self) -> Arc<AssignmentRules> {
        match self.uninstall.requested {
            None => Arc::clone(&self.assignment),
            uninstall => Arc::new(AssignmentRules { uninstall, ..(*self.assignment).clone() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::proxygroup::ProxyGroupType;
    use crate::model::controller::policy::assignment::StandaloneScope;

    #[test]
    fn setting_that_excludes_an_object_is_named_after_its_pass() {
        let namespaces = |name: &str| StandaloneScope::Namespaces(vec![name.to_owned()]);
        for (standalone, types, key, wanted) in [
            (StandaloneScope::Nowhere, &ProxyGroupType::SERVED[..], "u/web", Some("standalone.enabled is false")),
            (namespaces("v"), &ProxyGroupType::SERVED[..], "u/web", Some("its namespace is not in watchNamespaces")),
            (namespaces("u"), &ProxyGroupType::SERVED[..], "u/web", None),
            (StandaloneScope::Everywhere, &[ProxyGroupType::Egress][..], "in", Some("its type is not in proxyGroupTypes")),
            (StandaloneScope::Nowhere, &ProxyGroupType::SERVED[..], "in", None),
            (StandaloneScope::Nowhere, &[ProxyGroupType::Egress][..], "gone", None),
        ] {
            let rules = AssignmentRules { standalone, ..AssignmentRules::default() };
            let mut cache = ClusterCache::new(None, [WatchRole::Group]).serving(types, rules);
            cache.put_json(WatchRole::Group, json!({"metadata": {"name": "in", "resourceVersion": "1"}, "spec": {"type": "ingress"}}));
            let key = WorkloadKey::from(key);
            let excluded = |cache: &ClusterCache| cache.excluded_by(&WorkKey::Workload(key.clone()));
            assert_eq!(excluded(&cache), None, "{key}: its pass may find that nothing is ours");
            cache.set_released(&key, false);
            assert_eq!(excluded(&cache).map(ExcludingSetting::text), wanted, "{key}");
        }
    }
}
