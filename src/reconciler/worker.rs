//! Worker: takes a key from the queue, observes the cache, plans and applies.
//!
//! Works only while this process leads and the cache is synced; the next leader reconciles everything else.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::apply::{ActError, ApplyResult, PartialErrors};
use super::cache::{ControlPlaneView, WatchRole, WorkKey};
use super::context::Context;
use super::operator_device::TakeOver;
use super::{default_control_plane, group_policies, nameserver, operator_device, proxyclass, tailnets};
use crate::api::condition::reason;
use crate::api::proxygroup::ProxyGroup;
use crate::edge::kube::{ApiRefusal, KubeError, Resource};
use crate::model::controller::key::{PublishSource, Publisher, WorkloadKey};
use crate::model::controller::kinds;
use crate::model::controller::workload::actions::GroupPlan;
use crate::model::controller::workload::objects::{Kind, digest};
use crate::model::controller::workload::observed::Observed;
use crate::model::controller::workload::pace::Replacements;
use crate::model::controller::workload::proxy_state::ProxyState;
use crate::model::controller::workload::settings::GroupSettings;
use crate::model::controller::workload::vip_service::ServiceOwner;
use crate::runtime::queue::WorkOutcome;

/// Requeue delay after an incomplete pass.
const INCOMPLETE_REQUEUE: Duration = Duration::from_millis(10);
/// Interval of checks whether a foreign object still has the name of one of ours.
const NAME_CONFLICT_INTERVAL: Duration = Duration::from_secs(31);
/// Requeue delay after leadership has expired: by then it is renewed, or the next leader is known.
const NOT_LEADING_REQUEUE: Duration = Duration::from_secs(2);

/// Requeue delay of an Event that no condition replaces, beyond the rate of its namespace.
const EVENT_RATE_REQUEUE: Duration = Duration::from_mins(1);

/// Requeue delay while another workload gets a name that a plan gives.
const NAME_RESERVED_REQUEUE: Duration = Duration::from_secs(1);

impl Context {
    pub async fn work(&self, key: WorkKey) -> WorkOutcome {
        if !self.actor.writes().open() || !self.stores.is_synced() {
            // Each term begins with everything; within a term no key may be lost.
            return if self.actor.writes().in_term() { WorkOutcome::RequeueAfter(NOT_LEADING_REQUEUE) } else { WorkOutcome::Done };
        }
        let begin = Instant::now();
        let done = match &key {
            WorkKey::Workload(key) => self.workload(key).await,
            WorkKey::Class(name) => proxyclass::reconcile(self, name).await,
            WorkKey::Tailnet(name) => tailnets::reconcile(self, name).await,
            WorkKey::GroupPolicies(namespace) => group_policies::reconcile(self, namespace).await,
            WorkKey::Nameserver => nameserver::reconcile(self).await,
            WorkKey::DefaultControlPlane => {
                let outcome = default_control_plane::reconcile(self).await;
                operator_device::request(self).await.map(|()| outcome)
            }
            WorkKey::Annotations(publisher) => Ok(self.annotations(publisher).await),
        };
        self.metrics.reconciled(key.kind(), begin.elapsed(), done.as_ref().err().map(ActError::reason));
        match done {
            Ok(ended) => ended,
            Err(error) if error.is_not_leading() => WorkOutcome::RequeueAfter(NOT_LEADING_REQUEUE),
            Err(error) => {
                tracing::warn!(reason = error.reason(), kind = key.kind(), name = key.name(), "{error}");
                WorkOutcome::Retry(error.retry_after())
            }
        }
    }

    /// Identity of this cluster among those that share Tailscale Services: constant for the lifetime of the cluster.
    async fn owner(&self) -> Result<ServiceOwner, KubeError> {
        let usual = &self.settings.cluster;
        if !usual.id.is_empty() {
            return Ok(usual.clone());
        }
        let found = self.cluster_id.get_or_try_init(|| async {
            let found = self.cluster.look(Resource::NAMESPACE, None, "kube-system").await?;
            let uid = found.as_ref().and_then(|found| found["metadata"]["uid"].as_str()).unwrap_or_default();
            let place = format!("{uid}/{}", self.settings.namespace);
            Ok::<_, KubeError>(format!("tailyard-{}", &digest(place.as_bytes())[..16]))
        });
        Ok(ServiceOwner { id: found.await?.clone(), ..usual.clone() })
    }

    /// Reads user certificates of a group that have changed since the last read. A failed read is repeated in a later pass and blocks
    /// nothing.
    async fn read_certificates(&self, key: &WorkloadKey) {
        let unread = self.stores.cache().unread_certificates(key);
        for name in unread {
            match self.cluster.look(Resource::SECRET, Some(&self.settings.namespace), &name).await {
                Ok(Some(secret)) => self.stores.cache().read_certificate(&secret),
                Ok(None) => {}
                Err(error) => tracing::warn!(reason = error.reason(), secret = name, "cannot read a certificate: {error}"),
            }
        }
    }

    /// Logs once that a group's type is not served. Another operator may own the group, so its status is not written.
    fn log_unserved(&self, name: &str, group: Option<&ProxyGroup>) {
        let mut logged = self.unserved.lock().unwrap_or_else(PoisonError::into_inner);
        match group.filter(|group| !self.settings.types.contains(&group.spec.type_)) {
            Some(group) if logged.insert(name.to_owned()) => {
                let kind = &group.spec.type_;
                tracing::info!(group = name, ?kind, "ProxyGroup type is not managed; leaving it to the Tailscale operator");
            }
            Some(_) => {}
            None => drop(logged.remove(name)),
        }
    }

