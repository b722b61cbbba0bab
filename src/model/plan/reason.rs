//! Why something is not served.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;

use crate::model::base::net::{Family, PortKey, UnknownProtocol};
use crate::model::plan::targets::ReservedRange;

/// Why a service, or a part of it, is rejected. [`Reason::reason`] is for metrics and Events.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The service's entry is malformed.
    #[error("the entry cannot be read: {0}")]
    Malformed(String),
    /// The target is neither an address nor a name, or both.
    #[error("the target must have exactly one of ip and fqdn")]
    Target,
    /// The target's address is malformed.
    #[error("{0:?} is not an IP address")]
    Address(String),
    /// The name is not in this node's netmap (yet).
    #[error(
        "no peer, Tailscale Service or 4via6 route is named {0:?} in this node's view of the tailnet: check the name and the tailnet's access rules"
    )]
    Unresolved(String),
    /// No DNS answer with an address.
    #[error("no DNS server has given an address for {0:?}: check spec.externalName, and whether the Pod's DNS servers know the name")]
    NoAnswer(String),
    /// The target's address is forbidden.
    #[error(
        "{address} is {range}, and is no target: correct the target, or let an administrator allow it (targets.allowed of the chart, --allowed-targets)"
    )]
    Forbidden { address: IpAddr, range: ReservedRange },
    /// No peer has or routes the target's address.
    #[error(
        "no peer of this node's view of the tailnet has or routes {0}: connections to it are refused; check the address, the tailnet's access rules and its subnet routes"
    )]
    Unrouted(IpAddr),
    #[error("port {port}: {fault}")]
    Protocol { port: u64, fault: UnknownProtocol },
    /// A port is zero or above 65535.
    #[error("{field} {port} is not a port (1 to 65535)")]
    Port { field: &'static str, port: u64 },
    /// The match port is a port of the Pod itself.
    #[error("match port {0} is used by the proxy itself (health or metrics)")]
    Reserved(PortKey),
    /// The match port belongs to a service earlier in the alphabet.
    #[error("match port {key} already belongs to {owner:?}")]
    Taken { key: PortKey, owner: Arc<str> },
    /// Two services claim the same tailnet address.
    #[error("address {address} already belongs to {owner:?}")]
    AddressTaken { address: IpAddr, owner: Arc<str> },
    /// A single-proxy target is of a family in which this node has no address.
    #[error("the target is {0}, but this node has no {0} address to serve it on")]
    NoAddress(Family),
    /// The address that the tailnet sees and the address behind it are of different families.
    #[error("{from} and {to} are of different families")]
    Families { from: IpAddr, to: IpAddr },
}

impl Reason {
    /// Label value and Event reason; closed set.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "Malformed",
            Self::Target => "InvalidTarget",
            Self::Address(_) => "InvalidAddress",
            Self::Unresolved(_) => "Unresolved",
            Self::NoAnswer(_) => "NoAnswer",
            Self::Forbidden { .. } => "ForbiddenTarget",
            Self::Unrouted(_) => "Unrouted",
            Self::Protocol { .. } => "UnknownProtocol",
            Self::Port { .. } => "InvalidPort",
            Self::Reserved(_) => "ReservedPort",
            Self::Taken { .. } => "DuplicatePort",
            Self::AddressTaken { .. } => "DuplicateAddress",
            Self::NoAddress(_) => "NoAddress",
            Self::Families { .. } => "FamilyMismatch",
        }
    }
}

impl Serialize for Reason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
