//! Arbitrary bytes as the kernel's replies and notifications of nftables: no panic, and decoded values can be compared and added.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailyard::model::base::net::InterfaceName;
use tailyard::model::firewall::nft::dump::{DumpedElements, drift, traffic};
use tailyard::model::firewall::nft::element::Set;
use tailyard::model::firewall::nft::wire::{Message, decode};
use tailyard::model::firewall::ruleset::Ruleset;
use tailyard::runtime::nfnetlink::messages;

fuzz_target!(|data: &[u8]| {
    let Some((which, data)) = data.split_first() else { return };
    let Some(set) = Set::ALL.get(usize::from(*which) % Set::ALL.len()) else { return };
    let mut dumped = DumpedElements::new();
    for message in messages(data).flatten() {
        let decoded = decode(message.message_type(), message.port_number(), message.payload());
        if let Some(Message::Elements(elements)) = decoded {
            dumped.entry(*set).or_default().extend(elements);
        }
    }
    let _ = drift(&Ruleset::empty(InterfaceName::tailscale0()), &dumped);
    let _ = traffic(&dumped);
});
