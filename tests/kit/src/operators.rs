//! Cluster for both operators: their installation, and a user's objects.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use serde_json::json;

use crate::cluster::chart::{self, CONTROL, NAMESPACE, RECONCILER};
use crate::cluster::images::{self, K8S_PROXY, OPERATOR, STOCK, TAILYARD};
use crate::cluster::node::ProxyMode;
use crate::cluster::pods::client;
use crate::cluster::{Cluster, DEADLINE};
use crate::definitions::their_directory;
use crate::guide::{Guide, MIGRATE};
use crate::hosted::CLIENT;
use crate::machine::{Machine, Process};
use crate::netns::Server;
use crate::servers::servers;
use crate::tailnet::Control;
use crate::wait::eventually;

/// The port of the target, and of its Service.
pub const PORT: u16 = 7000;
/// The label of Services' children and of all their endpoints.
const EGRESS: &str = "tailscale.com/svc-type=egress";
/// How many nodes the cluster has.
const NODES: u8 = 2;

/// A cluster with all images, a target in the tailnet and a client Pod.
pub struct Stage {
    pub cluster: Cluster,
    /// The administrator's shell.
    pub guide: Guide,
    _target: (Server, Machine, Process),
}

impl Stage {
    /// Starts the cluster, without an operator.
    pub fn set() -> Self {
        let bin = servers(&["containerboot", "k8s-operator", "k8s-proxy"]);
        let cluster = Cluster::start_with(NODES, Control::Hosted, ProxyMode::Nftables);
        cluster.load_tailyard(Path::new(crate::tailyard()));
        for image in [images::stock(&bin), images::operator(&bin), images::k8s_proxy(&bin)] {
            cluster.load(&image);
        }
        let (machine, tailscaled) = cluster.tailnet.node("db");
        let target = (machine.node.serve(PORT), machine, tailscaled);
        cluster.apply(&[client()]);
        cluster.wait(&["--for=condition=Ready", "pod/client"]);
        let guide = Guide::of(&cluster);
        Self { cluster, guide, _target: target }
    }

    /// Takes over from the Tailscale operator with the commands of docs/migrate.md, and these values of the chart, separated by commas.
    pub fn take_over(&self, values: &str) {
        self.guide.run(MIGRATE, "$ kubectl get deployments", &[]);
        let settings = self.guide.run(MIGRATE, "$ kubectl get deployment -n", &[]);
        assert!(settings.contains("\nPROXY_TAGS=tag:k8s\n"), "{settings}");
        let printed = self.guide.run(MIGRATE, "$ kubectl get secret", &[]);
        let id = printed.split('"').nth(3).unwrap_or_else(|| panic!("no node id in {printed:?}"));
        println!("their operator is {id}");
        self.guide.run(MIGRATE, "$ kubectl scale -n tailscale deployment/operator", &[]);
        let (repository, tag) = TAILYARD.rsplit_once(':').expect("a tag");
        // The values of docs/migrate.md for groups of type kube-apiserver.
        let api_server = "apiServerProxyConfig.allowImpersonation=true,apiServerProxyConfig.impersonation.groups={system:masters}";
        let api_server = format!("{api_server},{values}");
        let local = format!("{repository},image.tag={tag},controlPlane.url={CONTROL},{api_server}");
        self.guide.run(
            MIGRATE,
            "$ helm install",
            &[
                // Nothing is pulled, and the hosted control plane is a stand-in.
                ("registry.example.com/tailyard", &local),
                ("tailscale/tailscale:v1.104.7", STOCK),
                ("NODE_ID", id),
            ],
        );
        self.cluster.rolled_out(NAMESPACE, RECONCILER);
    }

    /// Installs our chart beside a Tailscale operator, with this image for the proxies.
    pub fn install_ours(&self, proxy_image: &str) {
        let values = ["ingress.createClass=false", "controlPlane.credentials.oauth.existingSecret=operator-oauth"];
        chart::helm(&self.cluster, "install", &[&values[..], &[&format!("proxyImage={proxy_image}")]].concat(), &["--skip-crds"]);
    }

    /// Has our reconciler run the proxies with our image, with the command of docs/migrate.md.
    pub fn use_our_image(&self) {
        self.guide.run(MIGRATE, "$ helm upgrade", &[]);
        self.cluster.rolled_out(NAMESPACE, RECONCILER);
    }

