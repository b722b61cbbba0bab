//! The informer cache: every object that the reconciler needs, and the work keys of each change.
//!
//! Fed by the watches and by the responses to our own writes, whichever is newer, so that a pass sees the changes of earlier passes. Only a
//! complete list removes objects that it does not contain. An object is pruned on entry (`kinds`), and the indices (`index`) follow each
//! change. The cache fetches nothing and decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use annotations::AnnotationNotice;
use indices::Indices;
use kinds::{CachedObject, WatchedKind};
use serde_json::Value;
use store::{ObjectStore, StoredObject};
use tokio::time::Instant;
use uninstall::Uninstall;

use crate::api::condition::Condition;
use crate::api::names::endpoint_reader;
use crate::api::proxygroup::ProxyGroupType;
use crate::model::base::bounded;
use crate::model::controller::key::{Publisher, WorkloadKey};
use crate::model::controller::policy::assignment::{AssignmentRules, ClassParameters};
use crate::model::controller::workload::objects::slice::ChildSlice;
use crate::model::controller::workload::objects::{Kind, ObjectRef};
use crate::model::controller::workload::observed::UserCertificate;
use crate::model::controller::workload::observed::backend_service::BackendService;

pub use index::parent;
pub use kinds::{Delivered, MANAGED, ParsedObject, WatchRole, WatchScope, WorkKey};
pub use observe::ControlPlaneView;
pub(in crate::reconciler) use publishers::own_request;

mod annotations;
mod assignment;
mod certificate_orders;
mod certificates;
mod create_failures;
mod device_claims;
mod foreign;
mod index;
mod indices;
mod keys;
mod kinds;
mod maps;
mod name_index;
mod namesakes;
mod observe;
mod publishers;
mod store;
mod tailnets;
mod targets;
mod uninstall;

/// Namespace and name; the namespace of a cluster-wide object is empty.
pub type Id = (String, String);

#[derive(Debug)]
pub struct ClusterCache {
    /// Namespace of the proxies, if known.
    namespace: Option<String>,
    default_class: Option<String>,
    /// Rules for objects without annotation; they follow the `IngressClass` and the Namespaces.
    assignment: Arc<AssignmentRules>,
    /// Types of the groups that we serve.
    types: Vec<ProxyGroupType>,
    stores: BTreeMap<WatchRole, ObjectStore>,
    indices: Indices,
    /// Parsed user certificates by Secret name, with the Secret's version.
    certificates: BTreeMap<String, (u64, UserCertificate)>,
    /// Foreign objects that have the name of an object of a group.
    foreign: BTreeMap<WorkloadKey, BTreeMap<ObjectRef, (Arc<Value>, Instant)>>,
    /// Node ports that the API server rejected, with the time.
    refused_ports: BTreeMap<u16, Instant>,
    /// Objects that their workloads refused in the last pass, for another reason than their name in the tailnet.
    refusals: BTreeMap<WorkloadKey, BTreeSet<Publisher>>,
    /// Names that plans give to workloads, by label, until a record has them.
    reserved: BTreeMap<(String, WorkloadKey), Instant>,
    uninstall: Uninstall,
    /// Users' objects with annotations that have no effect.
    annotations: BTreeMap<Publisher, AnnotationNotice>,
}

impl ClusterCache {
    /// Creates empty stores, each with its number of watches.
    pub fn new(default_class: Option<String>, watches: impl IntoIterator<Item = WatchRole>) -> Self {
        let mut stores: BTreeMap<WatchRole, ObjectStore> = BTreeMap::new();
        for role in watches {
            stores.entry(role).or_default().watches += 1;
        }
        let parameters = if stores.contains_key(&WatchRole::IngressClass) { ClassParameters::Unknown } else { ClassParameters::Unset };
        Self {
            namespace: None,
            default_class,
            assignment: Arc::new(AssignmentRules { parameters, ..AssignmentRules::default() }),
            types: ProxyGroupType::SERVED.to_vec(),
            stores,
            indices: Indices::default(),
            certificates: BTreeMap::new(),
            foreign: BTreeMap::new(),
            refused_ports: BTreeMap::new(),
            refusals: BTreeMap::new(),
            reserved: BTreeMap::new(),
            uninstall: Uninstall::default(),
            annotations: BTreeMap::new(),
        }
    }

