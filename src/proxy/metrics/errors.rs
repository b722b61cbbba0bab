//! The last error of each service, kept after it is over for as long as the service is configured.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdMap;
use tokio::time::Instant;

use crate::model::plan::{Plan, Reason};

#[derive(Debug, Default)]
pub(super) struct LastErrors {
    services: BTreeMap<Arc<str>, LastError>,
    reasons: OrdMap<Arc<str>, Vec<Reason>>,
}

#[derive(Debug)]
struct LastError {
    reason: &'static str,
    /// When it was over; nothing while it is in force.
    over: Option<Instant>,
}

impl LastErrors {
    /// Takes in a plan. Costs nothing if it rejects what the one before rejected.
    pub(super) fn planned(&mut self, plan: &Plan, now: Instant) {
        if self.reasons.ptr_eq(&plan.rejected) {
            return;
        }
        self.services.retain(|name, error| {
            let rejected = plan.rejected.contains_key(name);
            if !rejected {
                error.over.get_or_insert(now);
            }
            rejected || plan.egress.contains_key(name) || plan.ingress.contains_key(name)
        });
        for (name, reasons) in &plan.rejected {
            if let Some(reason) = reasons.first().map(Reason::reason) {
                self.services.insert(Arc::clone(name), LastError { reason, over: None });
            }
        }
        self.reasons = plan.rejected.clone();
    }

    /// Each service's last error and how long it has been over; zero while it is in force.
    pub(super) fn ages(&self, now: Instant) -> impl Iterator<Item = (&str, &'static str, Duration)> {
        self.services.iter().map(move |(name, error)| {
            let age = error.over.map_or(Duration::ZERO, |over| now.saturating_duration_since(over));
            (&**name, error.reason, age)
        })
    }
}
