//! Flows through the replica: cleanup after changes, TCP resets, and draining.

pub mod cleanup;
pub mod drain;
pub mod flow;
pub mod prestop_hook;
pub mod tcp_reset;
pub mod tcp_segment;
