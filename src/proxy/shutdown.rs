//! Leaves without hanging a flow: unready, closed to whoever is new where services lead here, unadvertised, forwarding on until the
//! flows have ended or the time is over, then resets for those that remain, then tailscaled.
//!
//! Readiness falls by itself with the signal. No step sleeps on a guess: each ends by what is seen, or by its deadline.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::join3;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::edge::conntrack::{Conntrack, ConntrackError};
use crate::edge::nft::Nft;
use crate::model::flows::drain::{AWAY, Budget, CLOSING, ConntrackSample, Drain, DrainDecision, HUSH};
use crate::model::flows::flow::{Flow, FlowFilter};
use crate::runtime::tasks::Stop;

use crate::proxy::forwarding::firewall::ActiveFirewall;
use crate::proxy::ingress::advertise;
use crate::proxy::ingress::l7::Closing;
use crate::proxy::ingress::start::Listening;
use crate::proxy::replica::Replica;
use crate::proxy::tailnet::recent_peers::fall_silent;

/// How long nothing may come before a replica without flows goes: until then clients may not know that it leaves.
const QUIET: Duration = Duration::from_secs(2);
/// How long tailscaled may take to stop advertising.
const UNADVERTISE: Duration = Duration::from_secs(2);

/// How long tailscaled may take to let somebody in again: what it keeps is written to an API server.
const REOPEN: Duration = Duration::from_secs(1);

/// How long the Secret may take to be written where tailscaled was started without it.
const GIVE_BACK: Duration = Duration::from_secs(1);

/// How long the control server is waited for where only routes are taken back: not every one tells a node that they are.
const ROUTES: Duration = Duration::from_secs(2);

impl Replica {
    /// Leaves; at once at a second signal. `grace_began`: when the Pod's grace period began, if a preStop hook came before the signal.
    pub async fn leave(&mut self, stop: &Stop, grace_began: Option<Instant>) {
        let began = Instant::now();
        let spent = grace_began.map_or(Duration::ZERO, |grace| began.saturating_duration_since(grace));
        let budget = Budget::of(self.settings.drain_timeout.saturating_sub(spent), self.daemon.is_some());
        tokio::select! {
            () = self.leave_in_order(budget) => tracing::info!(took = ?began.elapsed(), "left"),
            () = stop.aborted() => tracing::warn!("second signal, aborting drain: remaining flows may hang"),
        }
    }

    async fn leave_in_order(&mut self, budget: Budget) {
        tracing::info!(?budget, "draining: established connections continue, readiness is off");
        let nft = self.firewall.borrow().as_ref().and_then(ActiveFirewall::nft).filter(|_| self.daemon.is_some());
        let mut hushed = hush(nft.as_ref(), true).await;
        if hushed {
            self.fall_silent();
            hushed = !lifted(nft.as_ref(), self.end_flows(budget)).await;
        } else {
            self.end_flows(budget).await;
        }
        let ended = Instant::now();
        self.reopen(REOPEN.min(budget.daemon / 2)).await;
        self.give_back(GIVE_BACK.min(budget.daemon / 2)).await;
        if !hushed {
            self.fall_silent();
        }
        self.end_daemon(budget.daemon.saturating_sub(ended.elapsed())).await;
        if hushed {
            hush(nft.as_ref(), false).await;
        }
    }

    /// Writes down for the successor that peers hear nothing of this replica any more.
    fn fall_silent(&self) {
        if let Some(ledger) = &self.ledger {
            fall_silent(ledger);
        }
    }

    /// Ends tailscaled; without its own order of things where its network ends with it, for that order costs it a second: it undoes its
    /// routes and rules one by one and waits to be rid of its log. Its state is written already, and its peers are not told either way.
    async fn end_daemon(&self, grace: Duration) {
        let Some(daemon) = &self.daemon else { return };
        let grace = if self.settings.ends_with_its_network() { Duration::ZERO } else { grace };
        daemon.stop(grace).await;
    }

    /// Ends what goes through this replica, in the order in which nobody loses anything.
    async fn end_flows(&mut self, budget: Budget) {
        let began = Instant::now();
        self.shut(CLOSING.min(budget.flows / 2)).await;
        let gone = self.withdraw(budget.flows.saturating_sub(began.elapsed())).await;
        self.close_sites(budget.flows.saturating_sub(began.elapsed())).await;
        // What was never written has no flows.
        if self.settings.forwards() && self.programmed.borrow().writes > 0 {
            drain(budget.flows.saturating_sub(began.elapsed()), &gone).await;
            self.close(budget.flows.saturating_sub(began.elapsed()), budget.resets).await;
        }
    }