    /// Installs the Tailscale operator from its own manifests. Only images, credentials and the control plane URL differ.
    pub fn install_theirs(&self) {
        let read = |file: &str| fs::read_to_string(their_directory().with_file_name("manifests").join(file)).expect("their manifest");
        let manifest = changed(
            &read("operator.yaml"),
            &[
                ("image: tailscale/k8s-operator:stable", &format!("image: {OPERATOR}")),
                ("imagePullPolicy: Always", "imagePullPolicy: IfNotPresent"),
                ("value: tailscale/tailscale:stable", &format!("value: {STOCK}")),
                (
                    "                    - name: PROXY_TAGS\n",
                    &format!(
                        "                    - name: K8S_PROXY_IMAGE\n                      value: {K8S_PROXY}\n                    - name: PROXY_TAGS\n"
                    ),
                ),
                ("client_id: # SET CLIENT ID HERE", &format!("client_id: {}", CLIENT.0)),
                ("client_secret: # SET CLIENT SECRET HERE", &format!("client_secret: {}", CLIENT.1)),
                (
                    "name: OPERATOR_LOGIN_SERVER\n                      value: null",
                    &format!("name: OPERATOR_LOGIN_SERVER\n                      value: {CONTROL}"),
                ),
            ],
        );
        self.cluster.apply_text(&manifest);
        self.cluster.apply_text(&read("authproxy-rbac.yaml"));
        self.cluster.rolled_out(NAMESPACE, "deployment/operator");
    }

