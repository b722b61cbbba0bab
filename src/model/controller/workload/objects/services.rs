//! The egress config of a group: one `ConfigMap` for all its Services.
//!
//! A `ConfigMap` holds 1 MiB. A config close to that is compressed under a key of our own. The Tailscale operator's image cannot read
//! that key, so Services that do not fit are rejected for it.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use serde::{Deserialize as _, Serialize};
use serde_json::Value;

use crate::api::{egress, names};
use crate::model::base::gzip;
use crate::model::config::fingerprint;
use crate::model::controller::workload::objects::{Kind, Manifest, NEXT_PORT, ObjectRef, Owner, applied, digest};

/// Maximum size of a config in bytes; the rest of the `ConfigMap`'s 1 MiB is for its other keys.
pub const ROOM: usize = 900 << 10;

#[derive(Debug, Clone)]
pub struct EgressConfigMap {
    owner: Owner,
    /// Services, as a JSON object.
    text: Vec<u8>,
    replicas: u32,
    next_port: u16,
    hash: String,
    fingerprint: String,
    /// Compressed text, if necessary; computed on first use.
    packed: OnceLock<Option<Vec<u8>>>,
}

impl EgressConfigMap {
    /// Config of these services. `next_port` is the start of the next port search.
    pub fn new(owner: &Owner, services: &BTreeMap<impl Serialize, impl Serialize>, replicas: u32, next_port: u16) -> Self {
        let text = serde_json::to_vec(services).unwrap_or_default();
        let head = format!("1 {} {replicas} {next_port} ", owner.uid);
        let hash = digest(&[head.as_bytes(), &text].concat());
        let fingerprint = fingerprint(&text);
        Self { owner: owner.clone(), text, replicas, next_port, hash, fingerprint, packed: OnceLock::new() }
    }

    /// Whether everything except the services is equal.
    pub fn is_for(&self, owner: &Owner, replicas: u32, next_port: u16) -> bool {
        (&self.owner, self.replicas, self.next_port) == (owner, replicas, next_port)
    }

    /// Fingerprint by which a replica reports the config that it uses.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Whether it fits; `plain`: for an image that reads only the plain key.
    pub fn fits(&self, plain: bool) -> bool {
        self.text.len() <= ROOM || (!plain && self.packed().is_some_and(|packed| packed.len() <= ROOM))
    }

    /// Bytes that count against the shares of namespaces; `plain`: for an image that reads only the plain key. One that fits without
    /// compression counts nothing for others.
    pub fn used(&self, plain: bool) -> usize {
        if plain { self.text.len() } else { self.packed().map_or(0, Vec::len) }
    }

    fn packed(&self) -> Option<&Vec<u8>> {
        self.packed.get_or_init(|| compressed(&self.text)).as_ref()
    }

    fn pings(&self) -> String {
        (3 * u64::from(self.replicas)).to_string()
    }

    /// Whether the object already has the desired content, without building a manifest.
    pub fn holds(&self, observed: &Value) -> bool {
        // Compare compressed bytes without decompressing.
        let packed = || bytes(observed, egress::KEY_COMPRESSED).is_some_and(|existing| Some(&existing) == self.packed());
        applied(observed) == Some(&self.hash)
            && (packed() || egress_text(observed).as_deref() == Some(&self.text))
            && bytes(observed, egress::KEY_HEP_PINGS).as_deref() == Some(self.pings().as_bytes())
            && observed["metadata"]["labels"][names::PARENT] == *self.owner.name
    }

    pub fn manifest(&self) -> Manifest {
        let mut metadata = self.owner.metadata(names::egress_config(&self.owner.name), None);
        metadata.annotations = Some([(NEXT_PORT.to_owned(), self.next_port.to_string())].into());
        let (key, text) = match self.packed() {
            Some(packed) => (egress::KEY_COMPRESSED, packed.clone()),
            None => (egress::KEY, self.text.clone()),
        };
        let pings = (egress::KEY_HEP_PINGS.to_owned(), ByteString(self.pings().into_bytes()));
        let data = [(key.to_owned(), ByteString(text)), pings];
        let config_map = ConfigMap { metadata, binary_data: Some(data.into()), ..ConfigMap::default() };
        Manifest::with_hash(Kind::ConfigMap, serde_json::to_value(&config_map).unwrap_or_default(), self.hash.clone())
    }
}

