//! Standalone proxies: of a Service or Ingress without group, with one Pod.
//!
//! State Secrets are not read: those that the Tailscale operator made hold auth keys. The device's name is in the status of the Service or
//! Ingress.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;

use super::UnhealthyCondition;
use super::ingress_faults::reasons;
use super::published::{certificate_expires, shown_name};
use super::replicas::{last_error, phase};
use super::snapshot::{ClusterView, StatusPart};
use crate::api::names;
use crate::model::controller::policy::requests::{Parent, is_recorded};
use crate::model::controller::workload::finalizers;
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
    /// End of the certificate of an Ingress; `None` if unknown.
    pub certificate_expires: Option<String>,
    /// Error reported by the proxy, else the first condition that is not true, or the reason of an Ingress's fault.
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
    let services = view.services.iter().map(Parent::Service).filter(|parent| has_proxy(*parent));
    let ingresses = view.ingresses.iter().flat_map(BTreeMap::values).map(Parent::Ingress).filter(|parent| has_proxy(*parent));
    let pending: BTreeMap<Key, Parent<'_>> = services.chain(ingresses).map(|parent| (key(parent), parent)).collect();
    let parents = |key: &Key| pending.get(key).copied().or_else(|| find(view, key));
    let faults = reasons(view);
    let keys: BTreeSet<&Key> = pods.keys().chain(pending.keys()).collect();
    keys.into_iter().map(|key| one(view, key, (pods.get(key).copied(), parents(key)), &faults)).collect()
}

fn key(parent: Parent<'_>) -> Key {
    let publisher = parent.publisher();
    (publisher.source.kind(), publisher.namespace, publisher.name)
}

/// Whether an object has a proxy of its own, also one without Pod.
fn has_proxy(parent: Parent<'_>) -> bool {
    match parent {
        Parent::Service(service) => is_recorded(service),
        Parent::Ingress(ingress) => finalizers::has(&ingress.metadata, names::FINALIZER),
    }
}

/// The object with a key.
fn find<'a>(view: &'a ClusterView, wanted: &Key) -> Option<Parent<'a>> {
    if wanted.0 == "Ingress" {
        return view.ingresses.as_ref()?.get(&(wanted.1.clone(), wanted.2.clone())).map(Parent::Ingress);
    }
    view.services.iter().map(Parent::Service).find(|parent| key(*parent) == *wanted)
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

fn one(
    view: &ClusterView,
    (kind, namespace, name): &Key,
    (pod, parent): (Option<(&String, &Pod)>, Option<Parent<'_>>),
    faults: &BTreeMap<(&str, &str), &str>,
) -> StandaloneOverview {
    let unread = view.gaps.contains_key(&StatusPart::Pods);
    let unwell = || match parent? {
        Parent::Service(service) => {
            let conditions = service.status.as_ref()?.conditions.as_deref()?;
            UnhealthyCondition::of(conditions).into_iter().next().map(|unwell| format!("{}: {}", unwell.reason, unwell.message))
        }
        Parent::Ingress(_) => faults.get(&(namespace.as_str(), name.as_str())).map(|reason| (*reason).to_owned()),
    };
    let pod_name = pod.map(|(name, _)| name);
    let object = pod.map(|(_, pod)| pod);
    StandaloneOverview {
        kind: (*kind).to_owned(),
        namespace: namespace.clone(),
        name: name.clone(),
        ready: object.is_some_and(is_ready),
        state: (!unread).then(|| object.map_or_else(|| "Missing".to_owned(), phase)),
        node: object.and_then(|pod| pod.spec.as_ref()?.node_name.clone()),
        tailnet: parent.and_then(tailnet),
        certificate_expires: parent.and_then(|parent| certificate_expires(view, parent)).map(|end| end.to_string()),
        last_error: last_error(object, None, pod_name.and_then(|pod| view.live.get(pod))).or_else(unwell),
        pod: pod_name.cloned(),
    }
}

/// The target of an egress Service, else the first name or address in the status.
fn tailnet(parent: Parent<'_>) -> Option<String> {
    let annotations = parent.metadata().annotations.as_ref();
    let annotation = |key: &&str| annotations?.get(*key).filter(|text| !text.is_empty()).cloned();
    let targets = [names::TAILNET_FQDN, names::TAILNET_IP, names::FORMER_TAILNET_IP];
    let target = targets.iter().find_map(annotation).filter(|_| matches!(parent, Parent::Service(_)));
    target.or_else(|| shown_name(parent))
}
