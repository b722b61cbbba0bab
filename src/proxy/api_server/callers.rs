//! Callers of the API server: WhoIs of each connection's address, as the identity of its requests.
//!
//! Without an answer of tailscaled no request is sent. A client that loses a right loses its connection, with all streams; open streams are
//! looked up at least every [`REVOCATION_INTERVAL`]. While tailscaled does not answer they continue, for at most [`MAX_UNCONFIRMED`].

use std::collections::BTreeMap;
use std::fmt::{Debug, Formatter};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SetOnce, watch};
use tokio::time::{Instant, sleep};

use crate::api::routes::ApiServerSite;
use crate::api::whois::WhoIs;
use crate::model::api_server::caller::Caller;
use crate::model::api_server::refusal::ApiServerRefusal;
use crate::model::base::netmap::NetMap;
use crate::proxy::front_end::client::ClientConnection;
use crate::proxy::front_end::identify::WhoIsLookup;

use super::lookups::{CACHE_TTL, MAX_LOOKUPS, NetMapChanges, SharedLookups, WhoIsAnswer, from_now_on, has_changed};

/// Maximum time between two lookups of a client whose streams are open.
const REVOCATION_INTERVAL: Duration = Duration::from_mins(1);
/// Period over which the lookups of open streams are distributed after a change of the netmap.
const SPREAD_PERIOD: Duration = Duration::from_secs(5);
/// Age of the last answer of tailscaled from which a client counts as one that has lost its rights.
const MAX_UNCONFIRMED: Duration = Duration::from_mins(5);

/// Lookup for the clients of a Tailscale Service: grants may be to it alone.
pub type LookupOfService = Box<dyn Fn(&str) -> WhoIsLookup<WhoIs> + Send + Sync>;

/// Lookup of callers.
pub struct Callers {
    lookup_of: LookupOfService,
    netmap: watch::Receiver<Option<Arc<NetMap>>>,
    by_service: Mutex<BTreeMap<String, Arc<SharedLookups>>>,
    permits: Arc<Semaphore>,
}

/// A client's address, if the tailnet knows one, and the Tailscale Service that it uses.
type ServiceClient<'a> = (Option<SocketAddr>, &'a str);

/// The caller of a connection.
#[derive(Debug, Default)]
pub struct ConnectionCaller {
    cached: tokio::sync::Mutex<Option<CachedCaller>>,
    /// Set once the client has lost a right that it had on this connection.
    revocation: SetOnce<()>,
}

#[derive(Debug)]
struct CachedCaller {
    /// Result of the last lookup, for this site.
    caller: Result<Arc<Caller>, ApiServerRefusal>,
    site: Arc<ApiServerSite>,
    until: Instant,
    netmap: NetMapChanges,
    /// The last caller that was not refused.
    permitted: Option<Arc<Caller>>,
    /// Time of the last answer of tailscaled.
    confirmed: Instant,
}

impl Debug for Callers {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Callers").finish_non_exhaustive()
    }
}

impl Callers {
    pub fn new(lookup_of: LookupOfService, netmap: watch::Receiver<Option<Arc<NetMap>>>) -> Self {
        Self { lookup_of, netmap, by_service: Mutex::default(), permits: Arc::new(Semaphore::new(MAX_LOOKUPS)) }
    }

    fn lookups(&self, service: &str) -> Arc<SharedLookups> {
        let mut by_service = self.by_service.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(SharedLookups::new((self.lookup_of)(service), self.netmap.clone(), Arc::clone(&self.permits)));
        Arc::clone(by_service.entry(service.to_owned()).or_insert_with(new))
    }

    /// The caller of a connection.
    pub async fn of(
        &self,
        client: &ClientConnection<ConnectionCaller>,
        site: &Arc<ApiServerSite>,
    ) -> Result<Arc<Caller>, ApiServerRefusal> {
        self.identify(&client.caller, (client.tailnet_client(), client.service()), site).await
    }

    async fn identify(
        &self,
        connection: &ConnectionCaller,
        (client, service): ServiceClient<'_>,
        site: &Arc<ApiServerSite>,
    ) -> Result<Arc<Caller>, ApiServerRefusal> {
        let mut cached = connection.cached.lock().await;
        if let Some(cached) = cached.as_ref().filter(|cached| cached.is_current(site)) {
            return cached.caller.clone();
        }
        let client = client.ok_or(ApiServerRefusal::UnknownClient)?;
        let (WhoIsAnswer { whois, until }, netmap) = self.lookups(service).of(client).await;
        let caller = whois.and_then(|whois| {
            let netmap = self.netmap.borrow();
            let domain = netmap.as_deref().and_then(NetMap::domain);
            Caller::of(&whois, (client.ip(), domain), site).map(Arc::new)
        });
        let now = Instant::now();
        let (before, last) = cached.take().map_or((None, now), |cached| (cached.permitted, cached.confirmed));
        let confirmed = if caller.as_ref().is_err_and(ApiServerRefusal::is_transient) { last } else { now };
        if before.as_ref().is_some_and(|before| is_reduced(before, &caller) || now >= confirmed + MAX_UNCONFIRMED) {
            // A second loss changes nothing.
            let _ = connection.revocation.set(());
        }
        let permitted = caller.as_ref().ok().cloned().or(before);
        *cached = Some(CachedCaller { caller: caller.clone(), site: Arc::clone(site), until, netmap, permitted, confirmed });
        caller
    }

    /// Returns when the client of a connection loses a right that it had on it.
    pub async fn revoked(&self, client: &ClientConnection<ConnectionCaller>) {
        self.revocation(&client.caller, (client.tailnet_client(), client.service()), || client.site().api_server.clone()).await;
    }

    async fn revocation(&self, connection: &ConnectionCaller, client: ServiceClient<'_>, site: impl Fn() -> Option<Arc<ApiServerSite>>) {
        let lookups = async {
            loop {
                let mut netmap = from_now_on(&self.netmap);
                // Netmaps may change more often than clients are to be looked up.
                sleep(CACHE_TTL.saturating_sub(SPREAD_PERIOD)).await;
                tokio::select! {
                    Ok(()) = netmap.changed() => {}
                    () = sleep(REVOCATION_INTERVAL.saturating_sub(CACHE_TTL)) => {}
                }
                sleep(SPREAD_PERIOD.mul_f64(fastrand::f64())).await;
                if let (true, Some(site)) = (connection.is_permitted().await, site()) {
                    // The result is in the connection.
                    let _ = self.identify(connection, client, &site).await;
                }
            }
        };
        tokio::select! {
            () = connection.revocation.wait() => {}
            () = lookups => {}
        }
    }
}

impl ConnectionCaller {
    /// Whether a request was permitted.
    async fn is_permitted(&self) -> bool {
        self.cached.lock().await.as_ref().is_some_and(|cached| cached.permitted.is_some())
    }
}

impl CachedCaller {
    fn is_current(&self, site: &Arc<ApiServerSite>) -> bool {
        Arc::ptr_eq(&self.site, site) && Instant::now() < self.until && !has_changed(&self.netmap)
    }
}

/// Whether a lookup took a right away.
fn is_reduced(before: &Caller, caller: &Result<Arc<Caller>, ApiServerRefusal>) -> bool {
    match caller {
        Ok(caller) => !before.is_within(caller),
        Err(refusal) => !refusal.is_transient(),
    }
}

#[cfg(test)]
mod tests;
