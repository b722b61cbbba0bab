//! HTTP front end of an ingress group: terminates TLS and forwards requests to endpoints of cluster services.
//!
//! tailscaled forwards each port of a Tailscale Service to a loopback listener with a PROXY protocol v2 header ([`SiteStatus`] has the
//! addresses). On request listeners on the Pod's addresses serve the cluster as well. Virtual hosts, certificates and endpoints are
//! latest-wins: a change applies to the next request or handshake and ends no connection. Orders no certificates and does not change
//! tailscaled's config.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::api::routes::Backend;
use crate::edge::tls::{Acceptor, Certificates, TlsError};
use crate::model::flows::drain::Budget;
use crate::model::front_end::vhosts::headers::Upgrades;
use crate::model::front_end::vhosts::shares::Shares;
use crate::model::front_end::vhosts::{Vhost, Vhosts};
use crate::model::ingress::certificate::Pair;
use crate::model::settings::FrontEndSettings;
use crate::model::tailnet::advertise::{PlacedSites, SiteStatus};
use crate::runtime::snapshot::SnapshotCell;
use crate::runtime::timer::until;
use crate::runtime::watch_ext::put;

use client::ClientNetwork;
use endpoints::UpstreamEndpoints;
use listen::Listeners;
use pool::Pools;
use seams::HttpService;
use sources::SourceLimits;
use stats::{Counts, Stats};

mod activity;
mod body;
pub mod client;
mod connection;
pub mod credentials;
mod dial;
pub mod endpoints;
pub mod identify;
mod linger_close;
mod listen;
mod pool;
mod request;
pub mod seams;
mod sources;
pub mod stats;
mod tunnel;
mod upstream;
pub mod vhosts;

/// Retry interval of failed listeners.
const LISTEN_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Interval of closing idle upstream connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(15);

pub struct Inputs {
    pub sites: watch::Receiver<Arc<Vhosts>>,
    pub certificates: watch::Receiver<Arc<BTreeMap<String, Pair>>>,
    pub endpoints: watch::Receiver<Arc<UpstreamEndpoints>>,
    pub closing: watch::Receiver<Closing>,
    /// The replica's node.
    pub node: Option<String>,
    pub loopback: Loopback,
    /// Connections to addresses of Tailscale Services may end in the kernel.
    pub kernel_tcp: bool,
    /// Addresses of the Pod that also serve the cluster, whose clients have no identity.
    pub pod_addresses: BTreeSet<IpAddr>,
    pub limits: Limits,
    pub upgrades: Upgrades,
}

/// Names with an unusable certificate, and why.
pub type RefusedCertificates = Arc<BTreeMap<String, &'static str>>;

/// Whether connections and requests are accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Closing {
    #[default]
    Open,
    /// New connections, and one more request on each connection; its response closes the connection.
    Draining,
    /// No new connections and no new requests.
    Closed,
}

/// Addresses of listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loopback {
    /// Address derived from the service's name, port derived from its port.
    Named,
    /// A free port of 127.0.0.1.
    Any,
}

/// Limits of a client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub proxy_header_timeout: Duration,
    pub handshake_timeout: Duration,
    /// From the end of the handshake to the end of the first request's head.
    pub first_request_timeout: Duration,
    /// Between two requests, and for the head of one.
    pub idle_timeout: Duration,
    /// Of a request.
    pub max_head_bytes: usize,
    /// Concurrent requests on one HTTP/2 connection.
    pub max_streams: u32,
    /// After the end of TLS, for the client to close the connection.
    pub linger_timeout: Duration,
    /// For the client to send a body, or to read a response; bytes extend it ([`min_rate`]).
    ///
    /// [`min_rate`]: crate::model::front_end::vhosts::min_rate
    pub body_timeout: Duration,
    /// Idle timeout of a backend's response.
    pub answer_timeout: Duration,
    /// Idle timeout of an upgraded connection.
    pub tunnel_timeout: Duration,
    /// Maximum numbers of connections and requests.
    pub shares: Shares,
    /// For open connections after their listener was closed: the drain timeout of a draining replica's flows.
    pub drain_timeout: Duration,
}

#[derive(Debug, Clone)]
pub struct FrontEnd {
    /// Status of virtual hosts, by Tailscale Service.
    pub in_place: watch::Receiver<PlacedSites>,
    /// Reasons of invalid certificates, by name.
    pub refused: watch::Receiver<RefusedCertificates>,
    pub stats: Stats,
    shared: Arc<ListenerContext>,
}

