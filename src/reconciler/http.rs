//! HTTP server of the reconciler: `/healthz`, `/readyz`, `/metrics`. No request changes anything.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::StatusCode;

use super::cache::{ClusterCache, WatchRole};
use super::control_plane::ControlPlanes;
use super::informers::Stores;
use super::metrics::{Metrics, Snapshot};
use crate::edge::kube::LeaderClient;
use crate::model::base::backoff::Backoff;
use crate::runtime::admin::{self, Routes, liveness, text, typed};
use crate::runtime::metrics::CONTENT_TYPE;
use crate::runtime::tasks::{HEARTBEAT_TIMEOUT, Heartbeats, Stop};

/// Metric label of the default control plane; not a valid name of a Tailnet.
const OWN: &str = "_default";

#[derive(Debug)]
pub struct AdminSources {
    pub stores: Stores,
    pub writes: LeaderClient,
    pub metrics: Arc<Metrics>,
    pub controls: Arc<ControlPlanes>,
    pub heartbeats: Heartbeats,
}

impl AdminSources {
    fn snapshot(&self) -> Snapshot {
        let (leader, queue) = (self.writes.open(), self.stores.queue());
        let (depth, oldest) = (queue.depth(), queue.oldest());
        let cache = self.stores.cache();
        let (groups, services) = (cache.count(WatchRole::Group), cache.group_services());
        // Only the leader tests them; results of an earlier leadership are outdated.
        let planes = if leader { self.controls.tailnets() } else { Vec::new() };
        let planes = planes.into_iter().map(|(name, works)| (name.unwrap_or_else(|| OWN.to_owned()), works));
        Snapshot {
            leader,
            synced: cache.missing().is_empty(),
            depth,
            oldest,
            groups,
            unserved: cache.unserved(),
            services,
            lost: cache.lost_replicas(),
            objects: objects(&cache),
            planes: planes.collect(),
        }
    }

    /// Reasons against readiness, one per line; empty if ready. A process that does not lead is ready: it is the standby.
    fn missing(&self) -> String {
        let missing = self.stores.cache().missing();
        let lines: Vec<_> = missing.iter().map(|role| format!("no complete list of {} yet\n", role.label())).collect();
        lines.concat()
    }
}

/// Serves an address until the stop; retries a failed bind.
pub async fn serve(address: SocketAddr, sources: Arc<AdminSources>, stop: Stop) {
    let mut retry = Backoff::DAEMON;
    admin::serve("http", address, routes(&sources), stop, || retry.next(fastrand::f64())).await;
}

fn routes(sources: &Arc<AdminSources>) -> Routes {
    let (live, ready, scraped) = (Arc::clone(sources), Arc::clone(sources), Arc::clone(sources));
    Routes::default()
        .with("/healthz", move |_| std::future::ready(liveness(&live.heartbeats, HEARTBEAT_TIMEOUT)))
        .with("/readyz", move |_| {
            let missing = ready.missing();
            async move { if missing.is_empty() { text(StatusCode::OK, "ok\n") } else { text(StatusCode::SERVICE_UNAVAILABLE, missing) } }
        })
        .with("/metrics", move |_| {
            let page = scraped.metrics.page(&scraped.snapshot());
            async move { typed(StatusCode::OK, CONTENT_TYPE, page) }
        })
}

fn objects(cache: &ClusterCache) -> Vec<(&'static str, usize)> {
    cache.roles().map(|role| (role.label(), cache.stored(role))).collect()
}
