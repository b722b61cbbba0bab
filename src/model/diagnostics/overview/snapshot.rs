//! Snapshot of a cluster: data read, and gaps.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize as _, Serialize};
use serde_json::Value;

use crate::api::connector::Connector;
use crate::api::proxygroup::ProxyGroup;
use crate::api::{egress, names, replica};
use crate::model::config::fingerprint;
use crate::model::controller::ingress::spec::has_conditions;
use crate::model::controller::kinds::concerns;
use crate::model::controller::policy::annotations::annotation;
use crate::model::controller::policy::assignment::AssignmentRules;
use crate::model::controller::policy::requests::{directions, is_recorded};
use crate::model::controller::workload::finalizers;
use crate::model::controller::workload::objects::certificate::pair;
use crate::model::controller::workload::objects::services::{egress_config, egress_text};
use crate::model::controller::workload::objects::shape::image_path;
use crate::model::controller::workload::objects::statefulset::pod_health_port;
use crate::model::controller::workload::observed::replica::ReplicaState;
use crate::model::ingress::certificate::expiry;

/// Default port of a replica's HTTP endpoints.
const HEALTH: u16 = 9002;

/// Parts of the snapshot, in the order in which they are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum StatusPart {
    Groups,
    Pods,
    /// State Secrets of the replicas.
    States,
    Configs,
    Services,
    Ingresses,
    /// Events about Ingresses.
    Events,
    /// Secrets of the certificates that proxies order, without the keys.
    Certificates,
    Connectors,
    /// Status reported by the replicas themselves, through the API server's Pod proxy.
    Pages,
}

/// Reason why a part could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gap {
    Forbidden,
    /// The cluster does not have this kind.
    Unknown,
    /// Any other error.
    Failed(String),
}

/// A replica's own status, or the reason why it is missing.
pub type LiveStatus = Result<replica::ReplicaStatus, Gap>;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct GroupConfig {
    pub(super) services: BTreeMap<String, egress::EgressService>,
    pub(super) fingerprint: String,
}

#[derive(Debug, Clone, Default)]
pub struct ClusterView {
    pub namespace: String,
    pub groups: Vec<ProxyGroup>,
    pub pods: BTreeMap<String, Pod>,
    /// Contents of state Secrets, by replica.
    pub states: BTreeMap<String, ReplicaState>,
    pub configs: BTreeMap<String, Value>,
    /// Services that belong to a group or have a proxy of their own.
    pub services: Vec<Service>,
    pub connectors: Vec<Connector>,
    /// Ingresses by namespace and name; `None` if unknown.
    pub ingresses: Option<BTreeMap<(String, String), Ingress>>,
    /// Metadata of certificates' Secrets, each with the end of the certificate.
    pub certificates: Vec<(Value, Option<Timestamp>)>,
    /// Warnings about Ingresses.
    pub events: Vec<Event>,
    /// Time since the Unix epoch.
    pub now: Duration,
    /// Replicas' own status, by Pod.
    pub live: BTreeMap<String, LiveStatus>,
    /// Parts that could not be read.
    pub gaps: BTreeMap<StatusPart, Gap>,
}

impl StatusPart {
    /// Parts that are API objects.
    pub const OBJECTS: [Self; 9] = [
        Self::Groups,
        Self::Pods,
        Self::States,
        Self::Configs,
        Self::Services,
        Self::Ingresses,
        Self::Events,
        Self::Certificates,
        Self::Connectors,
    ];

    /// Whether a cluster may lack the kind.
    pub fn is_optional(self) -> bool {
        self == Self::Connectors
    }