/// Values for a scrape.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FrontEndSample {
    pub sites: BTreeMap<String, stats::ListenerCounts>,
    /// Status of virtual hosts.
    pub in_place: PlacedSites,
    /// Reasons of invalid certificates, by name.
    pub refused: RefusedCertificates,
    /// Number of endpoints and of ejected endpoints, by backend.
    pub endpoints: BTreeMap<Arc<Backend>, (usize, usize)>,
    /// Reasons of failed EndpointSlice watches, by namespace.
    pub unfollowed: BTreeMap<String, &'static str>,
}

#[derive(Debug)]
struct ListenerContext {
    pools: Pools,
    certificates: Certificates,
    stats: Stats,
    limits: Limits,
    upgrades: Upgrades,
    sources: Arc<SourceLimits>,
    /// Limit of client connections.
    connections: Arc<Semaphore>,
    requests: Arc<Semaphore>,
    loopback: Loopback,
    kernel_tcp: bool,
    pod_addresses: BTreeSet<IpAddr>,
    closing: watch::Receiver<Closing>,
}

#[derive(Debug, Clone)]
struct PortSnapshot {
    site: Arc<Vhost>,
    acceptor: Option<Acceptor>,
}

#[derive(Debug)]
struct ListenerPort {
    service: String,
    number: u16,
    over_tls: bool,
    network: ClientNetwork,
    served: SnapshotCell<PortSnapshot>,
    counts: Arc<Counts>,
    room: Arc<Semaphore>,
    shared: Arc<ListenerContext>,
    /// Signal for upgraded connections: a change ends them, and closing waits for them.
    tunnels: watch::Sender<()>,
}

impl Default for Limits {
    fn default() -> Self {
        let front_end = FrontEndSettings::default();
        Self {
            proxy_header_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
            first_request_timeout: Duration::from_secs(20),
            idle_timeout: Duration::from_secs(75),
            max_head_bytes: 64 << 10,
            max_streams: 256,
            linger_timeout: Duration::from_secs(2),
            body_timeout: front_end.body_timeout,
            answer_timeout: front_end.answer_timeout,
            tunnel_timeout: front_end.tunnel_timeout,
            shares: Shares::default(),
            drain_timeout: Budget::of(Budget::DEFAULT_GRACE, true).flows,
        }
    }
}

impl Limits {
    /// Limits for a drain timeout.
    pub fn of(drain_timeout: Duration) -> Self {
        Self { drain_timeout: Budget::of(drain_timeout, true).flows, ..Self::default() }
    }
}

impl FrontEnd {
    /// Everything for a scrape.
    pub fn sample(&self) -> FrontEndSample {
        FrontEndSample {
            sites: self.stats.sample(),
            in_place: Arc::clone(&self.in_place.borrow()),
            refused: Arc::clone(&self.refused.borrow()),
            endpoints: self.shared.pools.sample(),
            unfollowed: self.shared.pools.unfollowed(),
        }
    }
}

impl PortSnapshot {
    fn new(site: &Arc<Vhost>, certificates: &Certificates) -> Self {
        let acceptor = certificates.acceptor(site.hosts.keys().cloned().collect());
        let acceptor = acceptor.inspect_err(|error| tracing::error!(reason = error.reason(), "{error}")).ok();
        Self { site: Arc::clone(site), acceptor }
    }
}

/// Creates the front end and its task, which ends after closing and the last connection, or when the sender of virtual hosts is dropped.
/// Fails if TLS cannot be initialized.
pub fn create<S: HttpService>(inputs: Inputs, service: S) -> Result<(FrontEnd, impl Future<Output = ()> + Send + 'static), TlsError> {
    let limits = inputs.limits;
    let room = |most: usize| Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
    let shared = Arc::new(ListenerContext {
        pools: Pools::new(inputs.endpoints, inputs.node, room(limits.shares.upstream)),
        certificates: Certificates::new()?,
        stats: Stats::default(),
        limits,
        upgrades: inputs.upgrades,
        sources: SourceLimits::new(&limits.shares),
        connections: room(limits.shares.connections),
        requests: room(limits.shares.requests),
        loopback: inputs.loopback,
        kernel_tcp: inputs.kernel_tcp,
        pod_addresses: inputs.pod_addresses,
        closing: inputs.closing,
    });
    let (placed, in_place) = watch::channel(Arc::default());
    let (refusing, refused) = watch::channel(Arc::default());
    let front_end = FrontEnd { in_place, refused, stats: shared.stats.clone(), shared: Arc::clone(&shared) };
    Ok((front_end, run(inputs.sites, inputs.certificates, shared, Arc::new(service), (placed, refusing))))
}

