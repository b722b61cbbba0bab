//! A client's network, connection and budget, shared by listeners, requests and tunnels.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::SitePort;
use super::sources::ConnectionSlot;
use super::stats::OpenGuard;

/// Network of the clients of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClientNetwork {
    /// Clients of the tailnet: tailscaled forwards them to a loopback address, with a PROXY protocol header.
    Tailnet,
    /// Clients of the cluster, which have no identity: at this address of the Pod.
    Cluster(IpAddr),
}

/// Permits for one connection: of its virtual host, and of the process. Held until the connection and its tunnels end.
#[derive(Debug)]
pub(super) struct ConnectionBudget {
    pub(super) _site: OwnedSemaphorePermit,
    pub(super) _process: OwnedSemaphorePermit,
}

/// A client's connection, for its requests and tunnels.
#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) port: Arc<SitePort>,
    pub(super) client: Option<SocketAddr>,
    pub(super) _open: OpenGuard,
    pub(super) _place: ConnectionSlot,
    pub(super) _room: Arc<ConnectionBudget>,
}
