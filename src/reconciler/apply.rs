//! Applies a plan in safe order, and puts the API server's responses into the cache.
//!
//! Stops at the first failed step: the pass is retried with the state at that time. A rejected Service does not affect others, and an
//! unavailable control plane only what depends on it.

use crate::model::controller::key::WorkloadKey;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{StreamExt, iter};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::cache::{Id, WatchRole, parent};
use super::control_plane::{ControlPlanes, Denied};
use super::informers::Stores;
use super::metrics::Metrics;
use crate::api::condition::{PROXY_GROUP_READY, reason};
use crate::api::names::ENDPOINTS;
use crate::edge::kube::{ApiRefusal, EventWriter, KubeError, LeaderClient, ObjectPart, Resource};
use crate::model::base::conditions::{self, ConditionStatus, DesiredCondition};
use crate::model::controller::kinds::connector;
use crate::model::controller::kinds::standalone::rejected;
use crate::model::controller::workload::actions::{Delete, GroupPlan, GroupUpdate, Notice, WorkloadStatus};
use crate::model::controller::workload::event_schedule::EventSchedule;
use crate::model::controller::workload::finalizers;
use crate::model::controller::workload::objects::nodeport::held_ports;
use crate::model::controller::workload::objects::{Kind, Manifest, applied};
use crate::model::controller::workload::observed::Observed;

use services::{UsersObjects, When};
pub use setbacks::PartialErrors;

mod change_log;
mod control_actions;
mod events;
mod services;
mod setbacks;
mod slices;

/// Fields of the statuses of our kinds that may be absent.
const STATUS_FIELDS: [&str; 8] = ["conditions", "devices", "hostname", "isAppConnector", "isExitNode", "subnetRoutes", "tailnetIPs", "url"];
/// Maximum concurrent writes of one kind.
const AT_ONCE: usize = 16;

/// A plan was not applied completely.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// The API rejected a write or is unavailable.
    #[error(transparent)]
    Write(#[from] KubeError),
    /// The API rejected a write for one Service; everything else is applied.
    #[error(transparent)]
    Service(KubeError),
    /// The control plane denied a request or is unavailable.
    #[error(transparent)]
    Control(#[from] Denied),
}

impl ActError {
    /// Metric label and Event reason; closed set.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Write(error) | Self::Service(error) => error.reason(),
            Self::Control(error) => error.reason(),
        }
    }

    /// The API server's rejection; `None` for other failures.
    pub fn refusal(&self) -> Option<ApiRefusal> {
        match self {
            Self::Write(error) | Self::Service(error) => error.refusal(),
            Self::Control(_) => None,
        }
    }

    /// Whether nothing was sent because this process does not lead.
    pub fn is_not_leading(&self) -> bool {
        matches!(self, Self::Write(KubeError::NotLeading { .. }) | Self::Service(KubeError::NotLeading { .. }))
    }

    /// Minimum retry delay requested by the server, if any.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Write(_) | Self::Service(_) => None,
            Self::Control(error) => error.retry_after(),
        }
    }
}

/// Result of a pass without error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplyResult {
    Done,
    /// The next pass is due at once: an object that the cache lacked was in the way, the control plane has changed, or slices remain.
    Incomplete,
}

/// Applies plans.
#[derive(Debug)]
pub struct Applier {
    writes: LeaderClient,
    events: EventWriter,
    stores: Stores,
    controls: Arc<ControlPlanes>,
    metrics: Arc<Metrics>,
    /// Emitted Events about lasting faults, since [`Self::begin`].
    schedule: Mutex<EventSchedule>,
    begin: Instant,
}

impl Applier {
    /// Creates an applier with this client.
    pub fn new(writes: LeaderClient, events: EventWriter, stores: Stores, controls: Arc<ControlPlanes>, metrics: Arc<Metrics>) -> Self {
        Self { writes, events, stores, controls, metrics, schedule: Mutex::default(), begin: Instant::now() }
    }

    pub fn writes(&self) -> &LeaderClient {
        &self.writes
    }

