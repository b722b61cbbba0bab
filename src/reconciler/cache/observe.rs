//! Snapshot of the stores for a pass.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::index::ordinal;
use super::keys::has_tenants;
use super::{ClusterCache, Id, WatchRole, WorkKey, publishers};
use crate::api::connector::Connector;
use crate::api::proxyclass::ProxyClass;
use crate::api::proxygroup::ProxyGroup;
use crate::api::tailnet::Tailnet;
use crate::api::vip::PREFIX;
use crate::model::controller::key::{PublishSource, Publisher, WorkloadKey};
use crate::model::controller::kinds::proxyclass;
use crate::model::controller::kinds::proxyclass::ClassRules;
use crate::model::controller::policy::requests;
use crate::model::controller::policy::requests::Parent;
use crate::model::controller::policy::tenancy::max_names;
use crate::model::controller::workload::identity::DeviceId;
use crate::model::controller::workload::naming;
use crate::model::controller::workload::objects::certificate::{CertificateRecord, accounts_ref};
use crate::model::controller::workload::objects::{Kind, ObjectRef, workload_of};
use crate::model::controller::workload::observed::replica::ObservedReplica;
use crate::model::controller::workload::observed::{
    Approved, Class, ControlPlaneError, DeviceRead, Observed, PublishInputs, ServiceList, TailnetState,
};
use crate::model::controller::workload::readiness::is_lost;
use crate::model::controller::workload::secret_name::SecretName;
use crate::model::controller::workload::settings::GroupSettings;
use crate::model::failover::ReplicaPod;
use crate::model::settings::class_variables;

/// Known state of a group's control plane.
#[derive(Debug)]
pub struct ControlPlaneView {
    pub tailnet: TailnetState,
    pub denied: BTreeMap<String, ControlPlaneError>,
    pub listed: Option<Arc<ServiceList>>,
    pub approved: OrdMap<DeviceId, Approved>,
    pub device_reads: OrdMap<DeviceId, DeviceRead>,
}

impl ClusterCache {
    pub fn observe(&self, key: &WorkloadKey, settings: Arc<GroupSettings>, plane: ControlPlaneView, now: Timestamp) -> Observed {
        let ControlPlaneView { tailnet, denied, listed, approved, device_reads } = plane;
        let parent = self.standalone_parent(key);
        let group = key.group().and_then(|name| self.group(name));
        let class = self.class_name(key);
        let targets = self.target_inputs(parent, class);
        let class = class.map_or(Class::None, |name| self.class_state(name));
        let workload = self.workload(key);
        let namespaces = match parent.and_then(|parent| parent.metadata().namespace.as_ref()) {
            Some(_) if settings.standalone_tenants.is_empty() => OrdMap::new(),
            None if !group.as_deref().is_some_and(has_tenants) => OrdMap::new(),
            Some(own) => {
                self.indices.namespaces.get_key_value(own).into_iter().map(|(name, labels)| (name.clone(), labels.clone())).collect()
            }
            None => self.indices.namespaces.clone(),
        };
        let tenants = &settings.standalone_tenants;
        let names_before = if tenants.is_empty() { 0 } else { self.names_before(key, max_names(tenants)) };
        let (replicas, waiting) = self.with_waiting(key, &workload);
        let devices = self.device_inputs(key, &workload, &replicas, device_reads);
        let wants_nodes = matches!(&class, Class::Ready(class) | Class::Refused(class) if class.spec.static_endpoints.is_some());
        let owned = self.with_secrets(self.owned(key), key, &workload, &settings.namespace);
        let certificates = self.certificates_of(&owned);
        let recorded_certificates = self.recorded_certificates(&owned);
        Observed {
            key: key.clone(),
            now,
            group,
            connector: if let WorkloadKey::Connector(name) = key { self.get(name).cloned() } else { None },
            class,
            tailnet,
            create_failure: self.create_failure(&workload, &replicas, now),
            replicas,
            waiting,
            workload,
            owned,
            certificates,
            children: self.indices.child_owners.clone(),
            slices: self.indices.workloads.get(key).map(|members| members.slices.clone()).unwrap_or_default(),
            services: self.services(key),
            nodes: if wants_nodes { self.nodes().cloned().collect() } else { Vec::new() },
            namespaces,
            names_before,
            node_ports: if wants_nodes { self.node_ports(key) } else { BTreeSet::new() },
            targets,
            restricted_group: parent.and_then(|_| self.restricted_group()),
            publish: PublishInputs { recorded_certificates, listed, approved, ..self.publishing(key, &settings.namespace) },
            settings,
            assignment: self.rules_of_passes(),
            takeover_fault: None,
            replacements: 0,
            devices,
            denied,
        }
    }

