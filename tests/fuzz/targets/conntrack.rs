//! Any bytes as the attributes of connection tracking's messages: no panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailyard::edge::conntrack::{Pressure, wire};

fuzz_target!(|data: &[u8]| {
    let mut pressure = Pressure::default();
    let _ = wire::parse_flow(data);
    wire::parse_stats(data, &mut pressure);
    wire::parse_stats_cpu(data, &mut pressure);
});
