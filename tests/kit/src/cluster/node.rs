//! A node of a cluster on a machine of its own: containerd, kubelet, kube-proxy, and a bridge for its Pods.
//!
//! A node's control groups are below one of this run's own; the machine's others are never touched.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;

use crate::machine::{Boot, Machine, Process};
use crate::tailnet::Tailnet;

use super::control::url;
use super::images::TOOLS;
use super::pki::{Leaf, Pki, dns_name, flag, ip_name};
use super::{DEADLINE, DNS, PODS, text};
use crate::wait::eventually;

const INIT: &str = include_str!("node-init.sh");
/// The hierarchies of control groups, of which a node has one group each.
const HIERARCHIES: [&str; 9] = ["cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd"];
/// Where they are.
const CGROUPS: &str = "/sys/fs/cgroup";
/// The processor weight of all nodes of a run together. All other processes of the tests share a weight of 1024 (autogroup of their
/// session): load generators and control servers would starve beside a higher one, Pods beside a lower one.
const WEIGHT: &str = "2048";
/// The file of a freezer group with its state.
const FREEZER: &str = "freezer.state";
/// The last byte of the first node's address, less one.
const HOST: u8 = 10;
/// Time for the kernel to end the last process of a control group.
const LEAVING: Duration = Duration::from_secs(30);
/// Disabled containerd plugins: those that this machine does not permit, and those with outside connections.
const DISABLED: [&str; 8] = [
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.erofs",
    "io.containerd.nri.v1.nri",
    "io.containerd.internal.v1.tracing",
    "io.containerd.tracing.processor.v1.otlp",
];

/// The mode of the nodes' kube-proxy.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProxyMode {
    /// The one that kube-proxy recommends.
    Nftables,
    /// The one that most clusters have.
    Iptables,
}

/// A running node; its processes end with it.
pub struct Node {
    /// Its name.
    pub name: String,
    /// The machine.
    pub machine: Machine,
    index: u8,
    containerd: Option<Process>,
    kubelet: Option<Process>,
    proxy: Option<Process>,
    // Dropped last: a group goes when nothing is in it any more.
    cgroups: Cgroups,
}

/// The cgroups of a node, removed with the value.
struct Cgroups(Vec<PathBuf>);

/// A node whose processes are all stopped, until the value is dropped: its kernel goes on to answer.
pub struct Frozen<'a>(&'a Cgroups);

impl Node {
    /// Boots the machine and starts kubelet and containerd. The node becomes ready later.
    pub fn start(tailnet: &Tailnet, control: IpAddr, pki: &Pki, servers: &Path, (index, mode): (u8, ProxyMode)) -> Self {
        let name = format!("n{index}");
        let cgroups = Cgroups::make(&name);
        let machine = tailnet.boot(Boot { name: &name, host: HOST + index, init: INIT, cgroups: cgroups.0.clone() });
        let six = address6(index);
        machine.node.ip(&format!("addr add {six}/64 dev eth0 nodad\n"));
        // Proxy ARP without delay: machines without routes to the nodes reach their Pods.
        let switches = [
            ("net.ipv4.ip_forward", "1"),
            ("net.ipv6.conf.all.forwarding", "1"),
            ("net.ipv4.conf.eth0.proxy_arp", "1"),
            ("net.ipv4.neigh.eth0.proxy_delay", "0"),
        ];
        for (switch, value) in switches {
            machine.node.sysctl(switch, value);
        }
        let names = [dns_name(&name), ip_name(machine.address), ip_name(six.into())];
        let kubelet = format!("kubelet-{name}");
        pki.leaf(&Leaf { file: &kubelet, authority: "ca", subject: &format!("/O=system:nodes/CN=system:node:{name}"), names: &names });
        pki.kubeconfig(&kubelet, &url(control));
        let own = machine.own_dir();
        fs::create_dir_all(own.join("cni")).expect("a directory");
        fs::write(own.join("containerd.toml"), containerd_config(servers, &own)).expect("written");
        fs::write(own.join("kubelet.json"), kubelet_config(pki, &kubelet).to_string()).expect("written");
        fs::write(own.join("kube-proxy.json"), proxy_config(pki, mode).to_string()).expect("written");
        fs::write(own.join("cni/10-pods.conflist"), network_config(index).to_string()).expect("written");
        let mut node = Self { name, machine, index, containerd: None, kubelet: None, proxy: None, cgroups };
        node.start_containerd(servers);
        node.start_kubelet(servers, pki);
        node.proxy = Some(node.run(servers, "kube-proxy", &[flag("config", &own.join("kube-proxy.json")), node.called()]));
        node
    }

