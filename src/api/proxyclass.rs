//! `ProxyClass` of `tailscale.com/v1alpha1`: settings of proxy Pods. Cluster-scoped.
//!
//! Same fields as the Tailscale operator's; parts of a Pod are Kubernetes' own types. Applied elsewhere.

#![allow(clippy::duplicated_attributes, reason = "each printer column has its own name and type")]

use std::collections::BTreeMap;
use std::ops::Not;

use k8s_openapi::api::core::v1::{
    Affinity, LocalObjectReference, PodDNSConfig, PodSecurityContext, ResourceRequirements, SecurityContext, Toleration,
    TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// How Pods are shaped.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tailscale.com",
    version = "v1alpha1",
    kind = "ProxyClass",
    plural = "proxyclasses",
    status = "ProxyClassStatus",
    derive = "PartialEq",
    doc = "How the Pods of proxies are shaped: of the groups whose spec.proxyClass names it, or of all that name none \
           if it is the reconciler's default.",
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type == "ProxyClassReady")].reason"#,
        description = "Whether it can be used."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ProxyClassSpec {
    /// The `StatefulSet` and its Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stateful_set: Option<ClassStatefulSet>,
    /// Metrics of the proxies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    /// Settings of tailscaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tailscale: Option<TailscaleConfig>,
    /// Whether certificates come from Let's Encrypt's staging environment, whose limits are wide and which no browser
    /// trusts.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub use_lets_encrypt_staging_environment: bool,
    /// How peers of the tailnet may reach replicas directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub static_endpoints: Option<StaticEndpoints>,
}

/// The `StatefulSet` and its Pods.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClassStatefulSet {
    /// Labels of the `StatefulSet`, besides those that it has anyway.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::labels")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the `StatefulSet`, besides those that it has anyway.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Its Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<ClassPod>,
}

/// The Pods.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClassPod {
    /// Labels of the Pods, besides those that they have anyway.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::labels")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the Pods, besides those that they have anyway.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// As a Pod's `spec.affinity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::part::<Affinity>")]
    pub affinity: Option<Affinity>,
    /// The container of the proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tailscale_container: Option<ClassContainer>,
    /// The init container that switches forwarding on. Not of groups of type kube-apiserver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tailscale_init_container: Option<ClassContainer>,
    /// As a Pod's `spec.securityContext`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::part::<PodSecurityContext>")]
    pub security_context: Option<PodSecurityContext>,
    /// As a Pod's `spec.imagePullSecrets`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::pull_secrets")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// As a Pod's `spec.nodeName`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// As a Pod's `spec.nodeSelector`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// As a Pod's `spec.tolerations`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::parts::<Toleration>")]
    pub tolerations: Vec<Toleration>,
    /// As a Pod's `spec.topologySpreadConstraints`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::parts::<TopologySpreadConstraint>")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// As a Pod's `spec.priorityClassName`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// As a Pod's `spec.dnsPolicy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]))]
    pub dns_policy: Option<String>,
    /// As a Pod's `spec.dnsConfig`. It is needed if `dnsPolicy` is `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::part::<PodDNSConfig>")]
    pub dns_config: Option<PodDNSConfig>,
}

/// A container of the Pods.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClassContainer {
    /// Variables of its environment; they come last and so win over those of the same name that it has anyway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<ClassEnv>,
    /// Its image, instead of that of the reconciler's settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// When its image is pulled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Always", "Never", "IfNotPresent"]))]
    pub image_pull_policy: Option<String>,
    /// As a container's `resources`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::part::<ResourceRequirements>")]
    pub resources: Option<ResourceRequirements>,
    /// As a container's `securityContext`, instead of the one that it has anyway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::part::<SecurityContext>")]
    pub security_context: Option<SecurityContext>,
    /// What is needed to look into a proxy; not for production.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debug: Option<ClassDebug>,
}

/// A variable of an environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClassEnv {
    /// Its name.
    #[schemars(regex(pattern = "^[-._a-zA-Z][-._a-zA-Z0-9]*$"))]
    pub name: String,
    /// Its value; `$(NAME)` is replaced as in a Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// What is needed to look into a proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClassDebug {
    /// Whether tailscaled serves its profiles and internal metrics at port 9001 of the Pod.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub enable: bool,
}

/// Metrics of the proxies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [{"rule": "!(has(self.serviceMonitor) && self.serviceMonitor.enable  && !self.enable)",
    "message": "ServiceMonitor can only be enabled if metrics are enabled"}]))]
#[serde(rename_all = "camelCase")]
pub struct Metrics {
    /// Whether metrics are served at port 9002 of each Pod, and by a Service `<name>-metrics`.
    pub enable: bool,
    /// Whether Prometheus scrapes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_monitor: Option<ServiceMonitor>,
}

/// Whether Prometheus scrapes the metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceMonitor {
    /// Whether there is a `ServiceMonitor`.
    pub enable: bool,
    /// Its labels, besides those that it has anyway.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::labels")]
    pub labels: BTreeMap<String, String>,
}

/// Settings of tailscaled.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailscaleConfig {
    /// Whether routes that other devices of the tailnet advertise are taken.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub accept_routes: bool,
}

/// How peers of the tailnet may reach replicas directly.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StaticEndpoints {
    /// By ports of the nodes.
    pub node_port: NodePorts,
}

/// Ports of the nodes that are routed to replicas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePorts {
    /// The ports to choose from, within the cluster's range of node ports. UDP to them must be let through to the nodes'
    /// external addresses.
    #[schemars(length(min = 1))]
    pub ports: Vec<PortRange>,
    /// Labels of the nodes whose external addresses are announced to the peers; all nodes if there are none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub selector: BTreeMap<String, String>,
}

/// A range of ports. The numbers are wider than a port so that a wrong one is this class's fault alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PortRange {
    /// The first.
    #[schemars(schema_with = "schema::integer")]
    pub port: i64,
    /// The last; the first is the only one if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::integer")]
    pub end_port: Option<i64>,
}

/// What is known of a class.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProxyClassStatus {
    /// `ProxyClassReady`: it can be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
