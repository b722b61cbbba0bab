//! Inputs of a pass: a snapshot of the cache for one group.
//!
//! Nothing is fetched for a pass. The cache must contain the writes of earlier passes over the same group, else a key or a port is
//! allocated twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdMap;
use k8s_openapi::api::core::v1::{Node, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::proxyclass::ProxyClass;
use crate::api::proxygroup::{ProxyGroup, ProxyGroupType, Tenant};
use crate::api::vip::VipService;
use crate::api::{egress, ingress, names, state};
use crate::model::base::gzip;
use crate::model::controller::group_assignment::AssignmentRules;
use crate::model::controller::identity::{DeviceId, DeviceName, DeviceRecord, KeyId};
use crate::model::controller::ingress_spec::{Publisher, ServiceOwner, UserCertificate};
use crate::model::controller::match_ports::MatchPortRange;
use crate::model::controller::objects::{ChildSlice, Kind, ObjectRef};
use crate::model::controller::standalone;
use crate::model::controller::tenancy::{DefaultTenancy, Labels, Patterns};

/// Time for which DNS caches keep a Service's previous `externalName`.
const LINGER: Duration = Duration::from_mins(1);

/// Maximum uncompressed size of a replica's status in bytes: 10,000 services take about 3 MB.
const MAX_STATUS_SIZE: u64 = 8 << 20;
/// Maximum characters of a replica's text in a condition.
const MAX_REASON_LENGTH: usize = 500;
/// Maximum JSON elements of a replica's status: 10,000 services take about 120,000.
const MAX_ELEMENTS: usize = 400_000;

/// An observed group.
#[derive(Debug, Clone)]
pub struct Observed {
    /// Name of the group, or key of the standalone Service or Ingress: the work queue's key.
    pub name: String,
    /// Name of its `StatefulSet`, and prefix of its Pods: the group's name; of a standalone proxy an observed or a new one.
    pub workload: String,
    /// Current time, for conditions and deadlines.
    pub now: Timestamp,
    pub settings: Arc<GroupSettings>,
    /// Groups of objects without annotation.
    pub assignment: Arc<AssignmentRules>,
    /// The group object, if it exists; of a standalone Service or Ingress [`standalone::as_group`].
    pub group: Option<Arc<ProxyGroup>>,
    /// Its `ProxyClass`: the named one, else the default.
    pub class: Class,
    /// Its control plane.
    pub tailnet: TailnetState,
    /// Replicas by ordinal: every ordinal with a Pod, state Secret or config Secret.
    pub replicas: BTreeMap<u32, ObservedReplica>,
    /// Objects in the proxies' namespace with labels of this group or of its egress children, or with the name of an object that we
    /// would create (foreign ones are not overwritten). Pruned of fields that no pass reads. Of EndpointSlices only those that the
    /// Tailscale operator wrote.
    pub owned: OrdMap<ObjectRef, Arc<Value>>,
    /// EndpointSlices of Kubernetes' controller, by child.
    pub slices: OrdMap<Arc<str>, Vec<Arc<ChildSlice>>>,
    /// Users' Services by namespace and name: those that are assigned to this group or recorded in it, and those with a child in `owned`;
    /// including Services being deleted.
    pub services: OrdMap<(String, String), Arc<Service>>,
    /// Nodes, if the class has static endpoints; else empty.
    pub nodes: Vec<Arc<Node>>,
    /// Labels of all namespaces, if the group has tenants; else empty. Of a standalone object at most its own namespace.
    pub namespaces: OrdMap<String, Arc<Labels>>,
    /// Standalone objects of its namespace that have a proxy, or requested one earlier; counted for an object
    /// without proxy, if there are tenants of standalone proxies.
    pub names_before: usize,
    /// Node ports of other groups, and those that the API server has rejected.
    pub node_ports: BTreeSet<u16>,
    /// Requests for advertised names.
    pub publish: PublishInputs,
    /// Other standalone proxies that are being replaced.
    pub replacements: usize,
    /// Denied control plane requests, by [`ControlAction::what`](super::ControlAction::what).
    pub denied: BTreeMap<String, ControlPlaneError>,
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
    pub backends: BTreeMap<(String, String), Arc<Service>>,
    /// Requesting Services with a ready endpoint.
    pub backed: BTreeSet<(String, String)>,
    /// Requests of other groups of the tailnet for names of this group.
    pub rivals: BTreeMap<String, Vec<NameConflict>>,
    /// Tailscale Services of the tailnet; `None` before the first list.
    pub listed: Option<Arc<ServiceList>>,
    /// Approved routes by device, where read.
    pub approved: BTreeMap<DeviceId, Approved>,
}

/// Approved routes of a device at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Approved {
    pub at: Timestamp,
    pub routes: BTreeSet<String>,
}

