//! What a pass is given: the stores' view of a group, as of one moment.
//!
//! Read from stores only; nothing is fetched for a pass or during it. A store that a pass reads must already hold what
//! earlier passes over the same group wrote (their resource versions), else a key is minted or a port allocated twice.

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
use crate::api::proxygroup::{ProxyGroup, ProxyGroupType};
use crate::api::vip::VipService;
use crate::api::{egress, ingress, names, state};
use crate::model::base::gzip;
use crate::model::controller::identity::{DeviceId, DeviceName, DeviceRecord, KeyId};
use crate::model::controller::ingress_spec::{Publisher, ServiceOwner, UserCertificate};
use crate::model::controller::match_ports::MatchPortRange;
use crate::model::controller::objects::{Kind, ObjectRef};
use crate::model::controller::tenancy::{DefaultTenancy, Labels, Patterns};

/// How long the DNS may remember where a Service's name pointed.
const LINGER: Duration = Duration::from_mins(1);

/// Largest status of a replica, unpacked, in bytes: 10,000 services take about 3 MB.
const MAX_STATUS_SIZE: u64 = 8 << 20;
/// Most elements (objects, lists, members) of what a replica writes: 10,000 services take about 120,000.
const MAX_ELEMENTS: usize = 400_000;

/// A group as it is observed.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The group's name, which is the key of the work.
    pub name: String,
    /// The time. Conditions and waits are reckoned by it.
    pub now: Timestamp,
    pub settings: Arc<GroupSettings>,
    /// The group itself, if it exists.
    pub group: Option<Arc<ProxyGroup>>,
    /// Its class: the one it names, else the default one.
    pub class: Class,
    /// Its control plane.
    pub tailnet: TailnetState,
    /// Its replicas by ordinal: every ordinal of which a Pod, a state Secret or a config Secret exists.
    pub replicas: BTreeMap<u32, ObservedReplica>,
    /// Every object in the namespace of the proxies that is labelled as this group's or as an egress child of it, or that has
    /// the name of one that we would make (for a foreign one is not overwritten). As the API server has it; `managedFields`
    /// may be left out, and so may whatever of it no pass reads; slices are there only while one of them is written by hand.
    pub owned: OrdMap<ObjectRef, Arc<Value>>,
    /// The user's Services, by namespace and name, for which its annotation or its record names this group or of which `owned` has a
    /// child, those that are being deleted included.
    pub services: OrdMap<(String, String), Arc<Service>>,
    /// The nodes, if the class asks for static endpoints; else empty.
    pub nodes: Vec<Arc<Node>>,
    /// The labels of the namespaces that there are, if the group has tenants; else empty.
    pub namespaces: OrdMap<String, Arc<Labels>>,
    /// The node ports that Services of other groups hold, and those that the API server has refused.
    pub node_ports: BTreeSet<u16>,
    /// What is asked to be published by the group.
    pub publish: PublishInputs,
    /// What the control plane was asked for and denied, by [`ControlAction::what`](super::ControlAction::what).
    pub denied: BTreeMap<String, ControlPlaneError>,
}

/// What is asked to be published by a group, and what is known of it elsewhere.
#[derive(Debug, Clone, Default)]
pub struct PublishInputs {
    /// What is wrong with the class of the Ingresses: then they are left as they are. None if nothing is.
    pub class_fault: Option<String>,
    /// The Ingresses that name the group, or for which its config has a service.
    pub ingresses: OrdMap<(String, String), Arc<Ingress>>,
    /// The Secrets in the namespace of the proxies that these Ingresses name as certificates, as far as they are there.
    pub certificates: BTreeMap<String, UserCertificate>,
    /// Of these Secrets those that only some namespaces may name: which.
    pub reserved: BTreeMap<String, Patterns>,
    pub backends: BTreeMap<(String, String), Arc<Service>>,
    /// Of the Services that ask to be published, those that have an endpoint which gets traffic.
    pub backed: BTreeSet<(String, String)>,
    /// Who else in the tailnet wants the name of a Tailscale Service that this group has or is asked for.
    pub rivals: BTreeMap<String, Vec<NameConflict>>,
    /// The Tailscale Services of the tailnet; none if they were not asked for yet.
    pub listed: Option<Arc<ServiceList>>,
    /// The routes that the control plane has approved, by the stable id of the device, where they were looked at.
    pub approved: BTreeMap<DeviceId, Approved>,
}

