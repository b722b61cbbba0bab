//! `Tailnet` reconciliation: reads, tests and watches its credentials, and keeps its client.
//!
//! Reconciled after each change of its Secret, and once a minute to detect credentials that stopped working. Credentials that worked stay
//! in use while they cannot be tested.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret as Object;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use super::apply::ActError;
use super::cache::{WatchRole, WorkKey};
use super::context::Context;
use super::proxyclass::apply;
use crate::api::tailnet::{Tailnet, TailnetStatus};
use crate::edge::control::{ControlSettings, IdentityToken, Rate};
use crate::edge::kube::{KubeError, Resource};
use crate::model::controller::kinds::tailnet;
use crate::model::controller::kinds::tailnet::{ControlPlaneVerdict, validate};
use crate::model::controller::workload::finalizers::Validation;
use crate::model::controller::workload::objects::digest;
use crate::runtime::queue::WorkOutcome;

/// Interval of tests.
pub(super) const POLL_INTERVAL: Duration = Duration::from_mins(1);
/// Interval of tests while they fail.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Timeout of a control plane request.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

pub async fn reconcile(context: &Context, name: &str) -> Result<WorkOutcome, ActError> {
    let found = {
        let cache = context.stores.cache();
        let is_uninstalled = cache.is_uninstalled();
        cache.tailnet(name).map(|tailnet| (tailnet, cache.users_of_tailnet(Some(name)), is_uninstalled))
    };
    let Some((tailnet, users, is_uninstalled)) = found else {
        forget(context, name);
        return Ok(WorkOutcome::Done);
    };
    if is_uninstalled {
        let released = Validation::<TailnetStatus>::released(&tailnet.metadata);
        apply(context, (Resource::TAILNET, WatchRole::Tailnet), &tailnet.metadata, released).await?;
        forget(context, name);
        return Ok(WorkOutcome::Done);
    }
    let unused = tailnet.metadata.deletion_timestamp.is_some() && users.is_empty();
    let verdict = if unused { ControlPlaneVerdict::Refused(String::new()) } else { examine(context, name, &tailnet).await? };
    let validation = validate(&tailnet, &verdict, &users, Timestamp::now());
    apply(context, (Resource::TAILNET, WatchRole::Tailnet), &tailnet.metadata, validation).await?;
    if unused {
        forget(context, name);
        return Ok(WorkOutcome::Done);
    }
    Ok(WorkOutcome::RequeueAfter(if matches!(verdict, ControlPlaneVerdict::Valid(_)) { POLL_INTERVAL } else { RETRY_INTERVAL }))
}

/// Reads the credentials and tests them.
async fn examine(context: &Context, name: &str, tailnet: &Tailnet) -> Result<ControlPlaneVerdict, ActError> {
    let (verdict, changed) = match tried(context, name, tailnet).await {
        Ok(done) => done,
        // The API server would reject a retry as well: report it to the Tailnet's owner.
        Err(error) if error.refused() => context.controls.refused(Some(name), error.to_string()),
        Err(error) => return Err(error.into()),
    };
    if changed {
        wake(context, Some(name));
    }
    Ok(verdict)
}

async fn tried(context: &Context, name: &str, tailnet: &Tailnet) -> Result<(ControlPlaneVerdict, bool), KubeError> {
    let secret_name = &tailnet.spec.credentials.secret_name;
    let found = context.actor.writes().look(Resource::SECRET, &context.settings.namespace, secret_name).await?;
    let read = found.as_ref().map(|value| Object::deserialize(value).ok().and_then(|secret| secret.data).unwrap_or_default());
    let read = read.ok_or_else(|| "does not exist".to_owned()).and_then(|data| Ok((tailnet::credentials(&data)?, mark(tailnet, &data))));
    match read {
        Ok((credentials, mark)) => {
            let settings = settings(context, name, tailnet, credentials).await?;
            Ok(context.controls.examine(Some(name), &mark, settings).await)
        }
        Err(why) => {
            let why = format!("Secret {}/{secret_name} of spec.credentials {why}", context.settings.namespace);
            let (_, changed) = context.controls.refused(Some(name), why.clone());
            Ok((ControlPlaneVerdict::InvalidSecret(why), changed))
        }
    }
}

async fn settings(
    context: &Context,
    name: &str,
    tailnet: &Tailnet,
    credentials: tailnet::Credentials,
) -> Result<ControlSettings, KubeError> {
    if let Some(audience) = credentials.token() {
        context.tokens.renew(name, audience).await?;
    }
    let credentials = credentials.with_token(|_| IdentityToken::Watch(context.tokens.token(name)));
    let (url, ca) = (tailnet::url(tailnet).to_owned(), context.tokens.ca().cloned());
    Ok(ControlSettings { url, credentials, ca, rate: Rate::DEFAULT, deadline: REQUEST_TIMEOUT })
}

/// Fingerprint of credentials.
fn mark(tailnet: &Tailnet, data: &std::collections::BTreeMap<String, k8s_openapi::ByteString>) -> String {
    digest(json!([tailnet::url(tailnet), data]).to_string().as_bytes())
}

fn forget(context: &Context, name: &str) {
    context.tokens.forget(name);
    if context.controls.forget(name) {
        wake(context, Some(name));
    }
}

/// Enqueues the groups of a Tailnet, or of the default control plane.
pub(super) fn wake(context: &Context, tailnet: Option<&str>) {
    let users = context.stores.cache().users_of_tailnet(tailnet);
    for key in users {
        context.stores.queue().add(WorkKey::Workload(key));
    }
}
