//! Dumped elements of our table: comparison with the ruleset, and traffic counters.

use std::collections::BTreeMap;

use super::element::{Element, Set, elements};
use super::wire::{Counted, key, match_port, value};
use crate::model::firewall::Traffic;
use crate::model::firewall::ruleset::Ruleset;

pub type DumpedElements = BTreeMap<Set, Vec<Counted>>;

/// First difference between ruleset and dumped sets; `None` if equal.
pub fn drift(ruleset: &Ruleset, dumped: &DumpedElements) -> Option<String> {
    let mut wanted: BTreeMap<Set, BTreeMap<Vec<u8>, Element>> = BTreeMap::new();
    for element in elements(ruleset) {
        wanted.entry(element.set).or_default().insert(key(&element), element);
    }
    Set::ALL.into_iter().find_map(|set| {
        let mut wanted = wanted.remove(&set).unwrap_or_default();
        for found in dumped.get(&set).into_iter().flatten() {
            match wanted.remove(&found.key) {
                None => return Some(format!("{}: an element that is not ours", set.name())),
                Some(element) if value(&element) != found.value => return Some(format!("{}: {element} leads elsewhere", set.name())),
                Some(_) => {}
            }
        }
        wanted.into_values().next().map(|element| format!("{}: {element} is missing", set.name()))
    })
}

pub fn counting() -> impl Iterator<Item = Set> {
    Set::ALL.into_iter().filter(|set| set.counts())
}

/// Counters by match port: flows from the maps, which match first packets; packets and bytes from the traffic sets.
pub fn traffic(dumped: &DumpedElements) -> Traffic {
    let mut traffic = Traffic::new();
    for (set, elements) in dumped {
        for element in elements {
            let Some(port) = match_port(*set, &element.key) else { continue };
            let counters = traffic.entry(port).or_default();
            if let Set::Traffic(_) = set {
                (counters.packets, counters.bytes) = (element.packets, element.bytes);
            } else {
                counters.flows = counters.flows.saturating_add(element.packets);
            }
        }
    }
    traffic
}
