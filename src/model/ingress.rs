//! Certificates of virtual hosts, and their orders.

pub mod cert_orders;
pub mod cert_store;
pub mod certificate;
