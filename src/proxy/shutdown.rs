//! Shutdown of a replica without hanging flows: unready, no new connections for advertised services, withdrawal, forwarding until flows have
//! ended or the deadline, resets of the remaining ones, then tailscaled.
//!
//! The signal turns readiness off. Each step ends on an observation or its deadline, never after a fixed sleep.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::pin::pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::{Instant, timeout};

use crate::edge::kube::{Cluster, Resource};
use crate::edge::nft::Nft;
use crate::model::flows::drain::{self, Budget, CLOSING_PERIOD, DISCO_MUTE_PERIOD, Deletion, between_mutes};
use crate::model::settings::Pod;
use crate::runtime::tasks::Stop;

use crate::proxy::replica::Replica;
use crate::proxy::state_secret::start::record_mute_start;

/// Timeout for tailscaled to stop advertising.
const UNADVERTISE_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout for turning shields-up off: tailscaled stores it through the API server.
const REOPEN_TIMEOUT: Duration = Duration::from_secs(1);

/// Timeout for writing back the state of a tailscaled that was started without its Secret.
const STATE_SAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Timeout for the lookup of the Pod's grace period.
const GRACE_LOOKUP_TIMEOUT: Duration = Duration::from_millis(500);

/// Timeout for the withdrawal of routes alone: not every control server confirms it.
const ROUTE_WITHDRAWAL_TIMEOUT: Duration = Duration::from_secs(2);

impl Replica {
    /// Shuts down; a second signal aborts.
    pub async fn shut_down(&mut self, cluster: Option<&Cluster>, stop: &Stop) {
        let began = Instant::now();
        let (limit, has_hook) = (self.settings.drain_timeout, self.settings.http.is_some_and(|http| http.preshutdown));
        let hook = if has_hook { drain::hook_limit(limit) } else { Duration::ZERO };
        let deletion = deletion(cluster, &self.settings.pod).await;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let available = drain::available(limit, deletion, hook, now).saturating_sub(began.elapsed());
        let budget = Budget::of(available, self.tailnet.daemon.is_some());
        let drain = async {
            let drain_began = Instant::now();
            if let Some(ingress) = &self.ingress {
                ingress.finish_long_running(drain::long_running_limit(budget.flows, deletion)).await;
            }
            self.drain(budget.after(drain_began.elapsed())).await;
        };
        tokio::select! {
            () = drain => tracing::info!(took = ?began.elapsed(), "shut down"),
            () = stop.aborted() => tracing::warn!("second signal, aborting drain: remaining flows may hang"),
        }
    }

    /// Order of shutdown: disco mute, flows, shields-up off, state, tailscaled, end of the mute.
    async fn drain(&mut self, budget: Budget) {
        tracing::info!(?budget, "draining: established connections continue, readiness is off");
        let nft = self.forwarding.nft().filter(|_| self.tailnet.daemon.is_some());
        let ledger = self.state.as_ref().map(|state| state.ledger.clone());
        let switch = |on| {
            let (nft, ledger) = (nft.clone(), ledger.clone());
            async move {
                let muted = mute(nft.as_ref(), on).await && on;
                if muted {
                    ledger.iter().for_each(record_mute_start);
                }
                muted
            }
        };
        let muted = run_muted(switch, self.end_flows(budget, nft.as_ref()), budget.flows).await;
        let ended = Instant::now();
        if let Some(ingress) = &mut self.ingress {
            ingress.reopen(REOPEN_TIMEOUT.min(budget.daemon / 2)).await;
        }
        self.tailnet.save_state(STATE_SAVE_TIMEOUT.min(budget.daemon / 2)).await;
        if !muted {
            ledger.iter().for_each(record_mute_start);
        }
        self.tailnet.stop(budget.daemon.saturating_sub(ended.elapsed())).await;
        mute(nft.as_ref(), false).await;
    }

    /// Ends all traffic through this replica, in lossless order.
    async fn end_flows(&mut self, budget: Budget, nft: Option<&Nft>) {
        let began = Instant::now();
        let rest = || budget.flows.saturating_sub(began.elapsed());
        self.reject_new_connections(CLOSING_PERIOD.min(budget.flows / 2)).await;
        let moved = self.withdraw(rest()).await;
        if let Some(ingress) = &mut self.ingress {
            ingress.close(rest()).await;
        }
        // Without applied rules there are no flows.
        if self.forwarding.in_use() {
            self.forwarding.drain(rest(), &moved).await;
            if self.settings.single.is_ingress()
                && let Some(nft) = nft
                && let Err(error) = nft.drop_new_connections(&self.settings.interface).await
            {
                tracing::debug!(
                    reason = error.reason(),
                    "cannot drop new connections, clients get a reset until the next Pod forwards: {error}"
                );
            }
            self.forwarding.close(rest(), budget.resets).await;
        }
    }

