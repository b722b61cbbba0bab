//! Indices of the cache: the objects of each group, and the publishers of each name. They follow each change of an object.
//!
//! Persistent maps: observing a group of ten thousand Services copies nothing and scans nothing. A group without objects is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::indices::WorkloadObjects;
use super::maps::{count, put, set};
use super::{CachedObject, ClusterCache, Id, WatchRole, publishers};
use crate::api::names;
use crate::api::vip::PREFIX;
use crate::model::controller::egress::slices::is_manual;
use crate::model::controller::key::{PublishSource, WorkloadKey};
use crate::model::controller::kinds::concerns;
use crate::model::controller::workload::device_index::DeviceEntry;
use crate::model::controller::workload::objects::ingress::IngressConfigMap;
use crate::model::controller::workload::objects::slice::ChildSlice;
use crate::model::controller::workload::objects::{Kind, ObjectRef, workload_of};
use crate::model::controller::workload::observed::ChildOwner;
use crate::model::controller::workload::secret_name::SecretName;

impl WorkloadObjects {
    fn is_empty(&self) -> bool {
        self.owned.is_empty() && self.slices.is_empty() && self.services.is_empty() && self.ingresses.is_empty() && self.replicas.is_empty()
    }

    /// Whether it has EndpointSlices of the Tailscale operator.
    pub(super) fn is_manual(&self) -> bool {
        self.manual > 0
    }

    /// Adds or removes a slice of a child.
    fn follow_slice(&mut self, slice: &Arc<ChildSlice>, came: bool) {
        let slices = self.slices.entry(Arc::clone(&slice.child)).or_default();
        slices.retain(|other| other.name != slice.name);
        slices.extend(came.then(|| Arc::clone(slice)));
        if slices.is_empty() {
            self.slices.remove(&slice.child);
        }
    }

    /// Adds or removes an object of the group.
    fn follow(&mut self, role: WatchRole, id: &Id, object: &CachedObject, came: bool) {
        if let (WatchRole::Owned(kind), Some(value)) = (role, object.owned()) {
            let manual = usize::from(kind == Kind::EndpointSlice && is_manual(value));
            let object = ObjectRef::new(kind, &id.0, id.1.clone());
            if came {
                self.owned.insert(object, Arc::clone(value));
                self.manual += manual;
            } else {
                self.owned.remove(&object);
                self.manual -= manual;
            }
        }
        if let CachedObject::ChildSlice(slice) = object {
            self.follow_slice(slice, came);
            return;
        }
        let pod = id.1.strip_suffix(names::CONFIG_SECRET_SUFFIX).unwrap_or(&id.1);
        let replica = self.replicas.entry(pod.to_owned()).or_default();
        match object {
            CachedObject::Pod(pod) => replica.pod = came.then(|| Arc::clone(pod)),
            CachedObject::Config(_, config) => replica.config = came.then(|| Arc::clone(config)),
            _ => {}
        }
        if replica.pod.is_none() && replica.config.is_none() {
            self.replicas.remove(pod);
        }
    }
}

impl ClusterCache {
    /// Updates the indices after a change of an object; its store is up to date already.
    pub(super) fn follow(&mut self, role: WatchRole, id: &Id, old: Option<&CachedObject>, new: Option<&CachedObject>) {
        let users: BTreeSet<WorkloadKey> = old.into_iter().chain(new).flat_map(|object| self.keys_of(id, object)).collect();
        for (object, came) in [(old, false), (new, true)] {
            if let Some(object) = object {
                self.index(role, id, object, came);
            }
        }
        for key in users {
            self.file(&key, role, id);
        }
        if role == WatchRole::Credentials && new.is_none() {
            self.certificates.remove(&id.1);
        }
        if let Some(set) = workload_name(role, &id.1) {
            self.forget_failure(set);
        }
    }

    pub(super) fn index(&mut self, role: WatchRole, id: &Id, object: &CachedObject, came: bool) {
        self.index_secret(role, id, object, came);
        for key in owners(role, id, object) {
            self.index_name(&key, role, id, came);
            self.change(&key, |members| members.follow(role, id, object, came));
            if role == WatchRole::Owned(Kind::StatefulSet) && key.is_standalone() {
                let has_proxy = self.has_proxy(&key);
                put(&mut self.indices.proxies, key.namespace().to_owned(), key, has_proxy);
            }
        }
        if let Some(rank) = self.request_rank(object) {
            put(&mut self.indices.requests, id.0.clone(), rank, came);
        }
        if let Some(source) = publishers::source(role) {
            self.index_claims(&WorkloadKey::of_object(source, &id.0, &id.1));
        }
        match object {
            CachedObject::Config(_, config) => {
                let keys = owners(role, id, object);
                self.indices.devices.follow(&id.1, &DeviceEntry { workload: keys.iter().next(), ..config.entry() }, came);
                for (key, name) in keys.iter().flat_map(|key| config.names().map(move |name| (key.clone(), name))) {
                    self.index_holder(&name, &(key.clone(), key), came);
                }
                let has_domain = config.entry().record.is_some_and(|record| record.domain.is_some());
                for key in &keys {
                    if has_domain {
                        count(&mut self.indices.domains, key, came);
                    }
                    self.index_claims(key);
                }
            }
            CachedObject::Owned(value) => match role {
                WatchRole::Owned(Kind::Service) => self.index_child(value, came),
                WatchRole::Owned(Kind::ConfigMap) => {
                    self.index_origins(id, value, came);
                    self.index_certificates(value, came);
                }
                _ => {}
            },
            _ => object.index(&mut self.indices, id, came),
        }
    }

