//! A simulated cluster whose passes read the informer cache: an API server with the reconciler's own watches, label selectors included, a
//! control plane, and (`replicas`) kubelets and replicas.

use std::cell::RefCell;

use imbl::OrdMap;
use k8s_openapi::jiff::Timestamp;

use super::*;
use crate::api::names;
use crate::api::vip::VipService;
use crate::model::controller::egress::memo::Memory;
use crate::model::controller::kinds::plan_with_memo;
use crate::model::controller::kinds::tests::simulation::{delete_device, record_device};
use crate::model::controller::policy::operator_device::OperatorDevice;
use crate::model::controller::policy::tenancy::DefaultTenancy;
use crate::model::controller::policy::tenancy::parse::parse;
use crate::model::controller::workload::actions::{ControlAction, Delete, GroupPlan, ObjectUpdate};
use crate::model::controller::workload::control_plane::Capabilities;
use crate::model::controller::workload::event_schedule::EventSchedule;
use crate::model::controller::workload::identity::{Device, DeviceId, KeyId};
use crate::model::controller::workload::objects::Manifest;
use crate::model::controller::workload::observed::{Approved, DeviceRead, Observed, ServiceList, TailnetState};
use crate::model::controller::workload::settings::GroupSettings;
use crate::model::controller::workload::vip_service::{OwnershipVerdict, Release, ServiceOwner, release, verify_owner};
use crate::reconciler::informers::{InformerWatch, watches};

pub(super) use crate::model::controller::kinds::tests::simulation::{DOMAIN, device_id};

mod replicas;
mod server;

/// Namespace of the proxies.
pub(super) const NS: &str = "ts";

/// Kind, namespace and name of an object.
pub(super) type ObjectId = (&'static str, String, String);

/// An auth key: the workload's key in the queue, and the tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MintedKey {
    pub(super) of: String,
    pub(super) tags: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) cache: ClusterCache,
    /// Objects of the API server.
    pub(super) objects: BTreeMap<ObjectId, Value>,
    pub(super) devices: BTreeMap<DeviceId, Device>,
    device_reads: OrdMap<DeviceId, DeviceRead>,
    approved: OrdMap<DeviceId, Approved>,
    pub(super) minted: Vec<MintedKey>,
    /// Object and message of each Event.
    pub(super) events: Vec<String>,
    /// Owner of each object when it was created, or last written by the reconciler: not what its labels say since.
    owners: BTreeMap<ObjectId, String>,
    /// Writes and deletions of objects that belonged to another owner.
    pub(super) takeovers: Vec<String>,
    /// Keys that the last change of an object enqueued.
    pub(super) enqueued: BTreeSet<WorkKey>,
    /// Objects that the reconciler wrote and deleted, in order.
    pub(super) writes: Vec<String>,
    watches: Vec<InformerWatch>,
    device: Option<OperatorDevice>,
    settings: Arc<GroupSettings>,
    memos: RefCell<BTreeMap<String, Memory>>,
    schedule: EventSchedule,
    /// Login server of the control plane.
    server: String,
    pub(super) vips: BTreeMap<String, VipService>,
    listed: Option<Arc<ServiceList>>,
    now: i64,
    version: u64,
}

/// Owner of an object as its labels name it: for objects that no Pod can write.
pub(super) fn owner(object: &Value) -> String {
    let label = |key: &str| object["metadata"]["labels"][key].as_str().unwrap_or_default();
    let (config, from, connector) =
        (label(names::CONFIG_PARENT), label(names::CONFIG_PARENT_INGRESS), label(names::CONFIG_PARENT_CONNECTOR));
    let kind = match label(names::PARENT_TYPE) {
        "" if !config.is_empty() => names::PARENT_SERVICE,
        "" if !from.is_empty() => names::PARENT_INGRESS,
        "" if !connector.is_empty() => names::PARENT_CONNECTOR,
        kind => kind,
    };
    let namespace = [label(names::PARENT_NAMESPACE), label(names::CONFIG_PARENT_NAMESPACE)].concat();
    format!("{kind} {namespace}/{}{config}{from}{connector} {}", label(names::PARENT), label(names::PROXY_GROUP))
}

