//! Records of names in the tailnet: which object has a name, and with which addresses the cluster reaches it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use crate::model::nameserver::name::DnsName;
use crate::model::nameserver::records::{Addresses, Records};

/// Order of the objects with one name. The first with addresses has the record: an Ingress, then the oldest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordRank {
    is_egress: bool,
    created: Option<Timestamp>,
    object: (String, String),
}

impl RecordRank {
    pub fn new(is_egress: bool, metadata: &ObjectMeta) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let created = metadata.creation_timestamp.as_ref().map(|created| created.0);
        Self { is_egress, created, object: (text(&metadata.namespace), text(&metadata.name)) }
    }
}

/// A name that an object requests, and the addresses at which the cluster reaches it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedRecord {
    pub name: String,
    pub rank: RecordRank,
    pub addresses: Vec<IpAddr>,
}

/// Records of all objects. A name that is invalid, or that has no address now, has none.
pub fn records(requested: impl IntoIterator<Item = RequestedRecord>) -> Records {
    let mut first: BTreeMap<DnsName, (RecordRank, Addresses)> = BTreeMap::new();
    for RequestedRecord { name, rank, addresses } in requested.into_iter().filter(|record| !record.addresses.is_empty()) {
        let Some(name) = DnsName::parse(&name) else { continue };
        if first.get(&name).is_none_or(|(other, _)| rank < *other) {
            first.insert(name, (rank, addresses.into_iter().collect()));
        }
    }
    Records::new(first.into_iter().map(|(name, (_, addresses))| (name, addresses)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested(name: &str, is_egress: bool, created: i64, addresses: &[&str]) -> RequestedRecord {
        let rank = RecordRank { is_egress, created: Timestamp::from_second(created).ok(), object: ("default".into(), created.to_string()) };
        let addresses = addresses.iter().map(|ip| ip.parse().expect("an address")).collect();
        RequestedRecord { name: name.to_owned(), rank, addresses }
    }

    fn document(all: &[RequestedRecord]) -> String {
        records(all.to_vec()).document().0
    }

    #[test]
    fn shared_name_has_the_addresses_of_the_first_object_that_is_reachable() {
        let (old, new) = (requested("db.t.ts.net", true, 1, &["10.0.0.1"]), requested("DB.t.ts.net.", true, 2, &["10.0.0.2"]));
        let ingress = requested("db.t.ts.net", false, 3, &["10.0.0.3", "fd00::3"]);
        let of = |ip: &str| format!(r#"{{"version":"v1alpha1","ip4":{{"db.t.ts.net":["{ip}"]}}}}"#);
        assert_eq!(document(&[new.clone(), old.clone()]), of("10.0.0.1"));
        assert_eq!(document(&[new.clone(), RequestedRecord { addresses: Vec::new(), ..old.clone() }]), of("10.0.0.2"));
        let all = document(&[old, new, ingress]);
        assert_eq!(all, r#"{"version":"v1alpha1","ip4":{"db.t.ts.net":["10.0.0.3"]},"ip6":{"db.t.ts.net":["fd00::3"]}}"#);
    }

    #[test]
    fn invalid_and_unreachable_names_have_no_record() {
        assert_eq!(
            document(&[requested("db", true, 1, &["10.0.0.1"]), requested("a.ts.net", true, 1, &[])]),
            r#"{"version":"v1alpha1","ip4":{}}"#
        );
    }
}