    fn called(&self) -> String {
        format!("--hostname-override={}", self.name)
    }

    fn run(&self, servers: &Path, program: &str, flags: &[String]) -> Process {
        let path = format!("{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", servers.display());
        let program_path = text(&servers.join(program));
        let argv: Vec<&str> = std::iter::once(program_path.as_str()).chain(flags.iter().map(String::as_str)).collect();
        self.machine.spawn(program, &argv, &[("PATH", &path)])
    }

    fn start_containerd(&mut self, servers: &Path) {
        self.containerd =
            Some(self.run(servers, "containerd", &["--config".to_owned(), text(&self.machine.own_dir().join("containerd.toml"))]));
        eventually("containerd", DEADLINE, || {
            ctr(&self.machine, servers).arg("version").output().expect("nsenter").status.success().then_some(())
        });
    }

    /// Starts the kubelet, or starts it again.
    pub fn start_kubelet(&mut self, servers: &Path, pki: &Pki) {
        let addresses = format!("--node-ip={},{}", self.machine.address, address6(self.index));
        let kubeconfig = flag("kubeconfig", &pki.path(&format!("kubelet-{}.kubeconfig", self.name)));
        let flags = [flag("config", &self.machine.own_dir().join("kubelet.json")), kubeconfig, self.called(), addresses];
        self.kubelet = Some(self.run(servers, "kubelet", &flags));
    }

    /// Routes to this node's Pods for other machines, as lines for `ip -batch`.
    pub fn routes(&self) -> String {
        let (index, four, six) = (self.index, self.machine.address, address6(self.index));
        format!("route replace 10.244.{index}.0/24 via {four}\nroute replace fd00:244:0:{index}::/64 via {six}\n")
    }

    /// Drops all packets between Pods of the node and other machines.
    pub fn cut_pods(&self) {
        let rules = "add table inet cut\nadd chain inet cut forward { type filter hook forward priority -400; policy drop; }\n";
        self.machine.node.feed(&["nft", "-f", "-"], rules);
    }

    /// Forwards them again.
    pub fn join_pods(&self) {
        self.machine.node.feed(&["nft", "-f", "-"], "delete table inet cut\n");
    }

    /// Stops all processes of the node and its Pods.
    pub fn freeze(&self) -> Frozen<'_> {
        let frozen = Frozen(&self.cgroups);
        self.cgroups.set_freezer("FROZEN").expect("a freezer");
        frozen
    }

    /// Imports an image on the node.
    pub fn import(&self, servers: &Path, image: &Path) {
        let output = ctr(&self.machine, servers).args(import_args(image)).output().expect("nsenter");
        assert!(output.status.success(), "{}: import {}: {}", self.name, image.display(), String::from_utf8_lossy(&output.stderr));
    }
}

/// Arguments of `ctr` for an import.
pub fn import_args(image: &Path) -> [String; 6] {
    let args = ["--namespace=k8s.io", "images", "import", "--local=true", "--snapshotter=overlayfs"].map(str::to_owned);
    let [namespace, images, import, local, snapshotter] = args;
    [namespace, images, import, local, snapshotter, text(image)]
}

/// The node's address of the other family.
fn address6(index: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0, u16::from(HOST + index))
}

fn ctr(machine: &Machine, servers: &Path) -> Command {
    machine.command(&servers.join("ctr"))
}

fn containerd_config(servers: &Path, own: &Path) -> String {
    let disabled = DISABLED.map(|plugin| format!("\"{plugin}\"")).join(", ");
    format!(
        "version = 3
root = \"/var/lib/containerd\"
state = \"/run/containerd\"
disabled_plugins = [{disabled}]
[grpc]
  address = \"/run/containerd/containerd.sock\"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = \"{TOOLS}\"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = [\"{servers}\"]
  conf_dir = \"{own}/cni\"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = \"io.containerd.runc.v2\"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    BinaryName = \"{servers}/runc\"
    SystemdCgroup = false
",
        servers = servers.display(),
        own = own.display()
    )
}

