//! Any bytes as the kernel's answers and notices of nftables: no panic, and what is read can be compared and added up.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailyard::model::base::net::InterfaceName;
use tailyard::model::firewall::nft::element::Set;
use tailyard::model::firewall::nft::dump::{DumpedElements, drift, traffic};
use tailyard::model::firewall::nft::wire::{Message, messages};
use tailyard::model::firewall::ruleset::Ruleset;

fuzz_target!(|data: &[u8]| {
    let Some((which, data)) = data.split_first() else { return };
    let Some(set) = Set::ALL.get(usize::from(*which) % Set::ALL.len()) else { return };
    let mut dumped = DumpedElements::new();
    for (_, message) in messages(data).unwrap_or_default() {
        if let Message::Elements(elements) = message {
            dumped.entry(*set).or_default().extend(elements);
        }
    }
    let _ = drift(&Ruleset::empty(InterfaceName::tailscale0()), &dumped);
    let _ = traffic(&dumped);
});
