//! Memo of a pass: results for Services that are unchanged since the previous pass.
//!
//! A store returns an unchanged object as the same `Arc`, so pointer identity is sufficient. A pass with a memo gives the same plan as one
//! without, at the cost of the changes: of ten thousand Services, the changed one. The memo has no data that is not on the objects, so
//! losing it costs only time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use serde_json::Value;

use crate::api::egress;
use crate::api::proxygroup::TrafficDistribution;
use crate::model::controller::egress::acks::{AckSummary, ReplicaAcks};
use crate::model::controller::policy::assignment::AssignmentRules;
use crate::model::controller::policy::tenancy::Tenancy;
use crate::model::controller::workload::objects::Owner;
use crate::model::controller::workload::objects::child::ChildService;
use crate::model::controller::workload::objects::services::{EgressConfigMap, egress_config};
use crate::model::controller::workload::objects::shape::RenderContext;

/// Remembered results for a group.
#[derive(Debug, Default)]
pub struct Memory {
    base: ChildDependencies,
    assignment: Arc<AssignmentRules>,
    /// By address of the user's Service; the `Arc` is held, so the address is unique.
    services: HashMap<usize, Arc<ServedService>>,
    replica_acks: Option<ReplicaAcks>,
    config: Option<CachedConfig>,
    evaluated: u64,
}

/// Inputs of children besides their Services.
#[derive(Debug, Default, PartialEq, Eq)]
struct ChildDependencies {
    namespace: String,
    domain: String,
    health: u16,
    distribution: Option<TrafficDistribution>,
    tenancy: Tenancy,
}

#[derive(Debug, Clone)]
pub(crate) struct ServedService {
    pub(crate) service: Arc<Service>,
    pub(crate) object: Arc<Value>,
    pub(crate) child: Arc<ChildService>,
    pub(crate) entry: Arc<egress::EgressService>,
    /// Name in the config: the default name, which is unique.
    pub(crate) name: Arc<str>,
    /// Acknowledgements when its status and `externalName` were up to date.
    pub(crate) acks: Option<AckSummary>,
}

/// Egress config and its inputs.
#[derive(Debug)]
struct CachedConfig {
    entries: Arc<Entries>,
    made: Arc<EgressConfigMap>,
    /// Observed object with this content.
    object: Option<Arc<Value>>,
}

pub(crate) type Entries = BTreeMap<Arc<str>, Arc<egress::EgressService>>;

impl Memory {
    /// Number of evaluated Services so far.
    pub fn evaluated(&self) -> u64 {
        self.evaluated
    }

    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && self.config.is_none()
    }

    /// Discards results for other settings.
    pub(crate) fn on(&mut self, shape: &RenderContext<'_>, tenancy: &Tenancy) {
        let base = ChildDependencies {
            namespace: shape.settings.namespace.clone(),
            domain: shape.settings.cluster_domain.clone(),
            health: shape.health_port(),
            distribution: shape.traffic_distribution(),
            tenancy: tenancy.clone(),
        };
        if self.base != base {
            *self = Self { base, assignment: Arc::clone(&self.assignment), evaluated: self.evaluated, ..Self::default() };
        }
    }

    /// Discards results for Services that changed rules assign to another group.
    pub(crate) fn assign(&mut self, group: &str, rules: &Arc<AssignmentRules>) {
        if !Arc::ptr_eq(&self.assignment, rules) {
            self.services.retain(|_, served| rules.egress(&served.service).group() == Some(group));
            self.assignment = Arc::clone(rules);
        }
    }

    /// Result for an unchanged Service.
    pub(crate) fn served(&self, service: &Arc<Service>) -> Option<&Arc<ServedService>> {
        self.services.get(&address(service))
    }

    /// Whether the acknowledgements are unchanged.
    pub(crate) fn matches(&self, replica_acks: &ReplicaAcks) -> bool {
        self.replica_acks.as_ref().is_some_and(|before| before.same(replica_acks))
    }

    /// Replaces the remembered results.
    pub(crate) fn keep(&mut self, served: Vec<Arc<ServedService>>, evaluated: usize, replica_acks: ReplicaAcks) {
        self.services = served.into_iter().map(|one| (address(&one.service), one)).collect();
        self.replica_acks = Some(replica_acks);
        self.evaluated += u64::try_from(evaluated).unwrap_or(u64::MAX);
    }

    /// Config of these services: the cached one if equal.
    pub(crate) fn config(&mut self, owner: &Owner, entries: &Arc<Entries>, replicas: u32, next_port: u16) -> Arc<EgressConfigMap> {
        if let Some(cached) =
            self.config.as_ref().filter(|existing| existing.made.is_for(owner, replicas, next_port) && same(&existing.entries, entries))
        {
            return Arc::clone(&cached.made);
        }
        let made = Arc::new(EgressConfigMap::new(owner, &**entries, replicas, next_port));
        self.config = Some(CachedConfig { entries: Arc::clone(entries), made: Arc::clone(&made), object: None });
        made
    }

    /// Services of a config object that has the cached content.
    fn entries(&self, object: &Arc<Value>) -> Option<Arc<Entries>> {
        let config = self.config.as_ref().filter(|config| config.object.as_ref().is_some_and(|cached| Arc::ptr_eq(cached, object)));
        config.map(|config| Arc::clone(&config.entries))
    }

    /// Services of the observed config; parsed if its content is not the cached one.
    pub(crate) fn before(&self, observed: Option<&Arc<Value>>) -> Arc<Entries> {
        let read = |config: &Arc<Value>| egress_config(config).into_iter().map(|(name, entry)| (name.into(), Arc::new(entry))).collect();
        observed.map(|existing| self.entries(existing).unwrap_or_else(|| Arc::new(read(existing)))).unwrap_or_default()
    }

    /// Whether an object has the cached content.
    pub(crate) fn has_config(&mut self, object: Option<&Arc<Value>>) -> bool {
        let (Some(config), Some(object)) = (&mut self.config, object) else { return false };
        if config.object.as_ref().is_some_and(|cached| Arc::ptr_eq(cached, object)) {
            return true;
        }
        let holds = config.made.holds(object);
        config.object = holds.then(|| Arc::clone(object));
        holds
    }
}

/// Address of a value, unique while it is held.
pub(crate) fn address<T>(of: &Arc<T>) -> usize {
    Arc::as_ptr(of).addr()
}

fn same(one: &Entries, other: &Entries) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| Arc::ptr_eq(one.1, other.1) && one.0 == other.0)
}
