//! Ingress without a group: a proxy of its own, with a certificate of its device's name.

use std::path::Path;

use kit::cluster::chart::{self, NAMESPACE};
use kit::cluster::{DEADLINE, site};
use kit::wait::eventually;
use serde_json::json;

use crate::ingress::stage::{ANSWER, Stage};

/// Name of the Ingress and of its device.
const NAME: &str = "solo";

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
    let status = || cluster.kubectl(&["get", "ingress", NAME, "-o", "jsonpath={.status.loadBalancer.ingress[0]}"]);
    let is_shown = |status: &String| [&*format!("\"{name}\""), ":443", ":80"].iter().all(|part| status.contains(part));
    eventually("name and ports in the status", DEADLINE, || Some(status()).filter(is_shown));
    stage.user.wait_for_answer("https", NAME, ANSWER);
    assert_eq!(stage.pebble.issued(), issued + 1, "one order, before the name is shown");
    is_served_to_the_cluster(stage, &name);
    assert!(stage.user.services().iter().all(|service| service["name"] != format!("svc:{NAME}")), "a device, not a Tailscale Service");

    cluster.kubectl(&["delete", &format!("ingress/{NAME}"), "--timeout=120s"]);
    assert!(!cluster.tailnet.knows(NAME), "its device is deleted before its finalizer");
    chart::wait_gone(cluster, NAME);
    let secrets = cluster.kubectl(&["get", "secrets", "-n", NAMESPACE, "-l", "tailyard.io/parent-ingress", "-o", "name"]);
    assert_eq!(secrets, "");
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
