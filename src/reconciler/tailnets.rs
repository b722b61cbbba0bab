//! One `Tailnet`: its credentials are read, tried and watched, and the client for it kept.
//!
//! Looked at again once a minute: so a Secret that came, changed or went is noticed, and so are credentials that stopped
//! working. Credentials that cannot be tried now, but worked, go on being used.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret as Object;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use super::act::{ActError, about, whole};
use super::classes::{finalize, write};
use super::work::Worker;
use super::world::{Key, Role};
use crate::api::tailnet::Tailnet;
use crate::edge::control::{Control, ControlSettings, Credentials, IdentityToken, Rate};
use crate::edge::kube::{Cluster, KubeError, Part, Resource};
use crate::model::group::{Notice, Subject, TailnetState};
use crate::model::objects::{Kind, ObjectRef, digest};
use crate::model::supervise::Secret;
use crate::model::tailnet::{self, Verdict, judge};
use crate::runtime::queue::Ended;

/// How often a Tailnet is looked at.
const LOOK: Duration = Duration::from_mins(1);
/// How often one is that does not work.
const RETRY: Duration = Duration::from_secs(30);
/// A token is asked for again when it has been held for so long; it holds twice as long.
const TOKEN: Duration = Duration::from_mins(30);
/// How long a call of a control plane may take.
const DEADLINE: Duration = Duration::from_secs(20);

/// What is kept of Tailnets beside their objects.
#[derive(Debug)]
pub struct Tailnets {
    cluster: Cluster,
    service_account: String,
    ca: Option<PathBuf>,
    tokens: Mutex<HashMap<String, Token>>,
}

#[derive(Debug)]
struct Token {
    audience: String,
    sender: watch::Sender<Option<Secret>>,
    since: Instant,
}

impl Tailnets {
    /// Nothing known yet. Tokens are made out for this service account of the cluster's namespace.
    #[must_use]
    pub fn new(cluster: Cluster, service_account: String, ca: Option<PathBuf>) -> Self {
        Self { cluster, service_account, ca, tokens: Mutex::default() }
    }

    /// A token of our own service account, renewed here.
    async fn token(&self, name: &str, audience: &str) -> Result<watch::Receiver<Option<Secret>>, KubeError> {
        let fresh = |tokens: &HashMap<String, Token>| {
            let held = tokens.get(name).filter(|token| token.audience == audience && token.since.elapsed() < TOKEN);
            held.map(|token| token.sender.subscribe())
        };
        if let Some(receiver) = fresh(&self.tokens.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(receiver);
        }
        let text = self.cluster.service_account_token(&self.service_account, audience, TOKEN * 2).await?;
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let token = tokens.entry(name.to_owned()).or_insert_with(|| Token {
            audience: audience.to_owned(),
            sender: watch::channel(None).0,
            since: Instant::now(),
        });
        audience.clone_into(&mut token.audience);
        token.since = Instant::now();
        token.sender.send_replace(Some(Secret::new(text)));
        Ok(token.sender.subscribe())
    }
}

/// Looks at a Tailnet.
pub async fn reconcile(worker: &Worker, name: &str) -> Result<Ended, ActError> {
    let found = {
        let world = worker.stores.world();
        world.tailnet(name).map(|tailnet| (tailnet, world.users_of_tailnet(name)))
    };
    let Some((tailnet, users)) = found else {
        forget(worker, name);
        return Ok(Ended::Done);
    };
    let going = tailnet.metadata.deletion_timestamp.is_some();
    let verdict = if going && users.is_empty() { Verdict::Valid } else { examine(worker, name, &tailnet).await? };
    let judged = judge(&tailnet, &verdict, &users, Timestamp::now());
    if let Some(status) = judged.status {
        write(worker, Resource::TAILNET, Role::Tailnet, name, Part::Status, &json!({ "status": whole(&status) })).await?;
    }
    if let Some(finalizers) = judged.finalizers {
        finalize(worker, Resource::TAILNET, Role::Tailnet, name, &finalizers).await?;
    }
    if let Some((reason, message)) = judged.warning {
        let notice = Notice { subject: Subject::Group, warning: true, reason, message };
        worker.actor.notice(about(Resource::TAILNET, "", name, tailnet.metadata.uid.clone()), notice).await;
    }
    if judged.ends {
        forget(worker, name);
        return Ok(Ended::Done);
    }
    Ok(Ended::Again(if verdict == Verdict::Valid { LOOK } else { RETRY }))
}

