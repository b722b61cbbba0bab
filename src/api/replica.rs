//! Status of a replica at `/status`: totals only, without names and addresses of services, because every client of the Pod can read it.
//! Excludes data of the state Secret.

use serde::{Deserialize, Serialize};

pub const PATH: &str = "/status";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaStatus {
    pub version: String,
    /// Readiness blockers, as in `/readyz`.
    pub blockers: Vec<String>,
    /// Warnings that do not block readiness, as in `/readyz`.
    pub warnings: Vec<String>,
    /// Conntrack entries of the Pod; `None` if unreadable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows: Option<u32>,
    /// Active peers; `None` if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers: Option<PeerCounts>,
    /// Last unresolved error, or tailscaled's last error; `None` without errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// Peers with recent traffic, by path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerCounts {
    pub direct: u32,
    /// Through a relay (DERP, or a peer that relays).
    pub relayed: u32,
}
