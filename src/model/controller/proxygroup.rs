//! Reconciles a `ProxyGroup` with all its Services: observed objects in, a [`GroupPlan`] out.
//!
//! The unit of work is the group, whether or not its object exists. So the egress config has one writer, and a thousand changed Services
//! cost one write of it. Level-triggered and stateless: a pass stores its records on objects. Performs no I/O.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Service;

use crate::model::controller::group_assignment::AssignmentRules;
use crate::model::controller::ingress_spec::{PublishSource, Publisher};
use crate::model::controller::standalone::{is_recorded, key};

mod actions;
mod claims;
mod device_records;
mod egress;
mod endpoints;
mod handover;
mod ingress;
mod keys;
mod memo;
mod observed;
mod provision;
mod quota;
mod readiness;
mod replicas;
mod room;
mod services;
mod slices;
mod standalone;
mod status;
mod unmanaged;
mod validate;
mod work;

pub use actions::{
    ClaimedDevice, ConfigDraft, ControlAction, Delete, DeviceReport, ExternalNameUpdate, GroupPlan, GroupUpdate, Notice, ObjectUpdate,
    Subject,
};
pub use handover::proxy_conflict;
pub use ingress::{Certified, IngressSummary, PublishState, serves};
pub use keys::{KeyDecision, ReplicaLogin, decide};
pub use memo::Memory;
pub use observed::{
    Approved, Class, ControlPlaneError, DeviceInputs, DeviceRead, GroupCapabilities, GroupSettings, NameConflict, Observed,
    ObservedReplica, PublishInputs, ReplicaConfig, ReplicaState, ServiceList, TailnetState,
};
pub use readiness::{holds, is_from_pod, is_lost, is_ready, lost_message};
pub use slices::{MAX_SLICE_WRITES, is_manual};
pub use standalone::{Replacements, rejected};

/// Plans the changes for a group.
pub fn pass(observed: &Observed) -> GroupPlan {
    plan_with_memo(observed, &mut Memory::default())
}

/// Plans with results of an earlier pass over this group; these save time and do not change the plan.
pub fn plan_with_memo(observed: &Observed, memory: &mut Memory) -> GroupPlan {
    let mut work = work::GroupPass::new(observed, memory);
    match observed.group.as_deref() {
        _ if observed.is_standalone() => standalone::plan(&mut work),
        None => provision::orphans(&mut work),
        Some(group) if !observed.settings.types.contains(&group.spec.type_) => unmanaged::elsewhere(&mut work, group),
        Some(group) if group.metadata.deletion_timestamp.is_some() => provision::end(&mut work, group),
        Some(group) => provision::provision(&mut work, group),
    }
    work.pass
}

/// The groups that a user's Service affects, besides those with a child of it: the assigned one, the one in its conditions, and its own key
/// if it has a standalone proxy. The empty name means a Service that must be released and has neither.
pub fn concerns(service: &Service, rules: &AssignmentRules) -> BTreeSet<String> {
    let assigned = rules.egress(service).group();
    let mut groups: BTreeSet<String> = assigned.into_iter().chain(services::recorded(service)).map(str::to_owned).collect();
    if groups.is_empty() && claims::recorded(service) {
        groups.insert(String::new());
    }
    let (namespace, name) = (service.metadata.namespace.as_deref().unwrap_or_default(), service.metadata.name.as_deref());
    if rules.is_standalone(service) || (rules.standalone.has(namespace) && is_recorded(service)) {
        let (namespace, name) = (namespace.to_owned(), name.unwrap_or_default().to_owned());
        groups.insert(key(&Publisher { source: PublishSource::Service, namespace, name }));
    }
    groups
}

#[cfg(test)]
mod tests;
