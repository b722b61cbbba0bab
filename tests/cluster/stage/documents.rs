//! The documents for headscale, as a new user follows them: an image, the chart, a group and a Service, an upgrade, and the end of it all.

use std::fs;
use std::path::{Path, PathBuf};

use super::whole::{self, GRACE};
use kit::cluster::chart::{CONTROL, NAMESPACE, RECONCILER};
use kit::cluster::images::TAILYARD;
use kit::cluster::{Cluster, DEADLINE};
use kit::guide::{Guide, HEADSCALE, QUICKSTART, SERVICES, UPGRADE};
use kit::wait::eventually;

const REPOSITORY: &str = "registry.example.com/tailyard";
const URL: &str = "https://headscale.example.com";
const KEY: &str = "headscale apikeys create --expiration 90d";

/// Follows the private CA's section of docs/headscale.md and the quickstart, up to a Service that is ready.
pub(crate) fn start(guide: &Guide, cluster: &Cluster) {
    let dir = cluster.tailnet.dir();
    let (ca, stripped, out) = (dir.join("ca.crt"), dir.join("tailyard"), dir.join("tailyard.tar"));
    let build = format!("--plain-layers --name {TAILYARD} --binary {} --out {}", stripped.display(), out.display());
    guide.run(
        HEADSCALE,
        "$ make build",
        &[
            // The binary under test is compiled already, for other tests too; here it only becomes smaller.
            ("make build", &format!("strip -o {} {}", stripped.display(), kit::tailyard())),
            // Faster without compression, and outside the checkout.
            ("config/image/build tailyard", &format!("config/image/build tailyard {build}")),
            ("ca.crt", &ca.display().to_string()),
        ],
    );
    cluster.load(&out);
    guide.run(QUICKSTART, "$ kubectl create namespace", &[]);
    let (create, key) = credentials(dir);
    guide.run(QUICKSTART, "$ headscale apikeys", &[(KEY, &create), ("THE_KEY", &key)]);
    // The scenarios wait for drains: a group of the sample has the same timeout as theirs.
    guide.run(QUICKSTART, "$ helm install", &[(REPOSITORY, &format!("{} --set drainTimeout={GRACE}s", image())), (URL, CONTROL)]);
    guide.run(QUICKSTART, "$ kubectl apply", &[]);
}

/// Follows docs/headscale.md and the sections of docs/upgrade.md on new versions, where a chart was uninstalled, and waits until its group
/// forwards. Everything is deleted again as the quickstart describes.
pub(crate) fn follow_the_others(guide: &Guide, cluster: &Cluster) {
    cluster.kubectl(&["delete", "secret", "-n", NAMESPACE, "headscale"]);
    let (create, key) = credentials(cluster.tailnet.dir());
    // The namespace has what the first installation left.
    let exists = ("kubectl create namespace", "kubectl get namespace");
    guide.run(HEADSCALE, "$ kubectl create namespace", &[exists, (KEY, &create), ("THE_KEY", &key)]);
    guide.run(HEADSCALE, "$ helm install", &[(REPOSITORY, &image()), (URL, CONTROL)]);
    cluster.rolled_out(NAMESPACE, RECONCILER);
    cluster.wait(&["--for=delete", "proxygroup/eg", "service/db"]);
    whole::wait_gone(cluster, "eg");

    let key = fs::read_to_string(key_file(cluster.tailnet.dir())).expect("a key");
    guide.run(HEADSCALE, "apiVersion: v1\nkind: Secret", &[("THE_KEY", key.trim()), (URL, CONTROL)]);
    guide.run(HEADSCALE, "apiVersion: tailscale.com/v1alpha1\nkind: ProxyGroup", &[]);
    cluster.wait(&["--for=condition=TailnetReady", "tailnet/lab"]);
    cluster.wait(&["--for=condition=ProxyGroupReady", "proxygroup/eg", "proxygroup/web"]);
    cluster.apply(&[whole::service("db", "eg", "db.tail.lab")]);
    cluster.wait(&["--for=condition=TailscaleEgressSvcReady", "service/db"]);
    eventually("an answer through the group of the document", DEADLINE, || (whole::ask(cluster, "db")? == "db").then_some(()));
    assert!(cluster.tailnet.knows("eg-0") && cluster.tailnet.knows("web-0"), "their devices are in headscale");

    guide.run(UPGRADE, "$ kubectl apply --server-side", &[]);
    guide.run(UPGRADE, "$ kubectl set image", &[("IMAGE", TAILYARD)]);
    // A namespace and objects with finalizers would stay for ever.
    let limit = "timeout 120 kubectl delete namespace tailscale\nkubectl delete --timeout=1m proxygroup/web tailnet/lab";
    guide.run(QUICKSTART, "$ kubectl exec", &[("kubectl delete namespace tailscale", limit), ("delete -f", "delete --timeout=1m -f")]);
    guide.finish(SERVICES);
}

/// Commands that create an API key and store it in a file, and a word that stands for it.
fn credentials(dir: &Path) -> (String, String) {
    let file = key_file(dir);
    (format!("{KEY} | tail -n 1 | tee {}", file.display()), format!("$(cat {})", file.display()))
}

fn key_file(dir: &Path) -> PathBuf {
    dir.join("api-key")
}

/// Repository and tag in place of the documented repository; the chart's default is the tag of the release.
fn image() -> String {
    let (repository, tag) = TAILYARD.rsplit_once(':').expect("a tag");
    format!("{repository} --set image.tag={tag}")
}
