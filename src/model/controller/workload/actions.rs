//! Result of a pass: actions in safe order.
//!
//! Objects are created before references to them, and dereferenced before they are deleted. So a writer applies, in this order:
//! `group.finalizer`, `services` (finalizers added without a name), `apply` (as listed), `slices`, `services` (names and
//! conditions), `delete` (as listed),
//! `control`, `services` and `group` (finalizers removed), `group.status`, `events`. It stops at the first failure and the pass is
//! retried; a rejected Service, or child of one, stops nothing else.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::api::connector::ConnectorStatus;
use crate::api::proxygroup::ProxyGroupStatus;
use crate::model::controller::key::{PublishSource, Publisher, WorkloadKey};
use crate::model::controller::workload::admitted_tags::AdmittedTags;
use crate::model::controller::workload::finalizers;
use crate::model::controller::workload::identity::{DeviceAddresses, DeviceId, DeviceName, DeviceRecord, ExpectedDevice, KeyId, KeyMint};
use crate::model::controller::workload::ingress_summary::IngressSummary;
use crate::model::controller::workload::objects::secrets::ReplicaSecret;
use crate::model::controller::workload::objects::slice::SliceWrite;
use crate::model::controller::workload::objects::{Manifest, ObjectRef};
use crate::model::controller::workload::proxy_state::ProxyState;
use crate::model::controller::workload::vip_service::DesiredVipService;

/// All changes of a pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupPlan {
    /// Objects to apply, in order. Empty if nothing changed.
    pub apply: Vec<Manifest>,
    /// Slices to write, after their children. A failed write is left to Kubernetes' controller.
    pub slices: Vec<SliceWrite>,
    /// Objects to delete, in order.
    pub delete: Vec<Delete>,
    /// Control plane requests, in order. Those for Tailscale Services take turns ([`super::service_requests`]).
    pub control: Vec<ControlAction>,
    /// Finalizers and status of the group or Connector, if changed.
    pub group: Option<GroupUpdate>,
    /// Changes of users' Services and Ingresses.
    pub services: Vec<ObjectUpdate>,
    /// Events. Each comes with a change, so that a lasting state is reported once.
    pub events: Vec<Notice>,
    /// Lasting faults of objects that have no condition for them. An [`EventSchedule`](crate::model::controller::workload::event_schedule::EventSchedule)
    /// decides when each is an Event.
    pub faults: Vec<Notice>,
    /// Objects of the workload that request a name and are refused for another reason than that name or a group that is not ready.
    pub refused: BTreeSet<Publisher>,
    /// Labels in the tailnet that the plan gives to objects of the workload and that no record has yet.
    pub new_names: BTreeSet<String>,
    /// Requeue after this time; `None`: on the next change only.
    pub again: Option<Duration>,
    /// Whether the Pod of a standalone proxy is being replaced.
    pub replaces: bool,
    /// State of a standalone proxy or a Connector; `None` without an object that requests it.
    pub proxy: Option<ProxyState>,
    /// Numbers of advertised names and certificates; `None` if the workload advertises nothing.
    pub summary: Option<IngressSummary>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delete {
    pub object: ObjectRef,
    pub uid: Option<String>,
}

/// A control plane request. An unknown device or key counts as deleted.
#[derive(Debug, Clone, PartialEq)]
pub enum ControlAction {
    /// Create a single-use, preauthorized, tagged key for a device that is not ephemeral. It is written at once with
    /// [`ConfigDraft::with_key`]; if that write fails, the key is revoked.
    MintKey {
        ordinal: u32,
        tags: AdmittedTags,
        draft: Box<ConfigDraft>,
        /// The replica requested another key: counts against the group's rate.
        reissue: bool,
        /// Device that the new one replaces: deleted first, within the same rate.
        replaces: Option<ClaimedDevice>,
        /// Last key of the replica, which may be unused: revoked first, within the same rate.
        revokes: Option<KeyId>,
    },
    /// Read and verify the device that a replica claims, then record it with [`ConfigDraft::with_device`] if the record changes.
    RecordDevice {
        ordinal: u32,
        device: ClaimedDevice,
        /// Domain of the tailnet, for control planes that report none.
        domain: Option<String>,
        report: DeviceReport,
        /// Current record: replaced only if its device is deleted or is the claimed one.
        recorded: Option<DeviceRecord>,
        draft: Box<ConfigDraft>,
    },
    /// List all Tailscale Services of the tailnet, unless listed since this time.
    ListServices { since: Timestamp },
    /// Read, verify, write and read back a Tailscale Service for an object of this namespace. `recorded`: this cluster has advertised it.
    PublishService { desired: DesiredVipService, namespace: String, recorded: bool },
    /// Release a Tailscale Service.
    ReleaseService { name: String },
    /// Approve (`add`) and withdraw (`remove`) prefixes as routes of a device; routes that others approved stay.
    ApproveRoutes { ordinal: u32, device: ClaimedDevice, add: BTreeSet<String>, remove: BTreeSet<String> },
    /// Read the approved routes of a device. A refusal is a result, and no denial.
    ReadRoutes { device: ClaimedDevice },
    /// Delete a device, `then` its records.
    DeleteDevice { ordinal: u32, device: ClaimedDevice, then: Vec<Delete> },
    /// Revoke an unused key that was created for this replica, `then` delete its records.
    RevokeKey { ordinal: u32, id: KeyId, then: Vec<Delete> },
}

