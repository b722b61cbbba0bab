//! `Tailnet` of `tailscale.com/v1alpha1`: a tailnet that groups may join, and the credentials for it. Cluster-scoped.
//!
//! Same fields as the Tailscale operator's. Contains no credentials, only the name of their Secret.

#![allow(clippy::duplicated_attributes, reason = "each printer column has its own name and type")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// Which tailnet it is.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tailscale.com",
    version = "v1alpha1",
    kind = "Tailnet",
    plural = "tailnets",
    shortname = "tn",
    status = "TailnetStatus",
    derive = "PartialEq",
    doc = "A tailnet that groups may join by spec.tailnet, and the credentials for it.",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type == "TailnetReady")].reason"#,
        description = "Whether the credentials work and suffice."
    )
)]
#[serde(rename_all = "camelCase")]
pub struct TailnetSpec {
    /// The URL of the control plane; Tailscale's own if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login_url: Option<String>,
    /// The credentials for the control plane's API.
    pub credentials: TailnetCredentials,
}

/// Where the credentials are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailnetCredentials {
    /// The name of a Secret in the reconciler's namespace. It holds `client_id` and either `client_secret` (an OAuth
    /// client) or `audience` (workload identity: a token of the reconciler's own service account for that audience is
    /// exchanged); or `api_key` alone, for a headscale.
    pub secret_name: String,
}

/// What is known of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TailnetStatus {
    /// `TailnetReady`: the credentials work and suffice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
