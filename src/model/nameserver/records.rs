//! Records of a nameserver: the document `records.json` of the `ConfigMap` `dnsrecords`, in the format of the Tailscale operator.
//!
//! Either nameserver serves the document of either operator. A document is parsed completely or the last one stays in force; single names and
//! addresses that are invalid are skipped and counted. All sizes are bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use super::name::DnsName;

/// `ConfigMap` of the records, in the namespace of the proxies.
pub const CONFIG_MAP: &str = "dnsrecords";
/// Its field, and the name of the mounted file.
pub const FIELD: &str = "records.json";
/// The only version of the format.
const VERSION: &str = "v1alpha1";
/// Maximum size of a document: that of a `ConfigMap`.
pub const MAX_DOCUMENT: usize = 1024 * 1024;
/// Size of a written document at which further names are omitted: the API server limits the whole `ConfigMap`.
pub const MAX_WRITTEN: usize = 900 * 1024;
/// Maximum addresses of a name in one family: such an answer fits into one message over TCP.
const MAX_ADDRESSES: usize = 64;
/// Domain of Tailscale's tailnets: always a zone.
pub const TAILSCALE_ZONE: &str = "ts.net";

/// Why a document is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordsError {
    #[error("the document has {0} bytes, more than {MAX_DOCUMENT}")]
    Size(usize),
    #[error("the document is malformed: {0}")]
    Malformed(String),
    #[error("version {0:?} of the document is unknown: only {VERSION:?} is supported")]
    Version(String),
}

/// Addresses of a name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    pub v4: BTreeSet<Ipv4Addr>,
    pub v6: BTreeSet<Ipv6Addr>,
}

impl Addresses {
    pub fn contains(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => self.v4.contains(&ip),
            IpAddr::V6(ip) => self.v6.contains(&ip),
        }
    }

    fn add(&mut self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => add(&mut self.v4, ip),
            IpAddr::V6(ip) => add(&mut self.v6, ip),
        }
    }
}

impl FromIterator<IpAddr> for Addresses {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        let mut all = Self::default();
        for ip in addresses {
            all.add(ip);
        }
        all
    }
}

/// Adds an address; false if there are too many.
fn add<T: Ord>(all: &mut BTreeSet<T>, ip: T) -> bool {
    let has_room = all.len() < MAX_ADDRESSES || all.contains(&ip);
    if has_room {
        all.insert(ip);
    }
    has_room
}

/// Names with their addresses, and what is derived from them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Records {
    names: BTreeMap<DnsName, Addresses>,
    /// Names by address.
    pointers: BTreeMap<IpAddr, BTreeSet<DnsName>>,
    /// Names above others, without records of their own (empty non-terminals, RFC 8020).
    parents: BTreeSet<String>,
    /// Zones besides [`TAILSCALE_ZONE`]: domains of names, for control planes with other domains.
    zones: BTreeSet<String>,
    /// Names and addresses of the document that were skipped.
    skipped: usize,
}

#[derive(Deserialize)]
struct RecordsDocument {
    version: String,
    #[serde(default)]
    ip4: Option<BTreeMap<String, Option<Vec<String>>>>,
    #[serde(default)]
    ip6: Option<BTreeMap<String, Option<Vec<String>>>>,
}

#[derive(Serialize)]
struct Written<'a> {
    version: &'static str,
    ip4: BTreeMap<&'a str, &'a BTreeSet<Ipv4Addr>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    ip6: BTreeMap<&'a str, &'a BTreeSet<Ipv6Addr>>,
}

impl Records {
    /// Records of these names. One without addresses has none.
    pub fn new(names: BTreeMap<DnsName, Addresses>) -> Self {
        let mut records = Self::default();
        for (name, addresses) in names {
            let all = addresses.v4.iter().copied().map(IpAddr::from).chain(addresses.v6.iter().copied().map(IpAddr::from));
            let all: Vec<_> = all.collect();
            if all.is_empty() {
                continue;
            }
            for ip in all {
                records.pointers.entry(ip).or_default().insert(name.clone());
            }
            let zone = zone_of(&name);
            records.parents.extend(name.ancestors().take_while(|parent| *parent != zone).map(str::to_owned));
            if zone != TAILSCALE_ZONE {
                records.zones.insert(zone.to_owned());
            }
            records.names.insert(name, addresses);
        }
        records
    }