    /// Where services lead here: lets nobody new in, and lets end what is under way, at most for `within`.
    async fn shut(&mut self, within: Duration) {
        let Some(publishing) = &mut self.publishing else { return };
        if publishing.standing.borrow().leading.is_empty() {
            return;
        }
        let began = Instant::now();
        if !advertise::shut(&publishing.leaving, &mut publishing.standing, true, within).await {
            tracing::warn!("cannot enable shields-up in tailscaled; connections that begin before services are withdrawn are closed");
            return;
        }
        self.finish(within.saturating_sub(began.elapsed())).await;
    }

    /// Lets end what is under way at this replica's services, at most for `within`. Writes down meanwhile with whom it speaks: the write
    /// itself is not waited for, what follows takes longer.
    async fn finish(&self, within: Duration) {
        let sites = self.publishing.as_ref().and_then(|publishing| publishing.sites.as_ref());
        if let Some(sites) = sites {
            sites.closing.send_replace(Closing::Finishing);
        }
        let forwards = self.settings.forwards() && self.programmed.borrow().writes > 0;
        let planned = self.planned.borrow().clone().filter(|_| forwards);
        let routed = planned.iter().flat_map(|planned| planned.ruleset.from_tailnet.keys().copied()).collect();
        let written = async {
            if let Some(recent_peers) = &self.recent_peers {
                recent_peers.look().await;
            }
        };
        let began = Instant::now();
        let ended = timeout(within, join3(unasked(sites), unforwarded(&routed), written)).await.is_ok();
        let took = began.elapsed();
        if ended {
            tracing::info!(?took, "rejecting new connections; none are in progress");
        } else {
            tracing::info!(?took, "rejecting new connections; those in progress are closed when the addresses of services move");
        }
    }

    /// Takes back that rejecting new connections: tailscaled keeps it, and whoever follows may not know. At most for `within`.
    async fn reopen(&mut self, within: Duration) {
        let Some(publishing) = &mut self.publishing else { return };
        if publishing.leaving.borrow().shut && !advertise::shut(&publishing.leaving, &mut publishing.standing, false, within).await {
            tracing::warn!("cannot disable shields-up in tailscaled; the next start does it");
        }
    }

    /// Writes into the Secret what only a file of this Pod holds, such as that somebody is let in again: another Pod does not see the
    /// file. At most for `within`.
    async fn give_back(&self, within: Duration) {
        let from_file = self.daemon.as_ref().is_some_and(|daemon| daemon.state().borrow().from_file);
        let Some(copies) = self.copies.as_ref().filter(|_| from_file) else { return };
        match timeout(within, copies.give_back()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(reason = error.reason(), "cannot save tailscaled's state; the next Pod starts with an older one: {error}");
            }
            Err(_) => tracing::warn!("cannot save tailscaled's state; the next Pod starts with an older one: no answer within {within:?}"),
        }
    }

    /// Tells the tailnet that this replica serves no more, and waits until it is heard, at most for `within`. The addresses of
    /// services that lead elsewhere now: their flows cannot go on here, for their packets do not come here any more.
    async fn withdraw(&mut self, within: Duration) -> BTreeSet<IpAddr> {
        if let Some(publishing) = &mut self.publishing {
            let services = self.daemon.as_ref().is_some_and(|daemon| !daemon.state().borrow().advertised.is_empty());
            let within = if services { within } else { within.min(ROUTES) };
            let heard = advertise::withdraw(&publishing.leaving, &mut publishing.standing, within).await;
            let planned = self.planned.borrow().clone().filter(|_| heard);
            return planned.iter().flat_map(|planned| planned.ruleset.from_tailnet.keys().copied()).collect();
        }
        let Some(daemon) = &self.daemon else { return BTreeSet::new() };
        match timeout(UNADVERTISE, daemon.stop_advertising()).await {
            Ok(Ok(true)) => tracing::info!("withdrew this replica's services"),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => tracing::warn!(reason = error.reason(), "cannot withdraw this replica's services: {error}"),
            Err(_) => tracing::warn!("tailscaled does not answer: cannot withdraw this replica's services"),
        }
        BTreeSet::new()
    }

    /// Lets the requests end that are under way at the sites, at most for `within`.
    async fn close_sites(&mut self, within: Duration) {
        let Some(sites) = self.publishing.as_mut().and_then(|publishing| publishing.sites.as_mut()) else { return };
        sites.closing.send_replace(Closing::Closed);
        if timeout(within, sites.closed.wait_for(|closed| *closed)).await.is_err() {
            tracing::info!("drain timeout reached: closing the remaining HTTP connections");
        }
    }

    /// Takes every way out of the kernel; flows that still went one of them end with resets. To find them there is also the time that the
    /// drain did not need: where very much is tracked on a busy machine, a listing may take longer than resets do.
    async fn close(&mut self, unused: Duration, resets: Duration) {
        let over = Instant::now() + unused + resets;
        self.closing.send_replace(true);
        let cut = async {
            let _ = self.programmed.wait_for(|programmed| programmed.closed).await;
            let _ = self.ended.wait_for(|ended| !ended.forwarding).await;
        };
        let cut = timeout_at(over, cut).await.is_ok();
        let written = timeout_at(over.min(Instant::now() + resets), self.ended.wait_for(|ended| ended.under_way == 0));
        if !cut || written.await.is_err() {
            tracing::warn!("some flows may not have been reset before the deadline");
        }
    }
}

