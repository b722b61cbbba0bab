//! What a pass is shown of the stores.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{ClusterCache, GroupObjects, Id, Typed, WatchRole, WorkKey, has_tenants};
use crate::api::names;
use crate::api::proxyclass::ProxyClass;
use crate::api::proxygroup::ProxyGroup;
use crate::api::tailnet::Tailnet;
use crate::model::controller::identity::DeviceId;
use crate::model::controller::objects::{Kind, ObjectRef, accounts_ref, domain_of};
use crate::model::controller::proxyclass;
use crate::model::controller::proxygroup::{
    Approved, Class, ControlPlaneError, GroupSettings, Observed, ObservedReplica, PublishInputs, ServiceList, TailnetState,
};

/// What is known of a group's control plane.
#[derive(Debug)]
pub struct ControlPlaneView {
    pub tailnet: TailnetState,
    pub denied: BTreeMap<String, ControlPlaneError>,
    pub listed: Option<Arc<ServiceList>>,
    pub approved: BTreeMap<DeviceId, Approved>,
}

impl ClusterCache {
    /// A group as the stores have it.
    #[must_use]
    pub fn observe(&self, name: &str, settings: Arc<GroupSettings>, plane: ControlPlaneView, now: Timestamp) -> Observed {
        let ControlPlaneView { tailnet, denied, listed, approved } = plane;
        let group = self.group(name);
        let class = group.as_deref().and_then(|group| self.class_of(group)).map_or(Class::None, |name| self.judged(name));
        let namespace = settings.namespace.clone();
        let namespaces = if group.as_deref().is_some_and(has_tenants) { self.namespaces.clone() } else { OrdMap::new() };
        let wants_nodes = matches!(&class, Class::Ready(class) if class.spec.static_endpoints.is_some());
        Observed {
            name: name.to_owned(),
            now,
            settings,
            group,
            class,
            tailnet,
            replicas: self.replicas(name),
            owned: self.with_shared(self.owned(name), name, &namespace),
            services: self.services(name),
            nodes: if wants_nodes {
                self.typed(WatchRole::Node, |typed| if let Typed::Node(node) = typed { Some(node) } else { None })
            } else {
                Vec::new()
            },
            namespaces,
            node_ports: if wants_nodes { self.node_ports(name) } else { BTreeSet::new() },
            publish: PublishInputs { listed, approved, ..self.publishing(name) },
            denied,
        }
    }

    #[must_use]
    pub fn group(&self, name: &str) -> Option<Arc<ProxyGroup>> {
        match self.one(WatchRole::Group, "", name)? {
            Typed::Group(group) => Some(Arc::clone(group)),
            _ => None,
        }
    }

    #[must_use]
    pub fn class(&self, name: &str) -> Option<Arc<ProxyClass>> {
        match self.one(WatchRole::Class, "", name)? {
            Typed::Class(class) => Some(Arc::clone(class)),
            _ => None,
        }
    }