/// Short form of a key.
pub(super) fn text(key: &WorkloadKey) -> String {
    match key {
        WorkloadKey::ProxyGroup(name) if name.contains('/') => key.to_string(),
        WorkloadKey::ProxyGroup(name) => name.clone(),
        WorkloadKey::Connector(_) => key.to_string(),
        WorkloadKey::Service(namespace, name) => format!("{namespace}/{name}"),
        WorkloadKey::Ingress(namespace, name) => format!("ingress/{namespace}/{name}"),
    }
}

/// Whether an owner is the workload of a key, or one of its children.
pub(super) fn is_of(key: &str, owner: &str) -> bool {
    if let Some(connector) = key.strip_prefix("Connector ") {
        return owner == format!("{} /{connector} ", names::PARENT_CONNECTOR);
    }
    match (key.strip_prefix("ingress/"), key.contains('/')) {
        (Some(ingress), _) => owner == format!("{} {ingress} ", names::PARENT_INGRESS),
        (None, true) => owner == format!("{} {key} ", names::PARENT_SERVICE),
        (None, false) => owner == format!("{} /{key} ", names::PARENT_GROUP) || owner.ends_with(&format!(" {key}")),
    }
}

/// Base64 text of a field of a Secret.
pub(super) fn encoded(text: &str) -> Value {
    json!(k8s_openapi::ByteString(text.as_bytes().to_vec()))
}

impl Cluster {
    pub(super) fn new() -> Self {
        let image = "ghcr.io/tailyard/tailyard:1".to_owned();
        let owner = ServiceOwner { id: "here".into(), ..ServiceOwner::default() };
        let settings = GroupSettings {
            tags: vec!["tag:k8s".into()],
            cluster: owner,
            tenancy: DefaultTenancy::Open,
            ..GroupSettings::new(NS.into(), image)
        };
        let mut cluster = Self::of(settings, "https://controlplane.tailscale.com".to_owned(), BTreeMap::new(), 1_800_000_000);
        cluster.put("IngressClass", json!({"metadata": {"name": "tailscale"}, "spec": {"controller": names::INGRESS_CONTROLLER}}));
        cluster
    }

    /// A cluster without objects, with a control plane of this login server and these Tailscale Services, at this time in seconds.
    pub(super) fn of(settings: GroupSettings, server: String, vips: BTreeMap<String, VipService>, now: i64) -> Self {
        let watches = watches(&settings.namespace, &[], !settings.impersonation.users.is_empty());
        Self {
            cache: empty(&watches, None),
            objects: BTreeMap::new(),
            devices: BTreeMap::new(),
            device_reads: OrdMap::new(),
            approved: OrdMap::new(),
            minted: Vec::new(),
            events: Vec::new(),
            owners: BTreeMap::new(),
            takeovers: Vec::new(),
            enqueued: BTreeSet::new(),
            writes: Vec::new(),
            watches,
            device: None,
            settings: Arc::new(settings),
            memos: RefCell::default(),
            schedule: EventSchedule::default(),
            server,
            vips,
            listed: None,
            now,
            version: 0,
        }
    }

    /// A cache with the objects of a cluster, as after a restart. Watches deliver in any order: by kind and name, or `reversed`.
    pub(super) fn cache_of(&self, objects: &BTreeMap<ObjectId, Value>, reversed: bool) -> ClusterCache {
        let mut cache = empty(&self.watches, self.device.clone());
        let mut ordered: Vec<_> = objects.iter().collect();
        if reversed {
            ordered.reverse();
        }
        for ((kind, ..), object) in ordered {
            feed(&mut cache, &self.watches, kind, object);
        }
        cache
    }

    /// Sets the operator's device, as a restart of the reconciler with other settings does.
    pub(super) fn set_device(&mut self, device: OperatorDevice) {
        self.device = Some(device);
        self.cache = self.cache_of(&self.objects, false);
    }

    /// Creates an Ingress of our class for a host, with a backend of [`Self::put_backends`].
    pub(super) fn put_ingress(&mut self, namespace: &str, name: &str, host: &str, group: Option<&str>) {
        let backend = json!({"service": {"name": "web", "port": {"name": "web"}}});
        let spec = json!({"ingressClassName": "tailscale", "tls": [{"hosts": [host]}], "defaultBackend": backend});
        let annotations = group.map_or(json!({}), |group| json!({names::PROXY_GROUP: group}));
        self.put("Ingress", json!({"metadata": {"name": name, "namespace": namespace, "annotations": annotations}, "spec": spec}));
    }

