//! `Tailnet` of `tailscale.com/v1alpha1`: a tailnet that groups may join, and the credentials for it. Cluster-scoped.
//!
//! Same fields as the Tailscale operator's. Contains no credentials, only the name of their Secret.

#![allow(clippy::duplicated_attributes, reason = "each printer column has its own name and type")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// Desired state of a `Tailnet`.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tailscale.com",
    version = "v1alpha1",
    kind = "Tailnet",
    plural = "tailnets",
    shortname = "tn",
    status = "TailnetStatus",
    derive = "PartialEq",
    doc = "Control plane and credentials of a tailnet, which ProxyGroups name in spec.tailnet.",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type == "TailnetReady")].reason"#,
        description = "Reason of the condition TailnetReady."
    )
)]
#[serde(rename_all = "camelCase")]
pub struct TailnetSpec {
    /// URL of the control plane. Default: Tailscale's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login_url: Option<String>,
    /// Credentials for the API of the control plane.
    pub credentials: TailnetCredentials,
}

/// Reference to the credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailnetCredentials {
    /// Name of a Secret in the reconciler's namespace. Keys: `client_id` and `client_secret` (OAuth client); `client_id` and `audience`
    /// (workload identity federation by a token of the reconciler's service account); or `api_key` (headscale).
    pub secret_name: String,
}

/// Observed state of a `Tailnet`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailnetStatus {
    /// `TailnetReady`: the credentials are valid and have the necessary scopes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