/// A request of another group of the same tailnet for a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameConflict {
    pub claimant: Publisher,
    pub group: String,
    /// Creation time in seconds.
    pub created: i64,
    /// Whether a replica of that group advertises the name.
    pub serving: bool,
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
}

/// Settings for all groups.
#[derive(Debug, Clone)]
pub struct GroupSettings {
    /// Namespace of the proxies and of all created objects.
    pub namespace: String,
    pub image: String,
    /// Image pull Secrets of proxies whose class sets none.
    pub image_pull_secrets: Vec<String>,
    pub tags: Vec<String>,
    /// Default firewall mode; `None`: the proxy detects it.
    pub firewall: Option<String>,
    /// DNS domain of the cluster, e.g. `cluster.local`.
    pub cluster_domain: String,
    /// Default range of match ports.
    pub ports: MatchPortRange,
    /// Default drain timeout.
    pub drain_timeout: Duration,
    /// Types of groups that this reconciler serves.
    pub types: Vec<ProxyGroupType>,
    /// Identity of this cluster in shared Tailscale Services.
    pub cluster: ServiceOwner,
    /// Whether replicas use one ACME account for all groups of their tailnet; `None`: the image's default.
    pub shared_account: Option<bool>,
    /// Limits of groups without tenants.
    pub tenancy: DefaultTenancy,
    /// Tenants of standalone proxies; none if every namespace may have them.
    pub standalone_tenants: Arc<Vec<Tenant>>,
    /// ACME directory URL, if not Let's Encrypt's.
    pub acme_directory: Option<String>,
    /// Whether the `ServiceMonitor` CRD exists.
    pub service_monitors: bool,
    /// Time for which the child of a moved Service stays after its `externalName` points elsewhere: DNS caches may have the old answer.
    pub linger: Duration,
}

#[derive(Debug, Clone)]
pub enum Class {
    None,
    Ready(Arc<ProxyClass>),
    Missing(String),
    /// The class of this name is invalid or not validated yet.
    NotReady(String),
}

/// Control plane of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TailnetState {
    Ready {
        /// Login server of proxies.
        server_url: String,
        capabilities: GroupCapabilities,
    },
    /// Not checked yet: previous conditions stay.
    Asking,
    /// Unavailable, with reason and action.
    Unavailable(String),
}

/// Capabilities of a control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupCapabilities {
    /// Creates auth keys.
    pub keys: bool,
    pub devices: bool,
    pub services: bool,
}

#[derive(Debug, Clone, Default)]
pub struct ObservedReplica {
    pub pod: Option<Arc<Pod>>,
    /// Parsed state Secret.
    pub state: Option<Arc<ReplicaState>>,
    /// Parsed config Secret.
    pub config: Option<Arc<ReplicaConfig>>,
}

impl ObservedReplica {
    /// Whether its state Secret names a device.
    pub fn has_device(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.device_id.is_some())
    }
}

/// State that a replica reports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaState {
    /// Stable ID of its device, as the replica claims; see [`crate::model::controller::identity`].
    pub device_id: Option<DeviceId>,
    pub device_name: Option<DeviceName>,
    /// Tailnet addresses of its node.
    pub device_ips: Vec<String>,
    /// UID of the Pod that wrote the rest.
    pub pod_uid: Option<String>,
    /// Failed key, empty if it had none. Present: the replica requests another one.
    pub reissue: Option<String>,
    /// Why it does not serve the target of a standalone proxy.
    pub rejected_target: Option<String>,
    /// Egress status.
    pub egress: Option<egress::EgressStatus>,
    /// Ingress status.
    pub ingress: Option<ingress::IngressStatus>,
    /// Funnel errors by service name.
    pub funnel_errors: BTreeMap<String, String>,
    /// Tailscale Services that it advertises without the control server's approval.
    pub unapproved: BTreeSet<String>,
    /// The tailnet issues no certificates: HTTPS is disabled in it.
    pub no_https: bool,
    /// Tailscale Services that its tailscaled advertises.
    pub advertises: BTreeSet<String>,
    /// Routes that its tailscaled advertises.
    pub routes: BTreeSet<String>,
}

