//! A worker: takes a key, looks at what there is, has it decided what to do, and does it.
//!
//! Works only while this process leads and the stores are complete; what it leaves then is looked at by whoever leads next.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::act::{ActError, Acted, Actor};
use super::control::Controls;
use super::metrics::Metrics;
use super::stores::Stores;
use super::tailnets::Tailnets;
use super::world::{Key, Role};
use super::{classes, tailnets};
use crate::model::group::{self, GroupSettings};
use crate::model::objects::Kind;
use crate::runtime::queue::Ended;

/// How soon a group is looked at again when something was found that the stores did not show.
const SURPRISE: Duration = Duration::from_millis(10);
/// How often it is looked whether somebody else's object still has the name of one of ours.
const IN_THE_WAY: Duration = Duration::from_secs(31);
/// How soon a write that may not be made is thought of again: when the next leader is known.
const NOT_LEADING: Duration = Duration::from_secs(2);

/// What every worker shares.
#[derive(Debug)]
pub struct Worker {
    /// What is known.
    pub stores: Stores,
    /// What can be done.
    pub actor: Actor,
    /// Whom groups belong to.
    pub controls: Arc<Controls>,
    /// What is known of Tailnets beside their objects.
    pub tailnets: Tailnets,
    /// What holds for every group.
    pub settings: Arc<GroupSettings>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

impl Worker {
    /// Works on one key.
    pub async fn work(&self, key: Key) -> Ended {
        if !self.actor.writes().open() || !self.stores.world().missing().is_empty() {
            // Whoever leads next looks at everything.
            return Ended::Done;
        }
        let begin = Instant::now();
        let done = match &key {
            Key::Group(name) => self.group(name).await,
            Key::Class(name) => classes::reconcile(self, name).await,
            Key::Tailnet(name) => tailnets::reconcile(self, name).await,
        };
        self.metrics.reconciled(key.kind(), begin.elapsed(), done.as_ref().err().map(ActError::kind));
        match done {
            Ok(ended) => ended,
            Err(error) if error.kind() == "NotLeading" => Ended::Again(NOT_LEADING),
            Err(error) => {
                tracing::warn!(kind = error.kind(), object = key.kind(), name = key.name(), "{error}");
                Ended::Failed(error.retry_after())
            }
        }
    }

    async fn group(&self, name: &str) -> Result<Ended, ActError> {
        let (observed, contested) = {
            let mut world = self.stores.world();
            let contested = world.forget_foreign(name, Instant::now());
            let tailnet = world.group(name).and_then(|group| group.spec.tailnet.clone());
            let state = self.controls.state(tailnet.as_deref());
            let monitors = world.has(Role::Owned(Kind::ServiceMonitor));
            let settings = Arc::new(GroupSettings { service_monitors: monitors, ..(*self.settings).clone() });
            (world.observe(name, settings, state, Timestamp::now()), contested)
        };
        let pass = group::pass(&observed);
        let again = pass.again;
        match self.actor.carry_out(&observed, pass).await {
            Ok(Acted::Done) => {}
            Ok(Acted::Surprised) => return Ok(Ended::Again(SURPRISE)),
            Err(error) => {
                // What the API refuses it will refuse again: somebody has to be told.
                if matches!(error.kind(), "Invalid" | "Forbidden") {
                    self.actor.refused(&observed, &error.to_string()).await?;
                }
                return Err(error);
            }
        }
        let contested = contested.then_some(IN_THE_WAY);
        let soonest = again.into_iter().chain(contested).min();
        Ok(soonest.map_or(Ended::Done, Ended::Again))
    }
}
