//! The Kubernetes API over headscale, which has neither Tailscale Services nor certificates: the operator's device over HTTP in both modes, and
//! each replica of a group by its own address.

use std::net::IpAddr;
use std::path::Path;

use serde_json::{Value, json};

use crate::stage::{Stage, whole};
use kit::cluster::chart::{self, NAMESPACE};
use kit::cluster::{Cluster, DEADLINE};
use kit::machine::Machine;
use kit::wait::{eventually, until};

const DEVICE: &str = "tailscale-operator";
const SERVICE: &str = "service/tailyard-api-server";
const GROUP: &str = "kube";
/// An account with a token, and its user name.
const ACCOUNT: (&str, &str) = ("reader", "system:serviceaccount:default:reader");

pub(crate) fn kubernetes_api_is_reached_over_http(stage: &Stage) {
    let cluster = &stage.cluster;
    let guest = cluster.tailnet.machine("admin");
    let _tailscaled = guest.tailscaled();
    cluster.tailnet.join(&guest, &[]);
    cluster.kubectl(&["create", "serviceaccount", ACCOUNT.0]);
    let token = format!("Authorization: Bearer {}", cluster.kubectl(&["create", "token", ACCOUNT.0]).trim());

    set_mode(cluster, "true");
    until("its Service", DEADLINE, || cluster.try_kubectl(&["get", "-n", NAMESPACE, SERVICE]).status.success());
    cluster.wait(&["-n", NAMESPACE, "--for=condition=TailscaleProxyReady", SERVICE]);
    let device = || user(cluster, &guest, DEVICE, None);
    let name = eventually("the tailnet identity", DEADLINE, device);
    println!("user of the client at headscale: {name}");
    assert!(!name.starts_with("system:"), "{name}");
    set_mode(cluster, "noauth");
    let with_token = |device: &str| user(cluster, &guest, device, Some(&token));
    eventually("the identity of the token by the device", DEADLINE, || with_token(DEVICE).filter(|user| user == ACCOUNT.1));
    assert_eq!(device(), None, "no other identity");
    set_mode(cluster, "false");
    until("no Service", DEADLINE, || !cluster.try_kubectl(&["get", "-n", NAMESPACE, SERVICE]).status.success());
    assert!(!cluster.tailnet.knows(DEVICE), "its device is deleted");

    cluster.apply(&[json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": GROUP},
        "spec": {"type": "kube-apiserver", "replicas": 2, "kubeAPIServer": {"mode": "noauth"},
            "tailyard": {"kubeAPIServer": {"http": true}, "drainTimeoutSeconds": whole::GRACE}}})]);
    for replica in ["kube-0", "kube-1"] {
        eventually(&format!("an answer of {replica}"), DEADLINE, || with_token(replica).filter(|user| user == ACCOUNT.1));
    }
    let conditions = cluster.kubectl(&["get", &format!("proxygroup/{GROUP}"), "-o", "jsonpath={.status.conditions}"]);
    println!("conditions of the group: {conditions}");
    cluster.kubectl(&["delete", &format!("proxygroup/{GROUP}"), &format!("serviceaccount/{}", ACCOUNT.0), "--timeout=120s"]);
    whole::wait_gone(cluster, GROUP);
}

/// Sets the mode of the operator's API server proxy by the chart, over HTTP.
fn set_mode(cluster: &Cluster, mode: &str) {
    let mode = format!("apiServerProxyConfig.mode={mode}");
    let values = [&mode[..], "apiServerProxyConfig.http=true", "operatorConfig.defaultTags={tag:k8s}"];
    chart::helm(cluster, "upgrade", &values, &["--reset-then-reuse-values"]);
}

/// User of a request to a device with this header, as the API server has it.
fn user(cluster: &Cluster, guest: &Machine, device: &str, header: Option<&str>) -> Option<String> {
    let tailnet = &cluster.tailnet;
    let address = tailnet.knows(device).then(|| tailnet.addresses_of(device).into_iter().find(IpAddr::is_ipv4))??;
    let name = tailnet.name_of(device);
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).to_string();
    let mut command = guest.command(Path::new("/usr/bin/curl"));
    command.args(["-sS", "--max-time", "10", "--resolve", &format!("{name}:80:{address}")]);
    command.args(["-H", "Content-Type: application/json", "--data", &review]);
    command.args(header.into_iter().flat_map(|header| ["-H", header]));
    let output = command.arg(format!("http://{name}/apis/authentication.k8s.io/v1/selfsubjectreviews")).output().expect("nsenter");
    let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
    answer["status"]["userInfo"]["username"].as_str().map(str::to_owned)
}