/// The routes of a device that its control plane leads to it, as they were at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Approved {
    pub at: Timestamp,
    pub routes: BTreeSet<String>,
}

/// An object that asks another group of the same tailnet for a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameConflict {
    pub claimant: Publisher,
    pub group: String,
    /// When it was made, in seconds.
    pub created: i64,
    /// Whether a replica of that group advertises the name.
    pub serving: bool,
}

/// The Tailscale Services of a tailnet, as they were at a time.
#[derive(Debug, Clone, Default)]
pub struct ServiceList {
    pub at: Timestamp,
    pub services: OrdMap<String, VipService>,
}

/// A control plane's refusal that stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlPlaneError {
    /// Since when it has been refused without a pause.
    pub since: Timestamp,
    /// Why, in a sentence that is the same each time.
    pub why: String,
}

/// What holds for every group.
#[derive(Debug, Clone)]
pub struct GroupSettings {
    /// The namespace of the proxies, in which everything is made.
    pub namespace: String,
    pub image: String,
    /// Names of the pull Secrets of proxies whose class names none.
    pub image_pull_secrets: Vec<String>,
    pub tags: Vec<String>,
    /// The firewall mode of groups that name none; `None` lets the proxy find out.
    pub firewall: Option<String>,
    /// The cluster's domain, such as `cluster.local`.
    pub cluster_domain: String,
    /// Where match ports are taken from unless the group says otherwise.
    pub ports: MatchPortRange,
    /// How long a leaving replica forwards for the flows it has.
    pub drain_timeout: Duration,
    /// The types of the groups that are ours; others are somebody else's.
    pub types: Vec<ProxyGroupType>,
    /// The name of the class of the Ingresses that are ours.
    pub ingress_class: String,
    /// Who this cluster is among those that share Tailscale Services.
    pub cluster: ServiceOwner,
    /// Whether replicas order certificates with the account of all groups of their tailnet; what is usual for their image if
    /// nothing is said.
    pub shared_account: Option<bool>,
    /// What namespaces may have of groups that name no tenants.
    pub tenancy: DefaultTenancy,
    /// The URL of the ACME server's directory, if it is not Let's Encrypt's.
    pub acme_directory: Option<String>,
    /// Whether the cluster has the CRD of `ServiceMonitor`.
    pub service_monitors: bool,
    /// How long the children of a Service that moved to another group go on serving after the Service's name points elsewhere:
    /// as long as somebody may hold the old answer of the DNS.
    pub linger: Duration,
}

#[derive(Debug, Clone)]
pub enum Class {
    None,
    Ready(Arc<ProxyClass>),
    Missing(String),
    /// The class of this name is not valid, or not looked at yet.
    NotReady(String),
}

/// The control plane of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TailnetState {
    Ready {
        /// What a proxy logs in to.
        server_url: String,
        capabilities: GroupCapabilities,
    },
    /// Nobody has asked it yet: what was said of it before still holds.
    Asking,
    /// It cannot be asked; why, in a sentence that says what to do.
    Unavailable(String),
}

/// What a control plane can do for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupCapabilities {
    /// Auth keys are minted.
    pub keys: bool,
    pub devices: bool,
    pub services: bool,
}

#[derive(Debug, Clone, Default)]
pub struct ObservedReplica {
    pub pod: Option<Arc<Pod>>,
    /// Its state Secret, read.
    pub state: Option<Arc<ReplicaState>>,
    /// Its config Secret, read.
    pub config: Option<Arc<ReplicaConfig>>,
}

/// What a replica says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaState {
    /// Stable ID of its device, as the replica claims; see [`crate::model::controller::identity`].
    pub device_id: Option<DeviceId>,
    pub device_name: Option<DeviceName>,
    /// Addresses of its node.
    pub device_ips: Vec<String>,
    /// UID of the Pod that wrote the rest.
    pub pod_uid: Option<String>,
    /// The key that failed; empty if it had none. Present means that it asks for another one.
    pub reissue: Option<String>,
    /// The egress services that it holds.
    pub egress: Option<egress::EgressStatus>,
    /// The ingress services that it holds.
    pub ingress: Option<ingress::IngressStatus>,
    /// The sites that the internet is to reach and does not, by service name, and why.
    pub funnel_errors: BTreeMap<String, String>,
    /// The Tailscale Services that it advertises and the control server has not approved it for.
    pub unapproved: BTreeSet<String>,
    /// The tailnet gives no certificates, as HTTPS is disabled in it.
    pub no_https: bool,
    /// The Tailscale Services that its tailscaled advertises.
    pub advertises: BTreeSet<String>,
    /// The routes that its tailscaled advertises.
    pub routes: BTreeSet<String>,
}

