//! PLUMBING that knows nothing of the domain.

pub mod accept;
pub mod admin;
pub mod command;
pub mod https;
pub mod init;
pub mod metrics;
pub mod nfnetlink;
pub mod queue;
pub mod resources;
pub mod snapshot;
pub mod tasks;
pub mod telemetry;
pub mod timer;
pub mod watch_ext;
