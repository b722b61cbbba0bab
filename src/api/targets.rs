//! Target policy of the reconciler in a replica's config Secret: the proxy follows it without a restart.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::is_default;
use super::routes::Origin;

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
    /// Services of a group that have these targets, by their names in the tailnet; of others with such a target it is not exempt. Replicas of
    /// former versions read `exempt` only.
    #[serde(rename = "exemptServices", skip_serializing_if = "is_default")]
    pub exempt_services: BTreeMap<String, ExemptService>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExemptService {
    pub target: String,
    /// The object that published it; none in a config of the Tailscale operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<Origin>,
}

impl TargetRules {
    /// Whether the target of a service in a group's config is exempt.
    pub fn is_exempt(&self, service: &str, target: &str) -> bool {
        let is_services = || self.exempt_services.get(service).is_some_and(|exempt| exempt.target == target);
        self.exempt.contains(target) && (self.exempt_services.is_empty() || is_services())
    }
}
