//! The egress and ingress configs, parsed once: a service that cannot be read is a fault of its own and no other's.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{egress, ingress};

/// A config document: every service that could be read, and why the others could not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Config<S> {
    /// The services by name.
    pub services: BTreeMap<Arc<str>, Arc<S>>,
    /// What of each unreadable service is wrong, by name.
    pub malformed: BTreeMap<Arc<str>, String>,
    /// A short hash of the document's bytes; says which document is in force.
    pub fingerprint: String,
}

/// The config of egress services.
pub type EgressConfig = Config<egress::Service>;
/// The config of L3 ingress services.
pub type IngressConfig = Config<ingress::Service>;

impl<S> Default for Config<S> {
    fn default() -> Self {
        Self { services: BTreeMap::new(), malformed: BTreeMap::new(), fingerprint: fingerprint(b"") }
    }
}

/// The document as a whole is not a JSON object: nothing of it can be used, and what was in force stays.
#[derive(Debug, thiserror::Error)]
#[error("config is not a JSON object of services: {0}")]
pub struct ConfigError(#[from] serde_json::Error);

impl<S: DeserializeOwned> Config<S> {
    /// Reads a document. Empty bytes and `null` are a config without services, as the operator means them.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self { fingerprint: fingerprint(bytes), ..Self::default() });
        }
        let raw: Option<BTreeMap<String, serde_json::Value>> = serde_json::from_slice(bytes)?;
        let mut config = Self { fingerprint: fingerprint(bytes), ..Self::default() };
        for (name, value) in raw.unwrap_or_default() {
            match serde_json::from_value(value) {
                Ok(service) => drop(config.services.insert(name.into(), Arc::new(service))),
                Err(fault) => drop(config.malformed.insert(name.into(), fault.to_string())),
            }
        }
        Ok(config)
    }
}

/// FNV-1a over the bytes, in hexadecimal: names a document in logs and status, guards nothing.
fn fingerprint(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_malformed_service_leaves_the_others() {
        let text = br#"{"good":{"tailnetTarget":{"ip":"100.64.0.2"},"ports":[{"protocol":"TCP","matchPort":1,"targetPort":2}],"new":1},
                        "bad":{"ports":"all"}}"#;
        let config = EgressConfig::parse(text).expect("a JSON object");
        assert_eq!(config.services.len(), 1);
        assert!(config.malformed["bad"].contains("sequence"), "{:?}", config.malformed);
    }

    #[test]
    fn empty_and_null_are_no_services() {
        for text in [&b""[..], b" \n", b"null", b"{}"] {
            assert_eq!(EgressConfig::parse(text).expect("readable").services.len(), 0);
        }
    }

    #[test]
    fn a_truncated_document_says_where() {
        let fault = EgressConfig::parse(br#"{"a":{"#).expect_err("truncated").to_string();
        assert!(fault.contains("line 1 column 6"), "{fault}");
    }
}