    /// Sets the group types that we serve, and the rules for objects without annotation.
    #[must_use]
    pub fn serving(self, types: &[ProxyGroupType], rules: AssignmentRules) -> Self {
        let own_namespace = self.namespace.clone().unwrap_or_default();
        let assignment = AssignmentRules { parameters: self.assignment.parameters.clone(), own_namespace, ..rules };
        Self { types: types.to_vec(), assignment: Arc::new(assignment), ..self }
    }

    /// Sets the namespace of the proxies. Elsewhere tenants may write what has the labels of the reconciler's objects.
    #[must_use]
    pub fn in_namespace(self, namespace: &str) -> Self {
        let own_namespace = namespace.to_owned();
        let assignment = Arc::new(AssignmentRules { own_namespace, ..(*self.assignment).clone() });
        Self { namespace: Some(namespace.to_owned()), assignment, ..self }
    }

    /// Marks a kind as not installed.
    pub fn lacks(&mut self, role: WatchRole) {
        self.store(role).lacking = true;
    }

    /// Whether the API server has a kind, as far as known.
    pub fn has(&self, role: WatchRole) -> bool {
        self.stores.get(&role).is_some_and(|store| !store.lacking)
    }

    /// Begins a list.
    pub fn begin(&mut self, role: WatchRole, namespace: Option<&str>) {
        self.store(role).begin(namespace);
    }

    /// Adds an object of a list.
    pub fn listed(&mut self, namespace: Option<&str>, parsed: ParsedObject) -> BTreeSet<WorkKey> {
        self.store(parsed.role).named(namespace, parsed.id.clone());
        self.put(parsed)
    }

    /// Completes a list; removes objects that it does not contain.
    pub fn complete(&mut self, role: WatchRole, namespace: Option<&str>) -> BTreeSet<WorkKey> {
        let missing = self.store(role).complete(namespace);
        let mut keys: BTreeSet<_> = missing.into_iter().flat_map(|id| self.drop_stored(role, &id)).collect();
        if role == WatchRole::Node {
            // Passes that need nodes wait for this list.
            keys.extend(self.users_of_nodes());
        }
        if matches!(role, WatchRole::Node | WatchRole::ServiceRange) {
            keys.extend(self.users_of_networks());
        }
        keys
    }

    /// Stores a new or changed object. Ignored if the stored version is the same or newer.
    pub fn put(&mut self, ParsedObject { role, id, version, mut object }: ParsedObject) -> BTreeSet<WorkKey> {
        if self.store(role).holds(&id, version) {
            return BTreeSet::new();
        }
        if role == WatchRole::CreateFailure && !self.admits_failure(&id, version, &object) {
            if object == CachedObject::None {
                // An older version, which is about a set, may wait.
                self.store(role).end(&id, version);
            }
            return self.drop_stored(role, &id);
        }
        let annotated = self.follow_annotations(role, &id, Some(&object));
        let networks = self.follow_cluster_ips(&object);
        if let CachedObject::Service(service) = &object
            && self.keys_of(&id, &object).is_empty()
            && !self.assignment.depends_on_namespace(service)
        {
            object = CachedObject::Backend(Arc::new(BackendService::from(&**service)));
        }
        object = self.without_foreign(role, &id, object);
        if let Some(stored) = self.store(role).objects.get_mut(&id).filter(|stored| stored.object == object) {
            (stored.version, stored.settled) = (version, None);
            return annotated.into_iter().collect();
        }
        let mut keys = self.keys(role, &id, &object);
        keys.extend(networks);
        let old = self.store(role).objects.insert(id.clone(), StoredObject { version, object: object.clone(), settled: None });
        let old = old.map(|stored| stored.object);
        keys.extend(annotated);
        keys.extend(old.iter().flat_map(|old| self.keys(role, &id, old)));
        self.follow(role, &id, old.as_ref(), Some(&object));
        keys.extend(self.reassign(role, &id));
        keys
    }

