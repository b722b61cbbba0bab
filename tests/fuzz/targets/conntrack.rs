//! Arbitrary bytes as the attributes of conntrack messages: no panic, an unknown attribute changes nothing, and counters add up.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailyard::edge::conntrack::{Pressure, wire};

fuzz_target!(|data: &[u8]| {
    // With an unknown attribute in front the flow is the same.
    let behind = [&[4, 0, 0xff, 0x3f], data].concat();
    assert_eq!(wire::parse_flow(&behind), wire::parse_flow(data));
    assert_eq!(wire::parse_state(&behind), wire::parse_state(data));
    let mut once = Pressure::default();
    wire::parse_stats(data, &mut once);
    wire::parse_stats_cpu(data, &mut once);
    let mut twice = once;
    wire::parse_stats(data, &mut twice);
    wire::parse_stats_cpu(data, &mut twice);
    let sums = (once.insert_failed * 2, once.dropped * 2, once.evicted * 2);
    assert_eq!((twice.insert_failed, twice.dropped, twice.evicted), sums);
    assert_eq!((twice.entries, twice.limit), (once.entries, once.limit));
});
