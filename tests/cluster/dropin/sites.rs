//! Ingress group on a cluster with both operators, with an Ingress and a Service of type `LoadBalancer`, and another of each to be deleted.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use kit::cluster::chart::NAMESPACE;
use kit::cluster::site::{self, GREETS};
use kit::cluster::{Cluster, DEADLINE};
use kit::operators::Stage;
use kit::tailnet_client::TailnetClient;
use kit::wait::eventually;
use tailyard::api::names::SERVICE_FINALIZER;

use crate::dropin::acts::{Client, Path};
use crate::dropin::standalone::RATE;
use crate::dropin::standalone_site::CLASS;
use crate::dropin::{ANSWER, ONCE};

/// The group and the hostname prefix of its devices.
pub(crate) const GROUP: &str = "in";
/// Rows of the table in docs/migrate.md.
const SERVICE: &str = "Service of a ProxyGroup of type `ingress`";
const INGRESS: &str = "Ingress of a ProxyGroup";

/// Published Ingress and Service.
pub(crate) struct Site<'a> {
    cluster: &'a Cluster,
    user: &'a TailnetClient,
    /// The user's manifest.
    manifest: PathBuf,
}

impl<'a> Site<'a> {
    /// Creates the group and publishes Ingresses and Services, by whichever operator is there.
    pub(crate) fn publish(stage: &'a Stage, user: &'a TailnetClient) -> Self {
        let cluster = &stage.cluster;
        let mut group = site::group(GROUP, GROUP);
        group["spec"]["proxyClass"] = json!(CLASS);
        let [manifest, once] = ["", ONCE].map(|suffix| {
            let items = [ingress(&format!("web{suffix}")), published(&format!("plain{suffix}"))];
            json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
        });
        cluster.apply(&[group]);
        let path = cluster.tailnet.dir().join("site.yaml");
        fs::write(&path, &manifest).expect("written");
        cluster.apply_text(&manifest);
        cluster.apply_text(&once);
        Self { cluster, user, manifest: path }
    }

    /// Path of the manifest, for commands.
    pub(crate) fn manifest(&self) -> String {
        self.manifest.display().to_string()
    }

    /// Publishes another Service by our reconciler.
    pub(crate) fn publish_another(&self, name: &str) {
        self.cluster.apply(&[published(name)]);
        self.cluster.wait(&["--for=condition=TailscaleIngressSvcConfigured", &format!("service/{name}")]);
        assert_eq!(self.finalizers(name), format!("[{SERVICE_FINALIZER:?}]"));
    }

    /// Finalizers of a Service.
    pub(crate) fn finalizers(&self, name: &str) -> String {
        self.cluster.kubectl(&["get", "service", name, "-o", "jsonpath={.metadata.finalizers}"])
    }

    /// Waits until a tailnet client gets an answer of the Ingress and of the Service with this suffix.
    pub(crate) fn is_served(&self, suffix: &str) {
        self.user.wait_for_answer("https", &format!("web{suffix}"), ANSWER);
        self.user.wait_for_answer("http", &format!("plain{suffix}"), ANSWER);
    }

    /// Paths to Ingress and Service.
    pub(crate) fn paths(&self) -> [Path<'a>; 2] {
        let path = |kind, port, target| Path { kind, client: Client::Tailnet(self.user, port, ANSWER), target, rate: RATE };
        [path(INGRESS, 443, "web"), path(SERVICE, GREETS, "plain")]
    }

    /// Path to another Service.
    pub(crate) fn path_to(&self, name: &'static str) -> Path<'a> {
        Path { kind: SERVICE, client: Client::Tailnet(self.user, GREETS, ANSWER), target: name, rate: RATE }
    }

    /// Waits until all replicas run this image and the group is ready.
    pub(crate) fn run_image(&self, image: &str) {
        let path = "jsonpath={.items[*].spec.containers[?(@.name==\"tailscale\")].image}";
        let selector = format!("tailscale.com/parent-resource={GROUP}");
        eventually(&format!("all replicas run {image}"), DEADLINE, || {
            let images = self.cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", &selector, "-o", path]);
            (images == [image; 2].join(" ")).then_some(())
        });
        self.cluster.rolled_out(NAMESPACE, &format!("statefulset/{GROUP}"));
        self.cluster.wait(&["--for=condition=ProxyGroupReady", &format!("proxygroup/{GROUP}")]);
    }

    /// The Tailscale Service of an object.
    fn tailscale_service(&self, name: &str) -> Option<Value> {
        self.user.services().into_iter().find(|service| service["name"] == format!("svc:{name}"))
    }

    /// Whether each of these has a Tailscale Service.
    pub(crate) fn advertised(&self, names: &[&str]) -> Vec<bool> {
        names.iter().map(|name| self.tailscale_service(name).is_some()).collect()
    }

    /// Addresses of the Tailscale Services of Ingress and Service.
    pub(crate) fn addresses(&self) -> [Value; 2] {
        ["web", "plain"].map(|name| self.tailscale_service(name).expect("a Tailscale Service")["addrs"].clone())
    }

    /// The only owner of each of them.
    pub(crate) fn owners(&self) -> [String; 2] {
        ["web", "plain"].map(|name| self.owner(name))
    }

    /// The only owner of a Tailscale Service.
    pub(crate) fn owner(&self, name: &str) -> String {
        let service = self.tailscale_service(name).expect("a Tailscale Service");
        let text = service["annotations"]["tailscale.com/owner-references"].as_str().expect("owners");
        let owners: Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(owners["ownerRefs"].as_array().map(Vec::len), Some(1), "{text}");
        owners["ownerRefs"][0]["operatorID"].as_str().expect("an id").to_owned()
    }

    /// Devices of the replicas.
    pub(crate) fn devices(&self) -> [u64; 2] {
        [0, 1].map(|ordinal| self.cluster.tailnet.node_id(&format!("{GROUP}-{ordinal}")))
    }
}

/// An Ingress of the group, with its name as the name in the tailnet.
fn ingress(name: &str) -> Value {
    let mut ingress = site::ingress(name, GROUP);
    ingress["spec"]["defaultBackend"]["service"]["name"] = json!("web");
    ingress
}

/// A Service of the group, with its name as the name in the tailnet.
fn published(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "default",
            "annotations": {"tailscale.com/proxy-group": GROUP, "tailscale.com/hostname": name}},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "tailscale", "selector": {"app": "web"},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}, {"name": "greet", "port": GREETS, "targetPort": GREETS}]}})
}
