//! Checks of users' Services and Ingresses.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize as _;
use serde_json::Value;

use super::facts::ClusterFacts;
use super::{Check, MAX_LISTED, ReadResult, condition, is_operator, is_reconciler, named, page, variable};
use crate::api::condition::{PROXY_READY, ROUTES_OVERLAP};
use crate::api::names;
use crate::model::controller::key::PublishSource;
use crate::model::controller::policy::annotations;
use crate::model::controller::policy::tenancy::Patterns;
use crate::model::diagnostics::overview::{ClusterView, IngressFault, StatusPart, ingress_faults};

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
    let events = match &facts.ingress_events {
        Ok(events) => events,
        Err(gap) => return vec![Check::unread(NAME, "the Events of Ingresses", gap, "list events.events.k8s.io in all namespaces")],
    };
    let mut view = ClusterView { now: facts.now, ..ClusterView::new(&facts.namespace) };
    view.take(StatusPart::Events, events.iter());
    if let Ok(ingresses) = &facts.ingresses {
        view.take(StatusPart::Ingresses, ingresses.iter());
    }
    let row = |fault: IngressFault| format!("Ingress {}/{}: {}: {}", fault.namespace, fault.name, fault.reason, fault.message);
    let faults: Vec<_> = ingress_faults(&view).into_iter().map(row).collect();
    if faults.is_empty() {
        return vec![Check::ok(NAME, "no Event of the last half hour reports a fault")];
    }
    let fix = format!("as the message says; kubectl describe ingress shows all Events ({})", page("ingress.md"));
    listed(NAME, faults, "more Ingresses have a fault", &fix)
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
    listed(NAME, unready, "more Services are not served by their proxies", &fix)
}

/// Objects with something that the reconciler permits no new object. Without a reconciler it has its defaults. A missing right is reported by
/// [`annotated`].
fn policy(facts: &ClusterFacts) -> Vec<Check> {
    const NAME: &str = "policy";
    if kinds(facts).iter().all(|(_, _, objects)| objects.is_err()) {
        return Vec::new();
    }
    let deployments = facts.deployments.as_deref().unwrap_or_default();
    let reconciler = deployments.iter().find(|deployment| is_reconciler(deployment)).or(deployments.iter().find(|one| is_operator(one)));
    let setting = |name: &str| reconciler.and_then(|deployment| variable(deployment, name)).unwrap_or_default();
    let settings = PolicySettings {
        tags: setting("PROXY_TAGS").split(',').collect(),
        permitted_tags: (setting("TAILYARD_TENANCY") != "open").then(|| Patterns::parse(setting("TAILYARD_PERMITTED_TAGS"))),
        allowed: setting("TAILYARD_ALLOWED_TARGETS").split(',').filter_map(|net| net.trim().parse().ok()).collect(),
        has_tenants: !setting("TAILYARD_STANDALONE_TENANTS").is_empty(),
        serves_standalone: setting("TAILYARD_STANDALONE") != "off",
        default_ingress_group: setting("TAILYARD_DEFAULT_INGRESS_GROUP"),
        default_egress_group: setting("TAILYARD_DEFAULT_EGRESS_GROUP"),
    };
    let mut found = Vec::new();
    for (source, _, objects) in kinds(facts) {
        for object in objects.iter().flatten() {
            found.extend(settings.refusals(facts, object).into_iter().map(|why| format!("{} {}: {why}", source.kind(), named(object))));
        }
    }
    if found.is_empty() {
        return vec![Check::ok(NAME, "it permits what Services and Ingresses request")];
    }
    let fix = format!("set the value of the chart that it names; what is served already stays served ({})", page("tenancy.md"));
    listed(NAME, found, "more objects request what new ones may not", &fix)
}

struct PolicySettings<'a> {
    tags: Vec<&'a str>,
    /// `None` if all are permitted.
    permitted_tags: Option<Patterns>,
    allowed: Vec<IpNet>,
    has_tenants: bool,
    serves_standalone: bool,
    default_ingress_group: &'a str,
    default_egress_group: &'a str,
}

