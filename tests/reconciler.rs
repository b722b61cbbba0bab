//! The reconciler, as the compiled binary under exactly the rights of config/rbac, on a real kube-apiserver and etcd. There is
//! no kubelet: the tests play it, by making Pods and writing what replicas would say. The control plane is a stand-in.

#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests are outside of test functions")]

#[path = "support/cluster.rs"]
#[allow(dead_code, reason = "the kube tier's; this tier needs a part of it")]
mod cluster;
#[path = "reconciler/groups.rs"]
mod groups;
#[path = "support/hosted.rs"]
#[allow(dead_code, reason = "the control tier's; this tier needs a part of it")]
mod hosted;
#[path = "reconciler/leading.rs"]
mod leading;
#[path = "reconciler/services.rs"]
mod services;
#[path = "reconciler/stage.rs"]
mod stage;
