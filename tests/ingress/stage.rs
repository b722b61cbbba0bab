//! The cluster, its ACME server, and what a user applies.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::chart::{self, NAMESPACE};
use crate::kubernetes::images::TOOLS;
use crate::kubernetes::{Cluster, eventually};
use crate::pebble::{Manner, Pebble};
use crate::support::{Control, Machine, Process};

/// The group.
pub(crate) const GROUP: &str = "in";
/// How many nodes the cluster has.
const NODES: u8 = 2;
/// What the backends answer.
pub(crate) const ANSWER: &str = "hello";

/// A cluster with the chart installed, two backends, and somebody in the tailnet who asks.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) pebble: Pebble,
    pub(crate) user: Machine,
    /// Who signs the certificates.
    pub(crate) roots: PathBuf,
    _tailscaled: Process,
}

impl Stage {
    /// Starts it; nothing is published yet.
    pub(crate) fn set() -> Self {
        let cluster = Cluster::start_with(NODES, Control::Hosted);
        let pebble = Pebble::start(&cluster.tailnet, Manner::default());
        let (user, tailscaled) = cluster.tailnet.node("user");
        behind_a_gateway(&user);
        let roots = cluster.tailnet.dir().join("roots.pem");
        let stage = Self { cluster, pebble, user, roots, _tailscaled: tailscaled };
        let authority = stage.cluster.tailnet.dir().join("ca.crt").display().to_string();
        let root = stage.curl(&["--cacert", &authority, "https://hs.lab:15000/roots/0"]).expect("the root of the ACME server");
        fs::write(&stage.roots, root).expect("written");
        stage.cluster.load_tailyard(Path::new(env!("CARGO_BIN_EXE_tailyard")));
        chart::install(&stage.cluster, &[]);
        stage.cluster.apply(&backends());
        stage.cluster.apply(&[class(&stage.pebble), group()]);
        stage.cluster.wait(&["--for=condition=ProxyGroupReady", &format!("proxygroup/{GROUP}")]);
        stage.cluster.wait(&["--for=condition=Available", "deployment/web"]);
        stage
    }

