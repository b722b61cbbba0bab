//! What users' objects request, which group each is assigned to, and what its namespace may have.

pub mod age;
pub mod annotations;
pub mod assignment;
pub mod budget;
pub mod cluster_networks;
pub mod fault_list;
pub mod ineffective;
pub mod operator_device;
pub mod requests;
pub mod tenancy;
