//! Upstream connection pools: endpoints of each backend, and its `ClusterIP` as fallback.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout};

use crate::api::routes::Backend;
use crate::edge::tls::Connector;
use crate::model::front_end::endpoints::ServicePort;
use crate::model::front_end::load_balancer::{EndpointCandidate, order};

use super::dial::{ConnectionPermits, DialError, Dialer};
use super::endpoints::UpstreamEndpoints;
use super::upstream::Upstream;

/// Maximum endpoints that a request tries before the `ClusterIP`.
const TRIES: usize = 3;

/// Timeout for a connection permit.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Pools {
    by_backend: Mutex<BTreeMap<Arc<Backend>, Arc<Pool>>>,
    endpoints: watch::Receiver<Arc<UpstreamEndpoints>>,
    /// The replica's node: endpoints on it tell its zone.
    node: Option<String>,
    /// Limit of upstream connections.
    room: Arc<Semaphore>,
    start: Instant,
}

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) backend: Arc<Backend>,
    /// TLS server name: the Service's cluster DNS name, else its address.
    name: String,
    peers: Mutex<UpstreamSet>,
}

#[derive(Debug, Default)]
struct UpstreamSet {
    /// Endpoints that the list was built from. A pool without requests keeps no former ones in memory.
    endpoints: Weak<UpstreamEndpoints>,
    list: Vec<Arc<Upstream>>,
    fallback: BTreeMap<SocketAddr, Arc<Upstream>>,
}

impl Pools {
    pub(super) fn new(endpoints: watch::Receiver<Arc<UpstreamEndpoints>>, node: Option<String>, room: Arc<Semaphore>) -> Self {
        Self { by_backend: Mutex::default(), endpoints, node, room, start: Instant::now() }
    }

    pub(super) fn of(&self, backend: &Arc<Backend>) -> Arc<Pool> {
        let mut by_backend = self.by_backend.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(by_backend.entry(Arc::clone(backend)).or_insert_with(|| Arc::new(Pool::new(backend))))
    }

    /// Removes unused backends; running requests continue.
    pub(super) fn retain(&self, wanted: &BTreeSet<Arc<Backend>>) {
        self.by_backend.lock().unwrap_or_else(PoisonError::into_inner).retain(|backend, _| wanted.contains(backend));
    }

    /// How connections to the upstreams of a pool are opened.
    pub(super) fn dialer<'a>(&'a self, pool: &'a Pool, tls: &Connector) -> Dialer<'a, Self> {
        Dialer { protocol: pool.backend.protocol, server_name: &pool.name, tls: tls.client(), permits: self }
    }

    /// Closes connections that have been idle for `idle`.
    pub(super) fn sweep(&self, idle: Duration) {
        let pools: Vec<_> = self.by_backend.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for pool in pools {
            let mut peers = pool.refreshed(&self.endpoints.borrow(), self.node.as_ref());
            peers.list.iter().chain(peers.fallback.values()).for_each(|peer| peer.sweep(idle));
            peers.fallback.retain(|_, peer| peer.is_used());
        }
    }

    /// Endpoints to try for a request, in order. Empty if none is known or all are ejected.
    pub(super) fn choices(&self, pool: &Pool) -> Vec<Arc<Upstream>> {
        let now = self.start.elapsed();
        let peers = pool.refreshed(&self.endpoints.borrow(), self.node.as_ref());
        let candidates: Vec<_> = peers
            .list
            .iter()
            .map(|peer| EndpointCandidate { near: peer.near, busy: peer.busy(), ejected: peer.health().is_ejected(now) })
            .collect();
        let order = order(&candidates, TRIES, fastrand::f64);
        order.into_iter().map(|index| Arc::clone(&peers.list[index])).collect()
    }

    /// Records whether an endpoint was reachable.
    pub(super) fn note(&self, peer: &Upstream, reached: bool) {
        let mut health = peer.health();
        if reached { health.answered() } else { health.failed(self.start.elapsed()) }
    }

    /// Reasons of failed EndpointSlice watches, by namespace.
    pub(super) fn unfollowed(&self) -> BTreeMap<String, &'static str> {
        self.endpoints.borrow().faults.clone()
    }

    /// Number of endpoints and of ejected endpoints, by backend.
    pub(super) fn sample(&self) -> BTreeMap<Arc<Backend>, (usize, usize)> {
        let now = self.start.elapsed();
        let pools: Vec<_> = self.by_backend.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        let count = |pool: &Arc<Pool>| {
            let peers = pool.refreshed(&self.endpoints.borrow(), self.node.as_ref());
            (peers.list.len(), peers.list.iter().filter(|peer| peer.health().is_ejected(now)).count())
        };
        pools.iter().map(|pool| (Arc::clone(&pool.backend), count(pool))).collect()
    }
}

impl ConnectionPermits for Pools {
    /// Closes idle connections if no permit is free.
    async fn permit(&self) -> Result<OwnedSemaphorePermit, DialError> {
        if let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() {
            return Ok(permit);
        }
        self.sweep(Duration::ZERO);
        let permit = timeout(PERMIT_TIMEOUT, Arc::clone(&self.room).acquire_owned()).await;
        permit.ok().and_then(Result::ok).ok_or(DialError::Full)
    }
}

impl Pool {
    fn new(backend: &Arc<Backend>) -> Self {
        let host = backend.address.rsplit_once(':').map_or("", |(host, _)| host).trim_start_matches('[').trim_end_matches(']');
        let name = match (backend.service.as_str(), backend.namespace.as_str()) {
            ("", _) | (_, "") => host.to_owned(),
            (service, namespace) => format!("{service}.{namespace}.svc"),
        };
        Self { backend: Arc::clone(backend), name, peers: Mutex::default() }
    }

    /// The `ClusterIP` fallback; a name is resolved.
    pub(super) async fn fallback(&self) -> Result<Arc<Upstream>, DialError> {
        let name = &self.backend.address;
        let address = if let Ok(address) = name.parse() {
            address
        } else {
            let fail = |source| DialError::Name { name: name.clone(), source };
            let mut found = lookup_host(name).await.map_err(fail)?;
            found.next().ok_or_else(|| fail(io::Error::other("it has no address")))?
        };
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(peers.fallback.entry(address).or_insert_with(|| Arc::new(Upstream::new(address, false)))))
    }

    /// Upstreams for the current endpoints; unchanged ones keep their connections.
    fn refreshed(&self, current: &Arc<UpstreamEndpoints>, node: Option<&String>) -> std::sync::MutexGuard<'_, UpstreamSet> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if std::ptr::eq(peers.endpoints.as_ptr(), Arc::as_ptr(current)) {
            return peers;
        }
        let Backend { namespace, service, port_name, .. } = &*self.backend;
        let port = ServicePort { namespace: namespace.clone(), service: service.clone(), port: port_name.clone() };
        let endpoints = current.endpoints.get(&port).map(Vec::as_slice).unwrap_or_default();
        // Endpoints on the node have its zone.
        let zone =
            node.and_then(|node| endpoints.iter().find(|endpoint| endpoint.topology.node.as_ref() == Some(node))?.topology.zone.as_ref());
        let had: BTreeMap<_, _> = peers.list.drain(..).map(|peer| ((peer.address, peer.near), peer)).collect();
        peers.list = endpoints
            .iter()
            .map(|endpoint| {
                let near = zone.is_some_and(|zone| endpoint.topology.is_near(zone));
                had.get(&(endpoint.address, near)).cloned().unwrap_or_else(|| Arc::new(Upstream::new(endpoint.address, near)))
            })
            .collect();
        peers.endpoints = Arc::downgrade(current);
        peers
    }
}
