//! What a replica tells of itself at `/status`: totals only, neither names nor addresses of services, for whoever reaches the
//! Pod can read it. Never what the state Secret holds already.

use serde::{Deserialize, Serialize};

pub const PATH: &str = "/status";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaStatus {
    pub version: String,
    /// What is in the way of readiness, as `/readyz` has it.
    pub blockers: Vec<String>,
    /// What does not block readiness and needs attention, as `/readyz` has it.
    pub warnings: Vec<String>,
    /// Entries of the Pod's table of connections; none if it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows: Option<u32>,
    /// The peers that it talks to now; none if nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers: Option<PeerCounts>,
    /// What failed last and has not been mended, or how tailscaled failed last; none if nothing did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// Peers with whom traffic was exchanged of late, by the way that it takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerCounts {
    pub direct: u32,
    /// Through a relay (DERP, or a peer that relays).
    pub relayed: u32,
}
