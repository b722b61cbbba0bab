//! A site as a user writes it: Pods that answer over HTTP, the Service before them, the Ingress, and the group that serves it.

use serde_json::{Value, json};

use super::images::TOOLS;

/// The name of the class.
pub const CLASS: &str = "lab";
/// The port on which the Pods answer without HTTP.
pub const GREETS: u16 = 7000;

/// Pods of this name, which answer this, and their Service.
pub fn backends(name: &str, answer: &str) -> [Value; 2] {
    let serve =
        format!("mkdir -p /tmp/www && echo {answer} > /tmp/www/index.html; greeter {GREETS} {answer} & exec httpd -f -p 8080 -h /tmp/www");
    let container = json!({"name": "web", "image": TOOLS, "imagePullPolicy": "Never", "command": ["sh", "-c", serve]});
    let template = json!({"metadata": {"labels": {"app": name}}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}});
    [
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": template}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
            "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}}),
    ]
}

/// The Ingress of that Service, by a group and under the Service's name.
pub fn ingress(name: &str, group: &str) -> Value {
    let annotations = json!({"tailscale.com/proxy-group": group});
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {"ingressClassName": "tailscale", "tls": [{"hosts": [name]}],
            "defaultBackend": {"service": {"name": name, "port": {"number": 80}}}}})
}

/// The class for orders at an ACME server of the lab, whose CA the images trust; both images read these settings.
pub fn class(directory: &str) -> Value {
    let env = json!([{"name": "TS_DEBUG_ACME_DIRECTORY_URL", "value": directory}]);
    json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass", "metadata": {"name": CLASS},
        "spec": {"statefulSet": {"pod": {"tailscaleContainer": {"env": env}}}}})
}

/// A group of two replicas of that class with this hostname prefix.
pub fn group(name: &str, prefix: &str) -> Value {
    json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": name},
        "spec": {"type": "ingress", "replicas": 2, "proxyClass": CLASS, "hostnamePrefix": prefix}})
}
