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

/// Desired state of a `ProxyClass`.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tailscale.com",
    version = "v1alpha1",
    kind = "ProxyClass",
    plural = "proxyclasses",
    status = "ProxyClassStatus",
    derive = "PartialEq",
    doc = "Configuration of the Pods of proxies: of the ProxyGroups that name it in spec.proxyClass, of the Services and Ingresses that \
           name it in the annotation tailscale.com/proxy-class, and of those that name none if it is the reconciler's default.",
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type == "ProxyClassReady")].reason"#,
        description = "Reason of the condition ProxyClassReady."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ProxyClassSpec {
    /// `StatefulSet` and Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stateful_set: Option<ClassStatefulSet>,
    /// Metrics of the proxies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    /// Settings of tailscaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tailscale: Option<TailscaleConfig>,
    /// Orders certificates from Let's Encrypt's staging environment: higher rate limits, not trusted by browsers.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub use_lets_encrypt_staging_environment: bool,
    /// Static endpoints, by which peers reach replicas directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub static_endpoints: Option<StaticEndpoints>,
}

/// `StatefulSet` and Pods of a proxy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClassStatefulSet {
    /// Additional labels of the `StatefulSet`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::labels")]
    pub labels: BTreeMap<String, String>,
    /// Additional annotations of the `StatefulSet`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Pods of the `StatefulSet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<ClassPod>,
}

/// Pods of a proxy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClassPod {
    /// Additional labels of the Pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::labels")]
    pub labels: BTreeMap<String, String>,
    /// Additional annotations of the Pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Pod field `spec.affinity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::part::<Affinity>")]
    pub affinity: Option<Affinity>,
    /// Container of the proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tailscale_container: Option<ClassContainer>,
    /// Init container that enables IP forwarding. Not used by type kube-apiserver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tailscale_init_container: Option<ClassContainer>,
    /// Pod field `spec.securityContext`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::part::<PodSecurityContext>")]
    pub security_context: Option<PodSecurityContext>,
    /// Pod field `spec.imagePullSecrets`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::pull_secrets")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Pod field `spec.nodeName`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Pod field `spec.nodeSelector`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Pod field `spec.tolerations`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::parts::<Toleration>")]
    pub tolerations: Vec<Toleration>,
    /// Pod field `spec.topologySpreadConstraints`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::parts::<TopologySpreadConstraint>")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Pod field `spec.priorityClassName`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Pod field `spec.dnsPolicy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]))]
    pub dns_policy: Option<String>,
    /// Pod field `spec.dnsConfig`. Required if `dnsPolicy` is `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::part::<PodDNSConfig>")]
    pub dns_config: Option<PodDNSConfig>,
}

/// Container of the Pods.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClassContainer {
    /// Additional environment variables; they override the container's own of the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<ClassEnv>,
    /// Image. Default: the reconciler's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Image pull policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Always", "Never", "IfNotPresent"]))]
    pub image_pull_policy: Option<String>,
    /// Container field `resources`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::part::<ResourceRequirements>")]
    pub resources: Option<ResourceRequirements>,
    /// Container field `securityContext`; replaces the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::part::<SecurityContext>")]
    pub security_context: Option<SecurityContext>,
    /// Debug endpoints of tailscaled; not for production.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debug: Option<ClassDebug>,
}

/// Environment variable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClassEnv {
    /// Name of the variable.
    #[schemars(regex(pattern = "^[-._a-zA-Z][-._a-zA-Z0-9]*$"))]
    pub name: String,
    /// Value of the variable; references `$(NAME)` are expanded as in a Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// Debug endpoints of tailscaled.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClassDebug {
    /// Serves profiles and internal metrics of tailscaled on port 9001 of the Pod.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub enable: bool,
}

/// Metrics of the proxies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [{"rule": "!(has(self.serviceMonitor) && self.serviceMonitor.enable  && !self.enable)",
    "message": "ServiceMonitor can only be enabled if metrics are enabled"}]))]
#[serde(rename_all = "camelCase")]
pub struct Metrics {
    /// Serves metrics on port 9002 of each Pod, and creates the Service `<name>-metrics`.
    pub enable: bool,
    /// `ServiceMonitor` for a Prometheus operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_monitor: Option<ServiceMonitor>,
}

/// `ServiceMonitor` for a Prometheus operator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceMonitor {
    /// Creates a `ServiceMonitor`.
    pub enable: bool,
    /// Additional labels of the `ServiceMonitor`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::labels")]
    pub labels: BTreeMap<String, String>,
}

/// Settings of tailscaled.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailscaleConfig {
    /// Accepts subnet routes that other devices of the tailnet advertise.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub accept_routes: bool,
}

/// Static endpoints, by which peers reach replicas directly.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StaticEndpoints {
    /// Node ports as static endpoints.
    pub node_port: NodePorts,
}

/// Node ports that are routed to replicas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePorts {
    /// Node ports to use, within the cluster's range of node ports. Firewalls must permit UDP to these ports on the nodes' external
    /// addresses.
    #[schemars(length(min = 1))]
    pub ports: Vec<PortRange>,
    /// Labels of the nodes whose external addresses are advertised to peers. Default: all nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub selector: BTreeMap<String, String>,
}

/// Range of ports, inclusive. Wide integers: an invalid port makes only this class invalid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PortRange {
    /// First port.
    #[schemars(schema_with = "schema::integer")]
    pub port: i64,
    /// Last port. Default: `port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::integer")]
    pub end_port: Option<i64>,
}

/// Observed state of a `ProxyClass`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProxyClassStatus {
    /// `ProxyClassReady`: the class is valid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
