//! The cluster, its ACME server, and what a user applies.

use std::path::Path;

use serde_json::json;

use kit::acme_front::Front;
use kit::cluster::Cluster;
use kit::cluster::chart::{self, NAMESPACE};
use kit::cluster::site::{self, GREETS};
use kit::pebble::{Manner, Pebble};
use kit::tailnet::Control;
use kit::tailnet_client::TailnetClient;

/// The group.
pub(crate) const GROUP: &str = "in";
/// How many nodes the cluster has.
const NODES: u8 = 2;
/// What the backends answer.
pub(crate) const ANSWER: &str = "hello";

/// A cluster with the chart installed, two backends, and somebody in the tailnet who asks.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) pebble: Pebble,
    front: Front,
    pub(crate) user: TailnetClient,
}

impl Stage {
    /// Starts it; nothing is published yet.
    pub(crate) fn set() -> Self {
        let cluster = Cluster::start_with(NODES, Control::Hosted);
        let pebble = Pebble::start(&cluster.tailnet, Manner::default());
        let front = Front::start(&cluster.tailnet);
        let user = TailnetClient::join(&cluster.tailnet);
        let stage = Self { cluster, pebble, front, user };
        stage.cluster.load_tailyard(Path::new(kit::tailyard()));
        chart::install(&stage.cluster, &[]);
        stage.cluster.apply(&site::backends("web", ANSWER));
        stage.cluster.apply(&[site::class(&stage.front.directory), site::group(GROUP, GROUP)]);
        stage.cluster.wait(&["--for=condition=ProxyGroupReady", &format!("proxygroup/{GROUP}")]);
        stage.cluster.wait(&["--for=condition=Available", "deployment/web"]);
        stage
    }

    /// Applies an Ingress `web`, a Service `plain` of a load balancer, and a Service `outside` of a DNS name.
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

    /// The directory of the ACME server.
    pub(crate) fn directory(&self) -> &str {
        &self.front.directory
    }

    /// What the replicas that there are said of late, for whoever looks for a cause.
    pub(crate) fn said(&self) -> String {
        let selector = format!("tailscale.com/parent-resource={GROUP}");
        self.cluster.kubectl(&["logs", "-n", NAMESPACE, "-l", &selector, "--all-containers", "--prefix", "--tail=200"])
    }
}
