//! `tailyard demo`: a whole group on one machine, in network namespaces of its own, under load.
//!
//! The proxies are the real ones, child processes of the same executable; only the tailnet is a file and three targets
//! on a switch. The parts (topology, targets, load) also serve the benchmarks. Never touches the machine's own network.

pub mod flows;
pub mod load;
pub mod target;
pub mod topology;
pub mod wire;
