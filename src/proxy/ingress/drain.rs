//! Ends ingress: rejects new connections, lets those in progress end, withdraws what is advertised, and closes the HTTP front end.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use futures_util::future::join3;
use tokio::time::{Instant, timeout};

use crate::model::flows::drain::IDLE_PERIOD;

use crate::proxy::forwarding::drain::wait_for_last_flow;
use crate::proxy::front_end::Closing;
use crate::proxy::ingress::start::{IngressPart, Listening};

impl IngressPart {
    /// Serves everything as before until no long-running request is in progress, at most for `within`.
    pub async fn finish_long_running(&self, within: Duration) {
        let Some(front_end) = &self.front_end else { return };
        let mut long_running = front_end.handle.stats.long_running();
        let open = *long_running.borrow_and_update();
        if open == 0 {
            return;
        }
        tracing::info!(open, limit = ?within, "serving until watches, logs and sessions of clients have ended");
        // The sender is dropped with the front end.
        if timeout(within, long_running.wait_for(|open| *open == 0)).await.is_err() {
            tracing::info!(open = *long_running.borrow(), "drain timeout reached: cutting watches, logs and sessions of clients");
        }
    }

    /// With advertised services: rejects new connections, and waits for those to `routed` addresses and virtual hosts, at most for `within`.
    /// `meanwhile` runs concurrently and is dropped at the deadline.
    pub async fn reject_new_connections(&mut self, within: Duration, routed: &BTreeSet<IpAddr>, meanwhile: impl Future<Output = ()>) {
        if self.advertise_status.borrow().active.is_empty() {
            return;
        }
        let began = Instant::now();
        if !self.set_shields_up(true, within).await {
            tracing::warn!("cannot enable shields-up in tailscaled; connections that begin before services are withdrawn are closed");
            return;
        }
        if let Some(front_end) = &self.front_end {
            front_end.closing.send_replace(Closing::Draining);
        }
        let rest = within.saturating_sub(began.elapsed());
        let began = Instant::now();
        let ended =
            timeout(rest, join3(wait_for_last_connection(self.front_end.as_ref()), wait_for_last_flow(routed), meanwhile)).await.is_ok();
        let took = began.elapsed();
        if ended {
            tracing::info!(?took, "rejecting new connections; none are in progress");
        } else {
            tracing::info!(?took, "rejecting new connections; those in progress are closed when the addresses of services move");
        }
    }

    /// Accepts new connections again, at most for `within`: tailscaled stores shields-up, also for the next Pod.
    pub async fn reopen(&mut self, within: Duration) {
        if self.withdrawal.borrow().shields_up && !self.set_shields_up(false, within).await {
            tracing::warn!("cannot disable shields-up in tailscaled; the next start does it");
        }
    }

    /// Sets shields-up and waits until tailscaled confirms, at most for `within`; returns whether it did.
    async fn set_shields_up(&mut self, on: bool, within: Duration) -> bool {
        self.withdrawal.send_modify(|withdrawal| withdrawal.shields_up = on);
        timeout(within, self.advertise_status.wait_for(|status| status.shields_up == on)).await.is_ok()
    }

    /// Withdraws everything and waits until the control plane confirms, at most for `within`; returns whether it did.
    pub async fn withdraw(&mut self, within: Duration) -> bool {
        let before = self.advertise_status.borrow().active.len();
        self.withdrawal.send_modify(|withdrawal| withdrawal.withdrawn = true);
        let began = Instant::now();
        let done = timeout(within, self.advertise_status.wait_for(|status| status.active.is_empty())).await.is_ok();
        if !done {
            let services = &self.advertise_status.borrow().active;
            tracing::warn!(?services, "the control plane may still route services to this replica: it has not confirmed their withdrawal");
        } else if before > 0 {
            tracing::info!(services = before, took = ?began.elapsed(), "no service is routed to this replica any more");
        }
        done
    }

    /// Waits for running requests of virtual hosts, at most for `within`.
    pub async fn close(&mut self, within: Duration) {
        let Some(front_end) = &mut self.front_end else { return };
        front_end.closing.send_replace(Closing::Closed);
        if timeout(within, front_end.closed.wait_for(|closed| *closed)).await.is_err() {
            tracing::info!("drain timeout reached: closing the remaining HTTP connections");
        }
    }
}

/// Waits until no connection to a virtual host is open, and none was for a while.
async fn wait_for_last_connection(front_end: Option<&Listening>) {
    let Some(mut open) = front_end.map(|front_end| front_end.handle.stats.open()) else { return };
    // The sender is dropped with the front end.
    while open.wait_for(|open| *open == 0).await.is_ok() {
        if timeout(IDLE_PERIOD, open.wait_for(|open| *open > 0)).await.is_err() {
            return;
        }
    }
}
