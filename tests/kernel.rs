//! The kernel tier: what our rules do to real packets, in namespaces that the tests make and that vanish with them.
//!
//! Needs root, or `unshare -Urnm`; nft, iptables (both makes) and iproute2. Whatever is missing fails the tests.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test's helpers fail the test; figures are printed"
)]

#[path = "kernel/entries.rs"]
mod entries;
#[path = "kernel/firewall.rs"]
mod firewall;
#[path = "kernel/flows.rs"]
mod flows;
#[path = "kernel/lab.rs"]
mod lab;
#[path = "kernel/packets.rs"]
mod packets;
#[path = "kernel/repair.rs"]
mod repair;
