//! `ProxyGroup` of `tailscale.com/v1alpha1`: a group of replicas that serves many services. Cluster-scoped.
//!
//! Same fields as the Tailscale operator's. Our own fields are under `spec.tailyard` and optional, so that a group also works where the
//! operator's definition is installed and prunes them. Rendered into objects elsewhere.

#![allow(clippy::duplicated_attributes, reason = "each printer column has its own name and type")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// What a group is to be.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tailscale.com",
    version = "v1alpha1",
    kind = "ProxyGroup",
    plural = "proxygroups",
    shortname = "pg",
    status = "ProxyGroupStatus",
    derive = "PartialEq",
    doc = "A group of replicated proxies between this cluster and a tailnet. One group carries many services: a Service \
           joins it by the annotation tailscale.com/proxy-group.",
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type == "ProxyGroupReady")].reason"#,
        description = "How far the group is."
    ),
    printcolumn(
        name = "URL",
        type_ = "string",
        json_path = ".status.url",
        description = "Where the Kubernetes API is reached; of groups of type kube-apiserver only."
    ),
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type", description = "What the group is for."),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ProxyGroupSpec {
    /// What the group is for. It cannot be changed.
    #[serde(rename = "type")]
    #[schemars(
 with = "String",
 extend("enum" = ["egress", "ingress", "kube-apiserver"], "x-kubernetes-validations" = [{"rule": "self == oldSelf", "message": "ProxyGroup type is immutable"}])
)]
    pub type_: ProxyGroupType,
    /// The tags of the replicas in the tailnet, each like `tag:name`; those of the reconciler's settings if there are
    /// none. The credentials in use must own them. They are given when a replica joins: a later change concerns only
    /// replicas that join after it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = "^tag:[a-zA-Z][a-zA-Z0-9-]*$")))]
    pub tags: Vec<String>,
    /// How many replicas there are; 2 if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// What the names of the replicas in the tailnet begin with, before a dash and the replica's number; the group's name
    /// if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[a-z0-9][a-z0-9-]{0,61}$"))]
    pub hostname_prefix: Option<String>,
    /// The name of the `ProxyClass` that shapes the group's Pods; that of the reconciler's settings if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_class: Option<String>,
    /// Settings of a group of type kube-apiserver; of no effect on others.
    #[serde(rename = "kubeAPIServer", default, skip_serializing_if = "Option::is_none")]
    pub kube_api_server: Option<KubeApiServer>,
    /// The name of the `Tailnet` that the group joins; the reconciler's own if it is not set. It cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [{"rule": "self == oldSelf", "message": "ProxyGroup tailnet is immutable"}]))]
    pub tailnet: Option<String>,
    /// What only Tailyard knows. All of it is optional.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tailyard: Option<Tailyard>,
}

/// What a group is for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyGroupType {
    /// The cluster reaches services of the tailnet.
    #[default]
    Egress,
    /// The tailnet reaches services of the cluster.
    Ingress,
    /// The tailnet reaches the Kubernetes API.
    #[serde(rename = "kube-apiserver")]
    KubeApiServer,
    /// A type of a later version: ignored, never a parse error.
    #[serde(untagged)]
    Other(String),
}

/// Settings of a group of type kube-apiserver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeApiServer {
    /// In mode `auth`, the default, a request acts as the tailnet identity of its sender; in mode `noauth` it brings its
    /// own credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("enum" = ["auth", "noauth"]))]
    pub mode: Option<ApiServerMode>,
    /// The name in the tailnet under which the API is reached, unique in it; the group's name if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"))]
    pub hostname: Option<String>,
}

/// Identity of a request to the Kubernetes API.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ApiServerMode {
    /// The sender's tailnet identity.
    #[default]
    Auth,
    /// The request's own credentials.
    NoAuth,
    /// A mode of a later version.
    #[serde(untagged)]
    Other(String),
}

/// What only Tailyard knows of a group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tailyard {
    /// How long a leaving replica lets its flows end by themselves, in seconds; what is left then is reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub drain_timeout_seconds: Option<i64>,
    /// The ports of a replica that services may be given, both ends included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_port_range: Option<PortSpan>,
    /// The extended resource by which a device plugin gives a Pod the TUN device; with it the container is not
    /// privileged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"))]
    pub tun_device_resource: Option<String>,
    /// Whether forwarding is switched on by the Pod's security context, without a privileged init container. The kubelet
    /// must allow the two sysctls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub use_pod_sysctls: Option<bool>,
    /// What holds the rules in the kernel; the first that works if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["auto", "nftables", "iptables", "iptables-nft", "iptables-legacy"]))]
    pub firewall_mode: Option<String>,
    /// The prefixes from which Services that a group of type ingress publishes have their addresses in the tailnet, where the
    /// control plane has no Tailscale Services: one address of each family, advertised as a route. Without them a Service is
    /// reached there by its address in the cluster. No other group, and nothing else, may use them.
    #[serde(rename = "serviceCIDRs", default, skip_serializing_if = "Vec::is_empty")]
    pub service_cidrs: Vec<String>,
    /// Who may use the group, and how much of it. The first whose selector matches a namespace decides for its objects; a namespace that
    /// none selects gets nothing new. Without any, every namespace may use the group within the limits of the reconciler's settings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub tenants: Vec<Tenant>,
}

