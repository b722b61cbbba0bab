//! Cluster with its ACME server, and a user's objects.

use std::path::Path;

use serde_json::json;

use kit::acme_front::Front;
use kit::cluster::Cluster;
use kit::cluster::chart::{self, NAMESPACE};
use kit::cluster::node::ProxyMode;
use kit::cluster::site::{self, GREETS};
use kit::pebble::{Manner, Pebble};
use kit::tailnet::Control;
use kit::tailnet_client::TailnetClient;

pub(crate) const GROUP: &str = "in";
/// Number of the cluster's nodes.
const NODES: u8 = 2;
/// Response of the backends.
pub(crate) const ANSWER: &str = "hello";

/// Cluster with the chart installed, two backends, and a tailnet client.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) pebble: Pebble,
    front: Front,
    pub(crate) user: TailnetClient,
}

impl Stage {
    /// Starts the cluster; nothing is published yet.
    pub(crate) fn set() -> Self {
        let cluster = Cluster::start_with(NODES, Control::Hosted, ProxyMode::Iptables);
        let pebble = Pebble::start(&cluster.tailnet, Manner::default());
        let front = Front::start(&cluster.tailnet);
        let user = TailnetClient::join(&cluster.tailnet);
        let stage = Self { cluster, pebble, front, user };
        stage.cluster.load_tailyard(Path::new(kit::tailyard()));
        // The Service `outside` names another Service of the cluster.
        chart::install(&stage.cluster, &["targets.allowed={10.96.0.0/16}"]);
        stage.cluster.apply(&site::backends("web", ANSWER));
        stage.cluster.apply(&[site::class(&stage.front.directory), site::group(GROUP, GROUP)]);
        stage.cluster.wait(&["--for=condition=ProxyGroupReady", &format!("proxygroup/{GROUP}")]);
        stage.cluster.wait(&["--for=condition=Available", "deployment/web"]);
        stage
    }

    /// Applies an Ingress `web`, a Service `plain` of type `LoadBalancer`, and a Service `outside` of type ExternalName.
    pub(crate) fn publish(&self) {
        self.cluster.apply(&[
            site::ingress("web", GROUP),
            json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "plain", "namespace": "default",
                    "annotations": {"tailscale.com/proxy-group": GROUP, "tailscale.com/hostname": "plain"}},
                "spec": {"type": "LoadBalancer", "loadBalancerClass": "tailscale", "selector": {"app": "web"},
                    "ports": [{"name": "http", "port": 80, "targetPort": 8080}, {"name": "greet", "port": GREETS, "targetPort": GREETS}]}}),
            json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "outside", "namespace": "default", "annotations": {"tailscale.com/proxy-group": GROUP,
                    "tailscale.com/expose": "true", "tailscale.com/hostname": "outside"}},
                "spec": {"type": "ExternalName", "externalName": "web.default.svc.cluster.local"}}),
        ]);
    }

    /// URL of the ACME server's directory.
    pub(crate) fn directory(&self) -> &str {
        &self.front.directory
    }

    /// Logs of the existing replicas without tailscaled's, for failure messages.
    pub(crate) fn logs(&self) -> String {
        let selector = format!("tailscale.com/parent-resource={GROUP}");
        let all = self.cluster.kubectl(&["logs", "-n", NAMESPACE, "-l", &selector, "--all-containers", "--prefix", "--tail=-1"]);
        all.split_inclusive('\n').filter(|line| !line.contains(" tailscaled: ")).collect()
    }
}
