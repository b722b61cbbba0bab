//! `DNSConfig`: the objects of the nameserver, and the conditions of all `DNSConfigs`.
//!
//! Names, labels and formats are those of the Tailscale operator, so that either takes over the other's nameserver in place, with the Service's
//! address. Only the oldest `DNSConfig` has an effect; the others get a condition, and nothing depends on them. Performs no I/O.

pub mod inputs;
pub mod objects;
pub mod records;
pub mod served;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::api::condition::{NAMESERVER_READY, reason};
use crate::api::dnsconfig::{DNSConfig, DnsConfigStatus, NameserverStatus};
use crate::api::names;
use crate::model::base::conditions;
use crate::model::base::conditions::{ConditionStatus, DesiredCondition};
use crate::model::controller::kinds::nameserver::inputs::{NAME, NameserverInputs, object};
use crate::model::controller::workload::objects::{Kind, Manifest, ObjectRef};
use crate::model::nameserver::records::CONFIG_MAP;

/// Maximum namespaces that a condition names.
const MAX_NAMED: usize = 5;

/// Whether an object is labelled as a nameserver's.
pub fn is_labelled(object: &Value) -> bool {
    object["metadata"]["labels"][names::PARENT_TYPE] == NAME
}

/// The `DNSConfig` with an effect: the oldest one that is not in deletion.
pub fn effective(configs: &[Arc<DNSConfig>]) -> Option<&Arc<DNSConfig>> {
    let age = |config: &&Arc<DNSConfig>| (config.metadata.creation_timestamp.clone(), config.metadata.name.clone());
    configs.iter().filter(|config| config.metadata.deletion_timestamp.is_none()).min_by_key(age)
}

/// An object of another owner that has a name of the nameserver's.
pub fn conflict(inputs: &NameserverInputs) -> Option<String> {
    let (object, _) = inputs.existing.iter().find(|(_, value)| !is_labelled(value))?;
    Some(format!("{object} belongs to another object: delete or rename that one"))
}

/// Objects of the nameserver, in the order of creation.
pub fn manifests(config: &DNSConfig, inputs: &NameserverInputs) -> Vec<Manifest> {
    if conflict(inputs).is_some() { Vec::new() } else { objects::manifests(config, inputs) }
}

/// Objects that no `DNSConfig` requests, in the order of deletion.
pub fn leftovers<'a>(inputs: &'a NameserverInputs, wanted: &[Manifest]) -> Vec<(&'a ObjectRef, Option<String>)> {
    let is_left = |object: &ObjectRef, value: &Value| is_labelled(value) && wanted.iter().all(|manifest| manifest.object != *object);
    let unwanted = inputs.existing.iter().rev().filter(|(object, value)| is_left(object, value));
    unwanted.map(|(object, value)| (object, value["metadata"]["uid"].as_str().map(str::to_owned))).collect()
}

/// Changed statuses, by name. `failure`: why the API server rejects the objects.
pub fn statuses(
    configs: &[Arc<DNSConfig>],
    inputs: &NameserverInputs,
    failure: Option<&str>,
    now: Timestamp,
) -> Vec<(String, DnsConfigStatus)> {
    let effective = effective(configs).and_then(|config| config.metadata.uid.clone());
    let served = effective.as_ref().and_then(|uid| configs.iter().find(|config| config.metadata.uid.as_ref() == Some(uid)));
    let status = |config: &Arc<DNSConfig>| {
        let is_effective = config.metadata.uid == effective;
        let (status, reason, message) = match served.filter(|_| !is_effective) {
            Some(served) => (
                ConditionStatus::False,
                reason::MULTIPLE_DNS_CONFIGS,
                format!(
                    "only the oldest DNSConfig has an effect, {}: delete this one or that",
                    served.metadata.name.as_deref().unwrap_or_default()
                ),
            ),
            None => readiness(config, inputs, failure),
        };
        let address = inputs.existing.get(&object(Kind::Service, &inputs.namespace)).filter(|_| is_effective);
        let address = address.and_then(|service| service["spec"]["clusterIP"].as_str()).filter(|ip| !ip.is_empty() && *ip != "None");
        let nameserver = address.map(|ip| NameserverStatus { ip: ip.to_owned() });
        let old = config.status.clone().unwrap_or_default();
        let mut conditions = old.conditions;
        let generation = config.metadata.generation.unwrap_or_default();
        let wanted = DesiredCondition { kind: NAMESERVER_READY, status, reason, message, generation };
        let is_changed = conditions::set(&mut conditions, &wanted, now) || nameserver != old.nameserver;
        is_changed.then(|| (config.metadata.name.clone().unwrap_or_default(), DnsConfigStatus { conditions, nameserver }))
    };
    configs.iter().filter(|config| config.metadata.deletion_timestamp.is_none()).filter_map(status).collect()
}

/// Status, reason and message of the condition of the `DNSConfig` with an effect.
fn readiness(config: &DNSConfig, inputs: &NameserverInputs, failure: Option<&str>) -> (ConditionStatus, &'static str, String) {
    if let Some(why) = failure.map(str::to_owned).or_else(|| conflict(inputs)) {
        return (ConditionStatus::False, reason::NAMESERVER_CREATION_FAILED, why);
    }
    let deployment = inputs.existing.get(&object(Kind::Deployment, &inputs.namespace));
    let ready = deployment.and_then(|deployment| deployment["status"]["readyReplicas"].as_i64()).unwrap_or_default();
    let wanted = config.spec.nameserver.desired_replicas();
    if ready == 0 {
        let message = format!("0 of {wanted} Pods of Deployment {}/{NAME} are ready", inputs.namespace);
        return (ConditionStatus::False, reason::NAMESERVER_PENDING, message);
    }
    if !inputs.records.omitted.is_empty() {
        return (ConditionStatus::True, reason::NAMESERVER_CREATED, without_room(&inputs.records.omitted));
    }
    (ConditionStatus::True, reason::NAMESERVER_CREATED, "the nameserver answers queries".to_owned())
}

/// Names without room, and the namespaces with most of them.
fn without_room(omitted: &BTreeMap<String, usize>) -> String {
    let mut namespaces: Vec<_> = omitted.iter().map(|(namespace, count)| (Reverse(*count), namespace)).collect();
    namespaces.sort();
    let named = namespaces.iter().take(MAX_NAMED).map(|(count, namespace)| format!("{namespace} ({})", count.0));
    let more = namespaces.len().saturating_sub(MAX_NAMED);
    let named: Vec<_> = named.chain((more > 0).then(|| format!("{more} more"))).collect();
    format!(
        "{} names have no record, as their namespaces have used their shares of the ConfigMap {CONFIG_MAP}: {}; request fewer names there",
        omitted.values().sum::<usize>(),
        named.join(", ")
    )
}

#[cfg(test)]
mod tests;
