//! The preStop hook of the Tailscale operator: answers once no service leads to this Pod any more.
//!
//! When that is so is decided by [`crate::model::preshutdown`]; here the services are asked and the flows counted. The hook
//! changes nothing: the kernel forwards until it is told to end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use hyper::StatusCode;
use tokio::time::{Instant, sleep};

use super::{Sources, lines};
use crate::model::preshutdown::{Leaving, Probe, Verdict};
use crate::runtime::admin::{Answer, text};

/// Between two rounds.
const ROUND: Duration = Duration::from_secs(1);
/// Services that are asked at a time.
const AT_ONCE: usize = 64;

/// Waits until nothing leads here any more, at most for [`Sources::patience`].
pub(super) async fn hook(sources: Arc<Sources>) -> Answer {
    let Some(endpoints) = endpoints(&sources) else { return text(StatusCode::OK, "safe to terminate") };
    let start = *sources.hook_called.get_or_init(Instant::now);
    let mut leaving = Leaving::new(sources.own(), endpoints.keys().cloned(), start.elapsed());
    loop {
        leaving.counted(sources.flows().await, start.elapsed());
        let asked: Vec<(Arc<str>, Vec<Probe>)> = stream::iter(leaving.to_ask())
            .map(|service| ask(&sources, &leaving, service, &endpoints))
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        for (service, probes) in asked {
            leaving.asked(&service, &probes);
        }
        let (rest, still) = match leaving.verdict(start.elapsed()) {
            Verdict::Drained => return text(StatusCode::OK, "safe to terminate"),
            Verdict::Settling(left) => (left.min(ROUND), Vec::new()),
            Verdict::Routed(services) => (ROUND, services),
        };
        if start.elapsed() + rest > sources.patience {
            tracing::warn!(services = still.len(), "leaving although services may still lead here: no time is left");
            return text(StatusCode::GATEWAY_TIMEOUT, format!("services that may still lead here:\n{}", lines(&still)));
        }
        sleep(rest).await;
    }
}

/// The health endpoints by service; nothing if there is no config at all.
fn endpoints(sources: &Sources) -> Option<BTreeMap<Arc<str>, String>> {
    let state = sources.egress.as_ref()?.borrow().clone();
    let services = &state.document?.config.services;
    let asked = services.iter().filter(|(_, service)| !service.health_check_endpoint.is_empty());
    Some(asked.map(|(name, service)| (Arc::clone(name), service.health_check_endpoint.clone())).collect())
}

/// One round of a service: as many requests as the operator asks for, or until one is answered by this Pod.
async fn ask(sources: &Sources, leaving: &Leaving, service: Arc<str>, endpoints: &BTreeMap<Arc<str>, String>) -> (Arc<str>, Vec<Probe>) {
    let mut probes = Vec::new();
    for _ in 0..pings(sources) {
        let Some(url) = endpoints.get(&service) else { break };
        let probe = (sources.ping)(url.clone()).await;
        let done = leaving.is_here(&probe) || probe == Probe::Silent;
        probes.push(probe);
        if done {
            break;
        }
    }
    (service, probes)
}

/// The operator's `hep-pings`: the number of replicas times three.
fn pings(sources: &Sources) -> u32 {
    sources.egress.as_ref().and_then(|state| state.borrow().document.as_ref().map(|document| document.hep_pings)).unwrap_or_default()
}
