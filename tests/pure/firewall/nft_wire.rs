use std::collections::BTreeSet;

use proptest::prelude::*;

use tailyard::model::base::net::{Family, InterfaceName, Port, PortKey, Proto};
use tailyard::model::firewall::netlink::{NETFILTER_HEADER, find};
use tailyard::model::firewall::nft::dump::{DumpedElements, drift, traffic};
use tailyard::model::firewall::nft::element::{Edits, Element, ElementKey, Set, Value, edits, elements};
use tailyard::model::firewall::nft::wire::{Batch, Counted, Message, batch, decode, key, value};
use tailyard::model::firewall::ruleset::{Ruleset, diff};
use tailyard::runtime::nfnetlink::{Answer, messages};

use super::oracle::rulesets;

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_ELEMENT: u16 = 0x0a0c;
const DELETE_ELEMENT: u16 = 0x0a0e;
const LIST_SET: u16 = 2;

/// Decodes all messages in these bytes.
fn decode_all(bytes: &[u8]) {
    for message in messages(bytes).flatten() {
        let _ = decode(message.message_type(), message.port_number(), message.payload());
    }
}

/// Messages of a batch: type, and for element messages the set's name and the decoded elements.
fn read_back(batch: &Batch) -> Vec<(u16, String, Vec<Counted>)> {
    let read = |message: std::io::Result<Answer<'_>>| {
        let message = message.expect("whole");
        let name = find(&message.payload()[NETFILTER_HEADER..], LIST_SET)
            .map(|name| String::from_utf8_lossy(&name[..name.len() - 1]).into_owned());
        // A deletion encodes its elements as an addition does.
        let found = match decode(NEW_ELEMENT, 0, message.payload()) {
            Some(Message::Elements(found)) => found,
            _ => Vec::new(),
        };
        (message.message_type(), name.unwrap_or_default(), found)
    };
    messages(&batch.bytes).map(read).collect()
}

proptest! {
    #[test]
    fn batch_encodes_all_edits(before in rulesets(), after in rulesets()) {
        let edits = edits(&before, &diff(&before, &after), &after);
        let messages = read_back(&batch(&edits, 7));
        prop_assert_eq!(messages.first().map(|m| m.0), Some(BATCH_BEGIN));
        prop_assert_eq!(messages.last().map(|m| m.0), Some(BATCH_END));
        for (kind, list) in [(DELETE_ELEMENT, &edits.delete), (NEW_ELEMENT, &edits.add)] {
            let sent = messages.iter().filter(|m| m.0 == kind).flat_map(|m| m.2.iter().map(|e| (m.1.as_str(), e.key.clone(), e.value.clone())));
            let wanted = list.iter().map(|e| (e.set.name(), key(e), if kind == NEW_ELEMENT { value(e) } else { Vec::new() }));
            prop_assert_eq!(sent.collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
        }
    }

    #[test]
    fn random_bytes_are_decoded_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        decode_all(&bytes);
    }

    /// Bytes that begin like a reply get further into the decoder than random ones.
    #[test]
    fn corrupt_replies_are_decoded_or_rejected(ruleset in rulesets(), place in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let edits = edits(&Ruleset::empty(ruleset.interface.clone()), &diff(&Ruleset::empty(ruleset.interface.clone()), &ruleset), &ruleset);
        let mut bytes = batch(&edits, 1).bytes;
        let place = place.index(bytes.len());
        bytes[place] = byte;
        decode_all(&bytes);
        bytes.truncate(place);
        decode_all(&bytes);
    }

    #[test]
    fn drift_is_none_for_equal_elements_and_found_for_missing_ones(ruleset in rulesets(), pick in any::<prop::sample::Index>()) {
        let mut stored = DumpedElements::new();
        for element in elements(&ruleset) {
            stored.entry(element.set).or_default().push(Counted { key: key(&element), value: value(&element), packets: 1, bytes: 60 });
        }
        prop_assert_eq!(drift(&ruleset, &stored), None);
        let counted: BTreeSet<_> = traffic(&stored).into_keys().collect();
        prop_assert_eq!(counted, ruleset.ports.keys().copied().collect());
        if !stored.is_empty() {
            let set = *stored.keys().nth(pick.index(stored.len())).expect("a set");
            stored.get_mut(&set).expect("its elements").pop();
            prop_assert!(drift(&ruleset, &stored).is_some_and(|what| what.contains("missing")));
        }
    }
}

#[test]
fn long_element_lists_are_split_into_messages() {
    let port = |i| PortKey { proto: Proto::Udp, port: Port::new(i).expect("not zero") };
    let ports = (1..=10_000).map(|i| (port(i), BTreeSet::from(["[fd7a::1]:53".parse().expect("a target")]))).collect();
    let ruleset = Ruleset { ports, ..Ruleset::empty(InterfaceName::tailscale0()) };
    let batch = batch(&Edits { delete: Vec::new(), add: elements(&ruleset).into_iter().collect() }, 1);
    let messages = read_back(&batch);
    assert!(messages.len() > 20, "{}", messages.len());
    assert_eq!(messages.iter().map(|m| m.2.len()).sum::<usize>(), 20_000);
    assert_eq!(batch.last, u32::try_from(messages.len()).expect("few") - 1);
}

#[test]
fn keys_and_values_use_kernel_byte_order() {
    let element = Element {
        set: Set::PortSlot(Family::V4),
        key: ElementKey::PortSlot(PortKey { proto: Proto::Tcp, port: Port::new(10_042).expect("not zero") }, 3),
        value: Some(Value::Socket("100.64.0.2:5432".parse().expect("a target"))),
    };
    let slot = 3u32.to_ne_bytes();
    assert_eq!(key(&element), [&[6, 0, 0, 0, 0x27, 0x3a, 0, 0][..], &slot].concat());
    assert_eq!(value(&element), [100, 64, 0, 2, 0x15, 0x38, 0, 0]);
}
