//! The child Service: the `ClusterIP` Service in the proxies' namespace that a user's Service points to.
//!
//! It selects the group's Pods, so that Kubernetes handles endpoints, failover and draining. Its `targetPort`s are the record of match
//! ports. It is found by labels, so that one of the Tailscale operator is reused. It has no owner reference: it is deleted after its
//! Service, even if the group was deleted before.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use crate::api::names;
use crate::model::controller::workload::naming::{SUFFIX, suffix};
use crate::model::controller::workload::objects::shape::HEALTH;
use crate::model::controller::workload::objects::{Kind, Manifest, ObjectRef, applied, digest};

/// Name of the health check port.
pub const HEALTH_PORT: &str = "tailscale-health-check";
/// Name of a port that is unnamed in the user's Service.
const UNNAMED: &str = "tailscale-unnamed";
/// Candidates for the health port.
const HEALTH_PORTS: std::ops::RangeInclusive<u16> = HEALTH..=10_002;

/// Preference of the clients of a child Service. Kubernetes' controller of `EndpointSlice`s writes it as hints of ready endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrafficDistribution {
    PreferSameZone,
    PreferSameNode,
}

impl TrafficDistribution {
    pub fn parse(name: &str) -> Option<Self> {
        [Self::PreferSameZone, Self::PreferSameNode].into_iter().find(|value| value.name() == name)
    }

    /// Value of `spec.trafficDistribution`.
    pub fn name(self) -> &'static str {
        match self {
            Self::PreferSameZone => "PreferSameZone",
            Self::PreferSameNode => "PreferSameNode",
        }
    }
}

/// `TCP` or `UDP`.
pub type PortProtocol = &'static str;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildService {
    pub name: String,
    pub namespace: String,
    /// The user's Service: namespace and name.
    pub parent: (String, String),
    pub group: String,
    pub ports: Vec<ChildPort>,
    /// Health check port: not one of the user's ports.
    pub health: u16,
    /// Port of the replicas' health server.
    pub health_target: u16,
    pub distribution: Option<TrafficDistribution>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildPort {
    /// Empty if unnamed.
    pub name: String,
    pub protocol: PortProtocol,
    /// The user's port, also the target's.
    pub port: u16,
    pub match_port: u16,
}

/// Name of a new child: a prefix of the Service's name and a hash of Service and group, which no tenant can compute to be another's.
pub fn child_name(namespace: &str, name: &str, group: &str) -> String {
    let room = 63 - "ts--".len() - SUFFIX;
    let suffix = suffix(&format!("{namespace}/{name}/{group}"));
    let name = name.get(..name.len().min(room)).unwrap_or(name).trim_end_matches(['-', '.']);
    format!("ts-{name}-{suffix}")
}

/// The recorded health port if the user does not use it, else the first unused candidate.
pub fn health_port(recorded: Option<u16>, used: impl Fn(u16) -> bool) -> u16 {
    recorded.filter(|port| !used(*port)).or_else(|| HEALTH_PORTS.clone().find(|port| !used(*port))).unwrap_or(HEALTH)
}

impl ChildService {
    pub fn object(&self) -> ObjectRef {
        ObjectRef::new(Kind::Service, &self.namespace, self.name.clone())
    }

    /// Hash of the manifest's inputs: cheaper than building the manifest.
    pub fn hash(&self) -> String {
        use std::fmt::Write as _;
        let mut text = format!("1 {} {} {} {} {} {}", self.name, self.parent.0, self.parent.1, self.group, self.health, self.health_target);
        for port in &self.ports {
            let _ = write!(text, " {}/{}/{}/{}", port.name, port.protocol, port.port, port.match_port);
        }
        // Without a distribution the hash is that of former versions, which had none.
        text.extend(self.distribution.into_iter().flat_map(|distribution| [" ", distribution.name()]));
        digest(text.as_bytes())
    }

