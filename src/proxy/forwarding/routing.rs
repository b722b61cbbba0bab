//! Keeps the routing rules and the route of an open tunnel, and publishes the accepted routes that cover addresses of the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::edge::link::LinkState;
use crate::edge::link::routing_rules::{open_tunnel, sync};
use crate::model::base::net::InterfaceName;
use crate::model::base::netmap::{NetMap, RouteOverlaps, SubnetRoutes};
use crate::model::firewall::routing::rules;
use crate::proxy::tailnet::daemon::DaemonState;
use crate::proxy::tailnet::peer_warmup::WarmupProgress;
use crate::runtime::watch_ext::put;

/// Interval of retries after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Interval of reads: another program may delete our rules.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Accepted routes, and addresses of the cluster.
#[derive(Debug)]
pub struct OverlapInputs {
    pub netmap: watch::Receiver<Option<Arc<NetMap>>>,
    /// Addresses of the Pod, its node, the API server and DNS servers.
    pub cluster: BTreeSet<IpAddr>,
    /// Addresses that the HTTP front end connects to.
    pub backends: watch::Receiver<Arc<BTreeSet<IpAddr>>>,
}

/// Keeps the rules equal to those for the newest netmap and addresses.
pub async fn run(tailnet: InterfaceName, inputs: OverlapInputs, published: watch::Sender<Option<RouteOverlaps>>) {
    let OverlapInputs { mut netmap, cluster, mut backends } = inputs;
    let mut subnets = SubnetRoutes::default();
    let (mut written, mut due, mut reported) = (None, Instant::now(), false);
    loop {
        let overlaps = netmap.borrow_and_update().as_ref().map(|netmap| {
            subnets.follow(netmap);
            subnets.overlaps([&cluster, &backends.borrow_and_update()], published.borrow().as_ref())
        });
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
            Ok(()) = backends.changed() => {}
            () = sleep_until(due) => {}
        }
    }
}

/// What shows whether the tunnel is open.
#[derive(Debug)]
pub struct TunnelInputs {
    pub link: watch::Receiver<LinkState>,
    /// A supervised tailscaled, and the warm-up of its peers.
    pub supervised: Option<(watch::Receiver<DaemonState>, watch::Receiver<WarmupProgress>)>,
}

impl TunnelInputs {
    /// Start of tailscaled whose tunnel is open; `None` if it is closed.
    fn open_start(&mut self) -> Option<u64> {
        if !self.link.borrow_and_update().present {
            return None;
        }
        let Some((daemon, warmup)) = &mut self.supervised else { return Some(0) };
        let restarts = daemon.borrow_and_update().restarts;
        warmup.borrow_and_update().has_ended(restarts).then_some(restarts)
    }
}

/// Writes the route that shows the rules an open tunnel, after each start of tailscaled: with it new flows are forwarded here, no longer by a
/// sibling replica. The kernel deletes it.
pub async fn show_tunnel(tailnet: InterfaceName, mut inputs: TunnelInputs) {
    let (mut written, mut due) = (None, Instant::now());
    loop {
        let open = inputs.open_start();
        if open.is_some() && (written != open || Instant::now() >= due) {
            let result = open_tunnel(&tailnet).await;
            due = Instant::now() + if result.is_ok() { POLL_INTERVAL } else { RETRY_INTERVAL };
            if let Err(error) = result {
                tracing::warn!(reason = error.reason(), "cannot show that the tunnel is open; a sibling replica gets new flows: {error}");
            }
        }
        written = open;
        let restarted = async {
            match &mut inputs.supervised {
                Some((daemon, warmup)) => tokio::select! {
                    Ok(()) = daemon.changed() => {}
                    Ok(()) = warmup.changed() => {}
                    else => std::future::pending().await,
                },
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Ok(()) = inputs.link.changed() => {}
            () = restarted => {}
            () = sleep_until(due), if open.is_some() => {}
        }
    }
}
