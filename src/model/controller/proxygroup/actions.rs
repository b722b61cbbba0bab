//! What a pass comes to: actions, in the order in which they are safe.
//!
//! What serves is made before what points to it, and what points is taken away before what serves. So a writer does, in this
//! order: `group.finalizer`, `services` (finalizers added), `apply` (as listed), `services` (names and conditions), `delete`
//! (as listed), `control`, `services` and `group` (finalizers dropped), `group.status`, `events`. It stops at the first step
//! that fails and has the whole pass made again; what the API refuses of one Service, or of its child, stops nothing else.
//! Nothing here is done by the model.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::api::proxygroup::ProxyGroupStatus;
use crate::model::controller::finalizers;
use crate::model::controller::identity::{DeviceId, DeviceRecord, ExpectedDevice, KeyId};
use crate::model::controller::ingress_spec::{DesiredVipService, PublishSource, Publisher};
use crate::model::controller::objects::{Manifest, ObjectRef, ReplicaSecret};

/// What is to be done.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupPlan {
    /// Objects that are not as they must be, in order. Empty when nothing changed.
    pub apply: Vec<Manifest>,
    /// Objects that must go, in order.
    pub delete: Vec<Delete>,
    /// What the control plane is asked for, in order.
    pub control: Vec<ControlAction>,
    /// The group's own finalizer and status, if they are to change.
    pub group: Option<GroupUpdate>,
    /// The users' Services and Ingresses that are to change.
    pub services: Vec<ObjectUpdate>,
    /// What is told as Events. Each goes with a change, so that a state that lasts is told once.
    pub events: Vec<Notice>,
    /// When to look again though nothing may change; none = on the next change only.
    pub again: Option<Duration>,
}

/// An object that must go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delete {
    pub object: ObjectRef,
    pub uid: Option<String>,
}

/// What a control plane is asked for. A device or key that it does not know counts as gone.
#[derive(Debug, Clone, PartialEq)]
pub enum ControlAction {
    /// A single-use, preauthorized, tagged key that does not make the device ephemeral. It is written at once, with
    /// [`ConfigDraft::with_key`]; if that write fails for good the key is revoked.
    MintKey {
        ordinal: u32,
        tags: Vec<String>,
        draft: Box<ConfigDraft>,
        /// The replica asked for another key, so this counts against the group's rate.
        reissue: bool,
        /// The device that the new one replaces; it is deleted first, within the same rate.
        replaces: Option<ClaimedDevice>,
    },
    /// The device that a replica claims is read and checked, then recorded with [`ConfigDraft::with_device`].
    RecordDevice {
        ordinal: u32,
        device: ClaimedDevice,
        /// Domain that the replica claims, for a control plane that reports none.
        domain: Option<String>,
        /// The record so far; it is replaced only if its device is gone or is the claimed one.
        recorded: Option<DeviceId>,
        draft: Box<ConfigDraft>,
    },
    /// All Tailscale Services of the tailnet are listed, unless they were since then.
    ListServices {
        /// The list is no older than this.
        since: Timestamp,
    },
    /// A Tailscale Service is as it must be: read, judged, written and read again.
    PublishService {
        desired: DesiredVipService,
        /// This cluster has published it.
        recorded: bool,
    },
    /// This cluster lets a Tailscale Service go.
    ReleaseService { name: String },
    /// The control plane leads these routes to a device, and these no more; what others approved stays.
    ApproveRoutes {
        ordinal: u32,
        device: ClaimedDevice,
        /// Prefixes that it is to approve.
        add: BTreeSet<String>,
        /// Prefixes that it is to approve no more.
        remove: BTreeSet<String>,
    },
    DeleteDevice {
        ordinal: u32,
        device: ClaimedDevice,
        /// What goes after it, and stays for as long as it does: the record of it.
        then: Vec<Delete>,
    },
    /// An unused key goes.
    RevokeKey {
        /// The replica for which it was minted.
        ordinal: u32,
        id: KeyId,
        /// What goes after it, and stays for as long as it does: the record of it.
        then: Vec<Delete>,
    },
}

