//! The Lease by which the reconcilers agree on one that writes.
//!
//! [`crate::model::controller::leader`] decides; here it is read, written with the version that was read, and the outcome published. A
//! leader that cannot renew is told to have stopped leading before the Lease can be anybody else's.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease as Object, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{ApiRefusal, CallFault, Cluster, KubeError, Verb};
use crate::model::controller::leader::{LeaseCandidate, LeaseRecord, LeaseStep};

/// A call takes no longer, so that one that hangs leaves time for another before the Lease runs out.
const CALL: Duration = Duration::from_secs(3);

/// This process leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leading {
    /// Nothing is written after this moment, and nothing is asked whose answer may come later.
    pub until: Instant,
}

/// A Lease of the cluster's namespace that this process would hold.
#[derive(Debug)]
pub struct Lease {
    cluster: Cluster,
    name: String,
    candidate: LeaseCandidate,
    logged: Option<&'static str>,
}

impl Lease {
    #[must_use]
    pub fn new(cluster: Cluster, name: impl Into<String>, candidate: LeaseCandidate) -> Self {
        Self { cluster, name: name.into(), candidate, logged: None }
    }

    /// Leads whenever it can and says so, until `stop`; then gives the Lease back, so that another leads at once.
    pub async fn hold(mut self, leading: watch::Sender<Option<Leading>>, stop: impl Future<Output = ()> + Send) {
        let mut stop = pin!(stop);
        loop {
            let again = tokio::select! {
                again = self.turn() => again,
                () = &mut stop => break,
            };
            self.publish(&leading);
            let again = leading.borrow().map_or(again, |leading| again.min(leading.until));
            tokio::select! {
                () = sleep_until(again) => {}
                () = &mut stop => break,
            }
            // Its time may have run out while it slept: then nobody is to wait for the next call to say so.
            self.publish(&leading);
        }
        leading.send_replace(None);
        self.give_back().await;
    }

    /// Looks and writes once; when to do so again.
    async fn turn(&mut self) -> Instant {
        let begin = Instant::now();
        let again = begin + self.candidate.terms().every;
        match self.attempt(begin).await {
            Ok(wait) => {
                if self.logged.take().is_some() {
                    tracing::info!(lease = self.name, "lease requests succeed again");
                }
                wait.map_or(again, |wait| again.min(wait))
            }
            Err(error) => {
                // Somebody was faster; what he wrote is seen in the next turn.
                if error.refusal() != Some(ApiRefusal::Conflict) && self.logged.replace(error.reason()) != Some(error.reason()) {
                    tracing::warn!(reason = error.reason(), "{error}");
                }
                again
            }
        }
    }

    async fn attempt(&mut self, begin: Instant) -> Result<Option<Instant>, KubeError> {
        if self.candidate.leads(begin.into_std()).is_none() {
            let record = self.read().await?;
            self.candidate.saw(record, Instant::now().into_std());
        }
        match self.candidate.next(Instant::now().into_std()) {
            LeaseStep::Create => self.write(self.candidate.name().to_owned(), 0, true).await?,
            step @ (LeaseStep::Take { transitions } | LeaseStep::Renew { transitions }) => {
                let takes = matches!(step, LeaseStep::Take { .. });
                let written = self.write(self.candidate.name().to_owned(), transitions, takes).await;
                if let Err(error) = written {
                    if matches!(error.refusal(), Some(ApiRefusal::Conflict | ApiRefusal::NotFound)) {
                        let record = self.read().await?;
                        self.candidate.saw(record, Instant::now().into_std());
                    }
                    return Err(error);
                }
            }
            LeaseStep::Wait(ends) => return Ok(Some(ends.into())),
        }
        Ok(None)
    }

    fn publish(&self, leading: &watch::Sender<Option<Leading>>) {
        let now = self.candidate.leads(Instant::now().into_std()).map(|until| Leading { until: until.into() });
        let before = leading.send_replace(now);
        match (before, now) {
            (None, Some(_)) => tracing::info!(lease = self.name, "became leader"),
            (Some(_), None) => tracing::warn!(lease = self.name, "lost leadership"),
            _ => {}
        }
    }

    async fn read(&self) -> Result<Option<LeaseRecord>, KubeError> {
        match self.call(Verb::Get, self.api().get(&self.name)).await {
            Ok(object) => Ok(Some(record(&object))),
            Err(KubeError::Call { fault: CallFault::Refused { code: 404, .. }, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes the Lease as it is with this holder. When it was acquired is written by who takes it, and stays; so do labels and
    /// annotations of others.
    async fn write(&mut self, holder: String, transitions: i32, takes: bool) -> Result<(), KubeError> {
        let sent = Instant::now();
        let time = Some(MicroTime(Timestamp::now()));
        let duration = if holder.is_empty() { Duration::from_secs(1) } else { self.candidate.terms().duration };
        let spec = LeaseSpec {
            holder_identity: Some(holder),
            lease_duration_seconds: i32::try_from(duration.as_secs()).ok(),
            lease_transitions: Some(transitions),
            acquire_time: time.clone().filter(|_| takes),
            renew_time: time,
            ..LeaseSpec::default()
        };
        let version = self.candidate.version().map(str::to_owned);
        let metadata = ObjectMeta { name: Some(self.name.clone()), resource_version: version.clone(), ..ObjectMeta::default() };
        let object = Object { metadata, spec: Some(spec) };
        let api = self.api();
        let written = match version {
            Some(_) => self.call(Verb::Patch, api.patch(&self.name, &PatchParams::default(), &Patch::Merge(&object))).await?,
            None => self.call(Verb::Create, api.create(&PostParams::default(), &object)).await?,
        };
        self.candidate.wrote(record(&written), sent.into_std());
        Ok(())
    }

    async fn give_back(&mut self) {
        if let Some(_until) = self.candidate.leads(Instant::now().into_std())
            && let LeaseStep::Renew { transitions } = self.candidate.next(Instant::now().into_std())
        {
            match self.write(String::new(), transitions, false).await {
                Ok(()) => tracing::info!(lease = self.name, "released lease"),
                Err(error) => {
                    tracing::warn!(reason = error.reason(), "cannot release the lease; another replica leads once it expires: {error}");
                }
            }
        }
    }

    fn api(&self) -> Api<Object> {
        Api::namespaced(self.cluster.client.clone(), &self.cluster.namespace)
    }

    /// A call ends at [`CALL`], and in any case when leading does: then others are to know first.
    async fn call<T>(&self, verb: Verb, work: impl Future<Output = kube::Result<T>>) -> Result<T, KubeError> {
        let now = Instant::now();
        let ends = self.candidate.leads(now.into_std()).map_or(now + CALL, |until| (now + CALL).min(until.into()));
        let fault = match timeout_at(ends, work).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => CallFault::of(error),
            Err(_elapsed) => CallFault::Timeout(ends - now),
        };
        Err(KubeError::Call { call: self.cluster.call(verb, "Lease", &self.name), fault })
    }
}

fn record(object: &Object) -> LeaseRecord {
    let spec = object.spec.clone().unwrap_or_default();
    LeaseRecord {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(spec.lease_duration_seconds.and_then(|seconds| seconds.try_into().ok()).unwrap_or_default()),
        transitions: spec.lease_transitions.unwrap_or_default(),
        version: object.metadata.resource_version.clone().unwrap_or_default(),
    }
}
