//! File with the certificates in use, for the next container of this Pod: a JSON object of base64, two values for each name.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::model::ingress::certificate::Pair;
use crate::model::tailnet::state::{from_json, to_json};

const CHAIN: &str = ".crt";
const KEY: &str = ".key";

pub(super) fn to_copy(pairs: &BTreeMap<String, Pair>) -> Vec<u8> {
    let both = |(name, pair): (&String, &Pair)| {
        [(CHAIN, &pair.chain), (KEY, &pair.key)].map(|(kind, value)| (format!("{name}{kind}"), Bytes::copy_from_slice(value)))
    };
    to_json(&pairs.iter().flat_map(both).collect())
}

/// Parses a file without verification; empty if malformed.
pub(super) fn from_copy(text: &[u8]) -> BTreeMap<String, Pair> {
    from_values(&from_json(text).unwrap_or_default())
}

/// Certificates among these values, without verification. tailscaled stores its own under the same keys.
pub(super) fn from_values(values: &BTreeMap<String, Bytes>) -> BTreeMap<String, Pair> {
    let pair = |(chain_key, chain): (&String, &Bytes)| {
        let name = chain_key.strip_suffix(CHAIN)?;
        let key = values.get(&format!("{name}{KEY}"))?;
        Some((name.to_owned(), Pair { chain: chain.to_vec().into(), key: key.to_vec().into() }))
    };
    values.iter().filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_certificate_copy_is_empty() {
        let pair = Pair { chain: b"chain".to_vec().into(), key: b"key".to_vec().into() };
        let pairs = BTreeMap::from([("a.example.com".to_owned(), pair)]);
        let copy = to_copy(&pairs);
        assert_eq!(from_copy(&copy), pairs);
        for bad in [&b"{"[..], br#"{"a.example.com.crt":"aw=="}"#, &copy[..copy.len() / 2]] {
            assert_eq!(from_copy(bad), BTreeMap::new(), "{}", String::from_utf8_lossy(bad));
        }
    }
}
