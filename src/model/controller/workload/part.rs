//! A part of a plan, and the rules for every object in it.
//!
//! Each part of the planner returns one and sees no other. An up-to-date object is not written, a foreign one not overwritten, and one that
//! is being deleted is waited for.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::time::Duration;

use serde_json::Value;

use crate::api::condition::reason;
use crate::model::base::conditions::DesiredCondition;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::workload::actions::{GroupPlan, Notice};
use crate::model::controller::workload::objects::{Kind, Manifest, ObjectRef, Owner, applied};
use crate::model::controller::workload::pass::{Ownership, Pass, deletion};
use crate::model::controller::workload::secret_name::SecretName;

/// A fault of the workload. The first one is reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkloadFault {
    /// Reason of condition and Event.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// A part of the plan. The kind of the workload merges the parts in order.
#[derive(Debug)]
pub(crate) struct PlanPart<'a> {
    pass: Pass<'a>,
    pub(crate) plan: GroupPlan,
    pub(crate) faults: Vec<WorkloadFault>,
    /// Conditions besides readiness.
    pub(crate) conditions: Vec<DesiredCondition<'static>>,
    /// Whether those that the workload has stay, as the state is not known yet.
    pub(crate) keeps_conditions: bool,
    /// URL of the Kubernetes API that the workload publishes.
    pub(crate) url: Option<String>,
}

impl<'a> Deref for PlanPart<'a> {
    type Target = Pass<'a>;

    fn deref(&self) -> &Pass<'a> {
        &self.pass
    }
}

impl<'a> Pass<'a> {
    /// An empty part.
    pub(crate) fn part(&self) -> PlanPart<'a> {
        let (plan, faults, conditions) = (GroupPlan::default(), Vec::new(), Vec::new());
        PlanPart { pass: *self, plan, faults, conditions, keeps_conditions: false, url: None }
    }
}

impl PlanPart<'_> {
    /// The complete plan. An object is deleted once.
    pub(crate) fn finish(self) -> GroupPlan {
        let (mut plan, mut deleted) = (self.plan, BTreeSet::new());
        plan.delete.retain(|delete| deleted.insert(delete.object.clone()));
        plan
    }

    /// Appends another part.
    pub(crate) fn add(&mut self, part: PlanPart<'_>) {
        let GroupPlan {
            apply,
            slices,
            delete,
            control,
            group,
            services,
            events,
            faults,
            refused,
            new_names,
            again,
            replaces,
            proxy,
            summary,
        } = part.plan;
        let plan = &mut self.plan;
        plan.apply.extend(apply);
        plan.slices.extend(slices);
        plan.delete.extend(delete);
        plan.control.extend(control);
        plan.group = group.or(plan.group.take());
        plan.services.extend(services);
        plan.events.extend(events);
        plan.faults.extend(faults);
        plan.refused.extend(refused);
        plan.new_names.extend(new_names);
        plan.again = plan.again.into_iter().chain(again).min();
        plan.replaces |= replaces;
        plan.proxy = proxy.max(plan.proxy);
        plan.summary = summary.or(plan.summary.take());
        self.faults.extend(part.faults);
        self.conditions.extend(part.conditions);
        self.keeps_conditions |= part.keeps_conditions;
        self.url = part.url.or(self.url.take());
    }

    /// Plans an object. Returns whether it is up to date.
    pub(crate) fn want(&mut self, manifest: Manifest) -> bool {
        match self.owned(&manifest.object) {
            Some(existing) if manifest.holds(existing) => true,
            _ => self.write(manifest),
        }
    }

    /// Plans the write of an outdated object; returns false.
    pub(crate) fn write(&mut self, manifest: Manifest) -> bool {
        match self.owned(&manifest.object) {
            None => self.plan.apply.push(manifest),
            Some(existing) => match self.ownership(&manifest.object, existing) {
                Ownership::Going if self.is_held(&manifest.object, existing) => self.plan.delete.push(deletion(&manifest.object, existing)),
                Ownership::Going => {}
                Ownership::Foreign => self.faults.push(object_conflict(self.owner, &manifest.object)),
                Ownership::Ours => {
                    // An apply with the fields of all writers would remove what Pods have written.
                    let object = &manifest.object;
                    let is_filled = object.kind == Kind::Secret && SecretName::parse(&object.name).is_written_by_pods();
                    let adopt = !is_filled && (manifest.adopt || applied(existing).is_none());
                    self.plan.apply.push(Manifest { adopt, ..manifest.replacing(existing) });
                }
            },
        }
        false
    }

    /// Whether the part writes an object.
    pub(crate) fn is_planned(&self, object: &ObjectRef) -> bool {
        self.plan.apply.iter().any(|manifest| manifest.object == *object)
    }

    /// Plans the deletion of an object, if it exists and belongs to the workload.
    pub(crate) fn delete(&mut self, object: &ObjectRef) {
        let is_ours = |found: &Value| self.ownership(object, found) == Ownership::Ours || self.is_held(object, found);
        if let Some(existing) = self.owned(object).filter(|found| is_ours(found)) {
            self.plan.delete.push(deletion(object, existing));
        }
    }

    /// Requeues after this time at the latest.
    pub(crate) fn again(&mut self, after: Duration) {
        self.plan.again = Some(self.plan.again.map_or(after, |earlier| earlier.min(after)));
    }

    pub(crate) fn fault(&mut self, reason: &'static str, message: String) {
        self.faults.push(WorkloadFault { reason, message });
    }

    /// Reports a fault of an object while it lasts.
    pub(crate) fn lasting(&mut self, subject: WorkloadKey, reason: &'static str, message: String) {
        self.plan.faults.push(Notice { subject, warning: true, reason, message });
    }

    /// Emits a warning about the workload's own object.
    pub(crate) fn warn_workload(&mut self, reason: &'static str, message: String) {
        self.warn(self.observed.key.clone(), reason, message);
    }

    pub(crate) fn warn(&mut self, subject: WorkloadKey, reason: &'static str, message: String) {
        self.plan.events.push(Notice { subject, warning: true, reason, message });
    }
}

/// Fault of an object with the name of one of ours.
pub(crate) fn object_conflict(owner: &Owner, object: &ObjectRef) -> WorkloadFault {
    let end = if owner.key.group().is_none() { "Delete it." } else { "Delete it, or give the ProxyGroup another name." };
    let message = format!("{object} already exists and does not belong to this {}. {end}", owner.key.kind());
    WorkloadFault { reason: reason::PROXY_GROUP_CREATION_FAILED, message }
}
