use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use proptest::prelude::*;

use kit::ruleset_oracle::{FlowVerdict, Packet, SourceAddress, evaluate};
use tailyard::model::base::net::{Family, InterfaceName, Port, PortKey, Proto};
use tailyard::model::base::small_set::SortedSet;
use tailyard::model::firewall::nft::element::{Edits, Element, ElementKey, PacketSide, Set, Value, edits, elements};
use tailyard::model::firewall::nft::{delta, operations, table};
use tailyard::model::firewall::ruleset::{Ruleset, diff};

use super::oracle::{packets, rulesets};

/// Elements of all sets, by set and key.
fn index(elements: impl IntoIterator<Item = Element>) -> BTreeMap<(Set, ElementKey), Option<Value>> {
    elements.into_iter().map(|element| ((element.set, element.key), element.value)).collect()
}

/// Static rules, written by hand, over looked-up elements: a second implementation of the table that shares no code with the first.
fn walk(interface: &InterfaceName, stored: &BTreeMap<(Set, ElementKey), Option<Value>>, packet: &Packet) -> FlowVerdict {
    let family = Family::of(packet.dst);
    let key = PortKey { proto: packet.proto, port: packet.port };
    let has = |set, key| stored.contains_key(&(set, key));
    let source = match stored.get(&(Set::Source(family), ElementKey::Interface(interface.clone()))) {
        Some(Some(Value::Address(own))) => SourceAddress::Own(*own),
        _ => SourceAddress::Masquerade,
    };
    let to = |value: &Option<Value>| match value.expect("a value") {
        Value::Address(ip) => SocketAddr::new(ip, packet.port.get()),
        Value::Socket(to) => to,
    };
    let one = |set, key| stored.get(&(set, key)).map(|value| BTreeSet::from([to(value)]));
    let many = |has: bool, set, key: &dyn Fn(u32) -> ElementKey| {
        let slots = || (0..60).map(|slot| stored.get(&(set, key(slot))).map(to)).collect::<Option<BTreeSet<_>>>();
        has.then(slots).flatten()
    };
    let whole = |side, source| {
        let host = ElementKey::Host(packet.dst);
        let slots = |slot| ElementKey::HostSlot(packet.dst, slot);
        one(Set::Host(side, family), host.clone())
            .or_else(|| many(has(Set::HostMany(side, family), host.clone()), Set::HostSlot(side, family), &slots))
            .map(|to| FlowVerdict::Dnat { to, source })
            .unwrap_or(if has(Set::HostNone(side, family), host) { FlowVerdict::Refuse } else { FlowVerdict::Pass })
    };
    let socket = ElementKey::Socket(SocketAddr::new(packet.dst, packet.port.get()));
    if let Some(value) = stored.get(&(Set::Listener(family), socket)).filter(|_| packet.from_tailnet && packet.proto == Proto::Tcp) {
        let to = to(value);
        assert!(has(Set::Listening, ElementKey::Number(Port::new(to.port()).expect("not zero"))), "only translated packets reach {to}");
        return FlowVerdict::Listener(to);
    }
    if packet.from_tailnet {
        return whole(PacketSide::Tailnet, SourceAddress::Masquerade);
    }
    if !packet.to_pod {
        return FlowVerdict::Pass;
    }
    let slots = |slot| ElementKey::PortSlot(key, slot);
    let port = one(Set::Port(family), ElementKey::Port(key))
        .or_else(|| many(has(Set::PortMany, ElementKey::Port(key)), Set::PortSlot(family), &slots));
    match port {
        Some(to) => FlowVerdict::Dnat { to, source },
        None if has(Set::Traffic(key.proto), ElementKey::Number(key.port)) => FlowVerdict::Refuse,
        None if has(Set::Reserved, ElementKey::Port(key)) => FlowVerdict::Pass,
        None => whole(PacketSide::Cluster, source),
    }
}

