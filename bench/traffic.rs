//! Traffic of the benchmarks: connections, datagrams and loads, with their outcomes.

pub(crate) mod copy;
pub(crate) mod held_flows;
pub(crate) mod outcome;
pub(crate) mod route;
