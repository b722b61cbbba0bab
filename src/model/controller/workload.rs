//! The provisioner: objects, replicas, devices and auth keys of a workload, whatever its kind.

pub mod actions;
pub mod auth_keys;
pub mod control_plane;
pub mod device_claim;
pub mod device_index;
pub mod device_records;
pub mod event_schedule;
pub mod finalizers;
pub mod identity;
pub mod ingress_summary;
pub mod match_ports;
pub mod naming;
pub mod objects;
pub mod observed;
pub mod pace;
pub mod part;
pub mod pass;
pub mod pod_fault;
pub mod provision;
pub mod proxy_state;
pub mod readiness;
pub mod replicas;
pub mod role;
pub mod rollout;
pub(crate) mod route_overlaps;
pub mod secret_name;
pub mod service_conditions;
pub mod settings;
#[cfg(test)]
pub(crate) mod simulation;
pub mod spec;
pub mod standby;
pub mod static_endpoints;
pub mod target_inputs;
pub mod target_rules;
pub mod vip_service;
