//! The replica's state Secret: its writer, the statuses reported in it, and the values read from it at start.

pub mod start;
pub mod writer;
