//! Election of the cert leader.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::edge::kube::{ApiRefusal, Cluster, KubeError};
use crate::model::base::netmap::NetMap;
use crate::model::ingress::cert_leader::{CertLeaderCandidate, CertLeaderStep};
use crate::runtime::watch_ext::put;

/// Takes part in the election until cancelled. Without rights on the Lease, as under the Tailscale operator, replica 0 orders.
pub(super) async fn run(
    cluster: Cluster,
    lease: String,
    mut candidate: CertLeaderCandidate,
    mut netmap: watch::Receiver<Option<Arc<NetMap>>>,
    leads: watch::Sender<bool>,
) {
    let begin = Instant::now();
    let mut logged = None;
    loop {
        // Challenges need a tailnet connection.
        let able = netmap.borrow_and_update().is_some();
        let turn = turn(&cluster, &lease, &mut candidate, able, begin).await;
        let reason = turn.as_ref().err().map(KubeError::reason);
        let refusal = turn.as_ref().err().and_then(KubeError::refusal);
        if let (Err(error), true) = (&turn, reason != logged && refusal != Some(ApiRefusal::Conflict)) {
            tracing::warn!(reason, "cannot elect a cert leader: {error}");
        }
        logged = reason;
        let now = if refusal == Some(ApiRefusal::Forbidden) { candidate.is_first() && able } else { candidate.leads() && able };
        if put(&leads, now) {
            tracing::info!(lease, "{}", if now { "this replica is the cert leader" } else { "this replica is not the cert leader" });
        }
        let soon = if refusal == Some(ApiRefusal::Conflict) { Duration::from_millis(100) } else { candidate.terms().every };
        tokio::select! {
            () = sleep(soon) => {}
            Ok(_) = netmap.wait_for(|netmap| netmap.is_some() != able) => {}
        }
    }
}

async fn turn(cluster: &Cluster, lease: &str, candidate: &mut CertLeaderCandidate, able: bool, begin: Instant) -> Result<(), KubeError> {
    let read = cluster.issuer(lease).await?;
    let renewed = read.as_ref().and_then(|(_, renewed)| *renewed);
    let age = renewed.and_then(|time| Duration::try_from(Timestamp::now().duration_since(time)).ok()).unwrap_or_default();
    candidate.saw(read.map(|(lease, _)| lease), age, begin.elapsed());
    let step = candidate.next(able, begin.elapsed());
    if step != CertLeaderStep::Wait {
        let written = cluster.set_issuer(lease, candidate.version(), step, candidate.name()).await?;
        candidate.saw(Some(written), Duration::ZERO, begin.elapsed());
    }
    Ok(())
}
