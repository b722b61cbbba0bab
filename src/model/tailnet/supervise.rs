//! How tailscaled is kept running: what it is started with, and what is done about each thing that happens to it.
//!
//! Nothing here starts, stops or asks anything: decisions are values, and `proxy::tailnet::daemon` carries them out.

pub mod actions;
pub mod argv;
pub mod auth;
pub mod conffile;
pub mod login;
pub mod machine;
pub mod settings;
pub mod state_backup;

pub use actions::{At, BusState, DaemonAction, StateWrite};
pub use auth::{Auth, AuthEvent};
pub use machine::{DaemonEvent, DaemonPhase, Machine};
pub use settings::{DaemonSettings, Login, Secret, StateStore, TwoStep};