    /// Applies a plan. Errors of single Services are set aside.
    pub async fn apply_plan(&self, observed: &Observed, pass: GroupPlan, setbacks: &PartialErrors) -> Result<ApplyResult, ActError> {
        let update = pass.group.unwrap_or_default();
        let (added, dropped) =
            update.finalizers.as_ref().map_or((None, None), |all| if has_finalizer(all) { (Some(all), None) } else { (None, Some(all)) });
        if let Some(finalizers) = added
            && !self.group_finalizers(observed, finalizers).await?
        {
            return Ok(ApplyResult::Incomplete);
        }
        let objects = UsersObjects::new(observed);
        self.services(&pass.services, &objects, When::Before, setbacks).await?;
        if self.apply(&observed.key, pass.apply, setbacks).await? == ApplyResult::Incomplete {
            return Ok(ApplyResult::Incomplete);
        }
        let more_slices = self.slices(pass.slices).await?;
        self.services(&pass.services, &objects, When::Between, setbacks).await?;
        for run in runs(pass.delete, |delete: &Delete| delete.object.kind) {
            at_once(run.into_iter().map(|delete| self.delete_apart(delete, setbacks).boxed()).collect()).await?;
        }
        let (denied, requeue) = self.control(observed, pass.control).await?;
        self.services(&pass.services, &objects, When::After, setbacks).await?;
        // Passes for a deleted group release its objects as well: one that others write without end holds it for minutes only.
        let is_free = objects.are_complete() || observed.deletion_deadline_passed();
        if let Some(finalizers) = dropped.filter(|_| denied.is_none() && is_free) {
            self.group_finalizers(observed, finalizers).await?;
        }
        self.group_status(observed, &update).await?;
        self.write_events(observed, pass.events).await;
        denied
            .map_or(Ok(()), |denied| Err(denied.into()))
            .and(setbacks.end())
            .map(|()| if requeue || more_slices || objects.remain() { ApplyResult::Incomplete } else { ApplyResult::Done })
    }

    /// Reports an API rejection in the condition of the group, Connector or standalone Service, unless reported already. Returns that of a standalone
    /// Ingress as a fault.
    pub async fn refused(&self, observed: &Observed, why: &str) -> Result<Vec<Notice>, KubeError> {
        if observed.key.is_standalone() {
            let GroupPlan { services, events, faults, .. } = rejected(observed, why);
            self.services(&services, &UsersObjects::new(observed), When::Between, &PartialErrors::default()).await?;
            self.write_events(observed, events).await;
            return Ok(faults);
        }
        if observed.connector.is_some() {
            let GroupPlan { group, events, .. } = connector::rejected(observed, why);
            self.group_status(observed, &group.unwrap_or_default()).await?;
            self.write_events(observed, events).await;
            return Ok(Vec::new());
        }
        let Some(group) = &observed.group else { return Ok(Vec::new()) };
        let mut status = group.status.clone().unwrap_or_default();
        let generation = group.metadata.generation.unwrap_or_default();
        let (reason, message) = (reason::PROXY_GROUP_CREATION_FAILED, why.to_owned());
        let wanted =
            DesiredCondition { kind: PROXY_GROUP_READY, status: ConditionStatus::False, reason, message: message.clone(), generation };
        if !conditions::set(&mut status.conditions, &wanted, observed.now) {
            return Ok(Vec::new());
        }
        self.group_status(observed, &GroupUpdate { status: Some(WorkloadStatus::Group(status)), ..GroupUpdate::default() }).await?;
        self.write_events(observed, vec![Notice { subject: observed.key.clone(), warning: true, reason, message }]).await;
        Ok(Vec::new())
    }

    /// Counts the lasting faults and writes their Events that are due, whether or not the rest of their plan was applied. Returns the time
    /// until the next Event.
    pub async fn report_faults(&self, observed: &Observed, faults: Vec<Notice>) -> Option<Duration> {
        self.metrics.ingress.faults(&observed.key, &faults);
        if !self.writes.open() {
            return None;
        }
        let mut due = self.schedule.lock().unwrap_or_else(PoisonError::into_inner).due(&observed.key, faults, self.begin.elapsed());
        due.notices.retain(|notice| notice.reason != reason::FAULT_RESOLVED || self.live_uid(&notice.subject).is_some());
        change_log::faults(&due.new);
        self.write_due_events(observed, due.notices).await;
        due.next
    }

