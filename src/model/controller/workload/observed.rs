//! Inputs of a pass: a snapshot of the cache for one group.
//!
//! Nothing is fetched for a pass. The cache must contain the writes of earlier passes over the same group, else a key or a port is
//! allocated twice.

pub mod backend_service;
pub mod replica;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdMap;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::api::connector::Connector;
use crate::api::proxyclass::ProxyClass;
use crate::api::proxygroup::ProxyGroup;
use crate::api::vip::VipService;
use crate::model::controller::key::{PublishSource, Publisher, WorkloadKey};
use crate::model::controller::policy::age::Age;
use crate::model::controller::policy::assignment::AssignmentRules;
use crate::model::controller::policy::requests::Parent;
use crate::model::controller::policy::tenancy::{Labels, Patterns};
use crate::model::controller::workload::control_plane::Capabilities;
use crate::model::controller::workload::device_index::{DeviceIndex, OtherTailnets};
use crate::model::controller::workload::identity::DeviceId;
use crate::model::controller::workload::objects::certificate::CertificateRecord;
use crate::model::controller::workload::objects::slice::ChildSlice;
use crate::model::controller::workload::objects::{Kind, ObjectRef};
use crate::model::controller::workload::observed::backend_service::BackendService;
use crate::model::controller::workload::observed::replica::ObservedReplica;
use crate::model::controller::workload::pod_fault::{CreateFailure, PodFault};
use crate::model::controller::workload::readiness::elapsed;
use crate::model::controller::workload::settings::GroupSettings;
use crate::model::controller::workload::target_inputs::TargetInputs;
use crate::model::controller::workload::vip_service::OwningGroup;
use crate::model::ingress::certificate::Leaf;

/// Time for which a workload's deletion waits for an unavailable control plane.
pub(crate) const DELETION_TIMEOUT: Duration = Duration::from_mins(5);
/// Bounds of the interval of requests that the control plane refuses.
const MIN_REPEAT_INTERVAL: Duration = Duration::from_secs(5);
const MAX_REPEAT_INTERVAL: Duration = Duration::from_mins(10);

#[derive(Debug, Clone)]
pub struct Observed {
    pub key: WorkloadKey,
    /// Name of its `StatefulSet`, and prefix of its Pods: the group's name; of another workload an observed or a new one; empty if others have
    /// all that a new one tries.
    pub workload: String,
    /// Current time, for conditions and deadlines.
    pub now: Timestamp,
    pub settings: Arc<GroupSettings>,
    /// Groups of objects without annotation.
    pub assignment: Arc<AssignmentRules>,
    /// The group of a `ProxyGroup`'s key, if it exists.
    pub group: Option<Arc<ProxyGroup>>,
    /// The Connector of a Connector's key, if it exists.
    pub connector: Option<Arc<Connector>>,
    /// Its `ProxyClass`: the named one, else the default.
    pub class: Class,
    /// Its control plane.
    pub tailnet: TailnetState,
    /// Replicas by ordinal: every ordinal with a Pod, state Secret or config Secret.
    pub replicas: BTreeMap<u32, ObservedReplica>,
    /// Why Pods that do not exist cannot be created, if that is reported.
    pub create_failure: Option<CreateFailure>,
    /// Objects in the proxies' namespace with labels of this group or of its egress children, or with the name of an object that we
    /// would create (foreign ones are not overwritten). Pruned of fields that no pass reads. Of EndpointSlices only those that the
    /// Tailscale operator wrote.
    pub owned: OrdMap<ObjectRef, Arc<Value>>,
    /// Content of the certificates among these, by DNS name.
    pub certificates: OrdMap<String, CertificateRecord>,
    /// Owners of all child Services, of whichever workload, by name.
    pub children: OrdMap<Arc<str>, ChildOwner>,
    /// EndpointSlices of Kubernetes' controller, by child.
    pub slices: OrdMap<Arc<str>, Vec<Arc<ChildSlice>>>,
    /// Users' Services by namespace and name: those that are assigned to this group or recorded in it, and those with a child in `owned`;
    /// including Services being deleted.
    pub services: OrdMap<(String, String), Arc<Service>>,
    /// Nodes, if the class has static endpoints; else empty.
    pub nodes: Vec<Arc<Node>>,
    /// Labels of all namespaces, if the group has tenants; else empty. Of a standalone object at most its own namespace.
    pub namespaces: OrdMap<String, Arc<Labels>>,
    /// Standalone objects of its namespace that have a proxy, or requested one earlier, up to the highest limit of a tenant; counted for an
    /// object without proxy, if there are tenants of standalone proxies.
    pub names_before: usize,
    /// Node ports of other groups, and those that the API server has rejected.
    pub node_ports: BTreeSet<u16>,
    /// Requests for advertised names.
    pub publish: PublishInputs,
    /// What the cluster and its administrators say about targets.
    pub targets: TargetInputs,
    /// A group with tenants; of a standalone object.
    pub restricted_group: Option<String>,
    /// Why the operator's device cannot be that of the Tailscale operator yet.
    pub takeover_fault: Option<String>,
    /// Pod of a standalone proxy that waits to take over; the active one is in `replicas`.
    pub waiting: Option<Arc<Pod>>,
    /// Other standalone proxies that are being replaced.
    pub replacements: usize,
    /// Devices of all replicas, and earlier requests for devices.
    pub devices: DeviceInputs,
    /// Denied control plane requests, by [`what`](super::actions::ControlAction::what).
    pub denied: BTreeMap<String, ControlPlaneError>,
}

