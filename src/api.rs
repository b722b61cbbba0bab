//! WIRE: the formats that others read and write. Types and their serde; no logic, no IO.

pub mod egress;
pub mod ingress;
pub mod localapi;
pub mod names;
pub mod netmap;
pub mod state;
