//! Supervision of tailscaled: command lines, config file, login, and the state machine.
//!
//! Pure: decisions are values that `proxy::tailnet::daemon` executes.

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
