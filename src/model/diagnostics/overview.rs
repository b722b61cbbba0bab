//! Status overview for users: groups, replicas, Services and Connectors, from API objects and the replicas' own status.
//!
//! Unreadable data is a [`Gap`] and leaves the rest unchanged: an unanswered query is never shown as a result. Pure, and consistent with
//! the reconciler: [`crate::model::controller::kinds`] decides whether a replica has a Service.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Serialize;

use crate::api::condition::TRUE;
use crate::api::names;
use crate::api::proxygroup::{ProxyGroup, ProxyGroupType};
use crate::model::controller::workload::readiness::is_ready;
use published::PublishedRecords;

mod connectors;
mod ingress_faults;
mod live;
mod published;
mod replicas;
mod selection;
mod services;
mod snapshot;
mod standalone;
mod text;

pub use connectors::ConnectorOverview;
pub use ingress_faults::{IngressFault, ingress_faults};
pub use live::changes;
pub use published::PublishedOverview;
pub use replicas::{Holding, ProgramVersion, ReplicaOverview};
pub use selection::RowSelection;
pub use services::ServiceOverview;
pub use snapshot::{ClusterView, Gap, LiveStatus, StatusPart, health_port};
pub use standalone::StandaloneOverview;
pub use text::{Width, text};

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    pub groups: Vec<Group>,
    /// Replicas of the groups, by group and ordinal.
    pub replicas: Vec<ReplicaOverview>,
    /// Users' egress Services of groups, by namespace and name.
    pub services: Vec<ServiceOverview>,
    /// Ingresses and Services that groups advertise, by kind, namespace and name.
    pub published: Vec<PublishedOverview>,
    /// Proxies of Services and Ingresses without group, by kind, namespace and name; none if one group is selected.
    pub standalone: Vec<StandaloneOverview>,
    /// Connectors by name.
    pub connectors: Vec<ConnectorOverview>,
    /// Faults of Ingresses, by namespace and name.
    pub ingress_faults: Vec<IngressFault>,
    /// Unreadable parts.
    pub gaps: Vec<Unread>,
    /// Whether it is that of one Service, Ingress or Connector.
    #[serde(skip)]
    pub is_of_object: bool,
}

/// A part that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unread {
    pub part: StatusPart,
    /// Consequence, cause and requirement.
    pub message: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    pub name: String,
    #[serde(rename = "type")]
    pub type_: String,
    /// Replicas that receive traffic; `None` if unknown.
    pub ready: Option<usize>,
    /// Desired number of replicas.
    pub desired: u32,
    pub conditions: Vec<UnhealthyCondition>,
}

/// A condition that is not true.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnhealthyCondition {
    #[serde(rename = "type")]
    pub type_: String,
    /// `False` or `Unknown`.
    pub status: String,
    /// One-word reason.
    pub reason: String,
    pub message: String,
}

impl UnhealthyCondition {
    fn of(conditions: &[Condition]) -> Vec<Self> {
        let unwell = conditions.iter().filter(|condition| condition.status != TRUE).cloned();
        unwell.map(|Condition { type_, status, reason, message, .. }| Self { type_, status, reason, message }).collect()
    }

    /// Those of an object, or that no reconciler has written the condition `kind`.
    fn or_unseen(conditions: &[Condition], kind: &str, object: &str) -> Vec<Self> {
        if !conditions.is_empty() {
            return Self::of(conditions);
        }
        vec![Self {
            type_: kind.to_owned(),
            status: crate::api::condition::UNKNOWN.to_owned(),
            reason: "NoReconciler".to_owned(),
            message: format!("No reconciler has looked at the {object} yet: see tailyard doctor."),
        }]
    }
}

impl Overview {
    /// Builds the overview of the selected objects.
    pub fn of(view: &ClusterView, selection: &RowSelection) -> Self {
        let records = PublishedRecords::of(view);
        let configs: BTreeMap<&str, _> = view.groups.iter().filter_map(|group| Some((name(group), view.config(name(group))?))).collect();
        let gaps = view.gaps.iter().map(|(part, gap)| Unread { part: *part, message: gap.sentence(*part, &view.namespace) });
        let mut overview = Self {
            services: services::services(view, &configs),
            published: published::published(view, &records),
            standalone: standalone::standalone(view),
            connectors: connectors::connectors(view),
            ingress_faults: ingress_faults(view),
            gaps: gaps.collect(),
            ..Self::default()
        };
        overview.select(view, selection);
        let mut groups: Vec<_> = view.groups.iter().filter(|group| overview.shows_group(selection, name(group))).collect();
        groups.sort_by_key(|group| name(group));
        overview.groups = groups.iter().map(|group| self::group(view, group)).collect();
        let replicas = groups.iter().flat_map(|group| replicas::replicas(view, group, (configs.get(name(group)), &records)));
        overview.replicas = replicas.collect();
        overview
    }
}

fn name(group: &ProxyGroup) -> &str {
    group.metadata.name.as_deref().unwrap_or_default()
}

fn group(view: &ClusterView, group: &ProxyGroup) -> Group {
    let desired = group.spec.desired_replicas();
    let ready = |ordinal: &u32| view.pods.get(&names::replica(name(group), *ordinal)).is_some_and(is_ready);
    let conditions = group.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    Group {
        name: name(group).to_owned(),
        type_: match &group.spec.type_ {
            ProxyGroupType::Egress => "egress".to_owned(),
            ProxyGroupType::Ingress => "ingress".to_owned(),
            ProxyGroupType::KubeApiServer => "kube-apiserver".to_owned(),
            ProxyGroupType::Other(text) => text.clone(),
        },
        ready: (!view.gaps.contains_key(&StatusPart::Pods)).then(|| (0..desired).filter(ready).count()),
        desired,
        conditions: UnhealthyCondition::or_unseen(conditions, crate::api::condition::PROXY_GROUP_READY, "group"),
    }
}

#[cfg(test)]
mod tests;
