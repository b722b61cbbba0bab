//! Warm standby: of the Pods that share an identity, only the holder of a Lease runs tailscaled.
//!
//! A waiting Pod answers its liveness probe and is not ready. It starts as a replica once it holds the Lease. The holder releases it after
//! tailscaled has ended, and kills tailscaled if it cannot renew the Lease in time: another Pod takes it only later. If the holder hangs,
//! the kernel kills it, and tailscaled with it ([`Fence`]). If the reconcilers find the holder's node lost, its claim passes earlier
//! ([`crate::model::base::leader`]): a holder that still runs kills tailscaled when it reads that, or at those times.

use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout};

use crate::edge::fence::Fence;
use crate::edge::kube::{Cluster, Leading, Lease};
use crate::model::base::leader::{FENCE_DELAY, LeaseCandidate, LeaseTerms};
use crate::model::settings::{ActiveLease, HttpListener};
use crate::runtime::tasks::{Stop, Tasks};

use super::http;

/// Timeout for the release of the Lease.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// The Lease was lost while tailscaled ran.
#[derive(Debug, thiserror::Error)]
#[error(
    "the Lease of the active Pod is lost, as the API server did not answer in time, or the reconciler found this Pod lost: tailscaled is \
    stopped, and another Pod may take over"
)]
pub struct LeaseLost;

/// Membership in the election of the active Pod.
#[derive(Debug)]
pub struct Standby {
    leading: watch::Receiver<Option<Leading>>,
    release: oneshot::Sender<()>,
    released: oneshot::Receiver<()>,
    fence: Option<Fence>,
}

impl Standby {
    /// Takes part in the election.
    pub fn start(cluster: Cluster, lease: &ActiveLease, tasks: &mut Tasks) -> Self {
        let candidate = LeaseCandidate::new(lease.pod_uid.clone(), None, LeaseTerms::ACTIVE_POD);
        let election = Lease::new(cluster, lease.name.clone(), candidate).owned_like(lease.name.clone()).watched();
        let (sender, leading) = watch::channel(None);
        let (release, requested) = oneshot::channel::<()>();
        let (done, released) = oneshot::channel();
        let fence = Fence::start().inspect_err(|error| tracing::warn!("a process that hangs keeps tailscaled running: {error}")).ok();
        let armed = fence.clone();
        let publish = move |now: Option<Leading>| {
            if let (Some(fence), Some(leading)) = (&armed, now) {
                fence.arm(leading.until + FENCE_DELAY - Instant::now());
            }
            sender.send_replace(now);
        };
        let work = async move {
            // Dropped without a request: the process ends, and tailscaled may still run.
            let requested = async {
                if requested.await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            election.hold(watch::channel(Some(())).1, publish, requested).await;
            let _ = done.send(());
            std::future::pending::<()>().await;
        };
        tasks.run_until_stop("active lease", work);
        Self { leading, release, released, fence }
    }

    /// Waits for the Lease, and answers probes meanwhile. Returns whether it is held; false if the stop came first.
    pub async fn wait(&self, listener: Option<HttpListener>, tasks: &Tasks, shutdown: &Stop) -> bool {
        let mut leading = self.leading.clone();
        let probes = async {
            if let Some(listener) = listener {
                http::serve("standby", listener.address, http::standby_routes(tasks), tasks.stop()).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            acquired = leading.wait_for(Option::is_some) => acquired.is_ok(),
            () = shutdown.requested() => false,
            () = probes => false,
        }
    }

    /// Kills tailscaled when the Lease is lost, and fails unless the replica leaves anyway.
    pub fn fence(
        &self,
        kill: impl Future<Output = ()> + Send + 'static,
        shutdown: Stop,
        stop: Stop,
    ) -> impl Future<Output = Result<(), LeaseLost>> + Send + 'static {
        let (mut leading, armed) = (self.leading.clone(), self.fence.clone());
        async move {
            tokio::select! {
                () = async { drop(leading.wait_for(Option::is_none).await) } => kill.await,
                () = stop.requested() => return Ok(()),
            }
            if let Some(fence) = armed {
                fence.disarm();
            }
            if !shutdown.is_requested() {
                return Err(LeaseLost);
            }
            stop.requested().await;
            Ok(())
        }
    }

    /// Releases the Lease, so that another Pod takes over at once. tailscaled must have ended.
    pub async fn release(self) {
        let _ = self.release.send(());
        if timeout(RELEASE_TIMEOUT, self.released).await.is_err() {
            tracing::warn!("the Lease of the active Pod is not released: another Pod takes over once it expires");
        }
    }
}
