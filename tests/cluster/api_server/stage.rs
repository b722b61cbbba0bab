//! Cluster with its ACME server, three tailnet clients, Pods for them, and the rights of their groups.

use std::path::Path;
use std::time::{Duration, Instant};

use kit::acme_front::Front;
use kit::cluster::Cluster;
use kit::cluster::chart::{self, NAMESPACE};
use kit::cluster::images::TOOLS;
use kit::cluster::node::ProxyMode;
use kit::cluster::{DEADLINE, site};
use kit::pebble::{Manner, Pebble};
use kit::tailnet::Control;
use kit::wait::eventually;
use serde_json::{Value, json};

use super::user::User;

/// Name of the group and of its Tailscale Service.
pub(crate) const GROUP: &str = "kube";
/// Its name after a change of the host name.
pub(crate) const RENAMED: &str = "cluster";
/// Group of Kubernetes that may change all objects of the namespace `default`.
pub(crate) const DEVS: &str = "devs";
pub(crate) const ALICE: &str = "alice@example.com";
pub(crate) const MALLORY: &str = "mallory@example.com";
/// Tag of the client `ci`.
pub(crate) const TAG: &str = "tag:ci";
/// Pod with a shell that prints a line each second.
pub(crate) const SHELL: &str = "shell";
/// Response of the Pods of the Service `web`.
pub(crate) const ANSWER: &str = "hello";
const NODES: u8 = 2;

pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) pebble: Pebble,
    front: Front,
    /// User of the group [`DEVS`].
    pub(crate) alice: User,
    /// User without grants.
    pub(crate) mallory: User,
    /// Tagged node without grants.
    pub(crate) ci: User,
}

impl Stage {
    /// Starts all; the group is not created yet.
    pub(crate) fn set() -> Self {
        let cluster = Cluster::start_with(NODES, Control::Hosted, ProxyMode::Iptables);
        let (pebble, front) = (Pebble::start(&cluster.tailnet, Manner::default()), Front::start(&cluster.tailnet));
        let tailnet = &cluster.tailnet;
        tailnet.set_login("alice", ALICE);
        tailnet.set_login("mallory", MALLORY);
        let join = |name: &str, args: &[&str]| User::join(tailnet, name, args);
        let (alice, mallory, ci) = (join("alice", &[]), join("mallory", &[]), join("ci", &[&format!("--advertise-tags={TAG}")]));
        let stage = Self { cluster, pebble, front, alice, mallory, ci };
        stage.grant(&[(ALICE, json!([rule()]))]);
        stage.cluster.load_tailyard(Path::new(kit::tailyard()));
        let groups = format!("apiServerProxyConfig.impersonation.groups={{{DEVS},{TAG}}}");
        chart::install(&stage.cluster, &["apiServerProxyConfig.impersonation.users={*}", &groups]);
        stage.cluster.apply(&[stage.class()]);
        stage.cluster.apply(&site::backends("web", ANSWER));
        stage.cluster.apply(&workloads());
        stage.cluster.apply(&rights());
        stage
    }

