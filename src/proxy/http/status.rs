//! `/status`: how this replica is, in totals, for `tailyard status`. Nothing of it decides anything.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::status_snapshot::{COUNTING, Fetch, SnapshotSources};
use crate::api::localapi;
use crate::api::replica::{PeerCounts, ReplicaStatus};
use crate::model::tailnet::health::{readiness, remarks};
use crate::model::tailnet::supervise::machine::DaemonPhase;
use crate::proxy::replica::Replica;
use crate::runtime::admin::{AdminResponse, text, typed};

/// How long a count of peers is told again: it takes a daemon of a large tailnet a while, and anybody may ask.
const FRESH: Duration = Duration::from_secs(1);

/// The peers as they were counted last.
type CachedPeers = Option<(Instant, Option<PeerCounts>)>;

pub(super) async fn page(sources: Arc<SnapshotSources>) -> AdminResponse {
    let facts = sources.facts();
    let (pressure, peers) = tokio::join!(timeout(COUNTING, (sources.pressure)()), timeout(COUNTING, (sources.peers)()));
    let status = ReplicaStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        blockers: readiness(&facts).iter().map(ToString::to_string).collect(),
        remarks: remarks(&facts).iter().map(ToString::to_string).collect(),
        flows: pressure.ok().flatten().map(|pressure| pressure.entries),
        peers: peers.ok().flatten(),
        failure: failure(&sources),
    };
    match serde_json::to_vec(&status) {
        Ok(body) => typed(StatusCode::OK, "application/json", body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot be encoded as JSON: {error}")),
    }
}

/// What is wrong now, the worst first; else how tailscaled ended last. Kinds only where the words may hold names of services.
fn failure(sources: &SnapshotSources) -> Option<String> {
    let kernel =
        sources.programmed.borrow().fault.as_ref().map(|(fault, _)| format!("the kernel does not take the rules: {}", fault.reason));
    let egress = || sources.egress.as_ref()?.borrow().fault.as_ref().map(|fault| format!("egress config: {}", fault.reason()));
    let ingress = || sources.ingress.as_ref()?.borrow().fault.as_ref().map(|fault| format!("ingress config: {}", fault.reason()));
    let state = || {
        let health = sources.report.as_ref()?.borrow();
        health.fault.as_ref().map(|fault| format!("its state Secret cannot be written: {}", fault.reason))
    };
    let daemon = || {
        let state = sources.daemon.as_ref()?.borrow();
        let ended = state.last_exit.as_ref().map(|how| format!("tailscaled ended ({how}), started again {} times", state.restarts));
        let ails = state.last_error.as_ref().filter(|_| state.phase != DaemonPhase::Running).map(|(kind, _)| format!("tailscaled: {kind}"));
        ails.or(ended)
    };
    kernel.or_else(egress).or_else(ingress).or_else(state).or_else(daemon)
}

/// Counts the peers that tailscaled talks to, if there is one; at most once in [`FRESH`].
pub(super) fn peers(replica: &Replica) -> Fetch<PeerCounts> {
    let api = replica.daemon.as_ref().map(|daemon| daemon.api().clone());
    let cached: Arc<Mutex<CachedPeers>> = Arc::default();
    Arc::new(move || {
        let (api, existing) = (api.clone(), Arc::clone(&cached));
        Box::pin(async move {
            let mut found = existing.lock().await;
            if let Some((since, peers)) = *found
                && since.elapsed() < FRESH
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
    fn a_peer_with_an_address_is_direct_and_one_without_is_relayed() {
        let text = r#"{"Peer": {"a": {"Active": true, "CurAddr": "10.0.0.1:41641", "Relay": "lab"}, "b": {"Active": true, "CurAddr": "", "Relay": "lab"},
            "c": {"Active": false, "CurAddr": "10.0.0.2:41641"}, "d": {"Active": true, "Relay": "lab"}}}"#;
        let status: localapi::DaemonStatus = serde_json::from_str(text).expect("a status");
        assert_eq!(count(&status), PeerCounts { direct: 1, relayed: 2 });
    }
}
