//! Last error of each service, kept while the service is configured.

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
    /// End of the error; `None` while current.
    over: Option<Instant>,
}

impl LastErrors {
    /// Evaluates a plan. Cheap if its rejections are unchanged.
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

    /// Each service's last error and the time since its end; zero while current.
    pub(super) fn ages(&self, now: Instant) -> impl Iterator<Item = (&str, &'static str, Duration)> {
        self.services.iter().map(move |(name, error)| {
            let age = error.over.map_or(Duration::ZERO, |over| now.saturating_duration_since(over));
            (&**name, error.reason, age)
        })
    }
}
