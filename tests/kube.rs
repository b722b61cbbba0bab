//! Configs and state against a real kube-apiserver and etcd, which come and go.

#[path = "support/cluster.rs"]
mod cluster;
#[path = "kube/configs.rs"]
mod configs;
#[path = "kube/scripted.rs"]
mod scripted;
#[path = "kube/state.rs"]
mod state;
