//! A site that both clusters publish under one name, and who asks for it.

use serde_json::{Value, json};

use crate::crossing::sides::Sides;
use kit::cluster::{Cluster, site};
use kit::pebble::{Manner, Pebble};
use kit::tailnet_client::TailnetClient;

/// The name of the site, of its Ingress and in the tailnet.
pub(crate) const SHOP: &str = "shop";
/// The group on either side that serves it.
pub(crate) const GROUP: &str = "web";
/// What the Pods of the publisher and of the user answer.
pub(crate) const ANSWERS: [&str; 2] = ["hello-from-the-publisher", "hello-from-the-user"];
/// How both answers begin.
pub(crate) const EITHER: &str = "hello-from-";

/// Two clusters that can publish it.
pub(crate) struct Shop<'a> {
    clusters: [&'a Cluster; 2],
    /// Somebody in the tailnet, of no cluster.
    pub(crate) client: TailnetClient,
    /// The ACME server of both.
    pub(crate) pebble: Pebble,
}

impl<'a> Shop<'a> {
    /// Gives either side a group and its Pods; nothing is published yet.
    pub(crate) fn open(sides: &'a Sides) -> Self {
        let clusters = [&sides.publisher, &sides.user];
        let tailnet = &sides.user.tailnet;
        let pebble = Pebble::start(tailnet, Manner::default());
        for (cluster, answer) in clusters.iter().zip(ANSWERS) {
            // Names of devices are the tailnet's.
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

    /// Has a side publish it, by the same Ingress on both; waits until that says where it is reached.
    pub(crate) fn publish(&self, side: usize) {
        let (cluster, ingress) = (self.clusters[side], format!("ingress/{SHOP}"));
        cluster.apply(&[site::ingress(SHOP, GROUP)]);
        let name = cluster.tailnet.name_of(SHOP);
        cluster.wait(&[&format!("--for=jsonpath={{.status.loadBalancer.ingress[0].hostname}}={name}"), &ingress]);
    }

    /// Takes a side's Ingress away.
    pub(crate) fn unpublish(&self, side: usize) {
        self.clusters[side].kubectl(&["delete", &format!("ingress/{SHOP}"), "--timeout=120s"]);
    }

    /// Takes a side's group away.
    pub(crate) fn close(&self, side: usize) {
        self.clusters[side].kubectl(&["delete", &format!("proxygroup/{GROUP}"), "--timeout=120s"]);
    }

    /// The clusters that own the Tailscale Service, as it says itself; none if it is not there.
    pub(crate) fn owners(&self) -> Vec<String> {
        let service = self.client.services().into_iter().find(|service| service["name"] == format!("svc:{SHOP}")).unwrap_or_default();
        let text = service["annotations"]["tailscale.com/owner-references"].as_str().unwrap_or("{}");
        let owners: Value = serde_json::from_str(text).expect("JSON");
        let ids = owners["ownerRefs"].as_array().into_iter().flatten();
        ids.map(|owner| owner["operatorID"].as_str().expect("an id").to_owned()).collect()
    }
}
