//! Failover: probes all replicas, and makes the Pods of lost ones unready. [`crate::model::failover`] decides.
//!
//! Every process probes, leader or standby. The Lease [`LEASE`] makes one of them the writer of suspicions and marks; a process takes it
//! when it suspects a replica and releases it afterwards, so that nothing is written while all replicas answer. Each process removes notes
//! of replicas that it reaches without the Lease: that takes no replica out. The claim of the
//! lost active Pod of a standalone proxy passes to the waiting one before its Pod is made unready.

mod pair;
mod reports;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until};

use super::cache::WatchRole;
use super::informers::Stores;
use super::metrics::Metrics;
use crate::api::condition::reason;
use crate::api::failover::REACHABLE_PATH;
use crate::api::names;
use crate::edge::health_probe;
use crate::edge::kube::{Cluster, EventWriter, KubeError, LeaderClient, Leading, Lease, ObjectPart, Resource};
use crate::model::base::leader::{ClaimObserver, LeaseCandidate, LeaseTerms};
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::workload::objects::labels_of;
use crate::model::failover::{Detector, DetectorTurn, NoteStep, Observation, PROBE_TIMEOUT, PodChange, Probe, ReplicaPod};
use crate::runtime::tasks::Stop;

/// Lease of the process that makes Pods of lost replicas unready.
pub const LEASE: &str = "tailyard-failover";
const TURN_INTERVAL: Duration = Duration::from_millis(50);
/// The cache is read at each turn of this number: an objection to the suspicion of another process is due at once.
const TURNS_PER_READ: u32 = 2;
/// Interval of attempts to change Pods.
const CHANGE_INTERVAL: Duration = Duration::from_millis(300);
/// Marks whose Events wait to be written; further ones are in the log only.
const MAX_WAITING_EVENTS: usize = 1000;
/// End of a permission that does not end.
const ENDLESS_PERIOD: Duration = Duration::from_hours(24 * 365 * 30);
/// Pause after a request without response: it may still take effect, so another replica must not be marked before.
const UNKNOWN_OUTCOME_WAIT: Duration = LeaseTerms::FAILOVER.lease_duration.saturating_sub(LeaseTerms::FAILOVER.renew_deadline);

#[derive(Debug)]
pub struct Failover {
    detector: Mutex<Detector>,
    stores: Stores,
    cluster: Cluster,
    metrics: Arc<Metrics>,
    process: String,
    /// Writes while this process holds the failover Lease.
    writes: LeaderClient,
    /// Removes notes, at any time.
    withdrawals: LeaderClient,
    leading: watch::Sender<Option<Leading>>,
    /// Events about lost replicas.
    events: EventWriter,
    /// Events about replicas that answer again: all processes notice, the leader of the reconcilers writes.
    leader_events: EventWriter,
    /// Whether this process needs the Lease.
    wants_lease: watch::Sender<bool>,
    /// Leases of lost active Pods of standalone proxies.
    claims: Mutex<ClaimObserver>,
    /// Workloads with a replica to suspect or mark.
    suspected: watch::Sender<BTreeSet<WorkloadKey>>,
    /// Workloads with a note to remove.
    refuted: watch::Sender<BTreeSet<WorkloadKey>>,
    /// Reason of the last failure, logged once.
    logged: Mutex<Option<&'static str>>,
}

