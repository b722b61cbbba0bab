//! Records of names in the tailnet: which of the served names have one, within the shares of their namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use crate::model::controller::policy::budget::NamespaceBudget;
use crate::model::nameserver::name::DnsName;
use crate::model::nameserver::records::{Addresses, MAX_WRITTEN, Records, written_size};

/// Order of the objects with one name, if none has its record yet: an Ingress, then the oldest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordRank {
    is_egress: bool,
    created: Option<Timestamp>,
    /// Namespace and name.
    object: (String, String),
}

impl RecordRank {
    pub fn new(is_egress: bool, metadata: &ObjectMeta) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let created = metadata.creation_timestamp.as_ref().map(|created| created.0);
        Self { is_egress, created, object: (text(&metadata.namespace), text(&metadata.name)) }
    }

    fn namespace(&self) -> &str {
        &self.object.0
    }
}

/// A name that a proxy serves by its config, and the addresses at which the cluster reaches it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedName {
    pub name: String,
    pub rank: RecordRank,
    pub addresses: Vec<IpAddr>,
    /// Whether every Pod that gets traffic serves it now: required for a new record. An existing one stays while the config has the name.
    pub is_acknowledged: bool,
}

/// The document of the records, and names that are not in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordsPlan {
    /// JSON.
    pub document: String,
    /// Number of names without room, by namespace.
    pub omitted: BTreeMap<String, usize>,
}

/// A served name, parsed.
struct Candidate {
    /// Whether another object has the name's record, or none; then kind, age and name of the object.
    order: (bool, RecordRank),
    name: DnsName,
    addresses: Addresses,
    /// Bytes in the document: before, and now.
    sizes: (usize, usize),
}

/// Records of all served names. `before`: those of the present document.
///
/// Of several objects with one name an Ingress has the record, whose name is that of its device; else the one that has the record already,
/// else the oldest. Each namespace has a [share](NamespaceBudget) of the document, in which existing records come first.
pub fn records(served: impl IntoIterator<Item = ServedName>, before: &Records) -> RecordsPlan {
    let mut order = candidates(served, before);
    order.sort_by(|one, other| one.order.cmp(&other.order));
    let mut budget = NamespaceBudget::new([MAX_WRITTEN]);
    let mut counted = BTreeSet::new();
    for candidate in order.iter_mut().filter(|candidate| !candidate.order.0) {
        if counted.insert(candidate.name.clone()) {
            budget.keep(candidate.order.1.namespace(), [candidate.sizes.0]);
        } else {
            // A record of several objects, as the Tailscale operator writes it, counts for the first one only.
            candidate.order.0 = true;
        }
    }
    let (mut accepted, mut refused) = (BTreeMap::new(), BTreeMap::new());
    for Candidate { order: (is_new, rank), name, addresses, sizes } in order {
        if accepted.contains_key(&name) {
            continue;
        }
        let from = if is_new { 0 } else { sizes.0 };
        if budget.replace(rank.namespace(), [from], [sizes.1]) {
            refused.remove(&name);
            accepted.insert(name, addresses);
        } else {
            refused.entry(name).or_insert_with(|| rank.namespace().to_owned());
        }
    }
    let mut omitted = BTreeMap::new();
    for namespace in refused.into_values() {
        *omitted.entry(namespace).or_default() += 1;
    }
    RecordsPlan { document: Records::new(accepted).document(), omitted }
}

