//! Proxy of an Ingress on a cluster with both operators.

use serde_json::json;

use kit::acme_front::Front;
use kit::cluster::DEADLINE;
use kit::cluster::chart::NAMESPACE;
use kit::cluster::site::{self, backends};
use kit::operators::Stage;
use kit::pebble::{Manner, Pebble};
use kit::tailnet_client::TailnetClient;
use kit::wait::eventually;

/// Name of the Ingress and of its device.
const NAME: &str = "shop";
/// Response of the Pods.
const ANSWER: &str = "hello";
/// Class of its proxy.
const CLASS: &str = "acme";

/// An Ingress without a group, its ACME server, and a client.
pub(crate) struct StandaloneSite {
    pebble: Pebble,
    _front: Front,
    user: TailnetClient,
    /// Device and Pod by the operator that created them.
    created: (Vec<String>, String),
}

impl StandaloneSite {
    /// Creates the Ingress, and waits until the operator in charge serves it over HTTPS.
    pub(crate) fn create(stage: &Stage) -> Self {
        let tailnet = &stage.cluster.tailnet;
        let pebble = Pebble::start(tailnet, Manner::default());
        let front = Front::start(tailnet);
        let user = TailnetClient::join(tailnet);
        tailnet.set_cert_domains(&[&tailnet.name_of(NAME)]);
        let env = json!([{"name": "TS_DEBUG_ACME_DIRECTORY_URL", "value": front.directory}]);
        let container = json!({"imagePullPolicy": "IfNotPresent", "env": env});
        let class = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass", "metadata": {"name": CLASS},
            "spec": {"statefulSet": {"pod": {"tailscaleContainer": container}}}});
        let mut ingress = site::ingress(NAME, "");
        ingress["metadata"]["annotations"] = json!({});
        ingress["metadata"]["labels"] = json!({"tailscale.com/proxy-class": CLASS});
        stage.cluster.apply(&backends(NAME, ANSWER));
        stage.cluster.apply(&[class, ingress]);
        let site = Self { pebble, _front: front, user, created: (Vec::new(), String::new()) };
        site.is_served(stage);
        Self { created: (device(stage), pod(stage, ".metadata.name")), ..site }
    }

    /// Number of certificates that were issued. The Tailscale operator's proxies renew theirs at each start.
    pub(crate) fn issued(&self) -> usize {
        self.pebble.issued()
    }

    /// Waits until its status has the device's name and it answers.
    fn is_served(&self, stage: &Stage) {
        let path = "jsonpath={.status.loadBalancer.ingress[0].hostname}";
        let shown = || stage.cluster.kubectl(&["get", "ingress", NAME, "-o", path]) == stage.cluster.tailnet.name_of(NAME);
        eventually("the name in the status", DEADLINE, || shown().then_some(()));
        self.user.wait_for_answer("https", NAME, ANSWER);
    }

    /// Waits until it is served by a Pod of this image with a `ServiceAccount` of this prefix: the same device and Pod's name.
    pub(crate) fn is_served_by(&self, stage: &Stage, image: &str, account: &str) {
        eventually(&format!("the Pod of {NAME} has {image}"), DEADLINE, || {
            let is_image = pod(stage, ".spec.containers[?(@.name==\"tailscale\")].image") == image;
            let is_ready = pod(stage, ".status.conditions[?(@.type==\"Ready\")].status") == "True";
            (is_image && is_ready && pod(stage, ".spec.serviceAccountName").starts_with(account)).then_some(())
        });
        self.is_served(stage);
        assert_eq!((device(stage), pod(stage, ".metadata.name")), self.created);
    }
}

/// Addresses of the device.
fn device(stage: &Stage) -> Vec<String> {
    stage.cluster.tailnet.addresses_of(NAME).iter().map(ToString::to_string).collect()
}

/// Field of the Pod of the proxy.
fn pod(stage: &Stage, path: &str) -> String {
    let selector = format!("tailscale.com/parent-resource-type=ingress,tailscale.com/parent-resource={NAME}");
    stage.cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", &selector, "-o", &format!("jsonpath={{.items[*]{path}}}")])
}
