//! Cluster of the former version: an egress group, an ingress group, and standalone proxies of each kind.

use std::path::Path;
use std::time::{Duration, Instant};

use kit::acme_front::Front;
use kit::cluster::chart::{self, NAMESPACE, Version};
use kit::cluster::images::{self, TAILYARD};
use kit::cluster::node::ProxyMode;
use kit::cluster::{Cluster, DEADLINE, pods, site};
use kit::machine::{Machine, Process};
use kit::netns::Server;
use kit::pebble::{Manner, Pebble};
use kit::tailnet::Control;
use kit::tailnet_client::TailnetClient;
use kit::wait::{eventually, until};
use serde_json::{Value, json};
use tailyard::api::names;

use crate::stage::{PORT, whole};

/// Image of the former version.
pub(super) const FORMER: &str = "localhost/tailyard:former";
/// Number of the cluster's nodes.
const NODES: u8 = 2;
/// Response of the backends.
const ANSWER: &str = "hello";
/// Connects per second of each load: compilers may run beside.
const RATES: [&str; 2] = ["50", "20"];
/// Timeout of an attempt of a tailnet client, as in the tier `ingress`.
const PATIENCE: &str = "5s";
/// Time without a write after which the former version has settled.
const QUIET: Duration = Duration::from_secs(10);
/// The same after an upgrade: longer than the time after which a reconciler deletes what it considers replaced.
const LONG_QUIET: Duration = Duration::from_secs(70);

pub(super) struct Site {
    pub(super) cluster: Cluster,
    pub(super) pebble: Pebble,
    front: Front,
    user: TailnetClient,
    _target: (Machine, Process, Server),
}

impl Site {
    /// Starts a cluster with the chart and image of the former version, of which `tree` is the directory.
    pub(super) fn start(tree: &Path) -> Self {
        let cluster = Cluster::start_with(NODES, Control::Hosted, ProxyMode::Nftables);
        let pebble = Pebble::start(&cluster.tailnet, Manner::default());
        let front = Front::start(&cluster.tailnet);
        let user = TailnetClient::join(&cluster.tailnet);
        let (machine, tailscaled) = cluster.tailnet.node("db");
        let server = machine.node.serve(PORT);
        let binaries = [(FORMER, tree.join("target/debug/tailyard")), (TAILYARD, kit::tailyard().into())];
        for (image, binary) in binaries {
            cluster.load(&images::tailyard(&cluster.bin, image, &binary));
        }
        let version = Version { chart: chart::chart_in(tree), image: FORMER };
        chart::install_version(&cluster, &version, &[&format!("proxyImage={FORMER}")]);
        Self { cluster, pebble, front, user, _target: (machine, tailscaled, server) }
    }

    /// Applies groups, Services and Ingresses, and waits until each is served.
    pub(super) fn publish(&self) {
        let cluster = &self.cluster;
        let fqdn = cluster.tailnet.name_of("db");
        cluster.tailnet.set_cert_domains(&[&cluster.tailnet.name_of("alone")]);
        cluster.apply(&site::backends("web", ANSWER));
        cluster.apply(&[pods::client(), site::class(&self.front.directory), site::group("in", "in"), whole::group("eg")]);
        cluster.apply(&[site::ingress("web", "in"), plain(), whole::service("db", "eg", &fqdn), standalone_ingress(), solo(), out(&fqdn)]);
        self.settle(QUIET);
        cluster.wait(&["--for=condition=Ready", "pod/client"]);
        self.assert_serves();
    }

    /// Waits until every Service and Ingress is answered.
    pub(super) fn assert_serves(&self) {
        for (scheme, name) in [("https", "web"), ("https", "alone"), ("http", "plain"), ("http", "default-solo")] {
            self.user.wait_for_answer(scheme, name, ANSWER);
        }
        for service in ["db", "out"] {
            eventually(service, DEADLINE, || (whole::ask(&self.cluster, service)? == "db").then_some(()));
        }
    }

    /// Runs a change under loads of both groups, which lose no connect.
    pub(super) fn measure(&self, what: &str, change: impl FnOnce()) {
        let egress = whole::load(&self.cluster, "load", None, &["--rate", RATES[0]]);
        let ingress = self.user.begin(("web", 443), ANSWER, RATES[1], PATIENCE);
        change();
        for (role, report) in [("ingress", ingress.end()), ("egress", egress.end())] {
            println!("{what}, {role}: {report}");
            report.assert_no_failures(&format!("{what}, {role}"));
        }
    }

