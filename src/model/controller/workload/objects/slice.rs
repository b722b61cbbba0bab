//! `EndpointSlice`s of child Services, as Kubernetes' controller of `EndpointSlice`s writes them.
//!
//! That controller sends 20 requests a second, so the last of a thousand Services waits for minutes. The reconciler writes the same
//! content earlier, and the controller finds nothing to change. Hints follow from the child's
//! `trafficDistribution`. Fields that depend on more than Pods and child (other hints, host names) are never written: a slice with them is
//! left to the controller.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::api::condition::TRUE;
use crate::api::names;
use crate::api::proxygroup::TrafficDistribution;
use crate::model::base::net::Family;
use crate::model::controller::workload::objects::child::selector_labels;
use crate::model::controller::workload::objects::{Kind, Manifest, ObjectRef};
use crate::model::controller::workload::readiness::pod_addresses;

/// Label with the name of a slice's Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label with the writer of a slice.
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`] of Kubernetes' controller.
pub const CONTROLLER: &str = "endpointslice-controller.k8s.io";
/// Annotation with the time of the change that a write follows. An old one would distort kube-proxy's latency metric.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
const ZONE: &str = "topology.kubernetes.io/zone";

/// A slice of Kubernetes' controller for a child, as cached: ten thousand children have twenty thousand of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildSlice {
    pub name: Box<str>,
    pub child: Arc<str>,
    pub group: Box<str>,
    /// `resourceVersion`.
    pub version: u64,
    /// Hash of its owner's UID.
    owner: u64,
    family: Family,
    /// Whether an endpoint receives traffic.
    pub ready: bool,
    /// Whether an endpoint has hints.
    hinted: bool,
    /// Endpoints; `None` if there are others than replicas, or fields that are never written here.
    endpoints: Option<Box<[SliceEndpoint]>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct SliceEndpoint {
    ordinal: u32,
    state: EndpointState,
    /// Hash of its node's name.
    node: u64,
    zone: Option<Box<str>>,
}

/// The compared part of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct EndpointState {
    /// Hash of UID, address and node.
    identity: u64,
    ready: bool,
    serving: bool,
    terminating: bool,
}

#[derive(Debug, Clone)]
pub struct PodEndpoint<'a> {
    ordinal: u32,
    pod: &'a Pod,
    /// `resourceVersion` of the Pod: a slice of a later version includes the Pod's state, or its writer will.
    version: u64,
    /// Addresses by family, of a Pod that has not ended.
    addresses: [Option<IpAddr>; 2],
    zone: Option<String>,
}

/// A child Service as the owner of slices.
#[derive(Debug, Clone, Copy)]
pub struct SliceOwner<'a> {
    object: &'a ObjectRef,
    child: &'a Value,
    owner: u64,
    publishes_unready: bool,
    distribution: Option<TrafficDistribution>,
}

/// A slice that is missing, or that is outdated.
#[derive(Debug, Clone, Copy)]
pub struct StaleSlice<'a> {
    owner: SliceOwner<'a>,
    family: Family,
    existing: Option<&'a ChildSlice>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum SliceWrite {
    /// A slice that does not exist.
    Create(Manifest),
    /// A merge patch with the slice's version as precondition.
    Change { object: ObjectRef, patch: Value },
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

impl ChildSlice {
    /// Reads a slice; `None` if it is not one of Kubernetes' controller for a child.
    pub fn read(slice: &Value) -> Option<Self> {
        let metadata = slice.get("metadata")?;
        let label = |key: &str| text(metadata.get("labels")?, key);
        if label(MANAGED_BY) != Some(CONTROLLER) || label(names::SERVICE_TYPE) != Some(names::EGRESS) {
            return None;
        }
        let family = Family::ALL.into_iter().find(|family| slice["addressType"] == *family.name())?;
        let owner = metadata["ownerReferences"].as_array().into_iter().flatten().find(|owner| owner["kind"] == "Service");
        let group = label(names::PROXY_GROUP)?;
        let endpoints = || slice["endpoints"].as_array().into_iter().flatten();
        Some(Self {
            name: text(metadata, "name")?.into(),
            child: label(SERVICE_NAME)?.into(),
            group: group.into(),
            version: text(metadata, "resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(u64::MAX),
            owner: hash(owner.and_then(|owner| text(owner, "uid"))),
            family,
            ready: endpoints().any(|endpoint| endpoint["conditions"]["ready"] != false),
            hinted: endpoints().any(|endpoint| !endpoint["hints"].is_null()),
            endpoints: endpoints().map(|endpoint| SliceEndpoint::read(endpoint, group)).collect(),
        })
    }

    /// Whether both are for the same child and IP family.
    pub fn replaces(&self, other: &Self) -> bool {
        self.child == other.child && self.owner == other.owner && self.family == other.family
    }

    /// Whether a Pod has changed since the slice was written, and receives traffic when it should not, or the reverse. Other changes, of
    /// which the restart of a Pod has three, are left to the controller.
    fn is_outdated(&self, pods: &[PodEndpoint<'_>], publishes_unready: bool) -> bool {
        let Some(endpoints) = &self.endpoints else { return false };
        let ready = |state: EndpointState| state.ready.then_some(state.identity);
        let written = |ordinal: u32| endpoints.iter().find(|endpoint| endpoint.ordinal == ordinal).map(|endpoint| endpoint.state);
        let differs =
            |pod: &PodEndpoint<'_>| written(pod.ordinal).and_then(ready) != pod.state(self.family, publishes_unready).and_then(ready);
        pods.iter().any(|pod| pod.version > self.version && differs(pod))
    }
}

impl SliceEndpoint {
    fn read(endpoint: &Value, group: &str) -> Option<Self> {
        const WRITTEN: [&str; 6] = ["addresses", "conditions", "hints", "nodeName", "targetRef", "zone"];
        let target = endpoint.get("targetRef")?;
        let ordinal = text(target, "name")?.strip_prefix(group)?.strip_prefix('-')?.parse().ok()?;
        let others = endpoint.as_object()?.iter().any(|(key, value)| !WRITTEN.contains(&key.as_str()) && !value.is_null());
        let [address] = endpoint["addresses"].as_array()?.as_slice() else { return None };
        if others || target["kind"] != "Pod" || !has_own_hints(endpoint) {
            return None;
        }
        let node = text(endpoint, "nodeName");
        let address: IpAddr = address.as_str()?.parse().ok()?;
        let condition = |name: &str| endpoint["conditions"].get(name).and_then(Value::as_bool);
        let ready = condition("ready").unwrap_or(true);
        let state = EndpointState {
            identity: hash((text(target, "uid"), address, node)),
            ready,
            serving: condition("serving").unwrap_or(ready),
            terminating: condition("terminating").unwrap_or(false),
        };
        Some(Self { ordinal, state, node: hash(node), zone: text(endpoint, "zone").map(Into::into) })
    }
}

/// Whether hints, if any, name the endpoint's own zone and node.
fn has_own_hints(endpoint: &Value) -> bool {
    let own = |list: &Value, name: &Value| list.is_null() || *list == json!([{"name": name}]);
    let hints = endpoint["hints"].as_object();
    hints.into_iter().flatten().all(|(key, list)| match key.as_str() {
        "forZones" => own(list, &endpoint["zone"]),
        "forNodes" => own(list, &endpoint["nodeName"]),
        _ => list.is_null(),
    })
}

impl<'a> PodEndpoint<'a> {
    pub fn new(ordinal: u32, pod: &'a Pod) -> Self {
        let addresses = Family::ALL.map(|family| pod_addresses(pod).find(|ip| Family::of(*ip) == family));
        let version = pod.metadata.resource_version.as_ref().and_then(|version| version.parse().ok()).unwrap_or_default();
        let zone = pod.metadata.labels.as_ref().and_then(|labels| labels.get(ZONE)).cloned();
        Self { ordinal, pod, version, addresses, zone }
    }

    /// Reads its node's zone in slices, unless the API server has labelled the Pod with it (since Kubernetes 1.35).
    pub fn learn_zone<'s>(&mut self, slices: impl IntoIterator<Item = &'s ChildSlice>) {
        let node = hash(self.node());
        let endpoints = slices.into_iter().flat_map(|slice| slice.endpoints.iter().flatten());
        let mut zones = endpoints.filter(|endpoint| endpoint.node == node).filter_map(|endpoint| endpoint.zone.as_deref());
        self.zone = self.zone.take().or_else(|| zones.next().map(str::to_owned));
    }

    fn address(&self, family: Family) -> Option<IpAddr> {
        self.addresses[usize::from(family == Family::V6)]
    }

    fn node(&self) -> Option<&str> {
        self.pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
    }

    fn state(&self, family: Family, publishes_unready: bool) -> Option<EndpointState> {
        let conditions = self.pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let serving = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == TRUE);
        let terminating = self.pod.metadata.deletion_timestamp.is_some();
        let identity = hash((self.pod.metadata.uid.as_deref(), self.address(family)?, self.node()));
        Some(EndpointState { identity, ready: publishes_unready || (serving && !terminating), serving, terminating })
    }

    fn endpoint(&self, family: Family, owner: SliceOwner<'_>) -> Option<Value> {
        let EndpointState { ready, serving, terminating, .. } = self.state(family, owner.publishes_unready)?;
        let metadata = &self.pod.metadata;
        let mut endpoint = json!({
            "addresses": [self.address(family)?.to_string()],
            "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
            "targetRef": {"kind": "Pod", "namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid},
        });
        for (key, value) in [("nodeName", self.node()), ("zone", self.zone.as_deref())] {
            if let Some(value) = value {
                endpoint[key] = value.into();
            }
        }
        if let Some(distribution) = owner.distribution.filter(|_| ready) {
            let node = self.node().filter(|_| distribution == TrafficDistribution::PreferSameNode);
            for (key, name) in [("forZones", self.zone.as_deref()), ("forNodes", node)] {
                if let Some(name) = name {
                    endpoint["hints"][key] = json!([{"name": name}]);
                }
            }
        }
        Some(endpoint)
    }
}

impl<'a> SliceOwner<'a> {
    pub fn new(object: &'a ObjectRef, child: &'a Value) -> Self {
        let publishes_unready = child["spec"]["publishNotReadyAddresses"] == true;
        let distribution = text(&child["spec"], "trafficDistribution").and_then(TrafficDistribution::parse);
        Self { object, child, owner: hash(text(&child["metadata"], "uid")), publishes_unready, distribution }
    }

    /// Missing and outdated slices. Several slices of a family are left to Kubernetes' controller, which is about to change them.
    pub fn stale(self, slices: &'a [Arc<ChildSlice>], pods: &[PodEndpoint<'_>]) -> impl Iterator<Item = StaleSlice<'a>> {
        let families = Family::ALL.into_iter().filter(move |family| self.has(*family));
        families.filter_map(move |family| {
            let mut own = slices.iter().filter(|slice| slice.family == family && slice.owner == self.owner);
            let existing = own.next().map(Arc::as_ref);
            let is_stale = match existing {
                None => pods.iter().any(|pod| pod.address(family).is_some()),
                Some(slice) => own.next().is_none() && self.writes_hints_of(slice) && slice.is_outdated(pods, self.publishes_unready),
            };
            is_stale.then_some(StaleSlice { owner: self, family, existing })
        })
    }

    /// Whether hints of a slice, if any, follow from the child's `trafficDistribution`.
    fn writes_hints_of(self, slice: &ChildSlice) -> bool {
        let of_child = text(&self.child["spec"], "trafficDistribution");
        self.distribution.is_some() || (of_child.is_none() && !slice.hinted)
    }

    fn has(self, family: Family) -> bool {
        let families = self.child["spec"]["ipFamilies"].as_array().into_iter().flatten();
        families.filter_map(Value::as_str).any(|name| name == family.name())
    }

    /// Ports of the endpoints; `None` unless all are numbers.
    fn ports(self) -> Option<Value> {
        let port = |port: &Value| {
            let mut endpoint = json!({
                "name": text(port, "name").unwrap_or_default(),
                "port": port["targetPort"].as_u64()?,
                "protocol": text(port, "protocol").unwrap_or("TCP"),
            });
            if let Some(protocol) = port.get("appProtocol") {
                endpoint["appProtocol"] = protocol.clone();
            }
            Some(endpoint)
        };
        self.child["spec"]["ports"].as_array()?.iter().map(port).collect()
    }

    /// Whether it selects exactly the group's Pods.
    fn selects(self, group: &str) -> bool {
        let wanted = selector_labels(group);
        let selects = |found: &Map<String, Value>| found.len() == wanted.len() && wanted.iter().all(|(key, value)| found[*key] == *value);
        self.child["spec"]["selector"].as_object().is_some_and(selects)
    }
}

impl StaleSlice<'_> {
    /// Of a missing one: version and creation time of its child. Kubernetes' controller takes children in the order of their versions.
    pub fn missing(&self) -> Option<(u64, Timestamp)> {
        let metadata = |key: &str| text(&self.owner.child["metadata"], key);
        let version = metadata("resourceVersion").and_then(|version| version.parse().ok());
        let created = metadata("creationTimestamp").and_then(|created| created.parse().ok());
        self.existing.is_none().then(|| (version.unwrap_or_default(), created.unwrap_or_default()))
    }

    /// Version of an outdated one.
    pub fn version(&self) -> Option<u64> {
        self.existing.map(|slice| slice.version)
    }

    /// The write; `None` if the child has other ports or another selector than the reconciler gives it.
    pub fn write(&self, group: &str, pods: &[PodEndpoint<'_>]) -> Option<SliceWrite> {
        let Self { owner: owner @ SliceOwner { object, child, .. }, family, existing } = *self;
        let ports = owner.ports().filter(|_| owner.selects(group))?;
        let endpoints: Vec<_> = pods.iter().filter_map(|pod| pod.endpoint(family, owner)).collect();
        let ports = if endpoints.is_empty() { json!([]) } else { ports };
        let Some(slice) = existing else {
            let name = format!("{}-{}", object.name, family.name().to_ascii_lowercase());
            let mut labels = child["metadata"]["labels"].clone();
            for (label, value) in [(SERVICE_NAME, object.name.as_str()), (MANAGED_BY, CONTROLLER)] {
                labels[label] = value.into();
            }
            let reference = json!({
                "apiVersion": "v1", "kind": "Service", "name": object.name, "uid": child["metadata"]["uid"], "controller": true,
            });
            let value = json!({
                "apiVersion": Kind::EndpointSlice.api_version(),
                "kind": Kind::EndpointSlice.name(),
                "metadata": {"name": name, "namespace": object.namespace, "labels": labels, "ownerReferences": [reference]},
                "addressType": family.name(),
                "ports": ports,
                "endpoints": endpoints,
            });
            let object = ObjectRef::new(Kind::EndpointSlice, &object.namespace, name);
            return Some(SliceWrite::Create(Manifest { object, value, adopt: false, yields: false }));
        };
        let patch = json!({
            "metadata": {"resourceVersion": slice.version.to_string(), "annotations": {TRIGGER_TIME: null}},
            "ports": ports,
            "endpoints": endpoints,
        });
        Some(SliceWrite::Change { object: ObjectRef::new(Kind::EndpointSlice, &object.namespace, &*slice.name), patch })
    }
}
