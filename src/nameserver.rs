//! Nameserver of a `DNSConfig`: answers queries of the cluster from the records of a `ConfigMap`.
//!
//! Records follow a watch. The last good ones stay in force while the API server is unavailable, the document is malformed or the `ConfigMap`
//! is gone. The server listens once it has records, so that a TCP connection is a readiness probe that suits every image. After the
//! termination signal it answers until clients use another Pod. Writes nothing.

pub mod http;
pub mod metrics;
pub mod records;

use std::sync::Arc;

use tokio::time::sleep;

use crate::edge::dns_server::DnsServer;
use crate::edge::kube::{Cluster, KubeError};
use crate::model::base::backoff::Backoff;
use crate::model::settings::nameserver::NameserverSettings as Settings;
use crate::runtime::metrics::MetricsError;
use crate::runtime::tasks::{self, Stop, TaskError, Tasks};
use metrics::Metrics;
use records::ActiveRecords;

/// Failure that ends the nameserver.
#[derive(Debug, thiserror::Error)]
pub enum NameserverError {
    /// Signal handlers could not be installed.
    #[error("cannot listen for signals: {0}")]
    Signals(#[source] std::io::Error),
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The API is unusable.
    #[error(transparent)]
    Kube(#[from] KubeError),
    #[error(transparent)]
    Task(#[from] TaskError),
}

/// Runs until stopped.
pub async fn run(settings: Settings) -> Result<(), NameserverError> {
    let mut tasks = Tasks::default();
    let (leaver, shutdown) = tasks::stop();
    tasks.run_until_stop("signals", tasks::signals(leaver).map_err(NameserverError::Signals)?);
    let metrics = Arc::new(Metrics::new()?);
    let records = ActiveRecords::new(Arc::clone(&metrics));
    if let Some(file) = &settings.file {
        records.load_file(file);
    }
    if let Some(name) = &settings.config_map {
        let server = settings.kube.as_ref().map(|kube| &*kube.server);
        let cluster = Cluster::connect(settings.kubeconfig.as_deref(), server).await?;
        tasks.run_until_stop("records", records.clone().follow(cluster, name.clone()));
    }
    if let Some(address) = settings.admin_addr {
        let sources = http::StatusSources { records: records.clone(), heartbeats: tasks.heartbeats(), leaving: shutdown.clone() };
        tasks.run_forever("http", http::serve(address, sources, tasks.stop()));
    }
    let stopper = tasks.stopper();
    tasks.run_forever("leave", async move {
        shutdown.requested().await;
        tracing::info!(drain_timeout = ?settings.drain_timeout, "draining: queries are answered until the Service uses other Pods");
        tokio::select! {
            () = sleep(settings.drain_timeout) => {}
            () = shutdown.aborted() => {}
        }
        stopper.stop();
    });
    tasks.run_forever("dns", serve(settings.listen, records, metrics, tasks.stop()));
    tasks.run(http::GRACE).await?;
    Ok(())
}

/// Serves queries once there are records, until the stop. A failed bind is retried, as is a socket that fails.
async fn serve(address: std::net::SocketAddr, records: ActiveRecords, metrics: Arc<Metrics>, stop: Stop) {
    let mut retry = Backoff::DAEMON;
    tokio::select! {
        () = records.loaded() => {}
        () = stop.requested() => return,
    }
    while !stop.is_requested() {
        let counted = Arc::clone(&metrics);
        let observe = Arc::new(move |transport: &'static str, code: &'static str| counted.queries.inc([transport, code]));
        let stopped = stop.clone();
        let ended = match DnsServer::start(address, records.cell(), observe).await {
            Ok(server) => {
                tracing::info!(listener = "dns", address = %server.address(), "listening");
                server.serve(async move { stopped.requested().await }).await
            }
            Err(error) => Err(error.to_string()),
        };
        let Err(error) = ended else { continue };
        tracing::error!(listener = "dns", "{error}");
        tokio::select! {
            () = sleep(retry.next(fastrand::f64())) => {}
            () = stop.requested() => {}
        }
    }
}
