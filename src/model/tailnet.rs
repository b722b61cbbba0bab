//! The replica as a tailnet node: tailscaled's supervision, its IPN bus, the peers that it warms up, what it advertises, its readiness and its state.

pub mod advertise;
pub mod health;
pub mod ipn_bus;
pub mod peer_warmup;
pub mod recent_peers;
pub mod resolve;
pub mod serve_config;
pub mod state;
pub mod status;
pub mod supervise;
