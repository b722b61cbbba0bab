//! Validation of a `ProxyClass` beyond the CRD schema.
//!
//! An invalid class changes nothing: its groups keep their objects and report the reason. Time is an argument.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use crate::api::condition::{Condition, PROXY_CLASS_READY, TRUE, reason};
use crate::api::names::FINALIZER;
use crate::api::proxyclass::{ClassContainer, ClassEnv, NodePorts, ProxyClass, ProxyClassSpec, ProxyClassStatus};
use crate::model::base::conditions;
use crate::model::base::conditions::{ConditionStatus, DesiredCondition};
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::workload::finalizers;
use crate::model::controller::workload::finalizers::Validation;

/// What a class is validated with, beside other classes.
#[derive(Debug, Clone, Copy)]
pub struct ClassRules {
    /// Whether the cluster has `ServiceMonitors`.
    pub service_monitors: bool,
    /// Why the proxy refuses a variable of this name and value, if it does; and whether the class names the proxy's image.
    pub refusal: fn(&str, &str, bool) -> Option<String>,
}

/// Whether the current generation of a class is valid.
pub fn is_ready(class: &ProxyClass) -> bool {
    let conditions = class.status.iter().flat_map(|status| &status.conditions);
    let mut ready = conditions.filter(|condition| condition.type_ == PROXY_CLASS_READY && condition.status == TRUE);
    ready.any(|condition| condition.observed_generation == class.metadata.generation)
}

/// Validates a class against the others. `users` are the workloads that use it: a class in use is not deleted.
pub fn validate(
    class: &ProxyClass,
    others: &[Arc<ProxyClass>],
    users: &[WorkloadKey],
    rules: ClassRules,
    now: Timestamp,
) -> Validation<ProxyClassStatus> {
    let mut validation = Validation::default();
    if class.metadata.deletion_timestamp.is_some() {
        if users.is_empty() {
            validation.finalizers = finalizers::change(&class.metadata, FINALIZER, false);
        }
        return validation;
    }
    validation.finalizers = finalizers::change(&class.metadata, FINALIZER, true);
    let faults = faults(&class.spec, others, rules);
    let (status, reason, message) = if faults.is_empty() {
        (ConditionStatus::True, reason::PROXY_CLASS_VALID, "the class can be used".to_owned())
    } else {
        (ConditionStatus::False, reason::PROXY_CLASS_INVALID, faults.join("; "))
    };
    let mut conditions: Vec<Condition> = class.status.clone().unwrap_or_default().conditions;
    let generation = class.metadata.generation.unwrap_or_default();
    let wanted = DesiredCondition { kind: PROXY_CLASS_READY, status, reason, message: message.clone(), generation };
    if conditions::set(&mut conditions, &wanted, now) {
        validation.status = Some(ProxyClassStatus { conditions });
        if !faults.is_empty() {
            validation.warnings.push((reason::PROXY_CLASS_INVALID, message));
        }
        validation.warnings.extend(own_variables(&class.spec).map(|name| {
            ("CustomTSEnvVar", format!("the class sets {name}: such variables are Tailyard's own, and setting them is at your own risk"))
        }));
    }
    validation
}

fn containers(spec: &ProxyClassSpec) -> impl Iterator<Item = (&'static str, &ClassContainer)> {
    let pod = spec.stateful_set.as_ref().and_then(|set| set.pod.as_ref());
    let main = pod.and_then(|pod| pod.tailscale_container.as_ref()).map(|container| ("tailscaleContainer", container));
    let init = pod.and_then(|pod| pod.tailscale_init_container.as_ref()).map(|container| ("tailscaleInitContainer", container));
    main.into_iter().chain(init)
}

fn own_variables(spec: &ProxyClassSpec) -> impl Iterator<Item = &str> {
    let names = containers(spec).flat_map(|(_, container)| container.env.iter().map(|env| env.name.as_str()));
    names.filter(|name| {
        name.starts_with("TS_")
            || matches!(*name, "EXPERIMENTAL_TS_CONFIGFILE_PATH" | "EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS")
    })
}

/// Why the proxy refuses a variable of a container, if it does. Those of the init container are for the proxy too: they have no effect there.
fn refused(spec: &ProxyClassSpec, variable: &ClassEnv, rules: ClassRules) -> Option<String> {
    let proxy = containers(spec).find(|(name, _)| *name == "tailscaleContainer");
    let own_image = proxy.and_then(|(_, container)| container.image.as_deref()).is_some_and(|image| !image.is_empty());
    (rules.refusal)(&variable.name, variable.value.as_deref().unwrap_or_default(), own_image)
}

/// The class without the variables that the proxy refuses, if these are its only faults: for existing proxies. No new one is created.
pub fn without_refused_variables(class: &ProxyClass, others: &[Arc<ProxyClass>], rules: ClassRules) -> Option<ProxyClass> {
    let mut usable = class.clone();
    if let Some(pod) = usable.spec.stateful_set.as_mut().and_then(|set| set.pod.as_mut()) {
        for container in [&mut pod.tailscale_container, &mut pod.tailscale_init_container].into_iter().flatten() {
            container.env.retain(|variable| refused(&class.spec, variable, rules).is_none());
        }
    }
    (usable != *class && faults(&usable.spec, others, rules).is_empty()).then_some(usable)
}

