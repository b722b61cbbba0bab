//! What was read of a cluster, and what could not be.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::{Deserialize as _, Serialize};
use serde_json::Value;

use crate::api::proxygroup::ProxyGroup;
use crate::api::{egress, names, replica};
use crate::model::config::fingerprint;
use crate::model::controller::objects::{egress_config, egress_text, image_path};
use crate::model::controller::proxygroup::{ReplicaState, concerns};

/// The port of a replica's pages, unless its Pod says otherwise.
const HEALTH: u16 = 9002;

/// What is read, one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum StatusPart {
    Groups,
    Pods,
    /// The state Secrets of their replicas.
    States,
    Configs,
    Services,
    /// What replicas say themselves, by the API server's way to their Pods.
    Pages,
}

/// Why a part could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gap {
    Forbidden,
    /// The cluster has no such kind.
    Unknown,
    /// Anything else, in words.
    Failed(String),
}

/// What a replica said itself, or why it did not.
pub type LiveStatus = Result<replica::ReplicaStatus, Gap>;

/// A group's egress config.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct GroupConfig {
    pub(super) services: BTreeMap<String, egress::EgressService>,
    pub(super) fingerprint: String,
}

/// What was read.
#[derive(Debug, Clone, Default)]
pub struct ClusterView {
    pub namespace: String,
    pub groups: Vec<ProxyGroup>,
    pub pods: BTreeMap<String, Pod>,
    /// What replicas keep in their state Secrets, by name.
    pub states: BTreeMap<String, ReplicaState>,
    pub configs: BTreeMap<String, Value>,
    /// Services that concern a group.
    pub services: Vec<Service>,
    /// What replicas say, by Pod.
    pub live: BTreeMap<String, LiveStatus>,
    /// What could not be read.
    pub gaps: BTreeMap<StatusPart, Gap>,
}

impl StatusPart {
    /// All of them that are read as objects.
    pub const OBJECTS: [Self; 5] = [Self::Groups, Self::Pods, Self::States, Self::Configs, Self::Services];

    /// What it is, for a sentence.
    fn what(self) -> &'static str {
        match self {
            Self::Groups => "ProxyGroups",
            Self::Pods => "the Pods of the replicas",
            Self::States => "the state Secrets of the replicas",
            Self::Configs => "the egress configs of the groups",
            Self::Services => "the Services of users",
            Self::Pages => "the own pages of some replicas",
        }
    }

    /// What follows if it cannot be read.
    fn without(self) -> &'static str {
        match self {
            Self::Groups => "there is nothing to show",
            Self::Pods => "the replicas are not known",
            Self::States => "tailnet names, and what replicas hold, are not known",
            Self::Configs => "what replicas must hold is not known",
            Self::Services => "the Services are not known",
            Self::Pages => "ways, flows and failures are not known",
        }
    }

    /// The RBAC rule that is needed, and where.
    pub fn rule(self, namespace: &str) -> String {
        let (group, resource, verbs, own) = match self {
            Self::Groups => ("tailscale.com", "proxygroups", r#""list", "watch""#, false),
            Self::Pods => ("", "pods", r#""list", "watch""#, true),
            Self::States => ("", "secrets", r#""list", "watch""#, true),
            Self::Configs => ("", "configmaps", r#""list", "watch""#, true),
            Self::Services => ("", "services", r#""list", "watch""#, false),
            Self::Pages => ("", "pods/proxy", r#""get""#, true),
        };
        let place = if own { format!("in namespace {namespace}") } else { "in all namespaces".to_owned() };
        format!("{{apiGroups: [{group:?}], resources: [{resource:?}], verbs: [{verbs}]}} {place}")
    }
}

impl Gap {
    /// What could not be read, what is not shown for that, and what is needed.
    pub fn sentence(&self, part: StatusPart, namespace: &str) -> String {
        let (what, without) = (part.what(), part.without());
        let why = match self {
            Self::Forbidden => format!("you are not allowed to; the rule {} would allow it", part.rule(namespace)),
            Self::Unknown => "the cluster has no such kind; tailyard crd | kubectl apply --server-side -f - installs it".to_owned(),
            Self::Failed(why) => why.clone(),
        };
        format!("{what} cannot be read, so that {without}: {why}")
    }
}

impl ClusterView {
    /// Nothing read yet, of replicas in this namespace.
    pub fn new(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..Self::default() }
    }

    /// Takes in the objects of a part, as the API server has them. One that cannot be understood is left out: the server that
    /// took it has checked it, so that is a kind of a later version.
    pub fn take<'a>(&mut self, part: StatusPart, objects: impl Iterator<Item = &'a Value>) {
        for object in objects {
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            match part {
                StatusPart::Groups => self.groups.extend(ProxyGroup::deserialize(object)),
                StatusPart::Pods => self.pods.extend(Pod::deserialize(object).map(|pod| (name, pod))),
                StatusPart::States => {
                    let state = Secret::deserialize(object).map(|secret| ReplicaState::read(&secret));
                    self.states.extend(state.map(|state| (name, state)));
                }
                StatusPart::Configs => drop(self.configs.insert(name, object.clone())),
                StatusPart::Services => {
                    let service = Service::deserialize(object);
                    self.services.extend(service.ok().filter(|service| !concerns(service).is_empty()));
                }
                StatusPart::Pages => {}
            }
        }
    }

    /// The Pods that can be asked how they are, and by which port. The Tailscale operator's image has no such page.
    pub fn askable(&self) -> Vec<(String, u16)> {
        let running =
            |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some() && status.phase.as_deref() == Some("Running"));
        let own = |pod: &Pod| !stock(pod);
        self.pods.iter().filter(|(_, pod)| running(pod) && own(pod)).map(|(name, pod)| (name.clone(), health_port(pod))).collect()
    }

    /// The egress config of a group, if it could be read.
    pub(super) fn config(&self, group: &str) -> Option<GroupConfig> {
        if self.gaps.contains_key(&StatusPart::Configs) {
            return None;
        }
        let object = self.configs.get(&names::egress_config(group));
        let text = object.and_then(egress_text).unwrap_or_else(|| b"{}".to_vec());
        Some(GroupConfig { services: object.map(egress_config).unwrap_or_default(), fingerprint: fingerprint(&text) })
    }
}

/// The image of the proxy's container.
pub(super) fn image(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.containers.first()?.image.as_deref()
}

/// Whether a Pod runs the Tailscale operator's proxy image.
pub(super) fn stock(pod: &Pod) -> bool {
    let path = image(pod).map(image_path).unwrap_or_default();
    path == "tailscale" || path.ends_with("/tailscale")
}

/// The port at which a replica says how it is: that of its readiness probe.
pub fn health_port(pod: &Pod) -> u16 {
    let probe = pod.spec.as_ref().and_then(|spec| spec.containers.first()?.readiness_probe.as_ref()?.http_get.as_ref());
    match probe.map(|probe| &probe.port) {
        Some(IntOrString::Int(port)) => u16::try_from(*port).unwrap_or(HEALTH),
        _ => HEALTH,
    }
}
