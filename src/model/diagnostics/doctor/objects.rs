//! Checks of users' Services and Ingresses.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize as _;
use serde_json::Value;

use super::facts::ClusterFacts;
use super::{Check, MAX_LISTED, ReadResult, named, page};
use crate::api::condition::{PROXY_READY, ROUTES_OVERLAP};
use crate::model::controller::key::PublishSource;
use crate::model::controller::policy::annotations;
use crate::model::diagnostics::overview::{ClusterView, IngressFault, StatusPart, ingress_faults};

pub(super) fn checks(facts: &ClusterFacts) -> Vec<Check> {
    let mut checks = annotated(facts);
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
        let condition = service["status"]["conditions"].as_array().and_then(|all| all.iter().find(|one| one["type"] == PROXY_READY));
        let Some(condition) = condition else { continue };
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

/// Groups and standalone proxies that accept routes which cover addresses of the cluster. Missing rights are reported elsewhere.
fn routes(facts: &ClusterFacts) -> Vec<Check> {
    const NAME: &str = "routes";
    let mut found = Vec::new();
    for (kind, objects) in [("ProxyGroup", &facts.groups), ("Service", &facts.services)] {
        for object in objects.as_deref().unwrap_or_default() {
            let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            let overlap = conditions.iter().find(|one| one["type"] == ROUTES_OVERLAP && one["status"] == "True");
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
