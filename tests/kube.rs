//! Configs and state against a real kube-apiserver and etcd, which come and go.

#[path = "support/cluster.rs"]
mod cluster;
#[path = "kube/configs.rs"]
mod configs;
#[path = "kube/state.rs"]
mod state;
