//! Users' Services and Ingresses: which of them are taken over, and names and publication that differ.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use serde::Deserialize as _;
use serde_json::Value;

use super::{has_served_type, taken_over};
use crate::api::names;
use crate::model::controller::policy::annotations::is_on;
use crate::model::controller::policy::assignment::{AssignmentRules, ClassParameters, StandaloneScope};
use crate::model::controller::policy::requests::{Parent, directions};
use crate::model::diagnostics::doctor::cluster::ClusterFacts;
use crate::model::diagnostics::doctor::objects::assignment;
use crate::model::diagnostics::doctor::{Check, listed, named, settings, variable};
use crate::model::settings::reconciler::Reconciler as Settings;

/// Rules by which the planned reconciler and the operator serve users' objects.
pub(super) struct ServedObjects {
    pub(super) settings: Settings,
    pub(super) rules: AssignmentRules,
    theirs: AssignmentRules,
    /// Groups that the planned reconciler does not serve.
    unserved_groups: BTreeSet<String>,
}

impl ServedObjects {
    pub(super) fn new(facts: &ClusterFacts, operator: &Value) -> Self {
        let (settings_of_ours, rules) = assignment(facts);
        let of_operator = settings(Some(operator));
        let theirs = AssignmentRules {
            standalone: StandaloneScope::Everywhere,
            parameters: ClassParameters::Unset,
            namespaces: rules.namespaces.clone(),
            ..of_operator.assignment()
        };
        let unserved = facts.groups.iter().flatten().filter(|group| !has_served_type(group, &settings_of_ours));
        Self { unserved_groups: unserved.map(named).collect(), settings: settings_of_ours, rules, theirs }
    }

    /// Whether the operator serves an object.
    fn is_of_operator(&self, object: Parent<'_>) -> bool {
        self.theirs.has_own_proxy(object) || self.theirs.of(object).group().is_some()
    }

    /// Why an object that the operator serves is not taken over.
    fn loss(&self, object: Parent<'_>) -> Option<String> {
        let namespace = object.metadata().namespace.as_deref().unwrap_or_default();
        let is_watched =
            self.settings.service_namespaces.is_empty() || self.settings.service_namespaces.iter().any(|name| name == namespace);
        if !is_watched {
            return Some("its namespace is not in watchNamespaces".to_owned());
        }
        if let Parent::Ingress(ingress) = object
            && !self.rules.has_class(ingress)
        {
            return Some(format!("its class is not ingress.className, {}", self.rules.ingress_class));
        }
        let assignment = self.rules.of(object);
        match assignment.group() {
            Some(group) if self.unserved_groups.contains(group) => Some(format!("ProxyGroup {group} is not reconciled")),
            Some(_) => None,
            None if self.rules.has_own_proxy(object) => None,
            None if assignment.is_undecided() => {
                Some(assignment.fault().unwrap_or_else(|| format!("there is no IngressClass {} of the operator", self.rules.ingress_class)))
            }
            None => Some("it names no ProxyGroup, and standalone.enabled is false".to_owned()),
        }
    }

    /// Objects that are taken over, and those that are not.
    fn sorted<'a>(&self, objects: impl Iterator<Item = Parent<'a>>) -> (Vec<String>, Vec<String>) {
        let (mut taken, mut lost) = (Vec::new(), Vec::new());
        for object in objects.filter(|object| self.is_of_operator(*object)) {
            let publisher = object.publisher();
            let name = format!("{}/{}", publisher.namespace, publisher.name);
            match self.loss(object) {
                None => taken.push(name),
                Some(why) => lost.push(format!("{name}: {why}")),
            }
        }
        (taken, lost)
    }
}

fn read_services(facts: &ClusterFacts) -> Vec<Service> {
    facts.services.iter().flatten().filter_map(|service| Service::deserialize(service).ok()).collect()
}

fn read_ingresses(facts: &ClusterFacts) -> Vec<Ingress> {
    facts.ingresses.iter().flatten().filter_map(|ingress| Ingress::deserialize(ingress).ok()).collect()
}

