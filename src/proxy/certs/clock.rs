//! Clock of certificates: the API server's time, followed by the monotonic clock. A wrong clock of the node neither orders nor ends one.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::time::{Instant, sleep};

use crate::edge::kube::Cluster;

/// Difference that is no fault of the node's clock: the API server's time has whole seconds and is some seconds old.
const TOLERANCE: SignedDuration = SignedDuration::from_mins(1);
/// How often the API server's time is read.
pub(super) const READ_INTERVAL: Duration = Duration::from_hours(1);
/// How soon again after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// A time and the moment when it was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct CertClock {
    wall: Timestamp,
    read: Instant,
}

impl CertClock {
    /// The node's clock.
    pub(super) fn local() -> Self {
        Self { wall: Timestamp::now(), read: Instant::now() }
    }

    /// The node's clock, unless it differs from the API server's.
    fn corrected(self, server: Timestamp) -> Self {
        let ahead = self.wall.duration_since(server);
        if ahead.abs() <= TOLERANCE {
            return self;
        }
        tracing::warn!(?ahead, "this node's clock is wrong: certificates follow the API server's clock; correct it");
        Self { wall: server, ..self }
    }

    pub(super) fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.read.elapsed()).unwrap_or(SignedDuration::MAX);
        self.wall.checked_add(elapsed).unwrap_or(Timestamp::MAX)
    }
}

/// Reads the API server's time after this delay; tries until it succeeds.
pub(super) async fn read_after(delay: Duration, cluster: Cluster) -> CertClock {
    sleep(delay).await;
    loop {
        match cluster.time().await {
            // A proxy before the API server may have removed the time.
            Ok(server) => return server.map_or_else(CertClock::local, |server| CertClock::local().corrected(server)),
            Err(error) => tracing::debug!(reason = error.reason(), "{error}"),
        }
        sleep(RETRY_DELAY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn wrong_clock_is_replaced_by_that_of_the_api_server() {
        let local = CertClock::local();
        let at = |ahead: SignedDuration| local.corrected(local.wall - ahead);
        for ahead in [SignedDuration::ZERO, TOLERANCE, -TOLERANCE] {
            assert_eq!(at(ahead).now(), local.wall);
        }
        let days = SignedDuration::from_hours(60 * 24);
        for ahead in [days, -days] {
            tokio::time::advance(READ_INTERVAL).await;
            let elapsed = SignedDuration::try_from(local.read.elapsed()).expect("some hours");
            assert_eq!(at(ahead).now(), local.wall - ahead + elapsed, "it goes on with the monotonic clock");
        }
    }
}
