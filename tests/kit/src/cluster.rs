//! A real cluster on one machine, on the switch of a real tailnet: a control plane and nodes that run Pods, each a machine of namespaces,
//! with DNS. Tests of whole groups and `make cluster` use it.
//!
//! All processes end with the value, and with this process. The machine's own network, switches and control groups are not changed.

use std::io::Write;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::logs::{print_ends, print_last, shows_path};
use crate::machine::{Boot, INIT};
use crate::servers::servers;
use crate::tailnet::{Control, Tailnet};
use crate::wait::{eventually, report_boot};

pub mod audit;
pub mod chart;
pub mod commands;
pub mod control;
pub mod images;
pub mod load;
pub mod node;
pub mod pki;
pub mod pods;
pub mod site;

use chart::NAMESPACE;
use control::ControlPlane;
use node::{Node, ProxyMode, sweep};
use pki::Pki;

/// Upper bound of every wait on a busy machine.
pub const DEADLINE: Duration = Duration::from_mins(4);
/// Where Pods are.
const PODS: &str = "10.244.0.0/16,fd00:244::/48";
/// The address of the cluster's DNS server.
const DNS: &str = "10.96.0.10";
/// The last byte of a control plane's address, less the number of its first node.
const CONTROL: u8 = 1;
/// Programs of a cluster and its tailnet.
pub const PROGRAMS: [&str; 19] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "runc",
    "bridge",
    "host-local",
    "loopback",
    "portmap",
    "coredns",
    "headscale",
    "tailscaled",
    "tailscale",
];

/// Printed lines of each log.
const LOG_LINES: usize = 60;

/// Two clusters at once would be too much for a small machine.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Waits until no other test of the program has a cluster.
pub fn turn() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cluster.
pub struct Cluster {
    /// Its nodes.
    pub nodes: Vec<Node>,
    /// The control plane.
    pub control: ControlPlane,
    /// The directory of the programs.
    pub bin: PathBuf,
    /// Its keys and certificates.
    pub pki: Pki,
    /// The tailnet of its switch, where proxies join and targets are; other clusters may be on it, too.
    pub tailnet: Arc<Tailnet>,
}

impl Cluster {
    /// Starts a cluster with this number of nodes and waits for nodes and DNS.
    pub fn start(nodes: u8) -> Self {
        Self::start_with(nodes, Control::Headscale, ProxyMode::Nftables)
    }

    /// As [`Self::start`], with another control server of the tailnet and another mode of kube-proxy.
    pub fn start_with(nodes: u8, control: Control, mode: ProxyMode) -> Self {
        Self::start_on(&Self::tailnet(control), 1..=nodes, mode)
    }

    /// A tailnet on which clusters can be started.
    pub fn tailnet(control: Control) -> Arc<Tailnet> {
        Arc::new(Tailnet::start_with([10, 99, 0], control))
    }

    /// As [`Self::start`], on an existing tailnet. No other cluster on it may have nodes of these numbers: names and addresses of machines
    /// and ranges of Pods are made of them. Services have the same range in every cluster.
    pub fn start_on(tailnet: &Arc<Tailnet>, nodes: RangeInclusive<u8>, mode: ProxyMode) -> Self {
        sweep();
        let begin = Instant::now();
        let (bin, tailnet) = (servers(&PROGRAMS), Arc::clone(tailnet));
        let (name, host) = (format!("cp{}", nodes.start()), CONTROL + nodes.start());
        let machine = tailnet.boot(Boot { name: &name, host, init: INIT, cgroups: Vec::new() });
        machine.node.ip(&format!("addr add fd00:99::{host:x}/64 dev eth0 nodad\n"));
        let pki = Pki::new(machine.own_dir());
        let images = images::common(&bin);
        let control = ControlPlane::start(machine, &pki, &bin);
        let mut cluster = Self { nodes: Vec::new(), control, bin, pki, tailnet };
        for index in nodes {
            let address = cluster.control.machine.address;
            let node = Node::start(&cluster.tailnet, address, &cluster.pki, &cluster.bin, (index, mode));
            cluster.nodes.push(node);
        }
        cluster.connect();
        thread::scope(|scope| {
            let (cluster, images) = (&cluster, &images);
            for node in &cluster.nodes {
                scope.spawn(move || images.iter().for_each(|image| node.import(&cluster.bin, image)));
            }
        });
        cluster.apply(&dns(&cluster.tailnet));
        for node in &cluster.nodes {
            cluster.eventually_made(&["get", "node", &node.name]);
        }
        cluster.wait(&["--for=condition=Ready", "node", "--all"]);
        cluster.wait(&["--for=condition=Available", "deployment/coredns", "--namespace=kube-system"]);
        cluster.eventually_made(&["get", "serviceaccount", "default"]);
        report_boot("cluster", begin);
        cluster
    }

