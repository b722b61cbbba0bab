//! What a pass takes over from the one before: what it made of Services that are still the very same objects.
//!
//! The stores hand out an object as the same `Arc` for as long as it does not change, so identity is proof enough. A pass with
//! a memory comes to what it comes to without one, and costs what changed: of ten thousand Services, the one. Nothing is
//! decided by it, and nothing is in it that is not on the objects: to lose it costs time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use serde_json::Value;

use super::Summary;
use super::readiness::Standing;
use crate::api::egress;
use crate::model::controller::ingress_spec::Claimant;
use crate::model::controller::objects::{Child, EgressConfig, Owner, Shape};
use crate::model::controller::tenancy::Tenancy;

/// What is remembered of a group.
#[derive(Debug, Default)]
pub struct Memory {
    base: Base,
    /// By the address of the user's Service, which is held and so is nobody else's.
    services: HashMap<usize, Arc<Known>>,
    /// How the replicas stood.
    standing: Option<Standing>,
    config: Option<Config>,
    judged: u64,
    /// What was told last to those who ask a group to be published that publishes nothing. To lose it is to tell it once more.
    told: HashMap<Claimant, String>,
    /// What became of what the group is asked to publish, by the newest pass; none if it publishes nothing.
    pub(super) summary: Option<Summary>,
}

/// What children depend on beside their Services.
#[derive(Debug, Default, PartialEq, Eq)]
struct Base {
    namespace: String,
    domain: String,
    health: u16,
    tenancy: Tenancy,
}

/// A Service that is served, and whose child is as it must be.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) service: Arc<Service>,
    pub(super) object: Arc<Value>,
    pub(super) child: Arc<Child>,
    pub(super) entry: Arc<egress::Service>,
    /// What it is called in the config: by its own name, which runs together with no other.
    pub(super) name: Arc<str>,
    /// How the replicas stood when it was found to say so, and to stand for its child.
    pub(super) told: Option<Stood>,
}

/// How the replicas stand to a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stood {
    /// Whether the config is as it must be.
    pub(super) written: bool,
    /// Every replica that is waited for holds it.
    pub(super) all: bool,
    /// So many forward it now.
    pub(super) ready: usize,
    /// So many there should be.
    pub(super) wanted: usize,
}

/// The egress config, and what it was made from.
#[derive(Debug)]
struct Config {
    entries: Arc<Entries>,
    made: Arc<EgressConfig>,
    /// The object that was found to hold it.
    object: Option<Arc<Value>>,
}

/// The services of a config.
pub(super) type Entries = BTreeMap<Arc<str>, Arc<egress::Service>>;

impl Memory {
    /// How many Services were judged anew, of all that were looked at.
    #[must_use]
    pub fn judged(&self) -> u64 {
        self.judged
    }

    /// What became of what the group is asked to publish, by the newest pass; none if it publishes nothing.
    #[must_use]
    pub fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }

    /// Whether nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && self.config.is_none() && self.told.is_empty()
    }

    /// Remembers what one is told. Whether it is news.
    pub(super) fn told(&mut self, claimant: &Claimant, message: Option<&str>) -> bool {
        if self.told.get(claimant).map(String::as_str) == message {
            return false;
        }
        match message {
            Some(message) => drop(self.told.insert(claimant.clone(), message.to_owned())),
            None => drop(self.told.remove(claimant)),
        }
        true
    }

    /// Forgets what was made for other settings.
    pub(super) fn on(&mut self, shape: &Shape<'_>, tenancy: &Tenancy) {
        let base = Base {
            namespace: shape.settings.namespace.clone(),
            domain: shape.settings.cluster_domain.clone(),
            health: shape.health_port(),
            tenancy: tenancy.clone(),
        };
        if self.base != base {
            *self = Self { base, judged: self.judged, ..Self::default() };
        }
    }

    /// What is known of a Service that is as it was.
    pub(super) fn known(&self, service: &Arc<Service>) -> Option<&Arc<Known>> {
        self.services.get(&address(service))
    }

    /// Whether every service stands to these replicas as it did.
    pub(super) fn stands(&self, standing: &Standing) -> bool {
        self.standing.as_ref().is_some_and(|held| held.same(standing))
    }

    /// Keeps this of the Services, and nothing else.
    pub(super) fn keep(&mut self, known: Vec<Arc<Known>>, judged: usize, standing: Standing) {
        self.services = known.into_iter().map(|known| (address(&known.service), known)).collect();
        self.standing = Some(standing);
        self.judged += u64::try_from(judged).unwrap_or(u64::MAX);
    }

    /// The config of these services: the one that there is, if they are the same.
    pub(super) fn config(&mut self, owner: &Owner, entries: &Arc<Entries>, replicas: u32, next_port: u16) -> Arc<EgressConfig> {
        if let Some(held) = self.config.as_ref().filter(|held| held.made.is_for(owner, replicas, next_port) && same(&held.entries, entries))
        {
            return Arc::clone(&held.made);
        }
        let made = Arc::new(EgressConfig::new(owner, &**entries, replicas, next_port));
        self.config = Some(Config { entries: Arc::clone(entries), made: Arc::clone(&made), object: None });
        made
    }

    /// The services of a config, if it is known to hold the one that was made last.
    pub(super) fn entries(&self, object: &Arc<Value>) -> Option<Arc<Entries>> {
        let config = self.config.as_ref().filter(|config| config.object.as_ref().is_some_and(|held| Arc::ptr_eq(held, object)));
        config.map(|config| Arc::clone(&config.entries))
    }

    /// Whether an object holds the config that was made last.
    pub(super) fn held(&mut self, object: Option<&Arc<Value>>) -> bool {
        let (Some(config), Some(object)) = (&mut self.config, object) else { return false };
        if config.object.as_ref().is_some_and(|held| Arc::ptr_eq(held, object)) {
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
