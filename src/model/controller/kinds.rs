//! Reconciles a workload with all its objects: observed objects in, a [`GroupPlan`] out.
//!
//! The unit of work is the workload, whether or not its object exists. So the config of a group has one writer, and a thousand changed
//! Services cost one write of it. Level-triggered and stateless: a pass stores its records on objects. Performs no I/O.

pub mod connector;
pub mod group_policy;
pub mod nameserver;
pub mod proxyclass;
pub mod proxygroup;
pub mod standalone;
pub mod tailnet;

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Service;

use crate::api::proxygroup::{ProxyGroup, ProxyGroupType};
use crate::model::controller::egress::memo::Memory;
use crate::model::controller::egress::{claims, services};
use crate::model::controller::key::{PublishSource, WorkloadKey};
use crate::model::controller::kinds::proxygroup::{provision, unmanaged};
use crate::model::controller::policy::assignment::{AssignmentRules, StandaloneScope};
use crate::model::controller::policy::requests::is_recorded;
use crate::model::controller::workload::actions::GroupPlan;
use crate::model::controller::workload::finalizers;
use crate::model::controller::workload::objects::{Kind, applied};
use crate::model::controller::workload::observed::Observed;
use crate::model::controller::workload::pass::{Pass, owner};
use crate::model::controller::workload::spec::WorkloadSpec;

/// Plans the changes for a group.
pub fn pass(observed: &Observed) -> GroupPlan {
    plan_with_memo(observed, &mut Memory::default())
}

/// Plans with results of an earlier pass over this group; these save time and do not change the plan.
pub fn plan_with_memo(observed: &Observed, memory: &mut Memory) -> GroupPlan {
    let (spec, owner) = (spec(observed), owner(observed));
    let pass = Pass { observed, spec: spec.as_ref(), owner: &owner };
    memory.assign(observed.key.group_name(), &observed.assignment);
    let part = match (observed.group.as_deref(), spec.as_ref()) {
        _ if observed.key.is_standalone() => standalone::plan(&pass),
        _ if matches!(observed.key, WorkloadKey::Connector(_)) => connector::plan(&pass),
        (None, _) => provision::orphans(&pass, memory),
        (Some(group), Some(spec)) if observed.settings.types.contains(&group.spec.type_) => {
            if observed.ends_since().is_some() {
                provision::end(&pass, group, memory)
            } else {
                provision::provision(&pass, group, spec, memory)
            }
        }
        (Some(group), _) => unmanaged::plan_unmanaged(&pass, group, memory),
    };
    part.finish()
}

/// A setting by which no pass serves or releases a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExcludingSetting {
    GroupTypes,
    Connectors,
    Standalone,
    WatchedNamespaces,
}

impl ExcludingSetting {
    /// The setting that excludes a workload. `group`: that of its key, if it exists.
    pub fn find(key: &WorkloadKey, group: Option<&ProxyGroup>, types: &[ProxyGroupType], rules: &AssignmentRules) -> Option<Self> {
        match &rules.standalone {
            _ if matches!(key, WorkloadKey::Connector(_)) => (!rules.connectors).then_some(Self::Connectors),
            _ if !key.is_standalone() => group.is_some_and(|group| !types.contains(&group.spec.type_)).then_some(Self::GroupTypes),
            _ if rules.serves(key) => None,
            StandaloneScope::Nowhere => Some(Self::Standalone),
            _ => Some(Self::WatchedNamespaces),
        }
    }

    /// Its fault, with the value of the chart.
    pub fn text(self) -> &'static str {
        match self {
            Self::GroupTypes => "its type is not in proxyGroupTypes",
            Self::Connectors => "connectors.enabled is false",
            Self::Standalone => "standalone.enabled is false",
            Self::WatchedNamespaces => "its namespace is not in watchNamespaces",
        }
    }
}

/// Whether nothing of a workload remains: no Pod, no object in the proxies' namespace, and no finalizer of ours on the objects that it
/// served. Of one that the settings exclude nothing is ours, unless this reconciler wrote it last.
pub fn is_released(observed: &Observed) -> bool {
    let owner = owner(observed);
    let pass = Pass { observed, spec: None, owner: &owner };
    let (types, rules) = (&observed.settings.types, &observed.assignment);
    let excluded_by = ExcludingSetting::find(&observed.key, observed.group.as_deref(), types, rules);
    if excluded_by.is_some() && !is_written_last(&pass) {
        return true;
    }
    let own = observed.metadata().filter(|_| !observed.key.is_standalone());
    let services = observed.services.values().map(|service| &service.metadata);
    let ingresses = observed.publish.ingresses.values().map(|ingress| &ingress.metadata);
    let mut users = own.into_iter().chain(services).chain(ingresses);
    let has_pod = observed.replicas.values().any(|replica| replica.pod.is_some()) || observed.waiting.is_some();
    let has_object = observed.owned.iter().any(|(object, existing)| pass.is_own(object, existing));
    let is_own = |name: &String| finalizers::is_releasable(name, &observed.settings.types);
    !has_pod && !has_object && !users.any(|metadata| metadata.finalizers.iter().flatten().any(is_own))
}

/// Whether this reconciler wrote a workload last: its `StatefulSet`, or without one any of its objects. The Tailscale operator, as it takes a
/// workload over, replaces the annotations of the `StatefulSet`.
fn is_written_last(pass: &Pass<'_>) -> bool {
    let own = pass.observed.owned.iter().filter(|(object, existing)| pass.is_own(object, existing));
    let (sets, others): (Vec<_>, Vec<_>) = own.partition(|(object, _)| object.kind == Kind::StatefulSet);
    let deciding = if sets.is_empty() { others } else { sets };
    deciding.into_iter().any(|(_, existing)| applied(existing).is_some())
}

/// The workload that the observed object requests; `None` without an object.
pub fn spec(observed: &Observed) -> Option<WorkloadSpec<'_>> {
    match (observed.parent(), observed.connector.as_deref()) {
        (Some(parent), _) => Some(standalone::request::spec(observed, parent)),
        (None, Some(connector)) => Some(connector::spec(connector)),
        (None, None) => proxygroup::spec(observed.group.as_deref()?),
    }
}

/// The groups that a user's Service affects, besides those with a child of it: the assigned one, the one in its conditions, and its own key
/// if it has a standalone proxy. The empty name means a Service that must be released, or whose annotation is invalid, and has neither.
pub fn concerns(service: &Service, rules: &AssignmentRules) -> BTreeSet<WorkloadKey> {
    let assignment = rules.egress(service);
    let recorded = services::recorded(service);
    let mut groups: BTreeSet<_> = assignment.group().into_iter().chain(recorded).map(WorkloadKey::of_group).collect();
    let (namespace, name) = (service.metadata.namespace.as_deref().unwrap_or_default(), service.metadata.name.as_deref());
    let key = || WorkloadKey::of_object(PublishSource::Service, namespace, name.unwrap_or_default());
    let is_standalone = rules.is_standalone(service) || rules.is_device_request(service) || (is_recorded(service) && rules.serves(&key()));
    // The key of its own proxy reports a fault.
    if groups.is_empty() && (claims::recorded(service) || (assignment.is_faulty() && !is_standalone)) {
        groups.insert(WorkloadKey::of_group(""));
    }
    if is_standalone {
        groups.insert(key());
    }
    groups
}

#[cfg(test)]
pub(crate) mod tests;
