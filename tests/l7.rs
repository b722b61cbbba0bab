//! The terminator on real sockets: clients as tailscaled forwards them, backends of every protocol.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "l7/backend.rs"]
mod backend;
#[path = "l7/balance.rs"]
mod balance;
#[path = "l7/changes.rs"]
mod changes;
#[path = "l7/front.rs"]
mod front;
#[path = "l7/limits.rs"]
mod limits;
#[path = "l7/protocols.rs"]
mod protocols;
