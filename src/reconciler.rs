//! CONTROL PLANE: tasks of `tailyard reconciler`.
//!
//! Observed objects → plan → writes, level-triggered: watches fill the cache and enqueue keys; workers plan and apply, and their writes
//! return through the watches. Of several processes the holder of the Lease writes. Forwarding does not depend on it.

pub mod apply;
pub mod cache;
pub mod context;
pub mod control_plane;
pub mod default_control_plane;
pub mod failover;
pub mod group_policies;
pub mod http;
pub mod informers;
pub mod metrics;
pub mod nameserver;
pub mod operator_device;
pub mod owned_objects;
pub mod proxyclass;
pub mod tailnet_tokens;
pub mod tailnets;
pub mod uninstall;
pub mod worker;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::api::names;
use crate::edge::kube::{Cluster, EventWriter, KubeError, LeaderClient, Leading, Lease};
use crate::model::base::backoff::Backoff;
use crate::model::base::leader::{LeaseCandidate, LeaseTerms};
use crate::model::controller::kinds::group_policy::PolicyRules;
use crate::model::controller::workload::objects::Kind;
use crate::model::controller::workload::settings::GroupSettings;
use crate::model::settings::reconciler::{Reconciler as Settings, cluster_domain};
use crate::runtime::metrics::MetricsError;
use crate::runtime::queue::Queue;
use crate::runtime::tasks::{self, Stop, TaskError, Tasks};

use apply::Applier;
use cache::{ClusterCache, WatchRole, WorkKey};
use context::Context;
use control_plane::ControlPlanes;
use failover::Failover;
use informers::Stores;
use metrics::Metrics;
use tailnet_tokens::TailnetTokens;

/// Lease of all reconcilers of a namespace.
pub const LEASE: &str = "tailyard-reconciler";
/// Resync interval: finds leftovers and changes by time alone.
const RESYNC_INTERVAL: Duration = Duration::from_mins(10);
/// Shutdown timeout: a running pass ends, and the Lease is released.
const GRACE: Duration = Duration::from_secs(20);