    /// Creates a Service `web` in each namespace.
    pub(super) fn put_backends(&mut self, namespaces: &[&str]) {
        for namespace in namespaces {
            let spec = json!({"clusterIP": "10.96.0.10", "ports": [{"name": "web", "port": 80, "protocol": "TCP"}]});
            self.put("Service", json!({"metadata": {"name": "web", "namespace": namespace}, "spec": spec}));
        }
    }

    /// Permits standalone proxies in all namespaces, also beside a group with tenants.
    pub(super) fn permit_standalone(&mut self) {
        self.settings_mut().standalone_tenants = Arc::new(parse(r#"[{"namespaceSelector": {}}]"#).expect("tenants"));
    }

    pub(super) fn settings_mut(&mut self) -> &mut GroupSettings {
        Arc::make_mut(&mut self.settings)
    }

    pub(super) fn object(&self, kind: &'static str, namespace: &str, name: &str) -> Option<&Value> {
        self.objects.get(&(kind, namespace.to_owned(), name.to_owned()))
    }

    /// Creates or replaces an object; UID and creation time stay.
    pub(super) fn put(&mut self, kind: &'static str, mut object: Value) {
        let (namespace, name) = id(&object);
        let id = (kind, namespace, name);
        self.version += 1;
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = json!(self.version.to_string());
        let stored = self.objects.get(&id).map(|stored| stored["metadata"].clone()).unwrap_or_default();
        for (key, new) in [("uid", format!("uid-{}", self.version)), ("creationTimestamp", self.time().to_string())] {
            if !stored[key].is_null() {
                metadata[key] = stored[key].clone();
            } else if metadata[key].is_null() {
                metadata[key] = json!(new);
            }
        }
        self.enqueued = feed(&mut self.cache, &self.watches, kind, &object);
        self.owners.entry(id.clone()).or_insert_with(|| owner(&object));
        self.objects.insert(id, object);
    }

    /// As [`Self::put`], with a kind by its name; one that no watch delivers is ignored.
    pub(super) fn put_watched(&mut self, kind: &str, object: Value) {
        let kind = self.watches.iter().map(|watch| watch.follow.resource.kind).find(|watched| *watched == kind);
        if let Some(kind) = kind {
            self.put(kind, object);
        }
    }

    /// Changes an object by a JSON merge patch, as a user or a Pod does.
    pub(super) fn patch(&mut self, kind: &'static str, namespace: &str, name: &str, patch: &Value) {
        let mut object = self.object(kind, namespace, name).unwrap_or_else(|| panic!("{kind} {namespace}/{name}")).clone();
        merge(&mut object, patch);
        self.put(kind, object);
    }

    pub(super) fn delete_object(&mut self, kind: &'static str, namespace: &str, name: &str) {
        self.remove(&(kind, namespace.to_owned(), name.to_owned()));
    }

    fn remove(&mut self, id: &ObjectId) {
        let Some(mut object) = self.objects.remove(id) else { return };
        self.owners.remove(id);
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let watches = self.watches.iter().filter(|watch| is_scope(watch, id.0, &id.1));
        self.enqueued = watches.flat_map(|watch| self.cache.gone_json(watch.role, &object)).collect();
    }

    pub(super) fn time(&self) -> Timestamp {
        Timestamp::from_second(self.now).expect("a time")
    }

    /// Keys of groups and standalone objects in the work queue.
    pub(super) fn keys(cache: &ClusterCache) -> BTreeSet<String> {
        let text = |key: &WorkKey| if let WorkKey::Workload(key) = key { Some(text(key)) } else { None };
        cache.all().iter().filter_map(text).collect()
    }

    pub(super) fn observe(&self, cache: &ClusterCache, key: &str) -> Observed {
        let capabilities = Capabilities::TAILSCALE;
        let tailnet = TailnetState::Ready { server_url: self.server.clone(), capabilities };
        let plane = ControlPlaneView {
            tailnet,
            denied: BTreeMap::new(),
            listed: self.listed.clone(),
            approved: self.approved.clone(),
            device_reads: self.device_reads.clone(),
        };
        cache.observe(&key.into(), Arc::clone(&self.settings), plane, self.time())
    }

    /// The plan of a reconciler without memory.
    pub(super) fn plan(&self, cache: &ClusterCache, key: &str) -> GroupPlan {
        plan_with_memo(&self.observe(cache, key), &mut Memory::default())
    }

    /// Runs one pass over a key; returns whether it changed something.
    pub(super) fn pass(&mut self, key: &str) -> bool {
        let observed = self.observe(&self.cache, key);
        let plan = plan_with_memo(&observed, self.memos.borrow_mut().entry(key.to_owned()).or_default());
        self.act(key, &plan);
        // An Event may be repeated while a fault lasts.
        GroupPlan {
            again: None,
            events: Vec::new(),
            faults: Vec::new(),
            refused: BTreeSet::new(),
            new_names: BTreeSet::new(),
            proxy: None,
            summary: None,
            ..plan
        } != GroupPlan::default()
    }

    /// `type: status reason: message` of each condition of a user's Service.
    pub(super) fn conditions(&self, namespace: &str, service: &str) -> Vec<String> {
        let service = self.object("Service", namespace, service).expect("a Service");
        let text = |condition: &Value, key: &str| condition[key].as_str().unwrap_or_default().to_owned();
        let conditions = service["status"]["conditions"].as_array().into_iter().flatten();
        conditions.map(|one| ["type", "status", "reason", "message"].map(|key| text(one, key)).join(" ")).collect()
    }

    /// Names of the Secrets in the rules of a Role with one of these verbs.
    pub(super) fn role_secrets(role: &Value, verb: &str) -> BTreeSet<String> {
        let has = |rule: &Value, key: &str, value: &str| rule[key].as_array().is_some_and(|all| all.iter().any(|one| one == value));
        let rules = role["rules"].as_array().into_iter().flatten();
        let rules = rules.filter(|rule| has(rule, "resources", "secrets") && has(rule, "verbs", verb));
        let named = rules.flat_map(|rule| rule["resourceNames"].as_array().into_iter().flatten());
        named.filter_map(|name| name.as_str().map(str::to_owned)).collect()
    }
}

impl Simulation for Cluster {
    const MAX_ROUNDS: usize = 60;

    fn round(&mut self) -> bool {
        let mut changed = false;
        for key in Self::keys(&self.cache) {
            changed |= self.pass(&key);
        }
        self.live();
        self.now += 1;
        changed
    }

    fn wait(&mut self, seconds: i64) {
        self.now += seconds;
    }
}

/// A Service that is published in the tailnet.
pub(super) fn exposed_service(namespace: &str, name: &str, annotations: Value) -> Value {
    let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
    let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "clusterIP": "10.96.0.9", "ports": ports});
    json!({"metadata": {"name": name, "namespace": namespace, "annotations": annotations}, "spec": spec})
}

