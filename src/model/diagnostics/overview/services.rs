//! Users' egress Services of groups: their targets, and the number of replicas that forward them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service as Object;
use serde::Serialize;

use super::published::is_published;
use super::snapshot::{ClusterView, GroupConfig, StatusPart};
use super::{UnhealthyCondition, name};
use crate::api::names;
use crate::model::controller::egress::acks::{holds, is_from_pod};
use crate::model::controller::kinds::concerns;
use crate::model::controller::policy::assignment::AssignmentRules;
use crate::model::controller::workload::objects::child::child_name;
use crate::model::controller::workload::readiness::is_ready;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceOverview {
    pub namespace: String,
    pub name: String,
    pub group: String,
    /// Tailnet name or address of the target.
    pub target: String,
    /// Replicas that forward it and receive traffic; `None` if unknown.
    pub ready: Option<usize>,
    pub desired: u32,
    /// Error reported by a replica, else the first condition that is not true.
    pub error: Option<String>,
}

pub(super) fn services(view: &ClusterView, configs: &BTreeMap<&str, GroupConfig>) -> Vec<ServiceOverview> {
    let egress = view.services.iter().filter(|service| !is_published(service));
    let mut all: Vec<_> = egress.filter_map(|service| one(view, configs, service)).collect();
    all.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    all
}

fn one(view: &ClusterView, configs: &BTreeMap<&str, GroupConfig>, service: &Object) -> Option<ServiceOverview> {
    let annotation = |key: &str| service.metadata.annotations.as_ref().and_then(|all| all.get(key)).filter(|text| !text.is_empty());
    let recorded = || concerns(service, &AssignmentRules::default()).into_iter().find_map(|key| key.group().map(str::to_owned));
    let group = annotation(names::PROXY_GROUP).cloned().or_else(recorded)?;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (namespace, named) = (text(&service.metadata.namespace), text(&service.metadata.name));
    let desired = view.groups.iter().find(|other| name(other) == group).map_or(0, |group| group.spec.desired_replicas());
    let replicas = || (0..desired).map(|ordinal| names::replica(&group, ordinal));
    let config = configs.get(group.as_str());
    let entry = config.and_then(|config| entry(config, &namespace, &named));
    let forwards = |replica: &String| {
        let (Some(config), Some((key, service)), Some(pod)) = (config, entry, view.pods.get(replica)) else { return false };
        let status = view.states.get(replica).and_then(|state| state.egress.as_ref());
        is_ready(pod) && status.is_some_and(|status| is_from_pod(status, pod) && holds(status, &config.fingerprint, key, service))
    };
    let complete = [StatusPart::Pods, StatusPart::States, StatusPart::Configs].iter().all(|part| !view.gaps.contains_key(part));
    let rejected = |replica: String| {
        let status = view.states.get(&replica)?.egress.as_ref()?;
        let reported = status.rejected.get(entry?.0)?;
        Some(format!("{replica}: {}", reported.join("; ")))
    };
    let conditions = service.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let unwell = || UnhealthyCondition::of(conditions).into_iter().next().map(|unwell| format!("{}: {}", unwell.reason, unwell.message));
    let unseen = || conditions.is_empty().then(|| "no reconciler has looked at it yet".to_owned());
    Some(ServiceOverview {
        ready: complete.then(|| replicas().filter(forwards).count()),
        error: replicas().find_map(rejected).or_else(unwell).or_else(unseen),
        target: annotation(names::TAILNET_FQDN).or_else(|| annotation(names::TAILNET_IP)).cloned().unwrap_or_default(),
        desired,
        namespace,
        name: named,
        group,
    })
}

/// Config entry of a Service: under its unambiguous key if its plain name collides with another's.
fn entry<'a>(config: &'a GroupConfig, namespace: &str, name: &str) -> Option<(&'a String, &'a crate::api::egress::EgressService)> {
    let own = config.services.get_key_value(&child_name(namespace, name, ""));
    own.or_else(|| config.services.get_key_value(&format!("{namespace}-{name}")))
}
