//! HTTP server of the nameserver: `/healthz`, `/readyz`, `/metrics`. No request changes anything.

use std::net::SocketAddr;
use std::time::Duration;

use hyper::StatusCode;

use super::records::ActiveRecords;
use crate::model::base::backoff::Backoff;
use crate::runtime::admin::{self, Routes, liveness, text, typed};
use crate::runtime::metrics::CONTENT_TYPE;
use crate::runtime::tasks::{HEARTBEAT_TIMEOUT, Heartbeats, Stop};

/// Time for open requests and queries to finish.
pub const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub struct StatusSources {
    pub records: ActiveRecords,
    pub heartbeats: Heartbeats,
    /// Requested by the termination signal: a draining server is not ready.
    pub leaving: Stop,
}

impl StatusSources {
    fn unready(&self) -> Option<&'static str> {
        if self.leaving.is_requested() {
            return Some("draining\n");
        }
        (!self.records.is_loaded()).then_some("no records yet\n")
    }
}

/// Serves an address until the stop; retries a failed bind.
pub async fn serve(address: SocketAddr, sources: StatusSources, stop: Stop) {
    let mut retry = Backoff::DAEMON;
    let (live, ready, scraped) = (sources.heartbeats.clone(), sources.clone(), sources.records);
    let routes = Routes::default()
        .with("/healthz", move |_| std::future::ready(liveness(&live, HEARTBEAT_TIMEOUT)))
        .with("/readyz", move |_| {
            let unready = ready.unready();
            async move { unready.map_or_else(|| text(StatusCode::OK, "ok\n"), |why| text(StatusCode::SERVICE_UNAVAILABLE, why)) }
        })
        .with("/metrics", move |_| {
            let page = scraped.metrics().registry().page().finish();
            async move { typed(StatusCode::OK, CONTENT_TYPE, page) }
        });
    admin::serve("http", address, routes, stop, || retry.next(fastrand::f64())).await;
}
