//! Ingress group on a cluster with both operators, with a Service of type `LoadBalancer`. An Ingress would need a name that the Tailscale
//! operator reads from the login of a tagged node; the stand-in of the control plane has another one there.

use std::fs;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use kit::cluster::chart::NAMESPACE;
use kit::cluster::site::{self, GREETS};
use kit::cluster::{Cluster, DEADLINE};
use kit::machine::Machine;
use kit::operators::Stage;
use kit::wait::eventually;
use tailyard::api::names::SERVICE_FINALIZER;

/// The group and the hostname prefix of its devices.
const GROUP: &str = "in";
/// Response of the Pods.
const ANSWER: &str = "site";
/// Timeout of one attempt.
const PATIENCE: Duration = Duration::from_secs(2);

/// A published Service.
pub(crate) struct Site<'a> {
    cluster: &'a Cluster,
    /// The user's manifest.
    manifest: PathBuf,
}

impl<'a> Site<'a> {
    /// Creates the group and publishes the Service, by whichever operator is there. The group has the class of the other proxies.
    pub(crate) fn publish(stage: &'a Stage) -> Self {
        let cluster = &stage.cluster;
        cluster.apply(&site::backends("web", ANSWER));
        cluster.apply(&[site::group(GROUP, GROUP)]);
        let service = published("plain").to_string();
        let manifest = cluster.tailnet.dir().join("site.yaml");
        fs::write(&manifest, &service).expect("written");
        cluster.apply_text(&service);
        Self { cluster, manifest }
    }

    /// Path of the manifest, for commands.
    pub(crate) fn manifest(&self) -> String {
        self.manifest.display().to_string()
    }

    /// Publishes another Service by our reconciler; returns the owner of its Tailscale Service.
    pub(crate) fn publish_another(&self, name: &str) -> String {
        self.cluster.apply(&[published(name)]);
        self.cluster.wait(&["--for=condition=TailscaleIngressSvcConfigured", &format!("service/{name}")]);
        assert_eq!(self.finalizers(name), format!("[{SERVICE_FINALIZER:?}]"));
        self.owner(name)
    }

    /// Deletes a Service, and waits until it has gone.
    pub(crate) fn delete(&self, name: &str) {
        self.cluster.kubectl(&["delete", "service", name, "--timeout=120s"]);
    }

    /// Finalizers of a Service.
    pub(crate) fn finalizers(&self, name: &str) -> String {
        self.cluster.kubectl(&["get", "service", name, "-o", "jsonpath={.metadata.finalizers}"])
    }

    /// Waits until a tailnet client gets an answer.
    pub(crate) fn reached(&self, guest: &Machine) {
        eventually("an answer of the site", DEADLINE, || {
            let service = self.tailscale_service("plain")?;
            let address: IpAddr = service["addrs"][0].as_str()?.parse().expect("an address");
            let mut text = String::new();
            guest.node.connect(SocketAddr::from((address, GREETS)), PATIENCE).ok()?.read_to_string(&mut text).ok()?;
            (text.trim() == ANSWER).then_some(())
        });
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

    /// The Tailscale Service of a Service.
    pub(crate) fn tailscale_service(&self, name: &str) -> Option<Value> {
        let services = self.cluster.tailnet.api("GET", "/tailnet/-/vip-services")["vipServices"].as_array().cloned().unwrap_or_default();
        services.into_iter().find(|service| service["name"] == format!("svc:{name}"))
    }

    /// Addresses of the Tailscale Service, and its only owner.
    pub(crate) fn service(&self) -> (Value, String) {
        (self.tailscale_service("plain").expect("a Tailscale Service")["addrs"].clone(), self.owner("plain"))
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

/// A Service of the group, with its name as the name in the tailnet.
fn published(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "default",
            "annotations": {"tailscale.com/proxy-group": GROUP, "tailscale.com/hostname": name}},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "tailscale", "selector": {"app": "web"},
            "ports": [{"name": "greet", "port": GREETS, "targetPort": GREETS}]}})
}
