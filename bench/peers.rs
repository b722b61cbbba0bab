//! Tailyard and what a user would otherwise run, each in the very same Pod on the very same stage.
//!
//! The stage is real: kube-apiserver on etcd with RBAC, headscale, a node of the tailnet that answers, a client. A Pod is a machine of
//! namespaces with the environment, the config files, the state Secret and the service account that the Tailscale operator gives to a
//! proxy of a `ProxyGroup`; only the program in it differs. Needs root and what `tests/servers/build` makes.

#![allow(dead_code, reason = "each benchmark uses its own part")]

#[path = "../tests/support/cluster.rs"]
mod cluster;
#[path = "../tests/kernel/lab.rs"]
mod lab;
#[path = "../tests/support/tailnet.rs"]
mod support;

pub(crate) mod container;
pub(crate) mod pod;
pub(crate) mod probe;
pub(crate) mod router;
pub(crate) mod stage;
pub(crate) mod system;
