//! `ProxyGroupPolicy` of `tailscale.com/v1alpha1`: the `ProxyGroup`s that Services and Ingresses of a namespace may name.
//!
//! Same fields as the Tailscale operator's. The policies of a namespace add up.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// Desired state of a `ProxyGroupPolicy`.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tailscale.com",
    version = "v1alpha1",
    kind = "ProxyGroupPolicy",
    plural = "proxygrouppolicies",
    shortname = "pgp",
    namespaced,
    status = "ProxyGroupPolicyStatus",
    derive = "PartialEq",
    doc = "ProxyGroups that Services and Ingresses of its namespace may name. The policies of a namespace add up.",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ProxyGroupPolicySpec {
    /// Names of `ProxyGroup`s that Ingresses, and Services that are exposed to the tailnet, may name. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<String>,
    /// Names of `ProxyGroup`s that other Services may name. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<String>,
}

/// Observed state of a `ProxyGroupPolicy`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProxyGroupPolicyStatus {
    /// `ProxyGroupPolicyReady`: the API server enforces the policy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
