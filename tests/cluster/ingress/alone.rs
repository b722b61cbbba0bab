//! Ingress without a group: a proxy of its own, with a certificate of its device's name.

use std::path::Path;

use kit::cluster::chart::{self, NAMESPACE};
use kit::cluster::{Cluster, DEADLINE, site};
use kit::wait::eventually;
use serde_json::json;

use crate::ingress::stage::{ANSWER, Stage};

/// Name of the Ingress and of its device.
const NAME: &str = "solo";
/// Name of the device after a change of the host.
const RENAMED: &str = "duo";

/// Further labels of a certificate Secret.
const CERTIFICATES: &str = ",tailscale.com/secret-type=certs";

/// Serves a site over HTTPS by the name of a device, and deletes all of it.
pub(crate) fn a_site_has_a_proxy_of_its_own(stage: &Stage) {
    let (cluster, issued) = (&stage.cluster, stage.pebble.issued());
    let name = cluster.tailnet.name_of(NAME);
    cluster.tailnet.set_cert_domains(&[&name]);
    let mut ingress = site::ingress(NAME, "");
    ingress["metadata"]["annotations"] = json!({"tailscale.com/proxy-class": site::CLASS, "tailscale.com/http-redirect": "true",
        "tailscale.com/experimental-forward-cluster-traffic-via-ingress": "true"});
    ingress["spec"]["defaultBackend"]["service"]["name"] = json!("web");
    cluster.apply(&[ingress]);
    is_shown(cluster, &name);
    stage.user.wait_for_answer("https", NAME, ANSWER);
    assert_eq!(stage.pebble.issued(), issued + 1, "one order, before the name is shown");
    is_served_to_the_cluster(stage, &name);
    assert!(stage.user.services().iter().all(|service| service["name"] != format!("svc:{NAME}")), "a device, not a Tailscale Service");
    is_renamed_with_its_host(stage);

    cluster.kubectl(&["delete", &format!("ingress/{NAME}"), "--timeout=120s"]);
    assert!(!cluster.tailnet.knows(RENAMED), "its device is deleted before its finalizer");
    chart::wait_gone(cluster, NAME);
    assert_eq!(secrets(cluster, ""), "");
}

/// Waits until the status of the Ingress has this name and both ports.
fn is_shown(cluster: &Cluster, name: &str) {
    let status = || cluster.kubectl(&["get", "ingress", NAME, "-o", "jsonpath={.status.loadBalancer.ingress[0]}"]);
    let is_shown = |status: &String| [&*format!("\"{name}\""), ":443", ":80"].iter().all(|part| status.contains(part));
    eventually("name and ports in the status", DEADLINE, || Some(status()).filter(is_shown));
}

/// Secrets of Ingresses without a group, with these further labels.
fn secrets(cluster: &Cluster, labels: &str) -> String {
    cluster.kubectl(&["get", "secrets", "-n", NAMESPACE, "-l", &format!("tailyard.io/parent-ingress{labels}"), "-o", "name"])
}

/// Another host renames the device in place: the same Pod serves it, with a certificate of its own, and the former one is deleted.
fn is_renamed_with_its_host(stage: &Stage) {
    let (cluster, name, issued) = (&stage.cluster, stage.cluster.tailnet.name_of(RENAMED), stage.pebble.issued());
    let selector = format!("tailscale.com/parent-resource={NAME}");
    let pods = || cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", &selector, "-o", "jsonpath={.items[*].metadata.uid}"]);
    let former = pods();
    let host = format!(r#"[{{"op": "replace", "path": "/spec/tls/0/hosts/0", "value": "{RENAMED}"}}]"#);
    cluster.kubectl(&["patch", "ingress", NAME, "--type=json", "-p", &host]);
    is_shown(cluster, &name);
    stage.user.wait_for_answer("https", RENAMED, ANSWER);
    assert_eq!(stage.pebble.issued(), issued + 1, "one order for the new name");
    assert_eq!(pods(), former, "no restart");
    let only = format!("secret/{name}");
    eventually("the former certificate is deleted", DEADLINE, || (secrets(cluster, CERTIFICATES).trim() == only).then_some(()));
}

/// The Pod's own address serves the site as well; its probes answer there as before.
fn is_served_to_the_cluster(stage: &Stage, name: &str) {
    let cluster = &stage.cluster;
    let selector = format!("tailscale.com/parent-resource={NAME}");
    let pod = cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", &selector, "-o", "jsonpath={.items[0].status.podIP}"]);
    let get = |url: &str| {
        let (roots, resolve) = (cluster.tailnet.dir().join("roots.pem"), format!("{name}:443:{pod}"));
        let mut curl = cluster.nodes[0].machine.command(Path::new("curl"));
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "10", "--resolve", &resolve, url, "--cacert"]).arg(roots);
        let output = curl.output().expect("curl");
        assert!(output.status.success(), "{url} at {pod}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    assert_eq!(get(&format!("https://{name}/")), ANSWER);
    get(&format!("http://{pod}:9002/readyz"));
}
