//! Proxy group written by hand, in the format of the Tailscale operator and our reconciler: the minimum that a replica needs.

use serde_json::{Value, json};

use kit::cluster::images::TAILYARD;
use kit::tailnet::Tailnet;

/// Match port of the replicas' only service.
const MATCH: u16 = 10_001;

/// An egress config with one service: TCP and UDP to a port of a tailnet node.
pub(crate) fn to(fqdn: &str, port: u16) -> Value {
    let port = |protocol: &str| json!({"protocol": protocol, "matchPort": MATCH, "targetPort": port});
    json!({"db": {"tailnetTarget": {"fqdn": fqdn}, "ports": [port("TCP"), port("UDP")]}})
}

/// All objects of a group with this many replicas, and the Service `<name>-db` of its only service.
pub(crate) fn objects(tailnet: &Tailnet, name: &str, replicas: usize, egress: &Value) -> Vec<Value> {
    let meta = |name: &str| json!({"name": name});
    let pods: Vec<String> = (0..replicas).map(|ordinal| format!("{name}-{ordinal}")).collect();
    let authority = std::fs::read_to_string(tailnet.dir().join("ca.crt")).expect("an authority");
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("authority"), "data": {"ca.crt": authority}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(&format!("{name}-egress-config")),
            "data": {"egress-services": egress.to_string()}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta(name)}),
        role(name, &pods),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": meta(name),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}]}),
        service(name),
        stateful_set(name, &pods),
    ];
    for pod in &pods {
        let config = json!({"Version": "alpha0", "AcceptDNS": false, "AcceptRoutes": false, "Locked": false, "Hostname": pod,
            "ServerURL": "https://hs.lab:8443", "AuthKey": tailnet.key()});
        objects.push(json!({"apiVersion": "v1", "kind": "Secret", "metadata": meta(pod)}));
        objects.push(json!({"apiVersion": "v1", "kind": "Secret", "metadata": meta(&format!("{pod}-config")),
            "stringData": {"cap-106.hujson": config.to_string()}}));
    }
    objects
}

fn role(name: &str, pods: &[String]) -> Value {
    let secrets: Vec<_> = pods.iter().flat_map(|pod| [pod.clone(), format!("{pod}-config")]).collect();
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name}, "rules": [
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch", "patch", "update"], "resourceNames": secrets},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch", "get"]}]})
}

fn service(name: &str) -> Value {
    let port = |protocol: &str| json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": 7000, "targetPort": MATCH});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("{name}-db")}, "spec": {
        "selector": {"app": name}, "ipFamilyPolicy": "RequireDualStack", "ports": [port("TCP"), port("UDP")]}})
}

fn stateful_set(name: &str, pods: &[String]) -> Value {
    let label = json!({"app": name});
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let value = |name: &str, value: &str| json!({"name": name, "value": value});
    let mut mounts = vec![json!({"name": "authority", "mountPath": "/lab"}), json!({"name": "egress", "mountPath": "/etc/proxies"})];
    let mut volumes = vec![
        json!({"name": "authority", "configMap": {"name": "authority"}}),
        json!({"name": "egress", "configMap": {"name": format!("{name}-egress-config")}}),
    ];
    for pod in pods {
        mounts.push(json!({"name": pod, "mountPath": format!("/etc/tsconfig/{pod}"), "readOnly": true}));
        volumes.push(json!({"name": pod, "secret": {"secretName": format!("{pod}-config")}}));
    }
    let env = json!([
        field("POD_IP", "status.podIP"),
        field("POD_IPS", "status.podIPs"),
        field("POD_NAME", "metadata.name"),
        field("POD_UID", "metadata.uid"),
        value("TS_USERSPACE", "false"),
        value("TS_KUBE_SECRET", "$(POD_NAME)"),
        value("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR", "/etc/tsconfig/$(POD_NAME)"),
        value("TS_EXPERIMENTAL_SERVICE_AUTO_ADVERTISEMENT", "false"),
        value("TS_EGRESS_PROXIES_CONFIG_PATH", "/etc/proxies"),
        value("TS_INTERNAL_APP", "k8s-operator-proxygroup-egress"),
        value("TS_ENABLE_HEALTH_CHECK", "true"),
        value("TS_DEBUG_FIREWALL_MODE", "nftables"),
        value("TS_NO_LOGS_NO_SUPPORT", "true"),
        value("SSL_CERT_FILE", "/lab/ca.crt"),
    ]);
    // No command: the image's default command is the proxy.
    let container = json!({"name": "tailscale", "image": TAILYARD, "imagePullPolicy": "Never", "securityContext": {"privileged": true},
        "env": env, "volumeMounts": mounts, "readinessProbe": {"httpGet": {"path": "/readyz", "port": 9002}, "periodSeconds": 1}});
    let spread = json!({"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": label}});
    let pod = json!({"serviceAccountName": name, "terminationGracePeriodSeconds": 30, "topologySpreadConstraints": [spread],
        "containers": [container], "volumes": volumes});
    json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": {"replicas": pods.len(),
        "serviceName": name, "podManagementPolicy": "Parallel", "selector": {"matchLabels": label},
        "template": {"metadata": {"labels": label}, "spec": pod}}})
}
