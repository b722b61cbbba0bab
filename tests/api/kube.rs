//! Configs and state against a real kube-apiserver and etcd, which come and go.

mod configs;
mod endpoints;
mod kinds;
mod lease;
mod scripted;
mod state;
