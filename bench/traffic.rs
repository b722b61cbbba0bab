//! Connections, datagrams and loads that the questions send, and what became of them.

pub(crate) mod copy;
pub(crate) mod held_flows;
pub(crate) mod outcome;
pub(crate) mod route;
