//! Reachability of the API server, on which readiness depends while a virtual host has it as its upstream.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OnceCell, watch};
use tokio::time::sleep;

use crate::edge::kube::{Cluster, KubeError, SERVICE_ACCOUNT};
use crate::model::front_end::vhosts::Vhosts;
use crate::runtime::watch_ext::put;

const INTERVAL: Duration = Duration::from_secs(10);
/// Interval while the API server does not answer.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Number of failed requests after which the API server counts as unreachable: one may be of a server that restarts.
const FAILURES: u32 = 2;

/// Fault of a Pod without an address of the API server, to which no other route is an alternative.
const NO_UPSTREAM: &str = "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT of this Pod name no API server; run it in a cluster, and remove \
                           these variables from its ProxyClass";

/// Whether a virtual host has the API server as its upstream.
pub fn is_needed(sites: &Vhosts) -> bool {
    sites.values().any(|site| site.api_server.is_some())
}

/// Publishes why the API server at this URL is unreachable; `None` while it is reachable, or not needed. Ends when a sender is dropped.
pub async fn follow(url: Option<String>, sites: watch::Receiver<Arc<Vhosts>>, fault: watch::Sender<Option<String>>) {
    let client = OnceCell::new();
    let request = || async {
        let Some(url) = url.as_deref() else { return Some(NO_UPSTREAM.to_owned()) };
        match client.get_or_try_init(|| Cluster::in_pod(url, Path::new(SERVICE_ACCOUNT))).await {
            Ok(cluster) => fault_of(cluster.who().await),
            Err(error) => Some(error.to_string()),
        }
    };
    observe(request, sites, fault).await;
}

async fn observe<F: Future<Output = Option<String>>>(
    request: impl Fn() -> F,
    mut sites: watch::Receiver<Arc<Vhosts>>,
    fault: watch::Sender<Option<String>>,
) {
    let mut failures = FAILURES;
    loop {
        if !is_needed(&sites.borrow_and_update()) {
            put(&fault, None);
            failures = FAILURES;
            if sites.changed().await.is_err() {
                return;
            }
            continue;
        }
        let answer = request().await;
        failures = if answer.is_some() { failures.saturating_add(1) } else { 0 };
        let interval = if failures == 0 { INTERVAL } else { RETRY_INTERVAL };
        let unreachable = answer.filter(|_| failures >= FAILURES);
        if let Some(why) = unreachable.as_ref().filter(|_| fault.borrow().is_none()) {
            tracing::warn!("the API server is unreachable; this replica is unready: {why}");
        }
        put(&fault, unreachable);
        tokio::select! {
            () = sleep(interval) => {}
            changed = sites.changed() => if changed.is_err() { return },
        }
    }
}

/// Why a request failed. A missing right does not matter: the API server has answered.
fn fault_of(answer: Result<String, KubeError>) -> Option<String> {
    answer.err().filter(|error| !error.refused()).map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::api::routes::ApiServerSite;
    use crate::model::front_end::vhosts::Vhost;

    #[tokio::test(start_paused = true)]
    async fn pod_without_an_address_of_the_api_server_is_unready_while_a_site_needs_it() {
        let site = Vhost { api_server: Some(Arc::new(ApiServerSite::default())), ..Vhost::default() };
        let (sites, sites_seen) = watch::channel(Arc::new([("svc:kube".to_owned(), Arc::new(site))].into()));
        let (sender, mut fault) = watch::channel(None);
        let task = tokio::spawn(follow(None, sites_seen, sender));
        let why = fault.wait_for(Option::is_some).await.expect("a fault").clone();
        assert!(why.is_some_and(|why| why.contains("KUBERNETES_SERVICE_HOST")));
        sites.send_replace(Arc::default());
        assert!(fault.wait_for(Option::is_none).await.is_ok());
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn api_server_counts_as_unreachable_after_two_failures_while_a_site_needs_it() {
        let is_down = Arc::new(AtomicBool::new(true));
        let request = {
            let is_down = Arc::clone(&is_down);
            move || ready(is_down.load(Ordering::SeqCst).then(|| "connection refused".to_owned()))
        };
        let (sites, sites_seen) = watch::channel(Arc::default());
        let (sender, fault) = watch::channel(None);
        let task = tokio::spawn(observe(request, sites_seen, sender));
        let is_unreachable = async |milliseconds| {
            sleep(Duration::from_millis(milliseconds)).await;
            fault.borrow().is_some()
        };
        assert!(!is_unreachable(60_000).await, "no site needs it");
        let site = Vhost { api_server: Some(Arc::new(ApiServerSite::default())), ..Vhost::default() };
        sites.send_replace(Arc::new([("svc:kube".to_owned(), Arc::new(site))].into()));
        assert!(is_unreachable(1).await, "it was never reached");
        is_down.store(false, Ordering::SeqCst);
        assert!(!is_unreachable(1_100).await);
        is_down.store(true, Ordering::SeqCst);
        assert!(!is_unreachable(10_000).await, "one failure");
        assert!(is_unreachable(1_100).await);
        sites.send_replace(Arc::default());
        assert!(!is_unreachable(1).await);
        task.abort();
    }
}