    /// Parses a document. An empty one has no records.
    pub fn parse(document: &[u8]) -> Result<Self, RecordsError> {
        if document.len() > MAX_DOCUMENT {
            return Err(RecordsError::Size(document.len()));
        }
        if document.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::default());
        }
        let RecordsDocument { version, ip4, ip6 } =
            serde_json::from_slice(document).map_err(|error| RecordsError::Malformed(error.to_string()))?;
        if version != VERSION {
            return Err(RecordsError::Version(version.chars().take(20).collect()));
        }
        let (mut names, mut skipped) = (BTreeMap::<DnsName, Addresses>::new(), 0);
        for (is_v4, family) in [(true, ip4), (false, ip6)] {
            for (name, addresses) in family.into_iter().flatten() {
                let Some(name) = DnsName::parse(&name) else {
                    skipped += 1;
                    continue;
                };
                let found = names.entry(name).or_default();
                let parsed = addresses.into_iter().flatten().map(|text| text.parse::<IpAddr>().ok().filter(|ip| ip.is_ipv4() == is_v4));
                skipped += parsed.filter(|ip| !ip.is_some_and(|ip| found.add(ip))).count();
            }
        }
        Ok(Self { skipped, ..Self::new(names) })
    }

    /// The document. The last names are omitted if it would exceed [`MAX_WRITTEN`].
    pub fn document(&self) -> String {
        let (mut written, mut size) = (Written { version: VERSION, ip4: BTreeMap::new(), ip6: BTreeMap::new() }, 0);
        for (name, addresses) in &self.names {
            size += written_size(name, addresses);
            if size > MAX_WRITTEN {
                break;
            }
            if !addresses.v4.is_empty() {
                written.ip4.insert(name.as_str(), &addresses.v4);
            }
            if !addresses.v6.is_empty() {
                written.ip6.insert(name.as_str(), &addresses.v6);
            }
        }
        serde_json::to_string(&written).unwrap_or_default()
    }

    /// Names and addresses of the document that were skipped.
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// Number of names.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub fn addresses(&self, name: &str) -> Option<&Addresses> {
        self.names.get(name)
    }

    /// Whether a name is above others.
    pub(super) fn has_below(&self, name: &str) -> bool {
        self.parents.contains(name)
    }

    pub(super) fn names_of(&self, ip: IpAddr) -> Option<&BTreeSet<DnsName>> {
        self.pointers.get(&ip)
    }

    /// Zones besides [`TAILSCALE_ZONE`].
    pub(super) fn zones(&self) -> &BTreeSet<String> {
        &self.zones
    }
}

/// Upper bound of the bytes of a name in a document.
pub fn written_size(name: &DnsName, addresses: &Addresses) -> usize {
    2 * (name.as_str().len() + 10) + 20 * addresses.v4.len() + 45 * addresses.v6.len()
}

/// Zone of a record: Tailscale's domain, or that of the name.
fn zone_of(name: &DnsName) -> &str {
    let domains: Vec<&str> = name.ancestors().collect();
    let tailscale = domains.iter().find(|domain| **domain == TAILSCALE_ZONE);
    tailscale.or(domains.first()).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Records {
        Records::parse(text.as_bytes()).expect("a document")
    }

    #[test]
    fn document_of_the_tailscale_operator_is_parsed() {
        let theirs = r#"{"version":"v1alpha1","ip4":{"foo.bar.ts.net":["10.9.8.7"]},"ip6":{"foo.bar.ts.net.":["fd00::1"],"six.ts.net":["fd00::2"]}}"#;
        let records = parsed(theirs);
        let (v4, v6) = records.addresses("foo.bar.ts.net").map(|all| (all.v4.len(), all.v6.len())).expect("a name");
        assert_eq!((v4, v6, records.len(), records.skipped()), (1, 1, 2, 0));
        for empty in ["", " \n", r#"{"version":"v1alpha1","ip4":null}"#, r#"{"version":"v1alpha1","ip4":{"a.ts.net":null}}"#] {
            assert!(parsed(empty).is_empty(), "{empty}");
        }
    }

    #[test]
    fn malformed_documents_are_rejected_and_single_faults_skipped() {
        for bad in ["{", "[]", "null", r#"{"ip4":{}}"#, r#"{"version":"v1alpha1","ip4":[]}"#, r#"{"version":"v2","ip4":{}}"#, "\u{0}"] {
            assert!(Records::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(Records::parse(&vec![b' '; MAX_DOCUMENT + 1]), Err(RecordsError::Size(MAX_DOCUMENT + 1)));
        let some = parsed(
            r#"{"version":"v1alpha1","ip4":{"a.ts.net":["10.0.0.1","x","fd00::1"],"b":["10.0.0.2"]},"ip6":{"a.ts.net":["10.0.0.3"]}}"#,
        );
        assert_eq!((some.len(), some.skipped()), (1, 4));
        let many: Vec<_> = (0..=MAX_ADDRESSES).map(|n| format!("10.0.0.{n}")).collect();
        let many = parsed(&serde_json::json!({"version": "v1alpha1", "ip4": {"a.ts.net": many}}).to_string());
        assert_eq!((many.addresses("a.ts.net").map(|all| all.v4.len()), many.skipped()), (Some(MAX_ADDRESSES), 1));
    }

    #[test]
    fn written_document_fits_into_a_config_map() {
        let name = |n: usize| DnsName::parse(&format!("{n:05}{}.tail.ts.net", "a".repeat(55))).expect("a name");
        let all: BTreeMap<_, Addresses> = (0..10_000).map(|n| (name(n), [IpAddr::from([10, 0, 0, 1])].into_iter().collect())).collect();
        let records = Records::new(all);
        let document = records.document();
        let written = parsed(&document).len();
        assert!(document.len() <= MAX_WRITTEN && written > 5_000 && written < 10_000, "{} {written}", document.len());
    }

    fn records() -> impl Strategy<Value = Records> {
        let address = prop_oneof![any::<Ipv4Addr>().prop_map(IpAddr::from), any::<Ipv6Addr>().prop_map(IpAddr::from)];
        let name =
            "[a-z0-9_-]{1,5}(\\.[a-z0-9]{1,3}){0,2}\\.(ts\\.net|head\\.example)".prop_map(|name| DnsName::parse(&name).expect("a name"));
        proptest::collection::btree_map(name, proptest::collection::vec(address, 0..4).prop_map(Addresses::from_iter), 0..8)
            .prop_map(Records::new)
    }

    proptest! {
        #[test]
        fn written_document_has_the_same_records(records in records()) {
            prop_assert_eq!(parsed(&records.document()), records);
        }

        #[test]
        fn any_bytes_are_parsed_or_rejected(bytes: Vec<u8>) {
            drop(Records::parse(&bytes));
        }
    }
}
