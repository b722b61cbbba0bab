//! Client identities: WhoIs of tailscaled, with a short cache.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::edge::localapi::{LocalApi, LocalApiError};
use crate::model::front_end::vhosts::identity::ClientIdentity;

/// Cache time: changes of a node's user or grants apply after this.
const CACHE_TTL: Duration = Duration::from_secs(20);
/// Maximum cached clients.
const MAX_CLIENTS: usize = 4096;

/// WhoIs lookup of an address; `None` if unknown.
pub type WhoIsLookup = Arc<dyn Fn(SocketAddr) -> BoxFuture<'static, Result<Option<ClientIdentity>, LocalApiError>> + Send + Sync>;

type CachedIdentity = (Instant, Option<Arc<ClientIdentity>>);

pub(super) struct Identify {
    ask: Option<WhoIsLookup>,
    cache: Mutex<HashMap<IpAddr, CachedIdentity>>,
}

impl std::fmt::Debug for Identify {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identify").field("asks", &self.ask.is_some()).finish_non_exhaustive()
    }
}

/// Lookup by a LocalAPI.
pub fn by(api: LocalApi) -> WhoIsLookup {
    Arc::new(move |client| {
        let api = api.clone();
        Box::pin(async move { Ok(api.whois(client).await?.map(ClientIdentity::of)) })
    })
}

impl Identify {
    /// Without lookup, all clients are unknown.
    pub(super) fn new(ask: Option<WhoIsLookup>) -> Self {
        Self { ask, cache: Mutex::default() }
    }

    /// Identity of a client; `None` if unknown or tailscaled is unavailable.
    pub(super) async fn who(&self, client: SocketAddr) -> Option<Arc<ClientIdentity>> {
        let ask = self.ask.as_ref()?;
        if let Some((at, identity)) = self.cache.lock().unwrap_or_else(PoisonError::into_inner).get(&client.ip())
            && at.elapsed() < CACHE_TTL
        {
            return identity.clone();
        }
        let identity = match ask(client).await {
            Ok(identity) => identity.map(Arc::new),
            Err(error) => {
                tracing::debug!(reason = error.reason(), "whois for {client} failed: {error}");
                return None;
            }
        };
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= MAX_CLIENTS {
            cache.retain(|_, (at, _)| at.elapsed() < CACHE_TTL);
        }
        if cache.len() < MAX_CLIENTS {
            cache.insert(client.ip(), (Instant::now(), identity.clone()));
        }
        identity
    }
}