    pub fn group(&self, name: &str) -> Option<Arc<ProxyGroup>> {
        self.get(name).cloned()
    }

    pub fn class(&self, name: &str) -> Option<Arc<ProxyClass>> {
        self.get(name).cloned()
    }

    pub fn tailnet(&self, name: &str) -> Option<Arc<Tailnet>> {
        self.get(name).cloned()
    }

    /// Version of a cluster-wide object of a kind that is reconciled by itself, as the API server returned it.
    pub fn text_version(&self, role: WatchRole, name: &str) -> Option<String> {
        self.one(role, &(String::new(), name.to_owned()))?.version().map(str::to_owned)
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = (&String, &Arc<ProxyGroup>)> {
        self.all_of().map(|((_, name), group)| (name, group))
    }

    pub(super) fn connectors(&self) -> impl Iterator<Item = (WorkloadKey, &Arc<Connector>)> {
        self.all_of().map(|((_, name), connector)| (WorkloadKey::Connector(name.clone()), connector))
    }

    pub(super) fn classes(&self) -> impl Iterator<Item = &Arc<ProxyClass>> {
        self.all_of().map(|(_, class)| class)
    }

    fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.all_of().map(|(_, node)| node)
    }

    pub fn other_classes(&self, name: &str) -> Vec<Arc<ProxyClass>> {
        self.classes().filter(|class| class.metadata.name.as_deref() != Some(name)).cloned().collect()
    }

    /// Groups, Connectors, and standalone Services and Ingresses that use a class.
    pub fn users_of_class(&self, name: &str) -> Vec<WorkloadKey> {
        let default = self.default_class.as_deref();
        let uses = |parent| self.assignment.has_own_proxy(parent) && requests::class(parent.metadata(), default) == Some(name);
        let standalone = self.standalone_keys().filter(|key| self.standalone_parent(key).is_some_and(uses)).cloned();
        let connectors = self.connectors().map(|(key, _)| key).filter(|key| self.class_name(key) == Some(name));
        self.groups_that(|group| self.class_of(group) == Some(name)).into_iter().chain(connectors).chain(standalone).collect()
    }

    /// Groups and Connectors of a Tailnet; with `None`, those that name no Tailnet, and standalone proxies.
    pub fn users_of_tailnet(&self, name: Option<&str>) -> Vec<WorkloadKey> {
        let services = self.standalone_keys().filter(|_| name.is_none()).cloned();
        let connectors = self.connectors().filter(|(_, connector)| connector.spec.tailnet.as_deref() == name).map(|(key, _)| key);
        self.groups_that(|group| group.spec.tailnet.as_deref() == name).into_iter().chain(connectors).chain(services).collect()
    }

    /// Tailnets that name a Secret as credentials.
    pub(super) fn users_of_secret(&self, name: &str) -> Vec<String> {
        let uses = |tailnet: &Tailnet| tailnet.spec.credentials.secret_name == name;
        self.all_of().filter(|(_, tailnet)| uses(tailnet)).map(|((_, name), _)| name.clone()).collect()
    }

    /// Number of groups of types that we do not serve.
    pub fn unserved(&self) -> usize {
        self.groups().filter(|(_, group)| !self.types.contains(&group.spec.type_)).count()
    }