    /// Name of the part in messages, and the consequence if it cannot be read.
    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Groups => ("ProxyGroups", "there is nothing to show"),
            Self::Pods => ("the Pods of the replicas", "the replicas are not known"),
            Self::States => ("the state Secrets of the replicas", "tailnet names, and what replicas hold, are not known"),
            Self::Configs => ("the configs of the groups", "what replicas must hold is not known"),
            Self::Services => ("the Services of users", "the Services are not known"),
            Self::Ingresses => ("the Ingresses of users", "they are not known, and faults of deleted ones may be shown"),
            Self::Events => ("the Events of Ingresses", "their faults are not known"),
            Self::Certificates => ("the Secrets of certificates", "the ends of certificates are not known"),
            Self::Connectors => ("Connectors", "they are not known"),
            Self::Pages => ("the own pages of some replicas", "ways, flows and failures are not known"),
        }
    }

    /// Required RBAC rule, and its scope.
    pub fn rule(self, namespace: &str) -> String {
        let (group, resource, verbs, own) = match self {
            Self::Groups => ("tailscale.com", "proxygroups", r#""list", "watch""#, false),
            Self::Connectors => ("tailscale.com", "connectors", r#""list", "watch""#, false),
            Self::Pods => ("", "pods", r#""list", "watch""#, true),
            Self::States | Self::Certificates => ("", "secrets", r#""list", "watch""#, true),
            Self::Configs => ("", "configmaps", r#""list", "watch""#, true),
            Self::Services => ("", "services", r#""list", "watch""#, false),
            Self::Ingresses => ("networking.k8s.io", "ingresses", r#""list", "watch""#, false),
            Self::Events => ("events.k8s.io", "events", r#""list", "watch""#, false),
            Self::Pages => ("", "pods/proxy", r#""get""#, true),
        };
        let place = if own { format!("in namespace {namespace}") } else { "in all namespaces".to_owned() };
        format!("{{apiGroups: [{group:?}], resources: [{resource:?}], verbs: [{verbs}]}} {place}")
    }
}

impl Gap {
    /// Message with the unreadable part, the consequence, and the requirement.
    pub fn sentence(&self, part: StatusPart, namespace: &str) -> String {
        let (what, without) = part.texts();
        let why = match self {
            Self::Forbidden => format!("you are not allowed to; the rule {} would allow it", part.rule(namespace)),
            Self::Unknown => "the cluster has no such kind; tailyard crd | kubectl apply --server-side -f - installs it".to_owned(),
            Self::Failed(why) => why.clone(),
        };
        format!("{what} cannot be read, so that {without}: {why}")
    }
}

impl ClusterView {
    /// An empty snapshot; `namespace` is that of the replicas.
    pub fn new(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..Self::default() }
    }

    /// Adds API objects of a part. Objects that cannot be parsed are skipped: the API server has validated them, so they belong to a later
    /// version.
    pub fn take<'a>(&mut self, part: StatusPart, objects: impl Iterator<Item = &'a Value>) {
        if part == StatusPart::Ingresses {
            self.ingresses.get_or_insert_default();
        }
        for object in objects {
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            match part {
                StatusPart::Groups => self.groups.extend(ProxyGroup::deserialize(object)),
                StatusPart::Pods => self.pods.extend(Pod::deserialize(object).map(|pod| (name, pod))),
                StatusPart::States => {
                    let state = Secret::deserialize(object).map(|secret| ReplicaState::read_with_reasons(&secret));
                    self.states.extend(state.map(|state| (name, state)));
                }
                StatusPart::Configs => drop(self.configs.insert(name, object.clone())),
                StatusPart::Services => {
                    let service = Service::deserialize(object);
                    let shown = |service: &Service| {
                        !concerns(service, &AssignmentRules::default()).is_empty()
                            || is_standalone(service)
                            || requests_ingress_group(service)
                    };
                    self.services.extend(service.ok().filter(shown));
                }
                StatusPart::Ingresses => {
                    let id = (object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned(), name);
                    self.ingresses.get_or_insert_default().extend(Ingress::deserialize(object).map(|ingress| (id, ingress)));
                }
                StatusPart::Certificates => {
                    let metadata = serde_json::json!({"metadata": object["metadata"]});
                    self.certificates.push((metadata, expiry(&pair(object).chain)));
                }
                StatusPart::Events => self.events.extend(Event::deserialize(object)),
                StatusPart::Connectors => self.connectors.extend(Connector::deserialize(object)),
                StatusPart::Pages => {}
            }
        }
    }

    /// Metadata of an Ingress, if readable.
    pub(super) fn ingress_metadata(&self, namespace: &str, name: &str) -> Option<&ObjectMeta> {
        self.ingresses.as_ref()?.get(&(namespace.to_owned(), name.to_owned())).map(|ingress| &ingress.metadata)
    }

    /// Whether users' objects could be read.
    pub fn is_complete(&self) -> bool {
        [StatusPart::Services, StatusPart::Ingresses].iter().all(|part| !self.gaps.contains_key(part))
    }

    /// Pods with a status endpoint, and its port. The Tailscale operator's image has none.
    pub fn with_status_endpoint(&self) -> Vec<(String, u16)> {
        let running =
            |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some() && status.phase.as_deref() == Some("Running"));
        let own = |pod: &Pod| !stock(pod);
        self.pods.iter().filter(|(_, pod)| running(pod) && own(pod)).map(|(name, pod)| (name.clone(), health_port(pod))).collect()
    }

    /// Egress config of a group, if readable.
    pub(super) fn config(&self, group: &str) -> Option<GroupConfig> {
        if self.gaps.contains_key(&StatusPart::Configs) {
            return None;
        }
        let object = self.configs.get(&names::egress_config(group));
        let text = object.and_then(egress_text).unwrap_or_else(|| b"{}".to_vec());
        Some(GroupConfig { services: object.map(egress_config).unwrap_or_default(), fingerprint: fingerprint(&text) })
    }
}

/// Whether a Service has a proxy of its own, or requests one. Assignment to a default group is not known here.
fn is_standalone(service: &Service) -> bool {
    let in_group =
        || service.metadata.annotations.as_ref().and_then(|all| all.get(names::PROXY_GROUP)).is_some_and(|name| !name.is_empty());
    is_recorded(service) || (directions(service) != (false, false) && !in_group())
}

/// Whether a Service requests a group of type ingress, or has its finalizer.
pub(super) fn requests_ingress_group(service: &Service) -> bool {
    let metadata = &service.metadata;
    let is_named = || annotation(metadata.annotations.as_ref(), names::PROXY_GROUP).is_some() && directions(service) == (true, false);
    finalizers::has(metadata, names::SERVICE_FINALIZER) || has_conditions(service) || is_named()
}

/// Image of the proxy container.
pub(super) fn image(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.containers.first()?.image.as_deref()
}

/// Whether a Pod runs the Tailscale operator's proxy image.
pub(super) fn stock(pod: &Pod) -> bool {
    let path = image(pod).map(image_path).unwrap_or_default();
    path == "tailscale" || path.ends_with("/tailscale")
}

/// Port of a replica's status endpoint: that of its readiness probe.
pub fn health_port(pod: &Pod) -> u16 {
    pod.spec.as_ref().and_then(pod_health_port).unwrap_or(HEALTH)
}