    /// Exchanges the reconciler as the chart's README says, with this image of the proxies, and waits until nothing changes any more.
    pub(super) fn upgrade(&self, proxy_image: &str) {
        let cluster = &self.cluster;
        let definitions = chart::chart_in(kit::root()).join("crds").display().to_string();
        cluster.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &definitions]);
        chart::helm(cluster, "upgrade", &[&format!("proxyImage={proxy_image}")], &["--reset-then-reuse-values"]);
        until("Pods of this image only", DEADLINE, || {
            let images = "jsonpath={.items[*].spec.containers[*].image}";
            let images = cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", "tailscale.com/managed=true", "-o", images]);
            images.split_whitespace().all(|image| image == proxy_image)
        });
        until("complete device records", DEADLINE, || self.has_complete_records());
        self.settle(LONG_QUIET);
    }

    /// Whether every device record has name and addresses, which the former version did not record.
    fn has_complete_records(&self) -> bool {
        let secrets = self.objects("secrets");
        let mut records = secrets.iter().filter_map(|secret| secret["metadata"]["annotations"][names::DEVICE].as_str());
        records.all(|record| ["\"name\"", "\"addresses\""].iter().all(|field| record.contains(field)))
    }

    /// Waits until groups are ready and rolled out, Services have their proxies, and the reconciler has written nothing for this time.
    fn settle(&self, quiet: Duration) {
        whole::settled(&self.cluster);
        self.cluster.wait(&["--for=condition=ProxyGroupReady", "proxygroup/in"]);
        self.cluster.rolled_out(NAMESPACE, "statefulset/in");
        self.cluster.wait(&["--for=condition=TailscaleProxyReady", "service/solo", "service/out"]);
        let (mut last, mut since) = (self.versions(), Instant::now());
        until("no more writes", DEADLINE, || {
            let now = self.versions();
            if last != now {
                (last, since) = (now, Instant::now());
            }
            since.elapsed() >= quiet
        });
    }

    /// Resource versions of the objects that proxies do not write.
    fn versions(&self) -> Vec<String> {
        let objects = self.objects("secrets,services,statefulsets,configmaps,roles,proxygroups");
        let by_proxies = |object: &&Value| object["kind"] == "Secret" && !object["metadata"]["annotations"][names::DEVICE].is_string();
        let version = |object: &Value| format!("{} {}", object["metadata"]["uid"], object["metadata"]["resourceVersion"]);
        objects.iter().filter(|object| !by_proxies(object)).map(version).collect()
    }

    /// Objects of these kinds in the namespace of the proxies, or cluster-wide.
    pub(super) fn objects(&self, kinds: &str) -> Vec<Value> {
        self.list(&["get", kinds, "-n", NAMESPACE, "-o", "json"])
    }

    /// Items of a list that kubectl prints.
    pub(super) fn list(&self, args: &[&str]) -> Vec<Value> {
        let mut list: Value = serde_json::from_str(&self.cluster.kubectl(args)).expect("JSON");
        serde_json::from_value(list["items"].take()).expect("a list")
    }

    /// Tailscale Services, as the API has them.
    pub(super) fn vip_services(&self) -> Vec<Value> {
        self.user.services()
    }
}

/// Ingress with a proxy of its own.
fn standalone_ingress() -> Value {
    let mut ingress = site::ingress("alone", "");
    ingress["metadata"]["annotations"] = json!({"tailscale.com/proxy-class": site::CLASS});
    ingress["spec"]["defaultBackend"]["service"]["name"] = json!("web");
    ingress
}

/// Service of the ingress group.
fn plain() -> Value {
    let annotations = json!({"tailscale.com/proxy-group": "in", "tailscale.com/hostname": "plain"});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "plain", "namespace": "default", "annotations": annotations},
        "spec": balanced()})
}

/// Service with a proxy of its own, a device `default-solo`.
fn solo() -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "solo", "namespace": "default"}, "spec": balanced()})
}

fn balanced() -> Value {
    json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "selector": {"app": "web"},
        "ports": [{"name": "http", "port": 80, "targetPort": 8080}]})
}

/// Service of a tailnet node with a proxy of its own, which has a standby.
fn out(fqdn: &str) -> Value {
    let annotations = json!({names::TAILNET_FQDN: fqdn, names::STANDBY: "true"});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "out", "namespace": "default", "annotations": annotations},
        "spec": {"type": "ExternalName", "externalName": "placeholder"}})
}