    /// Changes one object or its status by a merge patch, with the preconditions that the patch names. Returns whether it still exists.
    pub(super) async fn patch(
        &self,
        kind: (Resource, WatchRole),
        id: (&str, &str),
        part: ObjectPart,
        patch: &Value,
    ) -> Result<bool, KubeError> {
        let Some(value) = self.merge(kind.0, id, part, patch).await? else { return Ok(false) };
        self.stores.assume(kind.1, value).await;
        Ok(true)
    }

    /// As [`Self::patch`], but stores nothing: returns the changed object, if it still exists.
    async fn merge(
        &self,
        resource: Resource,
        (namespace, name): (&str, &str),
        part: ObjectPart,
        patch: &Value,
    ) -> Result<Option<Value>, KubeError> {
        match self.writes.merge(resource, namespace, name, part, patch).await {
            Err(error) if error.refusal() == Some(ApiRefusal::NotFound) => Ok(None),
            done => done.map(Some),
        }
    }

    /// Returns whether the group or Connector still exists.
    async fn group_finalizers(&self, observed: &Observed, finalizers: &[String]) -> Result<bool, KubeError> {
        let Some(metadata) = observed.metadata() else { return Ok(true) };
        let metadata = json!({"resourceVersion": metadata.resource_version, "finalizers": finalizers});
        let patch = json!({ "metadata": metadata });
        let exists = self.patch(cluster_scoped(&observed.key), ("", observed.key.name()), ObjectPart::Object, &patch).await?;
        change_log::log(&observed.key, change_log::of_patch(&patch, &[], has_finalizer(finalizers)));
        Ok(exists)
    }

    async fn group_status(&self, observed: &Observed, update: &GroupUpdate) -> Result<(), KubeError> {
        let Some(status) = &update.status else { return Ok(()) };
        let patch = json!({ "status": whole(status) });
        self.patch(cluster_scoped(&observed.key), ("", observed.key.name()), ObjectPart::Status, &patch).await?;
        let of_group = observed.group.as_ref().and_then(|group| group.status.as_ref()).map(|status| status.conditions.as_slice());
        let of_connector = || observed.connector.as_ref()?.status.as_ref().map(|status| status.conditions.as_slice());
        let before = of_group.or_else(of_connector);
        change_log::log(&observed.key, change_log::of_patch(&patch, before.unwrap_or_default(), false));
        Ok(())
    }

    async fn apply(&self, key: &WorkloadKey, manifests: Vec<Manifest>, setbacks: &PartialErrors) -> Result<ApplyResult, KubeError> {
        let surprised = AtomicBool::new(false);
        let one = async |manifest: Manifest| {
            let parent = parent(manifest.object.kind, &manifest.value).map(service);
            // Without it replicas use ClusterIPs.
            let apart = parent.or_else(|| {
                (manifest.object.kind == Kind::RoleBinding && manifest.object.name.starts_with(ENDPOINTS)).then(|| key.clone())
            });
            let done = self.apply_one(key, manifest).await;
            surprised.fetch_or(matches!(done, Ok(ApplyResult::Incomplete)), Ordering::Relaxed);
            match apart {
                Some(subject) => setbacks.record(subject, done.map(drop)),
                None => done.map(drop),
            }
        };
        for run in runs(manifests, |manifest: &Manifest| manifest.object.kind) {
            at_once(run.into_iter().map(|manifest| one(manifest).boxed()).collect()).await?;
        }
        Ok(if surprised.into_inner() { ApplyResult::Incomplete } else { ApplyResult::Done })
    }

    async fn apply_one(&self, key: &WorkloadKey, manifest: Manifest) -> Result<ApplyResult, KubeError> {
        let object = &manifest.object;
        let hash = applied(&manifest.value).unwrap_or_default().to_owned();
        {
            let mut cache = self.stores.cache();
            if cache.is_settled(object, &hash) {
                return Ok(ApplyResult::Done);
            }
            if !manifest.replaces() && cache.find(key, object, Instant::now()) {
                return Ok(ApplyResult::Incomplete);
            }
        }
        let replaces = manifest.replaces();
        let written = if replaces { self.writes.apply(&manifest).await } else { self.writes.create(&manifest).await };
        let object = object.clone();
        let value = match written {
            Err(error) if error.refusal() == Some(ApiRefusal::Invalid) && self.another_port(&manifest) => {
                return Ok(ApplyResult::Incomplete);
            }
            // An existing object without our labels is in no watch.
            Err(error) if error.refusal() == Some(ApiRefusal::Conflict) && !replaces => {
                let Some(found) = self.writes.look(object.kind.into(), &object.namespace, &object.name).await? else { return Err(error) };
                self.stores.found(key, object, found).await;
                return Ok(ApplyResult::Incomplete);
            }
            done => done?,
        };
        change_log::applied(key, &object, replaces);
        self.stores.applied(object.kind, value, hash).await;
        Ok(ApplyResult::Done)
    }

