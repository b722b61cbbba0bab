//! The replica's state Secret: what is written, what is reported in it, and what a start reads of it.

pub mod start;
pub mod writer;
