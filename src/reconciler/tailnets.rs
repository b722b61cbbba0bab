//! `Tailnet` reconciliation: reads, tests and watches its credentials, and keeps its client.
//!
//! Reconciled after each change of its Secret, and once a minute to detect credentials that stopped working. Credentials that worked stay
//! in use while they cannot be tested.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret as Object;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use super::apply::ActError;
use super::cache::{WatchRole, WorkKey};
use super::proxyclass::apply;
use super::worker::Worker;
use crate::api::tailnet::Tailnet;
use crate::edge::control::{ControlSettings, IdentityToken, Rate};
use crate::edge::kube::{Cluster, KubeError, Resource};
use crate::model::controller::kinds::tailnet;
use crate::model::controller::kinds::tailnet::{ControlPlaneVerdict, validate};
use crate::model::controller::workload::objects::{Kind, ObjectRef, digest};
use crate::model::tailnet::supervise::Secret;
use crate::runtime::queue::WorkOutcome;

/// Interval of tests.
pub(super) const POLL_INTERVAL: Duration = Duration::from_mins(1);
/// Interval of tests while they fail.
pub(super) const RETRY: Duration = Duration::from_secs(30);
/// Age at which a token is renewed; its lifetime is twice as long.
const TOKEN: Duration = Duration::from_mins(30);
/// Timeout of a control plane request.
pub(super) const DEADLINE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct Tailnets {
    cluster: Cluster,
    service_account: String,
    ca: Option<PathBuf>,
    tokens: Mutex<HashMap<String, TailnetToken>>,
}

#[derive(Debug)]
struct TailnetToken {
    sender: watch::Sender<Option<Secret>>,
    /// Audience and time of the current token.
    made: Option<(String, Instant)>,
}

impl Default for TailnetToken {
    fn default() -> Self {
        Self { sender: watch::channel(None).0, made: None }
    }
}

impl Tailnets {
    /// No tokens yet. Tokens are requested for this service account of the cluster's namespace.
    pub fn new(cluster: Cluster, service_account: String, ca: Option<PathBuf>) -> Self {
        Self { cluster, service_account, ca, tokens: Mutex::default() }
    }

    /// The token of our service account for a Tailnet's control plane.
    fn token(&self, name: &str) -> watch::Receiver<Option<Secret>> {
        self.tokens().entry(name.to_owned()).or_default().sender.subscribe()
    }

    /// Requests a new token unless the current one is fresh.
    async fn renew(&self, name: &str, audience: &str) -> Result<(), KubeError> {
        let fresh = |made: &(String, Instant)| made.0 == audience && made.1.elapsed() < TOKEN;
        if self.tokens().get(name).and_then(|token| token.made.as_ref()).is_some_and(fresh) {
            return Ok(());
        }
        let text = self.cluster.service_account_token(&self.service_account, audience, TOKEN * 2).await?;
        let mut tokens = self.tokens();
        let token = tokens.entry(name.to_owned()).or_default();
        token.made = Some((audience.to_owned(), Instant::now()));
        token.sender.send_replace(Some(Secret::new(text)));
        Ok(())
    }

    fn tokens(&self) -> MutexGuard<'_, HashMap<String, TailnetToken>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub async fn reconcile(worker: &Worker, name: &str) -> Result<WorkOutcome, ActError> {
    let found = {
        let cache = worker.stores.cache();
        cache.tailnet(name).map(|tailnet| (tailnet, cache.users_of_tailnet(Some(name))))
    };
    let Some((tailnet, users)) = found else {
        forget(worker, name);
        return Ok(WorkOutcome::Done);
    };
    let unused = tailnet.metadata.deletion_timestamp.is_some() && users.is_empty();
    let verdict = if unused { ControlPlaneVerdict::Refused(String::new()) } else { examine(worker, name, &tailnet).await? };
    let validation = validate(&tailnet, &verdict, &users, Timestamp::now());
    apply(worker, (Resource::TAILNET, WatchRole::Tailnet), &tailnet.metadata, validation).await?;
    if unused {
        forget(worker, name);
        return Ok(WorkOutcome::Done);
    }
    Ok(WorkOutcome::RequeueAfter(if matches!(verdict, ControlPlaneVerdict::Valid(_)) { POLL_INTERVAL } else { RETRY }))
}

/// Reads the credentials and tests them.
async fn examine(worker: &Worker, name: &str, tailnet: &Tailnet) -> Result<ControlPlaneVerdict, ActError> {
    let (verdict, news) = match tried(worker, name, tailnet).await {
        Ok(done) => done,
        // The API server would reject a retry as well: report it to the Tailnet's owner.
        Err(error) if error.refused() => worker.controls.refused(Some(name), error.to_string()),
        Err(error) => return Err(error.into()),
    };
    if news {
        wake(worker, Some(name));
    }
    Ok(verdict)
}

async fn tried(worker: &Worker, name: &str, tailnet: &Tailnet) -> Result<(ControlPlaneVerdict, bool), KubeError> {
    let secret_name = &tailnet.spec.credentials.secret_name;
    let secret = ObjectRef::new(Kind::Secret, &worker.settings.namespace, secret_name.clone());
    let found = worker.actor.writes().look(&secret).await?;
    let read = found.as_ref().map(|value| Object::deserialize(value).ok().and_then(|secret| secret.data).unwrap_or_default());
    let read = read.ok_or_else(|| "does not exist".to_owned()).and_then(|data| Ok((tailnet::credentials(&data)?, mark(tailnet, &data))));
    match read {
        Ok((credentials, mark)) => {
            let settings = settings(worker, name, tailnet, credentials).await?;
            Ok(worker.controls.examine(Some(name), &mark, settings).await)
        }
        Err(why) => {
            let why = format!("Secret {}/{secret_name} of spec.credentials {why}", worker.settings.namespace);
            let (_, news) = worker.controls.refused(Some(name), why.clone());
            Ok((ControlPlaneVerdict::InvalidSecret(why), news))
        }
    }
}

async fn settings(worker: &Worker, name: &str, tailnet: &Tailnet, credentials: tailnet::Credentials) -> Result<ControlSettings, KubeError> {
    if let Some(audience) = credentials.token() {
        worker.tailnets.renew(name, audience).await?;
    }
    let credentials = credentials.with_token(|_| IdentityToken::Watch(worker.tailnets.token(name)));
    let (url, ca) = (tailnet::url(tailnet).to_owned(), worker.tailnets.ca.clone());
    Ok(ControlSettings { url, credentials, ca, rate: Rate::DEFAULT, deadline: DEADLINE })
}

/// Fingerprint of credentials.
fn mark(tailnet: &Tailnet, data: &std::collections::BTreeMap<String, k8s_openapi::ByteString>) -> String {
    digest(json!([tailnet::url(tailnet), data]).to_string().as_bytes())
}

fn forget(worker: &Worker, name: &str) {
    worker.tailnets.tokens().remove(name);
    if worker.controls.forget(name) {
        wake(worker, Some(name));
    }
}

/// Enqueues the groups of a Tailnet, or of the default control plane.
pub(super) fn wake(worker: &Worker, tailnet: Option<&str>) {
    let users = worker.stores.cache().users_of_tailnet(tailnet);
    for key in users {
        worker.stores.queue().add(WorkKey::Workload(key));
    }
}
