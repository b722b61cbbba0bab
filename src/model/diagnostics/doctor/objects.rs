//! Checks of users' Services and Ingresses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use serde::Deserialize as _;
use serde_json::Value;

use super::facts::ClusterFacts;
use super::{Check, MAX_LISTED, ReadResult, condition, is_operator, is_reconciler, named, page, settings};
use crate::api::condition::{PROXY_READY, ROUTES_OVERLAP};
use crate::api::proxygroup::ProxyGroup;
use crate::api::targets::TargetRules;
use crate::model::controller::policy::assignment::{AssignmentRules, ClassParameters};
use crate::model::controller::policy::ineffective::ineffective;
use crate::model::controller::policy::requests::{self, Parent};
use crate::model::controller::policy::tenancy::{DefaultTenancy, Labels, restricted_tags};
use crate::model::diagnostics::overview::{ClusterView, IngressFault, StatusPart, ingress_faults};
use crate::model::plan::targets::TargetPolicy;
use crate::model::settings::reconciler::Reconciler as Settings;

pub(super) fn checks(facts: &ClusterFacts) -> Vec<Check> {
    let mut checks = annotated(facts);
    checks.extend(policy(facts));
    checks.extend(proxies(facts));
    checks.extend(routes(facts));
    checks.extend(ingresses(facts));
    checks
}

/// Ingresses with a lasting fault, by their Events: an Ingress has no conditions.
fn ingresses(facts: &ClusterFacts) -> Vec<Check> {
    const NAME: &str = "ingresses";
    if let Err(gap) = &facts.ingress_events {
        return vec![Check::unread(NAME, "the Events of Ingresses", gap, "list events.events.k8s.io in all namespaces")];
    }
    let row = |fault: IngressFault| format!("Ingress {}/{}: {}: {}", fault.namespace, fault.name, fault.reason, fault.message);
    let faults: Vec<_> = ingress_reports(facts).into_iter().map(row).collect();
    if faults.is_empty() {
        return vec![Check::ok(NAME, "no Event of the last half hour reports a fault")];
    }
    let fix = format!("as the message says; kubectl describe ingress shows all Events ({})", page("ingress.md"));
    warnings(NAME, faults, "more Ingresses have a fault", &fix)
}

/// Current faults of Ingresses, as far as Events are read.
pub(super) fn ingress_reports(facts: &ClusterFacts) -> Vec<IngressFault> {
    let mut view = ClusterView { now: facts.now, ..ClusterView::new(&facts.namespace) };
    view.take(StatusPart::Events, facts.ingress_events.iter().flatten());
    if let Ok(ingresses) = &facts.ingresses {
        view.take(StatusPart::Ingresses, ingresses.iter());
    }
    ingress_faults(&view)
}

/// Services whose standalone proxy does not serve. A missing right is reported by [`annotated`].
fn proxies(facts: &ClusterFacts) -> Vec<Check> {
    const NAME: &str = "proxies";
    let Ok(services) = &facts.services else { return Vec::new() };
    let mut ready = 0;
    let mut unready = Vec::new();
    for service in services {
        let Some(condition) = condition(service, PROXY_READY) else { continue };
        if condition["status"] == "True" {
            ready += 1;
        } else {
            let text = |key: &str| condition[key].as_str().unwrap_or_default();
            unready.push(format!("Service {}: {}: {}", named(service), text("reason"), text("message")));
        }
    }
    if unready.is_empty() {
        return vec![Check::ok(NAME, format!("{ready} Services with a proxy of their own are served"))];
    }
    let fix = format!("as the message says; tailyard status shows Pod and device ({})", page("standalone.md"));
    warnings(NAME, unready, "more Services are not served by their proxies", &fix)
}

/// Objects with something that the reconciler permits no new object. Without a reconciler it has its defaults. A missing right is reported by
/// [`annotated`].
pub(in super::super) fn policy(facts: &ClusterFacts) -> Vec<Check> {
    const NAME: &str = "policy";
    if facts.services.is_err() && facts.ingresses.is_err() {
        return Vec::new();
    }
    let (settings, rules) = assignment(facts);
    let groups = facts.groups.iter().flatten().filter_map(|group| ProxyGroup::deserialize(group).ok()).collect();
    let cluster_ips = facts.services.iter().flatten().filter_map(cluster_ip).collect();
    let policy = ObjectPolicy { settings, rules, groups, cluster_ips };
    let found = of_objects(facts, |object| policy.refusals(object));
    if found.is_empty() {
        return vec![Check::ok(NAME, "it permits what Services and Ingresses request")];
    }
    let fix = format!("set the value of the chart that it names; what is served already stays served ({})", page("tenancy.md"));
    warnings(NAME, found, "more objects request what new ones may not", &fix)
}

