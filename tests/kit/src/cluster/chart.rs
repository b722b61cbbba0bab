//! The chart on a cluster: our reconcilers, with the tailnet's control server as their control plane.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::images::TAILYARD;
use super::{Cluster, DEADLINE};
use crate::hosted::CLIENT;
use crate::tailnet::Control;
use crate::wait::eventually;

/// Where everything is made.
pub const NAMESPACE: &str = "tailscale";
/// The reconcilers.
pub const RECONCILER: &str = "deployment/tailyard-reconciler";
/// The control plane.
pub const CONTROL: &str = "https://hs.lab:8443";

/// A version of the chart, with the image of its reconcilers.
#[derive(Debug)]
pub struct Version {
    pub chart: PathBuf,
    pub image: &'static str,
}

impl Version {
    /// The version under test.
    pub fn current() -> Self {
        Self { chart: chart_in(crate::root()), image: TAILYARD }
    }
}

/// Directory of the chart in a tree of the repository.
pub fn chart_in(tree: &Path) -> PathBuf {
    tree.join("charts/tailyard")
}

/// Installs the chart as a new user does: a namespace, credentials, and these values besides; the reconcilers are available.
pub fn install(cluster: &Cluster, values: &[&str]) {
    install_version(cluster, &Version::current(), values);
}

/// As [`install`], with a version of the chart.
pub fn install_version(cluster: &Cluster, version: &Version, values: &[&str]) {
    let (kind, data) = match cluster.tailnet.kind() {
        Control::Headscale => {
            let key = cluster.tailnet.headscale(&["apikeys", "create", "-e", "1h"]);
            ("headscale", json!({"api_key": key.lines().last().expect("a key").trim()}))
        }
        Control::Hosted => ("oauth", json!({"client_id": CLIENT.0, "client_secret": CLIENT.1})),
    };
    cluster.apply(&[
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "control", "namespace": NAMESPACE}, "stringData": data}),
    ]);
    let credentials = format!("controlPlane.credentials.{kind}.existingSecret=control");
    helm_version(cluster, version, "install", &[values, &[&credentials]].concat(), &[]);
}

/// Installs or upgrades the chart with these values, which configure the control plane; the number of reconcilers is the chart's default.
pub fn helm(cluster: &Cluster, what: &str, values: &[&str], flags: &[&str]) {
    helm_version(cluster, &Version::current(), what, values, flags);
}

/// As [`helm`], with a version of the chart.
pub fn helm_version(cluster: &Cluster, version: &Version, what: &str, values: &[&str], flags: &[&str]) {
    let (repository, tag) = version.image.rsplit_once(':').expect("a tag");
    let own = format!("image.repository={repository},image.tag={tag},controlPlane.url={CONTROL}");
    let values = [&[&own[..]], values].concat().join(",");
    let chart = version.chart.display().to_string();
    cluster.helm(&[&[what, "tailyard", &chart, "-n", NAMESPACE, "--set", &values], flags].concat());
    cluster.rolled_out(NAMESPACE, RECONCILER);
}

/// Waits until nothing is left of a deleted group: some objects are deleted by their owner references, a moment later.
pub fn wait_gone(cluster: &Cluster, group: &str) {
    let kinds = "secrets,services,statefulsets,configmaps,roles,rolebindings,serviceaccounts,poddisruptionbudgets,pods";
    let selector = format!("tailscale.com/managed=true,tailscale.com/parent-resource={group}");
    let remaining = || cluster.kubectl(&["get", kinds, "-n", NAMESPACE, "-l", &selector, "-o", "name"]);
    eventually(&format!("nothing of ProxyGroup {group} is left"), DEADLINE, || remaining().is_empty().then_some(()));
}
