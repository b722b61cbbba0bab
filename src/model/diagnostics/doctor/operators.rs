//! Check of the operators: whether two write the same objects, and what ends or is not reconciled without the Tailscale operator.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use serde::Deserialize as _;
use serde_json::Value;

use super::facts::ClusterFacts;
use super::{Check, is_operator, is_reconciler, listed, named, page, settings, variable};
use crate::model::controller::policy::assignment::{AssignmentRules, DefaultGroups, StandaloneScope};
use crate::model::controller::policy::requests::Parent;
use crate::model::diagnostics::overview::Gap;

const NAME: &str = "operators";
/// Kinds of the Tailscale operator that the reconciler serves if it is set to.
pub(in super::super) const CONNECTOR: &str = "Connector";
pub(in super::super) const GROUP_POLICY: &str = "ProxyGroupPolicy";
pub(in super::super) const DNS_CONFIG: &str = "DNSConfig";
/// Mode of the API server proxy in the Tailscale operator's process.
const API_SERVER_PROXY: &str = "APISERVER_PROXY";

pub(super) fn checks(facts: &ClusterFacts) -> Vec<Check> {
    let all = match &facts.deployments {
        Ok(all) => all,
        Err(gap) => return vec![Check::unread(NAME, "Deployments", gap, "list deployments.apps in all namespaces")],
    };
    let ours = all.iter().find(|deployment| is_reconciler(deployment) && is_running(deployment));
    let theirs = all.iter().find(|deployment| is_operator(deployment) && is_running(deployment));
    let first = match (ours, theirs) {
        (Some(ours), Some(theirs)) => both_run(facts, ours, theirs),
        (None, Some(theirs)) => Check::ok(NAME, format!("the Tailscale operator {} alone", named(theirs))),
        (Some(ours), None) if !unreconciled(facts, ours).is_empty() => {
            let what = format!("the Tailscale operator does not run, nothing else reconciles {}", unreconciled(facts, ours).join(", "));
            Check::warn(NAME, what, format!("delete what is not needed ({})", page("migrate.md")))
        }
        (..) => Check::ok(NAME, "the Tailscale operator does not run"),
    };
    let takes_over = ours.is_some_and(|ours| mode(ours).is_some());
    [first].into_iter().chain(all.iter().filter_map(|deployment| api_server_proxy(deployment, takes_over))).collect()
}

/// Whether the reconciler of a Deployment serves a kind that is off by default.
pub(in super::super) fn serves(reconciler: &Value, kind: &str) -> bool {
    let setting = match kind {
        CONNECTOR => "TAILYARD_CONNECTORS",
        GROUP_POLICY => "TAILYARD_PROXY_GROUP_POLICIES",
        DNS_CONFIG => "TAILYARD_DNS_CONFIGS",
        _ => return false,
    };
    variable(reconciler, setting) == Some("on")
}

pub(in super::super) fn is_running(deployment: &Value) -> bool {
    deployment["spec"]["replicas"].as_i64().unwrap_or(1) > 0
}

/// Mode of an operator's own API server proxy, unless that is off.
pub(in super::super) fn mode(deployment: &Value) -> Option<&str> {
    variable(deployment, API_SERVER_PROXY).filter(|mode| !matches!(*mode, "" | "false"))
}

/// Warns about an operator whose process is an API server proxy: kubectl of the tailnet's users ends with it, unless the reconciler takes its
/// device over.
fn api_server_proxy(deployment: &Value, takes_over: bool) -> Option<Check> {
    let mode = mode(deployment)?;
    if !is_operator(deployment) || takes_over {
        return None;
    }
    let operator = named(deployment);
    let what = if is_running(deployment) {
        format!(
            "the Tailscale operator {operator} is an API server proxy ({API_SERVER_PROXY}={mode}): kubectl through it fails once it is stopped"
        )
    } else {
        format!("the stopped Tailscale operator {operator} was an API server proxy ({API_SERVER_PROXY}={mode}): kubectl through it fails")
    };
    let fix = format!("set apiServerProxyConfig.mode={mode} of Tailyard's chart, which takes its device over ({})", page("migrate.md"));
    Some(Check::warn(NAME, what, fix))
}

