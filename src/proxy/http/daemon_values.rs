//! Values that tailscaled reports on request: connected peers, direct and relayed, and rejected flows.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Fetch;
use crate::api::localapi;
use crate::api::replica::{PeerCounts, Rejects};
use crate::edge::localapi::LocalApi;
use crate::model::tailnet::rejects;
use crate::proxy::tailnet::start::TailnetPart;

/// Cache time of a value: the status of a large tailnet is slow, and any client may request it.
const CACHE_TTL: Duration = Duration::from_secs(1);

/// A value, or that it is unavailable, with the time of the request.
type Cached<T> = Option<(Instant, Option<T>)>;

/// Counts the connected peers, if tailscaled is supervised.
pub(super) fn peers(tailnet: &TailnetPart) -> Fetch<PeerCounts> {
    cached(tailnet, |api: LocalApi| async move {
        let reported = api.status().await.inspect_err(|error| tracing::debug!(reason = error.reason(), "no peers: {error}")).ok();
        reported.map(|(status, _)| count(&status))
    })
}

/// Counts the rejected flows, if tailscaled is supervised and knows the request.
pub(super) fn rejects(tailnet: &TailnetPart) -> Fetch<Rejects> {
    cached(tailnet, |api: LocalApi| async move {
        let reported = api.debug_rejects().await;
        let reported = reported.inspect_err(|error| tracing::debug!(reason = error.reason(), "no rejected flows: {error}")).ok()??;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Some(rejects::summary(rejects::recent(&reported, now).as_deref()))
    })
}

/// A value of tailscaled that is requested at most once in [`CACHE_TTL`].
fn cached<T, F>(tailnet: &TailnetPart, read: impl Fn(LocalApi) -> F + Send + Sync + 'static) -> Fetch<T>
where
    T: Clone + Send + 'static,
    F: Future<Output = Option<T>> + Send + 'static,
{
    let api = tailnet.daemon.as_ref().map(|daemon| daemon.api.clone());
    let cached: Arc<Mutex<Cached<T>>> = Arc::default();
    Arc::new(move || {
        let (reading, cached) = (api.clone().map(&read), Arc::clone(&cached));
        Box::pin(async move {
            let mut found = cached.lock().await;
            if let Some((since, value)) = &*found
                && since.elapsed() < CACHE_TTL
            {
                return value.clone();
            }
            let value = reading?.await;
            *found = Some((Instant::now(), value.clone()));
            value
        })
    })
}

fn count(status: &localapi::DaemonStatus) -> PeerCounts {
    let active = status.peer.values().filter(|peer| peer.active);
    active.fold(PeerCounts::default(), |peers, peer| {
        let relayed = peer.cur_addr.is_empty();
        PeerCounts { direct: peers.direct + u32::from(!relayed), relayed: peers.relayed + u32::from(relayed) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn active_peer_with_address_is_direct_and_without_is_relayed() {
        let text = r#"{"Peer": {"a": {"Active": true, "CurAddr": "10.0.0.1:41641", "Relay": "lab"}, "b": {"Active": true, "CurAddr": "", "Relay": "lab"},
            "c": {"Active": false, "CurAddr": "10.0.0.2:41641"}, "d": {"Active": true, "Relay": "lab"}}}"#;
        let status: localapi::DaemonStatus = serde_json::from_str(text).expect("a status");
        assert_eq!(count(&status), PeerCounts { direct: 1, relayed: 2 });
    }
}
