//! HTTP server of a replica: health, metrics, preStop hook, and the plan in force on the admin address.
//!
//! Responses use the newest state of other tasks ([`SnapshotSources`]). Requests do not block each other and change nothing but the
//! record of the last probe of failover. A failed listener is retried and does not stop forwarding.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};
use serde::Serialize;
use tokio::time::timeout;

use crate::api::failover::REACHABLE_PATH;
use crate::api::replica;
use crate::model::base::backoff::Backoff;
use crate::model::firewall::ruleset::Ruleset;
use crate::model::plan::world::World;
use crate::model::plan::{Plan, Planned};
use crate::model::settings::Settings;
use crate::model::tailnet::health;
use crate::runtime::admin::{self, AdminRequest, AdminResponse, Routes, liveness, text, typed};
use crate::runtime::metrics::CONTENT_TYPE;
use crate::runtime::tasks::{HEARTBEAT_TIMEOUT, Stop, Tasks};

pub use status_snapshot::SnapshotSources;

mod daemon_values;
mod prestop_hook;
mod status;
pub mod status_snapshot;

/// A value that is fetched on request; `None` if unavailable.
pub type Fetch<T> = Arc<dyn Fn() -> BoxFuture<'static, Option<T>> + Send + Sync>;

/// Timeout of tailscaled's metrics, so that a hung daemon does not block a scrape.
const USERMETRICS_TIMEOUT: Duration = Duration::from_secs(2);

/// Plan and ruleset in force, as `/debug/plan` shows them.
#[derive(Serialize)]
struct AppliedState<'a> {
    /// Whether it is the newest plan.
    current: bool,
    world: &'a World,
    plan: &'a Plan,
    ruleset: &'a Ruleset,
}

/// Starts the configured listeners.
pub fn start(tasks: &mut Tasks, settings: &Settings, sources: &Arc<SnapshotSources>) {
    tasks.run_until_stop("http state", Arc::clone(sources).follow());
    let mut listeners = Vec::new();
    if let Some(http) = settings.http {
        let mut routes = health_routes(sources);
        if http.metrics {
            routes = with_metrics(routes, sources);
        }
        if http.preshutdown {
            routes = with_preshutdown(routes, sources);
        }
        listeners.push(("http", http.address, routes));
    }
    listeners.extend(settings.health_addr.map(|address| ("health", address, health_routes(sources))));
    listeners.extend(settings.admin_addr.map(|address| ("admin", address, admin_routes(sources))));
    for (name, address, routes) in listeners {
        tasks.run_forever(name, serve(name, address, routes, tasks.stop()));
    }
}

/// Probes of a Pod that waits for the Lease. It has no metrics yet: an empty page.
pub fn standby_routes(tasks: &Tasks) -> Routes {
    let heartbeats = tasks.heartbeats();
    let waits = |_| std::future::ready(text(StatusCode::SERVICE_UNAVAILABLE, "standby: another Pod is active\n"));
    Routes::default()
        .with("/livez", move |_| std::future::ready(liveness(&heartbeats, HEARTBEAT_TIMEOUT)))
        .with("/healthz", waits)
        .with("/readyz", waits)
        .with("/metrics", |_| std::future::ready(text(StatusCode::OK, "")))
}

/// Serves an address until the stop; retries a failed bind.
pub async fn serve(name: &'static str, address: SocketAddr, routes: Routes, stop: Stop) {
    let mut retry = Backoff::DAEMON;
    admin::serve(name, address, routes, stop, || retry.next(fastrand::f64())).await;
}

/// `/healthz`, `/readyz`, `/livez`, `/reachable` and `/status`.
pub fn health_routes(sources: &Arc<SnapshotSources>) -> Routes {
    Routes::default()
        .with(REACHABLE_PATH, answer(sources, |sources| std::future::ready(reachable(&sources))))
        .with("/livez", answer(sources, |sources| std::future::ready(liveness(&sources.heartbeats, HEARTBEAT_TIMEOUT))))
        .with("/healthz", answer(sources, |sources| std::future::ready(healthz(&sources))))
        .with("/readyz", answer(sources, |sources| std::future::ready(readyz(&sources))))
        .with(replica::PATH, answer(sources, status::page))
}