/// Reports that both operators run. That is harmless only if no object is of both: the Tailscale operator serves groups of all types,
/// and each Service and Ingress.
fn both_run(facts: &ClusterFacts, ours: &Value, theirs: &Value) -> Check {
    let types = variable(ours, "TAILYARD_PROXY_GROUP_TYPES").unwrap_or("egress,ingress,kube-apiserver");
    let operators = format!("{} and the Tailscale operator {}", named(ours), named(theirs));
    let (mut shared, mut unread) = (Vec::new(), None);
    match &facts.groups {
        Ok(groups) => {
            let served = |group: &&Value| types.split(',').any(|served| group["spec"]["type"] == served.trim());
            let groups = groups.iter().filter(served).filter_map(|group| group["metadata"]["name"].as_str());
            shared.extend(groups.map(|group| format!("ProxyGroup {group}")));
        }
        Err(gap) => unread = Some(("proxygroups.tailscale.com", gap)),
    }
    for kind in [CONNECTOR, GROUP_POLICY, DNS_CONFIG].into_iter().filter(|kind| serves(ours, kind)) {
        let Some(Ok(objects)) = facts.unreconciled.get(kind) else { continue };
        shared.extend(objects.iter().filter_map(|object| Some(format!("{kind} {}", object["metadata"]["name"].as_str()?))));
    }
    match standalone(facts, ours, theirs) {
        Ok(objects) => shared.extend(objects),
        Err(gap) => unread = unread.or(Some(gap)),
    }
    match unread {
        _ if !shared.is_empty() => {
            let what = format!("{operators} both write {}", listed(shared, ", "));
            Check::bad(NAME, what, format!("scale one of them to 0 (in the order of {})", page("migrate.md")))
        }
        Some((plural, gap)) => {
            Check::unread(NAME, &format!("the objects that {operators} write"), gap, &format!("list {plural} in all namespaces"))
        }
        None => {
            let what = format!("{operators} both run; no ProxyGroup is of type {types}, no Service or Ingress has a proxy of its own");
            Check::warn(NAME, what, format!("scale one of them to 0 before you create one ({})", page("migrate.md")))
        }
    }
}

/// Services and Ingresses without ProxyGroup that the reconciler serves, by a proxy of their own or a default group: the Tailscale operator
/// gives each a proxy.
fn standalone<'a>(facts: &'a ClusterFacts, ours: &Value, theirs: &Value) -> Result<Vec<String>, (&'static str, &'a Gap)> {
    let (ours, theirs) = (settings(Some(ours)), settings(Some(theirs)));
    let is_on = ours.standalone || ours.default_groups != DefaultGroups::default();
    let standalone = StandaloneScope::new(is_on, &ours.service_namespaces);
    let rules = AssignmentRules { standalone, defaults: DefaultGroups::default(), ..ours.assignment() };
    if rules.standalone == StandaloneScope::Nowhere {
        return Ok(Vec::new());
    }
    let services = facts.services.as_ref().map_err(|gap| ("services", gap))?;
    let ingresses = facts.ingresses.as_ref().map_err(|gap| ("ingresses.networking.k8s.io", gap))?;
    let name = |parent: Parent<'_>| {
        let publisher = parent.publisher();
        format!("{} {}/{}", publisher.source.kind(), publisher.namespace, publisher.name)
    };
    let services = services.iter().filter_map(|service| Service::deserialize(service).ok());
    let services = services.filter(|service| rules.is_standalone(service)).map(|service| name(Parent::Service(&service)));
    let ingresses =
        ingresses.iter().filter(|_| ours.ingress_class == theirs.ingress_class).filter_map(|ingress| Ingress::deserialize(ingress).ok());
    let ingresses = ingresses.filter(|ingress| rules.is_standalone_ingress(ingress)).map(|ingress| name(Parent::Ingress(&ingress)));
    Ok(services.chain(ingresses).collect())
}

/// Kinds with objects that only the Tailscale operator reconciles, each with the objects' names.
fn unreconciled(facts: &ClusterFacts, ours: &Value) -> Vec<String> {
    let unserved = facts.unreconciled.iter().filter(|(kind, _)| !serves(ours, kind));
    let there = unserved.filter_map(|(kind, objects)| Some((kind, objects.as_ref().ok()?)));
    let named = there.filter(|(_, objects)| !objects.is_empty()).map(|(kind, objects)| {
        let names = objects.iter().filter_map(|object| object["metadata"]["name"].as_str());
        format!("{kind} {}", names.collect::<Vec<_>>().join(" "))
    });
    named.collect()
}
