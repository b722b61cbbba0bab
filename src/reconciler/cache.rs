//! Informer cache: all objects that concern the reconciler, and the work keys of each change.
//!
//! Fed by watches and by responses to our writes, whichever is newer, so that a pass sees earlier writes. Only a complete list removes
//! objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;
use serde_json::Value;
use tokio::time::Instant;

use crate::api::proxygroup::{ProxyGroup, ProxyGroupType};
use crate::model::controller::objects::{Kind, ObjectRef};
use crate::model::controller::proxygroup::{concerns, is_manual};
use crate::model::controller::tenancy::Labels;

use group_index::GroupObjects;
pub use group_index::parent;
pub use observe::ControlPlaneView;
use published::PublisherIndex;
use store::{ObjectStore, StoredObject};
use typed::{Typed, typed, unchanged};

mod certificates;
mod foreign;
mod group_index;
mod observe;
mod prune;
mod published;
mod store;
mod typed;

/// Namespace and name; the namespace of a cluster-wide object is empty.
pub type Id = (String, String);

/// Key of the work queue.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkKey {
    /// A `ProxyGroup` with all its objects, whether or not it exists.
    Group(String),
    /// A `ProxyClass`.
    Class(String),
    /// A `Tailnet`.
    Tailnet(String),
    /// Control plane of groups without Tailnet.
    DefaultControlPlane,
}

impl WorkKey {
    /// Kind, for metrics.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Group(_) => "ProxyGroup",
            Self::Class(_) => "ProxyClass",
            Self::Tailnet(_) => "Tailnet",
            Self::DefaultControlPlane => "ControlPlane",
        }
    }

    /// Name; empty if it has none.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Group(name) | Self::Class(name) | Self::Tailnet(name) => name,
            Self::DefaultControlPlane => "",
        }
    }
}

/// Role of the objects of one watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WatchRole {
    Group,
    Class,
    Tailnet,
    /// Users' Services, pruned unless they concern a group.
    Service,
    /// Objects that the reconciler creates.
    Owned(Kind),
    Pod,
    /// Nodes, for static endpoints.
    Node,
    Namespace,
    /// Users' Ingresses.
    Ingress,
    /// `IngressClass`es.
    IngressClass,
    /// EndpointSlices of users' Services.
    BackendSlice,
    /// Metadata of other Secrets: some are credentials of Tailnets.
    Credentials,
}

/// All stores with indices.
#[derive(Debug)]
pub struct ClusterCache {
    default_class: Option<String>,
    shelves: BTreeMap<WatchRole, ObjectStore>,
    /// Objects of each group, in the form for its passes.
    members: BTreeMap<String, GroupObjects>,
    /// Groups with children for a user's Service, with their number.
    children: BTreeMap<Id, BTreeMap<String, usize>>,
    /// Foreign objects with a name that a group would use.
    foreign: BTreeMap<String, BTreeMap<ObjectRef, (Arc<Value>, Instant)>>,
    /// Node ports that the API server rejected, with the time.
    refused_ports: BTreeMap<u16, Instant>,
    published: PublisherIndex,
    namespaces: OrdMap<String, Arc<Labels>>,
}

impl ClusterCache {
    /// Empty stores, each filled by its number of watches.
    #[must_use]
    pub fn new(default_class: Option<String>, watches: impl IntoIterator<Item = WatchRole>) -> Self {
        let mut shelves: BTreeMap<WatchRole, ObjectStore> = BTreeMap::new();
        for role in watches {
            shelves.entry(role).or_default().watches += 1;
        }
        Self {
            default_class,
            shelves,
            members: BTreeMap::new(),
            children: BTreeMap::new(),
            foreign: BTreeMap::new(),
            refused_ports: BTreeMap::new(),
            published: PublisherIndex::default(),
            namespaces: OrdMap::new(),
        }
    }

    /// Records that the API lacks a kind.
    pub fn lacks(&mut self, role: WatchRole) {
        self.shelf(role).lacking = true;
    }

    /// Whether the API has a kind, as far as known.
    #[must_use]
    pub fn has(&self, role: WatchRole) -> bool {
        self.shelves.get(&role).is_some_and(|shelf| !shelf.lacking)
    }

    /// A list begins.
    pub fn begin(&mut self, role: WatchRole, namespace: Option<&str>) {
        self.shelf(role).begin(namespace);
    }

