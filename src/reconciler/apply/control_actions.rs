//! Control plane requests of a pass: create and revoke keys, delete devices, Tailscale Services, routes.
//!
//! Each is tried once in a pass. A new key is written to its replica's config or revoked; the record of a device is deleted after the
//! device.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{Applier, ApplyResult};
use crate::api::condition::reason;
use crate::api::names;
use crate::edge::control::{AuthKey, ControlError};
use crate::edge::kube::KubeError;
use crate::model::controller::kinds;
use crate::model::controller::workload::actions::{ControlAction, Delete, Notice};
use crate::model::controller::workload::device_claim::DeviceClaim;
use crate::model::controller::workload::objects::Manifest;
use crate::model::controller::workload::observed::Observed;
use crate::model::controller::workload::service_requests::{RequestTurn, take_turn};
use crate::reconciler::control_plane::{Denied, RequestLimit};

/// Assumed maximum difference of the clocks, for a control plane that does not report when it has created a key.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(2);

impl Applier {
    /// Sends the requests that are due. Denials are recorded and the rest continues; an API rejection ends the pass.
    ///
    /// The first value: the last denial, except refused Tailscale Services, which are faults of their objects. The second value: whether to
    /// requeue the workload, because the known Tailscale Services or their refusals have changed since its snapshot, or actions are left over,
    /// for example because leadership expired.
    pub(super) async fn control(&self, observed: &Observed, actions: Vec<ControlAction>) -> Result<(Option<Denied>, bool), KubeError> {
        let RequestTurn { due, mut waiting, has_more } = take_turn(actions, &observed.denied, observed.now);
        let mut answers = BTreeMap::new();
        let (mut denied, mut requeue, mut is_silent) = (None, has_more, false);
        for action in due {
            if !self.writes.open() {
                return Ok((denied, true));
            }
            let (what, is_for_service) = (action.what(), action.is_for_service());
            if is_for_service && is_silent {
                waiting.push(what);
                continue;
            }
            // A request ends with leadership, as an API write does.
            let call = Box::pin(self.execute(observed, action));
            let Some(response) = self.writes.while_leading(call).await.transpose()? else {
                return Ok((denied, true));
            };
            answers.insert(what, response.as_ref().err().map(|error| (error.lasting(), error.is_answer())));
            match response {
                Ok(changed) => requeue |= changed,
                Err(error) => {
                    tracing::warn!(reason = error.reason(), workload = %observed.key, "{error}");
                    if is_for_service && error.is_answer() {
                        // The next pass reports it.
                        requeue = true;
                    } else {
                        is_silent |= is_for_service;
                        denied = Some(error);
                    }
                }
            }
        }
        self.controls.answered(&observed.key, answers, &waiting, observed.now);
        Ok((denied, requeue))
    }

    async fn execute(&self, observed: &Observed, action: ControlAction) -> Result<Result<bool, Denied>, KubeError> {
        let spec = kinds::spec(observed);
        let (tailnet, replicas) = spec.as_ref().map_or((None, 1), |spec| (spec.tailnet, spec.replicas));
        let limit = RequestLimit { key: &observed.key, replicas };
        match action {
            ControlAction::ListServices { since } => Ok(self.controls.list_services(tailnet, since).await.map(|()| true)),
            ControlAction::PublishService { desired, recorded, .. } => {
                Ok(self.controls.publish_service(tailnet, &desired, &observed.settings.cluster, recorded).await)
            }
            ControlAction::ReleaseService { name } => {
                let owner = (&observed.settings.cluster, observed.owning_group());
                Ok(self.controls.release_service(tailnet, &name, owner).await)
            }
            ControlAction::ApproveRoutes { device, add, remove, .. } => {
                Ok(self.controls.approve_routes(tailnet, &device, &add, &remove).await)
            }
            ControlAction::ReadRoutes { device } => Ok(Ok(self.controls.read_routes(tailnet, &device).await)),
            ControlAction::RecordDevice { ordinal, device, domain, report, recorded, draft } => {
                let replica = names::replica(&observed.workload, ordinal);
                let claim = DeviceClaim { device: &device, domain: domain.as_deref(), report: &report, recorded: recorded.as_ref() };
                match self.controls.check_device(tailnet, (&replica, limit), &claim).await {
                    // The next pass has a later time for its next read.
                    Ok(record) if Some(&record) == recorded.as_ref() => Ok(Ok(true)),
                    Ok(record) => self.apply_one(&observed.key, draft.with_device(record)).await.map(|_acted| Ok(false)),
                    Err(error) => Ok(Err(error)),
                }
            }
            ControlAction::DeleteDevice { device, then, .. } => {
                let deleted = self.controls.delete_device(tailnet, &device).await;
                self.delete_record(self.report_orphan(observed, deleted).await, then).await
            }
            ControlAction::RevokeKey { id, then, .. } => self.delete_record(self.controls.revoke_key(tailnet, &id).await, then).await,
            ControlAction::MintKey { ordinal, tags, draft, reissue, replaces, revokes } => {
                let replica = names::replica(&observed.workload, ordinal);
                let note = format!("tailyard {replica}");
                let mint = self.controls.mint_key(tailnet, tags.as_slice(), &note, (limit, reissue), (replaces.as_ref(), revokes.as_ref()));
                match self.controls.with_hostname(tailnet, (draft.hostname(), &replica), mint).await {
                    Ok(key) => {
                        let created = key.created.unwrap_or_else(|| Timestamp::now() - CLOCK_SKEW).as_second();
                        let secret = draft.with_key(&key.id, key.key.reveal(), created);
                        self.store_key(observed, tailnet, &key, secret).await.map(|()| Ok(false))
                    }
                    Err(error) => Ok(Err(error)),
                }
            }
        }
    }

    /// Writes a new auth key to its replica's config Secret.
    async fn store_key(&self, observed: &Observed, tailnet: Option<&str>, key: &AuthKey, secret: Manifest) -> Result<(), KubeError> {
        let written = self.apply_one(&observed.key, secret).await;
        if !matches!(written, Ok(ApplyResult::Done)) {
            // Revoke a key that no replica will get.
            if let Err(error) = self.controls.revoke_key(tailnet, &key.id).await {
                tracing::warn!(reason = error.reason(), key = %key.id, "cannot delete an unused auth key: {error}");
            }
        }
        written.map(drop)
    }

    /// A foreign device is not deleted: reports it, and the replica's record is deleted anyway.
    async fn report_orphan(&self, observed: &Observed, deleted: Result<(), Denied>) -> Result<(), Denied> {
        let Err(Denied::Refused(ControlError::Mismatch { .. })) = &deleted else { return deleted };
        let message = deleted.err().map(|error| error.lasting()).unwrap_or_default();
        tracing::warn!(workload = %observed.key, "{message}");
        let notice = Notice { subject: observed.key.clone(), warning: true, reason: reason::DEVICE_ORPHANED, message };
        self.write_events(observed, vec![notice]).await;
        Ok(())
    }

    /// Deletes the record of something that the control plane has deleted.
    async fn delete_record(&self, gone: Result<(), Denied>, record: Vec<Delete>) -> Result<Result<bool, Denied>, KubeError> {
        if gone.is_ok() {
            for delete in record {
                self.delete(delete).await?;
            }
        }
        Ok(gone.map(|()| false))
    }
}
