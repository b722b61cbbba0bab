//! What a pass is given: the stores' view of a group, as of one moment.
//!
//! Read from stores only; nothing is fetched for a pass or during it. A store that a pass reads must already hold what
//! earlier passes over the same group wrote (their resource versions), else a key is minted or a port allocated twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, Secret, Service};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::api::proxyclass::ProxyClass;
use crate::api::proxygroup::ProxyGroup;
use crate::api::{egress, names, state};
use crate::model::objects::ObjectRef;
use crate::model::ports::Range;

/// A group as it is observed.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The group's name, which is the key of the work.
    pub name: String,
    /// The time. Conditions and waits are reckoned by it.
    pub now: Timestamp,
    /// What holds for every group.
    pub settings: Arc<GroupSettings>,
    /// The group itself, if it exists.
    pub group: Option<Arc<ProxyGroup>>,
    /// Its class: the one it names, else the default one.
    pub class: Class,
    /// Its control plane.
    pub tailnet: TailnetState,
    /// Its replicas by ordinal: every ordinal of which a Pod, a state Secret or a config Secret exists.
    pub replicas: BTreeMap<u32, Replica>,
    /// Every object in the namespace of the proxies that is labelled as this group's or as an egress child of it, or that has
    /// the name of one that we would make (for a foreign one is not overwritten). As the API server has it; `managedFields`
    /// may be left out.
    pub owned: BTreeMap<ObjectRef, Arc<Value>>,
    /// The user's Services, by namespace and name, for which its annotation or its record names this group or of which `owned` has a
    /// child, those that are being deleted included.
    pub services: BTreeMap<(String, String), Arc<Service>>,
    /// The nodes, if the class asks for static endpoints; else empty.
    pub nodes: Vec<Arc<Node>>,
    /// The node ports that Services of other groups hold.
    pub node_ports: BTreeSet<u16>,
}

/// What holds for every group.
#[derive(Debug, Clone)]
pub struct GroupSettings {
    /// The namespace of the proxies, in which everything is made.
    pub namespace: String,
    /// The image of the proxies.
    pub image: String,
    /// The tags of devices of groups that name none.
    pub tags: Vec<String>,
    /// The firewall mode of groups that name none; `None` lets the proxy find out.
    pub firewall: Option<String>,
    /// The cluster's domain, such as `cluster.local`.
    pub cluster_domain: String,
    /// Where match ports are taken from unless the group says otherwise.
    pub ports: Range,
    /// How long a leaving replica forwards for the flows it has.
    pub drain_grace: Duration,
    /// Whether the cluster has the CRD of `ServiceMonitor`.
    pub service_monitors: bool,
    /// How long the children of a Service that moved to another group go on serving after the Service's name points elsewhere:
    /// as long as somebody may hold the old answer of the DNS.
    pub linger: Duration,
}

/// The class of a group.
#[derive(Debug, Clone)]
pub enum Class {
    /// None is named and there is no default one.
    None,
    /// It is there and valid.
    Ready(Arc<ProxyClass>),
    /// The class of this name does not exist.
    Missing(String),
    /// The class of this name is not valid, or not looked at yet.
    NotReady(String),
}

/// The control plane of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TailnetState {
    /// It can be asked.
    Ready {
        /// What a proxy logs in to.
        server_url: String,
        /// What it can do.
        capabilities: Capabilities,
    },
    /// It cannot be asked; why, in a sentence that says what to do.
    Unavailable(String),
}

/// What a control plane can do for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Auth keys are minted.
    pub keys: bool,
    /// Devices are deleted.
    pub devices: bool,
}

/// A replica as it is observed.
#[derive(Debug, Clone, Default)]
pub struct Replica {
    /// Its Pod.
    pub pod: Option<Arc<Pod>>,
    /// Its state Secret, read.
    pub state: Option<Arc<ReplicaState>>,
    /// Its config Secret, read.
    pub config: Option<Arc<ReplicaConfig>>,
}

/// What a replica says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaState {
    /// Stable id of its node in the tailnet.
    pub device_id: Option<String>,
    /// Name of its node, with the final dot.
    pub device_fqdn: Option<String>,
    /// Addresses of its node.
    pub device_ips: Vec<String>,
    /// UID of the Pod that wrote the rest.
    pub pod_uid: Option<String>,
    /// The key that failed; empty if it had none. Present means that it asks for another one.
    pub reissue: Option<String>,
    /// The egress services that it holds.
    pub egress: Option<egress::Status>,
}

/// What a replica was told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaConfig {
    /// The config whole, if it can be read: a JSON object.
    pub document: Option<serde_json::Map<String, Value>>,
    /// The id of the auth key in it, if we minted it.
    pub key_id: Option<String>,
}

impl Replica {
    /// A replica of its parts. The Secrets are parsed: a caller with many passes keeps what came out for as long as they do not
    /// change.
    #[must_use]
    pub fn new(pod: Option<Arc<Pod>>, state: Option<&Secret>, config: Option<&Secret>) -> Self {
        let (state, config) = (state.map(ReplicaState::read), config.map(ReplicaConfig::read));
        Self { pod, state: state.map(Arc::new), config: config.map(Arc::new) }
    }
}

impl ReplicaState {
    /// Reads a state Secret. What cannot be read counts as absent: the replica will say it again.
    #[must_use]
    pub fn read(secret: &Secret) -> Self {
        let bytes = |key: &str| secret.data.as_ref().and_then(|data| data.get(key)).map(|value| value.0.as_slice());
        let text = |key: &str| bytes(key).map(|value| String::from_utf8_lossy(value).trim().to_owned());
        let filled = |key: &str| text(key).filter(|text| !text.is_empty());
        Self {
            device_id: filled(state::DEVICE_ID),
            device_fqdn: filled(state::DEVICE_FQDN),
            device_ips: bytes(state::DEVICE_IPS).and_then(|text| serde_json::from_slice(text).ok()).unwrap_or_default(),
            pod_uid: filled(state::POD_UID),
            reissue: text(state::REISSUE_AUTHKEY),
            egress: bytes(egress::KEY).and_then(|text| serde_json::from_slice(text).ok()),
        }
    }
}

impl ReplicaConfig {
    /// Reads a config Secret.
    #[must_use]
    pub fn read(secret: &Secret) -> Self {
        let text = secret.data.as_ref().and_then(|data| data.get(names::CONFIG_KEY));
        let annotation = |key: &str| secret.metadata.annotations.as_ref().and_then(|all| all.get(key)).cloned();
        Self { document: text.and_then(|text| serde_json::from_slice(&text.0).ok()), key_id: annotation(names::AUTH_KEY_ID) }
    }

    /// The auth key in it; empty counts as none.
    #[must_use]
    pub fn auth_key(&self) -> Option<&str> {
        self.document.as_ref()?.get("AuthKey")?.as_str().filter(|key| !key.is_empty())
    }
}
