//! Objects of a nameserver: account and rights of its Pods, the `ConfigMap` of its records, Service, `PodDisruptionBudget` and Deployment.
//!
//! The template suits the image of either operator: the `ConfigMap` is mounted, and the probe is a TCP connection.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::{Value, json};

use crate::api::dnsconfig::{DNSConfig, NameserverPod};
use crate::api::names;
use crate::model::controller::kinds::nameserver::inputs::{NAME, NameserverInputs, object};
use crate::model::controller::workload::objects::shape::{HEALTH, image_path};
use crate::model::controller::workload::objects::{Kind, Manifest};
use crate::model::nameserver::records::{CONFIG_MAP, FIELD};

/// Port of the Pods; the Service has port 53.
const PORT: u16 = 1053;
/// Path of the mounted `ConfigMap`.
const MOUNT: &str = "/config";
/// User of the Pods, in either image.
const USER: i64 = 65_532;
/// Tag of an image that the `DNSConfig` names without one, as under the Tailscale operator.
const DEFAULT_TAG: &str = "stable";
/// Time for queries after the termination signal, beyond the nameserver's own.
const TERMINATION_GRACE: i64 = 30;

pub(super) fn manifests(config: &DNSConfig, inputs: &NameserverInputs) -> Vec<Manifest> {
    let of = |kind: Kind, fields: Value| {
        let reference = object(kind, &inputs.namespace);
        let mut value = json!({"apiVersion": kind.api_version(), "kind": kind.name(), "metadata": metadata(config, &reference.namespace, reference.name)});
        if let (Value::Object(value), Value::Object(fields)) = (&mut value, fields) {
            value.extend(fields);
        }
        Manifest::of_value(kind, value)
    };
    let selector = json!({"matchLabels": {"app": NAME}});
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [CONFIG_MAP], "verbs": ["get", "list", "watch"]}]);
    let subjects = json!([{"kind": "ServiceAccount", "name": NAME, "namespace": inputs.namespace}]);
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME});
    vec![
        of(Kind::ServiceAccount, json!({})),
        of(Kind::Role, json!({ "rules": rules })),
        of(Kind::RoleBinding, json!({"roleRef": role, "subjects": subjects})),
        of(Kind::ConfigMap, json!({"data": {FIELD: inputs.records.document}})),
        of(Kind::Service, json!({"spec": service(config, inputs)})),
        of(Kind::PodDisruptionBudget, json!({"spec": {"maxUnavailable": 1, "selector": selector}})),
        of(Kind::Deployment, json!({"spec": deployment(config, inputs, &selector)})),
    ]
}

