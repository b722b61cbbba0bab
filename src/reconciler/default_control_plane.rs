//! The reconciler's own control plane, that of groups which name no Tailnet: its credentials are read, tried and watched.
//!
//! There is no object of it, so what is wrong is told by each group that would use it, and by a metric. Files of credentials
//! that are missing keep nobody from starting: they are read when they come, and anew when they change.

use std::path::Path;

use serde_json::json;

use super::cache::WorkKey;
use super::informers::Stores;
use super::tailnets::{DEADLINE, POLL_INTERVAL, RETRY};
use super::worker::Worker;
use crate::edge::control::{ClientCredentials, ControlSettings, IdentityToken, Rate};
use crate::edge::files::{self, watch};
use crate::model::controller::objects::digest;
use crate::model::controller::tailnet::ControlPlaneVerdict;
use crate::model::settings::reconciler::{DefaultControlPlane, DefaultCredentials as Files};
use crate::model::tailnet::supervise::Secret;
use crate::runtime::queue::WorkOutcome;

/// Looks at it.
pub async fn reconcile(worker: &Worker) -> WorkOutcome {
    let Some(files) = &worker.control.credentials else { return WorkOutcome::Done };
    let DefaultControlPlane { url, ca, .. } = &worker.control;
    let (verdict, news) = match read(files) {
        Ok((credentials, mark)) => {
            let mark = digest(json!([url, mark]).to_string().as_bytes());
            let settings = ControlSettings { url: url.clone(), credentials, ca: ca.clone(), rate: Rate::DEFAULT, deadline: DEADLINE };
            worker.controls.examine(None, &mark, settings).await
        }
        Err(why) => worker.controls.refused(None, why),
    };
    if news {
        if let ControlPlaneVerdict::Refused(why) = &verdict {
            tracing::warn!(url, "cannot use the default control plane: {why}");
        }
        let users = worker.stores.cache().users_of_tailnet(None);
        for group in users {
            worker.stores.queue().add(WorkKey::Group(group));
        }
    }
    WorkOutcome::RequeueAfter(if matches!(verdict, ControlPlaneVerdict::Valid(_)) { POLL_INTERVAL } else { RETRY })
}

/// Has it looked at whenever one of its files changes.
pub async fn follow(control: DefaultControlPlane, stores: Stores) {
    let paths = match control.credentials {
        Some(Files::OAuth { id, secret }) => vec![id, secret],
        Some(Files::Headscale { key }) => vec![key],
        // A token is read anew each time that it is exchanged.
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
    // Nothing to follow is no reason to end.
    std::future::pending::<()>().await;
}

/// The credentials that are in the files, and what tells them from others. The error says what to do.
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
