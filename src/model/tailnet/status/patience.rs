//! Which services are held back from the status, and until when.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::api::egress::EgressTarget;
use crate::model::config::EgressConfig;
use crate::model::plan::Plan;

/// How long a service that was never resolved is held back: long enough for a new replica to learn of all peers.
pub const GRACE: Duration = Duration::from_secs(45);

/// Remembers for each service whether it was ever served.
///
/// - never resolved: held back for the grace, then published though it refuses;
/// - resolved: published;
/// - resolved once and lost: held back until it is resolved again. If it is lost here only, the other replicas take over;
///   if it is lost everywhere, the cluster refuses in place of this Pod. No rollout waits for it, as this Pod has been verified.
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
    /// With this grace; [`GRACE`] is meant.
    pub fn new(grace: Duration) -> Self {
        Self { grace, services: BTreeMap::new() }
    }

    /// Takes in the plan in force; says which services are held back at this time. A service with another target is another service.
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

    /// When a service that is held back will be published without anything else changing.
    pub fn due(&self, now: Duration) -> Option<Duration> {
        let ends = self.services.values().filter_map(|(_, state)| match state {
            State::Waiting(since) => Some(since.saturating_add(self.grace)),
            State::Served | State::Lost => None,
        });
        ends.filter(|end| *end > now).min()
    }
}