fn faults(spec: &ProxyClassSpec, others: &[Arc<ProxyClass>], rules: ClassRules) -> Vec<String> {
    let mut faults = Vec::new();
    if let Some(set) = &spec.stateful_set {
        faults.extend(keys("spec.statefulSet.labels", &set.labels, true));
        faults.extend(keys("spec.statefulSet.annotations", &set.annotations, false));
        if let Some(pod) = &set.pod {
            faults.extend(keys("spec.statefulSet.pod.labels", &pod.labels, true));
            faults.extend(keys("spec.statefulSet.pod.annotations", &pod.annotations, false));
        }
    }
    for (name, container) in containers(spec) {
        if let Some(image) = container.image.as_deref().filter(|image| !image.is_empty() && !is_image(image)) {
            faults.push(format!("spec.statefulSet.pod.{name}.image {image:?} is no image reference such as registry.example.com/path:tag"));
        }
        let refused = container.env.iter().filter_map(|variable| refused(spec, variable, rules));
        faults.extend(refused.map(|why| format!("spec.statefulSet.pod.{name}.env: {why}")));
        if name == "tailscaleInitContainer" && container.debug.is_some() {
            faults.push(format!("spec.statefulSet.pod.{name}.debug has no meaning for an init container: remove it"));
        }
    }
    let monitor = spec.metrics.as_ref().and_then(|metrics| metrics.service_monitor.as_ref());
    if monitor.is_some_and(|monitor| monitor.enable) && !rules.service_monitors {
        faults.push(
            "spec.metrics.serviceMonitor is enabled but the cluster has no ServiceMonitor: install its definition (Prometheus operator)"
                .to_owned(),
        );
    }
    if let Some(node_port) = spec.static_endpoints.as_ref().map(|endpoints| &endpoints.node_port) {
        faults.extend(ranges(node_port, others));
    }
    faults
}

fn keys(place: &str, map: &BTreeMap<String, String>, are_labels: bool) -> Vec<String> {
    let bad_key = map.keys().filter(|key| !is_key(key)).map(|key| format!("{place}: {key:?} is no valid key"));
    let bad_value =
        map.values().filter(|value| are_labels && !is_label(value)).map(|value| format!("{place}: {value:?} is no valid label value"));
    bad_key.chain(bad_value).collect()
}

/// Whether a text is a label or annotation key: a name of at most 63 characters, optionally with a DNS prefix and a slash.
fn is_key(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let dns = |label: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty() && label.len() <= 63 && label.chars().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    !name.is_empty() && is_label(name) && prefix.is_none_or(|prefix| prefix.len() <= 253 && prefix.split('.').all(dns))
}

/// Whether a text is a label value: at most 63 characters, letters and digits at both ends, or empty.
fn is_label(value: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    value.is_empty()
        || value.len() <= 63
            && value.starts_with(edge)
            && value.ends_with(edge)
            && value.chars().all(|c| edge(c) || matches!(c, '-' | '_' | '.'))
}

/// Whether a text is an image reference: path, tag and digest.
fn is_image(image: &str) -> bool {
    let (rest, digest) = image.split_once('@').map_or((image, None), |(rest, digest)| (rest, Some(digest)));
    let slash = rest.rfind('/').map_or(0, |at| at + 1);
    let (path, tag) = rest[slash..].split_once(':').map_or((rest, None), |(name, tag)| (&rest[..slash + name.len()], Some(tag)));
    let tag_ok = |tag: &str| !tag.is_empty() && tag.len() <= 128 && tag.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    let digest_ok =
        |digest: &str| digest.split_once(':').is_some_and(|(_, hex)| hex.len() >= 32 && hex.chars().all(|c| c.is_ascii_hexdigit()));
    let part_ok = |(at, part): (usize, &str)| {
        let host = at == 0 && path.contains('/');
        let inner =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c) || host && (c.is_ascii_uppercase() || c == ':');
        !part.is_empty() && part.chars().all(inner) && part.starts_with(|c: char| c.is_ascii_alphanumeric())
    };
    path.split('/').enumerate().all(part_ok) && tag.is_none_or(tag_ok) && digest.is_none_or(digest_ok)
}

/// Faults of the node port ranges, alone and against those of classes in use.
fn ranges(own: &NodePorts, others: &[Arc<ProxyClass>]) -> Vec<String> {
    let spans = |ports: &NodePorts| ports.ports.iter().map(|range| (range.port, range.end_port.unwrap_or(range.port))).collect::<Vec<_>>();
    let mut faults = Vec::new();
    let mine = spans(own);
    for (at, (from, to)) in mine.iter().enumerate() {
        if !(1..=65_535).contains(from) || to < from || *to > 65_535 {
            faults.push(format!("spec.staticEndpoints.nodePort.ports {from}-{to} is no range of ports"));
        }
        if mine[..at].iter().any(|(start, end)| from <= end && start <= to) {
            faults.push(format!("spec.staticEndpoints.nodePort.ports {from}-{to} overlaps another range of this class"));
        }
    }
    for other in others.iter().filter(|other| is_ready(other)) {
        let theirs = other.spec.static_endpoints.as_ref().map(|endpoints| spans(&endpoints.node_port)).unwrap_or_default();
        let name = other.metadata.name.as_deref().unwrap_or_default();
        let clash = mine.iter().filter(|(from, to)| theirs.iter().any(|(start, end)| from <= end && start <= to));
        faults.extend(
            clash.map(|(from, to)| format!("spec.staticEndpoints.nodePort.ports {from}-{to} overlaps a range of ProxyClass {name}")),
        );
    }
    faults
}

#[cfg(test)]
mod tests;
