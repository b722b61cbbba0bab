//! A group in a namespace that admits only Pods of the `restricted` Pod Security Standard.

use kit::cluster::chart::{self, NAMESPACE};
use serde_json::json;

use crate::ingress::stage::{ANSWER, Stage};

/// Name of the group, its class and its site.
const NAME: &str = "tight";

/// Serves a site with replicas without a TUN device and without any privilege, as docs/ingress.md describes.
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
            "spec": {"statefulSet": {"pod": {"securityContext": pod, "tailscaleContainer": {"env": env, "securityContext": security}}}}}),
        json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": NAME},
            "spec": {"type": "ingress", "replicas": 1, "proxyClass": NAME, "hostnamePrefix": NAME}}),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": {"name": NAME, "namespace": "default", "annotations": {"tailscale.com/proxy-group": NAME}},
            "spec": {"ingressClassName": "tailscale", "tls": [{"hosts": [NAME]}], "defaultBackend": backend}}),
    ]);
    stage.user.wait_for_answer("https", NAME, ANSWER);
    cluster.kubectl(&["delete", &format!("ingress/{NAME}"), "--timeout=120s"]);
    cluster.kubectl(&["delete", &format!("proxygroup/{NAME}"), "--timeout=120s"]);
    chart::wait_gone(cluster, NAME);
    cluster.kubectl(&["delete", &format!("proxyclass/{NAME}")]);
    enforce("-");
}