/// Valid names with addresses that may have a record.
fn candidates(served: impl IntoIterator<Item = ServedName>, before: &Records) -> Vec<Candidate> {
    let parse = |served: ServedName| {
        let name = DnsName::parse(&served.name)?;
        let addresses: Addresses = served.addresses.iter().copied().collect();
        let existing = before.addresses(name.as_str()).filter(|existing| served.addresses.iter().any(|ip| existing.contains(*ip)));
        let size = |addresses: &Addresses| written_size(&name, addresses);
        let sizes = (existing.map_or(0, size), size(&addresses));
        let is_candidate = !served.addresses.is_empty() && (served.is_acknowledged || existing.is_some());
        is_candidate.then(|| Candidate { order: (existing.is_none(), served.rank), name, addresses, sizes })
    };
    let mut all: Vec<_> = served.into_iter().filter_map(parse).collect();
    let devices: BTreeSet<_> =
        all.iter().filter(|candidate| !candidate.order.1.is_egress).map(|candidate| candidate.name.clone()).collect();
    // The device of an Ingress has its name from the control plane: a Service has it only while that has no address.
    for candidate in all.iter_mut().filter(|candidate| candidate.order.1.is_egress && devices.contains(&candidate.name)) {
        candidate.order.0 = true;
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn served(name: &str, is_egress: bool, (namespace, created): (&str, i64), addresses: &[&str]) -> ServedName {
        let rank = RecordRank { is_egress, created: Timestamp::from_second(created).ok(), object: (namespace.into(), created.to_string()) };
        let addresses = addresses.iter().map(|ip| ip.parse().expect("an address")).collect();
        ServedName { name: name.to_owned(), rank, addresses, is_acknowledged: true }
    }

    fn of(name: &str, ip: &str) -> String {
        format!(r#"{{"version":"v1alpha1","ip4":{{"{name}":["{ip}"]}}}}"#)
    }

    /// Documents of these steps, each after the one before.
    fn document(steps: &[&[ServedName]]) -> String {
        let mut document = String::new();
        for step in steps {
            let before = Records::parse(document.as_bytes()).expect("a document");
            document = records(step.to_vec(), &before).document;
        }
        document
    }

    #[test]
    fn shared_name_stays_with_the_object_that_has_it_and_is_no_prize_of_age() {
        let (old, new) = (served("db.t.ts.net", true, ("a", 1), &["10.0.0.1"]), served("DB.t.ts.net.", true, ("b", 2), &["10.0.0.2"]));
        let gone = |of: &ServedName| ServedName { addresses: Vec::new(), ..of.clone() };
        let pending = |of: &ServedName| ServedName { is_acknowledged: false, ..of.clone() };
        let ingress = served("db.t.ts.net", false, ("c", 3), &["10.0.0.3"]);
        let both = [new.clone(), old.clone()];
        let young = [new.clone()];
        for (steps, ip, why) in [
            (&[&both[..]][..], "10.0.0.1", "the oldest, if none has it"),
            (&[&young, &both], "10.0.0.2", "an older one takes no record"),
            (&[&[new.clone(), pending(&old)]], "10.0.0.2", "one that is not served yet"),
            (&[&both, &[new.clone(), gone(&old)]], "10.0.0.2", "the next one with an address"),
            (&[&both, &[new.clone(), pending(&old)]], "10.0.0.1", "the config still has the name"),
            (&[&both, &young], "10.0.0.2", "the other one serves another name now"),
            (&[&young, &[new.clone(), ingress.clone()]], "10.0.0.3", "its device has the name"),
            (
                &[std::slice::from_ref(&ingress), &[gone(&ingress), new.clone()], &[ingress.clone(), new.clone()]],
                "10.0.0.3",
                "after a restart",
            ),
        ] {
            assert_eq!(document(steps), of("db.t.ts.net", ip), "{why}");
        }
    }

    #[test]
    fn invalid_unreachable_and_unconfirmed_names_have_no_record() {
        let unconfirmed = ServedName { is_acknowledged: false, ..served("b.ts.net", true, ("a", 1), &["10.0.0.1"]) };
        let all = [served("db", true, ("a", 1), &["10.0.0.1"]), served("a.ts.net", true, ("a", 1), &[]), unconfirmed];
        assert_eq!(document(&[&all]), r#"{"version":"v1alpha1","ip4":{}}"#);
    }

    /// Names of one namespace, each of nearly the maximum length.
    fn many(namespace: &str, first: char, count: i64) -> Vec<ServedName> {
        let label = "x".repeat(50);
        let name = |at: i64| format!("{first}{at:05}{label}.{label}.{label}.{label}.ts.net");
        (0..count).map(|at| served(&name(at), true, (namespace, at), &["10.0.0.1"])).collect()
    }

    #[test]
    fn namespace_that_fills_the_document_leaves_room_for_later_ones() {
        let greedy = many("greedy", 'a', 4_000);
        let first = records(greedy.clone(), &Records::default());
        let before = Records::parse(first.document.as_bytes()).expect("a document");
        assert!(first.document.len() <= MAX_WRITTEN && first.omitted["greedy"] == 4_000 - before.len(), "{:?}", first.omitted);
        let mut later = served("z.t.ts.net", true, ("late", 9_999), &["10.0.0.2"]);
        let both = records(greedy.iter().cloned().chain([later.clone()]), &before);
        assert!(both.document.contains(r#""z.t.ts.net":["10.0.0.2"]"#), "the last by name and by age");
        assert_eq!(both.omitted, first.omitted, "existing records stay");
        later.name = greedy[3_999].name.clone();
        let same = records(greedy.into_iter().chain([later]), &before);
        assert!(same.document.contains("10.0.0.2"), "a name that its first object has no room for is free for others");
        assert_eq!(same.omitted["greedy"], first.omitted["greedy"] - 1);
    }

    #[test]
    fn record_with_addresses_of_several_namespaces_counts_once() {
        let full = many("a", 'a', 4_000);
        let mut first = served("z.t.ts.net", true, ("a", 1), &["10.0.0.1"]);
        let second = served("z.t.ts.net", true, ("b", 2), &["10.0.0.2"]);
        let shared = ServedName { addresses: [&first.addresses[..], &second.addresses].concat(), ..first.clone() };
        let written = records(full.iter().cloned().chain([shared]), &Records::default()).document;
        let before = Records::parse(written.as_bytes()).expect("a document");
        first.addresses.extend((1..20).map(|last| std::net::IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last])));
        let after = records(full.into_iter().chain([first, second]), &before);
        assert!(after.document.contains(r#""z.t.ts.net":["10.0.0.2"]"#), "the first one has grown beyond the share of its namespace");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Whatever the others do, a namespace with few names has all of them, and a pass without changes changes nothing.
        #[test]
        fn small_namespace_has_all_its_names(others in prop::collection::vec((0..3_usize, 0..1_500_i64), 0..4), own in 1..5_i64) {
            let mut all: Vec<_> =
                others.iter().flat_map(|(at, count)| many(["a", "b", "c"][*at], ['a', 'b', 'c'][*at], *count)).collect();
            let first = records(all.clone(), &Records::default());
            all.extend(many("small", 'z', own));
            let before = Records::parse(first.document.as_bytes()).expect("a document");
            let second = records(all.clone(), &before);
            prop_assert!(second.document.len() <= MAX_WRITTEN);
            prop_assert!(!second.omitted.contains_key("small"));
            let before = Records::parse(second.document.as_bytes()).expect("a document");
            prop_assert_eq!(records(all, &before), second);
        }
    }
}
