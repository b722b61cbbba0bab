//! preStop hook of the Tailscale operator: responds once no service is routed to this Pod.
//!
//! [`crate::model::flows::prestop_hook`] decides; this handler probes services and counts flows. The hook does not stop forwarding. Its last
//! call is recorded: if SIGTERM follows, the Pod's grace period began with it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use hyper::StatusCode;
use tokio::time::{Instant, sleep};

use super::{SnapshotSources, lines};
use crate::model::flows::prestop_hook::{DrainingServices, HealthProbe, HookCall, HookVerdict};
use crate::runtime::admin::{AdminResponse, text};

/// Interval of rounds.
const ROUND: Duration = Duration::from_secs(1);
/// Maximum services probed concurrently.
const AT_ONCE: usize = 64;

/// A running call; records its end, with or without response.
struct Recording<'a> {
    sources: &'a SnapshotSources,
    began: Instant,
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        let since_start = |at: Instant| at.saturating_duration_since(self.sources.start);
        let call = HookCall { began: since_start(self.began), ended: since_start(Instant::now()) };
        *self.sources.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(call);
    }
}

impl SnapshotSources {
    /// Start of the Pod's termination grace period, if before this time of SIGTERM: the kubelet calls the hook first. Calls of other clients
    /// do not count.
    pub fn grace_began(&self) -> Option<Instant> {
        let call = *self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        let began = call?.grace_began(self.start.elapsed())?;
        Some(self.start + began)
    }
}

/// Waits until no service is routed here, at most for [`SnapshotSources::patience`].
pub(super) async fn hook(sources: Arc<SnapshotSources>) -> AdminResponse {
    let start = Instant::now();
    let _call = Recording { sources: &sources, began: start };
    let Some(endpoints) = endpoints(&sources) else { return text(StatusCode::OK, "safe to terminate") };
    let mut leaving = DrainingServices::new(sources.own(), endpoints.keys().cloned(), start.elapsed());
    loop {
        leaving.counted(sources.flows().await, start.elapsed());
        let probed: Vec<(Arc<str>, Vec<HealthProbe>)> = stream::iter(leaving.to_ask())
            .map(|service| probe(&sources, &leaving, service, &endpoints))
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        for (service, probes) in probed {
            leaving.probed(&service, &probes);
        }
        let (rest, still) = match leaving.verdict(start.elapsed()) {
            HookVerdict::Drained => return text(StatusCode::OK, "safe to terminate"),
            HookVerdict::Settling(remaining) => (remaining.min(ROUND), Vec::new()),
            HookVerdict::Routed(services) => (ROUND, services),
        };
        if start.elapsed() + rest > sources.patience {
            tracing::warn!(services = still.len(), "drain deadline reached; services may still be advertised by this replica");
            return text(StatusCode::GATEWAY_TIMEOUT, format!("services that may still lead here:\n{}", lines(&still)));
        }
        sleep(rest).await;
    }
}

/// Health endpoints by service; `None` without config.
fn endpoints(sources: &SnapshotSources) -> Option<BTreeMap<Arc<str>, String>> {
    let state = sources.egress.as_ref()?.borrow().clone();
    let services = &state.document?.config.services;
    let probed = services.iter().filter(|(_, service)| !service.health_check_endpoint.is_empty());
    Some(probed.map(|(name, service)| (Arc::clone(name), service.health_check_endpoint.clone())).collect())
}

/// One round of a service: the operator's number of requests, or until this Pod responds.
async fn probe(
    sources: &SnapshotSources,
    leaving: &DrainingServices,
    service: Arc<str>,
    endpoints: &BTreeMap<Arc<str>, String>,
) -> (Arc<str>, Vec<HealthProbe>) {
    let mut probes = Vec::new();
    for _ in 0..pings(sources) {
        let Some(url) = endpoints.get(&service) else { break };
        let probe = (sources.ping)(url.clone()).await;
        let done = leaving.is_here(&probe) || probe == HealthProbe::Silent;
        probes.push(probe);
        if done {
            break;
        }
    }
    (service, probes)
}

/// The operator's `hep-pings`: three times the number of replicas.
fn pings(sources: &SnapshotSources) -> u32 {
    sources.egress.as_ref().and_then(|state| state.borrow().document.as_ref().map(|document| document.hep_pings)).unwrap_or_default()
}
