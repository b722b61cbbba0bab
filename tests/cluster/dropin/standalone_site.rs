//! Standalone proxy of an Ingress on a cluster with both operators. There is one at a time: the Tailscale operator's proxy serves the first
//! of the certificate domains, which all nodes of the stand-in of the control plane have in one order.

use serde_json::{Value, json};

use kit::acme_front::Front;
use kit::cluster::{DEADLINE, site};
use kit::operators::Stage;
use kit::pebble::{Manner, Pebble};
use kit::tailnet_client::TailnetClient;
use kit::wait::eventually;

use crate::dropin::ANSWER;
use crate::dropin::acts::{Client, Path};
use crate::dropin::standalone::{RATE, pod, run_image};

/// Parent of a proxy, as its label has it.
const INGRESS: &str = "ingress";
/// Name of the Ingress and of its device.
const NAME: &str = "shop";
/// Class of proxies that order certificates.
pub(crate) const CLASS: &str = "acme";

/// An Ingress without a group, its ACME server, and a client.
pub(crate) struct StandaloneSite {
    pebble: Pebble,
    front: Front,
    pub(crate) user: TailnetClient,
}

impl StandaloneSite {
    /// Creates class and Ingress.
    pub(crate) fn create(stage: &Stage) -> Self {
        let tailnet = &stage.cluster.tailnet;
        let pebble = Pebble::start(tailnet, Manner::default());
        let front = Front::start(tailnet);
        let user = TailnetClient::join(tailnet);
        tailnet.set_cert_domains(&[&tailnet.name_of(NAME)]);
        let env = json!([{"name": "TS_DEBUG_ACME_DIRECTORY_URL", "value": front.directory}]);
        let requests = json!({"requests": {"cpu": "10m"}});
        let container = json!({"imagePullPolicy": "IfNotPresent", "resources": requests, "env": env});
        let pod = json!({"tailscaleContainer": container, "tailscaleInitContainer": {"imagePullPolicy": "IfNotPresent"}});
        let class = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass", "metadata": {"name": CLASS},
            "spec": {"statefulSet": {"pod": pod}}});
        stage.cluster.apply(&[class, ingress()]);
        Self { pebble, front, user }
    }

    /// URL of the ACME server's directory.
    pub(crate) fn directory(&self) -> &str {
        &self.front.directory
    }

    /// Creates the Ingress again.
    pub(crate) fn create_again(stage: &Stage) {
        stage.cluster.apply(&[ingress()]);
    }

    /// Number of certificates that were issued. The Tailscale operator's proxies renew theirs at each start.
    pub(crate) fn issued(&self) -> usize {
        self.pebble.issued()
    }

    /// Waits until its status has the device's name and it answers.
    pub(crate) fn is_served(&self, stage: &Stage) {
        let path = "jsonpath={.status.loadBalancer.ingress[0].hostname}";
        let shown = || stage.cluster.kubectl(&["get", "ingress", NAME, "-o", path]) == stage.cluster.tailnet.name_of(NAME);
        eventually("the name in the status", DEADLINE, || shown().then_some(()));
        self.user.wait_for_answer("https", NAME, ANSWER);
    }

    /// Waits until it is served by a Pod of this image with a `ServiceAccount` of this prefix.
    pub(crate) fn is_served_by(&self, stage: &Stage, image: &str, account: &str) {
        run_image(stage, INGRESS, NAME, image, account);
        self.is_served(stage);
    }

    /// Device and Pod of the Ingress.
    pub(crate) fn proxy(stage: &Stage) -> (Vec<String>, String) {
        let addresses = stage.cluster.tailnet.addresses_of(NAME).iter().map(ToString::to_string).collect();
        (addresses, pod(stage, INGRESS, NAME, "{.metadata.name}"))
    }

    /// Path through the proxy.
    pub(crate) fn path(&self) -> Path<'_> {
        Path { kind: "Ingress", client: Client::Tailnet(&self.user, 443, ANSWER), target: NAME, rate: RATE }
    }
}

fn ingress() -> Value {
    let mut ingress = site::ingress(NAME, "");
    ingress["metadata"]["annotations"] = json!({});
    ingress["metadata"]["labels"] = json!({"tailscale.com/proxy-class": CLASS});
    ingress["spec"]["defaultBackend"]["service"]["name"] = json!("web");
    ingress
}
