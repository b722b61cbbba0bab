//! The TLS terminator in the test's process, and its backends, on loopback sockets.

pub mod backend;
pub mod frames;
pub mod front;
pub mod refusing;
pub mod scripted;