    /// An object without what no pass reads: of an Ingress of another class its content, of a `RoleBinding` outside of the proxies' namespace
    /// everything, unless it has the name of one that lets replicas read endpoints.
    fn without_foreign(&self, role: WatchRole, (namespace, name): &Id, object: CachedObject) -> CachedObject {
        let is_elsewhere = || self.namespace.as_ref().is_some_and(|own| own != namespace);
        match object {
            CachedObject::Ingress(ingress) if !self.assignment.has_class(&ingress) => {
                let mut ingress = Arc::unwrap_or_clone(ingress);
                bounded::foreign_ingress(&mut ingress);
                CachedObject::Ingress(Arc::new(ingress))
            }
            CachedObject::Owned(_) if role == WatchRole::Owned(Kind::RoleBinding) && is_elsewhere() && endpoint_reader(name).is_none() => {
                CachedObject::None
            }
            object => object,
        }
    }

    /// Removes an object; `last` is its last state.
    pub fn gone(&mut self, last: &Delivered) -> BTreeSet<WorkKey> {
        let Delivered { role, id, version, .. } = last;
        if self.store(*role).newer_than(id, *version) {
            return BTreeSet::new();
        }
        self.store(*role).end(id, *version);
        self.drop_stored(*role, id)
    }

    /// Removes an object that we deleted, if it has this UID.
    pub fn deleted(&mut self, object: &ObjectRef, uid: Option<&str>) -> BTreeSet<WorkKey> {
        let Some(metadata) = self.owned_object(object).map(|value| &value["metadata"]) else { return BTreeSet::new() };
        // An object with finalizers stays until they are removed; its watch reports that.
        if uid.is_some_and(|uid| metadata["uid"] != uid) || metadata["finalizers"].as_array().is_some_and(|all| !all.is_empty()) {
            return BTreeSet::new();
        }
        self.drop_stored(WatchRole::Owned(object.kind), &id_of(object))
    }

    /// User's Service of a stored egress child.
    pub fn parent(&self, object: &ObjectRef) -> Option<Id> {
        parent(object.kind, self.owned_object(object)?)
    }

    /// Stores the result of applying the manifest with this hash.
    pub fn applied(&mut self, parsed: ParsedObject, hash: String) -> BTreeSet<WorkKey> {
        let (role, id, version) = (parsed.role, parsed.id.clone(), parsed.version);
        let keys = self.put(parsed);
        if let Some(stored) = self.store(role).objects.get_mut(&id).filter(|stored| stored.version == version) {
            stored.settled = Some(hash);
        }
        keys
    }

    /// Whether the stored version is the result of applying this manifest.
    pub fn is_settled(&self, object: &ObjectRef, hash: &str) -> bool {
        let stored = self.stores.get(&WatchRole::Owned(object.kind)).and_then(|store| store.objects.get(&id_of(object)));
        stored.is_some_and(|stored| stored.settled.as_deref() == Some(hash))
    }

    /// Version of an object, if stored.
    pub fn version(&self, object: &ObjectRef) -> Option<u64> {
        self.stores.get(&WatchRole::Owned(object.kind))?.objects.get(&id_of(object)).map(|stored| stored.version)
    }

    /// Whether the child of a desired EndpointSlice has one of the same IP family.
    pub fn has_slice_like(&self, desired: &Value) -> bool {
        let Some(desired) = ChildSlice::read(desired) else { return false };
        let slices = self.indices.workloads.get(&WorkloadKey::of_group(&desired.group)).and_then(|group| group.slices.get(&desired.child));
        slices.into_iter().flatten().any(|slice| slice.replaces(&desired))
    }

