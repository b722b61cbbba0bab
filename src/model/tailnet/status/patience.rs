//! Services withheld from the status, and the time limit of that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::api::egress::EgressTarget;
use crate::model::config::EgressConfig;
use crate::model::plan::Plan;

/// Time for which a never resolved service is withheld: enough for a new replica to learn all peers.
pub const RESOLUTION_GRACE: Duration = Duration::from_secs(45);

/// Records for each service whether it was ever served.
///
/// - never resolved: withheld for the grace time, then published although it rejects;
/// - resolved: published;
/// - resolved once and lost: withheld until resolved again. Other replicas take over, or the cluster rejects instead of this Pod. No rollout
///   waits for it, because this Pod was verified before.
#[derive(Debug, Clone)]
pub struct ServeHistory {
    grace: Duration,
    services: BTreeMap<Arc<str>, (EgressTarget, State)>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Served,
    Lost,
    Waiting(Duration),
}

impl ServeHistory {
    /// A history with this grace time; production uses [`RESOLUTION_GRACE`].
    pub fn new(grace: Duration) -> Self {
        Self { grace, services: BTreeMap::new() }
    }

    /// Evaluates the applied plan; returns the withheld services. A service with a changed target counts as new.
    pub fn withheld(&mut self, plan: &Plan, config: &EgressConfig, now: Duration) -> BTreeSet<Arc<str>> {
        let mut before = std::mem::take(&mut self.services);
        for (name, service) in &config.services {
            let served = plan.egress.get(name).is_some_and(|egress| !egress.targets.is_empty());
            let was = before.remove(name).filter(|(target, _)| *target == service.tailnet_target).map(|(_, state)| state);
            let state = match was {
                _ if served => State::Served,
                Some(State::Served | State::Lost) => State::Lost,
                Some(waiting) => waiting,
                None => State::Waiting(now),
            };
            self.services.insert(Arc::clone(name), (service.tailnet_target.clone(), state));
        }
        let existing = self.services.iter().filter(|(_, (_, state))| match state {
            State::Served => false,
            State::Lost => true,
            State::Waiting(since) => now < since.saturating_add(self.grace),
        });
        existing.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Time at which a withheld service is published without another change.
    pub fn due(&self, now: Duration) -> Option<Duration> {
        let ends = self.services.values().filter_map(|(_, state)| match state {
            State::Waiting(since) => Some(since.saturating_add(self.grace)),
            State::Served | State::Lost => None,
        });
        ends.filter(|end| *end > now).min()
    }
}
