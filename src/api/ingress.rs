//! The L3 ingress config and status of a `ProxyGroup`, as the Tailscale operator writes and reads them.
//!
//! Config: key `ingress-config.json` of the `ConfigMap` `<group>-ingress-config`. Status: the same key of a replica's
//! state Secret. Source: `kube/ingressservices` of tailscale 1.102.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The key of the config in its `ConfigMap` and of the status in the state Secret.
pub const KEY: &str = "ingress-config.json";

/// Ours: the key of an oversized config, compressed with gzip; it replaces [`KEY`].
pub const KEY_COMPRESSED: &str = "ingress-config.json.gz";

/// Addresses of one Tailscale Service and its Service in the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct IngressService {
    #[serde(rename = "IPv4Mapping", skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Mapping>,
    #[serde(rename = "IPv6Mapping", skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Mapping>,
    /// Ours, additive: DNS name as the target, instead of a cluster address. All its addresses are used.
    #[serde(rename = "externalName", skip_serializing_if = "String::is_empty")]
    pub external_name: String,
    /// Ours, additive: TCP ports whose targets get a PROXY protocol v2 header with the client's address; the kernel does not forward them.
    /// The target port is the same.
    #[serde(rename = "proxyProtocol", skip_serializing_if = "BTreeSet::is_empty")]
    pub proxy_protocol: BTreeSet<u16>,
}

/// An address pair. If a side is empty, the pair is not served (except with [`IngressService::external_name`]).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct Mapping {
    #[serde(rename = "TailscaleServiceIP")]
    pub tailscale_service_ip: String,
    #[serde(rename = "ClusterIP")]
    pub cluster_ip: String,
}

/// Status of a replica's applied config.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct IngressStatus {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub configs: BTreeMap<String, IngressService>,
    #[serde(rename = "podIPv4", skip_serializing_if = "String::is_empty")]
    pub pod_ipv4: String,
    #[serde(rename = "podIPv6", skip_serializing_if = "String::is_empty")]
    pub pod_ipv6: String,
    /// Ours, additive: fingerprint of the applied config.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Ours, additive: rejected services with reasons, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rejected: BTreeMap<String, Vec<String>>,
}