/// Config of a replica.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaConfig {
    /// Complete config, if readable: a JSON object.
    pub document: Option<serde_json::Map<String, Value>>,
    /// ID of its auth key, if we created it.
    pub key_id: Option<KeyId>,
    /// Its device, once verified.
    pub device: Option<DeviceRecord>,
}

impl Observed {
    /// Whether this is a Service or Ingress with a proxy of its own.
    pub fn is_standalone(&self) -> bool {
        standalone::parse_key(&self.name).is_some()
    }

    pub(super) fn of(&self, kind: Kind) -> impl Iterator<Item = (&ObjectRef, &Arc<Value>)> {
        self.owned.range(ObjectRef::new(kind, "", "")..).take_while(move |(object, _)| object.kind == kind)
    }
}

impl GroupSettings {
    /// Default settings for a namespace and image.
    pub fn new(namespace: String, image: String) -> Self {
        Self {
            namespace,
            image,
            image_pull_secrets: Vec::new(),
            tags: Vec::new(),
            firewall: None,
            cluster_domain: "cluster.local".to_owned(),
            ports: MatchPortRange::DEFAULT,
            drain_timeout: Duration::from_secs(45),
            types: ProxyGroupType::SERVED.to_vec(),
            cluster: ServiceOwner::default(),
            shared_account: None,
            tenancy: DefaultTenancy::default(),
            standalone_tenants: Arc::default(),
            acme_directory: None,
            service_monitors: false,
            linger: LINGER,
        }
    }
}

impl ObservedReplica {
    /// Whether its tailscaled advertises a name.
    pub(super) fn advertises(&self, name: &str) -> bool {
        self.state.as_ref().is_some_and(|state| state.advertises.contains(name))
    }

    /// A replica from its objects. Parses the Secrets; callers reuse the result while these are unchanged.
    pub fn new(pod: Option<Arc<Pod>>, state: Option<&Secret>, config: Option<&Secret>) -> Self {
        let (state, config) = (state.map(ReplicaState::read), config.map(ReplicaConfig::read));
        Self { pod, state: state.map(Arc::new), config: config.map(Arc::new) }
    }

    /// The verified device.
    pub fn device(&self) -> Option<&DeviceRecord> {
        self.config.as_ref()?.device.as_ref()
    }
}

impl ReplicaState {
    /// Parses a state Secret. Unreadable values count as absent.
    pub fn read(secret: &Secret) -> Self {
        let bytes = |key: &str| secret.data.as_ref().and_then(|data| data.get(key)).map(|value| value.0.as_slice());
        let text = |key: &str| bytes(key).map(|value| String::from_utf8_lossy(value).trim().to_owned());
        let filled = |key: &str| text(key).filter(|text| !text.is_empty());
        let unpacked = bytes(egress::KEY_COMPRESSED).and_then(|packed| gzip::unpack(packed, MAX_STATUS_SIZE).ok());
        let Profile { advertise_services, advertise_routes } = profile(&bytes);
        let whole = unpacked.and_then(|text| parse(&text));
        Self {
            device_id: text(state::DEVICE_ID).and_then(|id| DeviceId::parse(&id)),
            device_name: text(state::DEVICE_FQDN).and_then(|name| DeviceName::parse(&name)),
            device_ips: bytes(state::DEVICE_IPS).and_then(parse).unwrap_or_default(),
            pod_uid: filled(state::POD_UID),
            reissue: text(state::REISSUE_AUTHKEY),
            rejected_target: filled(state::REJECTED_TARGET).map(|text| text.chars().take(MAX_REASON_LENGTH).collect()),
            ingress: bytes(ingress::KEY).and_then(parse),
            funnel_errors: bytes(state::FUNNEL_ERRORS).and_then(parse).unwrap_or_default(),
            unapproved: bytes(state::UNAPPROVED).and_then(parse).unwrap_or_default(),
            no_https: text(state::HTTPS_ENDPOINT).as_deref() == Some(state::NO_HTTPS),
            advertises: advertise_services.unwrap_or_default(),
            routes: advertise_routes.unwrap_or_default(),
            egress: whole.or_else(|| bytes(egress::KEY).and_then(parse)),
        }
    }
}

