//! Changes of the rules that assign objects without annotation to a group.
//!
//! An edited `IngressClass` or Namespace moves many objects at once. Their indices follow, as if each of them had changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::networking::v1::IngressClass;

use super::kinds::CachedKind as _;
use super::{CachedObject, ClusterCache, Id, WatchRole, WorkKey};
use crate::model::controller::policy::assignment::{ClassParameters, has_annotation};
use crate::model::controller::policy::tenancy::Labels;

impl ClusterCache {
    /// Follows a change of an object that is stored already. Returns the keys of groups that other objects leave or join by it.
    pub(super) fn reassign(&mut self, role: WatchRole, id: &Id) -> BTreeSet<WorkKey> {
        let mut rules = (*self.assignment).clone();
        let affected = match (role, self.one(role, id)) {
            (WatchRole::IngressClass, class) if id.1 == rules.ingress_class => {
                rules.parameters = ClassParameters::read(class.and_then(IngressClass::of).map(|class| &**class));
                self.without_annotation(WatchRole::Ingress, None)
            }
            (WatchRole::Namespace, namespace) => {
                rules.update_namespace(&id.1, namespace.and_then(Labels::of).map(|labels| &**labels));
                let both = [WatchRole::Ingress, WatchRole::Service].map(|role| self.without_annotation(role, Some(&id.1)));
                both.concat()
            }
            _ => return BTreeSet::new(),
        };
        if rules == *self.assignment {
            return BTreeSet::new();
        }
        let before: Vec<_> = affected.iter().map(|(_, id, object)| self.keys_of(id, object)).collect();
        let mut keys: BTreeSet<_> = affected.iter().flat_map(|(role, id, object)| self.keys(*role, id, object)).collect();
        for (role, id, object) in &affected {
            self.index(*role, id, object, false);
        }
        self.assignment = Arc::new(rules);
        for (role, id, object) in &affected {
            self.index(*role, id, object, true);
        }
        for ((role, id, object), before) in affected.iter().zip(before) {
            for group in before.union(&self.keys_of(id, object)) {
                self.file(group, *role, id);
            }
            keys.extend(self.keys(*role, id, object));
            keys.extend(self.follow_annotations(*role, id, Some(object)));
        }
        keys
    }

    /// Objects of a role without annotation, of one namespace or of all.
    fn without_annotation(&self, role: WatchRole, namespace: Option<&str>) -> Vec<(WatchRole, Id, CachedObject)> {
        let from = (namespace.unwrap_or_default().to_owned(), String::new());
        let all = self.stores.get(&role).into_iter().flat_map(|store| store.objects.range(from.clone()..));
        let all = all.take_while(|((found, _), _)| namespace.is_none_or(|namespace| found == namespace));
        let unnamed = all.filter(|(_, stored)| stored.object.user_metadata().is_some_and(|metadata| !has_annotation(metadata)));
        unnamed.map(|(id, stored)| (role, id.clone(), stored.object.clone())).collect()
    }
}
