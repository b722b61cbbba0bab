//! Tailyard and its alternatives, each in the same Pod on the same stage.
//!
//! The stage is real: kube-apiserver on etcd with RBAC, headscale, a target in the tailnet, a client. A Pod is a machine of namespaces with
//! the environment, the config files, the state Secret and the service account that the Tailscale operator provides to a proxy of a
//! `ProxyGroup`; only the program differs. Needs root and the output of `tests/servers/build`.

pub(crate) mod apiserver;
pub(crate) mod connect;
pub(crate) mod faults;
pub(crate) mod footprint;
pub(crate) mod live;
pub(crate) mod names;
pub(crate) mod restart;
pub(crate) mod swap;
pub(crate) mod throughput;

mod container;
mod pod;
mod probe;
mod router;
mod stage;
mod system;