    /// Watches without a complete first list. Nothing may be written until there are none. Nodes are needed only if a class needs them;
    /// Events explain faults, and decide nothing, and the target policy does not shrink before nodes and ranges are listed.
    pub fn missing(&self) -> Vec<WatchRole> {
        let needed = |role: WatchRole| match role {
            WatchRole::Node => self.wants_nodes(),
            WatchRole::CreateFailure | WatchRole::ServiceRange => false,
            _ => true,
        };
        self.stores.iter().filter(|(role, store)| !store.synced() && needed(**role)).map(|(role, _)| *role).collect()
    }

    pub fn roles(&self) -> impl Iterator<Item = WatchRole> {
        self.stores.keys().copied()
    }

    /// Number of stored objects of a role, including Services that concern no group.
    pub fn stored(&self, role: WatchRole) -> usize {
        self.stores.get(&role).map_or(0, |store| store.objects.len())
    }

    /// Conditions of a user's Service.
    pub fn service_conditions(&self, namespace: &str, name: &str) -> Vec<Condition> {
        let id = (namespace.to_owned(), name.to_owned());
        let Some(CachedObject::Service(service)) = self.one(WatchRole::Service, &id) else { return Vec::new() };
        service.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default()
    }

    /// Number of users' Services that groups serve or that request one.
    pub fn group_services(&self) -> usize {
        let groups = self.indices.workloads.iter().filter(|(key, _)| key.group().is_some_and(|name| !name.is_empty()));
        groups.flat_map(|(_, members)| members.services.keys()).collect::<BTreeSet<_>>().len()
    }

    /// Number of objects of a role that concern a group, or may do so by default.
    pub fn count(&self, role: WatchRole) -> usize {
        self.objects(role).filter(|(_, object)| !matches!(object, CachedObject::Backend(_))).count()
    }

    fn store(&mut self, role: WatchRole) -> &mut ObjectStore {
        self.stores.entry(role).or_default()
    }

    /// Objects of a kind with a type.
    fn all_of<'a, K: WatchedKind + 'a>(&'a self) -> impl Iterator<Item = (&'a Id, &'a Arc<K>)> {
        self.objects(K::ROLE).filter_map(|(id, object)| Some((id, K::of(object)?)))
    }

    /// A cluster-wide object of a kind with a type.
    fn get<K: WatchedKind>(&self, name: &str) -> Option<&Arc<K>> {
        self.one(K::ROLE, &(String::new(), name.to_owned())).and_then(K::of)
    }

    fn objects(&self, role: WatchRole) -> impl Iterator<Item = (&Id, &CachedObject)> {
        self.stores.get(&role).into_iter().flat_map(|store| &store.objects).map(|(id, stored)| (id, &stored.object))
    }

    fn one(&self, role: WatchRole, id: &Id) -> Option<&CachedObject> {
        self.stores.get(&role)?.objects.get(id).map(|stored| &stored.object)
    }

    fn owned_object(&self, object: &ObjectRef) -> Option<&Arc<Value>> {
        self.one(WatchRole::Owned(object.kind), &id_of(object))?.owned()
    }

    fn drop_stored(&mut self, role: WatchRole, id: &Id) -> BTreeSet<WorkKey> {
        let Some(StoredObject { object, .. }) = self.store(role).objects.remove(id) else { return BTreeSet::new() };
        let mut keys = self.keys(role, id, &object);
        self.follow_annotations(role, id, None);
        self.follow(role, id, Some(&object), None);
        keys.extend(self.reassign(role, id));
        keys
    }
}

fn id_of(object: &ObjectRef) -> Id {
    (object.namespace.clone(), object.name.clone())
}

#[cfg(test)]
mod tests;