/// A device that is touched only if the control plane describes it as expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedDevice {
    pub id: DeviceId,
    /// What it must look like.
    pub expected: ExpectedDevice,
}

/// A replica's config Secret that lacks its auth key or the record of its device.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigDraft {
    pub(crate) inputs: ReplicaSecret,
    pub(crate) adopt: bool,
}

/// A change of the group's own object.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupUpdate {
    /// The whole list of finalizers, if it is to change.
    pub finalizers: Option<Vec<String>>,
    /// The whole status, if it is to change.
    pub status: Option<ProxyGroupStatus>,
}

/// A change of a user's Service or Ingress.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectUpdate {
    pub source: PublishSource,
    pub namespace: String,
    pub name: String,
    pub uid: Option<String>,
    /// Only if it is still as it was when it was observed; a conflict has the pass made again.
    pub resource_version: Option<String>,
    /// The whole list of finalizers, if it is to change.
    pub finalizers: Option<Vec<String>>,
    /// `spec.externalName`, if it is to change.
    pub external_name: Option<String>,
    /// The whole list of conditions, those of others included, if it is to change.
    pub conditions: Option<Vec<Condition>>,
    /// `status.loadBalancer`, if it is to change.
    pub load_balancer: Option<Value>,
}

impl ObjectUpdate {
    /// One of an object as it was observed, which gets or loses a finalizer if it must and changes nothing else.
    pub(super) fn new(source: PublishSource, metadata: &ObjectMeta, finalizer: &str, wanted: bool) -> Self {
        Self {
            source,
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone(),
            resource_version: metadata.resource_version.clone(),
            finalizers: finalizers::change(metadata, finalizer, wanted),
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
    /// Has a user's object changed, if there is anything to change; whether there is.
    pub(super) fn update(&mut self, update: ObjectUpdate) -> bool {
        let changes = !update.is_empty();
        self.services.extend(changes.then_some(update));
        changes
    }
}

/// What an Event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    Group,
    Service { namespace: String, name: String },
    Ingress { namespace: String, name: String },
}

/// Something to tell as an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    pub subject: Subject,
    pub warning: bool,
    /// The reason, of a closed set.
    pub reason: &'static str,
    pub message: String,
}

impl ControlAction {
    /// What it is about, in words that tell it from every other action for the group.
    #[must_use]
    pub fn what(&self) -> String {
        match self {
            Self::MintKey { ordinal, .. } => format!("an auth key for replica {ordinal}"),
            Self::ListServices { .. } => "the list of Tailscale Services".to_owned(),
            Self::PublishService { desired, .. } => format!("Tailscale Service {}", desired.name),
            Self::ReleaseService { name } => format!("the end of Tailscale Service {name}"),
            Self::RecordDevice { ordinal, .. } => device_of_replica(*ordinal),
            Self::ApproveRoutes { device, .. } => format!("the routes of device {}", device.id),
            Self::DeleteDevice { device, .. } => format!("device {}", device.id),
            Self::RevokeKey { id, .. } => format!("auth key {id}"),
        }
    }
}

/// [`ControlAction::what`] of the record of a replica's device.
pub(super) fn device_of_replica(ordinal: u32) -> String {
    format!("the device of replica {ordinal}")
}

impl ConfigDraft {
    /// The Secret with a key.
    #[must_use]
    pub fn with_key(&self, id: &KeyId, key: &str) -> Manifest {
        self.inputs.manifest(Some((key, Some(id))), self.adopt)
    }

    /// The Secret with the record of a device, and without a key.
    #[must_use]
    pub fn with_device(&self, device: DeviceRecord) -> Manifest {
        ReplicaSecret { device: Some(device), ..self.inputs.clone() }.manifest(None, self.adopt)
    }
}

impl From<&Publisher> for Subject {
    fn from(claimant: &Publisher) -> Self {
        let Publisher { source, namespace, name } = claimant.clone();
        match source {
            PublishSource::Ingress => Self::Ingress { namespace, name },
            PublishSource::Service => Self::Service { namespace, name },
        }
    }
}
