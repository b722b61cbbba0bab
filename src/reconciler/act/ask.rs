//! What a pass asks of the control plane: keys made and revoked, devices taken out of the tailnet.
//!
//! Each is tried once in a pass. A key is written where its replica finds it, or revoked; the record of a device goes after the
//! device and never before it.

use std::collections::BTreeMap;

use super::{Acted, Actor};
use crate::edge::control::AuthKey;
use crate::edge::kube::KubeError;
use crate::model::group::{ControlAction, Delete, Observed};
use crate::model::objects::Manifest;
use crate::reconciler::control::Denied;

/// How many Tailscale Services are asked for in one pass.
const SERVICES: usize = 16;

/// Whether it is about one Tailscale Service.
fn is_service(action: &ControlAction) -> bool {
    matches!(action, ControlAction::PublishService { .. } | ControlAction::ReleaseService { .. })
}

impl Actor {
    /// Asks the control plane. What it denies is remembered and returned, for the rest must go on; what the API denies ends the
    /// pass.
    ///
    /// The second value tells whether what is known of Tailscale Services is other than what the pass was shown.
    pub(super) async fn control(&self, observed: &Observed, actions: Vec<ControlAction>) -> Result<(Option<Denied>, bool), KubeError> {
        let mut answers = BTreeMap::new();
        let (mut denied, mut news, mut services) = (None, false, 0);
        for action in actions {
            if !self.writes.open() {
                return Ok((denied, news));
            }
            let what = action.what();
            if is_service(&action) {
                services += 1;
                // The rest is asked for again in the next pass: a group is not held up for minutes by its first one.
                if services > SERVICES {
                    answers.extend(observed.denied.get(&what).map(|denial| (what, Some(denial.why.clone()))));
                    news = true;
                    continue;
                }
            }
            let done = self.ask(observed, action).await?;
            answers.insert(what, done.as_ref().err().map(Denied::lasting));
            match done {
                Ok(changed) => news |= changed,
                Err(error) => {
                    tracing::warn!(kind = error.kind(), group = observed.name, "{error}");
                    denied = Some(error);
                }
            }
        }
        self.controls.answered(&observed.name, answers, observed.now);
        Ok((denied, news))
    }

    async fn ask(&self, observed: &Observed, action: ControlAction) -> Result<Result<bool, Denied>, KubeError> {
        let tailnet = observed.group.as_ref().and_then(|group| group.spec.tailnet.as_deref());
        let replicas = observed.group.as_ref().and_then(|group| group.spec.replicas).and_then(|count| count.try_into().ok()).unwrap_or(2);
        match action {
            ControlAction::ListServices { since } => Ok(self.controls.list_services(tailnet, since).await),
            ControlAction::PublishService { asked, recorded } => {
                Ok(self.controls.publish_service(tailnet, &asked, &observed.settings.cluster, recorded).await)
            }
            ControlAction::ReleaseService { name } => Ok(self.controls.release_service(tailnet, &name, &observed.settings.cluster).await),
            ControlAction::ApproveRoutes { id, add, remove, .. } => Ok(self.controls.approve_routes(tailnet, &id, &add, &remove).await),
            ControlAction::DeleteDevice { id, then, .. } => self.with_record(self.controls.delete_device(tailnet, &id).await, then).await,
            ControlAction::RevokeKey { id, then, .. } => self.with_record(self.controls.revoke_key(tailnet, &id).await, then).await,
            ControlAction::MintKey { ordinal, tags, draft, reissue } => {
                let note = format!("tailyard {}-{ordinal}", observed.name);
                let limit = reissue.then_some((observed.name.as_str(), replicas));
                match self.controls.mint_key(tailnet, &tags, &note, limit).await {
                    Ok(key) => self.keep(observed, tailnet, &key, draft.with_key(&key.id, key.key.reveal())).await.map(|()| Ok(false)),
                    Err(error) => Ok(Err(error)),
                }
            }
        }
    }

    /// Writes a new auth key where its replica finds it.
    async fn keep(&self, observed: &Observed, tailnet: Option<&str>, key: &AuthKey, secret: Manifest) -> Result<(), KubeError> {
        let written = self.apply_one(&observed.name, secret).await;
        if !matches!(written, Ok(Acted::Done)) {
            // A key that nobody can find is of no use to anybody honest.
            if let Err(error) = self.controls.revoke_key(tailnet, &key.id).await {
                tracing::warn!(kind = error.kind(), key = key.id, "an unused auth key is left: {error}");
            }
        }
        written.map(drop)
    }

    /// Takes the record of something away that the control plane has let go.
    async fn with_record(&self, gone: Result<(), Denied>, record: Vec<Delete>) -> Result<Result<bool, Denied>, KubeError> {
        if gone.is_ok() {
            for delete in record {
                self.delete(delete).await?;
            }
        }
        Ok(gone.map(|()| false))
    }
}