    /// Updates the index of Secrets that Pods may write.
    fn index_secret(&mut self, role: WatchRole, (_, name): &Id, object: &CachedObject, came: bool) {
        if role != WatchRole::Owned(Kind::Secret) {
            return;
        }
        let indices = &mut self.indices;
        match (SecretName::parse(name), object) {
            (SecretName::State { workload, ordinal }, CachedObject::State(value, state)) => {
                let states = indices.states.entry(workload.to_owned()).or_default();
                states.remove(&ordinal);
                states.extend(came.then(|| (ordinal, (Arc::clone(value), Arc::clone(state)))));
                if states.is_empty() {
                    indices.states.remove(workload);
                }
                if let Some(device) = &state.device_id {
                    put(&mut indices.claims, device.clone(), (workload.to_owned(), ordinal), came);
                }
            }
            (SecretName::Account { workload }, CachedObject::Owned(value)) => set(&mut indices.accounts, workload, value, came),
            (SecretName::Certificate, CachedObject::Certificate(value, content)) => {
                set(&mut indices.certificate_secrets, name, &(Arc::clone(value), *content), came);
            }
            _ => {}
        }
    }

    /// Updates the record of a workload's name.
    fn index_name(&mut self, key: &WorkloadKey, role: WatchRole, (_, name): &Id, came: bool) {
        let Some(workload) = workload_name(role, name) else { return };
        let keys = self.indices.names.entry(workload.to_owned()).or_default();
        count(keys, &(role == WatchRole::Owned(Kind::Secret), key.clone()), came);
        if keys.is_empty() {
            self.indices.names.remove(workload);
        }
    }

    /// The workload of this name: the recorded one, else the group of this name.
    pub(super) fn named_workload(&self, name: &str) -> Option<WorkloadKey> {
        let recorded = self.indices.names.get(name).and_then(|keys| keys.keys().next()).map(|(_, key)| key.clone());
        recorded.or_else(|| self.group(name).map(|_| WorkloadKey::of_group(name)))
    }

    /// Updates the index of children of users' Services: a group, or a standalone proxy, sees the Service while it has a child of it.
    fn index_child(&mut self, child: &Value, came: bool) {
        let group = child["metadata"]["labels"][names::PROXY_GROUP].as_str();
        let Some(parent) = parent(Kind::Service, child) else { return };
        let own = || WorkloadKey::of_object(PublishSource::Service, &parent.0, &parent.1);
        let key = &group.map_or_else(own, WorkloadKey::of_group);
        if let Some(name) = child["metadata"]["name"].as_str() {
            self.indices.child_owners.remove(name);
            if came {
                self.indices.child_owners.insert(name.into(), ChildOwner { key: key.clone(), parent: parent.clone() });
            }
        }
        let groups = self.indices.children.entry(parent.clone()).or_default();
        count(groups, key, came);
        if groups.is_empty() {
            self.indices.children.remove(&parent);
        }
        self.file(key, WatchRole::Service, &parent);
    }

    /// Updates the index of the entries in a group's config.
    fn index_origins(&mut self, id: &Id, config: &Value, came: bool) {
        let group = config["metadata"]["labels"][names::PARENT].as_str();
        let Some(group) = group.filter(|group| names::ingress_config(group) == id.1) else { return };
        let names = IngressConfigMap::read(config).names();
        let key = WorkloadKey::of_group(group);
        if came {
            self.indices.recorded_names.insert(key, names);
        } else {
            self.indices.recorded_names.remove(&key);
        }
        for (name, origin) in IngressConfigMap::origins(config) {
            let Some(claimant) = publishers::of(&origin) else { continue };
            let label = name.strip_prefix(PREFIX).unwrap_or(&name);
            self.index_holder(label, &(WorkloadKey::of_group(group), (&claimant).into()), came);
            put(&mut self.indices.recorded, claimant.clone(), WorkloadKey::of_group(group), came);
            self.index_claims(&(&claimant).into());
            // A group sees itself in any case.
            if claimant.source != PublishSource::ProxyGroup {
                self.file(&WorkloadKey::of_group(group), publishers::role(claimant.source), &(claimant.namespace, claimant.name));
            }
        }
    }