/// Parses JSON from a Pod; `None` if malformed or with too many elements. An element of three bytes can take fifty in memory, so the
/// size of the text is no bound.
fn parse<T: DeserializeOwned>(text: &[u8]) -> Option<T> {
    let elements = text.iter().filter(|byte| matches!(byte, b'{' | b'[' | b',')).count();
    if elements > MAX_ELEMENTS { None } else { serde_json::from_slice(text).ok() }
}

/// Part of tailscaled's current profile: advertised services and routes.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Profile {
    advertise_services: Option<BTreeSet<String>>,
    advertise_routes: Option<BTreeSet<String>>,
}

fn profile<'a>(bytes: &impl Fn(&str) -> Option<&'a [u8]>) -> Profile {
    let current = bytes(state::CURRENT_PROFILE).and_then(|name| std::str::from_utf8(name).ok());
    let profile = current.and_then(|name| bytes(name.trim())).and_then(parse);
    profile.unwrap_or_default()
}

impl ReplicaConfig {
    pub fn read(secret: &Secret) -> Self {
        let text = secret.data.as_ref().and_then(|data| data.get(names::CONFIG_KEY));
        let annotation = |key: &str| secret.metadata.annotations.as_ref().and_then(|all| all.get(key)).cloned();
        Self {
            document: text.and_then(|text| serde_json::from_slice(&text.0).ok()),
            key_id: annotation(names::AUTH_KEY_ID).and_then(|id| KeyId::parse(&id)),
            device: annotation(names::DEVICE).and_then(|text| serde_json::from_str(&text).ok()),
        }
    }

    /// Tailscale Services to advertise.
    pub fn advertises(&self) -> impl Iterator<Item = &str> {
        self.list("AdvertiseServices")
    }

    /// Routes to advertise.
    pub fn routes(&self) -> impl Iterator<Item = &str> {
        self.list("AdvertiseRoutes")
    }

    fn list(&self, field: &str) -> impl Iterator<Item = &str> {
        let list = self.document.as_ref().and_then(|document| document.get(field)?.as_array());
        list.into_iter().flatten().filter_map(Value::as_str)
    }

    /// Its auth key; empty counts as none.
    pub fn auth_key(&self) -> Option<&str> {
        self.document.as_ref()?.get("AuthKey")?.as_str().filter(|key| !key.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn compressed_full_status_is_preferred_to_the_short_one() {
        let short = br#"{"podIPv4":"10.0.0.1","services":null}"#;
        let whole = br#"{"podIPv4":"10.0.0.1","services":{"default-db":{"ports":[],"tailnetTargetIPs":null,"tailnetTarget":{}}}}"#;
        let served = |packed: Vec<u8>| {
            let data = [(egress::KEY.to_owned(), ByteString(short.to_vec())), (egress::KEY_COMPRESSED.to_owned(), ByteString(packed))];
            let state = ReplicaState::read(&Secret { data: Some(data.into()), ..Secret::default() });
            state.egress.expect("a status").services.is_some()
        };
        assert!(served(gzip::pack(whole).expect("packed")));
        assert!(!served(b"broken".to_vec()), "the shorter one is better than none");
        let padded = |size: usize| [vec![b' '; size - whole.len()], whole.to_vec()].concat();
        assert!(served(gzip::pack(&padded(8 << 20)).expect("packed")), "as large as may be");
        assert!(!served(gzip::pack(&padded((8 << 20) + 1)).expect("packed")), "a byte more");
        let ports = |count: usize| {
            let text = format!(
                r#"{{"services":{{"a":{{"ports":[{}],"tailnetTargetIPs":null,"tailnetTarget":{{}}}}}}}}"#,
                vec!["{}"; count].join(",")
            );
            gzip::pack(text.as_bytes()).expect("packed")
        };
        assert!(served(ports(100_000)));
        assert!(!served(ports(500_000)), "1.5 MB of text, 20 MB in memory");
    }
}