fn empty(watches: &[InformerWatch], device: Option<OperatorDevice>) -> ClusterCache {
    let cache = ClusterCache::new(None, watches.iter().map(|watch| watch.role));
    let rules = AssignmentRules { device, connectors: true, ..rules(DefaultGroups::default(), StandaloneScope::Everywhere) };
    cache.serving(&ProxyGroupType::SERVED, rules).in_namespace(NS)
}

fn is_scope(watch: &InformerWatch, kind: &str, namespace: &str) -> bool {
    watch.follow.resource.kind == kind && watch.follow.namespace.as_ref().is_none_or(|watched| watched == namespace)
}

/// Delivers a change to the watches: one whose selector no longer matches reports a deletion, as the API server does.
fn feed(cache: &mut ClusterCache, watches: &[InformerWatch], kind: &str, object: &Value) -> BTreeSet<WorkKey> {
    let mut keys = BTreeSet::new();
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    for InformerWatch { role, follow } in watches.iter().filter(|watch| is_scope(watch, kind, namespace)) {
        let labels = &object["metadata"]["labels"];
        let matches = |term: &str| match (term.strip_prefix('!'), term.split_once('=')) {
            (Some(absent), _) => labels[absent].is_null(),
            (None, Some((key, value))) => labels[key] == value,
            (None, None) => !labels[term].is_null(),
        };
        let metadata_only = matches!(role, WatchRole::Namespace | WatchRole::Credentials);
        let delivered = if metadata_only { json!({"metadata": object["metadata"]}) } else { object.clone() };
        if follow.labels.is_none_or(|selector| selector.split(',').all(matches)) {
            keys.extend(cache.put_json(*role, delivered));
        } else {
            keys.extend(cache.gone_json(*role, &delivered));
        }
    }
    keys
}

/// JSON merge patch.
pub(super) fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, value) in fields {
        if value.is_null() {
            object.as_object_mut().expect("an object").remove(key);
        } else {
            merge(&mut object[key], value);
        }
    }
}