    /// Plans a pass. No other worker has this group meanwhile.
    fn pass(&self, key: &WorkloadKey, observed: &Observed) -> GroupPlan {
        let memories = || self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        let mut memory = memories().remove(key).unwrap_or_default();
        let pass = kinds::plan_with_memo(observed, &mut memory);
        self.replacements().record(key, pass.replaces);
        self.metrics.ingress.publishes(key, pass.summary.as_ref());
        if !memory.is_empty() {
            memories().insert(key.clone(), memory);
        }
        pass
    }

    fn replacements(&self) -> MutexGuard<'_, Replacements> {
        self.replacements.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports the annotations of a user's object that have no effect.
    async fn annotations(&self, publisher: &Publisher) -> WorkOutcome {
        let report = self.stores.cache().report_annotations(publisher);
        if let Some((uid, message)) = report {
            let Publisher { source, namespace, name } = publisher;
            let resource = if *source == PublishSource::Service { Resource::SERVICE } else { Resource::INGRESS };
            if !self.actor.try_warn(&resource.reference(namespace, name, uid), reason::INEFFECTIVE_ANNOTATION, &message).await {
                self.stores.cache().repeat_annotations(publisher);
                return WorkOutcome::RequeueAfter(EVENT_RATE_REQUEUE);
            }
        }
        WorkOutcome::Done
    }

    async fn workload(&self, key: &WorkloadKey) -> Result<WorkOutcome, ActError> {
        let cluster = self.owner().await?;
        self.read_certificates(key).await;
        let begin = Instant::now();
        let (mut observed, contested) = {
            let mut cache = self.stores.cache();
            let contested = cache.forget_foreign(key, Instant::now());
            let group = key.group().and_then(|name| cache.group(name));
            self.log_unserved(key.group_name(), group.as_deref());
            if cache.awaits_nodes(key) {
                // The list of nodes enqueues the workload again.
                return Ok(WorkOutcome::Done);
            }
            let tailnet = cache.tailnet_of(key).filter(|name| !name.is_empty());
            let there = tailnet.is_some_and(|tailnet| cache.tailnet(tailnet).is_some());
            let plane = ControlPlaneView {
                tailnet: self.controls.state(tailnet, there),
                denied: self.controls.denials(key),
                listed: self.controls.listed(tailnet),
                approved: self.controls.approved(tailnet),
                device_reads: self.controls.device_reads(tailnet),
            };
            let monitors = cache.has(WatchRole::Owned(Kind::ServiceMonitor));
            let settings = Arc::new(GroupSettings { service_monitors: monitors, cluster, ..(*self.settings).clone() });
            (cache.observe(key, settings, plane, Timestamp::now()), contested)
        };
        if observed.assignment.uninstall.is_some() {
            self.stores.cache().set_released(key, kinds::is_released(&observed));
        }
        match operator_device::take_over(self, &observed).await? {
            TakeOver::None => {}
            TakeOver::Done => return Ok(WorkOutcome::RequeueAfter(INCOMPLETE_REQUEUE)),
            TakeOver::Blocked(fault) => observed.takeover_fault = Some(fault),
        }
        observed.replacements = self.replacements().besides(key);
        let mut pass = self.pass(key, &observed);
        let is_reserved = {
            let mut cache = self.stores.cache();
            cache.record_refusals(key, std::mem::take(&mut pass.refused));
            cache.reserve_names(key, &pass.new_names, Instant::now())
        };
        if !is_reserved {
            return Ok(WorkOutcome::RequeueAfter(NAME_RESERVED_REQUEUE));
        }
        self.stores.paced(WorkKey::Workload(key.clone()), begin.elapsed());
        let contested = contested.then_some(NAME_CONFLICT_INTERVAL);
        self.apply(&observed, pass, contested).await
    }

    /// Applies a plan, and reports its faults and those of the API server. `contested`: time of a further pass for foreign objects.
    async fn apply(&self, observed: &Observed, mut pass: GroupPlan, contested: Option<Duration>) -> Result<WorkOutcome, ActError> {
        let again = pass.again;
        let (mut faults, mut proxy) = (std::mem::take(&mut pass.faults), pass.proxy.take());
        let setbacks = PartialErrors::default();
        let applied = self.actor.apply_plan(observed, pass, &setbacks).await;
        faults.extend(setbacks.take_faults());
        let mut reported = Ok(());
        // The API server would reject a retry as well: report it.
        if let Err(error @ ActError::Write(_)) = &applied
            && matches!(error.refusal(), Some(ApiRefusal::Invalid | ApiRefusal::Forbidden))
        {
            proxy = proxy.map(|state| state.max(ProxyState::Failed));
            reported = self.actor.refused(observed, &error.to_string()).await.map(|refused| faults.extend(refused));
        }
        self.metrics.ingress.proxy(&observed.key, proxy);
        let repeats = self.actor.report_faults(observed, faults).await;
        reported?;
        if applied? == ApplyResult::Incomplete {
            return Ok(WorkOutcome::RequeueAfter(INCOMPLETE_REQUEUE));
        }
        let soonest = again.into_iter().chain(contested).chain(repeats).min();
        Ok(soonest.map_or(WorkOutcome::Done, WorkOutcome::RequeueAfter))
    }
}
