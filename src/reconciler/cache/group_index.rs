//! What there is of each group, kept as its pass is shown it.
//!
//! Persistent maps that follow each change of an object: to observe a group of ten thousand Services copies nothing and scans
//! nothing. A group of which nothing is left is forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use serde_json::Value;

use super::{ClusterCache, Id, StoredObject, Typed, WatchRole};
use crate::api::names;
use crate::model::controller::objects::{Kind, ObjectRef};
use crate::model::controller::proxygroup::{concerns, is_manual};

#[derive(Debug, Default)]
pub(super) struct GroupObjects {
    /// Those that are labelled as being of it, but slices.
    pub(super) owned: OrdMap<ObjectRef, Arc<Value>>,
    /// The slices of its children, which are shown while some of them are written by hand.
    slices: OrdMap<ObjectRef, Arc<Value>>,
    is_manual: usize,
    /// The users' Services that concern it, or of which it has a child.
    pub(super) services: OrdMap<Id, Arc<Service>>,
    /// The Ingresses that name it, or for which its config has something.
    pub(super) ingresses: OrdMap<Id, Arc<Ingress>>,
    /// What its replicas are made of: Pods and Secrets.
    pub(super) replicas: BTreeSet<(WatchRole, Id)>,
}

impl GroupObjects {
    fn is_empty(&self) -> bool {
        self.owned.is_empty() && self.slices.is_empty() && self.services.is_empty() && self.ingresses.is_empty() && self.replicas.is_empty()
    }
}

impl GroupObjects {
    /// Whether its slices matter.
    pub(super) fn is_manual(&self) -> bool {
        self.is_manual > 0
    }

    /// What a pass is shown of what it has.
    pub(super) fn shown(&self) -> OrdMap<ObjectRef, Arc<Value>> {
        if self.is_manual() { self.owned.clone().union(self.slices.clone()) } else { self.owned.clone() }
    }

    fn own(&mut self, object: ObjectRef, value: &Arc<Value>) {
        if object.kind == Kind::EndpointSlice {
            self.is_manual += usize::from(is_manual(value));
            self.slices.insert(object, Arc::clone(value));
        } else {
            self.owned.insert(object, Arc::clone(value));
        }
    }

    fn disown(&mut self, object: &ObjectRef) {
        self.owned.remove(object);
        if self.slices.remove(object).is_some_and(|slice| is_manual(&slice)) {
            self.is_manual -= 1;
        }
    }
}

impl ClusterCache {
    pub(super) fn index(&mut self, role: WatchRole, id: &Id, stored: &StoredObject) {
        self.index_published(role, id, stored, true);
        if let Typed::Namespace(labels) = &stored.typed {
            self.namespaces.insert(id.1.clone(), Arc::clone(labels));
        }
        if let Typed::Service(service) = &stored.typed {
            for group in self.concerned(id, service) {
                self.members.entry(group).or_default().services.insert(id.clone(), Arc::clone(service));
            }
        }
        for group in groups(role, &stored.value) {
            let members = self.members.entry(group).or_default();
            if let WatchRole::Owned(kind) = role {
                members.own(ObjectRef::new(kind, &id.0, id.1.clone()), &stored.value);
            }
            if matches!(role, WatchRole::Pod | WatchRole::Owned(Kind::Secret)) {
                members.replicas.insert((role, id.clone()));
            }
        }
        if let Some((parent, group)) = child(role, &stored.value) {
            if let Some(service) = self.service(&parent) {
                self.members.entry(group.clone()).or_default().services.insert(parent.clone(), service);
            }
            *self.children.entry(parent).or_default().entry(group).or_default() += 1;
        }
    }

    pub(super) fn unindex(&mut self, role: WatchRole, id: &Id, stored: &StoredObject) {
        self.index_published(role, id, stored, false);
        if let Typed::Namespace(_) = &stored.typed {
            self.namespaces.remove(&id.1);
        }
        if let Typed::Service(service) = &stored.typed {
            for group in self.concerned(id, service) {
                self.change(&group, |members| drop(members.services.remove(id)));
            }
        }
        for group in groups(role, &stored.value) {
            self.change(&group, |members| {
                if let WatchRole::Owned(kind) = role {
                    members.disown(&ObjectRef::new(kind, &id.0, id.1.clone()));
                }
                members.replicas.remove(&(role, id.clone()));
            });
        }
        if let Some((parent, group)) = child(role, &stored.value) {
            self.childless(&parent, &group);
        }
    }

    /// A child of a Service is gone.
    fn childless(&mut self, parent: &Id, group: &str) {
        let Some(groups) = self.children.get_mut(parent) else { return };
        if let Some(count) = groups.get_mut(group).filter(|count| **count > 1) {
            *count -= 1;
            return;
        }
        groups.remove(group);
        if groups.is_empty() {
            self.children.remove(parent);
        }
        if self.service(parent).is_none_or(|service| !self.concerned(parent, &service).contains(group)) {
            self.change(group, |members| drop(members.services.remove(parent)));
        }
    }

    pub(super) fn change(&mut self, group: &str, change: impl FnOnce(&mut GroupObjects)) {
        let Some(members) = self.members.get_mut(group) else { return };
        change(members);
        if members.is_empty() {
            self.members.remove(group);
        }
    }

    /// The groups that are shown a user's Service.
    pub(super) fn concerned(&self, id: &Id, service: &Arc<Service>) -> BTreeSet<String> {
        let own = self.children.get(id).into_iter().flat_map(BTreeMap::keys).cloned();
        let published = self.publishers(id, &Typed::Service(Arc::clone(service)));
        concerns(service).into_iter().chain(own).chain(published).collect()
    }

    fn service(&self, id: &Id) -> Option<Arc<Service>> {
        match &self.shelves.get(&WatchRole::Service)?.objects.get(id)?.typed {
            Typed::Service(service) => Some(Arc::clone(service)),
            _ => None,
        }
    }
}

/// The groups that an object is labelled as being of.
pub(super) fn groups(role: WatchRole, value: &Value) -> BTreeSet<String> {
    if !matches!(role, WatchRole::Owned(_) | WatchRole::Pod) {
        return BTreeSet::new();
    }
    let labels = &value["metadata"]["labels"];
    let label = |key: &str| labels.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned);
    let own = label(names::PARENT).filter(|_| label(names::PARENT_TYPE).as_deref() == Some(names::PARENT_GROUP));
    let owner = value["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let owner = owner.filter(|owner| owner["kind"] == "ProxyGroup").filter_map(|owner| owner["name"].as_str().map(str::to_owned));
    let scraped = label("ts_proxy_parent_name").filter(|_| label("ts_proxy_type").as_deref() == Some(names::PARENT_GROUP));
    own.into_iter().chain(label(names::PROXY_GROUP)).chain(scraped).chain(owner).collect()
}

/// The user's Service for which an object is an egress child.
#[must_use]
pub fn parent(kind: Kind, value: &Value) -> Option<Id> {
    let label = |key: &str| value["metadata"]["labels"].get(key).and_then(Value::as_str);
    let is_child = kind == Kind::Service && label(names::PARENT_TYPE)? == names::PARENT_SERVICE;
    is_child.then_some((label(names::PARENT_NAMESPACE)?.to_owned(), label(names::PARENT)?.to_owned()))
}

/// The same, and the group that serves it.
fn child(role: WatchRole, value: &Value) -> Option<(Id, String)> {
    let WatchRole::Owned(kind) = role else { return None };
    let group = value["metadata"]["labels"].get(names::PROXY_GROUP).and_then(Value::as_str)?;
    Some((parent(kind, value)?, group.to_owned()))
}
