//! `Connector` of `tailscale.com/v1alpha1`: a subnet router, exit node or app connector. Cluster-scoped.
//!
//! Same fields as the Tailscale operator's. Invalid routes are parsed and reported elsewhere.

#![allow(clippy::duplicated_attributes, reason = "each printer column has its own name and type")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{is_default, schema};

/// Desired state of a `Connector`.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tailscale.com",
    version = "v1alpha1",
    kind = "Connector",
    plural = "connectors",
    shortname = "cn",
    status = "ConnectorStatus",
    derive = "PartialEq",
    doc = "Devices of a tailnet that forward its traffic to other networks: a subnet router, an exit node or an app connector.",
    printcolumn(
        name = "SubnetRoutes",
        type_ = "string",
        json_path = ".status.subnetRoutes",
        description = "Prefixes that the devices advertise as a subnet router."
    ),
    printcolumn(name = "IsExitNode", type_ = "string", json_path = ".status.isExitNode", description = "Exit nodes: true or false."),
    printcolumn(
        name = "IsAppConnector",
        type_ = "string",
        json_path = ".status.isAppConnector",
        description = "App connectors: true or false."
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type == "ConnectorReady")].reason"#,
        description = "Reason of the condition ConnectorReady."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "has(self.subnetRouter) || (has(self.exitNode) && self.exitNode == true) || has(self.appConnector)",
        "message": "A Connector needs to have at least one of exit node, subnet router or app connector configured."
    },
    {
        "rule": "!((has(self.subnetRouter) || (has(self.exitNode)  && self.exitNode == true)) && has(self.appConnector))",
        "message": "The appConnector field is mutually exclusive with exitNode and subnetRouter fields."
    },
    {
        "rule": "!(has(self.hostname) && has(self.replicas) && self.replicas > 1)",
        "message": "The hostname field cannot be specified when replicas is greater than 1."
    },
    {
        "rule": "!(has(self.hostname) && has(self.hostnamePrefix))",
        "message": "The hostname and hostnamePrefix fields are mutually exclusive."
    }
]))]
pub struct ConnectorSpec {
    /// Tags of the devices, each like `tag:name`. The credentials must own them. Applied when a device joins the tailnet: existing devices
    /// keep their tags. Default: the reconciler's setting.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = "^tag:[a-zA-Z][a-zA-Z0-9-]*$")))]
    pub tags: Vec<String>,
    /// Host name of the only device in the tailnet. Default: the Connector's name and `-connector`; further replicas append their ordinal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[a-z0-9][a-z0-9-]{0,61}[a-z0-9]$"))]
    pub hostname: Option<String>,
    /// Prefix of the devices' host names in the tailnet, which are `<prefix>-<ordinal>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[a-z0-9][a-z0-9-]{0,61}$"))]
    pub hostname_prefix: Option<String>,
    /// Name of the `ProxyClass` that configures the Pods. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_class: Option<String>,
    /// Prefixes that are reached through the devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet_router: Option<SubnetRouter>,
    /// Makes the devices app connectors, which route the traffic of domains that the tailnet policy names. Excludes `subnetRouter` and
    /// `exitNode`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_connector: Option<AppConnector>,
    /// Makes the devices exit nodes. Default: false.
    #[serde(default, skip_serializing_if = "is_default")]
    pub exit_node: bool,
    /// Number of devices. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// Name of the `Tailnet` that the devices join. Immutable. Default: that of the reconciler's credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [{"rule": "self == oldSelf", "message": "Connector tailnet is immutable"}]))]
    pub tailnet: Option<String>,
}

/// Prefixes of a subnet router.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubnetRouter {
    /// Prefixes such as `10.40.0.0/14`, also 4via6 ones. Peers use them when the tailnet policy or an administrator has approved them.
    #[schemars(schema_with = "schema::prefixes")]
    pub advertise_routes: Vec<String>,
}

/// Settings of an app connector.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppConnector {
    /// Prefixes that are advertised besides the addresses of the domains. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::prefixes")]
    pub routes: Vec<String>,
}

/// Observed state of a `Connector`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectorStatus {
    /// `ConnectorReady`: every device is in the tailnet, by a Pod that matches the spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Prefixes that the devices advertise as a subnet router, separated by commas.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subnet_routes: String,
    /// Exit nodes: true or false.
    #[serde(default, skip_serializing_if = "is_default")]
    pub is_exit_node: bool,
    /// App connectors: true or false.
    #[serde(default, skip_serializing_if = "is_default")]
    pub is_app_connector: bool,
    /// Tailnet addresses of the first device.
    #[serde(rename = "tailnetIPs", default, skip_serializing_if = "Vec::is_empty")]
    pub tailnet_ips: Vec<String>,
    /// Name of the first device in the tailnet.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hostname: String,
    /// Devices in the tailnet, by the ordinals of their Pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<ConnectorDevice>,
}

/// Device of a replica.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectorDevice {
    /// Name of the device in the tailnet.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hostname: String,
    /// Tailnet addresses of the device.
    #[serde(rename = "tailnetIPs", default, skip_serializing_if = "Vec::is_empty")]
    pub tailnet_ips: Vec<String>,
}

/// Default of `spec.replicas`.
const DEFAULT_REPLICAS: u32 = 1;

impl ConnectorSpec {
    /// Desired number of replicas.
    pub fn desired_replicas(&self) -> u32 {
        self.replicas.map_or(DEFAULT_REPLICAS, |replicas| replicas.try_into().unwrap_or(0))
    }
}