/// Owner of a child Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildOwner {
    pub key: WorkloadKey,
    /// Namespace and name of the user's Service.
    pub parent: (String, String),
}

/// Requests for advertised names of a group, with related state.
#[derive(Debug, Clone, Default)]
pub struct PublishInputs {
    /// Fault of the `IngressClass`: then Ingresses stay unchanged.
    pub class_fault: Option<String>,
    /// Ingresses that are assigned to the group or have a service in its config.
    pub ingresses: OrdMap<(String, String), Arc<Ingress>>,
    /// Existing Secrets in the proxies' namespace that these Ingresses name as certificates.
    pub certificates: BTreeMap<String, UserCertificate>,
    /// Namespaces that may use a Secret, for those that are restricted.
    pub reserved: BTreeMap<String, Patterns>,
    /// Owners of certificate Secrets by the records of all namespaces, by UID of the Secret.
    pub recorded_certificates: OrdMap<String, RecordedCertificate>,
    pub backends: BTreeMap<(String, String), Arc<BackendService>>,
    /// Requesting Services with a ready endpoint.
    pub backed: BTreeSet<(String, String)>,
    /// Requests of other groups of the tailnet for names of this group that these do not refuse, of each group the oldest and those of objects
    /// of this group, and proxies of their own that its objects have or get.
    pub rivals: BTreeMap<String, Vec<NameConflict>>,
    /// Objects of other workloads that have a label, or request it in this tailnet and are not refused, as far as one of them can be the first
    /// for an object of this workload.
    pub namesakes: BTreeMap<String, Vec<Namesake>>,
    /// Objects that the config of another group has: it serves them until this workload does.
    pub served_by_others: BTreeSet<Publisher>,
    /// Tailscale Services of the tailnet; `None` before the first list.
    pub listed: Option<Arc<ServiceList>>,
    /// Approved routes by device, where read.
    pub approved: OrdMap<DeviceId, Approved>,
}

/// A Secret in the proxies' namespace that an Ingress names as a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserCertificate {
    /// Without the label that permits its use.
    Unlabelled,
    /// Not read yet.
    Unread,
    /// Has no usable certificate, with the reason.
    Unusable(String),
    Leaf(Leaf),
}

/// A certificate's Secret by the record of its namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedCertificate {
    pub ingress: Publisher,
    /// Whether the Role of its proxy names the Secret.
    pub in_use: bool,
}

