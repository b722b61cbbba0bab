//! A device that is deleted at headscale while its proxy runs. The reconciler reads each device every three minutes: the other scenarios are
//! between the deletion and the return.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::json;

use super::{ANSWER, answer};
use crate::stage::{PORT, Stage};
use kit::cluster::{DEADLINE, chart, pods};
use kit::wait::until;

/// Name of the Service.
pub(crate) const NAME: &str = "lost";
/// Host name of its device.
const DEVICE: &str = "default-lost";
/// Timeout of one attempt.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) fn a_device_is_deleted(stage: &Stage) {
    let (cluster, tailnet) = (&stage.cluster, &stage.cluster.tailnet);
    cluster.apply(&[
        pods::greeter(NAME, None, PORT, ANSWER),
        json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": NAME, "namespace": "default", "annotations": {"tailscale.com/expose": "true"}},
            "spec": {"selector": {"app": NAME}, "ports": [{"port": PORT}]}}),
    ]);
    cluster.wait(&["--for=condition=TailscaleProxyReady", &format!("service/{NAME}")]);
    tailnet.headscale(&["nodes", "delete", "--force", "-i", &tailnet.node_id(DEVICE).to_string()]);
    assert!(!tailnet.knows(DEVICE), "deleted");
}

/// The proxy has joined again as another device and serves the Service, without hands.
pub(crate) fn its_proxy_has_joined_again(stage: &Stage) {
    let (cluster, tailnet) = (&stage.cluster, &stage.cluster.tailnet);
    until("another device", DEADLINE, || tailnet.knows(DEVICE));
    let guest = tailnet.machine("lost-guest");
    let _tailscaled = guest.tailscaled();
    tailnet.join(&guest, &[]);
    for address in tailnet.addresses_of(DEVICE).into_iter().filter(IpAddr::is_ipv4) {
        until("an answer at the address of the other device", DEADLINE, || answer(&guest, address, PATIENCE).is_some());
    }
    cluster.wait(&["--for=condition=TailscaleProxyReady", &format!("service/{NAME}")]);
    cluster.kubectl(&["delete", &format!("service/{NAME}"), &format!("pod/{NAME}"), "--timeout=120s"]);
    chart::wait_gone(cluster, NAME);
    assert!(!tailnet.knows(DEVICE), "the other device is deleted before the finalizer");
}
