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

/// Desired state of a `ProxyGroup`.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tailscale.com",
    version = "v1alpha1",
    kind = "ProxyGroup",
    plural = "proxygroups",
    shortname = "pg",
    status = "ProxyGroupStatus",
    derive = "PartialEq",
    doc = "A group of replicated proxies between this cluster and a tailnet. A group serves many Services and Ingresses, which name it \
           in the annotation tailscale.com/proxy-group.",
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type == "ProxyGroupReady")].reason"#,
        description = "Reason of the condition ProxyGroupReady."
    ),
    printcolumn(
        name = "URL",
        type_ = "string",
        json_path = ".status.url",
        description = "URL of the Kubernetes API; type kube-apiserver only."
    ),
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type", description = "Type of the group."),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ProxyGroupSpec {
    /// Type of the group: egress (from the cluster to the tailnet), ingress (from the tailnet to the cluster) or kube-apiserver. Immutable.
    #[serde(rename = "type")]
    #[schemars(
 with = "String",
 extend("enum" = ["egress", "ingress", "kube-apiserver"], "x-kubernetes-validations" = [{"rule": "self == oldSelf", "message": "ProxyGroup type is immutable"}])
)]
    pub type_: ProxyGroupType,
    /// Tags of the replicas' devices, each like `tag:name`. The credentials must own them. Applied when a replica joins the tailnet:
    /// existing devices keep their tags. Default: the reconciler's setting.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = "^tag:[a-zA-Z][a-zA-Z0-9-]*$")))]
    pub tags: Vec<String>,
    /// Number of replicas. Default: 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// Prefix of the replicas' host names in the tailnet, which are `<prefix>-<ordinal>`. Default: the group's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[a-z0-9][a-z0-9-]{0,61}$"))]
    pub hostname_prefix: Option<String>,
    /// Name of the `ProxyClass` that configures the group's Pods. Default: the reconciler's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_class: Option<String>,
    /// Settings of type kube-apiserver; ignored for other types.
    #[serde(rename = "kubeAPIServer", default, skip_serializing_if = "Option::is_none")]
    pub kube_api_server: Option<KubeApiServer>,
    /// Name of the `Tailnet` that the replicas join. Immutable. Default: that of the reconciler's credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [{"rule": "self == oldSelf", "message": "ProxyGroup tailnet is immutable"}]))]
    pub tailnet: Option<String>,
    /// Tailyard-specific settings (optional).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tailyard: Option<Tailyard>,
}

/// Type of a group.
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
    /// `auth`: requests impersonate the tailnet identity of their sender. `noauth`: requests use their own credentials. Default: `auth`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("enum" = ["auth", "noauth"]))]
    pub mode: Option<ApiServerMode>,
    /// Host name of the Kubernetes API in the tailnet; must be unique. Default: the group's name.
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

impl ApiServerMode {
    /// Whether requests have the proxy's credentials and the identity of their client; otherwise those of the client alone, also in a mode
    /// of a later version.
    pub fn impersonates(&self) -> bool {
        *self == Self::Auth
    }
}

/// Tailyard-specific settings of a group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tailyard {
    /// Drain timeout in seconds: how long a terminating replica forwards established connections. The remaining ones are reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub drain_timeout_seconds: Option<i64>,
    /// Match ports: ports of the replicas' Pods that are assigned to the ports of egress Services, inclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_port_range: Option<PortSpan>,
    /// Extended resource of a device plugin that provides the TUN device, such as `example.com/tun`. With it the container has no
    /// capability `MKNOD`; that of the Tailscale operator's image is not privileged then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"))]
    pub tun_device_resource: Option<String>,
    /// Enables IP forwarding by sysctls of the Pod's security context instead of a privileged init container. The kubelet must allow
    /// the two sysctls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub use_pod_sysctls: Option<bool>,
    /// Firewall backend. Default: the reconciler's setting, else the first backend that works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["auto", "nftables", "iptables", "iptables-nft", "iptables-legacy"]))]
    pub firewall_mode: Option<String>,
    /// Value of `trafficDistribution` of child Services: clients of egress Services prefer replicas in their zone, or on their node.
    /// Needs Kubernetes 1.34. Default: all replicas are used alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["PreferSameZone", "PreferSameNode"]))]
    pub traffic_distribution: Option<String>,
    /// Prefixes of the tailnet addresses of advertised Services, for control planes without Tailscale Services: one address of each
    /// family, advertised as a route. No other group may use these prefixes. Default: a Service is advertised by its ClusterIP.
    #[serde(rename = "serviceCIDRs", default, skip_serializing_if = "Vec::is_empty")]
    pub service_cidrs: Vec<String>,
    /// Namespaces that may use the group, with their limits. The first entry that selects a namespace applies; namespaces that no entry
    /// selects may not use the group. Default: every namespace, within the limits of the reconciler's setting.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub tenants: Vec<Tenant>,
    /// Users and groups that clients of the Kubernetes API may be; type kube-apiserver in mode auth only. A name that begins with `system:` is
    /// permitted only if it is listed, `*` permits all others. Default: those that the reconciler may impersonate, which limit this list, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub impersonation: Option<Impersonation>,
    /// Endpoint of the Kubernetes API; type kube-apiserver only.
    #[serde(default, rename = "kubeAPIServer", skip_serializing_if = "Option::is_none")]
    pub kube_api_server: Option<ApiServerEndpoint>,
}

