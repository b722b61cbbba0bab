//! Documents in a config's keys, and their faults.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

use super::{CopyKeys, CopySource};
use crate::api::serve::ServeConfig;
use crate::api::{egress, ingress, routes, serve};
use crate::model::base::gzip;
use crate::model::config::{ConfigError, EgressConfig, IngressConfig, fingerprint};
use crate::model::front_end::vhosts::{self, ReadVhosts, Vhosts};

/// Why a copy is not in force; the previous document stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DocumentFault {
    /// The document is not JSON of the expected kind.
    #[error("the {from} copy of {key:?} cannot be used, the last good config stays in force: {reason}")]
    Unreadable { from: CopySource, key: &'static str, reason: String },
    #[error("key {key:?} is missing from the {from} copy, the last good config stays in force; write {{}} to end all services")]
    KeyMissing { from: CopySource, key: &'static str },
    /// The object does not exist.
    #[error("the ConfigMap does not exist, the last good config stays in force; create it (write {{}} to end all services)")]
    Deleted,
    /// The mounted copy cannot be read.
    #[error("the mounted copy cannot be read, the last good config stays in force: {0}")]
    Mount(String),
}

impl DocumentFault {
    /// Label value and Event reason; closed set.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "Unreadable",
            Self::KeyMissing { .. } => "KeyMissing",
            Self::Deleted => "Deleted",
            Self::Mount(_) => "MountUnreadable",
        }
    }
}

/// A document that is parsed from a copy.
pub trait Document: Clone {
    /// Input of a plan.
    type Services;
    const KEYS: &'static [&'static str];
    /// The required key.
    const KEY: &'static str;
    /// Keys, each with that of its compressed value.
    const COMPRESSED: &'static [(&'static str, &'static str)];

    /// Keys with decompressed values at their plain keys. An undecompressable value is reported as invalid JSON.
    fn unpacked(mut keys: CopyKeys) -> CopyKeys {
        for (key, compressed) in Self::COMPRESSED {
            if let Some(packed) = keys.remove(*compressed) {
                let text = gzip::unpack(&packed, gzip::MAX_CONFIG_SIZE).map_or(packed, Bytes::from);
                keys.insert((*key).to_owned(), text);
            }
        }
        keys
    }

    /// Parses the document after `last`; unchanged parts are not parsed again.
    fn read(keys: &CopyKeys, last: Option<&Self>) -> Result<Self, ConfigError>;

    /// Input of a plan; the same value for the same text.
    fn services(&self) -> &Arc<Self::Services>;

    fn fingerprint(&self) -> &str;
}

/// Egress services, and the number of pings of a drain for each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EgressDocument {
    pub config: Arc<EgressConfig>,
    /// Pings to a health endpoint that must all miss this Pod; 0 if not set.
    pub hep_pings: u32,
}

impl Document for EgressDocument {
    type Services = EgressConfig;

    const KEYS: &'static [&'static str] = &[egress::KEY, egress::KEY_COMPRESSED, egress::KEY_HEP_PINGS];
    const KEY: &'static str = egress::KEY;
    const COMPRESSED: &'static [(&'static str, &'static str)] = &[(egress::KEY, egress::KEY_COMPRESSED)];

    fn read(keys: &CopyKeys, last: Option<&Self>) -> Result<Self, ConfigError> {
        let pings = keys.get(egress::KEY_HEP_PINGS).and_then(|bytes| std::str::from_utf8(bytes).ok()?.trim().parse().ok());
        let config = last.map(|last| Arc::clone(&last.config)).unwrap_or_default().next(&bytes(keys, egress::KEY))?;
        Ok(Self { config: Arc::new(config), hep_pings: pings.unwrap_or(0) })
    }

    fn services(&self) -> &Arc<Self::Services> {
        &self.config
    }

    fn fingerprint(&self) -> &str {
        &self.config.fingerprint
    }
}

/// L3 ingress services.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IngressDocument {
    pub config: Arc<IngressConfig>,
}

impl Document for IngressDocument {
    type Services = IngressConfig;

    const KEYS: &'static [&'static str] = &[ingress::KEY, ingress::KEY_COMPRESSED];
    const KEY: &'static str = ingress::KEY;
    const COMPRESSED: &'static [(&'static str, &'static str)] = &[(ingress::KEY, ingress::KEY_COMPRESSED)];

    fn read(keys: &CopyKeys, last: Option<&Self>) -> Result<Self, ConfigError> {
        let config = last.map(|last| Arc::clone(&last.config)).unwrap_or_default().next(&bytes(keys, ingress::KEY))?;
        Ok(Self { config: Arc::new(config) })
    }

    fn services(&self) -> &Arc<Self::Services> {
        &self.config
    }

    fn fingerprint(&self) -> &str {
        &self.config.fingerprint
    }
}

/// HTTP ingress: the serve config, and our routes if present.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServeDocument {
    pub served: Arc<ServeContent>,
    pub fingerprint: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ServeContent {
    pub config: ServeConfig,
    /// Virtual hosts, from our routes if present.
    #[serde(skip)]
    pub sites: Arc<Vhosts>,
    /// Faults of virtual hosts, by name; their valid parts may be served.
    pub faults: BTreeMap<String, Vec<String>>,
}

impl Document for ServeDocument {
    type Services = ServeContent;

    const KEYS: &'static [&'static str] = &[serve::KEY, serve::KEY_COMPRESSED, routes::KEY, routes::KEY_COMPRESSED];
    const KEY: &'static str = serve::KEY;
    const COMPRESSED: &'static [(&'static str, &'static str)] =
        &[(serve::KEY, serve::KEY_COMPRESSED), (routes::KEY, routes::KEY_COMPRESSED)];

    fn read(keys: &CopyKeys, last: Option<&Self>) -> Result<Self, ConfigError> {
        let text = bytes(keys, serve::KEY);
        let text = if text.iter().all(u8::is_ascii_whitespace) { Bytes::from_static(b"{}") } else { text };
        let routes = keys.get(routes::KEY);
        let config: Option<ServeConfig> = serde_json::from_slice(&text)?;
        let ReadVhosts { sites, faults } = vhosts::read(routes.map(AsRef::as_ref), Some(&text)).map_err(serde_json::Error::from)?;
        let served = ServeContent { config: config.unwrap_or_default(), sites: Arc::new(sites), faults };
        let fingerprint = fingerprint(&[&text[..], routes.map(AsRef::as_ref).unwrap_or_default()].concat());
        let same = last.map(|last| &last.served).filter(|last| ***last == served);
        Ok(Self { served: same.cloned().unwrap_or_else(|| Arc::new(served)), fingerprint })
    }

    fn services(&self) -> &Arc<Self::Services> {
        &self.served
    }

    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

fn bytes(keys: &CopyKeys, key: &str) -> Bytes {
    keys.get(key).cloned().unwrap_or_default()
}