/// Inputs for device checks.
#[derive(Debug, Clone, Default)]
pub struct DeviceInputs {
    pub index: DeviceIndex,
    pub other_tailnets: OtherTailnets,
    /// Last read of a device from the control plane, by this process.
    pub reads: OrdMap<DeviceId, DeviceRead>,
    /// Devices that a replica claims without a record or an auth key, and another replica without a record claims too: its state Secret.
    pub contested: BTreeMap<DeviceId, String>,
}

/// The last read of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRead {
    pub at: Timestamp,
    /// Number of reads since the last one that confirmed the replica's report.
    pub unconfirmed: u32,
    /// Number of reads since the control plane had the device.
    pub missing: u32,
}

impl DeviceRead {
    /// Whether the device is deleted: one absence can be an error of the control plane or of a proxy before it.
    pub fn is_deleted(&self) -> bool {
        self.missing >= 2
    }
}

/// Approved routes of a device at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Approved {
    pub at: Timestamp,
    pub routes: BTreeSet<String>,
    /// Why they could not be read; then they are those of before.
    pub fault: Option<String>,
}

/// An object or a group that has a name of the tailnet, or an object that requests it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namesake {
    /// The workload by which it has the name, or would have it.
    pub workload: WorkloadKey,
    /// The object; for the name of a group's replica the group.
    pub subject: WorkloadKey,
    /// Creation time in seconds, and UID.
    pub age: (i64, String),
    /// Whether it has the name: in the config of its group, or as the host name of a replica.
    pub holds: bool,
    /// Whether its workload is in the tailnet of this one, as far as recorded.
    pub is_same_tailnet: bool,
    /// Whether the name is that of the operator's device, and this is the device.
    pub is_reserved: bool,
}

/// The object or group to which a request leaves its name: the operator's device, whose name is reserved, else one that has it, else an older
/// request. Who has the name leaves it to no other one, but of two groups that have one name the younger object withdraws it.
pub(crate) fn name_winner<'a>(
    workload: &WorkloadKey,
    (subject, age, holds): (&WorkloadKey, Age<'_>, bool),
    others: Option<&'a Vec<Namesake>>,
) -> Option<&'a WorkloadKey> {
    let all = others.into_iter().flatten().filter(|other| other.is_same_tailnet);
    // During a move its other workload has the name.
    let holds = holds || all.clone().any(|other| other.subject == *subject && other.holds);
    let is_rival =
        |other: &&Namesake| !holds || other.is_reserved || (other.holds && !workload.is_standalone() && !other.workload.is_standalone());
    let rank = |other: &'a Namesake| (!other.is_reserved, !other.holds, (other.age.0, &*other.age.1));
    let first = all.filter(|other| other.subject != *subject).filter(is_rival).min_by_key(|other| (rank(other), &other.subject))?;
    ((rank(first), &first.subject) < ((true, !holds, age), subject)).then_some(&first.subject)
}

/// A request of another group of the same tailnet for a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameConflict {
    pub claimant: Publisher,
    /// The workload that serves the claimant or shall serve it.
    pub key: WorkloadKey,
    /// Whether a replica of that group advertises the name, or whether the claimant moves to a proxy of its own that is ready.
    pub serving: bool,
    /// Whether it is the name of the device of that proxy.
    pub is_device: bool,
}

/// Tailscale Services of a tailnet at a time.
#[derive(Debug, Clone, Default)]
pub struct ServiceList {
    pub at: Timestamp,
    pub services: OrdMap<String, VipService>,
}

/// A lasting denial by the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlPlaneError {
    /// Start of uninterrupted denials.
    pub since: Timestamp,
    /// Reason, equal each time.
    pub why: String,
    /// Time of the last request, if the control plane answered it.
    pub refused: Option<Timestamp>,
}

impl ControlPlaneError {
    /// Time until the next request for a Tailscale Service: as long as it was refused until the last one. A request without an answer is
    /// repeated by each pass.
    pub fn wait(&self, now: Timestamp) -> Duration {
        let wait = |refused| elapsed(self.since, refused).clamp(MIN_REPEAT_INTERVAL, MAX_REPEAT_INTERVAL);
        self.refused.map_or(Duration::ZERO, |refused| wait(refused).saturating_sub(elapsed(refused, now)))
    }
}