/// A device that is changed only if the control plane describes it as expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedDevice {
    pub id: DeviceId,
    /// Required properties.
    pub expected: ExpectedDevice,
}

/// Name and addresses of a replica's device, as the replica reports them. Decides when the device is read again, nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceReport {
    pub name: Option<DeviceName>,
    pub addresses: DeviceAddresses,
}

impl DeviceReport {
    /// Whether a new record needs no other read soon: it agrees, and is complete or lacks only a domain.
    pub fn confirms(&self, record: &DeviceRecord, domain: Option<&str>) -> bool {
        self.agrees(record) && (record.is_complete() || (domain.is_none() && !record.addresses.is_empty()))
    }

    /// Whether a record has everything that is reported.
    pub fn agrees(&self, record: &DeviceRecord) -> bool {
        (self.name.is_none() || self.name == record.name) && (self.addresses.is_empty() || self.addresses.matches(&record.addresses))
    }
}

/// A replica's config Secret without its auth key or device record.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigDraft {
    pub inputs: ReplicaSecret,
    pub(crate) adopt: bool,
    /// UID of the existing Secret.
    pub(crate) uid: Option<String>,
    /// Tags of a new auth key.
    pub(crate) tags: Vec<String>,
    /// Verified device that a new auth key replaces, with its creation time in seconds, if known.
    pub(crate) previous: Option<(DeviceId, Option<i64>)>,
}

/// Change of the cluster-scoped object that requests the workload: a group or a Connector.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupUpdate {
    /// Complete list of finalizers, if changed.
    pub finalizers: Option<Vec<String>>,
    /// Complete status, if changed.
    pub status: Option<WorkloadStatus>,
}

/// Status of a cluster-scoped object that requests a workload.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub enum WorkloadStatus {
    Group(ProxyGroupStatus),
    Connector(ConnectorStatus),
}

impl WorkloadStatus {
    pub fn group(self) -> Option<ProxyGroupStatus> {
        if let Self::Group(status) = self { Some(status) } else { None }
    }

    pub fn connector(self) -> Option<ConnectorStatus> {
        if let Self::Connector(status) = self { Some(status) } else { None }
    }
}

/// Change of a user's Service or Ingress.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectUpdate {
    pub source: PublishSource,
    pub namespace: String,
    pub name: String,
    pub uid: Option<String>,
    /// Precondition; a conflict retries the pass.
    pub resource_version: Option<String>,
    /// Complete list of finalizers, if changed. One request writes it and `external_name`.
    pub finalizers: Option<Vec<String>>,
    /// Whether that adds one of ours: before objects are created. One is removed after they are deleted.
    pub adds_finalizer: bool,
    /// The finalizer that it adds or removes.
    pub finalizer: &'static str,
    /// `spec.externalName` with its record, if changed.
    pub external_name: Option<ExternalNameUpdate>,
    /// Complete list of conditions, including those of others, if changed.
    pub conditions: Option<Vec<Condition>>,
    /// `status.loadBalancer`, if changed.
    pub load_balancer: Option<Value>,
}

/// `spec.externalName` of an egress Service, and the annotation with its former value. Both are written in one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalNameUpdate {
    /// `None`: unchanged.
    pub name: Option<String>,
    /// Value of the annotation; `None`: removed.
    pub former: Option<String>,
}

