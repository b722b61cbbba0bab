//! `DNSConfig` of `tailscale.com/v1alpha1`: a nameserver in the cluster for names of the tailnet. Cluster-scoped, one per cluster.
//!
//! Same fields as the Tailscale operator's.

#![allow(clippy::duplicated_attributes, reason = "each printer column has its own name and type")]

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, LocalObjectReference, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// Desired state of a `DNSConfig`.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tailscale.com",
    version = "v1alpha1",
    kind = "DNSConfig",
    plural = "dnsconfigs",
    shortname = "dc",
    status = "DnsConfigStatus",
    derive = "PartialEq",
    doc = "A nameserver that resolves names of the tailnet for the cluster: those of Ingresses and of targets of egress Services. Only the oldest DNSConfig of a cluster has an effect.",
    printcolumn(
        name = "NameserverIP",
        type_ = "string",
        json_path = ".status.nameserver.ip",
        description = "Address of the nameserver's Service."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct DnsConfigSpec {
    /// The nameserver.
    pub nameserver: Nameserver,
}

/// Settings of the nameserver.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Nameserver {
    /// Image of the Pods. Default: that of the reconciler's proxies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<NameserverImage>,
    /// Service of the nameserver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<NameserverService>,
    /// Pods of the nameserver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<NameserverPod>,
    /// Number of Pods. Default: 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
}

/// Image of the nameserver's Pods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NameserverImage {
    /// Repository, such as `registry.example.com/tailyard`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo: Option<String>,
    /// Tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// Service of the nameserver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NameserverService {
    /// Address of the Service, applied when it is created. Default: assigned by the cluster.
    #[serde(rename = "clusterIP", default, skip_serializing_if = "Option::is_none")]
    pub cluster_ip: Option<String>,
}

/// Scheduling of the nameserver's Pods.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NameserverPod {
    /// Pod field `spec.tolerations`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::parts::<Toleration>")]
    pub tolerations: Vec<Toleration>,
    /// Pod field `spec.affinity`. Default: Pods prefer different nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::part::<Affinity>")]
    pub affinity: Option<Affinity>,
    /// Pod field `spec.nodeSelector`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Pod field `spec.imagePullSecrets`. Default: those of the reconciler's proxies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::pull_secrets")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
}

/// Observed state of a `DNSConfig`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DnsConfigStatus {
    /// `NameserverReady`: the nameserver answers with current records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Address of the nameserver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nameserver: Option<NameserverStatus>,
}

/// Address of the nameserver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NameserverStatus {
    /// Address of the nameserver's Service, for the cluster DNS to forward queries to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ip: String,
}

/// Default of `spec.nameserver.replicas`: an update or the loss of a node leaves one.
const DEFAULT_REPLICAS: i32 = 2;

impl Nameserver {
    /// Desired number of Pods.
    pub fn desired_replicas(&self) -> i32 {
        self.replicas.unwrap_or(DEFAULT_REPLICAS).max(0)
    }
}