/// Settings of the reconciler, and its rules for objects without annotation. Without a reconciler it has its defaults.
pub(in super::super) fn assignment(facts: &ClusterFacts) -> (Settings, AssignmentRules) {
    let deployments = facts.deployments.as_deref().unwrap_or_default();
    let reconciler = deployments.iter().find(|deployment| is_reconciler(deployment)).or(deployments.iter().find(|one| is_operator(one)));
    let settings = settings(reconciler);
    let mut rules = settings.assignment();
    reconciler.and_then(|one| one["metadata"]["namespace"].as_str()).unwrap_or_default().clone_into(&mut rules.own_namespace);
    let mut classes = facts.classes.iter().flatten().filter_map(|class| IngressClass::deserialize(class).ok());
    rules.parameters = ClassParameters::read(classes.find(|class| class.metadata.name.as_ref() == Some(&rules.ingress_class)).as_ref());
    for namespace in facts.namespaces.iter().flatten() {
        rules.update_namespace(&named(namespace), Some(&Labels::deserialize(&namespace["metadata"]["labels"]).unwrap_or_default()));
    }
    (settings, rules)
}

/// Results for the users' objects that could be read.
fn of_objects<I: IntoIterator>(facts: &ClusterFacts, read: impl Fn(Parent<'_>) -> I) -> Vec<I::Item> {
    let services = facts.services.iter().flatten().filter_map(|service| Service::deserialize(service).ok());
    let ingresses = facts.ingresses.iter().flatten().filter_map(|ingress| Ingress::deserialize(ingress).ok());
    let mut results: Vec<_> = services.flat_map(|service| read(Parent::Service(&service))).collect();
    results.extend(ingresses.flat_map(|ingress| read(Parent::Ingress(&ingress))));
    results
}

/// The reconciler's policy for new objects.
struct ObjectPolicy<'a> {
    settings: Settings,
    rules: AssignmentRules,
    groups: Vec<ProxyGroup>,
    /// Addresses of Services by namespace and name.
    cluster_ips: BTreeMap<(&'a str, &'a str), IpAddr>,
}

impl ObjectPolicy<'_> {
    fn refusals(&self, object: Parent<'_>) -> Vec<String> {
        let Self { settings, rules, groups, .. } = self;
        // The reconciler writes it.
        if matches!(object, Parent::Service(service) if rules.device_of(service).is_some()) {
            return Vec::new();
        }
        let tenants = |group: &ProxyGroup| group.spec.tailyard.as_ref().map(|own| own.tenants.clone()).unwrap_or_default();
        let named = match object {
            Parent::Service(service) => rules.published(service).group().or(rules.egress(service).group()),
            Parent::Ingress(ingress) => rules.ingress(ingress).group(),
        };
        let group = named.and_then(|name| groups.iter().find(|group| group.metadata.name.as_deref() == Some(name)));
        let is_standalone = rules.has_own_proxy(object);
        let mut refusals = Vec::new();
        let tenants_of = group.map_or_else(|| settings.workloads.standalone_tenants.to_vec(), tenants);
        if (named.is_some() || is_standalone) && tenants_of.is_empty() && settings.workloads.tenancy != DefaultTenancy::Open {
            let own: [&[String]; 2] = [&settings.workloads.tags, group.map_or(&[], |group| &group.spec.tags)];
            let others = restricted_tags(requests::tags(object.metadata()), &own, &[], &settings.workloads.permitted_tags);
            refusals.extend(others.into_iter().map(|tag| format!("tag {tag} is not in permittedTags")));
        }
        if let Parent::Service(service) = object
            && requests::directions(service).0
            && let Some(host) = service.spec.as_ref().and_then(|spec| spec.external_name.as_deref())
            && self.is_refused_service(host)
        {
            refusals.push(format!("{host} is a Service of the cluster, and not in targets.allowed"));
        }
        if is_standalone && settings.workloads.standalone_tenants.is_empty() && groups.iter().any(|group| !tenants(group).is_empty()) {
            refusals.push("it names no ProxyGroup, a ProxyGroup has tenants, and standalone.tenants is empty".to_owned());
        }
        refusals.into_iter().map(|why| format!("{}: {why}", object.publisher())).collect()
    }

    /// Whether a DNS name is that of a Service whose address new objects may not have as target.
    fn is_refused_service(&self, host: &str) -> bool {
        let mut labels = host.split('.');
        let (Some(name), Some(namespace), Some("svc")) = (labels.next(), labels.next(), labels.next()) else { return false };
        let (allowed, denied) = (self.settings.workloads.allowed_targets.clone(), self.settings.workloads.denied_targets.clone());
        self.cluster_ips.get(&(namespace, name)).is_some_and(|&address| {
            let rules = TargetRules { allowed, denied, cluster: vec![address.into()], ..TargetRules::default() };
            TargetPolicy { rules: rules.into(), ..TargetPolicy::default() }.refuses_answer(address, false, host).is_some()
        })
    }
}

