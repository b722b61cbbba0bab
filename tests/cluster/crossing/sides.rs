//! Two clusters of one node each on one tailnet: one publishes, the other uses, with the commands of README.md.

use std::path::Path;
use std::thread;

use serde_json::{Value, json};

use kit::cluster::chart::{self, CONTROL, NAMESPACE, RECONCILER};
use kit::cluster::images::{self, TAILYARD, TOOLS};
use kit::cluster::node::ProxyMode;
use kit::cluster::pods::client;
use kit::cluster::{Cluster, DEADLINE};
use kit::guide::{CROSSING, Guide, README};
use kit::hosted::CLIENT;
use kit::tailnet::Control;
use kit::wait::eventually;

/// Port of the published Service.
pub(crate) const PORT: u16 = 7000;
/// The user's name of it.
pub(crate) const NAME: &str = "db.default.svc.cluster.local";
/// Response of its Pods.
const ANSWER: &str = "orders";

pub(crate) struct Sides {
    /// Cluster with the serving Pods.
    pub(crate) publisher: Cluster,
    /// Cluster with the client Pods.
    pub(crate) user: Cluster,
    /// The user's shell.
    guide: Guide,
}

impl Sides {
    /// Starts both with the chart, and a group on the publisher; no Service exists yet.
    pub(crate) fn start() -> Self {
        let tailnet = Cluster::tailnet(Control::Hosted);
        let (publisher, user) = thread::scope(|scope| {
            let publisher = scope.spawn(|| Cluster::start_on(&tailnet, 1..=1, ProxyMode::Nftables));
            let user = Cluster::start_on(&tailnet, 2..=2, ProxyMode::Iptables);
            (publisher.join().expect("a cluster"), user)
        });
        let image = images::tailyard(&user.bin, images::TAILYARD, Path::new(kit::tailyard()));
        let guide = Guide::of(&user);
        let sides = Self { publisher, user, guide };
        thread::scope(|scope| {
            scope.spawn(|| set(&sides.publisher, &image));
            sides.install(&image);
        });
        sides
    }

    /// Installs the chart on the user's cluster as README.md describes.
    fn install(&self, image: &Path) {
        self.user.load(image);
        let (id, secret) = (format!("client_id={}", CLIENT.0), format!("client_secret={}", CLIENT.1));
        let (repository, tag) = TAILYARD.rsplit_once(':').expect("a tag");
        self.guide.run(
            README,
            "$ make image",
            &[
                // Built for both clusters, and on their nodes.
                ("make image", ":"),
                ("skopeo", ": skopeo"),
                ("client_id=ID", &id),
                ("client_secret=SECRET", &secret),
                ("registry.example.com/tailyard", &format!("{repository} --set image.tag={tag} --set controlPlane.url={CONTROL}")),
            ],
        );
        self.user.apply(&[client()]);
        self.user.rolled_out(NAMESPACE, RECONCILER);
        self.user.wait(&["--for=condition=Ready", "pod/client"]);
    }

    /// Exposes a Service as README.md describes, and withdraws it.
    pub(crate) fn expose(&self) {
        let web = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": {"app": "client"}, "ports": [{"port": 80}]}});
        self.user.apply(&[web]);
        self.guide.run(README, "$ kubectl annotate", &[]);
        assert!(self.user.tailnet.knows("default-web"), "a device of its own");
        self.user.kubectl(&["annotate", "service/web", "tailscale.com/expose-"]);
        chart::wait_gone(&self.user, "web");
        assert!(!self.user.tailnet.knows("default-web"), "it is deleted with the annotation");
        self.user.kubectl(&["delete", "service/web"]);
    }

    /// Creates the user's group and Service as README.md describes: the published name as the Service `db`. Both are ready.
    pub(crate) fn connect(&self) {
        let sample = "config/samples/egress.yaml";
        let edited = self.guide.edit(sample, &[("db.tail.lab", &self.user.tailnet.name_of("orders")), ("7000", &PORT.to_string())]);
        self.guide.run(README, "$ kubectl apply", &[(sample, &edited)]);
        self.guide.finish(CROSSING);
    }

    /// Waits until a Pod of the publisher answers a Pod of the user.
    pub(crate) fn wait_for_answer(&self) {
        let ask = || self.user.try_in_pod("client", &["timeout", "10", "nc", NAME, &PORT.to_string()]);
        eventually("an answer from the other cluster", DEADLINE, || ask().filter(|answer| answer.trim() == ANSWER));
    }
}

/// Installs the chart on the publisher with its group and Pods; waits until they are ready.
fn set(cluster: &Cluster, image: &Path) {
    cluster.load(image);
    chart::install(cluster, &[]);
    let group = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": "in"},
        "spec": {"type": "ingress", "replicas": 2}});
    cluster.apply(&[group, backend()]);
    cluster.wait(&["--for=condition=ProxyGroupReady", "proxygroup/in"]);
    cluster.wait(&["--for=condition=Available", "deployment/orders"]);
}

/// Pods that send the response to every client.
fn backend() -> Value {
    let serve = ["greeter", &PORT.to_string(), ANSWER];
    let container = json!({"name": "orders", "image": TOOLS, "imagePullPolicy": "Never", "command": serve});
    let template =
        json!({"metadata": {"labels": {"app": "orders"}}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "orders", "namespace": "default"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "orders"}}, "template": template}})
}

/// The publisher's Service: these Pods as `orders` of the tailnet.
pub(crate) fn published() -> Value {
    let annotations = json!({"tailscale.com/proxy-group": "in", "tailscale.com/hostname": "orders"});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "orders", "namespace": "default", "annotations": annotations},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "tailscale", "ipFamilyPolicy": "PreferDualStack",
            "selector": {"app": "orders"}, "ports": [{"port": PORT}]}})
}