/// Findings on the objects of a kind.
fn sorted_checks(name: &'static str, kind: &str, (taken, lost): (Vec<String>, Vec<String>)) -> Vec<Check> {
    let mut checks = vec![taken_over(name, kind, taken)];
    if !lost.is_empty() {
        checks.push(Check::bad(name, format!("not taken over: {}", listed(lost, "; ")), "set the value that it names"));
    }
    checks
}

pub(super) fn services(facts: &ClusterFacts, objects: &ServedObjects, operator: &Value) -> Vec<Check> {
    const NAME: &str = "services";
    if let Err(gap) = &facts.services {
        return vec![Check::unread(NAME, "Services", gap, "list services in all namespaces")];
    }
    let services = read_services(facts);
    let mut checks = sorted_checks(NAME, "Services", objects.sorted(services.iter().map(Parent::Service)));
    let is_by_default = |service: &&Service| {
        let spec = service.spec.as_ref();
        let is_balanced = spec.is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer") && spec.load_balancer_class.is_none());
        is_balanced && directions(service) == (false, false)
    };
    if variable(operator, "OPERATOR_DEFAULT_LOAD_BALANCER") == Some("true") {
        let by_default = services.iter().filter(is_by_default).map(|service| Parent::Service(service).publisher());
        let by_default: Vec<_> = by_default.map(|publisher| format!("{}/{}", publisher.namespace, publisher.name)).collect();
        if !by_default.is_empty() {
            let what =
                format!("not taken over, as they have no loadBalancerClass (OPERATOR_DEFAULT_LOAD_BALANCER): {}", listed(by_default, ", "));
            checks.push(Check::bad(NAME, what, "annotate them with tailscale.com/expose: \"true\""));
        }
    }
    checks
}

pub(super) fn ingresses(facts: &ClusterFacts, objects: &ServedObjects) -> Vec<Check> {
    const NAME: &str = "ingresses";
    if let Err(gap) = &facts.ingresses {
        return vec![Check::unread(NAME, "Ingresses", gap, "list ingresses.networking.k8s.io in all namespaces")];
    }
    if let Err(gap) = &facts.classes {
        return vec![Check::unread(NAME, "the IngressClass", gap, "list ingressclasses.networking.k8s.io")];
    }
    let ingresses = read_ingresses(facts);
    let mut checks = sorted_checks(NAME, "Ingresses", objects.sorted(ingresses.iter().map(Parent::Ingress)));
    let is_funnel = |ingress: &&Ingress| {
        let has_group = objects.rules.of(Parent::Ingress(ingress)).group().is_some();
        has_group && is_on(ingress.metadata.annotations.as_ref(), names::FUNNEL)
    };
    let funnel = ingresses.iter().filter(is_funnel).map(|ingress| Parent::Ingress(ingress).publisher());
    let funnel: Vec<_> = funnel.map(|publisher| format!("{}/{}", publisher.namespace, publisher.name)).collect();
    if !funnel.is_empty() {
        let what = format!(
            "reachable from the internet with Tailyard: the operator ignores {} on Ingresses of a ProxyGroup: {}",
            names::FUNNEL,
            listed(funnel, ", ")
        );
        checks.push(Check::bad(NAME, what, "remove the annotation where that is not intended"));
    }
    checks
}

/// Standalone proxies that request the same name: the Tailscale operator's second device gets a number.
pub(super) fn names_check(facts: &ClusterFacts, rules: &AssignmentRules) -> Option<Check> {
    const NAME: &str = "names";
    let (services, ingresses) = (read_services(facts), read_ingresses(facts));
    let parents = services.iter().map(Parent::Service).chain(ingresses.iter().map(Parent::Ingress));
    let mut by_name = BTreeMap::<String, Vec<String>>::new();
    for parent in parents.filter(|parent| rules.has_own_proxy(*parent)) {
        by_name.entry(rules.label(parent)).or_default().push(parent.publisher().to_string());
    }
    let shared: Vec<_> = by_name.into_iter().filter(|(_, objects)| objects.len() > 1).collect();
    if shared.is_empty() {
        return None;
    }
    let shared = shared.into_iter().map(|(name, objects)| format!("{name} of {}", listed(objects, " and "))).collect();
    let what = format!("several objects request a name, which Tailyard gives to one of them: {}", listed(shared, "; "));
    Some(Check::warn(NAME, what, "give the others the name of their device, or another one"))
}
