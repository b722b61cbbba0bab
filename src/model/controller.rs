//! The reconciler: from observed objects to desired objects and conditions, one module for each kind, and match ports.

pub mod annotations;
pub mod control_plane;
pub mod device_index;
pub mod finalizers;
pub mod group_assignment;
pub mod identity;
pub mod ingress_spec;
pub mod match_ports;
pub mod objects;
pub mod proxyclass;
pub mod proxygroup;
pub mod standalone;
pub mod tailnet;
pub mod tenancy;
