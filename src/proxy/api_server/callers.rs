//! Callers of the API server: WhoIs of each connection's address, stored with the connection.
//!
//! An identity is looked up again after a change of the netmap, and after [`CACHE_TTL`], as tailscaled reports no change of grants. The
//! requests of a connection share one lookup. Without an answer of tailscaled no request is sent. A client that loses a right loses its
//! connection, with all streams.

use std::fmt::{Debug, Formatter};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, Notify, watch};
use tokio::time::{Instant, sleep};

use crate::api::routes::ApiServerSite;
use crate::api::whois::WhoIs;
use crate::model::api_server::caller::Caller;
use crate::model::api_server::refusal::ApiServerRefusal;
use crate::model::base::netmap::NetMap;
use crate::proxy::front_end::client::ClientConnection;
use crate::proxy::front_end::identify::WhoIsLookup;

/// Maximum age of an identity.
const CACHE_TTL: Duration = Duration::from_secs(10);
/// Time after a failed lookup in which other requests are refused without a lookup of their own.
const FAILURE_TTL: Duration = Duration::from_secs(1);
/// Maximum time between two lookups of a client whose streams are open.
const REVOCATION_INTERVAL: Duration = Duration::from_mins(1);

/// Lookup of callers.
pub struct Callers {
    lookup: WhoIsLookup<WhoIs>,
    netmap: watch::Receiver<Option<Arc<NetMap>>>,
}

/// The caller of a connection.
#[derive(Debug, Default)]
pub struct ConnectionCaller {
    cached: Mutex<Option<CachedCaller>>,
    /// The client lost a right that it had on this connection.
    is_revoked: AtomicBool,
    revocation: Notify,
}

#[derive(Debug)]
struct CachedCaller {
    /// Result of the last lookup, for this site.
    caller: Result<Arc<Caller>, ApiServerRefusal>,
    site: Arc<ApiServerSite>,
    until: Instant,
    /// Changes after the start of the lookup.
    netmap: watch::Receiver<Option<Arc<NetMap>>>,
    /// The last caller that was not refused.
    permitted: Option<Arc<Caller>>,
}

impl Debug for Callers {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Callers").finish_non_exhaustive()
    }
}

impl Callers {
    pub fn new(lookup: WhoIsLookup<WhoIs>, netmap: watch::Receiver<Option<Arc<NetMap>>>) -> Self {
        Self { lookup, netmap }
    }

    /// The caller of a connection.
    pub async fn of(
        &self,
        client: &ClientConnection<ConnectionCaller>,
        site: &Arc<ApiServerSite>,
    ) -> Result<Arc<Caller>, ApiServerRefusal> {
        let mut cached = client.caller.cached.lock().await;
        if let Some(cached) = cached.as_ref().filter(|cached| cached.is_current(site)) {
            return cached.caller.clone();
        }
        let (start, mut netmap) = (Instant::now(), self.netmap.clone());
        netmap.mark_unchanged();
        let caller = self.look_up(client, site).await;
        let before = cached.take().and_then(|cached| cached.permitted);
        if before.as_ref().is_some_and(|before| is_reduced(before, &caller)) {
            client.caller.is_revoked.store(true, Ordering::Release);
            client.caller.revocation.notify_waiters();
        }
        let is_failure = caller.as_ref().is_err_and(ApiServerRefusal::is_transient);
        let until = if is_failure { Instant::now() + FAILURE_TTL } else { start + CACHE_TTL };
        let permitted = caller.as_ref().ok().cloned().or(before);
        *cached = Some(CachedCaller { caller: caller.clone(), site: Arc::clone(site), until, netmap, permitted });
        caller
    }

    async fn look_up(&self, client: &ClientConnection<ConnectionCaller>, site: &ApiServerSite) -> Result<Arc<Caller>, ApiServerRefusal> {
        let address = client.tailnet_client().ok_or(ApiServerRefusal::UnknownClient)?;
        let whois = (self.lookup)(address).await.map_err(|error| {
            tracing::debug!(reason = error.reason(), "whois for {address} failed: {error}");
            ApiServerRefusal::Unidentified
        })?;
        let whois = whois.ok_or(ApiServerRefusal::UnknownClient)?;
        Caller::of(&whois, address.ip(), site).map(Arc::new)
    }

    /// Returns when the client of a connection loses a right that it had on it.
    pub async fn revoked(&self, client: &ClientConnection<ConnectionCaller>) {
        let mut netmap = self.netmap.clone();
        let lookups = async {
            loop {
                netmap.mark_unchanged();
                // Netmaps may change more often than clients are to be looked up.
                sleep(CACHE_TTL).await;
                tokio::select! {
                    Ok(()) = netmap.changed() => {}
                    () = sleep(REVOCATION_INTERVAL.saturating_sub(CACHE_TTL)) => {}
                }
                if let (true, Some(site)) = (client.caller.is_permitted().await, &client.site().api_server) {
                    // The result is in the connection.
                    let _ = self.of(client, site).await;
                }
            }
        };
        tokio::select! {
            () = client.caller.lost() => {}
            () = lookups => {}
        }
    }
}

impl ConnectionCaller {
    /// Returns once the client has lost a right.
    async fn lost(&self) {
        loop {
            let notified = self.revocation.notified();
            if self.is_revoked.load(Ordering::Acquire) {
                return;
            }
            notified.await;
        }
    }

    /// Whether a request was permitted.
    async fn is_permitted(&self) -> bool {
        self.cached.lock().await.as_ref().is_some_and(|cached| cached.permitted.is_some())
    }
}

impl CachedCaller {
    fn is_current(&self, site: &Arc<ApiServerSite>) -> bool {
        Arc::ptr_eq(&self.site, site) && Instant::now() < self.until && !self.netmap.has_changed().unwrap_or(false)
    }
}

/// Whether a lookup took a right away.
fn is_reduced(before: &Caller, caller: &Result<Arc<Caller>, ApiServerRefusal>) -> bool {
    match caller {
        Ok(caller) => !before.is_within(caller),
        Err(refusal) => !refusal.is_transient(),
    }
}