/// Namespace, name and address of a Service; `None` without an address.
fn cluster_ip(service: &Value) -> Option<((&str, &str), IpAddr)> {
    let metadata = &service["metadata"];
    Some(((metadata["namespace"].as_str()?, metadata["name"].as_str()?), service["spec"]["clusterIP"].as_str()?.parse().ok()?))
}

/// Groups and standalone proxies that accept routes which cover addresses of the cluster. Missing rights are reported elsewhere.
fn routes(facts: &ClusterFacts) -> Vec<Check> {
    const NAME: &str = "routes";
    let mut found = Vec::new();
    for (kind, objects) in [("ProxyGroup", &facts.groups), ("Service", &facts.services)] {
        for object in objects.as_deref().unwrap_or_default() {
            let overlap = condition(object, ROUTES_OVERLAP).filter(|overlap| overlap["status"] == "True");
            found.extend(overlap.map(|overlap| format!("{kind} {}: {}", named(object), overlap["message"].as_str().unwrap_or_default())));
        }
    }
    if found.is_empty() && (facts.groups.is_err() || facts.services.is_err()) {
        return Vec::new();
    }
    if found.is_empty() {
        return vec![Check::ok(NAME, "no proxy accepts a route that covers addresses of the cluster".to_owned())];
    }
    let fix = format!("as the message says ({}#an-accepted-route-covers-addresses-of-the-cluster)", page("failures.md"));
    warnings(NAME, found, "more accept such routes", &fix)
}

/// Warnings for at most [`MAX_LISTED`] objects, and the number of the others.
pub(super) fn warnings(name: &'static str, mut found: Vec<String>, others: &str, fix: &str) -> Vec<Check> {
    let more = found.len().saturating_sub(MAX_LISTED);
    found.truncate(MAX_LISTED);
    found.extend((more > 0).then(|| format!("{more} {others}")));
    found.into_iter().map(|what| Check::warn(name, what, fix.to_owned())).collect()
}

fn annotated(facts: &ClusterFacts) -> Vec<Check> {
    const NAME: &str = "annotations";
    let read = [
        ("annotations of services", &facts.services, "services in all namespaces"),
        ("annotations of ingresses.networking.k8s.io", &facts.ingresses, "ingresses.networking.k8s.io in all namespaces"),
        ("labels of namespaces, which exclude objects from default groups,", &facts.namespaces, "namespaces"),
        ("the IngressClass, which may name a group,", &facts.classes, "ingressclasses.networking.k8s.io"),
    ];
    let unread = |(what, objects, plural): (&str, &ReadResult<Vec<Value>>, &str)| {
        objects.as_ref().err().map(|gap| Check::unread(NAME, what, gap, &format!("list {plural}")))
    };
    let mut checks: Vec<_> = read.into_iter().filter_map(unread).collect();
    let (_, rules) = assignment(facts);
    let found = of_objects(facts, |object| Some(format!("{}: {}", object.publisher(), ineffective(object, &rules)?)));
    if found.is_empty() && checks.is_empty() {
        return vec![Check::ok(NAME, "all of Tailscale and Tailyard have an effect")];
    }
    let fix = format!("kubectl annotate KIND NAME ANNOTATION- removes one ({})", page("standalone.md"));
    checks.extend(warnings(NAME, found, "more objects have annotations without effect", &fix));
    checks
}
