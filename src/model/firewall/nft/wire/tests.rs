use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::model::firewall::eval::tests::rulesets;
use crate::model::firewall::nft::dump::{DumpedElements, drift, traffic};
use crate::model::firewall::nft::element::{edits, elements};
use crate::model::firewall::ruleset::{Ruleset, diff};

/// The messages of a batch: type, and for element messages the set's name and the decoded elements.
fn read_back(batch: &Batch) -> Vec<(u16, String, Vec<Counted>)> {
    let mut rest = &batch.bytes[..];
    let mut list = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_ne_bytes(rest[0..4].try_into().expect("four bytes")) as usize;
        let (kind, body) = (u16::from_ne_bytes([rest[4], rest[5]]), &rest[20..length]);
        let name =
            Attributes(body).find(|(kind, _)| *kind == 2).map(|(_, name)| String::from_utf8_lossy(&name[..name.len() - 1]).into_owned());
        let found = Attributes(body).filter(|(kind, _)| *kind == 3).flat_map(|(_, list)| Attributes(list).map(|(_, one)| counted(one)));
        list.push((kind, name.unwrap_or_default(), found.collect()));
        rest = &rest[length.next_multiple_of(4)..];
    }
    list
}

proptest! {
    #[test]
    fn a_batch_says_what_the_edits_say(before in rulesets(), after in rulesets()) {
        let edits = edits(&before, &diff(&before, &after), &after);
        let messages = read_back(&batch(&edits, 7));
        prop_assert_eq!(messages.first().map(|m| m.0), Some(BATCH_BEGIN));
        prop_assert_eq!(messages.last().map(|m| m.0), Some(BATCH_END));
        for (kind, list) in [(DELETE_ELEMENT, &edits.delete), (NEW_ELEMENT, &edits.add)] {
            let said = messages.iter().filter(|m| m.0 == SUBSYSTEM << 8 | kind).flat_map(|m| m.2.iter().map(|e| (m.1.as_str(), e.key.clone(), e.value.clone())));
            let wanted = list.iter().map(|e| (e.set.name(), key(e), if kind == NEW_ELEMENT { value(e) } else { Vec::new() }));
            prop_assert_eq!(said.collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = messages(&bytes);
    }

    /// Bytes that begin like an answer get further into the decoder than random ones.
    #[test]
    fn a_mutilated_answer_is_decoded_or_refused(ruleset in rulesets(), place in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let edits = edits(&Ruleset::empty(ruleset.interface.clone()), &diff(&Ruleset::empty(ruleset.interface.clone()), &ruleset), &ruleset);
        let mut bytes = batch(&edits, 1).bytes;
        let place = place.index(bytes.len());
        bytes[place] = byte;
        let _ = messages(&bytes);
        bytes.truncate(place);
        let _ = messages(&bytes);
    }

    #[test]
    fn a_kernel_that_holds_the_elements_has_not_drifted(ruleset in rulesets(), pick in any::<prop::sample::Index>()) {
        let mut held = DumpedElements::new();
        for element in elements(&ruleset) {
            held.entry(element.set).or_default().push(Counted { key: key(&element), value: value(&element), packets: 1, bytes: 60 });
        }
        prop_assert_eq!(drift(&ruleset, &held), None);
        let counted: BTreeSet<_> = traffic(&held).into_keys().collect();
        prop_assert_eq!(counted, ruleset.ports.keys().copied().collect());
        if !held.is_empty() {
            let set = *held.keys().nth(pick.index(held.len())).expect("a set");
            held.get_mut(&set).expect("its elements").pop();
            prop_assert!(drift(&ruleset, &held).is_some_and(|what| what.contains("missing")));
        }
    }
}

#[test]
fn long_lists_are_parted_into_messages_that_fit() {
    let port = |i| PortKey { proto: Proto::Udp, port: Port::new(i).expect("not zero") };
    let ports = (1..=10_000).map(|i| (port(i), BTreeSet::from(["[fd7a::1]:53".parse().expect("a target")]))).collect();
    let ruleset = Ruleset { ports, ..Ruleset::empty(crate::model::base::net::InterfaceName::tailscale0()) };
    let batch = batch(&Edits { delete: Vec::new(), add: elements(&ruleset).into_iter().collect() }, 1);
    let messages = read_back(&batch);
    assert!(messages.len() > 20, "{}", messages.len());
    assert_eq!(messages.iter().map(|m| m.2.len()).sum::<usize>(), 20_000);
    assert_eq!(batch.last, u32::try_from(messages.len()).expect("few") - 1);
}

#[test]
fn the_kernel_is_answered_in_its_own_byte_order() {
    let element = Element {
        set: Set::PortSlot(crate::model::base::net::Family::V4),
        key: ElementKey::PortSlot(PortKey { proto: Proto::Tcp, port: Port::new(10_042).expect("not zero") }, 3),
        value: Some(Value::Socket("100.64.0.2:5432".parse().expect("a target"))),
    };
    let slot = 3u32.to_ne_bytes();
    assert_eq!(key(&element), [&[6, 0, 0, 0, 0x27, 0x3a, 0, 0][..], &slot].concat());
    assert_eq!(value(&element), [100, 64, 0, 2, 0x15, 0x38, 0, 0]);
}