/// Reads the credentials and tries them. What came of it is what groups are told from now on.
async fn examine(worker: &Worker, name: &str, tailnet: &Tailnet) -> Result<Verdict, ActError> {
    let secret_name = &tailnet.spec.credentials.secret_name;
    let secret = ObjectRef::new(Kind::Secret, &worker.settings.namespace, secret_name.clone());
    let found = worker.actor.writes().look(&secret).await?;
    let place = format!("Secret {}/{secret_name} of spec.credentials", worker.settings.namespace);
    let read = found.as_ref().map(|value| Object::deserialize(value).ok().and_then(|secret| secret.data).unwrap_or_default());
    let verdict = match read.map(|data| (tailnet::credentials(&data), mark(tailnet, &data))) {
        None => Verdict::InvalidSecret(format!("{place} does not exist")),
        Some((Err(why), _)) => Verdict::InvalidSecret(format!("{place} {why}")),
        Some((Ok(credentials), mark)) => attempt(worker, name, tailnet, credentials, &mark).await?,
    };
    let news = match &verdict {
        Verdict::Valid => false,
        Verdict::InvalidSecret(why) | Verdict::Refused(why) => {
            // What worked and is not known to be wrong goes on being used: a control plane that is away comes back.
            worker.controls.unavailable(Some(name), format!("Tailnet {name}: {why}"))
        }
    };
    if news {
        wake(worker, name);
    }
    Ok(verdict)
}

async fn attempt(
    worker: &Worker,
    name: &str,
    tailnet: &Tailnet,
    credentials: tailnet::Credentials,
    mark: &str,
) -> Result<Verdict, ActError> {
    let credentials = match credentials {
        tailnet::Credentials::OAuth { client_id, client_secret } => Credentials::OAuth { client_id, client_secret },
        tailnet::Credentials::Headscale { api_key } => Credentials::Headscale { api_key },
        tailnet::Credentials::Identity { client_id, audience } => {
            let token = IdentityToken::Watch(worker.tailnets.token(name, &audience).await?);
            Credentials::Identity { client_id, token }
        }
    };
    let url = tailnet::url(tailnet).to_owned();
    let settings =
        ControlSettings { url: url.clone(), credentials, ca: worker.tailnets.ca.clone(), rate: Rate::DEFAULT, deadline: DEADLINE };
    let client: Control = match worker.controls.client(Some(name), mark, settings) {
        Ok(client) => client,
        Err(error) => return Ok(Verdict::Refused(error.to_string())),
    };
    match client.probe().await {
        Ok(()) => {
            if worker.controls.ready(Some(name), mark, url, client) {
                wake(worker, name);
            }
            Ok(Verdict::Valid)
        }
        Err(error) => {
            let was_ready = matches!(worker.controls.state(Some(name)), TailnetState::Ready { .. });
            if was_ready && matches!(error.kind(), "unreachable" | "deadline" | "paused" | "answer") {
                tracing::warn!(tailnet = name, kind = error.kind(), "{error}");
                return Ok(Verdict::Valid);
            }
            Ok(Verdict::Refused(error.to_string()))
        }
    }
}

/// Tells credentials apart without keeping them.
fn mark(tailnet: &Tailnet, data: &std::collections::BTreeMap<String, k8s_openapi::ByteString>) -> String {
    digest(json!([tailnet::url(tailnet), data]).to_string().as_bytes())
}

fn forget(worker: &Worker, name: &str) {
    worker.tailnets.tokens.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    if worker.controls.forget(name) {
        wake(worker, name);
    }
}

/// Has the groups of a Tailnet looked at.
fn wake(worker: &Worker, name: &str) {
    let users = worker.stores.world().users_of_tailnet(name);
    for group in users {
        worker.stores.queue().add(Key::Group(group));
    }
}
