//! Proxies in a namespace that admits only Pods of the `restricted` Pod Security Standard.

use kit::cluster::chart::{self, NAMESPACE};
use kit::cluster::{Cluster, site};
use serde_json::json;

use crate::ingress::stage::{ANSWER, Stage};

/// Name of the group, its class and its site.
const NAME: &str = "tight";
/// Name of the Ingress without a group, and of its device.
const ALONE: &str = "slim";

/// Serves sites of a group and of an Ingress without group by proxies without a TUN device and without any privilege, as docs/ingress.md
/// describes; the class also removes the rights of an init container. Egress is refused.
pub(crate) fn a_site_is_served_without_any_right(stage: &Stage) {
    let cluster = &stage.cluster;
    let enforce =
        |level: &str| drop(cluster.kubectl(&["label", "namespace", NAMESPACE, &format!("pod-security.kubernetes.io/enforce{level}")]));
    enforce("=restricted");
    let security = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": true});
    let pod = json!({"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"},
        "sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]});
    let env = json!([{"name": "TS_USERSPACE", "value": "true"}, {"name": "TS_DEBUG_ACME_DIRECTORY_URL", "value": stage.directory()}]);
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    cluster.apply(&[
        json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass", "metadata": {"name": NAME},
            "spec": {"statefulSet": {"pod": {"securityContext": pod, "tailscaleContainer": {"env": env, "securityContext": security},
                "tailscaleInitContainer": {"securityContext": {"privileged": false, "capabilities": {"drop": ["ALL"]}}}}}}}),
        json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": NAME},
            "spec": {"type": "ingress", "replicas": 1, "proxyClass": NAME, "hostnamePrefix": NAME}}),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": {"name": NAME, "namespace": "default", "annotations": {"tailscale.com/proxy-group": NAME}},
            "spec": {"ingressClassName": "tailscale", "tls": [{"hosts": [NAME]}], "defaultBackend": backend}}),
    ]);
    stage.user.wait_for_answer("https", NAME, ANSWER);
    egress_is_refused(cluster);
    a_device_serves_a_site(stage);
    cluster.kubectl(&["delete", &format!("ingress/{NAME}"), &format!("ingress/{ALONE}"), "--timeout=120s"]);
    chart::wait_gone(cluster, ALONE);
    cluster.kubectl(&["delete", &format!("proxygroup/{NAME}"), "--timeout=120s"]);
    chart::wait_gone(cluster, NAME);
    cluster.kubectl(&["delete", &format!("proxyclass/{NAME}")]);
    enforce("-");
}

/// An Ingress without group of this class is served by a device of its own.
fn a_device_serves_a_site(stage: &Stage) {
    stage.cluster.tailnet.set_cert_domains(&[&stage.cluster.tailnet.name_of(ALONE)]);
    let mut ingress = site::ingress(ALONE, "");
    ingress["metadata"]["annotations"] = json!({"tailscale.com/proxy-class": NAME});
    ingress["spec"]["defaultBackend"]["service"]["name"] = json!("web");
    stage.cluster.apply(&[ingress]);
    stage.user.wait_for_answer("https", ALONE, ANSWER);
}

/// An egress group and an egress Service without group of this class get a condition and no Pod.
fn egress_is_refused(cluster: &Cluster) {
    let annotations = json!({"tailscale.com/proxy-class": NAME, "tailscale.com/tailnet-fqdn": cluster.tailnet.name_of(NAME)});
    cluster.apply(&[
        json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": "out"},
            "spec": {"type": "egress", "proxyClass": NAME}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "out", "namespace": "default", "annotations": annotations},
            "spec": {"type": "ExternalName", "externalName": "placeholder"}}),
    ]);
    for (object, condition, reason) in
        [("proxygroup/out", "ProxyGroupReady", "ProxyGroupInvalid"), ("service/out", "TailscaleProxyReady", "ProxyFailed")]
    {
        let field = |field: &str| format!("jsonpath={{.status.conditions[?(@.type==\"{condition}\")].{field}}}");
        cluster.wait(&[&format!("--for={}={reason}", field("reason")), object]);
        let message = cluster.kubectl(&["get", object, "-o", &field("message")]);
        assert!(message.contains("TS_USERSPACE"), "{object}: {message}");
    }
    let sets = cluster.kubectl(&["get", "statefulsets", "-n", NAMESPACE, "-l", "tailscale.com/parent-resource=out", "-o", "name"]);
    assert_eq!(sets, "", "no Pod that could not forward");
    cluster.kubectl(&["delete", "proxygroup/out", "service/out", "--timeout=120s"]);
}
