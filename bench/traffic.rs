//! Connections, datagrams and loads that the questions send, and what became of them.

pub(crate) mod copy;
pub(crate) mod held;
pub(crate) mod met;
pub(crate) mod way;
