//! What a pass takes over from the one before: what it made of Services that are still the very same objects.
//!
//! The stores hand out an object as the same `Arc` for as long as it does not change, so identity is proof enough. A pass with
//! a memory comes to what it comes to without one, and costs what changed: of ten thousand Services, the one. Nothing is
//! decided by it, and nothing is in it that is not on the objects: to lose it costs time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use serde_json::Value;

use super::IngressSummary;
use super::readiness::{AckSummary, ReplicaAcks};
use crate::api::egress;
use crate::model::controller::ingress_spec::Publisher;
use crate::model::controller::objects::{ChildService, EgressConfigMap, Owner, RenderContext};
use crate::model::controller::tenancy::Tenancy;

/// What is remembered of a group.
#[derive(Debug, Default)]
pub struct Memory {
    base: ChildDependencies,
    /// By the address of the user's Service, which is held and so is nobody else's.
    services: HashMap<usize, Arc<ServedService>>,
    standing: Option<ReplicaAcks>,
    config: Option<CachedConfig>,
    evaluated: u64,
    /// What was told last to those who ask a group to be published that publishes nothing. To lose it is to tell it once more.
    messages: HashMap<Publisher, String>,
    /// What became of what the group is asked to publish, by the newest pass; none if it publishes nothing.
    pub(super) summary: Option<IngressSummary>,
}

/// What children depend on beside their Services.
#[derive(Debug, Default, PartialEq, Eq)]
struct ChildDependencies {
    namespace: String,
    domain: String,
    health: u16,
    tenancy: Tenancy,
}

#[derive(Debug, Clone)]
pub(super) struct ServedService {
    pub(super) service: Arc<Service>,
    pub(super) object: Arc<Value>,
    pub(super) child: Arc<ChildService>,
    pub(super) entry: Arc<egress::EgressService>,
    /// What it is called in the config: by its own name, which runs together with no other.
    pub(super) name: Arc<str>,
    /// How the replicas stood when it was found to say so, and to stand for its child.
    pub(super) acks: Option<AckSummary>,
}

/// The egress config, and what it was made from.
#[derive(Debug)]
struct CachedConfig {
    entries: Arc<Entries>,
    made: Arc<EgressConfigMap>,
    /// The object that was found to hold it.
    object: Option<Arc<Value>>,
}

pub(super) type Entries = BTreeMap<Arc<str>, Arc<egress::EgressService>>;

impl Memory {
    /// How many Services were evaluated anew, of all that were looked at.
    #[must_use]
    pub fn evaluated(&self) -> u64 {
        self.evaluated
    }

    /// What became of what the group is asked to publish, by the newest pass; none if it publishes nothing.
    #[must_use]
    pub fn summary(&self) -> Option<&IngressSummary> {
        self.summary.as_ref()
    }

    /// Whether nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && self.config.is_none() && self.messages.is_empty()
    }

    /// Remembers what one is told. Whether it is news.
    pub(super) fn is_new_message(&mut self, claimant: &Publisher, message: Option<&str>) -> bool {
        if self.messages.get(claimant).map(String::as_str) == message {
            return false;
        }
        match message {
            Some(message) => drop(self.messages.insert(claimant.clone(), message.to_owned())),
            None => drop(self.messages.remove(claimant)),
        }
        true
    }

    /// Forgets what was made for other settings.
    pub(super) fn on(&mut self, shape: &RenderContext<'_>, tenancy: &Tenancy) {
        let base = ChildDependencies {
            namespace: shape.settings.namespace.clone(),
            domain: shape.settings.cluster_domain.clone(),
            health: shape.health_port(),
            tenancy: tenancy.clone(),
        };
        if self.base != base {
            *self = Self { base, evaluated: self.evaluated, ..Self::default() };
        }
    }

    /// What is known of a Service that is as it was.
    pub(super) fn served(&self, service: &Arc<Service>) -> Option<&Arc<ServedService>> {
        self.services.get(&address(service))
    }

    /// Whether every service stands to these replicas as it did.
    pub(super) fn stands(&self, standing: &ReplicaAcks) -> bool {
        self.standing.as_ref().is_some_and(|before| before.same(standing))
    }

    /// Keeps this of the Services, and nothing else.
    pub(super) fn keep(&mut self, served: Vec<Arc<ServedService>>, evaluated: usize, standing: ReplicaAcks) {
        self.services = served.into_iter().map(|one| (address(&one.service), one)).collect();
        self.standing = Some(standing);
        self.evaluated += u64::try_from(evaluated).unwrap_or(u64::MAX);
    }

    /// The config of these services: the one that there is, if they are the same.
    pub(super) fn config(&mut self, owner: &Owner, entries: &Arc<Entries>, replicas: u32, next_port: u16) -> Arc<EgressConfigMap> {
        if let Some(cached) =
            self.config.as_ref().filter(|existing| existing.made.is_for(owner, replicas, next_port) && same(&existing.entries, entries))
        {
            return Arc::clone(&cached.made);
        }
        let made = Arc::new(EgressConfigMap::new(owner, &**entries, replicas, next_port));
        self.config = Some(CachedConfig { entries: Arc::clone(entries), made: Arc::clone(&made), object: None });
        made
    }

    /// The services of a config, if it is known to hold the one that was made last.
    pub(super) fn entries(&self, object: &Arc<Value>) -> Option<Arc<Entries>> {
        let config = self.config.as_ref().filter(|config| config.object.as_ref().is_some_and(|cached| Arc::ptr_eq(cached, object)));
        config.map(|config| Arc::clone(&config.entries))
    }

    /// Whether an object holds the config that was made last.
    pub(super) fn has_config(&mut self, object: Option<&Arc<Value>>) -> bool {
        let (Some(config), Some(object)) = (&mut self.config, object) else { return false };
        if config.object.as_ref().is_some_and(|cached| Arc::ptr_eq(cached, object)) {
            return true;
        }
        let holds = config.made.holds(object);
        config.object = holds.then(|| Arc::clone(object));
        holds
    }
}

/// Where something is, which nothing else is for as long as it is held.
pub(super) fn address<T>(of: &Arc<T>) -> usize {
    Arc::as_ptr(of).addr()
}

fn same(one: &Entries, other: &Entries) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| Arc::ptr_eq(one.1, other.1) && one.0 == other.0)
}