/// Namespaces that may use a group, and how much of it. Patterns are names, or beginnings of names before a final `*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tenant {
    /// Which namespaces, by their labels; `{}` selects all.
    #[schemars(schema_with = "schema::part::<LabelSelector>")]
    pub namespace_selector: LabelSelector,
    /// Patterns of names in the tailnet that Ingresses and Services may have; any if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256), inner(regex(pattern = r"^([a-z0-9][a-z0-9-]{0,62}\*?|\*)$")))]
    pub names: Option<Vec<String>>,
    /// Patterns of tags that objects may ask for by annotation; none if it is empty. The group's own tags need no entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(regex(pattern = r"^(tag:[a-zA-Z][a-zA-Z0-9-]*\*?|tag:\*|\*)$")))]
    pub tags: Vec<String>,
    /// Patterns of names that may be joined although another cluster has them; none if it is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(regex(pattern = r"^([a-z0-9][a-z0-9-]{0,62}\*?|\*)$")))]
    pub shared_names: Vec<String>,
    /// Whether Ingresses may ask for Funnel, so that they are reached from the internet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub funnel: bool,
    /// Most ports of egress Services of one namespace; 5,000 if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_ports: Option<i64>,
    /// Most names in the tailnet of one namespace; 100 if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_names: Option<i64>,
    /// Most certificates that are ordered for one namespace within a week; 50 if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_certificates_per_week: Option<i64>,
}

/// Replicas of a group whose spec names no number.
pub const DEFAULT_REPLICAS: u32 = 2;

impl ProxyGroup {
    /// Prefix of the host names of the replicas: `<prefix>-<ordinal>`.
    pub fn hostname_prefix(&self) -> &str {
        let prefix = self.spec.hostname_prefix.as_deref().filter(|prefix| !prefix.is_empty());
        prefix.or(self.metadata.name.as_deref()).unwrap_or_default()
    }
}

impl ProxyGroupSpec {
    /// Number of replicas that the group is to have.
    pub fn desired_replicas(&self) -> u32 {
        self.replicas.map_or(DEFAULT_REPLICAS, |replicas| replicas.try_into().unwrap_or(0))
    }
}

impl ProxyGroupType {
    /// The types that Tailyard serves.
    pub const SERVED: [Self; 2] = [Self::Egress, Self::Ingress];
}

/// A span of ports, both ends included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [{"rule": "self.start <= self.end", "message": "matchPortRange.start must not be above matchPortRange.end"}]))]
pub struct PortSpan {
    /// The first.
    #[schemars(range(min = 1, max = 65535))]
    pub start: i64,
    /// The last.
    #[schemars(range(min = 1, max = 65535))]
    pub end: i64,
}

/// What a group is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProxyGroupStatus {
    /// `ProxyGroupReady`: everything is as the spec says. `ProxyGroupAvailable`: at least one replica is in its tailnet.
    /// Of type kube-apiserver also `KubeAPIServerProxyValid` and `KubeAPIServerProxyConfigured`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// The replicas that are in the tailnet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["hostname"]))]
    pub devices: Vec<TailnetDevice>,
    /// Where the Kubernetes API is reached; of groups of type kube-apiserver only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// A replica as a device of the tailnet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailnetDevice {
    /// The first label of its name in the tailnet.
    pub hostname: String,
    /// Its addresses in the tailnet.
    #[serde(rename = "tailnetIPs", default, skip_serializing_if = "Vec::is_empty")]
    pub tailnet_ips: Vec<String>,
    /// Static endpoints of the device: addresses and ports of nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub static_endpoints: Vec<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_enum_values_of_later_versions_are_preserved() {
        let later = json!({"type": "sidecar", "kubeAPIServer": {"mode": "half"}, "tailyard": {"firewallMode": "bpf"}});
        let spec: ProxyGroupSpec = serde_json::from_value(later.clone()).expect("a spec");
        assert_eq!(spec.type_, ProxyGroupType::Other("sidecar".into()));
        assert_eq!(serde_json::to_value(spec).expect("JSON"), later);
    }

    #[test]
    fn every_enum_value_of_the_definition_is_parsed() {
        let definition = serde_json::to_value(crate::api::crd::definitions()).expect("JSON");
        let names = |field: &str| {
            let place = format!("/1/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/{field}/enum");
            definition.pointer(&place).and_then(|names| names.as_array().cloned()).expect("an enum")
        };
        for name in names("type") {
            let parsed: ProxyGroupType = serde_json::from_value(name.clone()).expect("a type");
            assert!(!matches!(parsed, ProxyGroupType::Other(_)), "{name}");
        }
        for name in names("kubeAPIServer/properties/mode") {
            let parsed: ApiServerMode = serde_json::from_value(name.clone()).expect("a mode");
            assert!(!matches!(parsed, ApiServerMode::Other(_)), "{name}");
        }
    }
}
