//! Config Secret and state Secret of a replica.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Map, Value};

use crate::api::siblings::Siblings;
use crate::api::targets::TargetRules;
use crate::api::{names, siblings, targets};
use crate::model::controller::workload::identity::{DeviceId, DeviceRecord, KeyId, KeyMint};
use crate::model::controller::workload::objects::{Kind, Manifest, ObjectRef, Owner};

/// A replica's config Secret. Whether it has an auth key is decided in [`crate::model::controller::workload::auth_keys`].
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaSecret {
    pub owner: Owner,
    pub ordinal: u32,
    /// Config without an auth key: a JSON object in tailscaled's format `alpha0`. Empty: the login server is unknown, and there is no file.
    pub document: Map<String, Value>,
    /// The replica's device, once verified with the control plane.
    pub device: Option<DeviceRecord>,
    /// The last auth key that was created for it.
    pub mint: Option<KeyMint>,
    /// Whether no device of the replica can exist, until there is a key.
    pub is_new: bool,
    /// Target policy, for an image that reads it.
    pub targets: Option<TargetRules>,
    /// Addresses of the group's replicas, for one that may pass flows to another.
    pub siblings: Option<Siblings>,
    /// Its device, if that was deleted at the control plane.
    pub deleted: Option<DeviceId>,
    /// Config that the Tailscale operator wrote for the Pod that runs still, which exits without one. Tailyard does not build such a config yet:
    /// here it would, for groups that run the Tailscale operator's image.
    pub former: Option<ByteString>,
}

impl ReplicaSecret {
    /// The Secret, with an auth key and the key's ID if we created it.
    pub fn manifest(&self, key: Option<(&str, Option<&KeyId>)>, adopt: bool) -> Manifest {
        let mut document = self.document.clone();
        let mut metadata = self.owner.metadata(names::replica_config(&self.owner.name, self.ordinal), Some("config"));
        if self.owner.key.group().is_none() {
            metadata.labels = Some(self.owner.secret_labels("config"));
        }
        if let Some((key, id)) = key {
            document.insert("AuthKey".into(), key.into());
            let id = id.map(|id| (names::AUTH_KEY_ID.to_owned(), id.to_string()));
            metadata.annotations.get_or_insert_default().extend(id);
        }
        if let Some(device) = &self.device {
            let record = serde_json::to_string(device).unwrap_or_default();
            metadata.annotations.get_or_insert_default().insert(names::DEVICE.to_owned(), record);
        }
        if let Some(mint) = &self.mint {
            let mint = serde_json::to_string(mint).unwrap_or_default();
            metadata.annotations.get_or_insert_default().insert(names::AUTH_KEY.to_owned(), mint);
        } else if self.is_new {
            metadata.annotations.get_or_insert_default().insert(names::NEW_REPLICA.to_owned(), "true".to_owned());
        }
        let config =
            (!document.is_empty()).then(|| (names::CONFIG_KEY.to_owned(), ByteString(serde_json::to_vec(&document).unwrap_or_default())));
        let deleted = self.deleted.as_ref().map(|id| (names::DELETED_DEVICE_KEY.to_owned(), ByteString(id.as_str().into())));
        let rules = self.targets.as_ref().map(|rules| (targets::KEY.to_owned(), ByteString(serde_json::to_vec(rules).unwrap_or_default())));
        let siblings =
            self.siblings.as_ref().map(|all| (siblings::KEY.to_owned(), ByteString(serde_json::to_vec(all).unwrap_or_default())));
        let former = self.former.clone().map(|config| (names::K8S_PROXY_CONFIG_KEY.to_owned(), config));
        let data = config.into_iter().chain(deleted).chain(rules).chain(siblings).chain(former).collect();
        Manifest { adopt, ..Manifest::of(Kind::Secret, &Secret { metadata, data: Some(data), ..Secret::default() }) }
    }
}

/// A replica's state Secret: empty; the replica fills it.
pub fn state(owner: &Owner, ordinal: u32) -> Manifest {
    let metadata = owner.metadata(names::replica(&owner.name, ordinal), Some("state"));
    Manifest::of(Kind::Secret, &Secret { metadata, ..Secret::default() })
}

pub fn config_ref(owner: &Owner, ordinal: u32) -> ObjectRef {
    ObjectRef::new(Kind::Secret, &owner.namespace, names::replica_config(&owner.name, ordinal))
}

pub fn state_ref(owner: &Owner, ordinal: u32) -> ObjectRef {
    ObjectRef::new(Kind::Secret, &owner.namespace, names::replica(&owner.name, ordinal))
}
