//! Ingress tasks: the HTTP front end, what tailscaled advertises and serves, and their start.

pub mod advertise;
pub mod drain;
pub mod l7;
pub mod serve_config_writer;
pub mod start;