/// What a replica was told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaConfig {
    /// The config whole, if it can be read: a JSON object.
    pub document: Option<serde_json::Map<String, Value>>,
    /// The id of the auth key in it, if we minted it.
    pub key_id: Option<KeyId>,
    /// Its device, once the control plane confirmed it.
    pub device: Option<DeviceRecord>,
}

impl Observed {
    pub(super) fn of(&self, kind: Kind) -> impl Iterator<Item = (&ObjectRef, &Arc<Value>)> {
        self.owned.range(ObjectRef::new(kind, "", "")..).take_while(move |(object, _)| object.kind == kind)
    }
}

impl GroupSettings {
    /// What holds in a namespace, with an image, unless more is said.
    #[must_use]
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
            ingress_class: "tailscale".to_owned(),
            cluster: ServiceOwner::default(),
            shared_account: None,
            tenancy: DefaultTenancy::default(),
            acme_directory: None,
            service_monitors: false,
            linger: LINGER,
        }
    }
}

impl ObservedReplica {
    /// Its tailscaled last reported that it advertises a name.
    pub(super) fn advertises(&self, name: &str) -> bool {
        self.state.as_ref().is_some_and(|state| state.advertises.contains(name))
    }

    /// A replica of its parts. The Secrets are parsed: a caller with many passes keeps what came out for as long as they do not
    /// change.
    #[must_use]
    pub fn new(pod: Option<Arc<Pod>>, state: Option<&Secret>, config: Option<&Secret>) -> Self {
        let (state, config) = (state.map(ReplicaState::read), config.map(ReplicaConfig::read));
        Self { pod, state: state.map(Arc::new), config: config.map(Arc::new) }
    }

    /// The device that the control plane confirmed as this replica's.
    #[must_use]
    pub fn device(&self) -> Option<&DeviceRecord> {
        self.config.as_ref()?.device.as_ref()
    }
}

impl ReplicaState {
    /// Reads a state Secret. What cannot be read counts as absent: the replica will say it again.
    #[must_use]
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

/// Parses JSON that a Pod wrote; `None` if it is malformed or has too many elements. An element of three bytes of text can take fifty
/// in memory, so the size of the text alone is no bound.
fn parse<T: DeserializeOwned>(text: &[u8]) -> Option<T> {
    let elements = text.iter().filter(|byte| matches!(byte, b'{' | b'[' | b',')).count();
    if elements > MAX_ELEMENTS { None } else { serde_json::from_slice(text).ok() }
}

/// What tailscaled advertises: it keeps that in its current profile.
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
    #[must_use]
    pub fn read(secret: &Secret) -> Self {
        let text = secret.data.as_ref().and_then(|data| data.get(names::CONFIG_KEY));
        let annotation = |key: &str| secret.metadata.annotations.as_ref().and_then(|all| all.get(key)).cloned();
        Self {
            document: text.and_then(|text| serde_json::from_slice(&text.0).ok()),
            key_id: annotation(names::AUTH_KEY_ID).and_then(|id| KeyId::parse(&id)),
            device: annotation(names::DEVICE).and_then(|text| serde_json::from_str(&text).ok()),
        }
    }

    /// The Tailscale Services that the replica is told to advertise.
    pub fn advertises(&self) -> impl Iterator<Item = &str> {
        self.list("AdvertiseServices")
    }

    /// The routes that the replica is told to advertise.
    pub fn routes(&self) -> impl Iterator<Item = &str> {
        self.list("AdvertiseRoutes")
    }

    fn list(&self, field: &str) -> impl Iterator<Item = &str> {
        let list = self.document.as_ref().and_then(|document| document.get(field)?.as_array());
        list.into_iter().flatten().filter_map(Value::as_str)
    }

    /// The auth key in it; empty counts as none.
    #[must_use]
    pub fn auth_key(&self) -> Option<&str> {
        self.document.as_ref()?.get("AuthKey")?.as_str().filter(|key| !key.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn the_whole_status_is_read_before_the_shorter_one() {
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
