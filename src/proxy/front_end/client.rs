//! A client's network, connection and budget, shared by listeners, requests and tunnels.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use crate::model::front_end::vhosts::Vhost;

use super::ListenerPort;
use super::sources::ConnectionSlot;
use super::stats::OpenGuard;

/// Network of the clients of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClientNetwork {
    /// Clients of the tailnet: tailscaled forwards them to a loopback address, with a PROXY protocol header.
    Tailnet,
    /// Clients of the tailnet: their connections end in the kernel.
    Kernel,
    /// Clients of the cluster, which have no identity: at this address of the Pod.
    Cluster(IpAddr),
}

/// Permits for one connection: of its Tailscale Service, and of the process. Held until the connection and its tunnels end.
#[derive(Debug)]
pub(super) struct ConnectionBudget {
    pub(super) _site: OwnedSemaphorePermit,
    pub(super) _process: OwnedSemaphorePermit,
}

/// A client's connection, for its requests and tunnels; `caller` is state of the service.
#[derive(Debug)]
pub struct ClientConnection<C> {
    pub caller: C,
    /// The client's address; `None` if tailscaled names none.
    pub address: Option<SocketAddr>,
    pub(super) port: Arc<ListenerPort>,
    pub(super) _open: OpenGuard,
    pub(super) slot: ConnectionSlot,
    pub(super) _room: Arc<ConnectionBudget>,
}

impl<C> ClientConnection<C> {
    /// Name of the listener, that of its Tailscale Service.
    pub fn service(&self) -> &str {
        &self.port.service
    }

    /// Newest snapshot of the virtual host.
    pub fn site(&self) -> Arc<Vhost> {
        Arc::clone(&self.port.served.read().site)
    }

    /// Port of the Tailscale Service.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    pub fn over_tls(&self) -> bool {
        self.port.over_tls
    }

    /// Address by which tailscaled knows the client; `None` for a client of the cluster, which may have the same address.
    pub fn tailnet_client(&self) -> Option<SocketAddr> {
        self.address.filter(|_| !matches!(self.port.network, ClientNetwork::Cluster(_)))
    }
}
