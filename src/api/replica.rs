//! Status of a replica at `/status`: totals only, without names and addresses of services, because every client of the Pod can read it.
//! Excludes data of the state Secret.

use std::fmt;

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
    /// Rejected flows; `None` if tailscaled is older than 1.104, or does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejects: Option<Rejects>,
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

/// Flows whose last rejection was within the last hour.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rejects {
    /// Whether tailscaled records them: it has the node attribute `debug-conn-reject`.
    pub recorded: bool,
    /// The most frequent ones, at most eight.
    pub flows: Vec<RejectCount>,
    /// Rejections of all others.
    pub others: u64,
}

/// Rejections with the same direction, reason, protocol and port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RejectCount {
    pub count: u64,
    #[serde(flatten)]
    pub kind: RejectKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RejectKind {
    pub direction: FlowDirection,
    pub reason: RejectReason,
    /// IP protocol number.
    pub protocol: u8,
    /// Destination port.
    pub port: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum FlowDirection {
    /// Opened by this node.
    Outgoing,
    /// Opened by a peer.
    Incoming,
}

/// Cause of a rejection, as tailscaled names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum RejectReason {
    /// The tailnet's policy.
    Acl,
    /// The receiver accepts no connections.
    Shields,
    /// The receiver does not forward.
    HostIpForwarding,
    HostFirewall,
    /// No visible node has the address.
    NoPeer,
    /// There is no path to the node.
    PeerUnreachable,
    /// The node did not answer.
    Timeout,
    #[serde(other)]
    Unknown,
}

impl fmt::Display for RejectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.direction, self.reason, self.port_spec())
    }
}

impl RejectKind {
    /// Protocol and port as the policy has them, e.g. `tcp:443`.
    pub fn port_spec(&self) -> String {
        match self.protocol {
            6 => format!("tcp:{}", self.port),
            17 => format!("udp:{}", self.port),
            132 => format!("sctp:{}", self.port),
            protocol => format!("{protocol}:*"),
        }
    }
}
