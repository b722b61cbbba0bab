//! preStop hook of the Tailscale operator: responds once no service is routed to this Pod.
//!
//! [`crate::model::flows::prestop_hook`] decides; this handler probes services and counts flows. The hook does not stop forwarding, and its
//! calls change nothing: the kubelet's look like those of other clients. An address has one call at a time, because a call opens up
//! to [`AT_ONCE`] connections.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use hyper::StatusCode;
use tokio::time::{Instant, sleep, timeout};

use super::{SnapshotSources, lines};
use crate::model::flows::prestop_hook::{DrainingServices, HealthProbe, HookVerdict};
use crate::runtime::admin::{AdminResponse, text};

/// Interval of rounds.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum services probed concurrently.
const AT_ONCE: usize = 64;

/// A running call of an address.
struct RunningCall<'a> {
    sources: &'a SnapshotSources,
    from: IpAddr,
}

impl<'a> RunningCall<'a> {
    /// `None` if the address has a running call.
    fn begin(sources: &'a SnapshotSources, from: IpAddr) -> Option<Self> {
        let is_first = sources.hook_callers.lock().unwrap_or_else(PoisonError::into_inner).insert(from);
        is_first.then_some(Self { sources, from })
    }
}

impl Drop for RunningCall<'_> {
    fn drop(&mut self) {
        self.sources.hook_callers.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.from);
    }
}

/// Waits until no service is routed here, at most for [`SnapshotSources::patience`]: the drain has the rest of the grace period.
pub(super) async fn hook(sources: Arc<SnapshotSources>, from: IpAddr) -> AdminResponse {
    let Some(_call) = RunningCall::begin(&sources, from) else {
        return text(StatusCode::TOO_MANY_REQUESTS, "another call of this address is in progress\n");
    };
    let Some(endpoints) = endpoints(&sources) else { return text(StatusCode::OK, "safe to terminate") };
    let mut routed: Vec<_> = endpoints.keys().cloned().collect();
    if timeout(sources.patience, probe_until_drained(&sources, &endpoints, &mut routed)).await.is_ok() {
        return text(StatusCode::OK, "safe to terminate");
    }
    tracing::warn!(services = routed.len(), "drain deadline reached; services may still be advertised by this replica");
    text(StatusCode::GATEWAY_TIMEOUT, format!("services that may still be routed here:\n{}", lines(&routed)))
}

/// Probes in rounds until no service is routed here. `routed` are those that may be, after the last round.
async fn probe_until_drained(sources: &SnapshotSources, endpoints: &BTreeMap<Arc<str>, String>, routed: &mut Vec<Arc<str>>) {
    let start = Instant::now();
    let mut leaving = DrainingServices::new(sources.own(), endpoints.keys().cloned(), start.elapsed());
    loop {
        leaving.counted(sources.flows().await, start.elapsed());
        let probed: Vec<(Arc<str>, Vec<HealthProbe>)> = stream::iter(leaving.to_ask())
            .map(|service| probe(sources, &leaving, service, endpoints))
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        for (service, probes) in probed {
            leaving.probed(&service, &probes);
        }
        let (rest, still) = match leaving.verdict(start.elapsed()) {
            HookVerdict::Drained => return,
            HookVerdict::Settling(remaining) => (remaining.min(ROUND_INTERVAL), Vec::new()),
            HookVerdict::Routed(services) => (ROUND_INTERVAL, services),
        };
        *routed = still;
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
