//! Diagnostics for users: `tailyard status`, `tailyard doctor`, `tailyard migrate` and the load generator.

pub mod doctor;
pub mod load;
pub mod migration;
pub mod overview;