    fn index_holder(&mut self, label: &str, holder: &(WorkloadKey, WorkloadKey), came: bool) {
        let holders = self.indices.holders.entry(label.to_owned()).or_default();
        count(holders, holder, came);
        if holders.is_empty() {
            self.indices.holders.remove(label);
        }
    }

    /// Adds a user's object to a group if it concerns the group, else removes it.
    pub(super) fn file(&mut self, key: &WorkloadKey, role: WatchRole, id: &Id) {
        let object = self.one(role, id).cloned();
        let object = object.filter(|object| self.keys_of(id, object).contains(key));
        self.change(key, |members| match (role, object) {
            (_, Some(CachedObject::Service(service))) => drop(members.services.insert(id.clone(), service)),
            (_, Some(CachedObject::Ingress(ingress))) => drop(members.ingresses.insert(id.clone(), ingress)),
            (WatchRole::Ingress, _) => drop(members.ingresses.remove(id)),
            _ => drop(members.services.remove(id)),
        });
    }

    fn change(&mut self, key: &WorkloadKey, change: impl FnOnce(&mut WorkloadObjects)) {
        let members = self.indices.workloads.entry(key.clone()).or_default();
        change(members);
        if members.is_empty() {
            self.indices.workloads.remove(key);
        }
    }

    /// Workloads that see a user's object: those that it is or was assigned to, and those that have a child of it.
    pub(super) fn keys_of(&self, id: &Id, object: &CachedObject) -> BTreeSet<WorkloadKey> {
        let mut groups = self.publishers(id, object);
        if let CachedObject::Service(service) = object {
            groups.extend(concerns(service, &self.assignment));
            groups.extend(self.indices.children.get(id).into_iter().flat_map(BTreeMap::keys).cloned());
        }
        groups
    }
}

/// Name of the workload that an object records by its own name.
fn workload_name(role: WatchRole, name: &str) -> Option<&str> {
    match (role, SecretName::parse(name)) {
        (WatchRole::Group | WatchRole::Owned(Kind::StatefulSet), _) => Some(name),
        (WatchRole::Owned(Kind::Secret), SecretName::Config { pod }) => Some(pod.rsplit_once('-').map_or(pod, |(workload, _)| workload)),
        _ => None,
    }
}

/// Workloads that own an object, by its labels and owner references. None for Secrets that Pods may write: these are found by name.
pub(super) fn owners(role: WatchRole, (namespace, name): &Id, object: &CachedObject) -> BTreeSet<WorkloadKey> {
    if let CachedObject::Pod(pod) = object {
        return pod.metadata.labels.as_ref().and_then(workload_of).into_iter().collect();
    }
    if let CachedObject::ChildSlice(slice) = object {
        return [WorkloadKey::of_group(&slice.group)].into();
    }
    if role == WatchRole::Owned(Kind::Secret) && !matches!(SecretName::parse(name), SecretName::Config { .. }) {
        return BTreeSet::new();
    }
    let Some(metadata) = object.owned().map(|value| &value["metadata"]) else { return BTreeSet::new() };
    let label = |key: &str| metadata["labels"].get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let own = label(names::PARENT).filter(|_| label(names::PARENT_TYPE) == Some(names::PARENT_GROUP));
    let owner = metadata["ownerReferences"].as_array().into_iter().flatten();
    let owner = owner.filter(|owner| owner["kind"] == "ProxyGroup").filter_map(|owner| owner["name"].as_str());
    let scraped = label(names::PROXY_PARENT).filter(|_| label(names::PROXY_TYPE) == Some(names::PARENT_GROUP));
    let groups = own.into_iter().chain(label(names::PROXY_GROUP)).chain(scraped).chain(owner).map(WorkloadKey::of_group);
    let mut keys: BTreeSet<_> = groups.chain(WorkloadKey::of_object_labels(label)).collect();
    if let Some(reader) = names::endpoint_reader(name).filter(|_| role == WatchRole::Owned(Kind::RoleBinding)) {
        // Tenants choose labels in their namespaces: name and namespace decide.
        keys.retain(|key| if key.is_standalone() { key.namespace() == namespace } else { key.group() == Some(reader) });
    }
    keys
}

/// User's Service of a child, or of the proxy's headless Service.
pub fn parent(kind: Kind, value: &Value) -> Option<Id> {
    let label = |key: &str| value["metadata"]["labels"].get(key).and_then(Value::as_str);
    let is_child = kind == Kind::Service && label(names::PARENT_TYPE)? == names::PARENT_SERVICE;
    is_child.then_some((label(names::PARENT_NAMESPACE)?.to_owned(), label(names::PARENT)?.to_owned()))
}

pub(super) fn ordinal(workload: &str, pod: &str) -> Option<u32> {
    pod.strip_prefix(workload)?.strip_prefix('-')?.parse().ok()
}
