//! Keeps the routing rules, and publishes the accepted routes that cover addresses of the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::edge::link::routing_rules::sync;
use crate::model::base::net::InterfaceName;
use crate::model::base::netmap::NetMap;
use crate::model::firewall::routing::rules;
use crate::runtime::watch_ext::put;

/// Interval of retries after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Interval of reads: another program may delete our rules.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Accepted routes that cover addresses of the cluster, with the first of these.
pub type RouteOverlaps = BTreeMap<IpNet, IpAddr>;

/// Keeps the rules equal to those for the newest netmap. `cluster` has known addresses of the cluster: the Pod's, its node's, the API
/// server's, those of DNS servers.
pub async fn run(
    tailnet: InterfaceName,
    cluster: BTreeSet<IpAddr>,
    mut netmap: watch::Receiver<Option<Arc<NetMap>>>,
    published: watch::Sender<Option<RouteOverlaps>>,
) {
    let (mut written, mut due, mut reported) = (None, Instant::now(), false);
    loop {
        let overlaps = netmap.borrow_and_update().as_ref().map(|netmap| netmap.overlaps(&cluster));
        if overlaps.is_some() && put(&published, overlaps.clone()) {
            for (route, address) in overlaps.iter().flatten() {
                tracing::warn!(%route, %address, "accepted route covers an address of the cluster; the proxy does not use it for its own connections and replies");
            }
        }
        let wanted = rules(&tailnet, published.borrow().iter().flat_map(BTreeMap::keys));
        if written.as_ref() != Some(&wanted) || Instant::now() >= due {
            let result = sync(&wanted).await;
            due = Instant::now() + if result.is_ok() { POLL_INTERVAL } else { RETRY_INTERVAL };
            match result {
                Ok(()) => reported = false,
                Err(error) if !std::mem::replace(&mut reported, true) => {
                    tracing::warn!(reason = error.reason(), "cannot write routing rules; accepted routes may take replies: {error}");
                }
                Err(_) => {}
            }
            written = Some(wanted);
        }
        tokio::select! {
            Ok(()) = netmap.changed() => {}
            () = sleep_until(due) => {}
        }
    }
}