    /// Creates the group and waits until each client reaches the Kubernetes API through it.
    pub(crate) fn publish(&self) {
        let impersonation = json!({"users": ["*"], "groups": [DEVS, TAG]});
        self.cluster.apply(&[json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": GROUP},
            "spec": {"type": "kube-apiserver", "replicas": 2, "proxyClass": site::CLASS, "kubeAPIServer": {"mode": "auth"},
                "tailyard": {"impersonation": impersonation, "drainTimeoutSeconds": 12}}})]);
        self.is_ready(&self.url(GROUP));
        for user in [&self.alice, &self.mallory] {
            user.configure(GROUP);
        }
        self.ci.configure_by_tailyard(GROUP, GROUP);
        eventually("kubectl over the tailnet", DEADLINE, || self.alice.try_kubectl(&["get", "pods"]).status.success().then_some(()));
        self.cluster.wait(&["--for=condition=Ready", &format!("pod/{SHELL}")]);
        self.cluster.wait(&["--for=condition=Available", "deployment/web"]);
    }

    /// The group's class: its replicas have an access log.
    fn class(&self) -> Value {
        let mut class = site::class(&self.front.directory);
        let env = class["spec"]["statefulSet"]["pod"]["tailscaleContainer"]["env"].as_array_mut().expect("variables");
        env.push(json!({"name": "TAILYARD_LOG_FILTER", "value": "info,tailyard::proxy::api_server=debug"}));
        class
    }

    /// URL of the Kubernetes API under this name.
    pub(crate) fn url(&self, service: &str) -> String {
        format!("https://{}", self.cluster.tailnet.name_of(service))
    }

    /// Waits until the group is ready with this URL.
    pub(crate) fn is_ready(&self, url: &str) {
        let group = format!("proxygroup/{GROUP}");
        self.cluster.wait(&[&format!("--for=jsonpath={{.status.url}}={url}"), &group]);
        for condition in ["ProxyGroupReady", "KubeAPIServerProxyValid", "KubeAPIServerProxyConfigured"] {
            self.cluster.wait(&[&format!("--for=condition={condition}"), &group]);
        }
        self.cluster.rolled_out(NAMESPACE, &format!("statefulset/{GROUP}"));
    }

    /// Changes the group by a merge patch.
    pub(crate) fn patch(&self, change: &Value) {
        self.cluster.kubectl(&["patch", &format!("proxygroup/{GROUP}"), "--type=merge", "-p", &change.to_string()]);
    }

    /// Replaces the policy's grants: a source, and the rules of its capability.
    pub(crate) fn grant(&self, grants: &[(&str, Value)]) {
        self.grant_to("tag:k8s", grants);
    }

    /// The same, with this destination.
    pub(crate) fn grant_to(&self, destination: &str, grants: &[(&str, Value)]) {
        let of = |(source, rules): &(&str, Value)| json!({"src": [source], "dst": [destination], "app": {"tailscale.com/cap/kubernetes": rules}});
        self.cluster.tailnet.set_grants(&grants.iter().map(of).collect());
    }

    /// The grants of all scenarios that do not change them.
    pub(crate) fn restore_grants(&self) {
        self.grant(&[(ALICE, json!([rule()]))]);
        eventually("the former identity", DEADLINE, || self.alice.identity(GROUP, &[]).ok().filter(|user| has_group(user, DEVS)));
    }

    /// Cluster-wide objects of the group.
    pub(crate) fn cluster_roles(&self) -> String {
        let selector = format!("tailscale.com/parent-resource={GROUP}");
        self.cluster.kubectl(&["get", "clusterroles,clusterrolebindings", "-l", &selector, "-o", "name"])
    }

    /// Ordinal of the replica that receives connections to a Tailscale Service, as a client's tailscaled routes them.
    pub(crate) fn primary(&self, service: &str) -> usize {
        let services = self.alice.client.services();
        let service = services.iter().find(|one| one["name"] == format!("svc:{service}")).expect("a Tailscale Service");
        let route = format!("{}/32", service["addrs"][0].as_str().expect("an address"));
        let status: Value = serde_json::from_str(&self.alice.client.machine().tailscale(&["status", "--json"])).expect("JSON");
        let has_route = |peer: &&Value| peer["AllowedIPs"].as_array().into_iter().flatten().any(|one| *one == *route);
        let peer = status["Peer"].as_object().into_iter().flat_map(|peers| peers.values()).find(has_route).expect("a peer with the route");
        let name = peer["HostName"].as_str().expect("a name");
        name.strip_prefix(&format!("{GROUP}-")).and_then(|ordinal| ordinal.parse().ok()).unwrap_or_else(|| panic!("{name} is no replica"))
    }

    /// Logs of the existing replicas without tailscaled's, for failure messages.
    pub(crate) fn logs(&self) -> String {
        let selector = format!("tailscale.com/parent-resource={GROUP}");
        let all = self.cluster.kubectl(&["logs", "-n", NAMESPACE, "-l", &selector, "--all-containers", "--prefix", "--tail=-1"]);
        all.split_inclusive('\n').filter(|line| !line.contains(" tailscaled: ")).collect()
    }

    /// Retries until a value is there, and returns it with the time that it took.
    pub(crate) fn timed<T>(what: &str, attempt: impl FnMut() -> Option<T>) -> (T, Duration) {
        let begin = Instant::now();
        let value = eventually(what, DEADLINE, attempt);
        (value, begin.elapsed())
    }
}

/// The rule of Alice's grant.
pub(crate) fn rule() -> Value {
    json!({"impersonate": {"groups": [DEVS]}})
}

/// Whether a user, as the API server has it, is in a group.
pub(crate) fn has_group(user: &Value, group: &str) -> bool {
    user["groups"].as_array().into_iter().flatten().any(|one| one == group)
}

/// A Pod that runs this shell script once.
pub(crate) fn pod(name: &str, script: &str) -> Value {
    let container = json!({"name": name, "image": TOOLS, "imagePullPolicy": "Never", "command": ["sh", "-c", script], "stdin": true,
        "stdinOnce": true});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}})
}

/// Pods and a `ConfigMap` that clients use.
fn workloads() -> Vec<Value> {
    let config =
        |index| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("page-{index}"), "namespace": "default"}});
    let shell = pod(SHELL, "n=0; while true; do n=$((n+1)); echo line $n; sleep 1; done");
    (0..5).map(config).chain([shell]).collect()
}

/// Rights of the groups.
fn rights() -> [Value; 6] {
    let subject = |name: &str| json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name}]);
    let role = |name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
    let object = |kind: &str, name: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}});
    let bind = |kind: &str, name: &str, group: &str, to: &str| {
        let mut binding = object(kind, name);
        binding["subjects"] = subject(group);
        binding["roleRef"] = role(to);
        binding
    };
    let in_default = |mut binding: Value| {
        binding["metadata"]["namespace"] = json!("default");
        binding
    };
    // Load runs request the root.
    let mut root = object("ClusterRole", "root");
    root["rules"] = json!([{"nonResourceURLs": ["/"], "verbs": ["get"]}]);
    // The role `admin` has no ephemeral containers.
    let mut debug = object("ClusterRole", "debug");
    debug["rules"] = json!([{"apiGroups": [""], "resources": ["pods/ephemeralcontainers"], "verbs": ["patch", "update"]}]);
    [
        debug,
        in_default(bind("RoleBinding", "debug", DEVS, "debug")),
        in_default(bind("RoleBinding", DEVS, DEVS, "admin")),
        in_default(bind("RoleBinding", "ci", TAG, "view")),
        root,
        bind("ClusterRoleBinding", "root", DEVS, "root"),
    ]
}