    /// Name of the class that a workload requests. A Connector has no default class, as under the Tailscale operator.
    pub(super) fn class_name(&self, key: &WorkloadKey) -> Option<&str> {
        match key {
            WorkloadKey::ProxyGroup(name) => self.get::<ProxyGroup>(name).and_then(|group| self.class_of(group)),
            WorkloadKey::Connector(name) => self.get::<Connector>(name)?.spec.proxy_class.as_deref().filter(|class| !class.is_empty()),
            WorkloadKey::Service(..) | WorkloadKey::Ingress(..) => {
                requests::class(self.standalone_parent(key)?.metadata(), self.default_class.as_deref())
            }
        }
    }

    pub(super) fn class_of<'a>(&'a self, group: &'a ProxyGroup) -> Option<&'a str> {
        let own = group.spec.proxy_class.as_deref().filter(|name| !name.is_empty());
        own.or(self.default_class.as_deref())
    }

    /// Every key with something to reconcile: objects of kinds that are reconciled by themselves, and workloads with leftovers.
    pub fn all(&self) -> BTreeSet<WorkKey> {
        let own = WatchRole::TYPED.iter().flat_map(|role| self.objects(*role).filter_map(|(id, _)| role.own_key(id)));
        let workloads = self.indices.workloads.keys().cloned().map(WorkKey::Workload);
        let recorded = self.recorded_keys();
        let own = own.chain(self.admission_keys()).chain(self.nameserver_leftovers());
        own.chain(workloads).chain([WorkKey::DefaultControlPlane]).chain(self.annotation_keys()).chain(recorded).collect()
    }

    /// What classes are validated with.
    pub fn class_rules(&self) -> ClassRules {
        ClassRules { service_monitors: self.has(WatchRole::Owned(Kind::ServiceMonitor)), refusal: class_variables::refusal }
    }

    /// State of a class, by its recorded condition if that is current.
    fn class_state(&self, name: &str) -> Class {
        match self.class(name) {
            None => Class::Missing(name.to_owned()),
            Some(class) if proxyclass::is_ready(&class) => Class::Ready(class),
            Some(class) => {
                let usable = proxyclass::without_refused_variables(&class, &self.other_classes(name), self.class_rules());
                usable.map_or_else(|| Class::NotReady(name.to_owned()), |class| Class::Refused(Arc::new(class)))
            }
        }
    }

    pub(super) fn owned(&self, key: &WorkloadKey) -> OrdMap<ObjectRef, Arc<Value>> {
        let mut owned = self.indices.workloads.get(key).map(|members| members.owned.clone()).unwrap_or_default();
        for (object, (value, _)) in self.foreign.get(key).into_iter().flatten() {
            owned.entry(object.clone()).or_insert_with(|| Arc::clone(value));
        }
        owned
    }

    /// Adds Secrets that Pods may write, by their names: those of the workload's replicas, its ACME account and the shared one, and the
    /// certificates of names that it requests or has.
    pub(super) fn with_secrets(
        &self,
        mut owned: OrdMap<ObjectRef, Arc<Value>>,
        key: &WorkloadKey,
        workload: &str,
        namespace: &str,
    ) -> OrdMap<ObjectRef, Arc<Value>> {
        let accounts = accounts_ref(namespace);
        owned.extend(self.owned_object(&accounts).map(|stored| (accounts, Arc::clone(stored))));
        let sets = owned.range(ObjectRef::new(Kind::StatefulSet, "", "")..).take_while(|(object, _)| object.kind == Kind::StatefulSet);
        let workloads: BTreeSet<String> = sets.map(|(object, _)| object.name.clone()).chain([workload.to_owned()]).collect();
        let states = workloads.iter().filter_map(|name| self.indices.states.get(name)).flat_map(BTreeMap::values).map(|(value, _)| value);
        for object in self.recorded_objects(key, namespace) {
            if let Some(stored) = self.owned_object(&object) {
                owned.insert(object, Arc::clone(stored));
            }
        }
        let accounts = workloads.iter().filter_map(|name| self.indices.accounts.get(name));
        let recorded = self.indices.recorded_names.get(key).into_iter().flatten();
        let recorded = recorded.filter_map(|name| name.strip_prefix(PREFIX).map(str::to_owned));
        let labels: BTreeSet<String> = self.requested_labels(key).chain(recorded).collect();
        let certificates = labels.iter().flat_map(|label| {
            let begin = format!("{label}.");
            let same = self.indices.certificate_secrets.range(begin.clone()..).take_while(move |(dns, _)| dns.starts_with(&begin));
            same.filter(|(dns, (value, _))| self.is_certificate_name(key, dns, value)).map(|(_, (value, _))| value)
        });
        for secret in states.chain(accounts).chain(certificates).cloned().collect::<Vec<_>>() {
            let name = secret["metadata"]["name"].as_str().unwrap_or_default();
            // It replaces what a failed write found of it.
            owned.insert(ObjectRef::new(Kind::Secret, namespace, name), secret);
        }
        owned
    }