/// Failure that ends the reconciler.
#[derive(Debug, thiserror::Error)]
pub enum ReconcilerError {
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
pub async fn run(settings: Settings) -> Result<(), ReconcilerError> {
    let mut tasks = Tasks::default();
    let (leaver, shutdown) = tasks::stop();
    tasks.run_until_stop("signals", tasks::signals(leaver).map_err(ReconcilerError::Signals)?);
    let metrics = Arc::new(Metrics::new()?);
    let cluster = cluster(&settings).await?;
    let queue: Queue<WorkKey> = Queue::new(Arc::new(|failures| Backoff::RECONCILE.after(failures, fastrand::f64())));
    let mut watches = informers::watches(cluster.namespace(), &settings.service_namespaces, settings.grants_impersonation());
    watches.retain(|watch| is_served(watch.role, &settings));
    let cache = ClusterCache::new(settings.default_class.clone(), watches.iter().map(|watch| watch.role));
    let cache = cache.serving(&settings.workloads.types, settings.assignment()).in_namespace(cluster.namespace());
    let stores = Stores::new(cache, queue.clone());
    for watch in watches {
        let (stores, cluster, metrics) = (stores.clone(), cluster.clone(), Arc::clone(&metrics));
        tasks.run_until_stop("watch", stores.feed(cluster, watch, move |kind, error| metrics.watch_lost(kind, error)));
    }
    let (leading_sender, leading) = watch::channel(None);
    let counted = Arc::clone(&metrics);
    let writes =
        LeaderClient::new(cluster.clone(), leading.clone(), Arc::new(move |verb, kind, fault| counted.requested(verb, kind, fault)));
    let context = Arc::new(context(&settings, &cluster, &stores, &writes, &metrics));
    tasks.run_until_stop("credentials", default_control_plane::follow(settings.control.clone(), stores.clone()));
    tasks.run_until_stop("everything", everything(stores.clone(), Arc::clone(&metrics), leading));
    let process = identity(&settings);
    if settings.failover {
        let (process, node) = (process.clone(), settings.node.as_deref());
        let failover = Failover::new(&cluster, stores.clone(), writes.clone(), &metrics, process, node);
        tasks.run_forever("failover", failover.run(tasks.stop()));
    }
    if let Some(address) = settings.admin_addr {
        let (controls, heartbeats) = (Arc::clone(&context.controls), tasks.heartbeats());
        let sources = Arc::new(http::AdminSources { stores, writes, metrics, controls, heartbeats });
        tasks.run_forever("http", http::serve(address, sources, tasks.stop()));
    }
    let (done, workers_done) = watch::channel(());
    for _ in 0..settings.workers {
        tasks.run_forever("worker", work(queue.clone(), Arc::clone(&context), tasks.stop(), done.clone()));
    }
    drop(done);
    let candidate = LeaseCandidate::new(process, None, LeaseTerms::RECONCILER);
    let (request, requested) = watch::channel(None);
    tasks.run_until_stop("uninstall", uninstall::follow(context, requested));
    let election = Lease::new(cluster, LEASE, candidate).following(names::UNINSTALL, request);
    let publish = move |now| {
        leading_sender.send_replace(now);
    };
    tasks.run_forever("lease", election.hold(watch::channel(Some(())).1, publish, finished(workers_done)));
    let stopper = tasks.stopper();
    tasks.run_forever("leave", async move {
        shutdown.requested().await;
        queue.close();
        stopper.stop();
    });
    tasks.run(GRACE).await?;
    Ok(())
}

/// Whether the objects of a role are watched: those of kinds that are off by default only if they are on.
fn is_served(role: WatchRole, settings: &Settings) -> bool {
    match role {
        WatchRole::Connector => settings.connectors,
        WatchRole::DnsConfig | WatchRole::Owned(Kind::Deployment) => settings.dns_configs,
        WatchRole::GroupPolicy | WatchRole::Owned(Kind::AdmissionPolicy | Kind::AdmissionBinding) => settings.group_policies,
        _ => true,
    }
}

/// Processes the queue until it is closed. Holds `_done` meanwhile: the Lease is released after the last worker.
async fn work(queue: Queue<WorkKey>, context: Arc<Context>, stop: Stop, _done: watch::Sender<()>) {
    while let Some(taken) = queue.next().await {
        let ended = context.work(taken.key().clone()).await;
        taken.end(ended);
    }
    // A queue that closes before the stop must not end this task.
    stop.requested().await;
}

/// Ends when all senders are dropped.
async fn finished(mut done: watch::Receiver<()>) {
    while done.changed().await.is_ok() {}
}

/// Enqueues everything when a term of this process begins with a complete cache, and at each resync.
async fn everything(stores: Stores, metrics: Arc<Metrics>, leading: watch::Receiver<Option<Leading>>) {
    stores.synced().await;
    let enqueue = || {
        let keys = stores.cache().all();
        let workload = |key: &WorkKey| if let WorkKey::Workload(key) = key { Some(key.clone()) } else { None };
        metrics.ingress.retain(&keys.iter().filter_map(workload).collect());
        for key in keys {
            stores.queue().add(key);
        }
    };
    in_each_term(leading, enqueue).await;
}

/// Calls `enqueue` once in each term, however short the time between two terms, and again every [`RESYNC_INTERVAL`].
async fn in_each_term(mut leading: watch::Receiver<Option<Leading>>, mut enqueue: impl FnMut()) {
    let mut term = None;
    loop {
        let next = leading.wait_for(|now| now.is_some_and(|now| Some(now.since) != term)).await;
        let Ok(began) = next.map(|now| now.map(|now| now.since)) else { return };
        term = began;
        enqueue();
        tokio::select! {
            ended = leading.wait_for(|now| now.map(|now| now.since) != term) => if ended.is_err() { return },
            () = sleep(RESYNC_INTERVAL) => term = None,
        }
    }
}

fn context(settings: &Settings, cluster: &Cluster, stores: &Stores, writes: &LeaderClient, metrics: &Arc<Metrics>) -> Context {
    let controls = Arc::new(ControlPlanes::new(settings.control.credentials.is_some()));
    let resolver = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let domain = settings.cluster_domain.clone().or_else(|| cluster_domain(&resolver, cluster.namespace()));
    let usual = settings.workloads.clone();
    let cluster_domain = domain.unwrap_or(usual.cluster_domain);
    let workloads = GroupSettings { namespace: cluster.namespace().to_owned(), cluster_domain, ..usual };
    let process = settings.name.clone().unwrap_or_else(|| LEASE.to_owned());
    let events = EventWriter::new(writes.clone(), names::EVENT_CONTROLLER, process, metrics.drop_observer());
    Context {
        stores: stores.clone(),
        actor: Applier::new(writes.clone(), events, stores.clone(), Arc::clone(&controls), Arc::clone(metrics)),
        controls,
        tokens: TailnetTokens::new(cluster.clone(), settings.service_account.clone(), settings.control.ca.clone()),
        control: settings.control.clone(),
        operator_device: settings.operator_device.clone(),
        operator_secret: settings.operator_secret.clone(),
        policy_rules: PolicyRules {
            reconciler: format!("system:serviceaccount:{}:{}", cluster.namespace(), settings.service_account),
            ingress_class: settings.ingress_class.clone(),
        },
        unserved: std::sync::Mutex::default(),
        settings: Arc::new(workloads),
        memories: Mutex::default(),
        replacements: Mutex::default(),
        metrics: Arc::clone(metrics),
        cluster: cluster.clone(),
        cluster_id: tokio::sync::OnceCell::new(),
    }
}

async fn cluster(settings: &Settings) -> Result<Cluster, KubeError> {
    let server = settings.kube.as_ref().map(|kube| &*kube.server);
    let cluster = Cluster::connect(settings.kubeconfig.as_deref(), server).await?;
    Ok(match &settings.namespace {
        Some(namespace) => cluster.within(namespace),
        None => cluster,
    })
}

/// Unique name of this process: a restarted container is another candidate.
fn identity(settings: &Settings) -> String {
    let name = settings.name.as_deref().unwrap_or(LEASE);
    format!("{name}_{:08x}", fastrand::u32(..))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::Instant;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn lead(sender: &watch::Sender<Option<Leading>>, since: Instant) {
        sender.send_replace(Some(Leading { since, until: Instant::now() + SECOND }));
    }

    #[tokio::test(start_paused = true)]
    async fn each_term_begins_with_everything() {
        let (sender, leading) = watch::channel(None);
        let count = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&count);
        let running = tokio::spawn(in_each_term(leading, move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        let after_a_second = async || {
            sleep(SECOND).await;
            count.load(Ordering::Relaxed)
        };
        assert_eq!(after_a_second().await, 0);
        let first = Instant::now();
        lead(&sender, first);
        assert_eq!(after_a_second().await, 1);
        lead(&sender, first);
        assert_eq!(after_a_second().await, 1, "a renewal is no term");
        // The other task runs after both.
        sender.send_replace(None);
        lead(&sender, Instant::now());
        assert_eq!(after_a_second().await, 2, "another term");
        sleep(RESYNC_INTERVAL).await;
        assert_eq!(after_a_second().await, 3, "a resync");
        drop(sender);
        running.await.expect("it ends with the election");
    }
}
