//! File with the certificates for the next container of this Pod: a JSON object of base64, for each name chain, key and the name of their Secret.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::edge::files;
use crate::model::ingress::cert_store::CopiedCertificate;
use crate::model::ingress::certificate::Pair;
use crate::model::tailnet::state::{from_json, to_json};

const CHAIN: &str = ".crt";
const KEY: &str = ".key";
const SECRET: &str = ".secret";

/// Delay after a failed write.
const RETRY_DELAY: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct CertCopy {
    /// `None` if no file outlives a container.
    path: Option<PathBuf>,
    /// Content as last written by this process.
    saved: BTreeMap<String, CopiedCertificate>,
    /// Reason of the last write's failure, and time of the next one.
    failure: Option<(&'static str, Instant)>,
}

impl CertCopy {
    pub(super) fn new(path: Option<PathBuf>) -> Self {
        Self { path, saved: BTreeMap::new(), failure: None }
    }

    /// Certificates of an earlier container of this Pod; none if unreadable. Blocks.
    pub(super) fn load(&self) -> BTreeMap<String, CopiedCertificate> {
        let Some(path) = &self.path else { return BTreeMap::new() };
        let text = files::read_one(path).unwrap_or_else(|fault| {
            tracing::warn!(reason = fault.reason(), "cannot read the certificates of the previous container: {fault}");
            None
        });
        let Some(pairs) = text.map(|text| from_copy(&text)) else { return BTreeMap::new() };
        tracing::info!(certificates = pairs.len(), "loaded the certificates of the previous container");
        pairs
    }

    /// Writes these certificates unless the file has them. A failed write is repeated at [`Self::retry_at`]. Blocks.
    pub(super) fn save(&mut self, pairs: BTreeMap<String, CopiedCertificate>, now: Instant) {
        let Some(path) = &self.path else { return };
        if pairs == self.saved {
            self.failure = None;
            return;
        }
        if self.retry_at().is_some_and(|at| at > now) {
            return;
        }
        match files::replace_private(path, &to_copy(&pairs)) {
            Ok(()) => (self.saved, self.failure) = (pairs, None),
            Err(fault) => {
                if self.failure.is_none_or(|(reason, _)| reason != fault.reason()) {
                    tracing::warn!(
                        reason = fault.reason(),
                        "cannot back up certificates, retrying; until then a restarted container needs the API server: {fault}"
                    );
                }
                self.failure = Some((fault.reason(), now + RETRY_DELAY));
            }
        }
    }

    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.failure.map(|(_, at)| at)
    }
}

fn to_copy(pairs: &BTreeMap<String, CopiedCertificate>) -> Vec<u8> {
    let all = |(name, copied): (&String, &CopiedCertificate)| {
        let values = [(CHAIN, &*copied.pair.chain), (KEY, &*copied.pair.key), (SECRET, copied.secret.as_bytes())];
        values.map(|(kind, value)| (format!("{name}{kind}"), Bytes::copy_from_slice(value)))
    };
    to_json(&pairs.iter().flat_map(all).collect())
}

/// Parses a file without verification; empty if malformed.
fn from_copy(text: &[u8]) -> BTreeMap<String, CopiedCertificate> {
    from_values(&from_json(text).unwrap_or_default())
}

/// Certificates among these values, without verification. tailscaled stores its own under the same keys, without a Secret.
pub(super) fn from_values(values: &BTreeMap<String, Bytes>) -> BTreeMap<String, CopiedCertificate> {
    let pair = |(chain_key, chain): (&String, &Bytes)| {
        let name = chain_key.strip_suffix(CHAIN)?;
        let key = values.get(&format!("{name}{KEY}"))?;
        let secret = values.get(&format!("{name}{SECRET}")).map(|text| String::from_utf8_lossy(text).into_owned()).unwrap_or_default();
        Some((name.to_owned(), CopiedCertificate { pair: Pair { chain: chain.to_vec().into(), key: key.to_vec().into() }, secret }))
    };
    values.iter().filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_certificate_copy_is_empty() {
        let pair = Pair { chain: b"chain".to_vec().into(), key: b"key".to_vec().into() };
        let pairs = BTreeMap::from([("a.example.com".to_owned(), CopiedCertificate { pair, secret: "a".to_owned() })]);
        let copy = to_copy(&pairs);
        assert_eq!(from_copy(&copy), pairs);
        for bad in [&b"{"[..], br#"{"a.example.com.crt":"aw=="}"#, &copy[..copy.len() / 2]] {
            assert_eq!(from_copy(bad), BTreeMap::new(), "{}", String::from_utf8_lossy(bad));
        }
    }
}