    /// Content of the certificates among these objects. Those in no watch have not been read.
    fn certificates_of(&self, owned: &OrdMap<ObjectRef, Arc<Value>>) -> OrdMap<String, CertificateRecord> {
        let secrets = owned.range(ObjectRef::new(Kind::Secret, "", "")..).take_while(|(object, _)| object.kind == Kind::Secret);
        let certificates = secrets.filter(|(object, _)| SecretName::parse(&object.name) == SecretName::Certificate);
        let content = |(object, value): (&ObjectRef, &Arc<Value>)| {
            let watched = self.indices.certificate_secrets.get(&object.name).map(|(_, content)| *content);
            (object.name.clone(), watched.unwrap_or_else(|| CertificateRecord::read(value)))
        };
        certificates.map(content).collect()
    }

    pub(super) fn replicas(&self, key: &WorkloadKey, workload: &str) -> BTreeMap<u32, ObservedReplica> {
        let all = self.indices.workloads.get(key).into_iter().flat_map(|members| &members.replicas);
        let mut replicas: BTreeMap<_, _> = all.filter_map(|(pod, replica)| Some((ordinal(workload, pod)?, replica.clone()))).collect();
        for (ordinal, (_, state)) in self.indices.states.get(workload).into_iter().flatten() {
            replicas.entry(*ordinal).or_default().state = Some(Arc::clone(state));
        }
        replicas
    }

    /// Replicas of a workload, and the Pod of a standalone proxy that waits to take over.
    pub(super) fn with_waiting(&self, key: &WorkloadKey, workload: &str) -> (BTreeMap<u32, ObservedReplica>, Option<Arc<Pod>>) {
        let mut replicas = self.replicas(key, workload);
        let second = key.is_standalone().then(|| self.replicas(key, &naming::standby_name(workload)).remove(&0)).flatten();
        let waiting = second.and_then(|second| replicas.entry(0).or_default().choose(second.pod?));
        (replicas, waiting)
    }

    /// Name of a group's workload, or of another one; empty if others have all that a new one tries.
    pub(super) fn workload(&self, key: &WorkloadKey) -> String {
        if let Some(group) = key.group() {
            return group.to_owned();
        }
        let owned = self.indices.workloads.get(key).into_iter().flat_map(|members| &members.owned);
        let has_device = |set: &str| {
            self.indices.states.get(set).is_some_and(|states| states.get(&0).is_some_and(|(_, state)| state.device_id.is_some()))
        };
        if let Some(name) = naming::workload(key, owned, has_device) {
            return name.to_owned();
        }
        let uid = self.uid(key).unwrap_or_default();
        let is_free = |name: &String| self.named_workload(name).is_none_or(|other| other == *key);
        (0..naming::MAX_NAMES).map(|attempt| naming::new_name(key, &uid, attempt)).find(is_free).unwrap_or_default()
    }

