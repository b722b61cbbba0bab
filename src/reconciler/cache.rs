//! What the stores hold: every object that concerns the reconciler, and which work each change of one asks for.
//!
//! Fed by the watches and by what our own writes returned, whichever is newer, so that a pass sees what earlier passes did.
//! A list drops what it does not name, and only when it is complete. Nothing is fetched here and nothing decided.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;
use serde_json::Value;
use tokio::time::Instant;

use crate::api::proxygroup::{ProxyGroup, ProxyGroupType};
use crate::model::controller::objects::{Kind, ObjectRef};
use crate::model::controller::proxygroup::{by_hand, concerns};
use crate::model::controller::tenancy::Labels;

use group_index::Members;
pub use group_index::parent;
pub use observe::Plane;
use published::Published;
use store::{Held, Shelf};
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

/// What is to be looked at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A `ProxyGroup` and everything of its name, whether or not it exists.
    Group(String),
    /// A `ProxyClass`.
    Class(String),
    /// A `Tailnet`.
    Tailnet(String),
    /// The control plane of groups that name no Tailnet.
    Own,
}

impl Key {
    /// The kind, for metrics.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Group(_) => "ProxyGroup",
            Self::Class(_) => "ProxyClass",
            Self::Tailnet(_) => "Tailnet",
            Self::Own => "ControlPlane",
        }
    }

    /// The name; empty for what has none.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Group(name) | Self::Class(name) | Self::Tailnet(name) => name,
            Self::Own => "",
        }
    }
}

/// What the objects of one watch are to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Groups.
    Group,
    /// Classes.
    Class,
    /// Tailnets.
    Tailnet,
    /// Users' Services, of which only those that concern a group are kept.
    Service,
    /// Objects that the reconciler makes.
    Owned(Kind),
    /// The groups' Pods.
    Pod,
    /// Nodes, for static endpoints.
    Node,
    /// Namespaces, for their labels.
    Namespace,
    /// Users' Ingresses.
    Ingress,
    /// The classes of Ingresses.
    IngressClass,
    /// Slices of the endpoints of users' Services.
    Backing,
    /// Secrets that we did not make, without what is in them: some of them are credentials of Tailnets.
    Credentials,
}

/// All stores.
#[derive(Debug)]
pub struct World {
    default_class: Option<String>,
    shelves: BTreeMap<Role, Shelf>,
    /// What there is of each group, kept as its pass is shown it.
    members: BTreeMap<String, Members>,
    /// The groups that have children for a user's Service, and how many.
    children: BTreeMap<Id, BTreeMap<String, usize>>,
    /// Objects that have the name of one that a group would make, and are not ours.
    foreign: BTreeMap<String, BTreeMap<ObjectRef, (Arc<Value>, Instant)>>,
    /// Node ports that the API server refused, and when.
    refused_ports: BTreeMap<u16, Instant>,
    /// Who asks to be published.
    published: Published,
    /// The labels of the namespaces.
    namespaces: OrdMap<String, Arc<Labels>>,
}

