//! Ingress tasks: the HTTP front end, tailscaled's advertised services and serve config, and their start.

pub mod advertise;
pub mod drain;
pub mod serve_config_writer;
pub mod services;
pub mod start;