    /// An object of a list.
    pub fn listed(&mut self, role: WatchRole, namespace: Option<&str>, value: Value) -> BTreeSet<WorkKey> {
        self.shelf(role).named(namespace, id(&value));
        self.put(role, value)
    }

    /// A list is complete; what it did not name is gone.
    pub fn complete(&mut self, role: WatchRole, namespace: Option<&str>) -> BTreeSet<WorkKey> {
        let missing = self.shelf(role).complete(namespace);
        missing.into_iter().flat_map(|id| self.drop_held(role, &id)).collect()
    }

    /// An object was made or changed. What is held already, or is older, counts for nothing.
    pub fn put(&mut self, role: WatchRole, mut value: Value) -> BTreeSet<WorkKey> {
        let (id, version) = (id(&value), version(&value));
        if self.shelf(role).holds(&id, version) {
            return BTreeSet::new();
        }
        prune::trim(role, &mut value);
        let mut typed = typed(role, &value);
        if let (WatchRole::Service, Typed::Service(service)) = (role, &typed)
            && concerns(service).is_empty()
            && !self.children.contains_key(&id)
            && self.publishers(&id, &typed).is_empty()
        {
            typed = Typed::Plain(published::plain(&value));
        }
        prune::lean(role, &mut value);
        let stored = StoredObject { value: Arc::new(value), version, typed };
        let mut keys = self.keys(role, &id, &stored);
        let old = self.shelf(role).put(id.clone(), stored.clone());
        if let Some(old) = old {
            if prune::same(role, &old.value, &stored.value) || unchanged(&old.typed, &stored.typed) {
                return BTreeSet::new();
            }
            keys.extend(self.keys(role, &id, &old));
            self.unindex(role, &id, &old);
        }
        self.index(role, &id, &stored);
        keys
    }

    /// An object is gone; `value` is what it was last.
    pub fn gone(&mut self, role: WatchRole, value: &Value) -> BTreeSet<WorkKey> {
        let (id, version) = (id(value), version(value));
        if self.shelf(role).newer_than(&id, version) {
            return BTreeSet::new();
        }
        self.shelf(role).end(&id, version);
        self.drop_held(role, &id)
    }

    /// We deleted an object that had this UID.
    pub fn deleted(&mut self, object: &ObjectRef, uid: Option<&str>) -> BTreeSet<WorkKey> {
        let (role, id) = (WatchRole::Owned(object.kind), (object.namespace.clone(), object.name.clone()));
        let same = |stored: &StoredObject| uid.is_none_or(|uid| stored.value["metadata"]["uid"] == uid);
        // One with finalizers stays until they are dropped; its watch says when.
        let ends = |stored: &StoredObject| stored.value["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        if !self.shelf(role).objects.get(&id).is_some_and(|stored| same(stored) && ends(stored)) {
            return BTreeSet::new();
        }
        self.drop_held(role, &id)
    }

    /// The user's Service for which an object that is held is an egress child.
    #[must_use]
    pub fn parent(&self, object: &ObjectRef) -> Option<Id> {
        let (role, id) = (WatchRole::Owned(object.kind), (object.namespace.clone(), object.name.clone()));
        parent(object.kind, &self.shelves.get(&role)?.objects.get(&id)?.value)
    }

    /// The version of an object, if it is held.
    #[must_use]
    pub fn version(&self, object: &ObjectRef) -> Option<u64> {
        let id = (object.namespace.clone(), object.name.clone());
        self.shelves.get(&WatchRole::Owned(object.kind))?.objects.get(&id).map(|stored| stored.version)
    }

    /// The version of an object as the API wants it back.
    #[must_use]
    pub fn text_version(&self, role: WatchRole, namespace: &str, name: &str) -> Option<String> {
        let stored = self.shelves.get(&role)?.objects.get(&(namespace.to_owned(), name.to_owned()))?;
        stored.value["metadata"]["resourceVersion"].as_str().map(str::to_owned)
    }

    /// The watches whose first list is not complete. Before it is empty nothing may be written.
    #[must_use]
    pub fn missing(&self) -> Vec<WatchRole> {
        self.shelves.iter().filter(|(_, shelf)| !shelf.synced()).map(|(role, _)| *role).collect()
    }

    /// Every role that a watch fills.
    pub fn roles(&self) -> impl Iterator<Item = WatchRole> {
        self.shelves.keys().copied()
    }

