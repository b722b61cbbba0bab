//! A client's connection and the room that it takes: what listeners, requests and tunnels share of it.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::SitePort;
use super::sources::ConnectionSlot;
use super::stats::OpenGuard;

/// Room for one connection: of its site, and of the process. Held as long as anything of the connection is left.
#[derive(Debug)]
pub(super) struct ConnectionBudget {
    pub(super) _site: OwnedSemaphorePermit,
    pub(super) _process: OwnedSemaphorePermit,
}

/// A connection from a client, as its requests and what it may have become see it.
#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) port: Arc<SitePort>,
    pub(super) client: Option<SocketAddr>,
    pub(super) _open: OpenGuard,
    pub(super) _place: ConnectionSlot,
    pub(super) _room: Arc<ConnectionBudget>,
}
