//! Listeners: one for each port of each virtual host on the loopback network, and on request one for connections that end in the kernel, and
//! one on each address of the Pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::pin::pin;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::api::routes::Listener;
use crate::model::front_end::vhosts::listener_addr;
use crate::model::front_end::vhosts::{Vhost, Vhosts};
use crate::model::tailnet::advertise::SiteStatus;
use crate::runtime::accept::next;
use crate::runtime::snapshot::SnapshotCell;

use super::client::{ClientNetwork, ConnectionBudget};
use super::connection::serve;
use super::linger_close::linger;
use super::seams::HttpService;
use super::{ListenerContext, ListenerPort, Loopback, PortSnapshot};

/// Keys of the listeners of the tailnet.
const TAILNET: RangeInclusive<(ClientNetwork, u16)> = (ClientNetwork::Tailnet, 0)..=(ClientNetwork::Tailnet, u16::MAX);
/// Keys of the listeners of connections that end in the kernel.
const KERNEL: RangeInclusive<(ClientNetwork, u16)> = (ClientNetwork::Kernel, 0)..=(ClientNetwork::Kernel, u16::MAX);

/// Listeners of all Tailscale Services.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    addresses: BTreeMap<String, Ipv4Addr>,
    sites: BTreeMap<String, BoundListener>,
    tasks: JoinSet<()>,
}

/// Open listeners of one Tailscale Service.
#[derive(Debug)]
struct BoundListener {
    served: SnapshotCell<PortSnapshot>,
    ports: BTreeMap<(ClientNetwork, u16), (Listener, SocketAddr, watch::Sender<bool>)>,
    faults: BTreeMap<(ClientNetwork, u16), String>,
    room: Arc<Semaphore>,
}

impl Listeners {
    /// Opens missing listeners and closes removed ones; others are unchanged. Returns whether one failed and must be retried.
    pub(super) async fn follow<S: HttpService>(&mut self, sites: &Vhosts, shared: &Arc<ListenerContext>, service: &Arc<S>) -> bool {
        while self.tasks.try_join_next().is_some() {}
        self.sites.retain(|name, opened| {
            let stays = sites.contains_key(name);
            if !stays {
                opened.close();
                shared.stats.forget(name);
            }
            stays
        });
        listener_addr::assign(&mut self.addresses, &sites.keys().map(String::as_str).collect());
        let mut failed = false;
        for (name, site) in sites {
            let served = PortSnapshot::new(site, &shared.certificates);
            let opened = self.sites.entry(name.clone()).or_insert_with(|| BoundListener::new(served.clone(), shared.limits.shares.site));
            if opened.served.read().site != served.site {
                opened.served.replace(served);
            }
            let address = self.addresses.get(name).copied();
            opened.open((name, site), address, shared, service, &mut self.tasks).await;
            failed |= !opened.faults.is_empty();
        }
        failed
    }

    /// Accepts no new connections and requests; running ones continue.
    pub(super) fn close(&mut self) {
        self.sites.values().for_each(BoundListener::close);
    }

    /// Waits until the last connection has ended.
    pub(super) async fn closed(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    /// Status by virtual host.
    pub(super) fn in_place(&self, shared: &ListenerContext) -> BTreeMap<String, SiteStatus> {
        let place = |(name, opened): (&String, &BoundListener)| {
            let site = Arc::clone(&opened.served.read().site);
            let over_tls = site.is_over_tls();
            let missing: BTreeSet<_> = site.hosts.keys().filter(|host| over_tls && !shared.certificates.has(host)).cloned().collect();
            let certified = missing.is_empty() || missing.len() < site.hosts.len();
            // The tailnet does not wait for listeners of the cluster.
            let ports = opened.ports.range(TAILNET).map(|((_, port), (_, address, _))| (*port, *address)).collect();
            let kernel = opened.ports.range(KERNEL).map(|((_, port), (_, address, _))| (*port, address.port())).collect();
            let faults = opened.faults.iter().map(|((_, port), why)| (*port, why.clone())).collect();
            (name.clone(), SiteStatus { ports, kernel, missing, certified, faults })
        };
        self.sites.iter().map(place).collect()
    }
}

impl BoundListener {
    fn new(served: PortSnapshot, room: usize) -> Self {
        let room = Arc::new(Semaphore::new(room.min(Semaphore::MAX_PERMITS)));
        Self { served: SnapshotCell::new(served), ports: BTreeMap::new(), faults: BTreeMap::new(), room }
    }

    fn close(&self) {
        for (.., closing) in self.ports.values() {
            closing.send_replace(true);
        }
    }