/// Endpoint of the Kubernetes API. By default HTTPS, with a certificate of the control plane.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiServerEndpoint {
    /// Secret in the namespace of the proxies with the certificate of the name, or of the replicas' names on a control plane without
    /// Tailscale Services. It needs the label `tailyard.io/allow-ingress-tls: "true"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_secret: Option<String>,
    /// `true`: HTTP on port 80 in place of HTTPS. The tailnet encrypts its traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<bool>,
}

/// Users and groups of Kubernetes that a proxy may impersonate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Impersonation {
    /// Users: login names, and names of tagged devices in the tailnet. Required.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 1024), inner(length(min = 1, max = 256)))]
    pub users: Vec<String>,
    /// Groups: those of grants, and tags of devices without granted groups. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(min = 1, max = 256)))]
    pub groups: Vec<String>,
}

/// Namespaces that may use a group, with their limits. A pattern is a name, or a prefix followed by `*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tenant {
    /// Label selector of the namespaces; `{}` selects all.
    #[schemars(schema_with = "schema::part::<LabelSelector>")]
    pub namespace_selector: LabelSelector,
    /// Patterns of permitted names in the tailnet. Default: all names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256), inner(regex(pattern = r"^([a-z0-9][a-z0-9-]{0,62}\*?|\*)$")))]
    pub names: Option<Vec<String>>,
    /// Patterns of tags that the annotation `tailscale.com/tags` may request, in addition to the group's tags. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(regex(pattern = r"^(tag:[a-zA-Z][a-zA-Z0-9-]*\*?|tag:\*|\*)$")))]
    pub tags: Vec<String>,
    /// Patterns of names that may be shared with other clusters. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(regex(pattern = r"^([a-z0-9][a-z0-9-]{0,62}\*?|\*)$")))]
    pub shared_names: Vec<String>,
    /// Permits Funnel: Ingresses that are reachable from the internet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub funnel: bool,
    /// Maximum number of ports of egress Services, for each namespace. Default: 5,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_ports: Option<i64>,
    /// Maximum number of names in the tailnet, for each namespace. Default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_names: Option<i64>,
    /// Maximum number of certificate orders within seven days, for each namespace. Default: 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_certificates_per_week: Option<i64>,
}

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

/// Default of `spec.replicas`.
pub const DEFAULT_REPLICAS: u32 = 2;

impl ProxyGroup {
    /// Prefix of the host names of the replicas: `<prefix>-<ordinal>`.
    pub fn hostname_prefix(&self) -> &str {
        let prefix = self.spec.hostname_prefix.as_deref().filter(|prefix| !prefix.is_empty());
        prefix.or(self.metadata.name.as_deref()).unwrap_or_default()
    }

    /// Endpoint of the Kubernetes API that it requests.
    pub fn api_server_endpoint(&self) -> Option<&ApiServerEndpoint> {
        self.spec.tailyard.as_ref()?.kube_api_server.as_ref()
    }

    /// Secret of the Kubernetes API's own certificate.
    pub fn api_server_certificate(&self) -> Option<&str> {
        self.api_server_hostname()?;
        self.api_server_endpoint()?.certificate_secret.as_deref().filter(|secret| !secret.is_empty())
    }

    /// Host name of the Kubernetes API in the tailnet; `None` for groups of another type.
    pub fn api_server_hostname(&self) -> Option<&str> {
        let hostname = self.spec.kube_api_server.as_ref().and_then(|server| server.hostname.as_deref());
        let name = hostname.filter(|hostname| !hostname.is_empty()).or(self.metadata.name.as_deref()).unwrap_or_default();
        (self.spec.type_ == ProxyGroupType::KubeApiServer).then_some(name)
    }
}

impl ProxyGroupSpec {
    /// Desired number of replicas.
    pub fn desired_replicas(&self) -> u32 {
        self.replicas.map_or(DEFAULT_REPLICAS, |replicas| replicas.try_into().unwrap_or(0))
    }
}

impl ProxyGroupType {
    /// The types that Tailyard serves.
    pub const SERVED: [Self; 3] = [Self::Egress, Self::Ingress, Self::KubeApiServer];
}

/// Range of ports, inclusive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [{"rule": "self.start <= self.end", "message": "matchPortRange.start must not be above matchPortRange.end"}]))]
pub struct PortSpan {
    /// First port.
    #[schemars(range(min = 1, max = 65535))]
    pub start: i64,
    /// Last port.
    #[schemars(range(min = 1, max = 65535))]
    pub end: i64,
}

/// Observed state of a `ProxyGroup`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProxyGroupStatus {
    /// `ProxyGroupReady`: all replicas are ready and match the spec. `ProxyGroupAvailable`: at least one replica is in the tailnet.
    /// Type ingress: `TailyardServicesAdvertised`, `TailyardCertificatesReady`. Type kube-apiserver: `KubeAPIServerProxyValid`,
    /// `KubeAPIServerProxyConfigured`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Devices of the replicas that are in the tailnet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["hostname"]))]
    pub devices: Vec<TailnetDevice>,
    /// URL of the Kubernetes API; type kube-apiserver only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// Device of a replica.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailnetDevice {
    /// Host name: the first label of the device's name in the tailnet.
    pub hostname: String,
    /// Tailnet addresses of the device.
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
            let place = format!("/4/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/{field}/enum");
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
