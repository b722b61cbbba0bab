//! Dispatch and settings of the command line.

pub mod proxy;
