//! Number of connected peers, direct and relayed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Fetch;
use crate::api::localapi;
use crate::api::replica::PeerCounts;
use crate::proxy::tailnet::start::TailnetPart;

/// Cache time of peer counts: the status of a large tailnet is slow, and any client may request it.
const CACHE_TTL: Duration = Duration::from_secs(1);

type CachedPeers = Option<(Instant, Option<PeerCounts>)>;

/// Counts the connected peers, if tailscaled is supervised; at most once in [`CACHE_TTL`].
pub(super) fn peers(tailnet: &TailnetPart) -> Fetch<PeerCounts> {
    let api = tailnet.daemon.as_ref().map(|daemon| daemon.api.clone());
    let cached: Arc<Mutex<CachedPeers>> = Arc::default();
    Arc::new(move || {
        let (api, existing) = (api.clone(), Arc::clone(&cached));
        Box::pin(async move {
            let mut found = existing.lock().await;
            if let Some((since, peers)) = *found
                && since.elapsed() < CACHE_TTL
            {
                return peers;
            }
            let reported = api?.status().await.inspect_err(|error| tracing::debug!(reason = error.reason(), "no peers: {error}")).ok();
            let peers = reported.map(|(status, _)| count(&status));
            *found = Some((Instant::now(), peers));
            peers
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
