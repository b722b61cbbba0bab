//! The proxy of one Service, as the subject of faults.

use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kit::cluster::chart::{self, NAMESPACE};
use kit::cluster::{Cluster, DEADLINE, pods};
use kit::machine::Machine;
use kit::operators::{PORT, Stage};
use kit::wait::{eventually, until};
use serde_json::{Value, json};

use super::CLASS;
use crate::players::OperatorPair;
use crate::rolling::event::{Proxies, lost};
use crate::rolling::offer::LoadRoute;

/// The Service, and the Pod behind it.
const NAME: &str = "solo";
/// Response of that Pod.
const ANSWER: &str = "hello";
/// Timeout of one attempt.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval of reads of the Pods while they are replaced under load: each is a process that needs the processors.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A proxy, with the client that measures it.
pub(crate) struct Proxy<'a> {
    stage: &'a Stage,
    client: &'a Machine,
    standby: bool,
    /// Address in the status of the Service.
    to: SocketAddr,
}

/// Creates the target, and places it and the cluster's DNS servers on the node that is not lost.
pub(crate) fn prepare(game: &OperatorPair) {
    game.on_the_first_node(|stage| {
        stage.cluster.apply(&[pods::greeter(NAME, None, PORT, ANSWER)]);
        stage.cluster.wait(&["--for=condition=Ready", &format!("pod/{NAME}")]);
        stage.cluster.kubectl(&["rollout", "restart", "-n", "kube-system", "deployment/coredns"]);
        stage.cluster.rolled_out("kube-system", "deployment/coredns");
    });
}

impl<'a> Proxy<'a> {
    /// Creates the Service, after all objects of its former proxy are gone, and waits for its proxy.
    pub(crate) fn create(stage: &'a Stage, client: &'a Machine, standby: bool) -> Result<Self> {
        let cluster = &stage.cluster;
        chart::wait_gone(cluster, NAME);
        stage.set_class(None, "first");
        let annotations = if standby { json!({"tailyard.io/standby": "true"}) } else { json!({}) };
        let labels = json!({"tailscale.com/proxy-class": CLASS});
        cluster.apply(&[json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": NAME, "namespace": "default", "labels": labels, "annotations": annotations},
            "spec": {"type": "LoadBalancer", "loadBalancerClass": "tailscale", "allocateLoadBalancerNodePorts": false,
                "selector": {"app": NAME}, "ports": [{"port": PORT}]}})]);
        cluster.wait(&["--for=condition=TailscaleProxyReady", &format!("service/{NAME}")]);
        let address: IpAddr = cluster.kubectl(&["get", "service", NAME, "-o", "jsonpath={.status.loadBalancer.ingress[1].ip}"]).parse()?;
        Ok(Self { stage, client, standby, to: SocketAddr::new(address, PORT) })
    }

    /// From the tailnet node to the address of the Service.
    pub(crate) fn route(&self) -> LoadRoute {
        LoadRoute { from: self.client.node.ns.clone(), to: self.to, greeting: ANSWER }
    }

    /// Whether all Pods run, of this label if one is given, and one of them is ready.
    fn is_complete(&self, turn: Option<&str>) -> bool {
        let pods = pods(&self.stage.cluster);
        let expected = if self.standby { 2 } else { 1 };
        pods.len() == expected && pods.iter().all(|pod| runs(pod, turn)) && pods.iter().filter(|pod| is_ready(pod)).count() == 1
    }

    fn answers(&self) -> bool {
        let mut text = String::new();
        let stream = self.client.node.connect(self.to, PATIENCE);
        stream.and_then(|mut stream| stream.read_to_string(&mut text)).is_ok() && text.trim() == ANSWER
    }

    /// The ready Pod: its name and its node.
    fn active(&self) -> (String, String) {
        let found = || {
            let pod = pods(&self.stage.cluster).into_iter().find(is_ready)?;
            Some((pod.metadata.name?, pod.spec?.node_name?))
        };
        eventually("a ready Pod", DEADLINE, found)
    }
}

impl Proxies for Proxy<'_> {
    fn stage(&self) -> &Stage {
        self.stage
    }

    fn pod(&self) -> String {
        self.active().0
    }

    /// A Pod without a probe is ready before it forwards, so that an answer is awaited too.
    fn restart(&self, round: usize) -> Duration {
        let (begun, label) = (Instant::now(), format!("round-{round}"));
        self.stage.set_class(None, &label);
        while !(self.is_complete(Some(&label)) && self.answers()) {
            assert!(begun.elapsed() < DEADLINE, "the Pods of {NAME} are not replaced");
            sleep(LOOK_INTERVAL);
        }
        begun.elapsed()
    }

    /// With standby there is a Pod on each node, and a deleted one returns to its own: only the active one changes.
    fn spread(&self) {
        let (cluster, lost) = (&self.stage.cluster, lost(self.stage));
        let (pod, node) = self.active();
        if node == lost.name {
            return;
        }
        if !self.standby {
            cluster.kubectl(&["cordon", &node]);
        }
        cluster.kubectl(&["delete", "pod", "-n", NAMESPACE, &pod]);
        self.settle();
        cluster.kubectl(&["uncordon", &node]);
        assert_eq!(self.active().1, lost.name);
    }

    fn settle(&self) {
        until("all Pods of the proxy run, and the target answers", DEADLINE, || self.is_complete(None) && self.answers());
    }
}

/// Pods of the proxy.
fn pods(cluster: &Cluster) -> Vec<Pod> {
    let labels = format!("tailscale.com/parent-resource-type=svc,tailscale.com/parent-resource={NAME}");
    let listed = cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", &labels, "-o", "json"]);
    let mut list: Value = serde_json::from_str(&listed).expect("JSON");
    serde_json::from_value(list["items"].take()).expect("Pods")
}

/// Whether all containers of a Pod have started, and it has this label.
fn runs(pod: &Pod, turn: Option<&str>) -> bool {
    let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get("turn"));
    let is_new = turn.is_none_or(|turn| label.is_some_and(|label| label == turn));
    let started = !containers.is_empty() && containers.iter().all(|container| container.started == Some(true));
    is_new && started && pod.metadata.deletion_timestamp.is_none()
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    pod.metadata.deletion_timestamp.is_none() && conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