async fn run<S: HttpService>(
    mut sites_in: watch::Receiver<Arc<Vhosts>>,
    mut certificates: watch::Receiver<Arc<BTreeMap<String, Pair>>>,
    shared: Arc<ListenerContext>,
    service: Arc<S>,
    (placed, refusing): (watch::Sender<PlacedSites>, watch::Sender<RefusedCertificates>),
) {
    let (mut listeners, mut closing) = (Listeners::default(), shared.closing.clone());
    let mut sweeps = interval_at(Instant::now() + SWEEP_INTERVAL, SWEEP_INTERVAL);
    sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let sites = Arc::clone(&sites_in.borrow_and_update());
        let pairs = Arc::clone(&certificates.borrow_and_update());
        put(&refusing, Arc::new(load(&shared.certificates, &sites, &pairs)));
        let failed = listeners.follow(&sites, &shared, &service).await;
        shared.pools.retain(&sites.values().flat_map(|site| site.backends().cloned()).collect());
        let in_place = listeners.in_place(&shared);
        log_missing_certificates(&placed.borrow(), &in_place);
        put(&placed, Arc::new(in_place));
        let retry = failed.then(|| Instant::now() + LISTEN_RETRY_INTERVAL);
        let changed = loop {
            tokio::select! {
                changed = sites_in.changed() => break changed.is_ok(),
                Ok(()) = certificates.changed() => break true,
                Ok(_) = closing.wait_for(|closing| *closing == Closing::Closed) => break false,
                () = until(retry) => break true,
                _ = sweeps.tick() => shared.pools.sweep(upstream::IDLE_TIMEOUT),
            }
        };
        if !changed {
            break;
        }
    }
    listeners.close();
    listeners.closed().await;
}

/// Loads the certificates of the virtual hosts; returns the invalid ones.
fn load(certificates: &Certificates, sites: &Vhosts, pairs: &BTreeMap<String, Pair>) -> BTreeMap<String, &'static str> {
    let wanted = sites.values().filter(|site| site.is_over_tls()).flat_map(|site| site.hosts.keys().cloned()).collect();
    let faults = certificates.load(pairs, &wanted);
    for (name, error) in &faults {
        tracing::warn!(reason = error.reason(), name, "invalid certificate; the previous one stays in use: {error}");
    }
    faults.into_iter().map(|(name, error)| (name, error.reason())).collect()
}

/// Logs changes of the names without certificate.
fn log_missing_certificates(before: &BTreeMap<String, SiteStatus>, after: &BTreeMap<String, SiteStatus>) {
    for (service, now) in after.iter().filter(|(_, now)| now.certified) {
        let before_missing = before.get(service).filter(|before| before.certified).map(|before| &before.missing);
        for name in now.missing.iter().filter(|name| before_missing.is_none_or(|current| !current.contains(*name))) {
            tracing::warn!(service, name, "no certificate for the name: its TLS handshakes fail; other hosts are served");
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::api::routes::Listener;
    use crate::model::front_end::vhosts::{Proxied, RouteTarget, VhostRoute};

    #[tokio::test(start_paused = true)]
    async fn idle_upstreams_are_closed_also_while_a_listener_fails_or_sites_change() {
        let backend = Arc::new(Backend { address: "127.0.0.1:9".to_owned(), ..Backend::default() });
        let target = RouteTarget::Backend(Arc::new(Proxied { backend: Arc::clone(&backend), ..Proxied::default() }));
        let route = VhostRoute { host: None, port: None, path: "/".to_owned(), exact: false, target };
        let site = Vhost { listeners: [(80, Listener::Http)].into(), routes: vec![route], ..Vhost::default() };
        let vhosts = Arc::new(Vhosts::from([("svc:web".to_owned(), Arc::new(site))]));
        for (fails, changes) in [(false, false), (true, false), (false, true), (true, true)] {
            let foreign = IpAddr::from([192, 0, 2, 1]);
            let (sites_sender, sites) = watch::channel(Arc::clone(&vhosts));
            let (_closing, closing) = watch::channel(Closing::Open);
            let inputs = Inputs {
                sites,
                certificates: watch::channel(Arc::default()).1,
                endpoints: watch::channel(Arc::default()).1,
                closing,
                node: None,
                loopback: Loopback::Any,
                kernel_tcp: false,
                pod_addresses: fails.then_some(foreign).into_iter().collect(),
                limits: Limits::default(),
                upgrades: Upgrades::default(),
            };
            let service = vhosts::VhostService::<()>::new(None).expect("TLS");
            let (front_end, work) = create(inputs, service).expect("TLS");
            let task = tokio::spawn(work);
            let unused = Arc::downgrade(&front_end.shared.pools.of(&backend).fallback().await.expect("an address"));
            for _ in 0..8 {
                sleep(Duration::from_secs(2)).await;
                if changes {
                    sites_sender.send_replace(Arc::clone(&vhosts));
                }
            }
            assert_eq!(front_end.in_place.borrow()["svc:web"].faults.is_empty(), !fails);
            assert_eq!(unused.strong_count(), 0, "fails: {fails}, changes: {changes}");
            task.abort();
        }
    }
}
