//! Site that both clusters publish under one name, and its client.

use serde_json::{Value, json};

use crate::crossing::sides::Sides;
use kit::cluster::{Cluster, site};
use kit::pebble::{Manner, Pebble};
use kit::tailnet_client::TailnetClient;

/// Name of the site, of its Ingress and in the tailnet.
pub(crate) const SHOP: &str = "shop";
/// Group on either side that serves the site.
pub(crate) const GROUP: &str = "web";
/// Responses of the publisher's and the user's Pods.
pub(crate) const ANSWERS: [&str; 2] = ["hello-from-the-publisher", "hello-from-the-user"];
/// Common prefix of both responses.
pub(crate) const EITHER: &str = "hello-from-";

/// Two clusters that can publish the site.
pub(crate) struct Shop<'a> {
    clusters: [&'a Cluster; 2],
    /// Tailnet client outside of both clusters.
    pub(crate) client: TailnetClient,
    /// ACME server of both clusters.
    pub(crate) pebble: Pebble,
}

impl<'a> Shop<'a> {
    /// Creates a group and its Pods on either side; nothing is published yet.
    pub(crate) fn open(sides: &'a Sides) -> Self {
        let clusters = [&sides.publisher, &sides.user];
        let tailnet = &sides.user.tailnet;
        let pebble = Pebble::start(tailnet, Manner::default());
        for (cluster, answer) in clusters.iter().zip(ANSWERS) {
            // Device names are unique in the tailnet.
            let prefix = &answer["hello-from-the-".len()..];
            let mut group = site::group(GROUP, prefix);
            group["spec"]["tailyard"]["tenants"] = json!([{"namespaceSelector": {}, "sharedNames": [SHOP]}]);
            cluster.apply(&[site::class(&pebble.directory()), group]);
            cluster.apply(&site::backends(SHOP, answer));
        }
        let client = TailnetClient::join(tailnet);
        for cluster in clusters {
            cluster.wait(&["--for=condition=ProxyGroupReady", &format!("proxygroup/{GROUP}")]);
            cluster.wait(&["--for=condition=Available", &format!("deployment/{SHOP}")]);
        }
        Self { clusters, client, pebble }
    }

    /// Publishes the site on one side, with the same Ingress on both; waits until its status has the address.
    pub(crate) fn publish(&self, side: usize) {
        let (cluster, ingress) = (self.clusters[side], format!("ingress/{SHOP}"));
        cluster.apply(&[site::ingress(SHOP, GROUP)]);
        let name = cluster.tailnet.name_of(SHOP);
        cluster.wait(&[&format!("--for=jsonpath={{.status.loadBalancer.ingress[0].hostname}}={name}"), &ingress]);
    }

    /// Deletes a side's Ingress.
    pub(crate) fn unpublish(&self, side: usize) {
        self.clusters[side].kubectl(&["delete", &format!("ingress/{SHOP}"), "--timeout=120s"]);
    }

    /// Deletes a side's group.
    pub(crate) fn close(&self, side: usize) {
        self.clusters[side].kubectl(&["delete", &format!("proxygroup/{GROUP}"), "--timeout=120s"]);
    }

    /// Clusters that own the Tailscale Service, from its annotation; none if it does not exist.
    pub(crate) fn owners(&self) -> Vec<String> {
        let service = self.client.services().into_iter().find(|service| service["name"] == format!("svc:{SHOP}")).unwrap_or_default();
        let text = service["annotations"]["tailscale.com/owner-references"].as_str().unwrap_or("{}");
        let owners: Value = serde_json::from_str(text).expect("JSON");
        let ids = owners["ownerRefs"].as_array().into_iter().flatten();
        ids.map(|owner| owner["operatorID"].as_str().expect("an id").to_owned()).collect()
    }
}
