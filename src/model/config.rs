//! Parsed egress and ingress configs. A malformed service is reported alone.

pub mod source;

use std::sync::Arc;

use bytes::Bytes;
use imbl::OrdMap;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{egress, ingress};

mod members;

use members::Members;

/// A config document: valid services, and the errors of the others.
///
/// A document parsed after another shares every service with equal text, so that computations on both can skip it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Config<S> {
    pub services: OrdMap<Arc<str>, Arc<S>>,
    /// Errors of malformed services, by name.
    pub malformed: OrdMap<Arc<str>, String>,
    /// Short hash of the document's bytes: identifies the document in force.
    pub fingerprint: String,
    /// Text of each service, for comparison with a later document.
    #[serde(skip)]
    members: Members,
}

pub type EgressConfig = Config<egress::EgressService>;
/// Config of L3 ingress services.
pub type IngressConfig = Config<ingress::IngressService>;

impl<S> Default for Config<S> {
    fn default() -> Self {
        Self { services: OrdMap::new(), malformed: OrdMap::new(), fingerprint: fingerprint(b""), members: Members::default() }
    }
}

/// The document is not a JSON object: the previous one stays in force.
#[derive(Debug, thiserror::Error)]
#[error("config is not a JSON object of services: {0}")]
pub struct ConfigError(#[from] serde_json::Error);

impl<S: DeserializeOwned> Config<S> {
    /// Parses a document. Empty bytes and `null` are a config without services, as in the Tailscale operator.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        Self::default().next(&Bytes::copy_from_slice(bytes))
    }

    /// Parses the next document; only services with changed text are parsed again.
    pub fn next(&self, document: &Bytes) -> Result<Self, ConfigError> {
        let (members, changes) = self.members.next(document)?;
        let (mut services, mut malformed) = (self.services.clone(), self.malformed.clone());
        for (name, place) in changes {
            services.remove(&name);
            malformed.remove(&name);
            match place.map(|place| serde_json::from_slice(members.text(place))) {
                Some(Ok(service)) => drop(services.insert(name, Arc::new(service))),
                Some(Err(fault)) => drop(malformed.insert(name, fault.to_string())),
                None => {}
            }
        }
        Ok(Self { services, malformed, fingerprint: fingerprint(document), members })
    }
}

/// Hexadecimal hash: identifies a document in logs and status; not for security.
pub fn fingerprint(bytes: &[u8]) -> String {
    format!("{:016x}", fingerprint64(bytes))
}

/// FNV-1a in four lanes, of eight bytes at a step each: a document of some megabytes is hashed for every change of it.
pub fn fingerprint64(bytes: &[u8]) -> u64 {
    const PRIME: u64 = 0x0100_0000_01b3;
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(PRIME).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    let (rows, last) = words.as_chunks::<4>();
    let mut lanes = [BASIS, !BASIS, BASIS.rotate_left(17), BASIS.rotate_left(41)];
    for row in rows {
        for (lane, word) in lanes.iter_mut().zip(row) {
            *lane = step(*lane, u64::from_le_bytes(*word));
        }
    }
    let start = step(BASIS, bytes.len() as u64);
    let hash = lanes.into_iter().chain(last.iter().map(|word| u64::from_le_bytes(*word))).fold(start, step);
    let hash = rest.iter().fold(hash, |hash, byte| step(hash, u64::from(*byte)));
    hash ^ (hash >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_service_does_not_affect_the_others() {
        let text = br#"{"good":{"tailnetTarget":{"ip":"100.64.0.2"},"ports":[{"protocol":"TCP","matchPort":1,"targetPort":2}],"new":1},
                        "bad":{"ports":"all"}}"#;
        let config = EgressConfig::parse(text).expect("a JSON object");
        assert_eq!(config.services.keys().map(|name| &**name).collect::<Vec<_>>(), ["good"]);
        assert!(config.malformed["bad"].contains("sequence"), "{:?}", config.malformed);
        let config = EgressConfig::parse(br#"{"a":"b", "c":{"ports":["d"]}}"#).expect("a JSON object");
        for name in ["a", "c"] {
            let fault = &config.malformed[name];
            assert!(fault.contains("expected an object at line 1"), "a user does not know the names of types: {fault}");
        }
    }

    #[test]
    fn empty_and_null_documents_have_no_services() {
        for text in [&b""[..], b" \n", b"null", b"{}"] {
            assert_eq!(EgressConfig::parse(text).expect("readable").services.len(), 0);
        }
    }

    #[test]
    fn truncated_document_error_has_line_and_column() {
        let fault = EgressConfig::parse(br#"{"a":{"#).expect_err("truncated").to_string();
        assert!(fault.contains("line 1 column 6"), "{fault}");
    }

    #[test]
    fn next_document_shares_unchanged_services() {
        let first = EgressConfig::parse(br#"{"a":{"ports":[]},"b":{"ports":[]},"c":{"ports":[]}}"#).expect("readable");
        let second = first.next(&Bytes::from_static(br#"{ "b": {"ports":[{}]}, "a": {"ports":[]} }"#)).expect("readable");
        assert!(Arc::ptr_eq(&first.services["a"], &second.services["a"]));
        assert_eq!(second.services["b"].ports.len(), 1);
        assert!(!second.services.contains_key("c"));
        assert_ne!(first.fingerprint, second.fingerprint);
    }

    #[test]
    fn fingerprint_depends_on_every_byte_and_the_length() {
        let text = br#"{"a":{"ports":[]},"b":1,"longer":"than four words of eight bytes, with a rest of some"}"#;
        for at in 0..text.len() {
            let mut other = *text;
            other[at] ^= 1;
            assert_ne!(fingerprint64(text), fingerprint64(&other), "byte {at}");
        }
        assert_ne!(fingerprint64(b""), fingerprint64(&[0]));
        assert_ne!(fingerprint64(&[0; 8]), fingerprint64(&[0; 16]));
    }
}
