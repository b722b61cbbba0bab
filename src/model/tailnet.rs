//! The replica as a tailnet node: supervision of tailscaled, IPN bus, peer warmup, advertising, readiness and state.

pub mod advertise;
pub mod health;
pub mod ipn_bus;
pub mod peer_warmup;
pub mod recent_peers;
pub mod rejects;
pub mod resolve;
pub mod serve_config;
pub mod state;
pub mod status;
pub mod supervise;