impl World {
    /// Empty stores, each to be filled by that many watches.
    #[must_use]
    pub fn new(default_class: Option<String>, watches: impl IntoIterator<Item = Role>) -> Self {
        let mut shelves: BTreeMap<Role, Shelf> = BTreeMap::new();
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
            published: Published::default(),
            namespaces: OrdMap::new(),
        }
    }

    /// The API has no such kind.
    pub fn lacks(&mut self, role: Role) {
        self.shelf(role).lacking = true;
    }

    /// Whether the API has such a kind, as far as is known.
    #[must_use]
    pub fn has(&self, role: Role) -> bool {
        self.shelves.get(&role).is_some_and(|shelf| !shelf.lacking)
    }

    /// A list begins.
    pub fn begin(&mut self, role: Role, namespace: Option<&str>) {
        self.shelf(role).begin(namespace);
    }

    /// An object of a list.
    pub fn listed(&mut self, role: Role, namespace: Option<&str>, value: Value) -> BTreeSet<Key> {
        self.shelf(role).named(namespace, id(&value));
        self.put(role, value)
    }

    /// A list is complete; what it did not name is gone.
    pub fn complete(&mut self, role: Role, namespace: Option<&str>) -> BTreeSet<Key> {
        let missing = self.shelf(role).complete(namespace);
        missing.into_iter().flat_map(|id| self.drop_held(role, &id)).collect()
    }

    /// An object was made or changed. What is held already, or is older, counts for nothing.
    pub fn put(&mut self, role: Role, mut value: Value) -> BTreeSet<Key> {
        let (id, version) = (id(&value), version(&value));
        if self.shelf(role).holds(&id, version) {
            return BTreeSet::new();
        }
        prune::trim(role, &mut value);
        let mut typed = typed(role, &value);
        if let (Role::Service, Typed::Service(service)) = (role, &typed)
            && concerns(service).is_empty()
            && !self.children.contains_key(&id)
            && self.publishers(&id, &typed).is_empty()
        {
            typed = Typed::Plain(published::plain(&value));
        }
        prune::lean(role, &mut value);
        let held = Held { value: Arc::new(value), version, typed };
        let mut keys = self.keys(role, &id, &held);
        let old = self.shelf(role).put(id.clone(), held.clone());
        if let Some(old) = old {
            if prune::same(role, &old.value, &held.value) || unchanged(&old.typed, &held.typed) {
                return BTreeSet::new();
            }
            keys.extend(self.keys(role, &id, &old));
            self.unindex(role, &id, &old);
        }
        self.index(role, &id, &held);
        keys
    }

    /// An object is gone; `value` is what it was last.
    pub fn gone(&mut self, role: Role, value: &Value) -> BTreeSet<Key> {
        let (id, version) = (id(value), version(value));
        if self.shelf(role).newer_than(&id, version) {
            return BTreeSet::new();
        }
        self.shelf(role).end(&id, version);
        self.drop_held(role, &id)
    }

    /// We deleted an object that had this UID.
    pub fn deleted(&mut self, object: &ObjectRef, uid: Option<&str>) -> BTreeSet<Key> {
        let (role, id) = (Role::Owned(object.kind), (object.namespace.clone(), object.name.clone()));
        let same = |held: &Held| uid.is_none_or(|uid| held.value["metadata"]["uid"] == uid);
        // One with finalizers stays until they are dropped; its watch says when.
        let ends = |held: &Held| held.value["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        if !self.shelf(role).objects.get(&id).is_some_and(|held| same(held) && ends(held)) {
            return BTreeSet::new();
        }
        self.drop_held(role, &id)
    }

    /// The user's Service for which an object that is held is an egress child.
    #[must_use]
    pub fn parent(&self, object: &ObjectRef) -> Option<Id> {
        let (role, id) = (Role::Owned(object.kind), (object.namespace.clone(), object.name.clone()));
        parent(object.kind, &self.shelves.get(&role)?.objects.get(&id)?.value)
    }

    /// The version of an object, if it is held.
    #[must_use]
    pub fn version(&self, object: &ObjectRef) -> Option<u64> {
        let id = (object.namespace.clone(), object.name.clone());
        self.shelves.get(&Role::Owned(object.kind))?.objects.get(&id).map(|held| held.version)
    }

    /// The version of an object as the API wants it back.
    #[must_use]
    pub fn text_version(&self, role: Role, namespace: &str, name: &str) -> Option<String> {
        let held = self.shelves.get(&role)?.objects.get(&(namespace.to_owned(), name.to_owned()))?;
        held.value["metadata"]["resourceVersion"].as_str().map(str::to_owned)
    }

    /// The watches whose first list is not complete. Before it is empty nothing may be written.
    #[must_use]
    pub fn missing(&self) -> Vec<Role> {
        self.shelves.iter().filter(|(_, shelf)| !shelf.synced()).map(|(role, _)| *role).collect()
    }

    /// Every role that a watch fills.
    pub fn roles(&self) -> impl Iterator<Item = Role> {
        self.shelves.keys().copied()
    }

    /// How many objects of a role are in memory, those included of which a digest is kept because they concern nobody yet.
    #[must_use]
    pub fn stored(&self, role: Role) -> usize {
        self.shelves.get(&role).map_or(0, |shelf| shelf.objects.len())
    }

    /// How many objects of a role concern a group.
    #[must_use]
    pub fn count(&self, role: Role) -> usize {
        let kept = |held: &&Held| !matches!(held.typed, Typed::Plain(_));
        self.shelves.get(&role).map_or(0, |shelf| shelf.objects.values().filter(kept).count())
    }

    fn shelf(&mut self, role: Role) -> &mut Shelf {
        self.shelves.entry(role).or_default()
    }

    fn drop_held(&mut self, role: Role, id: &Id) -> BTreeSet<Key> {
        let Some(old) = self.shelf(role).objects.remove(id) else { return BTreeSet::new() };
        let keys = self.keys(role, id, &old);
        self.unindex(role, id, &old);
        keys
    }

    /// The work that news of an object asks for.
    fn keys(&self, role: Role, id: &Id, held: &Held) -> BTreeSet<Key> {
        let mut keys = self.own_keys(role, id, held);
        keys.extend(self.published_keys(role, id, held));
        keys
    }

    fn own_keys(&self, role: Role, id: &Id, held: &Held) -> BTreeSet<Key> {
        let name = &id.1;
        match &held.typed {
            _ if role == Role::IngressClass && *name == self.published.class => self
                .groups()
                .filter(|(_, group)| group.spec.type_ == ProxyGroupType::Ingress)
                .map(|(name, _)| Key::Group(name.clone()))
                .collect(),
            Typed::Group(group) => {
                let class = self.class_of(group).map(|name| Key::Class(name.to_owned()));
                let tailnet = group.spec.tailnet.clone().map(Key::Tailnet);
                [Some(Key::Group(name.clone())), class, tailnet].into_iter().flatten().collect()
            }
            Typed::Class(_) => {
                let users = self.groups().filter(|(_, group)| self.class_of(group) == Some(name)).map(|(name, _)| Key::Group(name.clone()));
                users.chain([Key::Class(name.clone())]).collect()
            }
            Typed::Tailnet(_) => {
                let users = self.groups().filter(|(_, group)| group.spec.tailnet.as_ref() == Some(name));
                users.map(|(name, _)| Key::Group(name.clone())).chain([Key::Tailnet(name.clone())]).collect()
            }
            Typed::Service(service) if role == Role::Service => {
                let own = self.children.get(id).into_iter().flat_map(BTreeMap::keys).cloned();
                concerns(service).into_iter().chain(own).map(Key::Group).collect()
            }
            Typed::Namespace(_) => {
                self.groups().filter(|(_, group)| has_tenants(group)).map(|(name, _)| Key::Group(name.clone())).collect()
            }
            _ if role == Role::Credentials => self.users_of_secret(name).into_iter().map(Key::Tailnet).collect(),
            Typed::Node(_) => {
                let wants = |group: &ProxyGroup| {
                    let class = self.class_of(group).and_then(|name| self.class(name));
                    class.is_some_and(|class| class.spec.static_endpoints.is_some())
                };
                self.groups().filter(|(_, group)| wants(group)).map(|(name, _)| Key::Group(name.clone())).collect()
            }
            _ if role == Role::Owned(Kind::EndpointSlice) && !by_hand(&held.value) => {
                let minded = |group: &String| self.members.get(group).is_some_and(Members::by_hand);
                group_index::groups(role, &held.value).into_iter().filter(minded).map(Key::Group).collect()
            }
            _ => group_index::groups(role, &held.value).into_iter().map(Key::Group).collect(),
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
