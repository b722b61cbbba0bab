//! The reconciler, as the compiled binary under exactly the rights of config/rbac, on a real kube-apiserver and etcd. There is
//! no kubelet: the tests play it, by making Pods and writing what replicas would say. The control plane is a stand-in.

#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests are outside of test functions")]

#[path = "reconciler/changes.rs"]
mod changes;
#[path = "support/cluster.rs"]
#[allow(dead_code, reason = "the kube tier's; this tier needs a part of it")]
mod cluster;
#[path = "reconciler/groups.rs"]
mod groups;
#[path = "support/hosted.rs"]
#[allow(dead_code, reason = "the control tier's; this tier needs a part of it")]
mod hosted;
#[path = "reconciler/lacking.rs"]
mod lacking;
#[path = "reconciler/large.rs"]
mod large;
#[path = "reconciler/leading.rs"]
mod leading;
#[path = "reconciler/looking.rs"]
mod looking;
#[path = "reconciler/names.rs"]
mod names;
#[path = "reconciler/planes.rs"]
mod planes;
#[path = "reconciler/publish.rs"]
mod publish;
#[path = "reconciler/publisher.rs"]
mod publisher;
#[path = "reconciler/services.rs"]
mod services;
#[path = "reconciler/stage.rs"]
#[allow(dead_code, reason = "some of it is for the benchmark")]
mod stage;
#[path = "reconciler/takeover.rs"]
mod takeover;
