//! Builder of a pass: the plan so far, and the rules for every object.
//!
//! An up-to-date object is not written, a foreign one not overwritten, and one that is being deleted is waited for.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::readiness::elapsed;
use super::{ControlPlaneError, Delete, GroupPlan, Memory, Notice, Observed, Subject};
use crate::api::condition::reason;
use crate::api::names;
use crate::model::base::conditions::DesiredCondition;
use crate::model::controller::objects::{Manifest, ObjectRef, Owner, applied};
use crate::model::controller::standalone;

/// Time for which a group's deletion waits for an unavailable control plane.
pub(super) const AWAY: Duration = Duration::from_mins(5);

/// A fault of the group. The first one is reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GroupFault {
    /// Reason of condition and Event.
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// A pass under construction.
#[derive(Debug)]
pub(super) struct GroupPass<'a> {
    pub(super) observed: &'a Observed,
    pub(super) memory: &'a mut Memory,
    pub(super) pass: GroupPlan,
    pub(super) faults: Vec<GroupFault>,
    /// Conditions besides readiness.
    pub(super) conditions: Vec<DesiredCondition<'static>>,
    pub(super) keeps_conditions: bool,
}

impl<'a> GroupPass<'a> {
    pub(super) fn new(observed: &'a Observed, memory: &'a mut Memory) -> Self {
        memory.summary = None;
        memory.assign(&observed.name, &observed.assignment);
        Self { observed, memory, pass: GroupPlan::default(), faults: Vec::new(), conditions: Vec::new(), keeps_conditions: false }
    }

    pub(super) fn owned(&self, object: &ObjectRef) -> Option<&'a Arc<Value>> {
        self.observed.owned.get(object)
    }

    /// Plans an object. Returns whether it is up to date.
    pub(super) fn want(&mut self, owner: &Owner, manifest: Manifest) -> bool {
        match self.owned(&manifest.object) {
            Some(existing) if manifest.holds(existing) => true,
            _ => self.write(owner, manifest),
        }
    }

    /// Plans the write of an outdated object; returns false.
    pub(super) fn write(&mut self, owner: &Owner, manifest: Manifest) -> bool {
        match self.owned(&manifest.object) {
            None => self.pass.apply.push(manifest),
            Some(existing) => match whose(owner, existing) {
                Ownership::Going => {}
                Ownership::Foreign => self.faults.push(in_the_way(owner, &manifest.object)),
                Ownership::Ours => self.pass.apply.push(Manifest { adopt: manifest.adopt || applied(existing).is_none(), ..manifest }),
            },
        }
        false
    }

    /// Whether an object of this name has another owner.
    pub(super) fn foreign(&self, owner: &Owner, object: &ObjectRef) -> bool {
        self.owned(object).is_some_and(|existing| whose(owner, existing) == Ownership::Foreign)
    }

    /// Whether the pass writes an object.
    pub(super) fn is_planned(&self, object: &ObjectRef) -> bool {
        self.pass.apply.iter().any(|manifest| manifest.object == *object)
    }

    /// Plans the deletion of an object, if it exists and belongs to the group.
    pub(super) fn delete(&mut self, owner: &Owner, object: &ObjectRef) {
        if let Some(existing) = self.owned(object).filter(|found| whose(owner, found) == Ownership::Ours) {
            self.pass.delete.push(deletion(object, existing));
        }
    }

    /// Requeues after this time at the latest.
    pub(super) fn again(&mut self, after: Duration) {
        self.pass.again = Some(self.pass.again.map_or(after, |earlier| earlier.min(after)));
    }

    /// Whether the group's deletion continues despite a denial, because it has lasted too long.
    pub(super) fn given_up(&self, denial: &ControlPlaneError) -> bool {
        self.waited() && elapsed(denial.since, self.observed.now) >= AWAY
    }

    /// Whether the group's deletion has waited for the control plane long enough.
    pub(super) fn waited(&self) -> bool {
        let since = self.observed.group.as_ref().and_then(|group| group.metadata.deletion_timestamp.as_ref());
        since.is_some_and(|since| elapsed(since.0, self.observed.now) >= AWAY)
    }

    pub(super) fn fault(&mut self, reason: &'static str, message: String) {
        self.faults.push(GroupFault { reason, message });
    }

    /// Reports a fault of an object while it lasts.
    pub(super) fn lasting(&mut self, subject: Subject, reason: &'static str, message: String) {
        self.pass.faults.push(Notice { subject, warning: true, reason, message });
    }

    pub(super) fn warn(&mut self, subject: Subject, reason: &'static str, message: String) {
        self.pass.events.push(Notice { subject, warning: true, reason, message });
    }
}

/// Deletion of an object, with its UID as precondition.
pub(super) fn deletion(object: &ObjectRef, existing: &Value) -> Delete {
    Delete { object: object.clone(), uid: existing["metadata"]["uid"].as_str().map(str::to_owned) }
}

pub(super) fn going(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// Owner of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ownership {
    Ours,
    /// Being deleted: wait.
    Going,
    /// Another owner's: neither written nor deleted.
    Foreign,
}

/// Owner of an object: by controller reference, else by labels.
pub(super) fn whose(owner: &Owner, existing: &Value) -> Ownership {
    let metadata = &existing["metadata"];
    let controller = metadata["ownerReferences"].as_array().into_iter().flatten().find(|reference| reference["controller"] == true);
    let ours = match controller {
        Some(reference) => reference["uid"] == *owner.uid,
        None => metadata["labels"].as_object().is_some_and(|labels| labelled(owner, labels)),
    };
    match (going(existing), ours) {
        (true, _) => Ownership::Going,
        (false, true) => Ownership::Ours,
        (false, false) => Ownership::Foreign,
    }
}

fn in_the_way(owner: &Owner, object: &ObjectRef) -> GroupFault {
    let message = match &owner.parent {
        None => format!("{object} is in the way: it was not made for this ProxyGroup. Delete it, or give the ProxyGroup another name."),
        Some(parent) => format!("{object} is in the way: it was not made for this {}. Delete it.", parent.source.kind()),
    };
    GroupFault { reason: reason::PROXY_GROUP_CREATION_FAILED, message }
}

fn labelled(owner: &Owner, labels: &serde_json::Map<String, Value>) -> bool {
    let label = |key: &str| labels.get(key).and_then(Value::as_str);
    if let Some(parent) = &owner.parent {
        return label(names::MANAGED) == Some("true") && standalone::key_of(label) == Some(standalone::key(parent));
    }
    label(names::MANAGED) == Some("true")
        && match label(names::PARENT_TYPE) {
            Some(names::PARENT_GROUP) => label(names::PARENT) == Some(&owner.group),
            Some(names::PARENT_SERVICE) => label(names::PROXY_GROUP) == Some(&owner.group),
            // A certificate belongs to its name, whichever group serves it.
            Some(names::PARENT_INGRESS) => label(names::SECRET_TYPE) == Some(names::CERTS),
            _ => label(names::PROXY_TYPE) == Some(names::PARENT_GROUP) && label(names::PROXY_PARENT) == Some(&owner.group),
        }
}
