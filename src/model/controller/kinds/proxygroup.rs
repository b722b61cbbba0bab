//! `ProxyGroup`s: objects in the order of creation, deletion, validation and status.

pub mod provision;
pub mod status;
pub mod unmanaged;
pub mod validate;