    async fn delete_apart(&self, delete: Delete, setbacks: &PartialErrors) -> Result<(), KubeError> {
        let parent = self.stores.cache().parent(&delete.object).map(service);
        let done = self.delete(delete).await;
        match parent {
            Some(subject) => setbacks.record(subject, done),
            None => done,
        }
    }

    /// Whether a rejected object had a node port, so that another may work.
    fn another_port(&self, manifest: &Manifest) -> bool {
        let ports = if manifest.object.kind == Kind::Service { held_ports(&manifest.value) } else { None };
        ports.is_some_and(|(_, port)| self.stores.cache().refused_port(port, Instant::now()))
    }

    async fn delete(&self, delete: Delete) -> Result<(), KubeError> {
        self.writes.delete(&delete).await?;
        change_log::deleted(&delete.object);
        self.stores.deleted(&delete.object, delete.uid.as_deref());
        Ok(())
    }
}

/// Kind of a group or Connector, which requests the workload of this key.
fn cluster_scoped(key: &WorkloadKey) -> (Resource, WatchRole) {
    match key {
        WorkloadKey::Connector(_) => (Resource::CONNECTOR, WatchRole::Connector),
        _ => (Resource::PROXY_GROUP, WatchRole::Group),
    }
}

/// Whether the finalizers include ours.
fn has_finalizer(finalizers: &[String]) -> bool {
    finalizers.iter().any(|name| finalizers::is_own(name))
}

/// Runs all with limited concurrency; returns the first failure after all have ended.
async fn at_once(all: Vec<BoxFuture<'_, Result<(), KubeError>>>) -> Result<(), KubeError> {
    let mut outcome = Ok(());
    let mut doing = iter(all).buffer_unordered(AT_ONCE);
    while let Some(done) = doing.next().await {
        outcome = outcome.and(done);
    }
    outcome
}

/// A status as a merge patch that also removes absent fields.
pub fn whole(status: &impl serde::Serialize) -> Value {
    let mut value = serde_json::to_value(status).unwrap_or_default();
    let fields = STATUS_FIELDS.map(|key| (key.to_owned(), Value::Null));
    let mut patch: Map<String, Value> = fields.into_iter().collect();
    patch.extend(value.as_object_mut().map(std::mem::take).unwrap_or_default());
    Value::Object(patch)
}

/// Splits a list where the kind changes: only items of one kind run concurrently.
fn runs<T, K: PartialEq>(all: Vec<T>, kind: impl Fn(&T) -> K) -> Vec<Vec<T>> {
    let mut runs: Vec<Vec<T>> = Vec::new();
    for one in all {
        match runs.last_mut().filter(|run| run.last().is_some_and(|last| kind(last) == kind(&one))) {
            Some(run) => run.push(one),
            None => runs.push(vec![one]),
        }
    }
    runs
}

fn service((namespace, name): Id) -> WorkloadKey {
    WorkloadKey::Service(namespace, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_adjacent_objects_of_one_kind_run_in_parallel() {
        assert_eq!(runs(vec![1, 1, 2, 1], |n| *n), [vec![1, 1], vec![2], vec![1]]);
        assert_eq!(runs(Vec::<u8>::new(), |n| *n), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn absent_status_fields_are_nulled() {
        let wanted = json!({"conditions": null, "devices": null, "hostname": null, "isAppConnector": null, "isExitNode": null,
            "subnetRoutes": null, "tailnetIPs": null, "url": "x"});
        assert_eq!(whole(&json!({"url": "x"})), wanted);
    }
}
