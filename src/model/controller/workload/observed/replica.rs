//! Objects of a replica: its Pod, what it reports in its state Secret, and its config Secret.
//!
//! A Pod writes its state Secret: values are bounded and parsed here, and verified elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Secret};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::{egress, ingress, names, state};
use crate::model::base::gzip;
use crate::model::controller::workload::device_index::DeviceEntry;
use crate::model::controller::workload::identity::{DeviceAddresses, DeviceId, DeviceName, DeviceRecord, KeyId, KeyMint};

/// Maximum uncompressed size of a replica's status in bytes: 10,000 services take about 3 MB.
const MAX_STATUS_SIZE: u64 = 8 << 20;
/// Maximum characters of a replica's text in a condition.
const MAX_REASON_LENGTH: usize = 500;
/// Maximum JSON elements of a replica's status: 10,000 services take about 120,000.
const MAX_ELEMENTS: usize = 400_000;

#[derive(Debug, Clone, Default)]
pub struct ObservedReplica {
    pub pod: Option<Arc<Pod>>,
    /// Parsed state Secret.
    pub state: Option<Arc<ReplicaState>>,
    /// Parsed config Secret.
    pub config: Option<Arc<ReplicaConfig>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaState {
    /// Stable ID of its device, as the replica claims; see [`crate::model::controller::workload::identity`].
    pub device_id: Option<DeviceId>,
    /// Name of its node, as it reports; see [`ObservedReplica::device_name`].
    pub device_name: Option<DeviceName>,
    /// Tailnet addresses of its node, as it reports: compared with those of the control plane, never shown in a status.
    pub device_ips: DeviceAddresses,
    /// UID of the Pod that wrote the rest.
    pub pod_uid: Option<String>,
    /// Failed key, empty if it had none. Present: the replica requests another one.
    pub reissue: Option<String>,
    /// Why it does not serve the target of a standalone proxy.
    pub rejected_target: Option<String>,
    pub egress: Option<egress::EgressStatus>,
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

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaConfig {
    /// Complete config, if readable: a JSON object.
    pub document: Option<serde_json::Map<String, Value>>,
    /// ID of its auth key, if we created it.
    pub key_id: Option<KeyId>,
    /// The last auth key that we created for it.
    pub mint: Option<KeyMint>,
    /// Its device, once verified.
    pub device: Option<DeviceRecord>,
}

impl ObservedReplica {
    /// Whether its tailscaled advertises a name.
    pub fn advertises(&self, name: &str) -> bool {
        self.state.as_ref().is_some_and(|state| state.advertises.contains(name))
    }

    /// A replica from its objects. Parses the Secrets; callers reuse the result while these are unchanged.
    pub fn new(pod: Option<Arc<Pod>>, state: Option<&Secret>, config: Option<&Secret>) -> Self {
        let (state, config) = (state.map(ReplicaState::read), config.map(ReplicaConfig::read));
        Self { pod, state: state.map(Arc::new), config: config.map(Arc::new) }
    }

    /// Sets the Pod that has the identity, of the first Pod and the second one; returns the other. Pods without a report wait.
    pub fn choose(&mut self, second: Arc<Pod>) -> Option<Arc<Pod>> {
        let active = self.state.as_ref().and_then(|state| state.pod_uid.as_deref());
        let is_active = active.is_some() && second.metadata.uid.as_deref() == active;
        if is_active || self.pod.is_none() { self.pod.replace(second) } else { Some(second) }
    }

    /// Whether its state is from the current Pod.
    pub fn is_current(&self) -> bool {
        let uid = self.pod.as_ref().and_then(|pod| pod.metadata.uid.as_deref());
        let said = self.state.as_ref().and_then(|state| state.pod_uid.as_deref());
        uid.zip(said).is_some_and(|(uid, said)| uid.eq_ignore_ascii_case(said))
    }

    /// Whether its state Secret names a device.
    pub fn has_device(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.device_id.is_some())
    }

    /// The verified device.
    pub fn device(&self) -> Option<&DeviceRecord> {
        self.config.as_ref()?.device.as_ref()
    }

    /// The verified device with name and addresses, while the replica claims it.
    pub fn claimed_record(&self) -> Option<&DeviceRecord> {
        let claim = self.state.as_ref()?.device_id.as_ref()?;
        self.device().filter(|record| record.id == *claim && record.is_complete())
    }

    /// Name of the verified device, as the control plane gave it, while the replica claims it.
    pub fn device_name(&self) -> Option<&DeviceName> {
        self.claimed_record()?.name.as_ref()
    }

    /// First labels of its device's names: of the recorded one, and of the one that it reports. They may withhold a name from others, never
    /// give it one.
    pub fn device_hosts(&self) -> impl Iterator<Item = &str> {
        self.device_names().map(DeviceName::host)
    }

    /// Recorded and reported name of its device.
    pub fn device_names(&self) -> impl Iterator<Item = &DeviceName> {
        let recorded = self.device().and_then(|record| record.name.as_ref());
        recorded.into_iter().chain(self.state.as_ref().and_then(|state| state.device_name.as_ref()))
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
            device_ips: bytes(state::DEVICE_IPS).and_then(parse::<Vec<String>>).map(DeviceAddresses::from).unwrap_or_default(),
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
            mint: annotation(names::AUTH_KEY).and_then(|text| serde_json::from_str(&text).ok()),
            device: annotation(names::DEVICE).and_then(|text| serde_json::from_str(&text).ok()),
        }
    }

    /// Tailscale Services to advertise.
    pub fn advertises(&self) -> impl Iterator<Item = &str> {
        self.list("AdvertiseServices")
    }

    pub fn routes(&self) -> impl Iterator<Item = &str> {
        self.list("AdvertiseRoutes")
    }

    fn list(&self, field: &str) -> impl Iterator<Item = &str> {
        let list = self.document.as_ref().and_then(|document| document.get(field)?.as_array());
        list.into_iter().flatten().filter_map(Value::as_str)
    }

    /// Host name of its device.
    pub fn hostname(&self) -> Option<&str> {
        self.document.as_ref()?.get("Hostname")?.as_str()
    }

    /// Host names of its device: the requested one, and the recorded one, which the control plane may have numbered or not changed yet.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let recorded = self.device.as_ref().and_then(|record| Some(record.name.as_ref()?.host().to_ascii_lowercase()));
        let requested = self.hostname().map(str::to_ascii_lowercase).filter(|requested| Some(requested) != recorded.as_ref());
        requested.into_iter().chain(recorded.clone())
    }

    /// Facts for [`crate::model::controller::workload::device_index`].
    pub fn entry(&self) -> DeviceEntry<'_> {
        let server = self.document.as_ref().and_then(|document| document.get("ServerURL")?.as_str());
        DeviceEntry {
            server: server.unwrap_or_default(),
            hostname: self.hostname().unwrap_or_default(),
            record: self.device.as_ref(),
            mint: self.mint.as_ref(),
        }
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
