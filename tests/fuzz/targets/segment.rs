//! Arbitrary bytes from a raw socket: no panic, and no more sequence numbers than bytes (a FIN has one of its own).
#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use libfuzzer_sys::fuzz_target;
use tailyard::model::flows::tcp_segment::ObservedSegment;

fuzz_target!(|data: &[u8]| {
    let heard = [ObservedSegment::in_ipv4(data), ObservedSegment::in_tcp(data, IpAddr::V4(Ipv4Addr::LOCALHOST))];
    assert!(heard.into_iter().flatten().all(|heard| heard.length as usize <= data.len() + 1));
});
