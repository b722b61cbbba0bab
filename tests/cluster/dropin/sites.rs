//! Ingress group on a cluster with both operators: an Ingress over HTTPS, and a Service of type `LoadBalancer`.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use kit::acme_front::Front;
use kit::cluster::chart::NAMESPACE;
use kit::cluster::{DEADLINE, site};
use kit::operators::Stage;
use kit::pebble::{Manner, Pebble};
use kit::tailnet_client::TailnetClient;
use kit::wait::eventually;

/// The group, its class and the hostname prefix of its devices.
const GROUP: &str = "in";
/// Name of the site over HTTPS.
pub(crate) const HTTPS: &str = "web";
/// Response of the Pods.
const ANSWER: &str = "hello";

/// The sites with their ACME server and a client.
pub(crate) struct Sites<'a> {
    stage: &'a Stage,
    pub(crate) pebble: Pebble,
    pub(crate) front: Front,
    pub(crate) client: TailnetClient,
    /// The user's manifest of Ingress and Service.
    manifest: PathBuf,
}

impl<'a> Sites<'a> {
    /// Creates the group and publishes the sites, by whichever operator is there.
    pub(crate) fn publish(stage: &'a Stage) -> Self {
        let tailnet = &stage.cluster.tailnet;
        let pebble = Pebble::start(tailnet, Manner::default());
        let front = Front::start(tailnet);
        let client = TailnetClient::join(tailnet);
        let mut class = site::class(&front.directory);
        class["metadata"]["name"] = GROUP.into();
        let pod = &mut class["spec"]["statefulSet"]["pod"];
        pod["tailscaleContainer"]["imagePullPolicy"] = "IfNotPresent".into();
        pod["tailscaleInitContainer"] = json!({"imagePullPolicy": "IfNotPresent"});
        let mut group = site::group(GROUP, GROUP);
        group["spec"]["proxyClass"] = GROUP.into();
        stage.cluster.apply(&site::backends(HTTPS, ANSWER));
        stage.cluster.apply(&[class, group]);
        let manifest = tailnet.dir().join("site.yaml");
        let plain = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "plain", "namespace": "default",
                "annotations": {"tailscale.com/proxy-group": GROUP, "tailscale.com/hostname": "plain"}},
            "spec": {"type": "LoadBalancer", "loadBalancerClass": "tailscale", "selector": {"app": HTTPS},
                "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}});
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [site::ingress(HTTPS, GROUP), plain]});
        fs::write(&manifest, list.to_string()).expect("written");
        let sites = Self { stage, pebble, front, client, manifest };
        stage.cluster.apply_text(&list.to_string());
        sites
    }

    /// Path of the manifest, for commands.
    pub(crate) fn manifest(&self) -> String {
        self.manifest.display().to_string()
    }

    /// Waits until the tailnet client reaches both sites.
    pub(crate) fn reached(&self) {
        self.client.wait_for_answer("https", HTTPS, ANSWER);
        self.client.wait_for_answer("http", "plain", ANSWER);
    }

    /// Waits until all replicas run this image and the group is ready.
    pub(crate) fn run_image(&self, image: &str) {
        let cluster = &self.stage.cluster;
        let path = "jsonpath={.items[*].spec.containers[?(@.name==\"tailscale\")].image}";
        let selector = format!("tailscale.com/parent-resource={GROUP}");
        eventually(&format!("all replicas run {image}"), DEADLINE, || {
            let images = cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", &selector, "-o", path]);
            (images == [image; 2].join(" ")).then_some(())
        });
        cluster.rolled_out(NAMESPACE, &format!("statefulset/{GROUP}"));
        cluster.wait(&["--for=condition=ProxyGroupReady", &format!("proxygroup/{GROUP}")]);
    }

    /// Names, addresses and numbers of owners of the Tailscale Services.
    pub(crate) fn services(&self) -> Vec<(Value, Value, usize)> {
        let owners = |service: &Value| {
            let text = service["annotations"]["tailscale.com/owner-references"].as_str().unwrap_or("{}");
            serde_json::from_str::<Value>(text).expect("JSON")["ownerRefs"].as_array().map_or(0, Vec::len)
        };
        let mut services: Vec<_> =
            self.client.services().iter().map(|one| (one["name"].clone(), one["addrs"].clone(), owners(one))).collect();
        services.sort_by_key(|(name, ..)| name.to_string());
        services
    }

    /// Devices of the replicas.
    pub(crate) fn devices(&self) -> Vec<u64> {
        [0, 1].map(|ordinal| self.stage.cluster.tailnet.node_id(&format!("{GROUP}-{ordinal}"))).into()
    }
}
