//! Configs and state with a real kube-apiserver and etcd that stop and restart.

mod configs;
mod endpoints;
mod grace_period;
mod kinds;
mod lease;
mod manifests;
mod scripted;
mod standby;
mod state;
