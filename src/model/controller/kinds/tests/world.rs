//! A simulated cluster: an API server that applies passes, a controller that creates Pods, and replicas that apply their config. Enough to
//! run passes to a fixpoint and to check invariants after each step.

#![allow(clippy::needless_pass_by_value, reason = "a call with a literal reads better")]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::proxyclass::ProxyClass;
use crate::api::proxygroup::ProxyGroup;
use crate::api::{egress, names};
use crate::model::controller::egress::memo::Memory;
use crate::model::controller::egress::slices::is_manual;
use crate::model::controller::kinds::{concerns, pass, plan_with_memo};
use crate::model::controller::policy::assignment::AssignmentRules;
use crate::model::controller::policy::requests;
use crate::model::controller::policy::tenancy::{DefaultTenancy, Labels};
use crate::model::controller::workload::actions::{ClaimedDevice, ControlAction, Delete, ExternalNameUpdate, GroupPlan, ObjectUpdate};
use crate::model::controller::workload::device_index::DeviceIndex;
use crate::model::controller::workload::event_schedule::EventSchedule;
use crate::model::controller::workload::identity::{Device, DeviceId, DeviceRecord, KeyId};
use crate::model::controller::workload::key::{PublishSource, Publisher, WorkloadKey};
use crate::model::controller::workload::naming;
use crate::model::controller::workload::objects::ingress::IngressConfigMap;
use crate::model::controller::workload::objects::services::egress_config;
use crate::model::controller::workload::objects::slice::{ChildSlice, SliceWrite};
use crate::model::controller::workload::objects::{Kind, Manifest, ObjectRef, workload_of};
use crate::model::controller::workload::observed::UserCertificate;
use crate::model::controller::workload::observed::replica::ObservedReplica;
use crate::model::controller::workload::observed::{
    ChildOwner, Class, ControlPlaneError, DeviceInputs, DeviceRead, GroupCapabilities, Observed, TailnetState,
};
use crate::model::controller::workload::pace::Replacements;
use crate::model::controller::workload::settings::GroupSettings;
use crate::model::controller::workload::vip_service::ServiceOwner;

mod devices;
mod look;
mod published;
mod replicas;
mod server;
mod slices;

pub(super) use devices::device_id;
pub(super) use published::{Hosted, claimant};

/// The namespace of the proxies.
pub(super) const NS: &str = "tailscale";

#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) now: i64,
    pub(super) settings: GroupSettings,
    pub(super) assignment: AssignmentRules,
    pub(super) groups: BTreeMap<String, ProxyGroup>,
    pub(super) class: Class,
    pub(super) tailnet: TailnetState,
    pub(super) services: BTreeMap<(String, String), Service>,
    pub(super) objects: BTreeMap<ObjectRef, Arc<Value>>,
    pub(super) pods: BTreeMap<String, Pod>,
    pub(super) devices: BTreeMap<DeviceId, Device>,
    pub(super) device_reads: imbl::OrdMap<DeviceId, DeviceRead>,
    /// Number of requests for a device.
    pub(super) device_requests: u32,
    pub(super) denied: BTreeMap<String, ControlPlaneError>,
    /// Created keys that are neither used nor revoked.
    pub(super) keys: BTreeSet<KeyId>,
    /// Replicas that ignore their config.
    pub(super) asleep: BTreeSet<String>,
    /// Replicas without room: their Pods are not created.
    pub(super) unmade: BTreeSet<String>,
    pub(super) minted: u32,
    /// Reasons of all Events.
    pub(super) events: Vec<&'static str>,
    next: u64,
    /// IP families of child Services and Pods; none: children have no slices.
    pub(super) families: &'static [&'static str],
    pub(super) memory: Memories,
    /// Parsed objects by address, which is unique while they are held here.
    read: Rc<RefCell<Read>>,
    pub(super) writes: u64,
    pub(super) ingresses: BTreeMap<(String, String), Ingress>,
    /// Tailscale Services and routes of the control plane.
    pub(super) hosted: Hosted,
    pub(super) namespaces: imbl::OrdMap<String, Arc<Labels>>,
    pub(super) own_certificates: BTreeMap<String, UserCertificate>,
    /// Suffix that the control plane appends to taken names.
    pub(super) renamed: &'static str,
    /// Standalone objects of the namespace before the observed one.
    pub(super) names_before: usize,
}

