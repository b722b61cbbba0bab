//! Answers of an authoritative server to single queries: a pure function of the records.
//!
//! A name without records of the queried type has an empty answer, an absent one `NXDOMAIN`, both with the SOA record of the zone for negative
//! caching (RFC 2308). Names in no zone are refused: there is no recursion.

use std::net::IpAddr;

use super::name::{DnsName, is_within, reversed_address};
use super::records::{Records, TAILSCALE_ZONE};

/// Time in seconds for which resolvers cache answers and absences: addresses of Pods change.
pub const TTL: u32 = 5;

/// Type of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryType {
    A,
    Aaaa,
    Ptr,
    Soa,
    Any,
    Other,
}

/// Result of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerCode {
    NoError,
    NxDomain,
    Refused,
}

/// Data of a record of the queried name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerData<'a> {
    Address(IpAddr),
    Pointer(&'a DnsName),
    /// SOA record of the zone.
    Authority,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsAnswer<'a> {
    pub code: AnswerCode,
    pub data: Vec<AnswerData<'a>>,
    /// Zone of the name; `None` if the server is not authoritative for it. Of a reverse name the name itself.
    pub zone: Option<&'a str>,
}

impl DnsAnswer<'_> {
    /// Whether the SOA record belongs into the authority section.
    pub fn is_negative(&self) -> bool {
        self.zone.is_some() && self.data.is_empty()
    }
}

/// Answers a query for a name as of [`query_name`](super::name::query_name).
pub fn answer<'a>(records: &'a Records, name: &'a str, query: QueryType) -> DnsAnswer<'a> {
    if let Some(names) = reversed_address(name).and_then(|ip| records.names_of(ip)) {
        let pointers = matches!(query, QueryType::Ptr | QueryType::Any);
        let data = names.iter().filter(|_| pointers).map(AnswerData::Pointer).collect();
        return DnsAnswer { code: AnswerCode::NoError, data, zone: Some(name) };
    }
    let Some(zone) = zone(records, name) else {
        return DnsAnswer { code: AnswerCode::Refused, data: Vec::new(), zone: None };
    };
    let is_apex = name == zone;
    let addresses = records.addresses(name);
    let code = if is_apex || addresses.is_some() || records.has_below(name) { AnswerCode::NoError } else { AnswerCode::NxDomain };
    let of_type = |ip: &IpAddr| match query {
        QueryType::A => ip.is_ipv4(),
        QueryType::Aaaa => ip.is_ipv6(),
        QueryType::Any => true,
        QueryType::Ptr | QueryType::Soa | QueryType::Other => false,
    };
    let all =
        addresses.into_iter().flat_map(|all| all.v4.iter().copied().map(IpAddr::from).chain(all.v6.iter().copied().map(IpAddr::from)));
    let authority = (is_apex && matches!(query, QueryType::Soa | QueryType::Any)).then_some(AnswerData::Authority);
    let data = all.filter(of_type).map(AnswerData::Address).chain(authority).collect();
    DnsAnswer { code, data, zone: Some(zone) }
}

/// The zone of a name: the longest one.
fn zone<'a>(records: &'a Records, name: &str) -> Option<&'a str> {
    let others = records.zones().iter().map(String::as_str);
    others.chain([TAILSCALE_ZONE]).filter(|zone| is_within(name, zone)).max_by_key(|zone| zone.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn records() -> Records {
        let document = r#"{"version":"v1alpha1","ip4":{"db.tail.ts.net":["10.0.0.7","10.0.0.8"],"n.head.example":["10.0.0.7"]},
            "ip6":{"db.tail.ts.net":["fd00::7"],"six.tail.ts.net":["fd00::8"]}}"#;
        Records::parse(document.as_bytes()).expect("a document")
    }

    #[test]
    fn names_types_and_zones_are_distinguished() {
        use QueryType::{A, Aaaa, Any, Other, Ptr, Soa};
        let records = records();
        let found = |name: &str, query| {
            let answer = answer(&records, name, query);
            let text = |data: &AnswerData<'_>| match data {
                AnswerData::Address(ip) => ip.to_string(),
                AnswerData::Pointer(name) => name.as_str().to_owned(),
                AnswerData::Authority => "SOA".to_owned(),
            };
            let data: Vec<_> = answer.data.iter().map(text).collect();
            format!("{:?} {} {}", answer.code, answer.zone.unwrap_or("-"), data.join(","))
        };
        let table = [
            ("db.tail.ts.net", A, "NoError ts.net 10.0.0.7,10.0.0.8"),
            ("db.tail.ts.net", Aaaa, "NoError ts.net fd00::7"),
            ("db.tail.ts.net", Any, "NoError ts.net 10.0.0.7,10.0.0.8,fd00::7"),
            ("db.tail.ts.net", Other, "NoError ts.net "),
            ("db.tail.ts.net", Soa, "NoError ts.net "),
            ("six.tail.ts.net", A, "NoError ts.net "),
            ("tail.ts.net", A, "NoError ts.net "),
            ("ts.net", A, "NoError ts.net "),
            ("ts.net", Soa, "NoError ts.net SOA"),
            ("no.tail.ts.net", A, "NxDomain ts.net "),
            ("x.db.tail.ts.net", A, "NxDomain ts.net "),
            ("no.ts.net", Aaaa, "NxDomain ts.net "),
            ("n.head.example", A, "NoError head.example 10.0.0.7"),
            ("head.example", Soa, "NoError head.example SOA"),
            ("no.head.example", A, "NxDomain head.example "),
            ("example", A, "Refused - "),
            ("example.com", A, "Refused - "),
            ("net", A, "Refused - "),
            ("xts.net", A, "Refused - "),
            ("", A, "Refused - "),
            ("7.0.0.10.in-addr.arpa", Ptr, "NoError 7.0.0.10.in-addr.arpa db.tail.ts.net,n.head.example"),
            ("7.0.0.10.in-addr.arpa", A, "NoError 7.0.0.10.in-addr.arpa "),
            ("9.0.0.10.in-addr.arpa", Ptr, "Refused - "),
        ];
        for (name, query, wanted) in table {
            assert_eq!(found(name, query), wanted, "{name} {query:?}");
        }
    }

    proptest! {
        #[test]
        fn a_name_is_absent_for_every_type_or_for_none(name in "([a-z?]{1,3}\\.){0,3}(db|tail|ts|head)?\\.?(tail\\.ts\\.net|ts\\.net|head\\.example|example)") {
            let records = records();
            let codes = [QueryType::A, QueryType::Aaaa, QueryType::Ptr, QueryType::Soa, QueryType::Any, QueryType::Other]
                .map(|query| answer(&records, &name, query));
            for one in &codes {
                prop_assert_eq!(one.code, codes[0].code);
                prop_assert_eq!(one.zone.is_none(), one.code == AnswerCode::Refused);
                prop_assert!(one.code == AnswerCode::NoError || one.data.is_empty());
            }
        }
    }
}
