//! The L3 ingress config and status of a `ProxyGroup`, as the Tailscale operator writes and reads them.
//!
//! Config: key `ingress-config.json` of the `ConfigMap` `<group>-ingress-config`. Status: the same key of a replica's
//! state Secret. Source: `kube/ingressservices` of tailscale 1.102.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The key of the config in its `ConfigMap` and of the status in the state Secret.
pub const KEY: &str = "ingress-config.json";

/// Ours: the key of a config that would not fit as it is, compressed with gzip; it stands instead of [`KEY`].
pub const KEY_COMPRESSED: &str = "ingress-config.json.gz";

/// The addresses of one Tailscale Service and of the cluster service behind it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IngressService {
    #[serde(rename = "IPv4Mapping", skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Mapping>,
    #[serde(rename = "IPv6Mapping", skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Mapping>,
    /// Ours, additive: the DNS name behind the service, where no cluster address is. All of its addresses are used.
    #[serde(rename = "externalName", skip_serializing_if = "String::is_empty")]
    pub external_name: String,
    /// Ours, additive: the TCP ports whose connections reach the cluster's with the client's address in front (PROXY protocol,
    /// version 2); the kernel does not forward them. Each leads to the same port.
    #[serde(rename = "proxyProtocol", skip_serializing_if = "BTreeSet::is_empty")]
    pub proxy_protocol: BTreeSet<u16>,
}

/// One pair; either side may be empty, and then the pair is not served (but for [`IngressService::external_name`]).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mapping {
    #[serde(rename = "TailscaleServiceIP")]
    pub tailscale_service_ip: String,
    #[serde(rename = "ClusterIP")]
    pub cluster_ip: String,
}

/// What a replica says of the config that it has in force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IngressStatus {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub configs: BTreeMap<String, IngressService>,
    #[serde(rename = "podIPv4", skip_serializing_if = "String::is_empty")]
    pub pod_ipv4: String,
    #[serde(rename = "podIPv6", skip_serializing_if = "String::is_empty")]
    pub pod_ipv6: String,
    /// Ours, additive: fingerprint of the config in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Ours, additive: what is not served and why, by service name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rejected: BTreeMap<String, Vec<String>>,
}
