//! Builder of a pass: the plan so far, and the rules for every object.
//!
//! An up-to-date object is not written, a foreign one not overwritten, and one that is being deleted is waited for.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::api::condition::reason;
use crate::api::names;
use crate::model::base::conditions::DesiredCondition;
use crate::model::controller::egress::memo::Memory;
use crate::model::controller::workload::actions::{Delete, GroupPlan, Notice};
use crate::model::controller::workload::key::WorkloadKey;
use crate::model::controller::workload::objects::secrets::config_ref;
use crate::model::controller::workload::objects::standalone_service::selected_app;
use crate::model::controller::workload::objects::{Kind, Manifest, ObjectRef, Owner, applied};
use crate::model::controller::workload::observed::{ControlPlaneError, Observed};
use crate::model::controller::workload::readiness::elapsed;
use crate::model::controller::workload::secret_name::SecretName;
use crate::model::controller::workload::spec::WorkloadSpec;

/// Time for which a group's deletion waits for an unavailable control plane.
pub(crate) const AWAY: Duration = Duration::from_mins(5);

/// A fault of the group. The first one is reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupFault {
    /// Reason of condition and Event.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// A pass under construction.
#[derive(Debug)]
pub(crate) struct GroupPass<'a> {
    pub(crate) observed: &'a Observed,
    /// What the object requests; `None` without an object.
    pub(crate) spec: Option<&'a WorkloadSpec<'a>>,
    pub(crate) memory: &'a mut Memory,
    pub(crate) pass: GroupPlan,
    pub(crate) faults: Vec<GroupFault>,
    /// Conditions besides readiness.
    pub(crate) conditions: Vec<DesiredCondition<'static>>,
    pub(crate) keeps_conditions: bool,
}

impl<'a> GroupPass<'a> {
    pub(crate) fn new(observed: &'a Observed, spec: Option<&'a WorkloadSpec<'a>>, memory: &'a mut Memory) -> Self {
        memory.summary = None;
        memory.assign(observed.key.group_name(), &observed.assignment);
        Self { observed, spec, memory, pass: GroupPlan::default(), faults: Vec::new(), conditions: Vec::new(), keeps_conditions: false }
    }

    /// The workload as owner of its objects.
    pub(crate) fn owner(&self) -> Owner {
        let observed = self.observed;
        let (name, namespace) = (observed.workload.clone(), observed.settings.namespace.clone());
        let uid = observed.metadata().and_then(|metadata| metadata.uid.clone()).unwrap_or_default();
        let set = self.owned(&ObjectRef::new(Kind::StatefulSet, &namespace, name.clone()));
        let app = set.filter(|_| observed.key.is_standalone()).and_then(|set| selected_app(set)).map_or_else(|| uid.clone(), str::to_owned);
        Owner { key: observed.key.clone(), name, uid, namespace, app }
    }

    pub(crate) fn owned(&self, object: &ObjectRef) -> Option<&'a Arc<Value>> {
        self.observed.owned.get(object)
    }

    /// Plans an object. Returns whether it is up to date.
    pub(crate) fn want(&mut self, owner: &Owner, manifest: Manifest) -> bool {
        match self.owned(&manifest.object) {
            Some(existing) if manifest.holds(existing) => true,
            _ => self.write(owner, manifest),
        }
    }

    /// Plans the write of an outdated object; returns false.
    pub(crate) fn write(&mut self, owner: &Owner, manifest: Manifest) -> bool {
        match self.owned(&manifest.object) {
            None => self.pass.apply.push(manifest),
            Some(existing) => match self.ownership(owner, &manifest.object, existing) {
                Ownership::Going => {}
                Ownership::Foreign => self.faults.push(in_the_way(owner, &manifest.object)),
                Ownership::Ours => {
                    let adopt = manifest.adopt || applied(existing).is_none();
                    self.pass.apply.push(Manifest { adopt, ..manifest.replacing(existing) });
                }
            },
        }
        false
    }

    /// Whether an object of this name has another owner.
    pub(crate) fn foreign(&self, owner: &Owner, object: &ObjectRef) -> bool {
        self.owned(object).is_some_and(|existing| self.ownership(owner, object, existing) == Ownership::Foreign)
    }

    /// Whether the pass writes an object.
    pub(crate) fn is_planned(&self, object: &ObjectRef) -> bool {
        self.pass.apply.iter().any(|manifest| manifest.object == *object)
    }

    /// Plans the deletion of an object, if it exists and belongs to the group.
    pub(crate) fn delete(&mut self, owner: &Owner, object: &ObjectRef) {
        if let Some(existing) = self.owned(object).filter(|found| self.ownership(owner, object, found) == Ownership::Ours) {
            self.pass.delete.push(deletion(object, existing));
        }
    }

    /// Requeues after this time at the latest.
    pub(crate) fn again(&mut self, after: Duration) {
        self.pass.again = Some(self.pass.again.map_or(after, |earlier| earlier.min(after)));
    }

    /// Whether the group's deletion continues despite a denial, because it has lasted too long.
    pub(crate) fn given_up(&self, denial: &ControlPlaneError) -> bool {
        self.waited() && elapsed(denial.since, self.observed.now) >= AWAY
    }

    /// Whether the group's deletion has waited for the control plane long enough.
    pub(crate) fn waited(&self) -> bool {
        let since = self.observed.metadata().and_then(|metadata| metadata.deletion_timestamp.as_ref());
        since.is_some_and(|since| elapsed(since.0, self.observed.now) >= AWAY)
    }

    pub(crate) fn fault(&mut self, reason: &'static str, message: String) {
        self.faults.push(GroupFault { reason, message });
    }

    /// Reports a fault of an object while it lasts.
    pub(crate) fn lasting(&mut self, subject: WorkloadKey, reason: &'static str, message: String) {
        self.pass.faults.push(Notice { subject, warning: true, reason, message });
    }

    /// Emits a warning about the workload's own object.
    pub(crate) fn warn_workload(&mut self, reason: &'static str, message: String) {
        self.warn(self.observed.key.clone(), reason, message);
    }

    pub(crate) fn warn(&mut self, subject: WorkloadKey, reason: &'static str, message: String) {
        self.pass.events.push(Notice { subject, warning: true, reason, message });
    }
}

