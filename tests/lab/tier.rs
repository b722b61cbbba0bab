//! What tiers on real clusters have in common: the machines, the cluster, the chart on it, a site, a load, and a Pod and
//! somebody in the tailnet to ask from.
//!
//! A tier names what it uses of it at its root, by the names that the parts have for each other.

#![allow(dead_code, unused_imports, unreachable_pub, reason = "each tier uses its own part")]

#[path = "asker.rs"]
pub(crate) mod asker;
#[path = "chart.rs"]
pub(crate) mod chart;
#[path = "kubernetes.rs"]
pub(crate) mod kubernetes;
#[path = "../kernel/lab.rs"]
pub(crate) mod lab;
#[path = "load.rs"]
pub(crate) mod load;
#[path = "pods.rs"]
pub(crate) mod pods;
#[path = "site.rs"]
pub(crate) mod site;
#[path = "../support/tailnet.rs"]
pub(crate) mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use kubernetes::images::TOOLS;

/// Two clusters at once would be too much for a small machine.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Waits until no other test of the tier has a cluster.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The Pod `client`, from which a test asks.
pub(crate) fn client() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client"}, "spec": {"terminationGracePeriodSeconds": 0,
        "containers": [{"name": "client", "image": TOOLS, "imagePullPolicy": "Never"}]}})
}
