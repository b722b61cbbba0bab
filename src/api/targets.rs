//! Target policy of the reconciler in a replica's config Secret: the proxy follows it without a restart.

use std::collections::BTreeSet;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::is_default;

/// Key of the config Secret.
pub const KEY: &str = "target-policy.json";

/// Ranges that are targets or not, in addition to the proxy's own settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetRules {
    /// Targets although the rules below or built-in rules reject them (`--allowed-targets`).
    #[serde(skip_serializing_if = "is_default")]
    pub allowed: Vec<IpNet>,
    /// Never targets (`--denied-targets`).
    #[serde(skip_serializing_if = "is_default")]
    pub denied: Vec<IpNet>,
    /// Denied by classes that the object would have without its annotations.
    #[serde(skip_serializing_if = "is_default")]
    pub inherited: Vec<IpNet>,
    /// Nodes, API server endpoints and Service ranges: no targets of DNS names.
    #[serde(skip_serializing_if = "is_default")]
    pub cluster: Vec<IpNet>,
    /// Targets that were served before these rules existed: `inherited` and `cluster` do not apply to them.
    #[serde(skip_serializing_if = "is_default")]
    pub exempt: BTreeSet<String>,
}