    async fn open<S: HttpService>(
        &mut self,
        (name, site): (&str, &Vhost),
        address: Option<Ipv4Addr>,
        shared: &Arc<ListenerContext>,
        service: &Arc<S>,
        tasks: &mut JoinSet<()>,
    ) {
        self.faults.clear();
        let kernel = (shared.kernel_tcp && !site.addresses.is_empty()).then_some(ClientNetwork::Kernel);
        let cluster = shared.pod_addresses.iter().map(|address| ClientNetwork::Cluster(*address));
        let networks: Vec<_> = std::iter::once(ClientNetwork::Tailnet).chain(kernel).chain(cluster).collect();
        self.ports.retain(|(network, port), (kind, _, closing)| {
            let wanted = site.listeners.get(port).filter(|_| networks.contains(network));
            let stays = wanted.is_some_and(|wanted| is_over_tls(*wanted) == is_over_tls(*kind));
            if !stays {
                closing.send_replace(true);
            }
            stays
        });
        let wanted = site.listeners.iter().flat_map(|(port, kind)| networks.iter().map(|network| ((*network, *port), *kind)));
        let missing: Vec<_> = wanted.filter(|(key, _)| !self.ports.contains_key(key)).collect();
        for (key, kind) in missing {
            let (network, port) = key;
            let at = address_of(network, shared.loopback, address, port);
            match bind(at).await {
                Ok((listener, at)) => {
                    let (closing, closed) = watch::channel(false);
                    let port_of = ListenerPort {
                        service: name.to_owned(),
                        number: port,
                        over_tls: is_over_tls(kind),
                        network,
                        served: self.served.clone(),
                        counts: shared.stats.site(name),
                        room: Arc::clone(&self.room),
                        shared: Arc::clone(shared),
                        tunnels: watch::Sender::new(()),
                    };
                    self.ports.insert(key, (kind, at, closing));
                    tasks.spawn(listen(listener, Arc::new(port_of), Arc::clone(service), closed));
                }
                Err(error) => {
                    let at = at.map_or_else(|| "the loopback network".to_owned(), |at| at.to_string());
                    let why = format!("port {port} cannot be listened on at {at}: {error}");
                    tracing::error!(service = name, "{why}");
                    self.faults.insert(key, why);
                }
            }
        }
    }
}

/// Address of a listener; `None` if the loopback network has no more addresses.
fn address_of(network: ClientNetwork, loopback: Loopback, site: Option<Ipv4Addr>, port: u16) -> Option<SocketAddr> {
    match (network, loopback) {
        (ClientNetwork::Cluster(address), _) => Some((address, port).into()),
        // The node's own addresses appear and change with tailscaled.
        (ClientNetwork::Kernel, _) => Some((Ipv6Addr::UNSPECIFIED, 0).into()),
        (ClientNetwork::Tailnet, Loopback::Any) => Some((Ipv4Addr::LOCALHOST, 0).into()),
        (ClientNetwork::Tailnet, Loopback::Named) => site.map(|address| listener_addr::at(address, port)),
    }
}

fn is_over_tls(listener: Listener) -> bool {
    listener == Listener::Https
}

async fn bind(at: Option<SocketAddr>) -> std::io::Result<(TcpListener, SocketAddr)> {
    let at = at.ok_or_else(|| std::io::Error::other("there are more services than addresses"))?;
    let listener = match TcpListener::bind(at).await {
        // A kernel without IPv6.
        Err(_) if at.ip() == Ipv6Addr::UNSPECIFIED => TcpListener::bind((Ipv4Addr::UNSPECIFIED, at.port())).await?,
        listener => listener?,
    };
    let at = listener.local_addr()?;
    Ok((listener, at))
}

/// Next connection within the limits; `None` if accepting failed. Further connections wait in the kernel's backlog.
async fn accept(listener: &TcpListener, port: &ListenerPort) -> Option<(TcpStream, ConnectionBudget)> {
    let (stream, _) = next(listener, &port.service).await?;
    // The limit of the Tailscale Service first: waiting for it holds no shared permit.
    let site = Arc::clone(&port.room).acquire_owned().await.ok()?;
    let process = Arc::clone(&port.shared.connections).acquire_owned().await.ok()?;
    Some((stream, ConnectionBudget { _site: site, _process: process }))
}

/// Accepts connections until closed, then waits for open connections and tunnels.
async fn listen<S: HttpService>(listener: TcpListener, port: Arc<ListenerPort>, service: Arc<S>, mut closing: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = {
            let mut accepting = pin!(accept(&listener, &port));
            loop {
                tokio::select! {
                    biased;
                    _ = closing.wait_for(|closing| *closing) => break None,
                    accepted = &mut accepting => break Some(accepted),
                    // A finished connection frees a permit.
                    Some(_) = connections.join_next() => {}
                }
            }
        };
        let Some(accepted) = accepted else { break };
        if let Some((stream, room)) = accepted {
            let room = Arc::new(room);
            let work = serve(stream, Arc::clone(&port), Arc::clone(&service), Arc::clone(&room), closing.clone());
            let (limit, closing) = (port.shared.limits.linger_timeout, closing.clone());
            connections.spawn(async move {
                if let Some(stream) = work.await {
                    linger(stream, limit, closing).await;
                }
                drop(room);
            });
        }
    }
    drop(listener);
    let all = async {
        while connections.join_next().await.is_some() {}
        port.tunnels.closed().await;
    };
    if timeout(port.shared.limits.drain_timeout, all).await.is_err() {
        tracing::info!(service = port.service, port = port.number, "drain timeout reached; closing the remaining connections");
    }
    port.tunnels.send_replace(());
}