/// Bytes of some services in a full config; `plain`: without compression.
pub fn entries_size(services: &BTreeMap<impl Serialize, impl Serialize>, plain: bool) -> usize {
    let text = serde_json::to_vec(services).unwrap_or_default();
    if plain { text.len() } else { gzip::pack(&text).map_or(text.len(), |packed| packed.len()) }
}

fn compressed(text: &[u8]) -> Option<Vec<u8>> {
    if text.len() > ROOM { gzip::pack(text).ok() } else { None }
}

fn bytes(config_map: &Value, key: &str) -> Option<Vec<u8>> {
    ByteString::deserialize(config_map.get("binaryData")?.get(key)?).ok().map(|bytes| bytes.0)
}

/// Text of the services in a `ConfigMap`; `None` if absent or unreadable.
pub fn egress_text(config_map: &Value) -> Option<Vec<u8>> {
    let Some(packed) = bytes(config_map, egress::KEY_COMPRESSED) else { return bytes(config_map, egress::KEY) };
    gzip::unpack(&packed, gzip::MAX_CONFIG_SIZE).ok()
}

pub fn egress_config_ref(owner: &Owner) -> ObjectRef {
    ObjectRef::new(Kind::ConfigMap, &owner.namespace, names::egress_config(&owner.name))
}

/// Services in a `ConfigMap`. Unreadable ones count as absent.
pub fn egress_config(config_map: &Value) -> BTreeMap<String, egress::EgressService> {
    egress_text(config_map).and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

/// Start of the next port search.
pub fn next_port(config_map: &Value) -> Option<u16> {
    config_map["metadata"]["annotations"][NEXT_PORT].as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner { key: "pg".into(), name: "pg".into(), uid: "u".into(), namespace: "ts".into(), app: String::new() }
    }

    fn services(count: u64) -> BTreeMap<String, egress::EgressService> {
        let service = |port: u64| egress::EgressService {
            health_check_endpoint: format!("http://ts-service-{port}.tailscale.svc.cluster.local:9002/healthz"),
            tailnet_target: egress::EgressTarget { fqdn: format!("host-{port}.tail1234.ts.net"), ..egress::EgressTarget::default() },
            ports: vec![egress::PortMap { protocol: "TCP".into(), match_port: 10_000 + port, target_port: 443 }],
        };
        (0..count).map(|port| (format!("default-service-{port}"), service(port))).collect()
    }

    #[test]
    fn config_of_ten_thousand_services_fits_and_round_trips() {
        for (count, key) in [(3, egress::KEY), (10_000, egress::KEY_COMPRESSED)] {
            let wanted = services(count);
            let config = EgressConfigMap::new(&owner(), &wanted, 2, 10_003);
            let manifest = config.manifest();
            assert!(config.holds(&manifest.value) && bytes(&manifest.value, key).is_some_and(|text| text.len() < ROOM), "{count}");
            assert_eq!((egress_config(&manifest.value), next_port(&manifest.value)), (wanted, Some(10_003)));
        }
    }

    #[test]
    fn missing_config_key_is_a_difference() {
        let config = EgressConfigMap::new(&owner(), &services(2), 2, 10_003);
        for key in [egress::KEY, egress::KEY_HEP_PINGS] {
            let mut observed = config.manifest().value;
            observed["binaryData"].as_object_mut().expect("data").remove(key);
            assert!(!config.holds(&observed), "{key}");
        }
        assert!(!EgressConfigMap::new(&owner(), &services(2), 3, 10_003).holds(&config.manifest().value));
    }
}
