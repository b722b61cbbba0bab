//! DATA PLANE: the tasks of `tailyard proxy`.

pub mod configs;
pub mod daemon;
pub mod firewall;
pub mod http;
pub mod kernel;
pub mod observe;
pub mod program;
pub mod report;
pub mod resolve;
pub mod shutdown;
pub mod surgeon;
