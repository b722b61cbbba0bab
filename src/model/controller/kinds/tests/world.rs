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

use crate::api::connector::Connector;
use crate::api::proxyclass::ProxyClass;
use crate::api::proxygroup::ProxyGroup;
use crate::api::{egress, names};
use crate::model::controller::egress::memo::Memory;
use crate::model::controller::egress::slices::is_manual;
use crate::model::controller::key::{PublishSource, Publisher, WorkloadKey};
use crate::model::controller::kinds::tests::simulation::Simulation;
use crate::model::controller::kinds::{concerns, pass, plan_with_memo};
use crate::model::controller::policy::assignment::AssignmentRules;
use crate::model::controller::policy::requests;
use crate::model::controller::policy::tenancy::{DefaultTenancy, Labels};
use crate::model::controller::workload::actions::{ClaimedDevice, ControlAction, Delete, ExternalNameUpdate, GroupPlan, ObjectUpdate};
use crate::model::controller::workload::control_plane::Capabilities;
use crate::model::controller::workload::device_index::DeviceIndex;
use crate::model::controller::workload::event_schedule::EventSchedule;
use crate::model::controller::workload::identity::{Device, DeviceId, DeviceRecord, KeyId};
use crate::model::controller::workload::naming;
use crate::model::controller::workload::objects::ingress::IngressConfigMap;
use crate::model::controller::workload::objects::services::egress_config;
use crate::model::controller::workload::objects::slice::{ChildSlice, SliceWrite};
use crate::model::controller::workload::objects::{Kind, Manifest, ObjectRef, workload_of};
use crate::model::controller::workload::observed::UserCertificate;
use crate::model::controller::workload::observed::replica::ObservedReplica;
use crate::model::controller::workload::observed::{
    ChildOwner, Class, ControlPlaneError, DeviceInputs, DeviceRead, Observed, TailnetState,
};
use crate::model::controller::workload::pace::Replacements;
use crate::model::controller::workload::pod_fault::CreateFailure;
use crate::model::controller::workload::settings::GroupSettings;
use crate::model::controller::workload::target_inputs::TargetInputs;
use crate::model::controller::workload::vip_service::ServiceOwner;

mod devices;
mod look;
mod observe;
mod published;
mod replicas;
mod server;
mod slices;

pub(super) use crate::model::controller::kinds::tests::simulation::device_id;
pub(super) use published::{Hosted, claimant};

/// The namespace of the proxies.
pub(super) const NS: &str = "tailscale";

#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) now: i64,
    pub(super) settings: GroupSettings,
    pub(super) assignment: AssignmentRules,
    pub(super) groups: BTreeMap<String, ProxyGroup>,
    pub(super) connectors: BTreeMap<String, Connector>,
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
    /// Reported failure to create Pods.
    pub(super) create_failure: Option<CreateFailure>,
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
    pub(super) targets: TargetInputs,
    pub(super) restricted_group: Option<String>,
    pub(super) takeover_fault: Option<String>,
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
    let capabilities = Capabilities::TAILSCALE;
    TailnetState::Ready { server_url: "https://controlplane.tailscale.com".into(), capabilities }
}

/// A control plane without Tailscale Services.
pub(super) fn headscale() -> TailnetState {
    let capabilities = Capabilities::HEADSCALE;
    TailnetState::Ready { server_url: "https://headscale.example.com".into(), capabilities }
}

impl World {
    pub(super) fn new() -> Self {
        let namespaces = ["default".to_owned()].into_iter().collect();
        Self {
            now: 1_800_000_000,
            settings: settings(),
            assignment: AssignmentRules { ingress_class: "tailscale".into(), namespaces, connectors: true, ..AssignmentRules::default() },
            groups: BTreeMap::new(),
            connectors: BTreeMap::new(),
            class: Class::None,
            tailnet: ready(),
            services: BTreeMap::new(),
            objects: BTreeMap::new(),
            pods: BTreeMap::new(),
            devices: BTreeMap::new(),
            device_reads: imbl::OrdMap::new(),
            device_requests: 0,
            names_before: 0,
            targets: TargetInputs { is_default_class: true, is_complete: true, ..TargetInputs::default() },
            restricted_group: None,
            takeover_fault: None,
            denied: BTreeMap::new(),
            keys: BTreeSet::new(),
            asleep: BTreeSet::new(),
            unmade: BTreeSet::new(),
            create_failure: None,
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

    /// Creates a Connector or replaces its spec.
    pub(super) fn connector(&mut self, name: &str, spec: Value) {
        let uid = self.id();
        let created = self.time().to_string();
        let metadata = json!({"name": name, "uid": uid, "generation": 1, "creationTimestamp": created});
        let mut connector: Connector = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a Connector");
        if let Some(stored) = self.connectors.get(name) {
            connector.metadata = stored.metadata.clone();
            connector.metadata.generation = stored.metadata.generation.map(|generation| generation + 1);
            connector.status.clone_from(&stored.status);
        }
        self.connectors.insert(name.into(), connector);
    }

    pub(super) fn delete_connector(&mut self, name: &str) {
        let now = Time(self.time());
        if let Some(connector) = self.connectors.get_mut(name) {
            connector.metadata.deletion_timestamp.get_or_insert(now);
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
            .chain(self.connectors.keys().cloned().map(WorkloadKey::Connector))
            .chain(labelled)
            .chain(concerned)
            .chain(published)
            .chain(self.recorded_keys())
            .collect()
    }

    /// Runs passes over a group whose control plane denies a repeated request.
    pub(super) fn settle_denied(&mut self, name: impl Into<WorkloadKey>) {
        self.rounds(10);
        let GroupPlan { control, apply, delete, group, services, events, .. } = self.pass(name);
        assert!(control.iter().all(|action| self.denied.contains_key(&action.what())), "{control:?}");
        let rest = (apply.len(), delete.len(), group, services.len(), events.len());
        assert_eq!(rest, (0, 0, None, 0, 0), "nothing else is left to do");
    }

    /// Runs passes until nothing changes, now or later.
    pub(super) fn settle(&mut self) {
        if !self.settles() {
            let last: Vec<_> = self.keys_of_work().into_iter().map(|name| (name.clone(), pass(&self.observe(&name)))).collect();
            panic!("no end: {last:#?}");
        }
    }

    pub(super) fn with_class(&mut self, spec: Value) {
        let class: ProxyClass = serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": spec})).expect("a class");
        self.class = Class::Ready(Arc::new(class));
    }
}

impl Simulation for World {
    const MAX_ROUNDS: usize = 200;

    fn round(&mut self) -> bool {
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

    fn wait(&mut self, seconds: i64) {
        self.now += seconds;
    }
}

/// Whether a pass planned nothing.
pub(super) fn idle(made: &GroupPlan) -> bool {
    GroupPlan {
        again: None,
        faults: Vec::new(),
        refused: BTreeSet::new(),
        new_names: BTreeSet::new(),
        proxy: None,
        summary: None,
        ..made.clone()
    } == GroupPlan::default()
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