    /// How many objects of a role are in memory, those included of which a digest is kept because they concern nobody yet.
    #[must_use]
    pub fn stored(&self, role: WatchRole) -> usize {
        self.shelves.get(&role).map_or(0, |shelf| shelf.objects.len())
    }

    /// How many objects of a role concern a group.
    #[must_use]
    pub fn count(&self, role: WatchRole) -> usize {
        let is_stored = |stored: &&StoredObject| !matches!(stored.typed, Typed::Plain(_));
        self.shelves.get(&role).map_or(0, |shelf| shelf.objects.values().filter(is_stored).count())
    }

    fn shelf(&mut self, role: WatchRole) -> &mut ObjectStore {
        self.shelves.entry(role).or_default()
    }

    fn drop_held(&mut self, role: WatchRole, id: &Id) -> BTreeSet<WorkKey> {
        let Some(old) = self.shelf(role).objects.remove(id) else { return BTreeSet::new() };
        let keys = self.keys(role, id, &old);
        self.unindex(role, id, &old);
        keys
    }

    /// The work that news of an object asks for.
    fn keys(&self, role: WatchRole, id: &Id, stored: &StoredObject) -> BTreeSet<WorkKey> {
        let mut keys = self.own_keys(role, id, stored);
        keys.extend(self.published_keys(role, id, stored));
        keys
    }

    fn own_keys(&self, role: WatchRole, id: &Id, stored: &StoredObject) -> BTreeSet<WorkKey> {
        let name = &id.1;
        match &stored.typed {
            _ if role == WatchRole::IngressClass && *name == self.published.class => self
                .groups()
                .filter(|(_, group)| group.spec.type_ == ProxyGroupType::Ingress)
                .map(|(name, _)| WorkKey::Group(name.clone()))
                .collect(),
            Typed::Group(group) => {
                let class = self.class_of(group).map(|name| WorkKey::Class(name.to_owned()));
                let tailnet = group.spec.tailnet.clone().map(WorkKey::Tailnet);
                [Some(WorkKey::Group(name.clone())), class, tailnet].into_iter().flatten().collect()
            }
            Typed::Class(_) => {
                let users =
                    self.groups().filter(|(_, group)| self.class_of(group) == Some(name)).map(|(name, _)| WorkKey::Group(name.clone()));
                users.chain([WorkKey::Class(name.clone())]).collect()
            }
            Typed::Tailnet(_) => {
                let users = self.groups().filter(|(_, group)| group.spec.tailnet.as_ref() == Some(name));
                users.map(|(name, _)| WorkKey::Group(name.clone())).chain([WorkKey::Tailnet(name.clone())]).collect()
            }
            Typed::Service(service) if role == WatchRole::Service => {
                let own = self.children.get(id).into_iter().flat_map(BTreeMap::keys).cloned();
                concerns(service).into_iter().chain(own).map(WorkKey::Group).collect()
            }
            Typed::Namespace(_) => {
                self.groups().filter(|(_, group)| has_tenants(group)).map(|(name, _)| WorkKey::Group(name.clone())).collect()
            }
            _ if role == WatchRole::Credentials => self.users_of_secret(name).into_iter().map(WorkKey::Tailnet).collect(),
            Typed::Node(_) => {
                let wants = |group: &ProxyGroup| {
                    let class = self.class_of(group).and_then(|name| self.class(name));
                    class.is_some_and(|class| class.spec.static_endpoints.is_some())
                };
                self.groups().filter(|(_, group)| wants(group)).map(|(name, _)| WorkKey::Group(name.clone())).collect()
            }
            _ if role == WatchRole::Owned(Kind::EndpointSlice) && !is_manual(&stored.value) => {
                let minded = |group: &String| self.members.get(group).is_some_and(GroupObjects::is_manual);
                group_index::groups(role, &stored.value).into_iter().filter(minded).map(WorkKey::Group).collect()
            }
            _ => group_index::groups(role, &stored.value).into_iter().map(WorkKey::Group).collect(),
        }
    }
}

/// Whether a group says which namespaces may use it.
fn has_tenants(group: &ProxyGroup) -> bool {
    group.spec.tailyard.as_ref().is_some_and(|own| !own.tenants.is_empty())
}

fn id(value: &Value) -> Id {
    let text = |key: &str| value["metadata"][key].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

/// The number that grows with each write. The API promises only that it is a text; one that is no number counts as the newest.
fn version(value: &Value) -> u64 {
    value["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