    /// Applies an Ingress `web`, a Service `plain` of a load balancer, and a Service `outside` of a DNS name.
    pub(crate) fn publish(&self) {
        let annotations = json!({"tailscale.com/proxy-group": GROUP});
        self.cluster.apply(&[
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
                "metadata": {"name": "web", "namespace": "default", "annotations": annotations},
                "spec": {"ingressClassName": "tailscale", "tls": [{"hosts": ["web"]}],
                    "defaultBackend": {"service": {"name": "web", "port": {"number": 80}}}}}),
            json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "plain", "namespace": "default",
                    "annotations": {"tailscale.com/proxy-group": GROUP, "tailscale.com/hostname": "plain"}},
                "spec": {"type": "LoadBalancer", "loadBalancerClass": "tailscale", "selector": {"app": "web"},
                    "ports": [{"name": "http", "port": 80, "targetPort": 8080}, {"name": "greet", "port": 7000, "targetPort": 7000}]}}),
            json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "outside", "namespace": "default", "annotations": {"tailscale.com/proxy-group": GROUP,
                    "tailscale.com/expose": "true", "tailscale.com/hostname": "outside"}},
                "spec": {"type": "ExternalName", "externalName": "web.default.svc.cluster.local"}}),
        ]);
    }

    /// Waits until a name answers somebody in the tailnet.
    pub(crate) fn reached(&self, scheme: &str, service: &str) {
        eventually(&format!("{scheme} of {service}"), || self.ask(scheme, service).ok());
    }

    /// What a name answers at first; a connection of its own.
    pub(crate) fn ask(&self, scheme: &str, service: &str) -> Result<(), String> {
        let address = self.address(service).ok_or("no Tailscale Service")?;
        let name = self.name(service);
        let port = if scheme == "https" { 443 } else { 80 };
        let resolve = format!("{name}:{port}:{address}");
        let answer = self.curl(&["--resolve", &resolve, &format!("{scheme}://{name}/")])?;
        if answer.trim() == ANSWER { Ok(()) } else { Err(format!("{answer:?}")) }
    }

    /// The name of a Tailscale Service in the tailnet.
    pub(crate) fn name(&self, service: &str) -> String {
        self.cluster.tailnet.name_of(service).trim_end_matches('.').to_owned()
    }

    /// What the replicas that there are said of late, for whoever looks for a cause.
    pub(crate) fn said(&self) -> String {
        let selector = format!("tailscale.com/parent-resource={GROUP}");
        self.cluster.kubectl(&["logs", "-n", NAMESPACE, "-l", &selector, "--all-containers", "--prefix", "--tail=200"])
    }

    fn curl(&self, args: &[&str]) -> Result<String, String> {
        let mut command = self.user.command(Path::new("/usr/bin/curl"));
        // Begun before the address leads anywhere, a connection keeps a source that no answer comes to.
        command.args(["-sS", "--fail", "--connect-timeout", "1", "--max-time", "5"]);
        if self.roots.exists() {
            command.arg("--cacert").arg(&self.roots);
        }
        let output = command.args(args).output().expect("nsenter");
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    }

    /// The IPv4 address of a Tailscale Service.
    pub(crate) fn address(&self, service: &str) -> Option<String> {
        let services = self.cluster.tailnet.api("GET", "/tailnet/-/vip-services");
        let of = |one: &&Value| one["name"] == format!("svc:{service}");
        let one = services["vipServices"].as_array()?.iter().find(of)?;
        Some(one["addrs"][0].as_str()?.to_owned())
    }

    /// The names of all Tailscale Services.
    pub(crate) fn services(&self) -> Vec<String> {
        let services = self.cluster.tailnet.api("GET", "/tailnet/-/vip-services");
        let names = services["vipServices"].as_array().into_iter().flatten();
        names.map(|one| one["name"].as_str().expect("a name").to_owned()).collect()
    }
}

/// Gives a machine a gateway for what no tailnet leads anywhere, which drops it, as those of the world do.
///
/// When an address moves, the stand-in tells first who loses it: for some milliseconds the user's tailnet leads it nowhere, and what
/// is sent then leaves by the machine's own link. The lab's default route has no gateway: there the kernel would keep that packet for the 3 s
/// in which nobody answers for the address, send no other of its connection meanwhile, and then give up.
fn behind_a_gateway(machine: &Machine) {
    let IpAddr::V4(own) = machine.address else { panic!("{} is of the other family", machine.address) };
    let [a, b, c, _] = own.octets();
    let gateway = format!("{a}.{b}.{c}.254");
    machine.node.ip(&format!(
        "neigh add {gateway} lladdr 02:00:00:00:00:fe dev eth0 nud permanent\nroute add 100.64.0.0/10 via {gateway} dev eth0\n"
    ));
}

/// Replicas of the lab order from its ACME server, which the image believes.
fn class(pebble: &Pebble) -> Value {
    let env = json!([{"name": "TAILYARD_ACME_DIRECTORY", "value": pebble.directory()}]);
    json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass", "metadata": {"name": "lab"},
        "spec": {"statefulSet": {"pod": {"tailscaleContainer": {"env": env}}}}})
}

fn group() -> Value {
    json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": GROUP},
        "spec": {"type": "ingress", "replicas": 2, "proxyClass": "lab"}})
}

fn backends() -> [Value; 2] {
    let serve = format!(
        "mkdir -p /tmp/www && echo {ANSWER} > /tmp/www/index.html; nc -ll -p 7000 -e echo {ANSWER} & exec httpd -f -p 8080 -h /tmp/www"
    );
    let container = json!({"name": "web", "image": TOOLS, "imagePullPolicy": "Never", "command": ["sh", "-c", serve]});
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}});
    [
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}}),
    ]
}
