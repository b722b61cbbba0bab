//! Leader election by a Lease: of the reconcilers, and of the replicas of a group that order certificates.
//!
//! [`crate::model::base::leader`] decides. This loop reads the Lease, writes it conditional on the version that was read, and publishes the
//! outcome. A leader that cannot renew is published as stopped before another candidate can take the Lease.

use std::future::{Future, ready};
use std::pin::pin;
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt, pending};
use k8s_openapi::api::coordination::v1::{Lease as Object, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::{ApiRefusal, CALL_TIMEOUT, Cluster, KubeError, ObjectEvent, Verb, limited, within};
use crate::api::names::{ISSUER_ASKED, POD_FIELD_MANAGER, RECONCILER_FIELD_MANAGER};
use crate::model::base::backoff::Backoff;
use crate::model::base::leader::{LeaseCandidate, LeaseRecord, LeaseStep};

/// Pause before the next attempt after another candidate wrote the Lease first.
const CONFLICT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Leadership of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leading {
    /// Start of this term. Leadership that was lost and taken again is another term.
    pub since: Instant,
    /// No write is sent after this time, and none whose response may arrive later.
    pub until: Instant,
}

/// Candidate for a Lease in the client's namespace.
#[derive(Debug)]
pub struct Lease {
    cluster: Cluster,
    name: String,
    candidate: LeaseCandidate,
    /// Whether a watch wakes the candidate when the holder changes.
    watched: bool,
    /// Secret whose owner references are copied to the Lease, so that both are deleted together; without any, the Secret owns it.
    owned_like: Option<String>,
    /// Followed annotation of the Lease.
    annotation: Option<(&'static str, watch::Sender<Option<String>>)>,
    leading: Option<Leading>,
    logged: Option<&'static str>,
}

impl Lease {
    pub fn new(cluster: Cluster, name: impl Into<String>, candidate: LeaseCandidate) -> Self {
        Self { cluster, name: name.into(), candidate, watched: false, owned_like: None, annotation: None, leading: None, logged: None }
    }

    /// Copies the owner references of this Secret to the Lease; one without any owns the Lease.
    #[must_use]
    pub fn owned_like(self, secret: impl Into<String>) -> Self {
        Self { owned_like: Some(secret.into()), ..self }
    }

    /// Publishes the value of an annotation of the Lease, as it is at each read and write. A deleted Lease changes nothing.
    #[must_use]
    pub fn following(self, annotation: &'static str, value: watch::Sender<Option<String>>) -> Self {
        Self { annotation: Some((annotation, value)), ..self }
    }

    /// Watches the Lease, so that a change of the holder is noticed at once; needs `list` and `watch` on it. Without these rights it is read
    /// at each interval, as without the watch.
    #[must_use]
    pub fn watched(self) -> Self {
        Self { watched: true, ..self }
    }

    /// Runs the election until `stop`: leads when possible while `eligible` has a value, and publishes changes. Then releases the Lease, so
    /// that another candidate can lead at once.
    pub async fn hold<T: Send + Sync>(
        mut self,
        mut eligible: watch::Receiver<Option<T>>,
        mut publish: impl FnMut(Option<Leading>) + Send,
        stop: impl Future<Output = ()> + Send,
    ) {
        let mut stop = pin!(stop);
        let mut changes = self.holder_changes();
        loop {
            let is_able = eligible.borrow_and_update().is_some();
            let again = tokio::select! {
                again = self.turn(is_able) => again,
                () = &mut stop => break,
            };
            publish(self.now_leading(is_able));
            let again = self.leading.map_or(again, |leading| again.min(leading.until));
            tokio::select! {
                () = sleep_until(again) => {}
                Ok(_) = eligible.wait_for(|eligible| eligible.is_some() != is_able) => {}
                Some(()) = changes.next() => {}
                () = &mut stop => break,
            }
            // Leadership may have expired meanwhile: this is published before the next call.
            publish(self.now_leading(is_able));
        }
        publish(None);
        if let Err(error) = self.release().await {
            tracing::warn!(reason = error.reason(), "cannot release the lease; another replica leads once it expires: {error}");
        }
    }

    /// Changes of the holder, by the watch.
    fn holder_changes(&self) -> BoxStream<'static, ()> {
        if !self.watched {
            return pending().boxed();
        }
        let mut last = None;
        let change = move |event: ObjectEvent<Option<String>>| {
            let (holder, before) = match event {
                ObjectEvent::Current(holder) => (Some(holder.clone()), last.replace(holder)),
                ObjectEvent::Gone => (None, last.take()),
                ObjectEvent::Live | ObjectEvent::Lost(_) => return ready(None),
            };
            ready((holder != before).then_some(()))
        };
        self.cluster.watch_lease_holder(&self.name, Backoff::WATCH).filter_map(change).boxed()
    }

    /// Releases the Lease, if it is this candidate's. `stop` may have interrupted a renewal that the API server applied: after a conflict
    /// the Lease is read.
    async fn release(&mut self) -> Result<(), KubeError> {
        loop {
            let now = Instant::now().into_std();
            let (LeaseStep::Renew { transitions } | LeaseStep::Release { transitions }) = self.candidate.next(true, now) else {
                return Ok(());
            };
            if self.candidate.leading_until(now).is_none() {
                return Ok(());
            }
            match self.write(LeaseStep::Release { transitions }).await {
                Err(error) if error.refusal() == Some(ApiRefusal::Conflict) => self.read().await?,
                ended => return ended,
            }
        }
    }

    /// Runs one round of the election; returns the time of the next one.
    async fn turn(&mut self, eligible: bool) -> Instant {
        let begin = Instant::now();
        let again = begin + self.candidate.terms().retry_period;
        match self.attempt(eligible).await {
            Ok(wait) => {
                if self.logged.take().is_some() {
                    tracing::info!(lease = self.name, "lease requests succeed again");
                }
                wait.map_or(again, |wait| again.min(wait))
            }
            // Another candidate was faster.
            Err(error) if error.refusal() == Some(ApiRefusal::Conflict) => begin + CONFLICT_RETRY_DELAY,
            Err(error) => {
                if error.refusal() == Some(ApiRefusal::Forbidden) {
                    self.candidate.denied(Instant::now().into_std());
                }
                if self.logged.replace(error.reason()) != Some(error.reason()) {
                    tracing::warn!(lease = self.name, reason = error.reason(), "cannot take part in the leader election: {error}");
                }
                again
            }
        }
    }

    async fn attempt(&mut self, eligible: bool) -> Result<Option<Instant>, KubeError> {
        let now = Instant::now().into_std();
        let renews = matches!(self.candidate.next(eligible, now), LeaseStep::Renew { .. });
        if !renews || self.candidate.leading_until(now).is_none() {
            self.read().await?;
        }
        let step = self.candidate.next(eligible, Instant::now().into_std());
        if let LeaseStep::Wait(again) = step {
            return Ok(Some(again.into()));
        }
        let written = self.write(step).await;
        if let Err(error) = &written
            && matches!(error.refusal(), Some(ApiRefusal::Conflict | ApiRefusal::NotFound))
        {
            self.read().await?;
        }
        written.map(|()| None)
    }

    fn now_leading(&mut self, eligible: bool) -> Option<Leading> {
        let now = Instant::now();
        let until = self.candidate.leading_until(now.into_std()).filter(|_| eligible);
        let before = self.leading;
        let since = before.map_or(now, |before| before.since);
        self.leading = until.map(|until| Leading { since, until: until.into() });
        match (before, self.leading) {
            (None, Some(_)) => tracing::info!(lease = self.name, "became leader"),
            (Some(_), None) => tracing::warn!(lease = self.name, "lost leadership"),
            _ => {}
        }
        self.leading
    }

    async fn read(&mut self) -> Result<(), KubeError> {
        let found = self.call(Verb::Get, self.api().get_opt(&self.name)).await?;
        if let Some(found) = &found {
            self.publish_annotation(found);
        }
        self.candidate.observe(found.map(record), Instant::now().into_std());
        Ok(())
    }

    /// Creates the Lease, or patches only the fields that the step changes: the acquire time stays, and so do foreign labels and
    /// annotations.
    async fn write(&mut self, step: LeaseStep) -> Result<(), KubeError> {
        let sent = Instant::now();
        let time = Some(MicroTime(Timestamp::now()));
        let (holder, duration) = match step {
            LeaseStep::Release { .. } => ("", Duration::ZERO),
            _ => (self.candidate.name(), self.candidate.terms().lease_duration),
        };
        let takes = matches!(step, LeaseStep::Create | LeaseStep::Take { .. });
        let spec = LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: i32::try_from(duration.as_secs().max(1)).ok(),
            lease_transitions: Some(step.transitions()),
            acquire_time: time.clone().filter(|_| takes),
            renew_time: time,
            ..LeaseSpec::default()
        };
        let api = self.api();
        let written = if step == LeaseStep::Create {
            let metadata = ObjectMeta { name: Some(self.name.clone()), owner_references: self.owners().await?, ..ObjectMeta::default() };
            let parameters = PostParams { field_manager: Some(self.field_manager().to_owned()), ..PostParams::default() };
            let object = Object { metadata, spec: Some(spec) };
            self.call(Verb::Create, api.create(&parameters, &object)).await?
        } else {
            let requests = step == LeaseStep::RequestHandback;
            let handback = requests.then(|| self.candidate.name());
            let mut patch = json!({"metadata": {"resourceVersion": self.candidate.version(), "annotations": {ISSUER_ASKED: handback}}});
            if !requests {
                patch["spec"] = json!(spec);
            }
            let parameters = PatchParams { field_manager: Some(self.field_manager().to_owned()), ..PatchParams::default() };
            let written = self.call(Verb::Patch, api.patch(&self.name, &parameters, &Patch::Merge(patch))).await?;
            self.publish_annotation(&written);
            written
        };
        self.candidate.written(record(written), sent.into_std());
        if matches!(step, LeaseStep::Release { .. }) {
            self.leading = None;
            tracing::info!(lease = self.name, "released lease");
        }
        Ok(())
    }

    /// Only Leases of Pods have an owner.
    fn field_manager(&self) -> &'static str {
        if self.owned_like.is_some() { POD_FIELD_MANAGER } else { RECONCILER_FIELD_MANAGER }
    }

    fn publish_annotation(&self, object: &Object) {
        let Some((name, sender)) = &self.annotation else { return };
        let value = object.metadata.annotations.as_ref().and_then(|all| all.get(*name)).cloned();
        sender.send_if_modified(|published| std::mem::replace(published, value.clone()) != value);
    }

    async fn owners(&self) -> Result<Option<Vec<OwnerReference>>, KubeError> {
        let Some(secret) = &self.owned_like else { return Ok(None) };
        let state = within(|| self.cluster.call(Verb::Get, "Secret", secret), self.cluster.secrets().get_metadata_opt(secret)).await?;
        Ok(state.and_then(|state| state.metadata.owner_references.or_else(|| Some(vec![reference(secret, state.metadata.uid?)]))))
    }

    fn api(&self) -> Api<Object> {
        Api::namespaced(self.cluster.client.clone(), &self.cluster.namespace)
    }

    /// Runs a call with a timeout: two hanging calls end within the leader's trust time, and every call ends with leadership, so that its
    /// end is published first.
    async fn call<T>(&self, verb: Verb, work: impl Future<Output = kube::Result<T>>) -> Result<T, KubeError> {
        let now = Instant::now();
        let limit = now + CALL_TIMEOUT.min(self.candidate.terms().renew_deadline * 3 / 8);
        let ends = self.candidate.leading_until(now.into_std()).map_or(limit, |until| limit.min(until.into()));
        limited(ends - now, work).await.map_err(|fault| KubeError::Call { call: self.cluster.call(verb, "Lease", &self.name), fault })
    }
}

fn reference(secret: &str, uid: String) -> OwnerReference {
    let (api_version, kind, name) = ("v1".to_owned(), "Secret".to_owned(), secret.to_owned());
    OwnerReference { api_version, kind, name, uid, ..OwnerReference::default() }
}

pub(super) fn record(object: Object) -> LeaseRecord {
    let spec = object.spec.unwrap_or_default();
    let age = spec.renew_time.and_then(|time| Duration::try_from(Timestamp::now().duration_since(time.0)).ok());
    LeaseRecord {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(spec.lease_duration_seconds.and_then(|seconds| seconds.try_into().ok()).unwrap_or_default()),
        transitions: spec.lease_transitions.unwrap_or_default(),
        version: object.metadata.resource_version.unwrap_or_default(),
        handback: object.metadata.annotations.is_some_and(|all| all.contains_key(ISSUER_ASKED)),
        age: age.unwrap_or_default(),
    }
}
