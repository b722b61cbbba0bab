//! Writes of children's `EndpointSlice`s.
//!
//! Kubernetes' controller writes the same: a rejected write is left to it, and does not affect the pass.

use std::sync::{Mutex, PoisonError};

use futures_util::FutureExt;

use super::{Applier, at_once};
use crate::edge::kube::{ApiRefusal, KubeError, ObjectPart};
use crate::model::controller::egress::slices::MAX_SLICE_WRITES;
use crate::model::controller::workload::objects::Kind;
use crate::model::controller::workload::objects::slice::SliceWrite;
use crate::reconciler::cache::WatchRole;

impl Applier {
    /// Writes slices; returns whether another pass is due for more.
    pub(super) async fn slices(&self, writes: Vec<SliceWrite>) -> Result<bool, KubeError> {
        let is_full = writes.len() == MAX_SLICE_WRITES;
        let rejected = Mutex::new(Vec::new());
        let one = async |write: SliceWrite| match self.slice(write).await {
            // The controller was faster.
            Err(error) if matches!(error.refusal(), Some(ApiRefusal::Conflict | ApiRefusal::NotFound)) => Ok(()),
            Err(error) if error.refused() => {
                rejected.lock().unwrap_or_else(PoisonError::into_inner).push(error);
                Ok(())
            }
            done => done,
        };
        at_once(writes.into_iter().map(|write| one(write).boxed()).collect()).await?;
        let rejected = rejected.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = rejected.first() {
            tracing::warn!(reason = error.reason(), "cannot write EndpointSlices: {error}; left to kube-controller-manager");
        }
        Ok(is_full && rejected.len() < MAX_SLICE_WRITES)
    }

    /// Whether the controller has written the slice since it was planned: a second one would be deleted again.
    fn is_overtaken(&self, write: &SliceWrite) -> bool {
        let cache = self.stores.cache();
        match write {
            SliceWrite::Create(manifest) => cache.has_slice_like(&manifest.value),
            SliceWrite::Change { object, patch } => {
                let written = patch["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse::<u64>().ok());
                cache.version(object).is_some_and(|version| written != Some(version))
            }
        }
    }

    async fn slice(&self, write: SliceWrite) -> Result<(), KubeError> {
        if self.is_overtaken(&write) {
            return Ok(());
        }
        let role = WatchRole::Owned(Kind::EndpointSlice);
        match write {
            SliceWrite::Create(manifest) => self.stores.assume(role, self.writes.create(&manifest).await?).await,
            SliceWrite::Change { object, patch } => {
                self.patch((object.kind.into(), role), (&object.namespace, &object.name), ObjectPart::Object, &patch).await?;
            }
        }
        Ok(())
    }
}
