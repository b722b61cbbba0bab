//! Ingress without a group: a proxy of its own, with a certificate of its device's name.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use kit::cluster::chart::{self, NAMESPACE};
use kit::cluster::{Cluster, DEADLINE, site};
use kit::wait::eventually;
use serde_json::json;

use crate::ingress::stage::{ANSWER, GROUP, Stage};

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
    is_served_to_the_internet(stage);
    assert!(stage.user.services().iter().all(|service| service["name"] != format!("svc:{NAME}")), "a device, not a Tailscale Service");
    assert_eq!(cluster.doctor().faults(&[]), [""; 0]);
    is_renamed_with_its_host(stage);
    moves_to_the_group_and_back(stage);

    cluster.kubectl(&["delete", &format!("ingress/{NAME}"), "--timeout=120s"]);
    assert!(!cluster.tailnet.knows(RENAMED), "its device is deleted before its finalizer");
    chart::wait_gone(cluster, NAME);
    assert_eq!(secrets(cluster, ""), sorted_secrets(&[&name, &cluster.tailnet.name_of(RENAMED)]), "for the rest of their week");
    // The commands of docs/standalone.md.
    cluster.kubectl(&["delete", "secrets", "-n", NAMESPACE, "-l", "tailscale.com/secret-type=certs,tailyard.io/parent-ingress"]);
    cluster.kubectl(&["delete", "configmaps", "-n", NAMESPACE, "-l", "tailyard.io/certificate-orders-of"]);
    assert_eq!(secrets(cluster, ""), "");
}

/// With Funnel, and only then, clients of the internet reach it.
fn is_served_to_the_internet(stage: &Stage) {
    let funnel = |value: &str| stage.cluster.kubectl(&["annotate", &format!("ingress/{NAME}"), &format!("tailscale.com/funnel{value}")]);
    let is_refused = || stage.user.get_by_funnel(NAME).is_err_and(|answer| answer.starts_with("HTTP/1.1 403 "));
    assert!(is_refused(), "{:?}", stage.user.get_by_funnel(NAME));
    funnel("=true");
    eventually("an answer by Funnel", DEADLINE, || (stage.user.get_by_funnel(NAME).ok()? == ANSWER).then_some(()));
    funnel("-");
    eventually("no answer by Funnel", DEADLINE, || is_refused().then_some(()));
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

/// These certificates, in the form of [`secrets`].
fn sorted_secrets(names: &[&str]) -> String {
    let names: BTreeSet<_> = names.iter().map(|name| format!("secret/{name}\n")).collect();
    names.into_iter().collect()
}

/// Another host renames the device in place: the same Pod serves it, with a certificate of its own. The former one stays for its week.
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
    assert_eq!(
        secrets(cluster, CERTIFICATES),
        sorted_secrets(&[&cluster.tailnet.name_of(NAME), &name]),
        "the former one stays for its week"
    );
}

/// By its annotation it moves to the group and back, with its name.
fn moves_to_the_group_and_back(stage: &Stage) {
    let cluster = &stage.cluster;
    let is_in_group = || stage.user.services().iter().any(|service| service["name"] == format!("svc:{RENAMED}"));
    let selector = format!("tailscale.com/parent-resource={NAME}");
    let has_proxy = || !cluster.kubectl(&["get", "statefulsets", "-n", NAMESPACE, "-l", &selector, "-o", "name"]).is_empty();
    is_moved(stage, &format!("tailscale.com/proxy-group={GROUP}"), || is_in_group() && !has_proxy());
    is_shown(cluster, &cluster.tailnet.name_of(RENAMED));
    is_moved(stage, "tailscale.com/proxy-group-", || !is_in_group() && has_proxy() && cluster.tailnet.knows(RENAMED));
    is_shown(cluster, &cluster.tailnet.name_of(RENAMED));
}

/// Changes an annotation and waits until the Ingress is moved and answers; reports the longest time without an answer by the name.
fn is_moved(stage: &Stage, annotation: &str, is_moved: impl Fn() -> bool) {
    let (begin, mut answered, mut longest) = (Instant::now(), Instant::now(), Duration::ZERO);
    stage.cluster.kubectl(&["annotate", &format!("ingress/{NAME}"), annotation]);
    eventually(annotation, DEADLINE, || {
        let answers = stage.user.get("https", RENAMED).as_deref() == Ok(ANSWER);
        if answers {
            longest = longest.max(answered.elapsed());
            answered = Instant::now();
        }
        (answers && is_moved()).then_some(())
    });
    println!("{annotation}: moved after {:?}, the name was not answered for up to {longest:?}", begin.elapsed());
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