#[derive(Debug, Clone)]
pub enum Class {
    None,
    Ready(Arc<ProxyClass>),
    Missing(String),
    /// The class of this name is invalid or not validated yet.
    NotReady(String),
    /// The proxy refuses variables of this class: without them, for existing proxies only.
    Refused(Arc<ProxyClass>),
}

/// Control plane of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TailnetState {
    /// Usable; `server_url` is the login server of proxies.
    Ready { server_url: String, capabilities: Capabilities },
    /// Not checked yet: previous conditions stay.
    Asking,
    /// Unavailable, with reason and action.
    Unavailable(String),
}

impl TailnetState {
    /// Optional features of a usable control plane.
    pub fn capabilities(&self) -> Option<Capabilities> {
        if let Self::Ready { capabilities, .. } = self { Some(*capabilities) } else { None }
    }

    /// Whether the control plane has Tailscale Services; `None` while unknown.
    pub fn has_services(&self) -> Option<bool> {
        self.capabilities().map(|capabilities| capabilities.services)
    }

    pub fn is_ready(&self) -> bool {
        self.capabilities().is_some()
    }
}

impl NameConflict {
    /// Whether it is the proxy that an object of the group has or gets.
    pub fn is_proxy(&self) -> bool {
        self.key.is_standalone()
    }
}

impl Observed {
    /// The Service or Ingress of a proxy of its own.
    pub(crate) fn parent(&self) -> Option<Parent<'_>> {
        let Publisher { source, namespace, name } = self.key.publisher()?;
        let id = (namespace, name);
        match source {
            PublishSource::Service => self.services.get(&id).map(|service| Parent::Service(service)),
            PublishSource::Ingress => self.publish.ingresses.get(&id).map(|ingress| Parent::Ingress(ingress)),
            PublishSource::ProxyGroup => None,
        }
    }

    /// The group as owner of Tailscale Services.
    pub(crate) fn owning_group(&self) -> OwningGroup<'_> {
        let group = self.group.as_deref().filter(|group| group.api_server_hostname().is_some());
        OwningGroup { name: self.key.group_name(), sole_owner: group.and_then(|group| group.metadata.uid.as_deref()) }
    }

    /// Why a replica's Pod does not exist or does not run, if that is reported.
    pub(crate) fn pod_fault(&self, ordinal: u32) -> Option<PodFault> {
        PodFault::find(self.replicas.get(&ordinal).and_then(|replica| replica.pod.as_deref()), self.create_failure.as_ref())
    }

    /// Metadata of the object that requests the workload, if it exists.
    pub(crate) fn metadata(&self) -> Option<&ObjectMeta> {
        let connector = || Some(&self.connector.as_ref()?.metadata);
        self.parent().map(Parent::metadata).or_else(|| Some(&self.group.as_ref()?.metadata)).or_else(connector)
    }

    /// Time since which the workload is being deleted: with its object, or by an uninstall.
    pub(crate) fn ends_since(&self) -> Option<Timestamp> {
        let deleted = self.metadata().and_then(|metadata| metadata.deletion_timestamp.as_ref()).map(|deleted| deleted.0);
        deleted.into_iter().chain(self.assignment.uninstall).min()
    }

    /// Whether its deletion has waited long enough for the control plane and for writes to users' objects.
    pub(crate) fn deletion_deadline_passed(&self) -> bool {
        self.ends_since().is_some_and(|since| elapsed(since, self.now) >= DELETION_TIMEOUT)
    }

    /// Whether a name has a certificate.
    pub(crate) fn is_certified(&self, dns: &str) -> bool {
        self.certificates.get(dns).is_some_and(|content| content.filled)
    }

    pub(crate) fn of(&self, kind: Kind) -> impl Iterator<Item = (&ObjectRef, &Arc<Value>)> {
        self.owned.range(ObjectRef::new(kind, "", "")..).take_while(move |(object, _)| object.kind == kind)
    }
}
