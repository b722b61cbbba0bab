//! The reconciler's decisions: from observed objects to desired objects and conditions.
//!
//! Layers, of which each names the ones below it only (`tests/pure/layers.rs`):
//!
//! | layer | decides |
//! |---|---|
//! | [`kinds`] | what each kind that a user writes serves and reports |
//! | [`ingress`] | names in the tailnet |
//! | [`egress`] | egress Services: cluster names of tailnet targets |
//! | [`workload`] | the provisioner: objects, replicas, devices and keys of every workload |
//! | [`policy`] | requests of users' objects, the group of each, and tenancy |
//! | [`key`] | identity of a workload |

pub mod egress;
pub mod ingress;
pub mod key;
pub mod kinds;
pub mod policy;
pub mod workload;