    /// The Service or Ingress of a key of a standalone proxy.
    pub(super) fn standalone_parent(&self, key: &WorkloadKey) -> Option<Parent<'_>> {
        let Publisher { source, namespace, name } = key.publisher()?;
        self.one(publishers::role(source), &(namespace, name))?.parent()
    }

    pub(super) fn standalone_ingress(&self, key: &WorkloadKey) -> bool {
        matches!(self.standalone_parent(key), Some(Parent::Ingress(_)))
    }

    /// Keys of standalone Services and Ingresses, and of those that are being released.
    pub(super) fn standalone_keys(&self) -> impl Iterator<Item = &WorkloadKey> {
        self.indices.workloads.keys().filter(|key| key.is_standalone())
    }

    /// Keys of a namespace among them.
    pub(super) fn standalone_keys_in(&self, namespace: &str) -> impl Iterator<Item = &WorkloadKey> {
        let first = [PublishSource::Service, PublishSource::Ingress].map(|source| WorkloadKey::of_object(source, namespace, ""));
        first.into_iter().flat_map(|first| {
            // Keys of a kind are sorted by namespace.
            let (kind, namespace) = (first.kind(), first.namespace().to_owned());
            self.indices
                .workloads
                .range(first..)
                .map(|(key, _)| key)
                .take_while(move |key| key.kind() == kind && key.namespace() == namespace)
        })
    }

    /// Whether an object has a proxy of its own.
    pub(super) fn has_proxy(&self, key: &WorkloadKey) -> bool {
        let members = self.indices.workloads.get(key);
        members.is_some_and(|members| members.owned.keys().any(|object| object.kind == Kind::StatefulSet))
    }

    /// Number of other standalone objects of its namespace that have a proxy, or requested one earlier, counted up to a limit; 0 for an
    /// object that has one, which is not limited.
    fn names_before(&self, key: &WorkloadKey, limit: usize) -> usize {
        if self.has_proxy(key) {
            return 0;
        }
        let own = key.publisher().and_then(|own| self.request_rank(self.claimant(&own)?.1)).filter(|(is_live, ..)| *is_live);
        let proxies = self.indices.proxies.get(key.namespace()).map_or(0, BTreeSet::len);
        let before = own.zip(self.indices.requests.get(key.namespace())).map(|(own, all)| {
            let waiting = all.range(..own).filter(|(.., other)| !self.has_proxy(other));
            waiting.take(limit.saturating_sub(proxies)).count()
        });
        proxies + before.unwrap_or_default()
    }

    /// UID of the object that requests a workload.
    pub fn uid(&self, key: &WorkloadKey) -> Option<String> {
        match key {
            WorkloadKey::ProxyGroup(group) => self.group(group)?.metadata.uid.clone(),
            WorkloadKey::Connector(name) => self.get::<Connector>(name)?.metadata.uid.clone(),
            WorkloadKey::Service(..) | WorkloadKey::Ingress(..) => self.standalone_parent(key)?.metadata().uid.clone(),
        }
    }

    /// Running replicas of all groups, and Pods of standalone proxies.
    pub fn replica_pods(&self) -> Vec<ReplicaPod> {
        self.pods().filter_map(|pod| ReplicaPod::read(pod)).collect()
    }

    /// Number of lost replicas of each group with Pods, and of each standalone proxy with one.
    pub fn lost_replicas(&self) -> BTreeMap<String, usize> {
        let mut lost = BTreeMap::new();
        for pod in self.pods() {
            let key = pod.metadata.labels.as_ref().and_then(workload_of);
            if let Some(key) = key.filter(|key| is_lost(pod) || key.group().is_some()) {
                *lost.entry(key.label()).or_default() += usize::from(is_lost(pod));
            }
        }
        lost
    }

    fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.all_of().map(|(_, pod)| pod)
    }

    pub(super) fn services(&self, key: &WorkloadKey) -> OrdMap<Id, Arc<Service>> {
        self.indices.workloads.get(key).map(|members| members.services.clone()).unwrap_or_default()
    }

    /// Node ports of other workloads' Services, and rejected ones.
    fn node_ports(&self, key: &WorkloadKey) -> BTreeSet<u16> {
        let services = self.objects(WatchRole::Owned(Kind::Service)).filter_map(|(_, object)| object.owned());
        let owner = |service: &Value| WorkloadKey::of_labels(|label| service["metadata"]["labels"][label].as_str());
        let others = services.filter(|service| owner(service).as_ref() != Some(key));
        let ports = others.flat_map(|service| service["spec"]["ports"].as_array().into_iter().flatten());
        let node_ports = ports.filter_map(|port| port["nodePort"].as_u64()?.try_into().ok());
        node_ports.chain(self.refused_ports.keys().copied()).collect()
    }
}