    /// Whether the object already has the desired content, without building a manifest.
    pub fn holds(&self, observed: &Value) -> bool {
        if applied(observed) != Some(&self.hash()) {
            return false;
        }
        let spec = &observed["spec"];
        let (labels, selector, ports) = (&observed["metadata"]["labels"], &spec["selector"], &spec["ports"]);
        let labelled = self.labels().iter().all(|(key, value)| labels[*key] == *value);
        let wanted = selector_labels(&self.group);
        let selects = selector.as_object().is_some_and(|found| found.len() == wanted.len())
            && wanted.iter().all(|(key, value)| selector[*key] == *value);
        let Some(existing) = ports.as_array() else { return false };
        // Ports are compared by position, unless another writer has reordered them.
        let has = |at: usize, name: &str, protocol: &str, port: u16, target: u16| {
            let same = |entry: &Value| entry["name"] == name && entry["port"] == port && entry["targetPort"] == target;
            let same = |existing_port: &Value| same(existing_port) && existing_port["protocol"].as_str().unwrap_or("TCP") == protocol;
            existing.get(at).is_some_and(same) || existing.iter().any(same)
        };
        labelled
            && selects
            && self.distribution.is_none_or(|distribution| spec["trafficDistribution"] == distribution.name())
            && existing.len() == self.ports.len() + 1
            && has(self.ports.len(), HEALTH_PORT, "TCP", self.health, self.health_target)
            && self.ports.iter().enumerate().all(|(at, port)| has(at, shown(&port.name), port.protocol, port.port, port.match_port))
    }

    fn labels(&self) -> [(&'static str, &str); 6] {
        [
            (names::MANAGED, "true"),
            (names::PARENT_TYPE, names::PARENT_SERVICE),
            (names::PARENT, &self.parent.1),
            (names::PARENT_NAMESPACE, &self.parent.0),
            (names::PROXY_GROUP, &self.group),
            (names::SERVICE_TYPE, names::EGRESS),
        ]
    }

    pub fn manifest(&self) -> Manifest {
        let owned = |labels: &[(&str, &str)]| -> BTreeMap<String, String> {
            labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let port = |name: &str, protocol: &str, port: u16, target: u16| ServicePort {
            name: Some(name.to_owned()),
            protocol: Some(protocol.to_owned()),
            port: port.into(),
            target_port: Some(IntOrString::Int(target.into())),
            ..ServicePort::default()
        };
        let users = self.ports.iter().map(|mapped| port(shown(&mapped.name), mapped.protocol, mapped.port, mapped.match_port));
        let health = port(HEALTH_PORT, "TCP", self.health, self.health_target);
        let service = Service {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(self.namespace.clone()),
                labels: Some(owned(&self.labels())),
                ..ObjectMeta::default()
            },
            spec: Some(ServiceSpec {
                type_: Some("ClusterIP".to_owned()),
                ip_family_policy: Some("PreferDualStack".to_owned()),
                selector: Some(owned(&selector_labels(&self.group))),
                ports: Some(users.chain([health]).collect()),
                traffic_distribution: self.distribution.map(|distribution| distribution.name().to_owned()),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        };
        Manifest::with_hash(Kind::Service, serde_json::to_value(&service).unwrap_or_default(), self.hash())
    }
}

pub(crate) fn selector_labels(group: &str) -> [(&'static str, &str); 3] {
    [(names::MANAGED, "true"), (names::PARENT_TYPE, names::PARENT_GROUP), (names::PARENT, group)]
}

fn shown(name: &str) -> &str {
    if name.is_empty() { UNNAMED } else { name }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildRecord<'a> {
    pub name: &'a str,
    /// The user's Service: namespace and name.
    pub parent: (&'a str, &'a str),
    /// Protocol, user's port, match port.
    pub ports: Vec<(&'a str, u16, u16)>,
    /// Health check port.
    pub health: Option<u16>,
}

impl<'a> ChildRecord<'a> {
    /// Parses a Service; `None` if it is not a child of this group.
    pub fn read(object: &'a Value, group: &str) -> Option<Self> {
        let metadata = object.get("metadata")?;
        let labels = metadata.get("labels")?;
        let label = |key: &str| labels.get(key).and_then(Value::as_str);
        if label(names::SERVICE_TYPE) != Some(names::EGRESS) || label(names::PROXY_GROUP) != Some(group) {
            return None;
        }
        let mut record = Self {
            name: metadata.get("name")?.as_str()?,
            parent: (label(names::PARENT_NAMESPACE)?, label(names::PARENT)?),
            ports: Vec::new(),
            health: None,
        };
        for port in object["spec"]["ports"].as_array().into_iter().flatten() {
            let number = |key: &str| port.get(key).and_then(Value::as_u64).and_then(|number| u16::try_from(number).ok());
            let protocol = port.get("protocol").and_then(Value::as_str).unwrap_or("TCP");
            let health = port.get("name").and_then(Value::as_str) == Some(HEALTH_PORT);
            match (number("port"), number("targetPort")) {
                (port, _) if health => record.health = port,
                (Some(port), Some(target)) => record.ports.push((protocol, port, target)),
                _ => {}
            }
        }
        Some(record)
    }
}