fn network_config(index: u8) -> serde_json::Value {
    let ranges = json!([[{"subnet": format!("10.244.{index}.0/24")}], [{"subnet": format!("fd00:244:0:{index}::/64")}]]);
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
        {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true, "mtu": 1500,
            "ipam": {"type": "host-local", "ranges": ranges, "routes": routes, "dataDir": "/var/lib/cni/networks"}},
        {"type": "portmap", "capabilities": {"portMappings": true}, "backend": "nftables"}]})
}

fn kubelet_config(pki: &Pki, certificate: &str) -> serde_json::Value {
    json!({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": true}, "x509": {"clientCAFile": text(&pki.path("ca.crt"))}},
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": text(&pki.path(&format!("{certificate}.crt"))),
        "tlsPrivateKeyFile": text(&pki.path(&format!("{certificate}.key"))),
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs", "enforceNodeAllocatable": [], "failCgroupV1": false, "failSwapOn": false, "protectKernelDefaults": true,
        "clusterDNS": [DNS], "clusterDomain": "cluster.local", "resolvConf": "/etc/resolv.conf",
        "serializeImagePulls": false, "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "allowedUnsafeSysctls": ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"],
        "syncFrequency": "5s", "nodeStatusUpdateFrequency": "4s", "maxPods": 100})
}

fn proxy_config(pki: &Pki, mode: ProxyMode) -> serde_json::Value {
    // Nothing of the machine's connection tracking is set: it has one for all namespaces.
    let conntrack = json!({"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"});
    json!({"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": mode, "conntrack": conntrack,
        "clientConnection": {"kubeconfig": text(&pki.path("kube-proxy.kubeconfig"))},
        "clusterCIDR": PODS, "metricsBindAddress": "127.0.0.1:10249"})
}

impl Cgroups {
    /// Makes the groups of a node.
    fn make(node: &str) -> Self {
        assert!(
            Path::new(CGROUPS).join("cpu").is_dir(),
            "a node needs control groups of version 1 under {CGROUPS}: boot with systemd.unified_cgroup_hierarchy=0"
        );
        let run = format!("tailyard-{}", std::process::id());
        let group = |hierarchy: &str| Path::new(CGROUPS).join(hierarchy).join(&run).join(node);
        for hierarchy in HIERARCHIES {
            fs::create_dir_all(group(hierarchy)).expect("a control group (root is needed)");
        }
        fs::write(Path::new(CGROUPS).join("cpu").join(&run).join("cpu.shares"), WEIGHT).expect("written");
        // A cpuset group accepts processes only after its processors and memory nodes are set.
        let root = Path::new(CGROUPS).join("cpuset");
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let value = fs::read(root.join(file)).expect("a control file");
            for group in [root.join(&run), root.join(&run).join(node)] {
                fs::write(group.join(file), &value).expect("written");
            }
        }
        Self(HIERARCHIES.map(group).into())
    }

    fn set_freezer(&self, state: &str) -> std::io::Result<()> {
        let group = self.0.iter().find(|group| group.starts_with(Path::new(CGROUPS).join("freezer")));
        fs::write(group.expect("one of the hierarchies").join(FREEZER), state)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.0.set_freezer("THAWED").expect("a freezer");
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for group in &self.0 {
            remove(group);
            // The run's own group goes with its last node, and is busy before.
            let _ = group.parent().map(fs::remove_dir);
        }
    }
}

/// Removes a control group and its children after their last processes have ended.
fn remove(group: &Path) {
    // Frozen processes of a killed run do not end. Other hierarchies lack the file.
    let _ = fs::write(group.join(FREEZER), "THAWED");
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let begin = Instant::now();
    while let Err(fault) = fs::remove_dir(group) {
        if fault.kind() != ErrorKind::ResourceBusy || begin.elapsed() > LEAVING {
            return println!("{} is left: {fault}", group.display());
        }
        thread::park_timeout(Duration::from_millis(20));
    }
}

/// Removes the leftovers of a killed run.
pub fn sweep() {
    for hierarchy in HIERARCHIES {
        for entry in fs::read_dir(Path::new(CGROUPS).join(hierarchy)).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let owner = name.strip_prefix("tailyard-").and_then(|id| id.parse::<u32>().ok());
            if owner.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists()) {
                remove(&entry.path());
            }
        }
    }
}
