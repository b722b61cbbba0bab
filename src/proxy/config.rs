//! The configs of services: followed by watch and by mount, and the replica's inputs.

pub mod follow;
pub mod inputs;
