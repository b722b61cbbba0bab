//! The ingress config of a group: one `ConfigMap` with everything that it advertises, also read back as the record of it.
//!
//! Serve config and mappings are in the Tailscale operator's format; our replicas read the routes instead. Only the reconciler reads the
//! record of owners.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use serde::de::DeserializeOwned;
use serde::{Deserialize as _, Serialize};
use serde_json::Value;

use crate::api::routes::{Origin, Site};
use crate::api::serve::{ServeConfig, ServiceConfig};
use crate::api::{ingress, names, routes, serve};
use crate::model::base::gzip;
use crate::model::controller::workload::objects::services::ROOM;
use crate::model::controller::workload::objects::{Kind, Manifest, ObjectRef, Owner};

/// What a group advertises, by the name of the Tailscale Service.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IngressConfigMap {
    pub serve: BTreeMap<String, ServiceConfig>,
    /// L3 ingress services, forwarded in the kernel.
    pub mappings: BTreeMap<String, ingress::IngressService>,
    pub routes: BTreeMap<String, Site>,
    pub origins: BTreeMap<String, Origin>,
    /// Certificates ordered within a week whose Secrets were deleted, by namespace.
    pub orders: BTreeMap<String, Ordered>,
    /// Since when no replica's config has a leaving name that a replica still claims to advertise, in seconds since 1970.
    pub leaving: BTreeMap<String, i64>,
}

/// Certificates: creation time of the Secret in seconds since 1970, and DNS name.
pub type Ordered = BTreeSet<(i64, String)>;

impl IngressConfigMap {
    /// Its values, by key of the `ConfigMap`.
    fn texts(&self) -> impl Iterator<Item = (&'static str, ByteString)> {
        let serve = ServeConfig { services: self.serve.clone(), ..ServeConfig::default() };
        let data = [
            (serve::KEY, text(&serve)),
            (ingress::KEY, text(&self.mappings)),
            (routes::KEY, text(&self.routes)),
            (routes::ORIGINS, text(&self.origins)),
        ];
        let orders = (!self.orders.is_empty()).then(|| (routes::ORDERS, text(&self.orders)));
        let leaving = (!self.leaving.is_empty()).then(|| (routes::LEAVING, text(&self.leaving)));
        data.into_iter().chain(orders).chain(leaving)
    }

    /// Size of its values in bytes, plain or compressed; the API server accepts 1 MiB.
    pub fn size(&self, packed: bool) -> usize {
        self.texts().map(|(_, text)| if packed { pack(&text).0.len() } else { text.0.len() }).sum()
    }

    /// The `ConfigMap`. Values that do not fit are compressed under keys of our own, for an image that reads these.
    pub fn manifest(&self, owner: &Owner, packs: bool) -> Manifest {
        let texts: Vec<_> = self.texts().collect();
        let packed = packs && texts.iter().map(|(_, text)| text.0.len()).sum::<usize>() > ROOM;
        let written = |(key, text): (&str, ByteString)| if packed { (format!("{key}.gz"), pack(&text)) } else { (key.to_owned(), text) };
        let data = texts.into_iter().map(written).collect();
        let metadata = owner.metadata(names::ingress_config(&owner.name), None);
        Manifest::of(Kind::ConfigMap, &ConfigMap { metadata, binary_data: Some(data), ..ConfigMap::default() })
    }

    /// Parses a `ConfigMap`. Unreadable values count as absent.
    pub fn read(config_map: &Value) -> Self {
        let serve: ServeConfig = part(config_map, serve::KEY);
        Self {
            serve: serve.services,
            mappings: part(config_map, ingress::KEY),
            routes: part(config_map, routes::KEY),
            origins: Self::origins(config_map),
            orders: part(config_map, routes::ORDERS),
            leaving: part(config_map, routes::LEAVING),
        }
    }

    /// Owners of the services in a `ConfigMap`.
    pub fn origins(config_map: &Value) -> BTreeMap<String, Origin> {
        part(config_map, routes::ORIGINS)
    }

    pub fn names(&self) -> BTreeSet<String> {
        self.serve.keys().chain(self.mappings.keys()).chain(self.routes.keys()).chain(self.origins.keys()).cloned().collect()
    }

    /// Copies a service from another config, if present.
    pub fn keep(&mut self, name: &str, from: &Self) {
        self.serve.extend(from.serve.get_key_value(name).map(|(name, value)| (name.clone(), value.clone())));
        self.mappings.extend(from.mappings.get_key_value(name).map(|(name, existing)| (name.clone(), existing.clone())));
        self.routes.extend(from.routes.get_key_value(name).map(|(name, found)| (name.clone(), found.clone())));
        self.origins.extend(from.origins.get_key_value(name).map(|(name, entry)| (name.clone(), entry.clone())));
    }
}

pub fn ingress_config_ref(owner: &Owner) -> ObjectRef {
    ObjectRef::new(Kind::ConfigMap, &owner.namespace, names::ingress_config(&owner.name))
}

fn text(value: &impl Serialize) -> ByteString {
    ByteString(serde_json::to_vec(value).unwrap_or_default())
}

fn pack(text: &ByteString) -> ByteString {
    ByteString(gzip::pack(&text.0).unwrap_or_default())
}

fn part<T: DeserializeOwned + Default>(config_map: &Value, key: &str) -> T {
    let bytes = |key: &str| ByteString::deserialize(config_map.get("binaryData")?.get(key)?).ok().map(|bytes| bytes.0);
    let unpacked = || gzip::unpack(&bytes(&format!("{key}.gz"))?, gzip::MAX_CONFIG_SIZE).ok();
    bytes(key).or_else(unpacked).and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}
