//! Leaves without hanging a flow: unready, unadvertised, forwarding on until the flows have ended or the time is over, then
//! resets for those that remain, then tailscaled.
//!
//! Readiness falls by itself with the signal. No step sleeps on a guess: each ends by what is seen, or by its deadline.

use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use crate::edge::conntrack::{Conntrack, ConntrackError};
use crate::model::drain::{Budget, Decision, Drain, Event};
use crate::model::flow::{Flow, FlowFilter};
use crate::runtime::tasks::Stop;

use super::replica::Replica;

/// How long nothing may come before a replica without flows goes: until then clients may not know that it leaves.
const QUIET: Duration = Duration::from_secs(2);
/// How long tailscaled may take to stop advertising.
const UNADVERTISE: Duration = Duration::from_secs(2);

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
        if let Some(daemon) = &self.daemon {
            match timeout(UNADVERTISE, daemon.stop_advertising()).await {
                Ok(Ok(true)) => tracing::info!("the tailnet was told that this replica serves no more"),
                Ok(Ok(false)) => {}
                Ok(Err(error)) => tracing::warn!(kind = error.kind(), "the tailnet is not told that this replica leaves: {error}"),
                Err(_) => tracing::warn!("tailscaled does not answer: the tailnet is not told that this replica leaves"),
            }
        }
        // What was never written has no flows.
        if self.settings.forwards() && self.programmed.borrow().writes > 0 {
            drain(budget.flows).await;
            self.close(budget.resets).await;
        }
        if let Some(daemon) = &self.daemon {
            daemon.stop(budget.daemon).await;
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

/// Waits until the forwarded flows have ended, or for `grace`.
async fn drain(grace: Duration) {
    let began = Instant::now();
    let mut drain = Drain::new(grace, QUIET);
    loop {
        let flows = listing().await;
        let event = flows.as_deref().map_or(Event::Unknown, Event::Flows);
        match drain.decide(event, began.elapsed()) {
            Decision::Wait(rest) => sleep(rest).await,
            Decision::Ended => return tracing::info!(took = ?began.elapsed(), "all flows have ended"),
            Decision::Over => return tracing::info!(flows = drain.open(), "the time is over: flows that are left are reset"),
        }
    }
}

async fn listing() -> Option<Vec<Flow>> {
    let list = spawn_blocking(|| Conntrack::open()?.flows(FlowFilter::forwarded()));
    let list: Result<Vec<Flow>, ConntrackError> = list.await.ok()?;
    list.inspect_err(|error| tracing::warn!(kind = error.kind(), "flows cannot be listed; waiting for the whole grace: {error}")).ok()
}
