//! Standalone proxies: of a Service or Ingress without group, with one Pod.
//!
//! State Secrets are not read: those that the Tailscale operator made hold auth keys. The device's name is in the Service's status.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Service};
use serde::Serialize;

use super::UnhealthyCondition;
use super::replicas::{last_error, phase};
use super::snapshot::{ClusterView, StatusPart};
use crate::api::names;
use crate::model::controller::policy::requests::is_recorded;
use crate::model::controller::workload::readiness::is_ready;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StandaloneOverview {
    /// `Service` or `Ingress`.
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub pod: Option<String>,
    /// Whether the proxy receives traffic.
    pub ready: bool,
    /// Pod state in one word; `None` if unknown.
    pub state: Option<String>,
    pub node: Option<String>,
    /// Name or address of the device, or of an egress Service's target.
    pub tailnet: Option<String>,
    /// Error reported by the proxy, else the first condition that is not true.
    pub last_error: Option<String>,
}

/// Kind, namespace and name of the object with the proxy.
type Key = (&'static str, String, String);

/// Proxies by kind, namespace and name.
pub(super) fn standalone(view: &ClusterView) -> Vec<StandaloneOverview> {
    let mut pods: BTreeMap<Key, (&String, &Pod)> = BTreeMap::new();
    for (key, found) in view.pods.iter().filter_map(|(name, pod)| Some((parent(pod)?, (name, pod)))) {
        // Of a proxy with standby the active Pod is ready.
        let shown = pods.entry(key).or_insert(found);
        if is_ready(found.1) {
            *shown = found;
        }
    }
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let key = |service: &Service| ("Service", text(&service.metadata.namespace), text(&service.metadata.name));
    let services = view.services.iter().map(|service| (key(service), service));
    let services: BTreeMap<Key, &Service> = services.filter(|(key, service)| pods.contains_key(key) || is_recorded(service)).collect();
    let pending = services.keys().filter(|key| !pods.contains_key(*key));
    let mut keys: Vec<&Key> = pods.keys().chain(pending).collect();
    keys.sort();
    keys.into_iter().map(|key| one(view, key, pods.get(key).copied(), services.get(key).copied())).collect()
}

/// The object that a standalone proxy's Pod belongs to, by its labels.
fn parent(pod: &Pod) -> Option<Key> {
    let labels = pod.metadata.labels.as_ref()?;
    let kind = match labels.get(names::PARENT_TYPE)?.as_str() {
        names::PARENT_SERVICE => "Service",
        names::PARENT_INGRESS => "Ingress",
        _ => return None,
    };
    Some((kind, labels.get(names::PARENT_NAMESPACE)?.clone(), labels.get(names::PARENT)?.clone()))
}

fn one(view: &ClusterView, (kind, namespace, name): &Key, pod: Option<(&String, &Pod)>, service: Option<&Service>) -> StandaloneOverview {
    let unread = view.gaps.contains_key(&StatusPart::Pods);
    let conditions = service.and_then(|service| service.status.as_ref()?.conditions.as_deref()).unwrap_or_default();
    let unwell = || UnhealthyCondition::of(conditions).into_iter().next().map(|unwell| format!("{}: {}", unwell.reason, unwell.message));
    let pod_name = pod.map(|(name, _)| name);
    let object = pod.map(|(_, pod)| pod);
    StandaloneOverview {
        kind: (*kind).to_owned(),
        namespace: namespace.clone(),
        name: name.clone(),
        ready: object.is_some_and(is_ready),
        state: (!unread).then(|| object.map_or_else(|| "Missing".to_owned(), phase)),
        node: object.and_then(|pod| pod.spec.as_ref()?.node_name.clone()),
        tailnet: service.and_then(tailnet),
        last_error: last_error(object, None, pod_name.and_then(|pod| view.live.get(pod))).or_else(unwell),
        pod: pod_name.cloned(),
    }
}

/// The target of an egress Service, else the first address in the status of a load balancer.
fn tailnet(service: &Service) -> Option<String> {
    let annotations = service.metadata.annotations.as_ref();
    let annotation = |key: &&str| annotations?.get(*key).filter(|text| !text.is_empty()).cloned();
    let target = [names::TAILNET_FQDN, names::TAILNET_IP, names::FORMER_TAILNET_IP].iter().find_map(annotation);
    target.or_else(|| {
        let status = service.status.as_ref()?.load_balancer.as_ref()?.ingress.as_ref()?.first()?;
        status.hostname.clone().or_else(|| status.ip.clone())
    })
}
