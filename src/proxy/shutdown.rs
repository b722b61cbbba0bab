//! Leaves without hanging a flow: unready, closed to new connections where services lead here, unadvertised, forwarding on until the
//! flows have ended or the time is over, then resets for those that remain, then tailscaled.
//!
//! Readiness falls by itself with the signal. No step sleeps on a guess: each ends by what is seen, or by its deadline.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::edge::nft::Nft;
use crate::model::flows::drain::{Budget, CLOSING, HUSH};
use crate::runtime::tasks::Stop;

use crate::proxy::replica::Replica;
use crate::proxy::state_secret::start::StatePart;

/// How long tailscaled may take to stop advertising.
const UNADVERTISE: Duration = Duration::from_secs(2);

/// How long tailscaled may take to accept new connections again: what it keeps is written to an API server.
const REOPEN: Duration = Duration::from_secs(1);

/// How long the Secret may take to be written where tailscaled was started without it.
const GIVE_BACK: Duration = Duration::from_secs(1);

/// How long the control server is waited for where only routes are withdrawn: not every one confirms that to the node.
const ROUTES: Duration = Duration::from_secs(2);

impl Replica {
    /// Leaves; at once at a second signal. `grace_began`: when the Pod's grace period began, if a preStop hook came before the signal.
    pub async fn leave(&mut self, stop: &Stop, grace_began: Option<Instant>) {
        let began = Instant::now();
        let spent = grace_began.map_or(Duration::ZERO, |grace| began.saturating_duration_since(grace));
        let budget = Budget::of(self.settings.drain_timeout.saturating_sub(spent), self.tailnet.daemon.is_some());
        tokio::select! {
            () = self.leave_in_order(budget) => tracing::info!(took = ?began.elapsed(), "left"),
            () = stop.aborted() => tracing::warn!("second signal, aborting drain: remaining flows may hang"),
        }
    }

    /// The order of shutdown: mute, flows, shields-up off, state, tailscaled, and what was muted speaks again.
    async fn leave_in_order(&mut self, budget: Budget) {
        tracing::info!(?budget, "draining: established connections continue, readiness is off");
        let nft = self.forwarding.nft().filter(|_| self.tailnet.daemon.is_some());
        let mut muted = mute(nft.as_ref(), true).await;
        if muted {
            self.state.iter().for_each(StatePart::record_mute_start);
            muted = !unmuted_late(nft.as_ref(), self.end_flows(budget)).await;
        } else {
            self.end_flows(budget).await;
        }
        let ended = Instant::now();
        if let Some(ingress) = &mut self.ingress {
            ingress.reopen(REOPEN.min(budget.daemon / 2)).await;
        }
        self.tailnet.give_back(GIVE_BACK.min(budget.daemon / 2)).await;
        if !muted {
            self.state.iter().for_each(StatePart::record_mute_start);
        }
        self.tailnet.stop(budget.daemon.saturating_sub(ended.elapsed())).await;
        if muted {
            mute(nft.as_ref(), false).await;
        }
    }

    /// Ends what goes through this replica, in the order in which nothing is lost.
    async fn end_flows(&mut self, budget: Budget) {
        let began = Instant::now();
        let rest = || budget.flows.saturating_sub(began.elapsed());
        self.shut(CLOSING.min(budget.flows / 2)).await;
        let gone = self.withdraw(rest()).await;
        if let Some(ingress) = &mut self.ingress {
            ingress.close(rest()).await;
        }
        // What was never written has no flows.
        if self.forwarding.in_use() {
            self.forwarding.drain(rest(), &gone).await;
            self.forwarding.close(rest(), budget.resets).await;
        }
    }

    /// Rejects new connections where services lead here. Records meanwhile the peers of this replica: that write is not waited for, what
    /// follows takes longer.
    async fn shut(&mut self, within: Duration) {
        let Some(ingress) = &mut self.ingress else { return };
        let routed = if self.forwarding.in_use() { self.forwarding.service_addresses() } else { BTreeSet::new() };
        let recent_peers = self.state.as_ref().and_then(|state| state.recent_peers.as_ref());
        let record = async {
            if let Some(recent_peers) = recent_peers {
                recent_peers.look().await;
            }
        };
        ingress.shut(within, &routed, record).await;
    }

    /// Withdraws what is advertised, at most for `within`. The addresses of services that lead to other replicas now: their flows cannot
    /// go on here, for their packets do not come here any more.
    async fn withdraw(&mut self, within: Duration) -> BTreeSet<IpAddr> {
        let Some(ingress) = &mut self.ingress else {
            self.tailnet.stop_advertising(UNADVERTISE).await;
            return BTreeSet::new();
        };
        let services = self.tailnet.daemon.as_ref().is_some_and(|daemon| !daemon.state().borrow().advertised.is_empty());
        let within = if services { within } else { within.min(ROUTES) };
        if ingress.withdraw(within).await { self.forwarding.service_addresses() } else { BTreeSet::new() }
    }
}

/// Runs `flows` to its end, and ends the mute before it where that takes longer than [`HUSH`]; whether it did.
async fn unmuted_late(nft: Option<&Nft>, flows: impl Future<Output = ()>) -> bool {
    let mut flows = pin!(flows);
    let late = timeout(HUSH, &mut flows).await.is_err();
    if late {
        mute(nft, false).await;
        flows.await;
    }
    late
}

/// Mutes the disco packets of tailscaled or ends that; whether it could be done. Where not, a successor is ready some seconds later.
async fn mute(nft: Option<&Nft>, on: bool) -> bool {
    let Some(nft) = nft else { return false };
    let done = nft.mute(on).await;
    done.inspect_err(|error| tracing::debug!(reason = error.reason(), on, "signs of life outside the tunnel: {error}")).is_ok()
}