proptest! {
    #[test]
    fn elements_are_equivalent_to_the_ruleset(ruleset in rulesets(), packets in proptest::collection::vec(packets(), 20)) {
        let stored = index(elements(&ruleset));
        for packet in packets {
            prop_assert_eq!(walk(&ruleset.interface, &stored, &packet), evaluate(&ruleset, &packet), "{:?}", packet);
        }
    }

    #[test]
    fn delta_yields_the_elements_of_the_new_ruleset(before in rulesets(), after in rulesets()) {
        let after = Ruleset { reserved: before.reserved.clone(), ..after };
        let change = diff(&before, &after);
        let Edits { delete, add } = edits(&before, &change, &after);
        let mut stored: BTreeSet<_> = elements(&before).into_iter().collect();
        for element in &delete {
            prop_assert!(stored.remove(element), "deletes what is not there: {}", element);
        }
        // Keys, not elements: the kernel refuses a second value for a key.
        let keys: BTreeSet<_> = stored.iter().map(|element| (element.set, element.key.clone())).collect();
        for element in add {
            prop_assert!(!keys.contains(&(element.set, element.key.clone())), "adds what is there: {}", element);
            stored.insert(element);
        }
        prop_assert!(stored.iter().eq(&elements(&after)));
        prop_assert_eq!(operations(&before, &change, &after) == 0, change.is_empty());
    }

    #[test]
    fn retarget_preserves_traffic_counters(before in rulesets(), after in rulesets()) {
        let targets: SortedSet<SocketAddr> = after.ports.values().flatten().copied().collect();
        let after = Ruleset { ports: before.ports.keys().map(|key| (*key, targets.clone())).collect(), ..before.clone() };
        let Edits { delete, add } = edits(&before, &diff(&before, &after), &after);
        prop_assert!(!delete.iter().chain(&add).any(|element| matches!(element.set, Set::Traffic(_))));
    }

    #[test]
    fn every_element_is_printed_once(ruleset in rulesets()) {
        let text = table(&ruleset);
        let indented = text.lines().filter(|line| line.starts_with("\t\t\t")).count();
        prop_assert_eq!(indented, elements(&ruleset).len());
    }
}

/// `count` match ports from 10000 up, each with one target.
fn large(count: u16) -> Ruleset {
    let key = |i| PortKey { proto: Proto::Tcp, port: Port::new(10_000 + i).expect("not zero") };
    let to = |i: u16| SocketAddr::from(([100, 64, (i >> 8) as u8, (i & 255) as u8], 5432));
    Ruleset { ports: (0..count).map(|i| (key(i), BTreeSet::from([to(i)]))).collect(), ..Ruleset::empty(InterfaceName::tailscale0()) }
}

#[test]
fn operations_per_change_are_independent_of_size() {
    for size in [10, 10_000] {
        let before = large(size);
        let mut after = before.clone();
        let key = *before.ports.keys().next().expect("a port");
        after.ports.insert(key, SortedSet::from(["100.64.9.9:1".parse().expect("a target")]));
        assert_eq!(operations(&before, &diff(&before, &before), &before), 0);
        assert_eq!(operations(&before, &diff(&before, &after), &after), 2, "one deleted, one added");
        after.ports.remove(&key);
        assert_eq!(operations(&before, &diff(&before, &after), &after), 2, "the mapping and its traffic");
    }
}

#[test]
fn delta_is_valid_nft_json() {
    let before = large(1);
    let mut after = before.clone();
    let key = *before.ports.keys().next().expect("a port");
    after.ports.insert(key, SortedSet::from(["[fd7a::2]:53".parse().expect("a target")]));
    let text = serde_json::to_string(&delta(&before, &diff(&before, &after), &after)).expect("plain data");
    let expected = concat!(
        r#"{"nftables":[{"delete":{"element":{"family":"inet","table":"tailyard","name":"port4","elem":[{"concat":["tcp",10000]}]}}},"#,
        r#"{"add":{"element":{"family":"inet","table":"tailyard","name":"port6","#,
        r#""elem":[[{"concat":["tcp",10000]},{"concat":["fd7a::2",53]}]]}}}]}"#
    );
    assert_eq!(text, expected);
}

#[test]
fn targets_share_slots_evenly() {
    let ruleset = large(1);
    let targets: SortedSet<SocketAddr> = (1..=4).map(|i| SocketAddr::from(([100, 64, 0, i], 80))).collect();
    let ruleset = Ruleset { ports: ruleset.ports.keys().map(|key| (*key, targets.clone())).collect(), ..ruleset };
    let mut shares: BTreeMap<Value, usize> = BTreeMap::new();
    for element in elements(&ruleset).into_iter().filter(|element| element.set == Set::PortSlot(Family::V4)) {
        *shares.entry(element.value.expect("a map")).or_default() += 1;
    }
    assert_eq!(shares.into_values().collect::<Vec<_>>(), [15; 4]);
}