/// Adds `/metrics`.
pub fn with_metrics(routes: Routes, sources: &Arc<SnapshotSources>) -> Routes {
    routes.with("/metrics", answer(sources, metrics))
}

/// Adds the preStop hook of the Tailscale operator.
pub fn with_preshutdown(routes: Routes, sources: &Arc<SnapshotSources>) -> Routes {
    let sources = Arc::clone(sources);
    routes.with("/internal-egress-services-preshutdown", move |request| prestop_hook::hook(Arc::clone(&sources), request.source))
}

/// All routes, for clients inside the Pod.
pub fn admin_routes(sources: &Arc<SnapshotSources>) -> Routes {
    let routes = with_metrics(health_routes(sources), sources);
    routes.with("/debug/plan", answer(sources, |sources| std::future::ready(debug_plan(&sources))))
}

/// A handler that ignores all headers and parameters of the request.
fn answer<F>(
    sources: &Arc<SnapshotSources>,
    work: impl Fn(Arc<SnapshotSources>) -> F + Send + Sync + 'static,
) -> impl Fn(AdminRequest) -> F + Send + Sync + 'static
where
    F: Future<Output = AdminResponse> + Send + 'static,
{
    let sources = Arc::clone(sources);
    move |_| work(Arc::clone(&sources))
}

/// A probe of the reconciler's failover: its arrival ends a note that this replica is unreachable.
fn reachable(sources: &SnapshotSources) -> AdminResponse {
    sources.record_probe();
    text(StatusCode::OK, "ok")
}

fn healthz(sources: &SnapshotSources) -> AdminResponse {
    if !health::forwards(&sources.facts()) {
        return text(StatusCode::SERVICE_UNAVAILABLE, "cannot forward yet; /readyz says what is missing");
    }
    let mut answer = text(StatusCode::OK, "ok");
    for ip in sources.own() {
        let name = if ip.is_ipv4() { "pod-ipv4" } else { "pod-ipv6" };
        if let Ok(value) = HeaderValue::try_from(ip.to_string()) {
            answer.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    answer
}

fn readyz(sources: &SnapshotSources) -> AdminResponse {
    let facts = sources.facts();
    let (blockers, warnings) = (health::readiness(&facts), lines(&health::warnings(&facts)));
    if blockers.is_empty() {
        return text(StatusCode::OK, format!("ready\n{warnings}"));
    }
    text(StatusCode::SERVICE_UNAVAILABLE, lines(&blockers) + &warnings)
}

fn lines<T: std::fmt::Display>(items: &[T]) -> String {
    items.iter().fold(String::new(), |text, item| text + &item.to_string() + "\n")
}

async fn metrics(sources: Arc<SnapshotSources>) -> AdminResponse {
    let (snapshot, daemon) = tokio::join!(sources.snapshot(), timeout(USERMETRICS_TIMEOUT, (sources.usermetrics)()));
    let page = sources.metrics.page(&snapshot, daemon.ok().flatten().as_deref());
    typed(StatusCode::OK, CONTENT_TYPE, page)
}

fn debug_plan(sources: &SnapshotSources) -> AdminResponse {
    let programmed = sources.programmed.borrow().clone();
    let newest = sources.planned.borrow().clone();
    // Before the first write, and without forwarding, only the newest plan exists.
    let shown = programmed.planned.as_ref().or(newest.as_ref());
    let in_force = shown.map(|planned| {
        let Planned { world, plan, ruleset, .. } = planned.as_ref();
        AppliedState { current: programmed.current, world, plan, ruleset }
    });
    match serde_json::to_vec(&in_force) {
        Ok(body) => typed(StatusCode::OK, "application/json", body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot be encoded as JSON: {error}")),
    }
}

#[cfg(test)]
mod tests;