    /// Adds routes to the Pods of the other nodes on every machine of the cluster.
    fn connect(&self) {
        for to in &self.nodes {
            let routes = to.routes();
            let others = self.nodes.iter().filter(|node| node.name != to.name).map(|node| &node.machine.node);
            for from in others.chain([&self.control.machine.node]) {
                from.ip(&routes);
            }
        }
    }

    /// Imports the image of a tailyard binary on every node, under the name [`TAILYARD`].
    pub fn load_tailyard(&self, binary: &Path) {
        self.load(&images::tailyard(&self.bin, images::TAILYARD, binary));
    }

    /// Imports an image on every node.
    pub fn load(&self, image: &Path) {
        thread::scope(|scope| {
            for node in &self.nodes {
                scope.spawn(move || node.import(&self.bin, image));
            }
        });
    }

    /// Runs kubectl as the administrator.
    pub fn try_kubectl(&self, args: &[&str]) -> Output {
        self.kubectl_command().args(args).output().expect("nsenter")
    }

    /// Runs kubectl as the administrator and returns its output; a failure panics.
    pub fn kubectl(&self, args: &[&str]) -> String {
        printed(&format!("kubectl {}", args.join(" ")), &self.try_kubectl(args))
    }

    /// Runs helm as the administrator and returns its output; a failure panics.
    pub fn helm(&self, args: &[&str]) -> String {
        let kubeconfig = format!("--kubeconfig={}", self.control.kubeconfig.display());
        let mut command = self.control.machine.command(&servers(&["helm"]).join("helm"));
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, "/run/helm");
        }
        printed(&format!("helm {}", args.join(" ")), &command.arg(kubeconfig).args(args).output().expect("nsenter"))
    }

    /// kubectl as the administrator, to be run.
    pub fn kubectl_command(&self) -> Command {
        control::kubectl(&self.control.machine, &self.bin, &self.control.kubeconfig)
    }

    /// Applies objects with kubectl.
    pub fn apply(&self, objects: &[Value]) {
        self.apply_text(&json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string());
    }

    /// As [`Self::apply`], with objects as they are in a file, in JSON or YAML.
    pub fn apply_text(&self, objects: &str) {
        let mut command = self.kubectl_command();
        command.args(["apply", "--server-side", "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("nsenter");
        child.stdin.take().expect("piped").write_all(objects.as_bytes()).expect("read");
        printed("kubectl apply", &child.wait_with_output().expect("a child"));
    }

    /// Waits by `kubectl wait` until a condition holds; else panics.
    pub fn wait(&self, args: &[&str]) {
        let timeout = format!("--timeout={}s", DEADLINE.as_secs());
        let output = self.try_kubectl(&[&["wait", &timeout], args].concat());
        assert!(output.status.success(), "kubectl wait {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Waits until all Pods of a workload are new and ready; else panics.
    pub fn rolled_out(&self, namespace: &str, workload: &str) {
        let deadline = format!("--timeout={}s", DEADLINE.as_secs());
        let output = self.try_kubectl(&["rollout", "status", "-n", namespace, workload, &deadline]);
        assert!(output.status.success(), "{workload}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Waits until kubectl finds an object.
    pub fn eventually_made(&self, args: &[&str]) {
        eventually(&args.join(" "), DEADLINE, || self.try_kubectl(args).status.success().then_some(()));
    }

    /// The output of a command in a Pod, if the command succeeds.
    pub fn try_in_pod(&self, pod: &str, argv: &[&str]) -> Option<String> {
        let output = self.try_kubectl(&[&["exec", pod, "--"], argv].concat());
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Prints the output of a kubectl command, for a failed test.
    pub fn show(&self, args: &[&str]) {
        let output = self.try_kubectl(args);
        let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        println!("--- kubectl {}\n{stdout}{stderr}", args.join(" "));
    }
}

/// Prints what a failed test left: logs of our Pods first, then Events and objects, which are long.
impl Drop for Cluster {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        let pods = self.try_kubectl(&["get", "pods", "-n", NAMESPACE, "-o", "name"]).stdout;
        for pod in String::from_utf8_lossy(&pods).lines() {
            for run in ["--previous=true", "--previous=false"] {
                let output = self.try_kubectl(&["logs", "-n", NAMESPACE, pod, "--all-containers", "--tail=300", run]).stdout;
                let text = String::from_utf8_lossy(&output);
                let is_shown = |line: &str| !line.contains("tailscaled: ") || shows_path(line);
                print_last(&format!("{pod} {run}"), &text, LOG_LINES, is_shown);
            }
        }
        // If one replica alone does not answer, its peers' logs may show why.
        print_ends(self.tailnet.dir(), "-tailscaled.log", shows_path);
        self.show(&["get", "nodes,pods,services,endpointslices", "-A", "-o", "wide"]);
        self.show(&["get", "events", "-A", "--sort-by=.lastTimestamp"]);
        self.show(&["get", "services", "-n", "default", "-o", "yaml"]);
        self.show(&["get", "proxygroups,secrets,configmaps", "-n", NAMESPACE, "-l", "tailscale.com/managed=true", "-o", "yaml"]);
    }
}

/// The output of a program; a failed program panics.
fn printed(what: &str, output: &Output) -> String {
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// The DNS server of the cluster, which also resolves the tailnet's control server.
fn dns(tailnet: &Tailnet) -> [Value; 6] {
    let meta = |name: &str| json!({"name": name, "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}});
    let corefile = format!(
        ".:53 {{
  errors
  health :8080
  ready :8181
  kubernetes cluster.local in-addr.arpa ip6.arpa {{
    ttl 5
  }}
  hosts {{
    {} hs.lab
    fallthrough
  }}
  cache 5
}}
",
        tailnet.control()
    );
    let rules = json!([
        {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]);
    let subject = json!([{"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}]);
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:coredns"});
    let container = json!({"name": "coredns", "image": images::COREDNS, "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"], "command": ["/coredns"],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}]});
    // On two nodes, so that the loss of one leaves a server.
    let spread = json!({"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"k8s-app": "kube-dns"}}});
    let pod = json!({"metadata": {"labels": {"k8s-app": "kube-dns"}}, "spec": {"serviceAccountName": "coredns",
        "topologySpreadConstraints": [spread], "containers": [container], "volumes": [{"name": "config", "configMap": {"name": "coredns"}}]}});
    [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta("coredns")}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "system:coredns"}, "rules": rules}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "system:coredns"},
            "roleRef": role, "subjects": subject}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("coredns"), "data": {"Corefile": corefile}}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta("coredns"),
            "spec": {"replicas": 2, "selector": {"matchLabels": {"k8s-app": "kube-dns"}}, "template": pod}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": meta("kube-dns"), "spec": {"clusterIP": DNS,
            "selector": {"k8s-app": "kube-dns"},
            "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]}}),
    ]
}