/// What the reconcilers remember; a copy of the cluster has reconcilers without memories.
#[derive(Debug, Default)]
pub(super) struct Memories {
    /// Services as last observed: an unchanged one is the same object.
    shown: RefCell<BTreeMap<(String, String), Arc<Service>>>,
    pub(super) passes: BTreeMap<WorkloadKey, Memory>,
    pub(super) replacements: Replacements,
    pub(super) schedule: EventSchedule,
}

impl Clone for Memories {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// State Secret and config Secret of a replica.
type Secrets = [Option<Arc<Value>>; 2];

/// Cache of parsed objects that are unchanged.
#[derive(Debug, Default)]
struct Read {
    replicas: HashMap<[usize; 2], (ObservedReplica, Secrets)>,
    configs: HashMap<usize, (Rc<IngressConfigMap>, Arc<Value>)>,
}

pub(super) fn settings() -> GroupSettings {
    let image = "ghcr.io/tailyard/tailyard:1".to_owned();
    let cluster = ServiceOwner { id: "here".into(), ..ServiceOwner::default() };
    let tenancy = DefaultTenancy::Open;
    GroupSettings { tags: vec!["tag:k8s".into()], service_monitors: true, cluster, tenancy, ..GroupSettings::new(NS.into(), image) }
}

pub(super) fn ready() -> TailnetState {
    let capabilities = GroupCapabilities { keys: true, devices: true, services: true };
    TailnetState::Ready { server_url: "https://controlplane.tailscale.com".into(), capabilities }
}

/// A control plane without Tailscale Services.
pub(super) fn headscale() -> TailnetState {
    let capabilities = GroupCapabilities { keys: true, devices: true, services: false };
    TailnetState::Ready { server_url: "https://headscale.example.com".into(), capabilities }
}

impl World {
    pub(super) fn new() -> Self {
        let namespaces = ["default".to_owned()].into_iter().collect();
        Self {
            now: 1_800_000_000,
            settings: settings(),
            assignment: AssignmentRules { ingress_class: "tailscale".into(), namespaces, ..AssignmentRules::default() },
            groups: BTreeMap::new(),
            class: Class::None,
            tailnet: ready(),
            services: BTreeMap::new(),
            objects: BTreeMap::new(),
            pods: BTreeMap::new(),
            devices: BTreeMap::new(),
            device_reads: imbl::OrdMap::new(),
            device_requests: 0,
            names_before: 0,
            denied: BTreeMap::new(),
            keys: BTreeSet::new(),
            asleep: BTreeSet::new(),
            unmade: BTreeSet::new(),
            minted: 0,
            events: Vec::new(),
            next: 0,
            families: &[],
            memory: Memories::default(),
            read: Rc::default(),
            writes: 0,
            ingresses: BTreeMap::new(),
            hosted: Hosted::default(),
            own_certificates: BTreeMap::new(),
            renamed: "",
            namespaces: imbl::OrdMap::new(),
        }
    }

    /// A copy of the cluster with reconcilers without memos.
    pub(super) fn fork(&self) -> Self {
        Self { events: Vec::new(), ..self.clone() }
    }

    fn id(&mut self) -> String {
        self.next += 1;
        format!("id-{}", self.next)
    }

    pub(super) fn time(&self) -> Timestamp {
        Timestamp::from_second(self.now).expect("a time")
    }

