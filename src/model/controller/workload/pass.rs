//! Inputs of a pass, and whose an existing object is.

use std::sync::Arc;

use serde_json::Value;

use crate::api::names;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::workload::actions::Delete;
use crate::model::controller::workload::objects::secrets::config_ref;
use crate::model::controller::workload::objects::standalone_service::selected_app;
use crate::model::controller::workload::objects::{Kind, ObjectRef, Owner};
use crate::model::controller::workload::observed::{ControlPlaneError, DELETION_TIMEOUT, Observed};
use crate::model::controller::workload::readiness::elapsed;
use crate::model::controller::workload::secret_name::SecretName;
use crate::model::controller::workload::spec::WorkloadSpec;

/// Inputs of every part of the planner.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pass<'a> {
    pub(crate) observed: &'a Observed,
    /// What the object requests; `None` without an object.
    pub(crate) spec: Option<&'a WorkloadSpec<'a>>,
    /// The workload as owner of its objects.
    pub(crate) owner: &'a Owner,
}

impl<'a> Pass<'a> {
    pub(crate) fn owned(&self, object: &ObjectRef) -> Option<&'a Arc<Value>> {
        self.observed.owned.get(object)
    }

    /// Whether an object of the workload is in deletion, and held by finalizers that a Pod may have set: deleting it again removes them.
    pub(crate) fn is_held(&self, object: &ObjectRef, existing: &Value) -> bool {
        let has_finalizers = existing["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        let is_written = object.kind == Kind::Secret && SecretName::parse(&object.name).is_written_by_pods();
        is_terminating(existing) && has_finalizers && is_written && self.is_ours(object, existing)
    }

    /// Whether an object of this name has another owner.
    pub(crate) fn foreign(&self, object: &ObjectRef) -> bool {
        self.owned(object).is_some_and(|existing| self.ownership(object, existing) == Ownership::Foreign)
    }

    /// Whether the workload's deletion continues despite a denial, because it has lasted too long.
    pub(crate) fn deletion_timed_out(&self, denial: &ControlPlaneError) -> bool {
        self.observed.deletion_deadline_passed() && elapsed(denial.since, self.observed.now) >= DELETION_TIMEOUT
    }

    /// Whether an object that is not in a user's namespace, of any state, is the workload's.
    pub(crate) fn is_own(&self, object: &ObjectRef, existing: &Value) -> bool {
        self.is_apart(object) && self.is_ours(object, existing)
    }

    /// Whether an object is in the proxies' namespace, or in none.
    pub(crate) fn is_apart(&self, object: &ObjectRef) -> bool {
        object.namespace == self.owner.namespace || object.kind.is_cluster_wide()
    }
}

/// The workload as owner of its objects.
pub(crate) fn owner(observed: &Observed) -> Owner {
    let (name, namespace) = (observed.workload.clone(), observed.settings.namespace.clone());
    let uid = observed.metadata().and_then(|metadata| metadata.uid.clone()).unwrap_or_default();
    let set = observed.owned.get(&ObjectRef::new(Kind::StatefulSet, &namespace, name.clone()));
    let app = set.filter(|_| observed.key.group().is_none()).and_then(|set| selected_app(set)).map_or_else(|| uid.clone(), str::to_owned);
    Owner { key: observed.key.clone(), name, uid, namespace, app }
}

/// Deletion of an object, with its UID as precondition.
pub(crate) fn deletion(object: &ObjectRef, existing: &Value) -> Delete {
    Delete { object: object.clone(), uid: existing["metadata"]["uid"].as_str().map(str::to_owned) }
}

pub(crate) fn is_terminating(object: &Value) -> bool {
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

impl Pass<'_> {
    /// Owner of an existing object. Labels of Secrets that Pods may write are no evidence: their names are, with the workload's record.
    pub(crate) fn ownership(&self, object: &ObjectRef, existing: &Value) -> Ownership {
        match (is_terminating(existing), self.is_ours(object, existing)) {
            (true, _) => Ownership::Going,
            (false, true) => Ownership::Ours,
            (false, false) => Ownership::Foreign,
        }
    }

    fn is_ours(&self, object: &ObjectRef, existing: &Value) -> bool {
        let owner = self.owner;
        let secret = if object.kind == Kind::Secret { SecretName::parse(&object.name) } else { SecretName::Other };
        match secret {
            SecretName::State { workload, ordinal } => {
                let has_config = || workload == owner.name && self.owned(&config_ref(owner, ordinal)).is_some();
                let is_named = || workload == owner.name && is_managed(existing);
                is_named() || has_config() || self.has_set(workload)
            }
            SecretName::Account { workload } => workload == owner.name && (is_managed(existing) || self.has_set(workload)),
            SecretName::Certificate if owner.key.group().is_none() => is_labelled(owner, existing),
            // That of a group's name is the group's that has the name, unless the proxy of an Ingress uses it.
            SecretName::Certificate => {
                let recorded = self.observed.publish.recorded_certificates.get(existing["metadata"]["uid"].as_str().unwrap_or_default());
                is_managed(existing) && recorded.is_none_or(|recorded| !recorded.in_use)
            }
            SecretName::SharedAccounts => false,
            SecretName::Config { .. } | SecretName::Other => is_labelled(owner, existing),
        }
    }

    /// Whether a `StatefulSet` of this name records the workload, or another one that the Tailscale operator left for the same object.
    fn has_set(&self, name: &str) -> bool {
        let owner = self.owner;
        self.owned(&ObjectRef::new(Kind::StatefulSet, &owner.namespace, name)).is_some_and(|set| is_labelled(owner, set))
    }
}

pub(crate) fn is_managed(object: &Value) -> bool {
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

fn labelled(owner: &Owner, labels: &serde_json::Map<String, Value>) -> bool {
    let label = |key: &str| labels.get(key).and_then(Value::as_str);
    if owner.key.group().is_none() {
        return label(names::MANAGED) == Some("true") && WorkloadKey::of_object_labels(label).as_ref() == Some(&owner.key);
    }
    label(names::MANAGED) == Some("true")
        && match label(names::PARENT_TYPE) {
            Some(names::PARENT_GROUP) => label(names::PARENT) == Some(&owner.name),
            Some(names::PARENT_SERVICE) => label(names::PROXY_GROUP) == Some(&owner.name),
            _ => label(names::PROXY_TYPE) == Some(names::PARENT_GROUP) && label(names::PROXY_PARENT) == Some(&owner.name),
        }
}
