//! WhoIs lookups of client addresses, shared by all connections of an address to a Tailscale Service.
//!
//! An answer is used until the netmap changes, and for [`CACHE_TTL`], as tailscaled reports no change of grants. A change of the netmap
//! outdates the answers about all clients at once: at most [`MAX_LOOKUPS`] lookups are in progress, others wait for one of these to end.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};

use crate::api::whois::WhoIs;
use crate::edge::localapi::LocalApiError;
use crate::model::api_server::refusal::ApiServerRefusal;
use crate::model::base::netmap::NetMap;
use crate::proxy::front_end::identify::WhoIsLookup;

/// Maximum age of an answer.
pub(super) const CACHE_TTL: Duration = Duration::from_secs(10);
/// Time after a failed lookup in which the address is not looked up again.
const FAILURE_TTL: Duration = Duration::from_secs(1);
/// Timeout of a lookup, including the wait for others to end.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum concurrent lookups: tailscaled answers them one after the other.
pub(super) const MAX_LOOKUPS: usize = 8;
/// Number of stored answers from which outdated ones are removed.
const MAX_STORED: usize = 4096;

/// Changes of the netmap after the start of a lookup.
pub(super) type NetMapChanges = watch::Receiver<Option<Arc<NetMap>>>;

/// Answers about client addresses, and lookups in progress.
pub(super) struct SharedLookups {
    lookup: WhoIsLookup<WhoIs>,
    netmap: NetMapChanges,
    by_address: Mutex<HashMap<IpAddr, SharedLookup>>,
    permits: Arc<Semaphore>,
}

#[derive(Clone)]
struct SharedLookup {
    answer: Shared<BoxFuture<'static, WhoIsAnswer>>,
    netmap: NetMapChanges,
}

#[derive(Debug, Clone)]
pub(super) struct WhoIsAnswer {
    /// `Unidentified` if tailscaled did not answer, `UnknownClient` if it does not know the address.
    pub(super) whois: Result<Arc<WhoIs>, ApiServerRefusal>,
    pub(super) until: Instant,
}

impl SharedLookups {
    pub(super) fn new(lookup: WhoIsLookup<WhoIs>, netmap: NetMapChanges, permits: Arc<Semaphore>) -> Self {
        Self { lookup, netmap, by_address: Mutex::default(), permits }
    }

    /// Current answer about a client.
    pub(super) async fn of(&self, client: SocketAddr) -> (WhoIsAnswer, NetMapChanges) {
        let SharedLookup { answer, netmap } = self.current(client);
        (answer.await, netmap)
    }

    fn current(&self, client: SocketAddr) -> SharedLookup {
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = by_address.get(&client.ip()).filter(|lookup| lookup.is_current()) {
            return current.clone();
        }
        if by_address.len() >= MAX_STORED {
            by_address.retain(|_, lookup| lookup.is_current());
        }
        let started = self.start(client);
        by_address.insert(client.ip(), started.clone());
        started
    }

    /// Starts a lookup, which also ends if all requests that wait for it are aborted.
    fn start(&self, client: SocketAddr) -> SharedLookup {
        let netmap = from_now_on(&self.netmap);
        let (lookup, permits) = (Arc::clone(&self.lookup), Arc::clone(&self.permits));
        let whois = async move {
            let _permit = permits.acquire_owned().await.ok();
            lookup(client).await
        };
        let answer = async move {
            let late = Err(LocalApiError::Deadline { call: "whois", after: LOOKUP_TIMEOUT });
            match timeout(LOOKUP_TIMEOUT, whois).await.unwrap_or(late) {
                Ok((start, whois)) => {
                    WhoIsAnswer { whois: whois.map(Arc::new).ok_or(ApiServerRefusal::UnknownClient), until: start + CACHE_TTL }
                }
                Err(error) => {
                    tracing::debug!(reason = error.reason(), "whois for {client} failed: {error}");
                    WhoIsAnswer { whois: Err(ApiServerRefusal::Unidentified), until: Instant::now() + FAILURE_TTL }
                }
            }
        };
        let answer = answer.boxed().shared();
        tokio::spawn(answer.clone());
        SharedLookup { answer, netmap }
    }
}

impl SharedLookup {
    fn is_current(&self) -> bool {
        let is_in_time = self.answer.peek().is_none_or(|answer| Instant::now() < answer.until);
        is_in_time && !has_changed(&self.netmap)
    }
}

/// Changes of the netmap from now on.
pub(super) fn from_now_on(netmap: &NetMapChanges) -> NetMapChanges {
    let mut netmap = netmap.clone();
    netmap.mark_unchanged();
    netmap
}

/// Whether the netmap has changed since the start of a lookup.
pub(super) fn has_changed(netmap: &NetMapChanges) -> bool {
    netmap.has_changed().unwrap_or(false)
}
