//! WIRE: the formats that others read and write. Types and their serde; no logic, no IO.

pub mod condition;
pub mod connector;
pub mod control;
pub mod crd;
pub mod dnsconfig;
pub mod egress;
pub mod failover;
pub mod ingress;
pub mod issuance;
pub mod localapi;
pub mod names;
pub mod netmap;
pub mod proxyclass;
pub mod proxygroup;
pub mod proxygrouppolicy;
pub mod replica;
pub mod routes;
mod schema;
pub mod serve;
pub mod siblings;
pub mod state;
pub mod tailnet;
pub mod targets;
pub mod vip;
pub mod whois;

/// Condition of an omitted field.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