impl PolicySettings<'_> {
    fn refusals(&self, facts: &ClusterFacts, object: &Value) -> Vec<String> {
        let annotation = |key: &str| object["metadata"]["annotations"][key].as_str().map(str::trim).filter(|text| !text.is_empty());
        let spec = &object["spec"];
        let is_ingress = spec["ingressClassName"] == "tailscale";
        let is_balanced = spec["loadBalancerClass"] == "tailscale";
        let requested = [names::EXPOSE, names::TAILNET_FQDN, names::TAILNET_IP].iter().any(|key| annotation(key).is_some());
        if !is_ingress && !is_balanced && !requested {
            return Vec::new();
        }
        let groups = facts.groups.as_deref().unwrap_or_default();
        let has_tenants = |group: &Value| group["spec"]["tailyard"]["tenants"].as_array().is_some_and(|tenants| !tenants.is_empty());
        let group = annotation(names::PROXY_GROUP).and_then(|name| groups.iter().find(|group| group["metadata"]["name"] == name));
        let mut refusals = Vec::new();
        if !group.map_or(self.has_tenants, has_tenants)
            && let Some(permitted) = &self.permitted_tags
        {
            let of_group = |tag: &str| {
                group.is_some_and(|group| group["spec"]["tags"].as_array().is_some_and(|tags| tags.iter().any(|one| one == tag)))
            };
            let tags = annotation(names::TAGS).unwrap_or_default().split(',').map(str::trim).filter(|tag| !tag.is_empty());
            let others = tags.filter(|tag| !self.tags.contains(tag) && !permitted.matches(tag) && !of_group(tag));
            refusals.extend(others.map(|tag| format!("tag {tag} is not in permittedTags")));
        }
        if let Some(host) = spec["externalName"].as_str().filter(|_| annotation(names::EXPOSE).is_some() || is_balanced)
            && self.is_refused_service(facts, host)
        {
            refusals.push(format!("{host} is a Service of the cluster, and not in targets.allowed"));
        }
        let is_egress = [names::TAILNET_FQDN, names::TAILNET_IP].iter().any(|key| annotation(key).is_some());
        let default = if is_egress { self.default_egress_group } else { self.default_ingress_group };
        let is_empty = object["metadata"]["annotations"][names::PROXY_GROUP].is_string();
        let is_standalone = annotation(names::PROXY_GROUP).is_none() && (is_empty || default.is_empty());
        if is_standalone && self.serves_standalone && !self.has_tenants && groups.iter().any(has_tenants) {
            refusals.push("it names no ProxyGroup, a ProxyGroup has tenants, and standalone.tenants is empty".to_owned());
        }
        refusals
    }

    /// Whether a DNS name is that of a Service whose address new objects may not have as target.
    fn is_refused_service(&self, facts: &ClusterFacts, host: &str) -> bool {
        let mut labels = host.split('.');
        let (Some(name), Some(namespace), Some("svc")) = (labels.next(), labels.next(), labels.next()) else { return false };
        let is_it = |service: &&Value| service["metadata"]["name"] == name && service["metadata"]["namespace"] == namespace;
        let service = facts.services.iter().flatten().find(is_it);
        let address = service.and_then(|service| service["spec"]["clusterIP"].as_str()?.parse::<IpAddr>().ok());
        address.is_some_and(|address| !self.allowed.iter().any(|net| net.contains(&address)))
    }
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
    listed(NAME, found, "more accept such routes", &fix)
}

/// Warnings for at most [`MAX_LISTED`] objects, and the number of the others.
fn listed(name: &'static str, mut found: Vec<String>, others: &str, fix: &str) -> Vec<Check> {
    let more = found.len().saturating_sub(MAX_LISTED);
    found.truncate(MAX_LISTED);
    found.extend((more > 0).then(|| format!("{more} {others}")));
    found.into_iter().map(|what| Check::warn(name, what, fix.to_owned())).collect()
}

/// Kinds of users' objects.
fn kinds(facts: &ClusterFacts) -> [(PublishSource, &'static str, &ReadResult<Vec<Value>>); 2] {
    [(PublishSource::Service, "services", &facts.services), (PublishSource::Ingress, "ingresses.networking.k8s.io", &facts.ingresses)]
}

fn annotated(facts: &ClusterFacts) -> Vec<Check> {
    const NAME: &str = "annotations";
    let (mut checks, mut found) = (Vec::new(), Vec::new());
    for (source, plural, objects) in kinds(facts) {
        match objects {
            Err(gap) => {
                let need = format!("list {plural} in all namespaces");
                checks.push(Check::unread(NAME, &format!("annotations of {plural}"), gap, &need));
            }
            Ok(objects) => found.extend(objects.iter().filter_map(|object| {
                let metadata = ObjectMeta::deserialize(&object["metadata"]).ok()?;
                Some(format!("{} {}: {}", source.kind(), named(object), annotations::ineffective(source, &metadata)?))
            })),
        }
    }
    if found.is_empty() && checks.is_empty() {
        return vec![Check::ok(NAME, "all of Tailscale and Tailyard have an effect")];
    }
    let fix = format!("kubectl annotate KIND NAME ANNOTATION- removes one ({})", page("standalone.md"));
    checks.extend(listed(NAME, found, "more objects have annotations without effect", &fix));
    checks
}