impl Failover {
    /// `leader` writes while this process leads the reconcilers. `node` is that of this process, if known.
    pub fn new(
        cluster: &Cluster,
        stores: Stores,
        leader: LeaderClient,
        metrics: &Arc<Metrics>,
        process: String,
        node: Option<&str>,
    ) -> Self {
        let leading = watch::Sender::new(None);
        let client = |leading| {
            let counted = Arc::clone(metrics);
            LeaderClient::new(cluster.clone(), leading, Arc::new(move |verb, kind, fault| counted.requested(verb, kind, fault)))
        };
        let writes = client(leading.subscribe());
        let since = tokio::time::Instant::now();
        let events = |writes: LeaderClient| EventWriter::new(writes, names::EVENT_CONTROLLER, process.clone(), metrics.drop_observer());
        Self {
            detector: Mutex::new(Detector::new(&process, node)),
            stores,
            cluster: cluster.clone(),
            withdrawals: client(watch::channel(Some(Leading { since, until: since + ENDLESS_PERIOD })).1),
            metrics: Arc::clone(metrics),
            events: events(writes.clone()),
            leader_events: events(leader),
            process,
            writes,
            leading,
            wants_lease: watch::Sender::new(false),
            claims: Mutex::default(),
            suspected: watch::Sender::default(),
            refuted: watch::Sender::default(),
            logged: Mutex::default(),
        }
    }

    /// Runs until the stop is requested, then releases the Lease.
    pub async fn run(self, stop: Stop) {
        let work = async {
            tokio::select! {
                () = self.probe() => {}
                () = self.mark_lost() => {}
                () = self.withdraw_notes() => {}
                () = stop.requested() => {}
            }
            self.wants_lease.send_replace(false);
        };
        tokio::join!(work, self.elect(&stop));
    }