/// Lets the flows end, and gives the peers signs of life again where that takes longer than [`HUSH`]; whether it did.
async fn lifted(nft: Option<&Nft>, flows: impl Future<Output = ()>) -> bool {
    let mut flows = pin!(flows);
    let late = timeout(HUSH, &mut flows).await.is_err();
    if late {
        hush(nft, false).await;
        flows.await;
    }
    late
}

/// Gives the peers no sign of life, or some again; whether it could be done. Where not, a successor is ready some seconds later.
async fn hush(nft: Option<&Nft>, on: bool) -> bool {
    let Some(nft) = nft else { return false };
    let done = nft.hush(on).await;
    done.inspect_err(|error| tracing::debug!(reason = error.reason(), on, "signs of life outside the tunnel: {error}")).is_ok()
}

/// Waits until the forwarded flows have ended but for those to addresses that are `gone`, or for `grace`.
async fn drain(grace: Duration, gone: &BTreeSet<IpAddr>) {
    let began = Instant::now();
    let mut drain = Drain::new(grace, QUIET);
    if ended(&mut drain, |to| !gone.contains(&to)).await {
        tracing::info!(took = ?began.elapsed(), "all flows have ended");
    } else {
        tracing::info!(flows = drain.open(), "drain timeout reached: resetting the remaining flows");
    }
}

/// Waits until nothing is forwarded that came by one of these addresses, and nothing was for a while.
async fn unforwarded(routed: &BTreeSet<IpAddr>) {
    if !routed.is_empty() {
        ended(&mut Drain::new(Duration::MAX, AWAY), |to| routed.contains(&to)).await;
    }
}

/// Waits until no connection to a site is open, and was none for a while.
async fn unasked(sites: Option<&Listening>) {
    let Some(mut open) = sites.map(|sites| sites.l7.stats.open()) else { return };
    // Nobody counts any more where the sender is gone.
    while open.wait_for(|open| *open == 0).await.is_ok() {
        if timeout(AWAY, open.wait_for(|open| *open > 0)).await.is_err() {
            return;
        }
    }
}

/// Waits until the flows to some addresses have ended; whether they did before the drain's time was over.
async fn ended(drain: &mut Drain, counts: impl Fn(IpAddr) -> bool) -> bool {
    let began = Instant::now();
    loop {
        let flows = listing(&counts).await;
        let event = flows.as_deref().map_or(ConntrackSample::Unknown, ConntrackSample::Flows);
        match drain.decide(event, began.elapsed()) {
            DrainDecision::Wait(rest) => sleep(rest).await,
            DrainDecision::Ended => return true,
            DrainDecision::Over => return false,
        }
    }
}

async fn listing(counts: impl Fn(IpAddr) -> bool) -> Option<Vec<Flow>> {
    let list = spawn_blocking(|| Conntrack::open()?.flows(FlowFilter::under_way()));
    let list: Result<Vec<Flow>, ConntrackError> = list.await.ok()?;
    let list = list
        .inspect_err(|error| tracing::warn!(reason = error.reason(), "cannot list flows; waiting for the whole drain timeout: {error}"));
    list.ok().map(|flows| flows.into_iter().filter(|flow| counts(flow.original.destination.ip())).collect())
}