    /// Rejects new connections for advertised services. Records recent peers concurrently, without waiting for the write: the next steps take
    /// longer.
    async fn reject_new_connections(&mut self, within: Duration) {
        let routed = if self.forwarding.in_use() { self.forwarding.service_addresses() } else { BTreeSet::new() };
        let recent_peers = self.state.as_ref().and_then(|state| state.recent_peers.as_ref());
        let record = async {
            if let Some(recent_peers) = recent_peers {
                recent_peers.look().await;
            }
        };
        match &mut self.ingress {
            Some(ingress) => ingress.reject_new_connections(within, &routed, record).await,
            // An unanswered look costs a handshake of the next Pod at most.
            None => drop(timeout(within, record).await),
        }
    }

    /// Withdraws everything, at most for `within`. Returns the addresses that are routed to other replicas now: their flows cannot continue
    /// here.
    async fn withdraw(&mut self, within: Duration) -> BTreeSet<IpAddr> {
        let Some(ingress) = &mut self.ingress else {
            self.tailnet.stop_advertising(UNADVERTISE_TIMEOUT, self.settings.connector).await;
            return BTreeSet::new();
        };
        let services = self.tailnet.daemon.as_ref().is_some_and(|daemon| !daemon.state().borrow().advertised.is_empty());
        let within = if services { within } else { within.min(ROUTE_WITHDRAWAL_TIMEOUT) };
        if ingress.withdraw(within).await { self.forwarding.service_addresses() } else { BTreeSet::new() }
    }
}

/// Deletion of this Pod: by `kubectl drain --grace-period` or by force its grace period is shorter than in the Pod's spec. `None` if it was not
/// deleted, or the API server does not say.
pub async fn deletion(cluster: Option<&Cluster>, pod: &Pod) -> Option<Deletion> {
    let (cluster, name, uid) = (cluster?, pod.object.as_deref()?, pod.uid.as_deref()?);
    let found = timeout(GRACE_LOOKUP_TIMEOUT, cluster.look(Resource::POD, Some(cluster.namespace()), name)).await.ok()?;
    let unread = "cannot read the Pod's deletion grace period, assuming the drain timeout";
    let found = found.inspect_err(|error| tracing::info!(reason = error.reason(), "{unread}: {error}")).ok()?;
    Deletion::of(found.as_ref(), uid)
}

/// Runs a drain that lasts at most `limit`, with the disco mute at its beginning, and if it takes long at its end. `mute` turns the mute on
/// or off and returns whether it is on, as this function does.
async fn run_muted<M>(mut mute: impl FnMut(bool) -> M, drain: impl Future<Output = ()>, limit: Duration) -> bool
where
    M: Future<Output = bool>,
{
    let mut drain = pin!(drain);
    let mut muted = mute(true).await;
    // Only resets follow the limit.
    if !muted || limit <= DISCO_MUTE_PERIOD {
        drain.await;
        return muted;
    }
    if timeout(DISCO_MUTE_PERIOD, &mut drain).await.is_ok() {
        return true;
    }
    muted = mute(false).await;
    if let Some(interval) = between_mutes(limit) {
        if timeout(interval, &mut drain).await.is_ok() {
            return muted;
        }
        muted = mute(true).await;
    }
    drain.await;
    muted
}

/// Starts or ends the disco mute; returns whether it succeeded. Without it the next Pod is ready some seconds later.
async fn mute(nft: Option<&Nft>, on: bool) -> bool {
    let Some(nft) = nft else { return false };
    let done = nft.mute(on).await;
    done.inspect_err(|error| tracing::debug!(reason = error.reason(), on, "cannot switch the disco mute: {error}")).is_ok()
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use tokio::time::sleep;

    use super::*;

    /// Times in milliseconds at which the mute was switched during a drain of this length, and whether it was on at the end.
    async fn switches(works: bool, drain: u64, limit: u64) -> (Vec<(u128, bool)>, bool) {
        let [drain, limit] = [drain, limit].map(Duration::from_millis);
        let (began, mut switches) = (Instant::now(), Vec::new());
        let mute = |on| {
            switches.push((began.elapsed().as_millis(), on));
            ready(works && on)
        };
        let muted = run_muted(mute, sleep(drain), limit).await;
        assert_eq!(began.elapsed(), drain);
        (switches, muted)
    }

    #[tokio::test(start_paused = true)]
    async fn long_drain_is_muted_at_its_beginning_and_before_its_deadline() {
        assert_eq!(switches(true, 3_000, 24_000).await, (vec![(0, true)], true));
        assert_eq!(switches(true, 9_000, 24_000).await, (vec![(0, true), (4_500, false)], false));
        assert_eq!(switches(true, 24_000, 24_000).await, (vec![(0, true), (4_500, false), (19_500, true)], true));
        assert_eq!(switches(true, 5_000, 4_300).await, (vec![(0, true)], true), "the resets take some time");
        assert_eq!(switches(true, 12_000, 12_000).await, (vec![(0, true), (4_500, false)], false), "its flows would lose their paths");
        assert_eq!(switches(false, 24_000, 24_000).await, (vec![(0, true)], false));
    }
}
