//! Configs and state against a real kube-apiserver and etcd, which come and go.

#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests are outside of test functions")]

#[path = "support/cluster.rs"]
#[allow(dead_code, reason = "the reconciler tier needs more of it")]
mod cluster;
#[path = "kube/configs.rs"]
mod configs;
#[path = "support/definitions.rs"]
mod definitions;
#[path = "kube/endpoints.rs"]
mod endpoints;
#[path = "kube/kinds.rs"]
mod kinds;
#[path = "kube/lease.rs"]
mod lease;
#[path = "kube/scripted.rs"]
mod scripted;
#[path = "kube/state.rs"]
mod state;
