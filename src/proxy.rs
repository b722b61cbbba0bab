//! DATA PLANE: the tasks of `tailyard proxy`.

pub mod configs;
pub mod daemon;
pub mod http;
pub mod observe;
pub mod program;
pub mod report;
pub mod resolve;
pub mod shutdown;
