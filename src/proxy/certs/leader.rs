//! Follows the Lease that says which replica orders, and holds it when this is the one.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::edge::kube::{Cluster, KubeError};
use crate::model::issuer::{Candidate, Step};
use crate::model::netmap::NetMap;
use crate::runtime::cell::put;

/// Looks at the Lease for ever. Where it may not be read or written, as under the Tailscale operator, the first replica orders.
pub(super) async fn run(
    cluster: Cluster,
    lease: String,
    mut candidate: Candidate,
    mut netmap: watch::Receiver<Option<Arc<NetMap>>>,
    leads: watch::Sender<bool>,
) {
    let begin = Instant::now();
    let mut told = None;
    loop {
        // Whoever has no tailnet cannot prove a name.
        let able = netmap.borrow_and_update().is_some();
        let turn = turn(&cluster, &lease, &mut candidate, able, begin).await;
        let kind = turn.as_ref().err().map(KubeError::kind);
        if let (Err(error), true) = (&turn, kind != told && kind != Some("Conflict")) {
            tracing::warn!(kind, "who orders certificates cannot be agreed upon: {error}");
        }
        told = kind;
        let now = if kind == Some("Forbidden") { candidate.is_first() && able } else { candidate.leads() && able };
        if put(&leads, now) {
            tracing::info!(lease, "{}", if now { "this replica orders certificates" } else { "this replica orders no certificates" });
        }
        let soon = if kind == Some("Conflict") { Duration::from_millis(100) } else { candidate.terms().every };
        tokio::select! {
            () = sleep(soon) => {}
            Ok(_) = netmap.wait_for(|netmap| netmap.is_some() != able) => {}
        }
    }
}

async fn turn(cluster: &Cluster, lease: &str, candidate: &mut Candidate, able: bool, begin: Instant) -> Result<(), KubeError> {
    let read = cluster.issuer(lease).await?;
    let renewed = read.as_ref().and_then(|(_, renewed)| *renewed);
    let age = renewed.and_then(|time| Duration::try_from(Timestamp::now().duration_since(time)).ok()).unwrap_or_default();
    candidate.saw(read.map(|(seen, _)| seen), age, begin.elapsed());
    let step = candidate.next(able, begin.elapsed());
    if step != Step::Wait {
        let written = cluster.set_issuer(lease, candidate.version(), step, candidate.name()).await?;
        candidate.saw(Some(written), Duration::ZERO, begin.elapsed());
    }
    Ok(())
}