    #[must_use]
    pub fn tailnet(&self, name: &str) -> Option<Arc<Tailnet>> {
        match self.one(WatchRole::Tailnet, "", name)? {
            Typed::Tailnet(tailnet) => Some(Arc::clone(tailnet)),
            _ => None,
        }
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = (&String, &Arc<ProxyGroup>)> {
        let objects = self.shelves.get(&WatchRole::Group).into_iter().flat_map(|shelf| &shelf.objects);
        objects.filter_map(|((_, name), stored)| if let Typed::Group(group) = &stored.typed { Some((name, group)) } else { None })
    }

    /// All classes but one.
    #[must_use]
    pub fn other_classes(&self, name: &str) -> Vec<Arc<ProxyClass>> {
        let all = self.typed(WatchRole::Class, |typed| if let Typed::Class(class) = typed { Some(class) } else { None });
        all.into_iter().filter(|class| class.metadata.name.as_deref() != Some(name)).collect()
    }

    /// The groups that use a class.
    #[must_use]
    pub fn users_of_class(&self, name: &str) -> Vec<String> {
        self.groups().filter(|(_, group)| self.class_of(group) == Some(name)).map(|(name, _)| name.clone()).collect()
    }

    /// The groups that join a tailnet.
    #[must_use]
    pub fn users_of_tailnet(&self, name: &str) -> Vec<String> {
        self.groups().filter(|(_, group)| group.spec.tailnet.as_deref() == Some(name)).map(|(name, _)| name.clone()).collect()
    }

    /// The groups that join none by name.
    #[must_use]
    pub fn users_of_no_tailnet(&self) -> Vec<String> {
        self.groups().filter(|(_, group)| group.spec.tailnet.is_none()).map(|(name, _)| name.clone()).collect()
    }

    /// The Tailnets whose credentials are in a Secret.
    pub(super) fn users_of_secret(&self, name: &str) -> Vec<String> {
        let all = self.typed(WatchRole::Tailnet, |typed| if let Typed::Tailnet(tailnet) = typed { Some(tailnet) } else { None });
        let users = all.into_iter().filter(|tailnet| tailnet.spec.credentials.secret_name == name);
        users.filter_map(|tailnet| tailnet.metadata.name.clone()).collect()
    }

    /// Whether a group is ours to serve.
    #[must_use]
    pub fn serves(&self, group: &ProxyGroup) -> bool {
        self.published.types.contains(&group.spec.type_)
    }

    /// The groups of types that we do not serve.
    #[must_use]
    pub fn unserved(&self) -> usize {
        self.groups().filter(|(_, group)| !self.serves(group)).count()
    }

    pub(super) fn class_of<'a>(&'a self, group: &'a ProxyGroup) -> Option<&'a str> {
        let own = group.spec.proxy_class.as_deref().filter(|name| !name.is_empty());
        own.or(self.default_class.as_deref())
    }

    /// Every key that there is anything of: groups that exist, groups that left something behind, classes and tailnets.
    #[must_use]
    pub fn all(&self) -> BTreeSet<WorkKey> {
        let names = |role| self.shelves.get(&role).into_iter().flat_map(|shelf| shelf.objects.keys().map(|(_, name)| name.clone()));
        let groups = names(WatchRole::Group).chain(self.members.keys().cloned()).map(WorkKey::Group);
        groups
            .chain([WorkKey::DefaultControlPlane])
            .chain(names(WatchRole::Class).map(WorkKey::Class))
            .chain(names(WatchRole::Tailnet).map(WorkKey::Tailnet))
            .collect()
    }

    /// What is recorded of a class, and still holds for what it says now.
    fn judged(&self, name: &str) -> Class {
        match self.class(name) {
            None => Class::Missing(name.to_owned()),
            Some(class) if proxyclass::is_ready(&class) => Class::Ready(class),
            Some(_) => Class::NotReady(name.to_owned()),
        }
    }

    pub(super) fn owned(&self, group: &str) -> OrdMap<ObjectRef, Arc<Value>> {
        let mut owned = self.members.get(group).map(GroupObjects::shown).unwrap_or_default();
        for (object, (value, _)) in self.foreign.get(group).into_iter().flatten() {
            owned.entry(object.clone()).or_insert_with(|| Arc::clone(value));
        }
        owned
    }

    /// The same and what is of no group alone: the Secret of the ACME accounts, and certificates of names that the group is
    /// asked for.
    fn with_shared(&self, mut owned: OrdMap<ObjectRef, Arc<Value>>, group: &str, namespace: &str) -> OrdMap<ObjectRef, Arc<Value>> {
        let Some(secrets) = self.shelves.get(&WatchRole::Owned(Kind::Secret)) else { return owned };
        if let Some(stored) = secrets.objects.get(&(namespace.to_owned(), names::ACCOUNTS.to_owned())) {
            owned.insert(accounts_ref(namespace), Arc::clone(&stored.value));
        }
        for label in self.asked_labels(group) {
            let begin = format!("{label}.");
            let same = secrets.objects.range((namespace.to_owned(), begin.clone())..).take_while(|((_, name), _)| name.starts_with(&begin));
            for ((namespace, name), stored) in same.filter(|(_, stored)| domain_of(&stored.value).is_some()) {
                owned.entry(ObjectRef::new(Kind::Secret, namespace, name.clone())).or_insert_with(|| Arc::clone(&stored.value));
            }
        }
        owned
    }

    pub(super) fn replicas(&self, group: &str) -> BTreeMap<u32, ObservedReplica> {
        let mut replicas: BTreeMap<u32, ObservedReplica> = BTreeMap::new();
        for (role, id) in self.members.get(group).into_iter().flat_map(|members| &members.replicas) {
            let base = id.1.strip_suffix(names::CONFIG_SECRET_SUFFIX).unwrap_or(&id.1);
            let Some(ordinal) = base.strip_prefix(group).and_then(|rest| rest.strip_prefix('-')?.parse().ok()) else { continue };
            let Some(stored) = self.shelves.get(role).and_then(|shelf| shelf.objects.get(id)) else { continue };
            match &stored.typed {
                Typed::Pod(pod) => replicas.entry(ordinal).or_default().pod = Some(Arc::clone(pod)),
                Typed::State(state) => replicas.entry(ordinal).or_default().state = Some(Arc::clone(state)),
                Typed::Config(config) => replicas.entry(ordinal).or_default().config = Some(Arc::clone(config)),
                _ => {}
            }
        }
        replicas
    }

    pub(super) fn services(&self, group: &str) -> OrdMap<Id, Arc<Service>> {
        self.members.get(group).map(|members| members.services.clone()).unwrap_or_default()
    }

    /// The node ports of Services of other groups, and those that the API server refused.
    fn node_ports(&self, group: &str) -> BTreeSet<u16> {
        let services = self.shelves.get(&WatchRole::Owned(Kind::Service)).into_iter().flat_map(|shelf| shelf.objects.values());
        let others = services.filter(|stored| stored.value["metadata"]["labels"][names::PARENT] != group);
        let ports = others.flat_map(|stored| stored.value["spec"]["ports"].as_array().into_iter().flatten());
        let node_ports = ports.filter_map(|port| port["nodePort"].as_u64()?.try_into().ok());
        node_ports.chain(self.refused_ports.keys().copied()).collect()
    }

    pub(super) fn one(&self, role: WatchRole, namespace: &str, name: &str) -> Option<&Typed> {
        self.shelves.get(&role)?.objects.get(&(namespace.to_owned(), name.to_owned())).map(|stored| &stored.typed)
    }

    fn typed<T>(&self, role: WatchRole, pick: impl Fn(&Typed) -> Option<&Arc<T>>) -> Vec<Arc<T>> {
        let objects = self.shelves.get(&role).into_iter().flat_map(|shelf| shelf.objects.values());
        objects.filter_map(|stored| pick(&stored.typed).map(Arc::clone)).collect()
    }
}
