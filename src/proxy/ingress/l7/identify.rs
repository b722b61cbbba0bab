//! Who a client is, asked of tailscaled and remembered for a moment.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::edge::localapi::{LocalApi, LocalApiError};
use crate::model::ingress::vhosts::identity::ClientIdentity;

/// How long an answer counts. A node that changes hands, or a grant that is taken back, is noticed after so long.
const FRESH: Duration = Duration::from_secs(20);
/// How many are remembered.
const MAX_CLIENTS: usize = 4096;

/// Asks who an address is; nothing if nobody is known.
pub type WhoIsLookup = Arc<dyn Fn(SocketAddr) -> BoxFuture<'static, Result<Option<ClientIdentity>, LocalApiError>> + Send + Sync>;

/// What was told, and when.
type CachedIdentity = (Instant, Option<Arc<ClientIdentity>>);

/// Who clients are.
pub(super) struct Identify {
    ask: Option<WhoIsLookup>,
    cache: Mutex<HashMap<IpAddr, CachedIdentity>>,
}

impl std::fmt::Debug for Identify {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identify").field("asks", &self.ask.is_some()).finish_non_exhaustive()
    }
}

/// Asks this tailscaled.
#[must_use]
pub fn by(api: LocalApi) -> WhoIsLookup {
    Arc::new(move |client| {
        let api = api.clone();
        Box::pin(async move { Ok(api.whois(client).await?.map(ClientIdentity::of)) })
    })
}

impl Identify {
    /// Without anybody to ask, nobody is known.
    pub(super) fn new(ask: Option<WhoIsLookup>) -> Self {
        Self { ask, cache: Mutex::default() }
    }

    /// Who that is. Nobody, where tailscaled cannot be asked: what is not known is not told.
    pub(super) async fn who(&self, client: SocketAddr) -> Option<Arc<ClientIdentity>> {
        let ask = self.ask.as_ref()?;
        if let Some((at, identity)) = self.cache.lock().unwrap_or_else(PoisonError::into_inner).get(&client.ip())
            && at.elapsed() < FRESH
        {
            return identity.clone();
        }
        let identity = match ask(client).await {
            Ok(identity) => identity.map(Arc::new),
            Err(error) => {
                tracing::debug!(reason = error.reason(), "who {client} is cannot be asked: {error}");
                return None;
            }
        };
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= MAX_CLIENTS {
            cache.retain(|_, (at, _)| at.elapsed() < FRESH);
        }
        if cache.len() < MAX_CLIENTS {
            cache.insert(client.ip(), (Instant::now(), identity.clone()));
        }
        identity
    }
}
