//! Standalone proxies with standby: the claim of an active Pod that is lost passes to the waiting one.
//! [`crate::model::base::leader::ClaimObserver`] decides.

use std::time::Duration;

use serde_json::Value;

use super::{Failover, now};
use crate::edge::health_probe;
use crate::edge::kube::{ApiRefusal, KubeError};
use crate::model::base::leader::{ClaimVerdict, LeaseTerms};
use crate::model::failover::{ReplicaPod, Succession};

/// Timeout of a connection that distinguishes a hung Pod from a lost one.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);

impl Failover {
    /// Passes the claim of a lost Pod to the other one of its proxy, by its Pods as read now. Returns whether another Pod holds the Lease.
    pub(super) async fn pass_claim(&self, lost: &ReplicaPod, pods: &[Value]) -> Result<bool, KubeError> {
        let Some(Succession { lease, successor }) = Succession::of(lost, pods) else { return Ok(false) };
        // A kernel that answers also ends a hung process by its fence. Until then tailscaled serves.
        let hangs = health_probe::host_answers(lost.target, CONNECT_TIMEOUT);
        let (record, hangs) = tokio::join!(self.writes.lease(&lease), hangs);
        let Some(record) = record? else { return Ok(false) };
        let verdict = self.claims().judge(&lease, LeaseTerms::ACTIVE_POD, &record, &lost.uid, now());
        match verdict {
            ClaimVerdict::Overdue if !hangs => {}
            ClaimVerdict::Foreign => return Ok(record.holder == successor),
            ClaimVerdict::Undecided => return Ok(false),
            ClaimVerdict::Overdue | ClaimVerdict::Renewed => {
                tracing::info!(lease, pod = lost.name, node = lost.node, hangs, "active Pod does not answer, but lives: its claim stays");
                self.detector().suspected(&lost.uid, now());
                return Ok(false);
            }
        }
        match self.writes.pass_claim(&lease, &record, &successor, LeaseTerms::ACTIVE_POD).await {
            Ok(()) => {
                tracing::warn!(lease, pod = lost.name, node = lost.node, successor, "active Pod lost: its claim passes to the waiting Pod");
                Ok(true)
            }
            // It was renewed.
            Err(error) if error.refusal() == Some(ApiRefusal::Conflict) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
