//! Tailyard and what a user would otherwise run, each in the very same Pod on the very same stage.
//!
//! The stage is real: kube-apiserver on etcd with RBAC, headscale, a node of the tailnet that answers, a client. A Pod is a machine of
//! namespaces with the environment, the config files, the state Secret and the service account that the Tailscale operator gives to a
//! proxy of a `ProxyGroup`; only the program in it differs. Needs root and what `tests/servers/build` makes.

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
