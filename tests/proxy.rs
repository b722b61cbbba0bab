//! The whole tier: the compiled `tailyard proxy` in a lab of namespaces, with a static netmap in place of tailscaled.
//!
//! Each fault of docs/failures.md that needs no API server and no tailscaled has its test here. Needs what the kernel tier needs.

#![allow(clippy::expect_used, clippy::panic, clippy::print_stderr, reason = "a test's helpers fail the test, and show the log")]

#[path = "proxy/endpoints.rs"]
mod endpoints;
#[path = "kernel/entries.rs"]
mod entries;
#[path = "proxy/faults.rs"]
mod faults;
#[path = "kernel/lab.rs"]
#[allow(dead_code, reason = "the lab is the kernel tier's; this tier needs a part of it")]
mod lab;
#[path = "proxy/leaving.rs"]
mod leaving;
#[path = "proxy/replica.rs"]
mod replica;
#[path = "proxy/swaps.rs"]
mod swaps;
