//! The egress config and status of a `ProxyGroup`, as the Tailscale operator writes and reads them.
//!
//! Config: key `egress-services` of the `ConfigMap` `<group>-egress-config`, a JSON object by service name.
//! Status: key `egress-services` of a replica's state Secret. Source: `kube/egressservices` of tailscale 1.102.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The key of the config in its `ConfigMap` and of the status in the state Secret.
pub const KEY: &str = "egress-services";
/// Ours, additive: the key of oversized content, compressed with gzip. A config under it replaces [`KEY`]; a status under it supplements a
/// shorter one under [`KEY`].
pub const KEY_COMPRESSED: &str = "egress-services.gz";
/// The key of the number of health check requests that a draining replica sends in one round.
pub const KEY_HEP_PINGS: &str = "hep-pings";

/// One egress service: a tailnet target and its ports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "an object")]
pub struct EgressService {
    /// URL of `/healthz` through the service's own `ClusterIP`; empty if there is none.
    pub health_check_endpoint: String,
    pub tailnet_target: EgressTarget,
    /// The ports; a list in JSON, a set in meaning.
    pub ports: Vec<PortMap>,
}

/// A tailnet target; exactly one field is not empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct EgressTarget {
    /// IP address as text.
    pub ip: String,
    /// Name of a peer or Tailscale Service, or a 4via6 name; with or without the final dot.
    pub fqdn: String,
}

/// One port of a service. The integers are wider than a port, so that an invalid one affects this port only.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "an object")]
pub struct PortMap {
    /// `TCP` or `UDP`, in Kubernetes' notation; echoed unchanged.
    pub protocol: String,
    /// The port of the proxy Pod.
    pub match_port: u64,
    pub target_port: u64,
}

/// Status of a replica's applied config; `S` is a map of [`ServiceStatus`] by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressStatus<S = BTreeMap<String, ServiceStatus>> {
    /// The Pod's IPv4 address; always present, empty if there is none.
    #[serde(rename = "podIPv4", default)]
    pub pod_ipv4: String,
    #[serde(rename = "podIPv6", default, skip_serializing_if = "String::is_empty")]
    pub pod_ipv6: String,
    /// Applied services; `null` if there are none.
    #[serde(default = "Option::default")]
    pub services: Option<S>,
    /// Ours, additive: fingerprint of the applied config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Ours, additive: rejected services with reasons, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rejected: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceStatus {
    pub ports: Vec<PortMap>,
    /// The addresses in use; `null` while the target is unresolved.
    #[serde(rename = "tailnetTargetIPs")]
    pub tailnet_target_ips: Option<Vec<String>>,
    pub tailnet_target: EgressTarget,
}
