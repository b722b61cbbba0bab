//! Applies a `ProxyClass` to a group's `StatefulSet`.
//!
//! Values of the class replace ours. Labels and annotations that identify the owner are never replaced.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Container, PodSpec};

use crate::api::proxyclass::{ClassContainer, ClassPod};
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::objects::{PROXY, SYSCTLER, env};

/// Applies the class to the `StatefulSet`.
pub(crate) fn overlay(set: &mut StatefulSet, shape: &RenderContext<'_>) {
    let Some(class) = shape.class.and_then(|class| class.stateful_set.as_ref()) else { return };
    add(&mut set.metadata.labels, &class.labels);
    add(&mut set.metadata.annotations, &class.annotations);
    let (Some(spec), Some(pod)) = (set.spec.as_mut(), class.pod.as_ref()) else { return };
    if let Some(metadata) = spec.template.metadata.as_mut() {
        add(&mut metadata.labels, &pod.labels);
        add(&mut metadata.annotations, &pod.annotations);
    }
    if let Some(spec) = spec.template.spec.as_mut() {
        shaped(spec, pod, shape);
    }
}

/// Adds missing entries.
fn add(into: &mut Option<BTreeMap<String, String>>, from: &BTreeMap<String, String>) {
    for (key, value) in from {
        into.get_or_insert_default().entry(key.clone()).or_insert_with(|| value.clone());
    }
}

/// Replaces the value if the class sets one.
fn replace<T: Clone>(into: &mut Option<T>, from: Option<&T>) {
    if let Some(from) = from {
        *into = Some(from.clone());
    }
}

fn filled<T>(list: &Vec<T>) -> Option<&Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn shaped(spec: &mut PodSpec, pod: &ClassPod, shape: &RenderContext<'_>) {
    let sysctls = spec.security_context.as_mut().and_then(|context| context.sysctls.take());
    replace(&mut spec.security_context, pod.security_context.as_ref());
    if let (Some(context), Some(sysctls)) = (spec.security_context.as_mut(), sysctls) {
        let existing = context.sysctls.get_or_insert_default();
        let new: Vec<_> = sysctls.into_iter().filter(|sysctl| existing.iter().all(|other| other.name != sysctl.name)).collect();
        existing.extend(new);
    }
    replace(&mut spec.affinity, pod.affinity.as_ref());
    replace(&mut spec.node_name, pod.node_name.as_ref());
    replace(&mut spec.priority_class_name, pod.priority_class_name.as_ref());
    replace(&mut spec.dns_policy, pod.dns_policy.as_ref());
    replace(&mut spec.dns_config, pod.dns_config.as_ref());
    replace(&mut spec.image_pull_secrets, filled(&pod.image_pull_secrets));
    replace(&mut spec.tolerations, filled(&pod.tolerations));
    replace(&mut spec.topology_spread_constraints, filled(&pod.topology_spread_constraints));
    replace(&mut spec.node_selector, (!pod.node_selector.is_empty()).then_some(&pod.node_selector));
    let containers = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
    for container in containers {
        let class = match container.name.as_str() {
            PROXY => pod.tailscale_container.as_ref(),
            SYSCTLER => pod.tailscale_init_container.as_ref(),
            _ => None,
        };
        if let Some(class) = class {
            contained(container, class, shape);
        }
    }
}

fn contained(container: &mut Container, class: &ClassContainer, shape: &RenderContext<'_>) {
    replace(&mut container.image, class.image.as_ref().filter(|image| !image.is_empty()));
    replace(&mut container.image_pull_policy, class.image_pull_policy.as_ref());
    replace(&mut container.security_context, class.security_context.as_ref());
    if let Some(resources) = class.resources.as_ref() {
        let existing = container.resources.get_or_insert_default();
        replace(&mut existing.requests, resources.requests.as_ref());
        replace(&mut existing.claims, resources.claims.as_ref());
        // The limit for the TUN device stays: without it the container has no device.
        let device = existing.limits.take();
        if device.is_some() || resources.limits.is_some() {
            existing.limits = Some(device.into_iter().chain(resources.limits.clone()).flatten().collect());
        }
    }
    // The proxy's container has them already; they replace ours.
    for variable in env::of_class(shape, class) {
        env::set(container.env.get_or_insert_default(), variable);
    }
}
