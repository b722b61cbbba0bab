//! Annotation of the Pod of a replica that does not answer health probes. Reconcilers write it; the kubelet delivers it to the replica.

use serde::{Deserialize, Serialize};

/// Path of health probes by a reconciler that also reaches other nodes, or is on another node: who receives one is reachable.
pub const REACHABLE_PATH: &str = "/reachable";

/// Value of the annotation [`super::names::UNREACHABLE`], JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnreachableNote {
    pub stage: UnreachableStage,
    /// Name of the reconciler that wrote it.
    pub process: String,
    /// RFC 3339 time of writing.
    pub time: String,
    /// RFC 3339 time since which the replica does not answer that process.
    pub since: String,
    /// Whether that process reached a replica on a node that is not its own.
    pub connected: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnreachableStage {
    /// Another reconciler that reaches the replica removes the note; otherwise the next one makes the Pod unready.
    Suspected,
    /// The replica is unready until the note is removed.
    Lost,
}
