//! Changes of a user's Service: the conditions that one pass sets and removes, written only if the list differs.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::api::condition::Condition;
use crate::api::names;
use crate::model::base::conditions::{self, ConditionStatus, DesiredCondition};
use crate::model::controller::key::PublishSource;
use crate::model::controller::workload::actions::{ExternalNameUpdate, ObjectUpdate};
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::Pass;

/// Builder of a Service's conditions. Those that are neither set nor removed stay.
pub(crate) struct ServiceConditions<'a> {
    service: &'a Service,
    conditions: Vec<Condition>,
    now: Timestamp,
    changed: bool,
}

/// Changes besides conditions and finalizer: `externalName` and `status.loadBalancer`.
pub(crate) type ServiceChanges = (Option<ExternalNameUpdate>, Option<Value>);

impl<'a> ServiceConditions<'a> {
    pub(crate) fn new(work: &Pass<'_>, service: &'a Service) -> Self {
        let conditions = service.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        Self { service, conditions, now: work.observed.now, changed: false }
    }

    /// Sets a condition. Returns whether it changes.
    pub(crate) fn set(&mut self, kind: &'static str, status: ConditionStatus, reason: &str, message: String) -> bool {
        let wanted = DesiredCondition { kind, status, reason, message, generation: 0 };
        let changed = conditions::set(&mut self.conditions, &wanted, self.now);
        self.changed |= changed;
        changed
    }

    /// Removes a condition. Returns whether it existed.
    pub(crate) fn remove(&mut self, kind: &str) -> bool {
        let changed = conditions::remove(&mut self.conditions, kind);
        self.changed |= changed;
        changed
    }

    /// The conditions, if any changes.
    pub(crate) fn changed(self) -> Option<Vec<Condition>> {
        self.changed.then_some(self.conditions)
    }

    /// Plans the update of a Service with the finalizer of its own proxy or of egress groups. Returns whether anything changes.
    pub(crate) fn update(self, work: &mut PlanPart<'_>, finalized: bool, (external_name, load_balancer): ServiceChanges) -> bool {
        let update = ObjectUpdate::new(PublishSource::Service, &self.service.metadata, names::FINALIZER, finalized);
        work.plan.update(ObjectUpdate { external_name, load_balancer, conditions: self.changed(), ..update })
    }
}
