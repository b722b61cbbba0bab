//! State of a standalone proxy or a Connector, for metrics: as a condition or an Ingress's Events report it.

use crate::api::condition::reason;

/// State of a proxy, worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProxyState {
    Ready,
    /// Valid, not served yet.
    Pending,
    /// The cluster or the control plane prevents it.
    Failed,
    /// Invalid, not permitted, or its name is another object's.
    Rejected,
}

impl ProxyState {
    pub const ALL: [Self; 4] = [Self::Ready, Self::Pending, Self::Failed, Self::Rejected];

    /// Label value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Pending => "pending",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
        }
    }

    /// State for the reason of a condition or Event.
    pub fn of_reason(reason: &str) -> Self {
        match reason {
            reason::PROXY_CREATED
            | reason::PARTIALLY_ADVERTISED
            | reason::CERTIFICATE_EXPIRING
            | reason::ROUTE_COVERS_CLUSTER
            | reason::CONNECTOR_CREATED => Self::Ready,
            reason::PROXY_PENDING | reason::PROXY_MOVING | reason::CONNECTOR_CREATING => Self::Pending,
            reason::PROXY_FAILED | reason::CONFIGURATION_FAILED | reason::CONNECTOR_CREATION_FAILED => Self::Failed,
            _ => Self::Rejected,
        }
    }
}
