//! Diagnostics for users: `tailyard status`, `tailyard doctor` and the load generator.

pub mod doctor;
pub mod load;
pub mod overview;
