//! Target policy of a workload's proxies, in their config Secrets: the reconciler's, whatever the class of the object.
//!
//! A target that was served before there were such rules stays served until its object names another one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use crate::api::proxyclass::ProxyClassSpec;
use crate::api::targets::{ExemptService, TargetRules};
use crate::model::controller::policy::cluster_networks::joined;
use crate::model::controller::workload::objects::env::variable_of;
use crate::model::controller::workload::objects::ingress::{IngressConfigMap, ingress_config_ref};
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::objects::{Kind, ObjectRef};
use crate::model::controller::workload::pass::Pass;
use crate::model::controller::workload::role::Role;
use crate::model::controller::workload::target_inputs::{ALLOWED, class_value};

/// Variable of the Pods of Tailyard.
const FROM_API: &str = "TAILYARD_CONFIG_FROM_API";

/// Whether the targets that a class adds are for this workload. An object may name any class, but a class that its administrators have
/// not chosen for it adds nothing, unless its Pods have that already.
pub(crate) fn takes_allowed(pass: &Pass<'_>, class: Option<&ProxyClassSpec>) -> bool {
    let value = class.and_then(|class| class_value(class, ALLOWED));
    pass.observed.targets.is_default_class || value.is_none() || own_set(pass).and_then(|set| variable_of(set, ALLOWED)) == value
}

fn own_set<'a>(pass: &Pass<'a>) -> Option<&'a Arc<Value>> {
    pass.owned(&ObjectRef::new(Kind::StatefulSet, &pass.owner.namespace, pass.owner.name.clone()))
}

/// The rules for a workload's proxies; `None` for an image that does not read them, unless an object chose it by its class: otherwise it
/// could exempt a target by such a class.
pub(crate) fn rules(pass: &Pass<'_>, shape: &RenderContext<'_>) -> Option<TargetRules> {
    let inputs = &pass.observed.targets;
    if shape.stock() && inputs.is_default_class {
        return None;
    }
    let existing = || pass.observed.replicas.values().filter_map(|replica| replica.config.as_ref());
    let recorded: Vec<&TargetRules> = existing().filter_map(|config| config.targets.as_ref()).collect();
    let target = shape.target.value();
    if shape.role().config.is_none() && target.is_none() {
        // The proxy leaves its object, and serves the former target until then.
        return recorded.first().copied().cloned();
    }
    // Our Pods never run without a config Secret that was written before; those of the Tailscale operator may.
    let is_former = || existing().next().is_some() || own_set(pass).is_some_and(|set| variable_of(set, FROM_API).is_none());
    let mut exempt: BTreeSet<String> = recorded.iter().flat_map(|rules| &rules.exempt).cloned().collect();
    let mut exempt_services = BTreeMap::new();
    let is_first = recorded.is_empty() && is_former();
    if shape.spec.role == Role::IngressGroup && (is_first || !exempt.is_empty()) {
        exempt_services = published(pass);
        exempt_services.retain(|name, service| is_first || recorded.iter().any(|rules| exempts(rules, name, service)));
        exempt = exempt_services.values().map(|service| service.target.clone()).collect();
    } else if is_first {
        exempt = served(pass, shape);
    } else if !exempt.is_empty() {
        let served = served(pass, shape);
        exempt.retain(|target| served.contains(target));
    }
    let leads_into_cluster = matches!(shape.spec.role, Role::IngressGroup | Role::IngressService);
    let listed = inputs.cluster.iter().copied();
    let former = recorded.iter().flat_map(|rules| &rules.cluster).filter(|_| !inputs.is_complete).copied();
    Some(TargetRules {
        allowed: shape.settings.allowed_targets.clone(),
        denied: shape.settings.denied_targets.clone(),
        inherited: inputs.inherited.clone(),
        cluster: if leads_into_cluster { joined(listed.chain(former)) } else { Vec::new() },
        exempt,
        exempt_services,
    })
}

/// Target that the proxy of a Service has now.
fn served(pass: &Pass<'_>, shape: &RenderContext<'_>) -> BTreeSet<String> {
    if let (Some(variable), Some(target)) = (shape.target.variable(), shape.target.value()) {
        let is_served = own_set(pass).and_then(|set| variable_of(set, variable)) == Some(&*target);
        return is_served.then_some(target).into_iter().collect();
    }
    BTreeSet::new()
}

/// Services in a group's config that have an external name.
fn published(pass: &Pass<'_>) -> BTreeMap<String, ExemptService> {
    let config = pass.owned(&ingress_config_ref(pass.owner)).map(|object| IngressConfigMap::read(object)).unwrap_or_default();
    let IngressConfigMap { mappings, mut origins, .. } = config;
    let named = mappings.into_iter().filter(|(_, mapping)| !mapping.external_name.is_empty());
    named.map(|(name, mapping)| (name.clone(), ExemptService { target: mapping.external_name, of: origins.remove(&name) })).collect()
}

/// Whether recorded rules exempt the target of a service: by its object, which may have another name now. Rules of former versions do not
/// name the services.
fn exempts(recorded: &TargetRules, name: &str, service: &ExemptService) -> bool {
    if recorded.exempt_services.is_empty() {
        return recorded.exempt.contains(&service.target);
    }
    let is_same = |(recorded_name, exempt): (&String, &ExemptService)| {
        exempt.target == service.target && if exempt.of.is_some() { exempt.of == service.of } else { recorded_name == name }
    };
    recorded.exempt_services.iter().any(is_same)
}
