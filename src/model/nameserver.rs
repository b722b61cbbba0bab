//! Nameserver of a `DNSConfig`: its records, parsed from a `ConfigMap`, and the answers to queries. Performs no I/O.

pub mod answer;
pub mod name;
pub mod records;
