//! Leaves without hanging a flow: unready, unadvertised, forwarding on until the flows have ended or the time is over, then
//! resets for those that remain, then tailscaled.
//!
//! Readiness falls by itself with the signal. No step sleeps on a guess: each ends by what is seen, or by its deadline.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use futures_util::future;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use crate::edge::conntrack::{Conntrack, ConntrackError};
use crate::edge::nft::Nft;
use crate::model::drain::{Budget, Decision, Drain, Event, HUSH};
use crate::model::flow::{Flow, FlowFilter};
use crate::runtime::tasks::Stop;

use super::advertise;
use super::firewall::Firewall;
use super::replica::Replica;

/// How long nothing may come before a replica without flows goes: until then clients may not know that it leaves.
const QUIET: Duration = Duration::from_secs(2);
/// How long tailscaled may take to stop advertising.
const UNADVERTISE: Duration = Duration::from_secs(2);

/// How long the control server is waited for where only routes are taken back: not every one tells a node that they are.
const ROUTES: Duration = Duration::from_secs(2);

impl Replica {
    /// Leaves; at once when it is told a second time. The Pod's grace began when its preStop hook was called, if it was.
    pub async fn leave(&mut self, stop: &Stop, hook_called: Option<Instant>) {
        let began = Instant::now();
        let spent = hook_called.map_or(Duration::ZERO, |called| began.saturating_duration_since(called));
        let budget = Budget::of(self.settings.drain_grace.saturating_sub(spent), self.daemon.is_some());
        tokio::select! {
            () = self.leave_in_order(budget) => tracing::info!(took = ?began.elapsed(), "left"),
            () = stop.aborted() => tracing::warn!("told twice to leave: flows that are left may hang"),
        }
    }

    async fn leave_in_order(&mut self, budget: Budget) {
        tracing::info!(?budget, "leaving: no new connections are wanted; those that there are go on");
        let nft = self.firewall.borrow().as_ref().and_then(Firewall::nft).filter(|_| self.daemon.is_some());
        hush(nft.as_ref(), true).await;
        let spoken = async {
            sleep(HUSH).await;
            hush(nft.as_ref(), false).await;
            future::pending::<()>().await;
        };
        tokio::select! {
            () = self.end_flows(budget) => {}
            () = spoken => {}
        }
        if let Some(daemon) = &self.daemon {
            daemon.stop(budget.daemon).await;
        }
        hush(nft.as_ref(), false).await;
    }

    /// Ends what goes through this replica, in the order in which nobody loses anything.
    async fn end_flows(&mut self, budget: Budget) {
        let began = Instant::now();
        let gone = self.withdraw(budget.flows).await;
        self.close_sites(budget.flows.saturating_sub(began.elapsed())).await;
        // What was never written has no flows.
        if self.settings.forwards() && self.programmed.borrow().writes > 0 {
            drain(budget.flows.saturating_sub(began.elapsed()), &gone).await;
            self.close(budget.resets).await;
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
            Ok(Ok(true)) => tracing::info!("the tailnet was told that this replica serves no more"),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => tracing::warn!(kind = error.kind(), "the tailnet is not told that this replica leaves: {error}"),
            Err(_) => tracing::warn!("tailscaled does not answer: the tailnet is not told that this replica leaves"),
        }
        BTreeSet::new()
    }

    /// Lets the requests end that are under way at the sites, at most for `within`.
    async fn close_sites(&mut self, within: Duration) {
        let Some(sites) = self.publishing.as_mut().and_then(|publishing| publishing.sites.as_mut()) else { return };
        sites.closing.send_replace(true);
        if timeout(within, sites.closed.wait_for(|closed| *closed)).await.is_err() {
            tracing::info!("the time is over: connections to sites that are left are cut");
        }
    }

    /// Takes every way out of the kernel; flows that still went one of them end with resets.
    async fn close(&mut self, within: Duration) {
        self.closing.send_replace(true);
        let closed = async {
            let _ = self.programmed.wait_for(|programmed| programmed.closed).await;
            let _ = self.ended.wait_for(|ended| !ended.forwarding && ended.under_way == 0).await;
        };
        if timeout(within, closed).await.is_err() {
            tracing::warn!("some flows may not have been reset in time");
        }
    }
}

/// Gives the peers no sign of life, or some again; where it cannot be done, a successor may be ready some seconds later.
async fn hush(nft: Option<&Nft>, on: bool) {
    let Some(nft) = nft else { return };
    if let Err(error) = nft.hush(on).await {
        tracing::debug!(kind = error.kind(), on, "what tailscaled says outside the tunnel is not kept back: {error}");
    }
}

/// Waits until the forwarded flows have ended but for those to addresses that are `gone`, or for `grace`.
async fn drain(grace: Duration, gone: &BTreeSet<IpAddr>) {
    let began = Instant::now();
    let mut drain = Drain::new(grace, QUIET);
    loop {
        let flows = listing(gone).await;
        let event = flows.as_deref().map_or(Event::Unknown, Event::Flows);
        match drain.decide(event, began.elapsed()) {
            Decision::Wait(rest) => sleep(rest).await,
            Decision::Ended => return tracing::info!(took = ?began.elapsed(), "all flows have ended"),
            Decision::Over => return tracing::info!(flows = drain.open(), "the time is over: flows that are left are reset"),
        }
    }
}

async fn listing(gone: &BTreeSet<IpAddr>) -> Option<Vec<Flow>> {
    let list = spawn_blocking(|| Conntrack::open()?.flows(FlowFilter::forwarded()));
    let list: Result<Vec<Flow>, ConntrackError> = list.await.ok()?;
    let list =
        list.inspect_err(|error| tracing::warn!(kind = error.kind(), "flows cannot be listed; waiting for the whole grace: {error}"));
    list.ok().map(|flows| flows.into_iter().filter(|flow| !gone.contains(&flow.original.destination.ip())).collect())
}