    /// Sends probes and runs the detector.
    async fn probe(&self) {
        let mut ticks = interval(TURN_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut probes, mut notices) = (FuturesUnordered::new(), FuturesUnordered::new());
        let mut turns = 0_u32;
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    if turns.is_multiple_of(TURNS_PER_READ) {
                        notices.extend(self.observe().into_iter().map(|pod| self.report_return(pod)));
                    }
                    turns = turns.wrapping_add(1);
                    probes.extend(self.turn().into_iter().map(|probe| self.send(probe)));
                }
                Some(()) = probes.next() => {}
                Some(()) = notices.next() => {}
            }
        }
    }

    /// Reads the cache. Returns lost replicas that answer again.
    fn observe(&self) -> Vec<ReplicaPod> {
        let pods = self.stores.cache().replica_pods();
        let Observation { returned, disputed } = self.detector().observe(pods, now());
        for ReplicaPod { workload, name, node, .. } in disputed {
            self.metrics.disputed(&workload.label());
            let what = "replica does not answer this process, but another reconciler reaches it: its Pod stays ready; check the network";
            tracing::warn!(proxygroup = workload.label(), pod = name, node, "{what}");
        }
        returned
    }

    fn turn(&self) -> Vec<Probe> {
        let DetectorTurn { probes, suspected, refuted, wants_lease, paused } = self.detector().turn(now());
        if let Some(paused) = paused {
            tracing::info!(?paused, "this process did not run; missed health probes of replicas are discarded");
        }
        self.wants_lease.send_if_modified(|wants| std::mem::replace(wants, wants_lease) != wants_lease);
        for (sender, workloads) in [(&self.suspected, suspected), (&self.refuted, refuted)] {
            sender.send_if_modified(|before| {
                let is_changed = *before != workloads;
                *before = workloads;
                is_changed
            });
        }
        probes
    }

    async fn send(&self, probe: Probe) {
        let sent = now();
        let path = if probe.is_proof { REACHABLE_PATH } else { "/livez" };
        let answered = health_probe::answers(probe.target, path, PROBE_TIMEOUT).await;
        self.metrics.probed(answered);
        self.detector().record(&probe.uid, sent, answered, now());
    }

    /// Holds the Lease while this process needs it, until the stop is requested.
    async fn elect(&self, stop: &Stop) {
        let mut wants_lease = self.wants_lease.subscribe();
        loop {
            tokio::select! {
                biased;
                () = stop.requested() => return,
                _ = wants_lease.wait_for(|wants| *wants) => {}
            }
            let candidate = LeaseCandidate::new(self.process.clone(), None, LeaseTerms::FAILOVER);
            let mut still_wanted = wants_lease.clone();
            let ended = async {
                tokio::select! {
                    _ = still_wanted.wait_for(|wants| !*wants) => {}
                    () = stop.requested() => {}
                }
            };
            let publish = |leading| {
                self.leading.send_replace(leading);
            };
            Lease::new(self.cluster.clone(), LEASE, candidate).hold(watch::channel(Some(())).1, publish, ended).await;
        }
    }

    /// Makes Pods of lost replicas unready while this process holds the Lease.
    async fn mark_lost(&self) {
        let (marked, marks) = mpsc::channel(MAX_WAITING_EVENTS);
        reports::report_beside(self.mark_suspected(marked), marks, |pod| self.report_loss(pod)).await;
    }

    async fn mark_suspected(&self, marked: mpsc::Sender<ReplicaPod>) {
        let (mut suspected, mut leading) = (self.suspected.subscribe(), self.leading.subscribe());
        while suspected.wait_for(|workloads| !workloads.is_empty()).await.is_ok() && leading.wait_for(Option::is_some).await.is_ok() {
            let again = tokio::time::Instant::now() + CHANGE_INTERVAL;
            let workloads = self.suspected.borrow().clone();
            let pauses = join_all(workloads.iter().map(|workload| self.attempt(workload, marked.clone()))).await;
            sleep_until(again).await;
            sleep(pauses.into_iter().max().unwrap_or_default()).await;
        }
    }

    /// Removes notes of replicas that this process reaches.
    async fn withdraw_notes(&self) {
        let mut refuted = self.refuted.subscribe();
        while refuted.wait_for(|workloads| !workloads.is_empty()).await.is_ok() {
            let workloads = self.refuted.borrow().clone();
            join_all(workloads.iter().map(|workload| self.withdraw(workload))).await;
            sleep(CHANGE_INTERVAL).await;
        }
    }

    async fn withdraw(&self, workload: &WorkloadKey) {
        loop {
            match self.withdraw_next(workload).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    return tracing::warn!(
                        proxygroup = workload.label(),
                        reason = error.reason(),
                        "cannot remove the note of a replica: {error}"
                    );
                }
            }
        }
    }

    /// Removes the note of one replica, if there is one to remove.
    async fn withdraw_next(&self, workload: &WorkloadKey) -> Result<bool, KubeError> {
        let pods = self.pods(&self.withdrawals, workload).await?;
        let change = self.detector().withdrawal(workload, pods, now());
        let Some(change) = change else { return Ok(false) };
        match self.write(&self.withdrawals, &change).await {
            Err(error) if error.refused() => return Ok(false),
            done => done?,
        }
        let ReplicaPod { name, node, .. } = &change.pod;
        tracing::info!(proxygroup = workload.label(), pod = name, node, "removed the note that the replica is unreachable");
        Ok(true)
    }

    /// Changes Pods of a workload; returns the minimum pause before the next attempt.
    async fn attempt(&self, workload: &WorkloadKey, marked: mpsc::Sender<ReplicaPod>) -> Duration {
        let done = self.mark(workload, &marked).await;
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let Err(error) = done else {
            *logged = None;
            return Duration::ZERO;
        };
        if logged.replace(error.reason()) != Some(error.reason()) {
            tracing::warn!(
                proxygroup = workload.label(),
                reason = error.reason(),
                "cannot make the Pod of a lost replica unready: {error}"
            );
        }
        let is_known = error.refused() || matches!(error, KubeError::NotLeading { .. });
        if is_known { Duration::ZERO } else { UNKNOWN_OUTCOME_WAIT }
    }

    /// Suspects or marks replicas of a workload; sends new marks.
    async fn mark(&self, workload: &WorkloadKey, marked: &mpsc::Sender<ReplicaPod>) -> Result<(), KubeError> {
        while let Some(change) = self.mark_next(workload).await? {
            if change.is_first_mark() {
                // The log has the mark in any case.
                let _ = marked.try_send(change.pod);
            }
        }
        Ok(())
    }

    /// Reads the Pods of a workload, and changes one. Each change is confirmed by Pods read after the change before.
    async fn mark_next(&self, workload: &WorkloadKey) -> Result<Option<PodChange>, KubeError> {
        let (begun, is_standalone) = (now(), workload.is_standalone());
        let pods = self.pods(&self.writes, workload).await?;
        let others = if is_standalone { pods.clone() } else { Vec::new() };
        let change = self.detector().confirm(workload, pods, begun, now());
        let Some(change) = change else { return Ok(None) };
        if is_standalone && !self.pass_claim(&change.pod, &others).await? {
            return Ok(None);
        }
        self.write(&self.writes, &change).await?;
        let (ReplicaPod { uid, name, node, .. }, silence) = (&change.pod, change.silence);
        match change.step {
            NoteStep::Suspect => {
                self.detector().suspected(uid, now());
                tracing::info!(proxygroup = workload.label(), pod = name, node, ?silence, "replica does not answer health probes");
            }
            NoteStep::MakeUnready => {
                if is_standalone {
                    self.detector().suspected(uid, now());
                }
                self.metrics.made_unready(&workload.label());
                tracing::warn!(
                    proxygroup = workload.label(),
                    pod = name,
                    node,
                    ?silence,
                    "replica lost: no answer to health probes; made its Pod unready"
                );
            }
            NoteStep::Renew | NoteStep::Withdraw { .. } => {}
        }
        Ok(Some(change))
    }

    /// Pods of a workload, as the API server has them now.
    async fn pods(&self, client: &LeaderClient, workload: &WorkloadKey) -> Result<Vec<Value>, KubeError> {
        let labels: Vec<_> = labels_of(workload).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        client.list(Resource::POD, self.cluster.namespace(), &labels.join(",")).await
    }

    async fn write(&self, client: &LeaderClient, change: &PodChange) -> Result<(), KubeError> {
        let patch = change.patch(&self.process, Timestamp::now());
        let pod = client.merge(Resource::POD, self.cluster.namespace(), &change.pod.name, ObjectPart::Status, &patch).await?;
        self.stores.assume(WatchRole::Pod, pod).await;
        Ok(())
    }

    async fn report_loss(&self, pod: ReplicaPod) {
        let ReplicaPod { name, node, workload, .. } = &pod;
        let effect = if workload.is_standalone() { "the waiting Pod takes over" } else { "made its Pod unready" };
        let message = format!("replica {name} on node {node} does not answer health probes: {effect}");
        self.report(&self.events, workload, true, reason::REPLICA_LOST, &message).await;
    }

    async fn report_return(&self, pod: ReplicaPod) {
        let ReplicaPod { name, node, workload, .. } = &pod;
        tracing::info!(proxygroup = workload.label(), pod = name, node, "lost replica answers health probes again");
        let message = format!("replica {name} on node {node} answers health probes again");
        self.report(&self.leader_events, workload, false, reason::REPLICA_REACHABLE, &message).await;
    }

    /// Writes an Event about the object of a workload.
    async fn report(&self, events: &EventWriter, workload: &WorkloadKey, warning: bool, reason: &'static str, message: &str) {
        let kind = match workload {
            WorkloadKey::ProxyGroup(_) => Resource::PROXY_GROUP,
            WorkloadKey::Connector(_) => Resource::CONNECTOR,
            WorkloadKey::Service(..) => Resource::SERVICE,
            WorkloadKey::Ingress(..) => Resource::INGRESS,
        };
        let about = kind.reference(workload.namespace(), workload.name(), self.stores.cache().uid(workload));
        match events.write_event(&about, warning, reason, message).await {
            Ok(()) | Err(KubeError::NotLeading { .. }) => {}
            Err(error) => tracing::warn!(reason = error.reason(), "cannot write an Event: {error}"),
        }
    }

    fn detector(&self) -> MutexGuard<'_, Detector> {
        self.detector.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claims(&self) -> MutexGuard<'_, ClaimObserver> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
