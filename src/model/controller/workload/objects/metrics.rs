//! Objects for scraping a group's metrics: a Service, and a `ServiceMonitor` where the kind exists.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;

use crate::api::names;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::objects::{Kind, Manifest, ObjectRef, Owner, digest};

const JOB: &str = "ts_prom_job";

/// The Service, and the `ServiceMonitor` if requested and its kind exists; empty without metrics.
pub fn metrics(shape: &RenderContext<'_>) -> Vec<Manifest> {
    let Some(metrics) = shape.class.and_then(|class| class.metrics.as_ref()).filter(|metrics| metrics.enable) else {
        return Vec::new();
    };
    let labels = labels(shape);
    let mut metadata = shape.owner.metadata(name(&shape.owner), None);
    metadata.labels = Some(labels.clone());
    let port = ServicePort {
        name: Some("metrics".to_owned()),
        port: shape.health_port().into(),
        target_port: Some(IntOrString::Int(shape.health_port().into())),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    };
    let (type_, selector) = (Some("ClusterIP".to_owned()), Some(shape.owner.labels()));
    let spec = ServiceSpec { type_, selector, ports: Some(vec![port]), ..ServiceSpec::default() };
    let service = Service { metadata: metadata.clone(), spec: Some(spec), ..Service::default() };
    let mut made = vec![Manifest::of(Kind::Service, &service)];
    if let Some(monitor) = metrics.service_monitor.as_ref().filter(|monitor| monitor.enable && shape.settings.service_monitors) {
        let mut all = monitor.labels.clone();
        all.extend(labels.clone());
        metadata.labels = Some(all);
        made.push(Manifest::of_value(
            Kind::ServiceMonitor,
            json!({
                "apiVersion": Kind::ServiceMonitor.api_version(),
                "kind": Kind::ServiceMonitor.name(),
                "metadata": metadata,
                "spec": {
                    "endpoints": [{"port": "metrics"}],
                    "jobLabel": JOB,
                    "targetLabels": [names::PROXY_TYPE, names::PROXY_PARENT, names::PROXY_PARENT_NAMESPACE],
                    "selector": {"matchLabels": labels},
                },
            }),
        ));
    }
    made
}

/// Objects that exist only while metrics are enabled.
pub fn metrics_refs(owner: &Owner) -> [ObjectRef; 2] {
    [Kind::ServiceMonitor, Kind::Service].map(|kind| ObjectRef::new(kind, &owner.namespace, name(owner)))
}

fn name(owner: &Owner) -> String {
    format!("{}-metrics", owner.name)
}

fn labels(shape: &RenderContext<'_>) -> BTreeMap<String, String> {
    let owner = &shape.owner;
    let mut labels = vec![(names::MANAGED, "true".to_owned()), ("tailscale.com/metrics-target", label_value(&owner.name))];
    let (kind, name) = (shape.role().proxy_type, owner.key.name());
    let (namespace, job) = match owner.key.namespace() {
        "" => (None, format!("ts_{kind}_{name}")),
        namespace => (Some(namespace), format!("ts_{kind}_{namespace}_{name}")),
    };
    labels.extend([(names::PROXY_TYPE, kind.to_owned()), (names::PROXY_PARENT, label_value(name)), (JOB, label_value(&job))]);
    labels.extend(namespace.map(|namespace| (names::PROXY_PARENT_NAMESPACE, label_value(namespace))));
    labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// A valid label value: a value longer than 63 bytes becomes a prefix and a hash.
pub fn label_value(value: &str) -> String {
    if value.len() <= 63 {
        return value.to_owned();
    }
    let end = (0..=54).rev().find(|end| value.is_char_boundary(*end)).unwrap_or_default();
    let hash = digest(value.as_bytes());
    format!("{}-{}", &value[..end], &hash[..8])
}
