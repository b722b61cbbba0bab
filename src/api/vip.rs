//! Tailscale Service in the control plane's API (`vip-services`), and its owners among several clusters.
//!
//! Source: Tailscale's published API v2 and `kube/ingressservices` of tailscale 1.102. Unknown fields of an owner reference are preserved:
//! other owners set them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Prefix of the names of Tailscale Services.
pub const PREFIX: &str = "svc:";
/// The annotation with [`Owners`] as JSON.
pub const OWNERS: &str = "tailscale.com/owner-references";
/// Ours, additive: the field of an [`OwnerRef`] with the `ProxyGroup` that advertises the service.
pub const GROUP: &str = "tailyardGroup";
/// Field of an [`OwnerRef`] with the object that owns the service alone: [`OwningResource`].
pub const RESOURCE: &str = "resource";
/// Placeholder for a port where all ports are forwarded.
pub const ANY_PORT: &str = "do-not-validate";
/// Comment of services that we create.
pub const COMMENT: &str = "Kept by Tailyard for objects of Kubernetes clusters: changes made here are undone.";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VipService {
    /// `svc:` and a DNS label.
    pub name: String,
    /// Addresses: omitted on create, echoed on update.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addrs: Vec<String>,
    /// Shown in the admin console.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub comment: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// `tcp:` and a number, or [`ANY_PORT`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// Tags for policies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VipServices {
    /// All services visible with the credentials.
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
    /// Unique ID of the cluster's operator.
    #[serde(rename = "operatorID")]
    pub operator_id: String,
    /// Other fields, e.g. [`RESOURCE`] if one object owns it alone.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// The object that owns a Tailscale Service alone: a `ProxyGroup` of type `kube-apiserver`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OwningResource {
    pub kind: String,
    pub name: String,
    pub uid: String,
}
