//! Ingress without a group: a proxy of its own, with a certificate of its device's name.

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
    ingress["metadata"]["annotations"] = json!({"tailscale.com/proxy-class": site::CLASS, "tailscale.com/http-redirect": "true"});
    ingress["spec"]["defaultBackend"]["service"]["name"] = json!("web");
    cluster.apply(&[ingress]);
    let status = || cluster.kubectl(&["get", "ingress", NAME, "-o", "jsonpath={.status.loadBalancer.ingress[0]}"]);
    let is_shown = |status: &String| [&*format!("\"{name}\""), ":443", ":80"].iter().all(|part| status.contains(part));
    eventually("name and ports in the status", DEADLINE, || Some(status()).filter(is_shown));
    stage.user.wait_for_answer("https", NAME, ANSWER);
    assert_eq!(stage.pebble.issued(), issued + 1, "one order, before the name is shown");
    assert!(stage.user.services().iter().all(|service| service["name"] != format!("svc:{NAME}")), "a device, not a Tailscale Service");

    cluster.kubectl(&["delete", &format!("ingress/{NAME}"), "--timeout=120s"]);
    assert!(!cluster.tailnet.knows(NAME), "its device is deleted before its finalizer");
    chart::wait_gone(cluster, NAME);
    let secrets = cluster.kubectl(&["get", "secrets", "-n", NAMESPACE, "-l", "tailyard.io/parent-ingress", "-o", "name"]);
    assert_eq!(secrets, "");
}