/// Deletion of an object, with its UID as precondition.
pub(crate) fn deletion(object: &ObjectRef, existing: &Value) -> Delete {
    Delete { object: object.clone(), uid: existing["metadata"]["uid"].as_str().map(str::to_owned) }
}

pub(crate) fn going(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// Owner of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ownership {
    Ours,
    /// Being deleted: wait.
    Going,
    /// Another owner's: neither written nor deleted.
    Foreign,
}

impl GroupPass<'_> {
    /// Owner of an existing object. Labels of Secrets that Pods may write are no evidence: their names are, with the workload's record.
    pub(crate) fn ownership(&self, owner: &Owner, object: &ObjectRef, existing: &Value) -> Ownership {
        let secret = if object.kind == Kind::Secret { SecretName::parse(&object.name) } else { SecretName::Other };
        let ours = match secret {
            SecretName::State { workload, ordinal } => {
                let recorded = || self.owned(&config_ref(owner, ordinal)).is_some();
                self.is_own_workload(owner, workload) && (is_managed(existing) || recorded())
            }
            SecretName::Account { workload } => workload == owner.name && is_managed(existing),
            // That of a group's name is the group's that has the name.
            SecretName::Certificate if owner.key.is_standalone() => is_labelled(owner, existing),
            SecretName::Certificate => {
                let labels = &existing["metadata"]["labels"];
                let is_anothers = labels.get(names::PARENT_TYPE).is_some_and(|kind| kind != names::PARENT_INGRESS);
                is_managed(existing) && !is_anothers && labels[names::CONFIG_PARENT_INGRESS].is_null()
            }
            SecretName::Config { .. } | SecretName::Other => is_labelled(owner, existing),
        };
        match (going(existing), ours) {
            (true, _) => Ownership::Going,
            (false, true) => Ownership::Ours,
            (false, false) => Ownership::Foreign,
        }
    }

    /// Whether a name is that of the workload, or of another one that the Tailscale operator left for the same object.
    fn is_own_workload(&self, owner: &Owner, name: &str) -> bool {
        name == owner.name
            || self.owned(&ObjectRef::new(Kind::StatefulSet, &owner.namespace, name)).is_some_and(|set| is_labelled(owner, set))
    }
}

fn is_managed(object: &Value) -> bool {
    object["metadata"]["labels"][names::MANAGED] == "true"
}

/// Whether the controller reference, else the labels, of an object that no Pod may write name the owner.
fn is_labelled(owner: &Owner, existing: &Value) -> bool {
    let metadata = &existing["metadata"];
    let controller = metadata["ownerReferences"].as_array().into_iter().flatten().find(|reference| reference["controller"] == true);
    match controller {
        Some(reference) => reference["uid"] == *owner.uid,
        None => metadata["labels"].as_object().is_some_and(|labels| labelled(owner, labels)),
    }
}

pub(crate) fn in_the_way(owner: &Owner, object: &ObjectRef) -> GroupFault {
    let end = if owner.key.is_standalone() { "Delete it." } else { "Delete it, or give the ProxyGroup another name." };
    let message = format!("{object} is in the way: it was not made for this {}. {end}", owner.key.kind());
    GroupFault { reason: reason::PROXY_GROUP_CREATION_FAILED, message }
}

fn labelled(owner: &Owner, labels: &serde_json::Map<String, Value>) -> bool {
    let label = |key: &str| labels.get(key).and_then(Value::as_str);
    if owner.key.is_standalone() {
        return label(names::MANAGED) == Some("true") && WorkloadKey::of_object_labels(label).as_ref() == Some(&owner.key);
    }
    label(names::MANAGED) == Some("true")
        && match label(names::PARENT_TYPE) {
            Some(names::PARENT_GROUP) => label(names::PARENT) == Some(&owner.name),
            Some(names::PARENT_SERVICE) => label(names::PROXY_GROUP) == Some(&owner.name),
            _ => label(names::PROXY_TYPE) == Some(names::PARENT_GROUP) && label(names::PROXY_PARENT) == Some(&owner.name),
        }
}
