//! The control plane of a cluster on a machine of its own: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use nix::sys::signal::Signal;

use crate::machine::{Machine, Process};
use crate::servers::GARBAGE_COLLECTION;

use super::pki::{Leaf, Pki, dns_name, flag, ip_name};
use super::{DEADLINE, PODS, audit, text};
use crate::wait::eventually;

/// Where services are.
pub const SERVICES: &str = "10.96.0.0/16,fd00:96::/112";
/// The API server among them.
const API: &str = "10.96.0.1";
/// The program that serves it.
const API_SERVER: &str = "kube-apiserver";
/// The audit policy file of the API server.
const AUDIT: &str = "audit.json";
/// And those that act by it.
const MANAGER: &str = "kube-controller-manager";
const SCHEDULER: &str = "kube-scheduler";

/// The running control plane; its processes end with it.
pub struct ControlPlane {
    /// The machine.
    pub machine: Machine,
    /// The administrator's.
    pub kubeconfig: PathBuf,
    /// The API server first, then those that end without it.
    running: Mutex<Vec<Process>>,
    _etcd: Process,
}

impl ControlPlane {
    /// Starts it on a machine; the API serves.
    pub fn start(machine: Machine, pki: &Pki, servers: &Path) -> Self {
        authorities(pki, machine.address);
        let server = url(machine.address);
        let kubeconfig = pki.client("admin", "/O=system:masters/CN=admin", &server);
        for component in [MANAGER, SCHEDULER, "kube-proxy"] {
            pki.client(component, &format!("/CN=system:{component}"), &server);
        }
        let etcd = run(&machine, servers, "etcd", &etcd_flags());
        let plane = Self { machine, kubeconfig, running: Mutex::default(), _etcd: etcd };
        plane.start_api(pki, servers);
        plane
    }

    /// Kills the API server, the controller manager and the scheduler; etcd and the nodes continue.
    ///
    /// Those two exit anyway when they cannot renew their Lease for ten seconds. A controller manager that survived an outage would
    /// consider the nodes lost and remove their Pods from all endpoints.
    pub fn stop_api(&self) {
        for mut process in self.running.lock().expect("not poisoned").drain(..) {
            process.signal(Signal::SIGKILL);
            process.wait();
        }
    }

    /// Starts them (again); the API serves.
    pub fn start_api(&self, pki: &Pki, servers: &Path) {
        let mut running = self.running.lock().expect("not poisoned");
        running.push(run(&self.machine, servers, API_SERVER, &server_flags(pki, self.machine.address)));
        serves(&self.machine, servers, &self.kubeconfig);
        // These end if they find no API within their first seconds.
        running.push(run(&self.machine, servers, MANAGER, &manager_flags(pki)));
        running.push(run(&self.machine, servers, SCHEDULER, &scheduler_flags(pki)));
    }
}

/// Starts a server on the machine.
fn run(machine: &Machine, servers: &Path, name: &str, flags: &[String]) -> Process {
    let program = text(&servers.join(name));
    let argv: Vec<&str> = std::iter::once(&program).chain(flags).map(String::as_str).collect();
    machine.spawn(name, &argv, &GARBAGE_COLLECTION)
}

fn serves(machine: &Machine, servers: &Path, kubeconfig: &Path) {
    let ready = || kubectl(machine, servers, kubeconfig).args(["get", "--raw", "/readyz"]).output().expect("nsenter").status.success();
    eventually("the API serves", DEADLINE, || ready().then_some(()));
}

/// The administrator's kubectl, on the machine of the control plane.
pub fn kubectl(machine: &Machine, servers: &Path, kubeconfig: &Path) -> Command {
    let mut command = machine.command(&servers.join("kubectl"));
    // Otherwise kubectl caches discovery results in the home directory.
    command.arg(flag("kubeconfig", kubeconfig)).env("KUBECACHEDIR", "/run/kubectl");
    command
}

/// The URL of the API for those on the switch.
pub fn url(address: IpAddr) -> String {
    format!("https://{address}:6443")
}

fn authorities(pki: &Pki, address: IpAddr) {
    fs::write(pki.path(AUDIT), audit::policy()).expect("written");
    pki.authority("ca");
    pki.token_key("tokens");
    let mut names: Vec<_> =
        ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"].map(dns_name).into();
    names.extend([ip_name(address), format!("IP:{API}"), "IP:127.0.0.1".to_owned()]);
    pki.leaf(&Leaf { file: "apiserver", authority: "ca", subject: "/CN=kube-apiserver", names: &names });
    pki.leaf(&Leaf { file: "kubelet-client", authority: "ca", subject: "/O=system:masters/CN=kubelet-client", names: &[] });
}

fn etcd_flags() -> Vec<String> {
    let flags = [
        "--data-dir=/run/etcd",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ];
    flags.map(str::to_owned).into()
}

fn server_flags(pki: &Pki, address: IpAddr) -> Vec<String> {
    let file = |name: &str, file: &str| flag(name, &pki.path(file));
    let mut flags = vec![
        file("tls-cert-file", "apiserver.crt"),
        file("tls-private-key-file", "apiserver.key"),
        file("client-ca-file", "ca.crt"),
        file("kubelet-client-certificate", "kubelet-client.crt"),
        file("kubelet-client-key", "kubelet-client.key"),
        file("kubelet-certificate-authority", "ca.crt"),
        file("service-account-key-file", "tokens.pub"),
        file("service-account-signing-key-file", "tokens.key"),
        file("audit-policy-file", AUDIT),
        format!("--audit-log-path={}", audit::LOG),
        format!("--advertise-address={address}"),
        format!("--service-cluster-ip-range={SERVICES}"),
    ];
    let fixed = [
        "--etcd-servers=http://127.0.0.1:2379",
        "--bind-address=0.0.0.0",
        "--secure-port=6443",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        // As of a cluster with several API servers: clients of HTTP/2 are sent to another one, again and again.
        "--goaway-chance=0.02",
    ];
    flags.extend(fixed.map(str::to_owned));
    flags
}

fn scheduler_flags(pki: &Pki) -> Vec<String> {
    vec![
        flag("kubeconfig", &pki.path("kube-scheduler.kubeconfig")),
        "--leader-elect=false".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
    ]
}

fn manager_flags(pki: &Pki) -> Vec<String> {
    vec![
        flag("kubeconfig", &pki.path("kube-controller-manager.kubeconfig")),
        flag("root-ca-file", &pki.path("ca.crt")),
        flag("service-account-private-key-file", &pki.path("tokens.key")),
        format!("--service-cluster-ip-range={SERVICES}"),
        format!("--cluster-cidr={}", PODS),
        "--allocate-node-cidrs=false".to_owned(),
        "--leader-elect=false".to_owned(),
        "--use-service-account-credentials".to_owned(),
        "--secure-port=0".to_owned(),
        "--node-monitor-period=2s".to_owned(),
    ]
}
