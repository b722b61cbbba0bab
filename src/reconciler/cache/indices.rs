//! Data of the indices: the objects of each workload, and lookups from objects to workloads. Persistent maps: observing a group of ten
//! thousand Services copies nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use serde_json::Value;

use super::Id;
use super::name_index::NameIndex;
use crate::model::controller::key::{Publisher, WorkloadKey};
use crate::model::controller::policy::cluster_networks::ClusterNetworks;
use crate::model::controller::policy::tenancy::Labels;
use crate::model::controller::workload::device_index::DeviceIndex;
use crate::model::controller::workload::identity::DeviceId;
use crate::model::controller::workload::objects::ObjectRef;
use crate::model::controller::workload::objects::certificate::CertificateRecord;
use crate::model::controller::workload::objects::slice::ChildSlice;
use crate::model::controller::workload::observed::ChildOwner;
use crate::model::controller::workload::observed::replica::{ObservedReplica, ReplicaState};
use crate::model::controller::workload::pod_fault::CreateFailure;

/// A state Secret, pruned, and its content.
pub(super) type StoredState = (Arc<Value>, Arc<ReplicaState>);

/// Whether an object is not in deletion, its age, and itself.
pub(super) type RequestRank = (bool, (i64, String), WorkloadKey);

#[derive(Debug, Default)]
pub(super) struct Indices {
    pub(super) workloads: BTreeMap<WorkloadKey, WorkloadObjects>,
    /// Groups with children of a user's Service, with their number.
    pub(super) children: BTreeMap<Id, BTreeMap<WorkloadKey, usize>>,
    /// Objects that request a label, or whose own proxy has it.
    pub(super) claimants: NameIndex,
    /// Standalone objects that request a proxy, by namespace, in the order in which they get one.
    pub(super) requests: BTreeMap<String, BTreeSet<RequestRank>>,
    /// Standalone objects that have a proxy, by namespace.
    pub(super) proxies: BTreeMap<String, BTreeSet<WorkloadKey>>,
    /// Ingresses that name a Service as backend.
    pub(super) backend_users: BTreeMap<Id, BTreeSet<Id>>,
    /// Groups whose config has an entry for an object.
    pub(super) recorded: BTreeMap<Publisher, BTreeSet<WorkloadKey>>,
    /// Number of EndpointSlices of a Service with an endpoint that receives traffic.
    pub(super) backed: BTreeMap<Id, usize>,
    pub(super) networks: ClusterNetworks,
    pub(super) namespaces: OrdMap<String, Arc<Labels>>,
    /// Owners of child Services, by name.
    pub(super) child_owners: OrdMap<Arc<str>, ChildOwner>,
    /// Workloads by name, as their `StatefulSet`s and config Secrets record them, with the number of these objects. Those of config Secrets
    /// (`true`) are the last ones: Pods of the Tailscale operator may create them.
    pub(super) names: BTreeMap<String, BTreeMap<(bool, WorkloadKey), usize>>,
    /// State Secrets by workload and ordinal.
    pub(super) states: BTreeMap<String, BTreeMap<u32, StoredState>>,
    /// Replicas whose state Secret claims a device, by workload and ordinal.
    pub(super) claims: BTreeMap<DeviceId, BTreeSet<(String, u32)>>,
    /// Secrets of groups' ACME accounts by workload.
    pub(super) accounts: BTreeMap<String, Arc<Value>>,
    /// Secrets of certificates by DNS name, with their content.
    pub(super) certificate_secrets: BTreeMap<String, (Arc<Value>, CertificateRecord)>,
    /// Names in the tailnet that a group's config has.
    pub(super) recorded_names: BTreeMap<WorkloadKey, BTreeSet<String>>,
    /// Who has a label: objects by the configs of their groups, and workloads by the host names in config Secrets, each with the workload
    /// and the number of these objects.
    pub(super) holders: BTreeMap<String, BTreeMap<(WorkloadKey, WorkloadKey), usize>>,
    /// Ingresses that ordered certificates, by UID of the Secret.
    pub(super) certificates: OrdMap<String, Publisher>,
    /// Failures to create Pods by `StatefulSet`, each with its Event.
    pub(super) create_failures: BTreeMap<String, (Id, Arc<CreateFailure>)>,
    /// Devices and joining host names of all config Secrets.
    pub(super) devices: DeviceIndex,
    /// Workloads with device records that have a domain, with their number.
    pub(super) domains: BTreeMap<WorkloadKey, usize>,
}

#[derive(Debug, Default)]
pub(super) struct WorkloadObjects {
    /// Objects that are labelled or owned as the workload's, except EndpointSlices of Kubernetes' controller and Secrets that Pods write.
    pub(super) owned: OrdMap<ObjectRef, Arc<Value>>,
    /// These slices, by child.
    pub(super) slices: OrdMap<Arc<str>, Vec<Arc<ChildSlice>>>,
    /// Number of EndpointSlices of the Tailscale operator.
    pub(super) manual: usize,
    /// Users' Services that concern the group, or that it has a child of.
    pub(super) services: OrdMap<Id, Arc<Service>>,
    /// Ingresses that are assigned to the group, or that its config has an entry for.
    pub(super) ingresses: OrdMap<Id, Arc<Ingress>>,
    /// By name of the Pod.
    pub(super) replicas: BTreeMap<String, ObservedReplica>,
}