    /// Creates a group or replaces its spec.
    pub(super) fn group(&mut self, name: &str, spec: Value) {
        let uid = self.groups.get(name).and_then(|stored| stored.metadata.uid.clone());
        let uid = uid.unwrap_or_else(|| self.id());
        let mut group: ProxyGroup =
            serde_json::from_value(json!({"metadata": {"name": name, "uid": uid, "generation": 1}, "spec": spec})).expect("a group");
        if let Some(stored) = self.groups.get(name) {
            group.metadata = stored.metadata.clone();
            group.metadata.generation = stored.metadata.generation.map(|generation| generation + 1);
            group.status.clone_from(&stored.status);
        }
        self.groups.insert(name.into(), group);
    }

    pub(super) fn delete_group(&mut self, name: &str) {
        let now = Time(self.time());
        if let Some(group) = self.groups.get_mut(name) {
            group.metadata.deletion_timestamp.get_or_insert(now);
        }
        self.collect();
    }

    pub(super) fn service(&mut self, name: &str, annotations: Value, ports: &[u16]) {
        let key = ("default".to_owned(), name.to_owned());
        let ports: Vec<_> = ports.iter().map(|port| json!({"name": format!("p{port}"), "port": port, "protocol": "TCP"})).collect();
        let uid = self.id();
        let created = self.time().to_string();
        let mut service: Service = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default", "uid": uid, "annotations": annotations, "creationTimestamp": created},
            "spec": {"type": "ExternalName", "externalName": "placeholder", "ports": ports},
        }))
        .expect("a Service");
        if let Some(stored) = self.services.get(&key) {
            let annotations = service.metadata.annotations.take();
            service.metadata = stored.metadata.clone();
            service.metadata.annotations = annotations;
            service.status.clone_from(&stored.status);
            let stored = stored.spec.as_ref().and_then(|spec| spec.external_name.clone());
            service.spec.as_mut().expect("a spec").external_name = stored;
        }
        self.services.insert(key, service);
    }

    pub(super) fn delete_service(&mut self, name: &str) {
        let now = Time(self.time());
        if let Some(service) = self.services.get_mut(&("default".to_owned(), name.to_owned())) {
            service.metadata.deletion_timestamp.get_or_insert(now);
        }
        self.collect();
    }

    pub(super) fn keys_of_work(&self) -> BTreeSet<WorkloadKey> {
        let labelled = self.objects.values().filter_map(|stored| owner_of(stored));
        let published = self.claimants().into_iter().flat_map(|claimant| self.publishers(&claimant));
        let concerned = self.services.values().flat_map(|stored| concerns(stored, &self.assignment));
        self.groups
            .keys()
            .cloned()
            .map(WorkloadKey::ProxyGroup)
            .chain(labelled)
            .chain(concerned)
            .chain(published)
            .chain(self.recorded_keys())
            .collect()
    }

    fn show(&self, key: &(String, String), stored: &Service) -> Arc<Service> {
        let mut shown = self.memory.shown.borrow_mut();
        let last = shown.get(key).filter(|last| ***last == *stored);
        let now = last.cloned().unwrap_or_else(|| Arc::new(stored.clone()));
        shown.insert(key.clone(), Arc::clone(&now));
        now
    }

    pub(super) fn observe(&self, key: impl Into<WorkloadKey>) -> Observed {
        let name = &key.into();
        let owned = self.owned(name);
        let parent = |stored: &Value| {
            let label = |key: &str| stored["metadata"]["labels"][key].as_str().unwrap_or_default().to_owned();
            (label(names::PARENT_NAMESPACE), label(names::PARENT))
        };
        let parents: BTreeSet<_> = owned.values().map(|stored| parent(stored)).collect();
        let published = |key: &(String, String)| self.publishers(&claimant(PublishSource::Service, key)).contains(name);
        let mine = |key: &(String, String), stored: &Service| {
            concerns(stored, &self.assignment).contains(name) || parents.contains(key) || published(key)
        };
        let services = self.services.iter().filter(|(key, stored)| mine(key, stored));
        let group = name.group().and_then(|name| self.groups.get(name)).cloned();
        let workload = self.workload(name, &owned);
        let (replicas, waiting) = self.with_waiting(&workload);
        Observed {
            key: name.clone(),
            now: self.time(),
            settings: Arc::new(self.settings.clone()),
            assignment: Arc::new(self.assignment.clone()),
            group: group.map(Arc::new),
            class: self.class.clone(),
            tailnet: self.tailnet.clone(),
            replicas,
            workload,
            owned: self.with_shared(owned, name),
            children: self.child_owners(),
            slices: self.child_slices(name.group_name()),
            services: services.map(|(key, stored)| (key.clone(), self.show(key, stored))).collect(),
            nodes: Vec::new(),
            namespaces: self.namespaces.clone(),
            names_before: self.names_before,
            node_ports: BTreeSet::new(),
            publish: self.publishing(name),
            waiting,
            replacements: self.memory.replacements.besides(name),
            devices: DeviceInputs { index: self.device_index(), reads: self.device_reads.clone() },
            denied: self.denied.clone(),
        }
    }

    fn child_owners(&self) -> imbl::OrdMap<Arc<str>, ChildOwner> {
        let owner = |(object, child): (&ObjectRef, &Arc<Value>)| {
            let label = |key: &str| child["metadata"]["labels"][key].as_str();
            if object.kind != Kind::Service || label(names::PARENT_TYPE) != Some(names::PARENT_SERVICE) {
                return None;
            }
            let parent = (label(names::PARENT_NAMESPACE)?.to_owned(), label(names::PARENT)?.to_owned());
            Some((Arc::<str>::from(object.name.as_str()), ChildOwner { key: owner_of(child)?, parent }))
        };
        self.objects.iter().filter_map(owner).collect()
    }

    /// Objects of a group or of a standalone proxy.
    fn owned(&self, name: &WorkloadKey) -> imbl::OrdMap<ObjectRef, Arc<Value>> {
        let shown = self.objects.iter().filter(|(key, stored)| key.kind != Kind::EndpointSlice || is_manual(stored));
        let owned = shown.filter(|(_, stored)| owner_of(stored).as_ref() == Some(name));
        owned.map(|(key, stored)| (key.clone(), stored.clone())).collect()
    }

    /// The Service or Ingress of a key.
    fn parent(&self, key: &WorkloadKey) -> Option<requests::Parent<'_>> {
        let Publisher { source, namespace, name } = key.publisher()?;
        match source {
            PublishSource::Service => self.services.get(&(namespace, name)).map(requests::Parent::Service),
            PublishSource::Ingress => self.ingresses.get(&(namespace, name)).map(requests::Parent::Ingress),
        }
    }

    fn workload(&self, key: &WorkloadKey, owned: &imbl::OrdMap<ObjectRef, Arc<Value>>) -> String {
        if !key.is_standalone() {
            return key.name().to_owned();
        }
        let is_first = |value: &Value| value["metadata"]["labels"][names::STANDBY].is_null();
        let sets = owned.iter().filter(|(object, value)| object.kind == Kind::StatefulSet && is_first(value));
        let sets = sets.map(|(object, _)| object.name.as_str());
        let configs = owned.keys().filter(|object| object.kind == Kind::Secret);
        let configs = configs.filter_map(|object| Some(object.name.strip_suffix(names::CONFIG_SECRET_SUFFIX)?.rsplit_once('-')?.0));
        let has_device = |set: &&str| {
            let state = self.objects.get(&ObjectRef::new(Kind::Secret, NS, names::replica(set, 0)));
            state.is_some_and(|state| state["data"]["device_id"].is_string())
        };
        let uid = self.parent(key).and_then(|parent| parent.metadata().uid.as_deref()).unwrap_or_default();
        naming::workload(sets.chain(configs), has_device).map_or_else(|| naming::new_name(key, uid, 0), str::to_owned)
    }

    pub(super) fn observed_replicas(&self, name: &str) -> BTreeMap<u32, ObservedReplica> {
        let secret = |secret: String| self.objects.get(&ObjectRef::new(Kind::Secret, NS, secret)).cloned();
        let mut replicas = BTreeMap::new();
        for ordinal in 0..20 {
            let pod = self.pods.get(&names::replica(name, ordinal)).cloned().map(Arc::new);
            let (state, config) = (secret(names::replica(name, ordinal)), secret(names::replica_config(name, ordinal)));
            if pod.is_some() || state.is_some() || config.is_some() {
                replicas.insert(ordinal, ObservedReplica { pod, ..self.replica_by([state, config]) });
            }
        }
        replicas
    }

    fn replica_by(&self, secrets: Secrets) -> ObservedReplica {
        let place = secrets.each_ref().map(|stored| stored.as_ref().map_or(0, |stored| Arc::as_ptr(stored).addr()));
        let mut read = self.read.borrow_mut();
        let (replica, _) = read.replicas.entry(place).or_insert_with(|| {
            let [state, config] = secrets.each_ref().map(|stored| stored.as_ref().map(|stored| read_secret(stored)));
            (ObservedReplica::new(None, state.as_ref(), config.as_ref()), secrets)
        });
        replica.clone()
    }

    /// Runs passes over a group whose control plane denies a repeated request.
    pub(super) fn settle_denied(&mut self, name: impl Into<WorkloadKey>) {
        self.rounds(10);
        let GroupPlan { control, apply, delete, group, services, events, .. } = self.pass(name);
        assert!(control.iter().all(|action| self.denied.contains_key(&action.what())), "{control:?}");
        let rest = (apply.len(), delete.len(), group, services.len(), events.len());
        assert_eq!(rest, (0, 0, None, 0, 0), "nothing else is left to do");
    }

    /// Runs one pass over every group; returns whether any changed something.
    pub(super) fn round(&mut self) -> bool {
        let mut busy = false;
        for name in self.keys_of_work() {
            let made = self.pass(&name);
            self.check();
            busy |= !idle(&made);
        }
        self.live();
        self.now += 1;
        busy
    }

    pub(super) fn rounds(&mut self, count: u8) {
        for _ in 0..count {
            self.round();
        }
    }

    /// Runs passes until nothing changes, now or later.
    pub(super) fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..200 {
            if self.round() {
                quiet = 0;
            } else {
                quiet += 1;
                self.now += 70;
            }
            if quiet == 3 {
                return;
            }
        }
        let last: Vec<_> = self.keys_of_work().into_iter().map(|name| (name.clone(), pass(&self.observe(&name)))).collect();
        panic!("no end: {last:#?}");
    }

    pub(super) fn with_class(&mut self, spec: Value) {
        let class: ProxyClass = serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": spec})).expect("a class");
        self.class = Class::Ready(Arc::new(class));
    }
}

/// Whether a pass planned nothing.
pub(super) fn idle(made: &GroupPlan) -> bool {
    GroupPlan { again: None, faults: Vec::new(), summary: None, ..made.clone() } == GroupPlan::default()
}

fn read_secret(stored: &Value) -> Secret {
    serde_json::from_value(stored.clone()).expect("a Secret")
}

fn owner_of(stored: &Value) -> Option<WorkloadKey> {
    let labels = serde_json::from_value(stored["metadata"]["labels"].clone()).ok()?;
    workload_of(&labels)
}

/// Spec of an Ingress with this host and backend.
pub(super) fn site(host: &str, backend: &str) -> Value {
    json!({"tls": [{"hosts": [host]}], "defaultBackend": {"service": {"name": backend, "port": {"number": 80}}}})
}

/// Annotations of an egress Service of a group.
pub(super) fn to(group: &str) -> Value {
    json!({"tailscale.com/proxy-group": group, "tailscale.com/tailnet-fqdn": "db.tail1234.ts.net"})
}