/// Metadata as of the Tailscale operator; the owner reference makes Kubernetes delete what a stopped reconciler does not.
fn metadata(config: &DNSConfig, namespace: &str, name: String) -> Value {
    let parent = config.metadata.name.clone().unwrap_or_default();
    let labels = [
        (names::MANAGED, "true"),
        (names::PARENT, &parent),
        (names::PARENT_NAMESPACE, namespace),
        (names::PARENT_TYPE, NAME),
        ("app.kubernetes.io/name", "tailscale"),
        ("app.kubernetes.io/component", NAME),
    ];
    let owner = OwnerReference {
        api_version: "tailscale.com/v1alpha1".to_owned(),
        kind: "DNSConfig".to_owned(),
        name: parent.clone(),
        uid: config.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    let labels: BTreeMap<_, _> = labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let metadata = ObjectMeta {
        name: Some(name),
        namespace: Some(namespace.to_owned()),
        labels: Some(labels),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    };
    serde_json::to_value(metadata).unwrap_or_default()
}

/// The address is immutable: that of an existing Service stays.
fn service(config: &DNSConfig, inputs: &NameserverInputs) -> Value {
    let port = |protocol: &str| json!({"name": protocol.to_lowercase(), "port": 53, "targetPort": PORT, "protocol": protocol});
    let mut spec = json!({"type": "ClusterIP", "selector": {"app": NAME}, "ports": [port("UDP"), port("TCP")]});
    let wanted = config.spec.nameserver.service.as_ref().and_then(|service| service.cluster_ip.as_ref()).filter(|ip| !ip.is_empty());
    if let Some(wanted) = wanted {
        let existing = inputs.existing.get(&object(Kind::Service, &inputs.namespace));
        spec["clusterIP"] = existing.and_then(|service| service["spec"].get("clusterIP")).cloned().unwrap_or_else(|| json!(wanted));
    }
    spec
}

fn deployment(config: &DNSConfig, inputs: &NameserverInputs, selector: &Value) -> Value {
    let nameserver = &config.spec.nameserver;
    let empty = NameserverPod::default();
    let pod = nameserver.pod.as_ref().unwrap_or(&empty);
    let apart = json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 100, "podAffinityTerm": {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}}
    ]}});
    let pull_secrets = match pod.image_pull_secrets.as_slice() {
        [] => inputs.pull_secrets.iter().map(|name| json!({ "name": name })).collect(),
        own => own.iter().map(|secret| json!({"name": secret.name})).collect::<Vec<_>>(),
    };
    let mut spec = json!({
        "serviceAccountName": NAME,
        "terminationGracePeriodSeconds": TERMINATION_GRACE,
        "securityContext": {"runAsNonRoot": true, "runAsUser": USER, "seccompProfile": {"type": "RuntimeDefault"}},
        "affinity": pod.affinity.as_ref().map_or(apart, |affinity| serde_json::to_value(affinity).unwrap_or_default()),
        "containers": [container(&image(config, inputs), &inputs.namespace)],
        "volumes": [{"name": CONFIG_MAP, "configMap": {"name": CONFIG_MAP}}],
    });
    let optional = [
        ("imagePullSecrets", json!(pull_secrets), pull_secrets.is_empty()),
        ("tolerations", json!(pod.tolerations), pod.tolerations.is_empty()),
        ("nodeSelector", json!(pod.node_selector), pod.node_selector.is_empty()),
    ];
    for (field, value, _) in optional.into_iter().filter(|(_, _, is_empty)| !is_empty) {
        spec[field] = value;
    }
    json!({
        "replicas": nameserver.desired_replicas(),
        "revisionHistoryLimit": 5,
        "selector": selector,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {"metadata": {"labels": {"app": NAME}}, "spec": spec},
    })
}

/// Image of the Pods: that of the `DNSConfig`, else that of the proxies.
fn image(config: &DNSConfig, inputs: &NameserverInputs) -> String {
    let own = config.spec.nameserver.image.clone().unwrap_or_default();
    let [repo, tag] = [own.repo, own.tag].map(|text| text.filter(|text| !text.is_empty()));
    match (repo, tag) {
        (None, None) => inputs.image.clone(),
        (Some(repo), tag) => format!("{repo}:{}", tag.as_deref().unwrap_or(DEFAULT_TAG)),
        (None, Some(tag)) => format!("{}:{tag}", image_path(&inputs.image)),
    }
}

/// The Tailscale operator's image ignores arguments and variables.
fn container(image: &str, namespace: &str) -> Value {
    let port = |protocol: &str| json!({"name": protocol.to_lowercase(), "protocol": protocol, "containerPort": PORT});
    let probe = |period: u32, failures: u32| json!({"tcpSocket": {"port": PORT}, "periodSeconds": period, "timeoutSeconds": 2, "failureThreshold": failures});
    json!({
        "name": NAME,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": [NAME],
        "env": [
            {"name": "TAILYARD_DNS_CONFIGMAP", "value": format!("{namespace}/{CONFIG_MAP}")},
            {"name": "TAILYARD_DNS_RECORDS_FILE", "value": format!("{MOUNT}/{FIELD}")},
        ],
        "ports": [port("TCP"), port("UDP"), {"name": "metrics", "protocol": "TCP", "containerPort": HEALTH}],
        "readinessProbe": probe(2, 2),
        "livenessProbe": probe(10, 6),
        "resources": {"requests": {"cpu": "20m", "memory": "32Mi"}},
        "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": CONFIG_MAP, "mountPath": MOUNT, "readOnly": true}],
    })
}
