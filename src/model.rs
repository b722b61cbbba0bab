//! PURE: decisions as values. No tokio, no clock, no environment, no files, no sockets, no logging.

pub mod backoff;
pub mod config;
pub mod drain;
pub mod eval;
pub mod firewall;
pub mod flow;
pub mod health;
pub mod iptables;
pub mod load;
pub mod net;
pub mod netmap;
pub mod nft;
pub mod notify;
pub mod plan;
pub mod preshutdown;
pub mod reset;
pub mod resolve;
pub mod ruleset;
pub mod segment;
pub mod settings;
pub mod source;
pub mod state;
pub mod status;
pub mod supervise;
pub mod surgery;
pub mod world;
