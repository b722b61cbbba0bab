//! A Tailscale Service as the control plane's API has it (`vip-services`), and who of several clusters owns it.
//!
//! Source: Tailscale's published API v2 and `kube/ingressservices` of tailscale 1.102. Unknown fields of an owner reference are
//! kept: they are somebody else's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How the names of Tailscale Services begin.
pub const PREFIX: &str = "svc:";
/// The annotation that holds [`Owners`] as JSON.
pub const OWNERS: &str = "tailscale.com/owner-references";
/// Ours, additive: the field of an [`OwnerRef`] that names the `ProxyGroup` which publishes the service.
pub const GROUP: &str = "tailyardGroup";
/// What stands in place of ports where all are forwarded.
pub const ANY_PORT: &str = "do-not-validate";
/// The comment of a service that we make.
pub const COMMENT: &str = "Kept by Tailyard for objects of Kubernetes clusters: changes made here are undone.";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VipService {
    /// `svc:` and a DNS label.
    pub name: String,
    /// Its addresses. Left out when it is made; echoed when it is changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addrs: Vec<String>,
    /// What the admin console shows.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub comment: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// `tcp:` and a number, or [`ANY_PORT`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// The tags by which policies speak of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Fields of later versions.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VipServices {
    /// All that the credentials may see.
    pub vip_services: Vec<VipService>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Owners {
    pub owner_refs: Vec<OwnerRef>,
}

/// A cluster that owns a Tailscale Service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnerRef {
    /// What tells the cluster's operator from every other.
    #[serde(rename = "operatorID")]
    pub operator_id: String,
    /// Further fields, such as `resource` where one object owns it alone.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}
