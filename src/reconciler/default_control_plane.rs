//! Default control plane of groups that name no Tailnet: reads, tests and watches its credentials.
//!
//! It has no Kubernetes object, so each affected group and a metric report its faults. Missing credential files do not block the start:
//! they are read when they appear, and again after changes.

use std::path::Path;

use serde_json::json;

use super::cache::WorkKey;
use super::context::Context;
use super::informers::Stores;
use super::tailnets::{POLL_INTERVAL, REQUEST_TIMEOUT, RETRY_INTERVAL, wake};
use crate::edge::control::{ClientCredentials, ControlSettings, IdentityToken, Rate};
use crate::edge::files::{self, watch};
use crate::model::controller::kinds::tailnet::ControlPlaneVerdict;
use crate::model::controller::workload::objects::digest;
use crate::model::settings::reconciler::{DefaultControlPlane, DefaultCredentials as Files};
use crate::model::tailnet::supervise::Secret;
use crate::runtime::queue::WorkOutcome;

/// Tests the credentials.
pub async fn reconcile(context: &Context) -> WorkOutcome {
    let Some(files) = &context.control.credentials else { return WorkOutcome::Done };
    let DefaultControlPlane { url, ca, .. } = &context.control;
    let (verdict, changed) = match read(files) {
        Ok((credentials, mark)) => {
            let mark = digest(json!([url, mark]).to_string().as_bytes());
            let settings =
                ControlSettings { url: url.clone(), credentials, ca: ca.clone(), rate: Rate::DEFAULT, deadline: REQUEST_TIMEOUT };
            context.controls.examine(None, &mark, settings).await
        }
        Err(why) => context.controls.refused(None, why),
    };
    if changed {
        if let ControlPlaneVerdict::Refused(why) = &verdict {
            tracing::warn!(url, "cannot use the default control plane: {why}");
        }
        wake(context, None);
    }
    WorkOutcome::RequeueAfter(if matches!(verdict, ControlPlaneVerdict::Valid(_)) { POLL_INTERVAL } else { RETRY_INTERVAL })
}

/// Enqueues a test after each change of a credential file.
pub async fn follow(control: DefaultControlPlane, stores: Stores) {
    let paths = match control.credentials {
        Some(Files::OAuth { id, secret }) => vec![id, secret],
        Some(Files::Headscale { key }) => vec![key],
        // A token is read at each exchange.
        Some(Files::Identity { .. }) | None => Vec::new(),
    };
    let followed = paths.into_iter().map(|path| {
        let stores = stores.clone();
        async move {
            let (watcher, mut view, _) = watch::file(&path);
            let changes = async {
                while view.changed().await.is_ok() {
                    stores.queue().add(WorkKey::DefaultControlPlane);
                }
            };
            tokio::join!(watcher.run(), changes)
        }
    });
    futures_util::future::join_all(followed).await;
    // The end of this task would end the process.
    std::future::pending::<()>().await;
}

/// Reads the credentials from files, with values that identify them. The error says how to fix it.
fn read(files: &Files) -> Result<(ClientCredentials, Vec<String>), String> {
    let text = |path: &Path| {
        let bytes = files::read_one(path).map_err(|error| error.to_string())?;
        let bytes = bytes.ok_or_else(|| format!("{} does not exist; is the Secret of the credentials mounted?", path.display()))?;
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        if text.is_empty() { Err(format!("{} is empty; put the credentials into its Secret", path.display())) } else { Ok(text) }
    };
    Ok(match files {
        Files::OAuth { id, secret } => {
            let (client_id, secret) = (text(id)?, text(secret)?);
            let mark = vec![client_id.clone(), secret.clone()];
            (ClientCredentials::OAuth { client_id, client_secret: Secret::new(secret) }, mark)
        }
        Files::Identity { id, token } => {
            (ClientCredentials::Identity { client_id: id.clone(), token: IdentityToken::File(token.clone()) }, vec![id.clone()])
        }
        Files::Headscale { key } => {
            let key = text(key)?;
            (ClientCredentials::Headscale { api_key: Secret::new(key.clone()) }, vec![key])
        }
    })
}