impl ObjectUpdate {
    /// Update of an observed object that sets or removes a finalizer as `wanted` and changes nothing else.
    pub(crate) fn new(source: PublishSource, metadata: &ObjectMeta, finalizer: &'static str, wanted: bool) -> Self {
        Self {
            source,
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone(),
            resource_version: metadata.resource_version.clone(),
            finalizers: finalizers::change(metadata, finalizer, wanted),
            adds_finalizer: wanted,
            finalizer,
            external_name: None,
            conditions: None,
            load_balancer: None,
        }
    }

    fn is_empty(&self) -> bool {
        self.finalizers.is_none() && self.external_name.is_none() && self.conditions.is_none() && self.load_balancer.is_none()
    }
}

impl GroupPlan {
    /// Plans the update of a user's object, unless it is empty. Returns whether it was planned.
    pub(crate) fn update(&mut self, update: ObjectUpdate) -> bool {
        let changes = !update.is_empty();
        self.services.extend(changes.then_some(update));
        changes
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Object of the Event.
    pub subject: WorkloadKey,
    pub warning: bool,
    /// Reason, from a closed set.
    pub reason: &'static str,
    pub message: String,
}

impl ControlAction {
    /// Whether it is for one Tailscale Service.
    pub fn is_for_service(&self) -> bool {
        matches!(self, Self::PublishService { .. } | Self::ReleaseService { .. })
    }

    /// Namespace of the object that requests it, if one does.
    pub fn namespace(&self) -> &str {
        if let Self::PublishService { namespace, .. } = self { namespace } else { "" }
    }

    /// Description, unique among the actions of the group.
    pub fn what(&self) -> String {
        match self {
            Self::MintKey { ordinal, .. } => format!("an auth key for replica {ordinal}"),
            Self::ListServices { .. } => "the list of Tailscale Services".to_owned(),
            Self::PublishService { desired, .. } => format!("Tailscale Service {}", desired.name),
            Self::ReleaseService { name } => format!("the end of Tailscale Service {name}"),
            Self::RecordDevice { ordinal, .. } => device_of_replica(*ordinal),
            Self::ApproveRoutes { device, .. } => format!("the routes of device {}", device.id),
            Self::ReadRoutes { device } => format!("the approved routes of device {}", device.id),
            Self::DeleteDevice { ordinal, .. } => end_of_device(*ordinal),
            Self::RevokeKey { id, .. } => format!("auth key {id}"),
        }
    }
}

/// [`ControlAction::what`] of the end of a removed replica's device. It does not name that, or a Pod that claims one device after the other
/// would begin the time of a denial again.
pub(crate) fn end_of_device(ordinal: u32) -> String {
    format!("the end of the device of replica {ordinal}")
}

/// [`ControlAction::what`] of a replica's device record.
pub(crate) fn device_of_replica(ordinal: u32) -> String {
    format!("the device of replica {ordinal}")
}

impl ConfigDraft {
    /// The Secret with an auth key, and the record of that key. `created`: its creation time in seconds.
    pub fn with_key(&self, id: &KeyId, key: &str, created: i64) -> Manifest {
        let (previous, previous_created) = self.previous.clone().unzip();
        let mint = KeyMint {
            id: id.clone(),
            created,
            tags: self.tags.clone(),
            hostname: self.hostname().to_owned(),
            previous,
            previous_created: previous_created.flatten(),
        };
        self.of_existing(ReplicaSecret { mint: Some(mint), ..self.inputs.clone() }.manifest(Some((key, Some(id))), self.adopt))
    }

    /// Host name under which a device joins with a new key.
    pub fn hostname(&self) -> &str {
        self.inputs.document.get("Hostname").and_then(Value::as_str).unwrap_or_default()
    }

    /// The Secret with a device record and without auth key.
    pub fn with_device(&self, device: DeviceRecord) -> Manifest {
        self.of_existing(ReplicaSecret { device: Some(device), deleted: None, ..self.inputs.clone() }.manifest(None, self.adopt))
    }

    fn of_existing(&self, mut manifest: Manifest) -> Manifest {
        if let Some(uid) = &self.uid {
            manifest.value["metadata"]["uid"] = uid.as_str().into();
        }
        manifest
    }
}