    /// Creates a group, its class, and a Service with a tailnet target; waits until all are ready.
    pub fn ask_for_a_group(&self) {
        let annotations = json!({"tailscale.com/proxy-group": "eg", "tailscale.com/tailnet-fqdn": self.cluster.tailnet.name_of("db")});
        self.set_class(None, "first");
        self.cluster.apply(&[
            json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": "eg"},
                "spec": {"type": "egress", "replicas": 2, "proxyClass": "lab"}}),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "db", "namespace": "default", "annotations": annotations},
                "spec": {"type": "ExternalName", "externalName": "placeholder", "ports": [{"name": "db", "port": PORT, "protocol": "TCP"}]}}),
        ]);
        self.ready();
    }

    /// Sets the class's image, if given, and a Pod label that replaces the Pods: the Tailscale operator reverts `kubectl rollout restart`.
    /// Images are never pulled. A hundred proxies fit on two nodes.
    pub fn set_class(&self, image: Option<&str>, label: &str) {
        let mut container = json!({"imagePullPolicy": "IfNotPresent", "resources": {"requests": {"cpu": "10m"}}});
        if let Some(image) = image {
            container["image"] = image.into();
        }
        let init = json!({"imagePullPolicy": "IfNotPresent"});
        let pod = json!({"labels": {"turn": label}, "tailscaleContainer": container, "tailscaleInitContainer": init});
        self.cluster.apply(&[json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass", "metadata": {"name": "lab"},
            "spec": {"statefulSet": {"pod": pod}}})]);
    }

    /// Waits until the group and the Service are ready.
    pub fn ready(&self) {
        self.cluster.wait(&["--for=condition=ProxyGroupReady", "proxygroup/eg"]);
        self.cluster.wait(&["--for=condition=TailscaleEgressSvcReady", "service/db"]);
    }

    /// Replaces every replica.
    pub fn restart(&self) {
        self.cluster.kubectl(&["rollout", "restart", "-n", NAMESPACE, "statefulset/eg"]);
    }

    /// Scales an operator to zero; its workloads continue.
    pub fn stop(&self, deployment: &str) {
        let deployment = format!("deployment/{deployment}");
        self.cluster.kubectl(&["scale", "-n", NAMESPACE, &deployment, "--replicas=0"]);
        // Its status counts no Pods that end, and these write until then.
        let labels = self.cluster.kubectl(&["get", "-n", NAMESPACE, &deployment, "-o", "jsonpath={.spec.selector.matchLabels}"]);
        let labels: BTreeMap<String, String> = serde_json::from_str(&labels).expect("labels");
        let selector: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let pods = || self.cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", &selector.join(","), "-o", "name"]);
        eventually("the end of its Pods", DEADLINE, || pods().is_empty().then_some(()));
    }

    /// The user's view of the Service: spec and external name.
    pub fn service(&self) -> String {
        let what = "jsonpath={.metadata.annotations}{.metadata.finalizers}{.spec}";
        self.cluster.kubectl(&["get", "service/db", "-o", what])
    }

    /// Makes a change of a group's template, and waits until all Pods are of the new one.
    pub fn replaced(&self, group: &str, change: impl FnOnce()) {
        let set = format!("statefulset/{group}");
        let revision = || self.cluster.kubectl(&["get", "-n", NAMESPACE, &set, "-o", "jsonpath={.status.updateRevision}"]);
        let before = revision();
        change();
        eventually("a new template", DEADLINE, || (revision() != before).then_some(()));
        self.cluster.rolled_out(NAMESPACE, &set);
    }

    /// The image of the proxies, as they run.
    pub fn image(&self) -> String {
        let path = "jsonpath={.items[*].spec.containers[?(@.name==\"tailscale\")].image}";
        let images = self.cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", "tailscale.com/parent-resource=eg", "-o", path]);
        let images: BTreeSet<&str> = images.split_whitespace().collect();
        images.into_iter().collect::<Vec<_>>().join(" ")
    }

    /// Creates another group, of one replica, and returns its device.
    pub fn create_another_group(&self) -> u64 {
        self.cluster.apply(&[json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": "new"},
            "spec": {"type": "egress", "replicas": 1, "proxyClass": "lab"}})]);
        self.cluster.wait(&["--for=condition=ProxyGroupReady", "proxygroup/new"]);
        self.cluster.tailnet.node_id("new-0")
    }

    /// Waits until the Tailscale operator has a `StatefulSet` of its own for that group, with the same Pod and device.
    pub fn another_group_returned(&self, device: u64) {
        let what = "jsonpath={.spec.podManagementPolicy} {.spec.template.spec.containers[0].image}";
        eventually("a StatefulSet of theirs", DEADLINE, || {
            let found = self.cluster.try_kubectl(&["get", "-n", NAMESPACE, "statefulset/new", "-o", what]).stdout;
            (found == format!("OrderedReady {STOCK}").as_bytes()).then_some(())
        });
        self.cluster.rolled_out(NAMESPACE, "statefulset/new");
        self.cluster.wait(&["--for=condition=ProxyGroupReady", "proxygroup/new"]);
        assert_eq!(self.cluster.tailnet.node_id("new-0"), device);
    }

    /// Returns the group to the Tailscale operator as docs/migrate.md describes.
    pub fn return_group(&self) {
        self.guide.run(MIGRATE, "ns=tailscale", &[]);
        eventually("no endpoints but theirs", DEADLINE, || {
            let selector = format!("{EGRESS},endpointslice.kubernetes.io/managed-by!=tailscale.com");
            let others = self.cluster.kubectl(&["get", "endpointslices,endpoints", "-n", NAMESPACE, "-l", &selector, "-o", "name"]);
            others.is_empty().then_some(())
        });
        let listed = self.guide.run(MIGRATE, "$ kubectl get endpointslices", &[]);
        let names: Vec<&str> = listed.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        assert!(!names.is_empty() && names.iter().all(|name| name.ends_with("-ipv4") || name.ends_with("-ipv6")), "{listed}");
    }

    /// Expires the key of a replica's device: it has to log in again, and its auth key was used up before.
    pub fn expire(&self, replica: &str) {
        self.cluster.tailnet.api("POST", &format!("/device/{}/expire", self.cluster.tailnet.node_id(replica)));
    }

    /// Number of auth keys that were issued and are not revoked.
    pub fn keys(&self) -> usize {
        self.cluster.tailnet.api("GET", "/tailnet/-/keys")["keys"].as_array().map_or(0, Vec::len)
    }

    /// The stored value of a key of a replica's state Secret.
    pub fn state(&self, replica: &str, key: &str) -> Option<String> {
        let path = format!("jsonpath={{.data.{key}}}");
        let found = self.cluster.kubectl(&["get", "secret", "-n", NAMESPACE, replica, "-o", &path]);
        Some(found).filter(|value| !value.is_empty())
    }

    /// The tailnet's addresses of the replicas.
    pub fn replicas(&self) -> BTreeSet<IpAddr> {
        ["eg-0", "eg-1"].iter().flat_map(|name| self.cluster.tailnet.addresses_of(name)).collect()
    }

    /// Connects through the Service until each replica has forwarded a connection, and no other source was seen.
    pub fn through_both_replicas(&self) {
        let replicas = self.replicas();
        let mut sources = BTreeSet::new();
        eventually("answers through both replicas", DEADLINE, || {
            let ask = ["timeout", "10", "nc", "db.default.svc.cluster.local", &PORT.to_string()];
            let answer = self.cluster.try_in_pod("client", &ask).filter(|answer| !answer.is_empty())?;
            let (name, peer) = answer.trim().split_once(' ').expect("a greeting");
            let peer: SocketAddr = peer.parse().expect("an address");
            assert_eq!(name, "db");
            assert!(replicas.contains(&peer.ip()), "the target sees {peer}, which is none of {replicas:?}");
            let owner = ["eg-0", "eg-1"].into_iter().find(|name| self.cluster.tailnet.addresses_of(name).contains(&peer.ip()));
            sources.extend(owner);
            (sources.len() == 2).then_some(())
        });
    }
}

/// A text with each of these replaced, all of which are in it.
fn changed(text: &str, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(text.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "their manifest has no {from:?}");
        text.replace(from, to)
    })
}
