//! Ends forwarding: waits for flows to end by themselves, then removes the rules and resets the remaining flows.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout_at};

use crate::edge::conntrack::{Conntrack, ConntrackError};
use crate::edge::nft::Nft;
use crate::model::flows::drain::{Drain, DrainDecision, IDLE_PERIOD, SINGLE_QUIET_PERIOD, quiet_time};
use crate::model::flows::flow::{Flow, FlowFilter};
use crate::model::plan::world::Single;

use crate::proxy::forwarding::firewall::ActiveFirewall;
use crate::proxy::forwarding::start::ForwardingPart;

impl ForwardingPart {
    /// Whether rules were written, so that flows may exist.
    pub fn in_use(&self) -> bool {
        self.enabled && self.programmed.borrow().writes > 0
    }

    /// nftables, if in use.
    pub fn nft(&self) -> Option<Nft> {
        self.firewall.borrow().as_ref().and_then(ActiveFirewall::nft)
    }

    /// Tailnet addresses of L3 services.
    pub fn service_addresses(&self) -> BTreeSet<IpAddr> {
        self.planned.borrow().iter().flat_map(|planned| planned.ruleset.from_tailnet.keys().copied()).collect()
    }

    /// Waits until all forwarded flows have ended, except those to addresses in `gone`, at most for `grace`.
    pub async fn drain(&self, grace: Duration, gone: &BTreeSet<IpAddr>) {
        let began = Instant::now();
        let quiet = match &*self.planned.borrow() {
            Some(planned) if planned.world.single == Single::None => quiet_time(planned.plan.egress.len()),
            _ => SINGLE_QUIET_PERIOD,
        };
        let mut drain = Drain::new(grace, quiet);
        if ended(&mut drain, |to| !gone.contains(&to)).await {
            tracing::info!(took = ?began.elapsed(), "all flows have ended");
        } else {
            tracing::info!(flows = drain.open(), "drain timeout reached: resetting the remaining flows");
        }
    }

    /// Removes every rule and resets remaining flows. The `unused` time of the drain is added for the listing: with a large conntrack
    /// table on a busy machine it takes longer than the resets.
    pub async fn close(&mut self, unused: Duration, resets: Duration) {
        let over = Instant::now() + unused + resets;
        self.closing.send_replace(true);
        let cut = async {
            let _ = self.programmed.wait_for(|programmed| programmed.closed).await;
            let _ = self.ended.wait_for(|ended| !ended.forwarding).await;
        };
        let cut = timeout_at(over, cut).await.is_ok();
        let written = timeout_at(over.min(Instant::now() + resets), self.ended.wait_for(|ended| ended.under_way == 0));
        if !cut || written.await.is_err() {
            tracing::warn!(
                "some flows may not have been reset before the deadline: set a longer drain timeout, or give the proxy more processor time"
            );
        }
    }
}

/// Waits until no flow to these addresses is forwarded, and none was for a while.
pub(in crate::proxy) async fn wait_for_last_flow(routed: &BTreeSet<IpAddr>) {
    if !routed.is_empty() {
        ended(&mut Drain::new(Duration::MAX, IDLE_PERIOD), |to| routed.contains(&to)).await;
    }
}

/// Waits until the flows to some addresses have ended; returns whether they did before the deadline.
async fn ended(drain: &mut Drain, counts: impl Fn(IpAddr) -> bool) -> bool {
    let began = Instant::now();
    loop {
        let flows = listing(&counts).await;
        match drain.decide(flows.as_deref(), began.elapsed()) {
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
