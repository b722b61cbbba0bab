//! Connections through the replica: which of them a change ends, how they are reset, and how a replica drains.

pub mod cleanup;
pub mod drain;
pub mod flow;
pub mod prestop_hook;
pub mod tcp_reset;
pub mod tcp_segment;
