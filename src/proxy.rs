//! DATA PLANE: the tasks of `tailyard proxy`, and how they are joined.
//!
//! Tasks share values by `watch` channels: no task waits for the I/O of another.

pub mod api_server;
pub mod certs;
pub mod config;
pub mod forwarding;
pub mod front_end;
pub mod http;
pub mod ingress;
pub mod k8s_proxy;
pub mod metrics;
pub mod replica;
pub mod shutdown;
pub mod standby;
pub mod state_secret;
pub mod tailnet;

use std::sync::Arc;
use std::time::Duration;

use crate::model::base::backoff::Backoff;
use crate::model::settings::Settings;
use crate::runtime::metrics::MetricsError;
use crate::runtime::tasks::{self, TaskError, Tasks};

use config::inputs::cluster;
use metrics::Metrics;
use replica::Replica;
use standby::Standby;

/// How often the kernel is written and looked at.
const PACE: forwarding::ruleset_sync::SyncPace = forwarding::ruleset_sync::SyncPace {
    min_interval: Duration::from_millis(20),
    audit: Duration::from_secs(30),
    settle: Duration::from_millis(100),
    retry: Backoff::KERNEL,
};

/// The replica ended with a failure.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The process could not be set up to hear signals.
    #[error("cannot listen for signals: {0}")]
    Signals(#[source] std::io::Error),
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    #[error(transparent)]
    Task(#[from] TaskError),
}

impl ProxyError {
    /// Whether the process ends without a stop request.
    pub fn is_crash(&self) -> bool {
        matches!(self, Self::Task(TaskError::Panicked { .. } | TaskError::Ended { .. }))
    }
}

/// Runs a replica until a stop is requested and it has drained.
pub async fn run(settings: Settings) -> Result<(), ProxyError> {
    let mut tasks = Tasks::default();
    let (leaver, shutdown) = tasks::stop();
    tasks.run_until_stop("signals", tasks::signals(leaver).map_err(ProxyError::Signals)?);
    let metrics = Arc::new(Metrics::new()?);
    let cluster = cluster(settings.kube.as_ref()).await;
    let election = settings.active_lease.as_ref().zip(cluster.clone());
    let standby = election.map(|(lease, cluster)| Standby::start(cluster, lease, &mut tasks));
    if let Some(standby) = &standby
        && !standby.wait(settings.http, &tasks, &shutdown).await
    {
        return Ok(());
    }
    let mut replica = Replica::start(settings, cluster.as_ref(), &mut tasks).await;
    if let (Some(standby), Some(daemon)) = (&standby, &replica.tailnet.daemon) {
        let daemon = daemon.clone();
        let kill = async move { daemon.stop(Duration::ZERO).await };
        tasks.spawn("fence", standby.fence(kill, shutdown.clone(), tasks.stop()));
    }
    let sources = Arc::new(http::SnapshotSources::new(&replica, metrics, shutdown.clone(), &tasks));
    http::start(&mut tasks, &replica.settings, &sources);
    let (stopper, stop) = (tasks.stopper(), tasks.stop());
    tasks.run_forever("leave", async move {
        shutdown.requested().await;
        if !shutdown.is_requested() || (stop.is_requested() && replica.settings.init.is_some()) {
            // A crash: the next process adopts tailscaled, ruleset and flows.
            return;
        }
        replica.shut_down(cluster.as_ref(), &shutdown).await;
        if let Some(standby) = standby {
            standby.release().await;
        }
        // Before the replica is dropped: tasks that find its channels closed must know why.
        stopper.stop();
    });
    tasks.run(Duration::from_secs(2)).await?;
    Ok(())
}
