//! Checks of a cluster.

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::rights::{self, Right};
use super::{Check, admission, control, is_operator, is_reconciler, network, objects, page, variable};
use crate::model::diagnostics::overview::stuck;

pub use super::control::{CredentialCheck, CredentialLocation, CredentialOutcome, credentials, places};
pub use super::facts::ClusterFacts;

/// Required CRDs; the first is indispensable.
pub const DEFINITIONS: [&str; 3] = ["proxygroups.tailscale.com", "proxyclasses.tailscale.com", "tailnets.tailscale.com"];
const VERSION: &str = "v1alpha1";
/// Command that installs the CRDs.
const INSTALL: &str = "tailyard crd | kubectl apply --server-side --force-conflicts -f -";

pub fn checks(facts: &ClusterFacts) -> Vec<Check> {
    let mut checks = vec![Check::ok("api-server", format!("answers, version {}", facts.server))];
    checks.extend(definitions(facts));
    checks.extend(permissions(facts));
    checks.push(admission::check(facts));
    checks.push(reconciler(facts));
    checks.push(operators(facts));
    checks.extend(control::checks(&facts.credentials));
    checks.extend(network::checks(facts));
    checks.push(pods(facts));
    checks.extend(objects::checks(facts));
    checks
}

fn definitions(facts: &ClusterFacts) -> Vec<Check> {
    const NAME: &str = "definitions";
    let mut checks = Vec::new();
    for (definition, found) in &facts.definitions {
        let served = |found: &&Value| {
            let versions = found["spec"]["versions"].as_array();
            versions.and_then(|versions| versions.iter().find(|version| version["name"] == VERSION && version["served"] == true)).is_some()
        };
        match found {
            Err(gap) => checks.push(Check::unread(NAME, definition, gap, "get customresourcedefinitions.apiextensions.k8s.io")),
            Ok(None) if *definition == DEFINITIONS[0] => {
                checks.push(Check::bad(NAME, format!("{definition} is not installed: there can be no groups"), INSTALL));
            }
            Ok(None) => checks.push(Check::warn(NAME, format!("{definition} is not installed: what needs it is off"), INSTALL)),
            Ok(Some(found)) if !served(&found) => {
                checks.push(Check::bad(NAME, format!("{definition} does not serve {VERSION}"), INSTALL));
            }
            Ok(Some(found)) if *definition == DEFINITIONS[0] && !knows_tailyard(found) => {
                let what = format!("{definition} is the Tailscale operator's: spec.tailyard is pruned, everything else works");
                checks.push(Check::warn(NAME, what, INSTALL));
            }
            Ok(Some(_)) => {}
        }
    }
    if checks.is_empty() {
        checks.push(Check::ok(NAME, format!("all of {VERSION} are installed, with spec.tailyard")));
    }
    checks
}

fn knows_tailyard(definition: &Value) -> bool {
    let mut versions = definition["spec"]["versions"].as_array().into_iter().flatten().filter(|version| version["name"] == VERSION);
    versions.any(|version| !version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["tailyard"].is_null())
}

fn permissions(facts: &ClusterFacts) -> Vec<Check> {
    const NAME: &str = "permissions";
    let mut checks = Vec::new();
    for (account, denied) in &facts.denied {
        match denied {
            Err(gap) => {
                let needs = "create subjectaccessreviews.authorization.k8s.io";
                checks.push(Check::unread(NAME, &format!("what {account} may do"), gap, needs));
            }
            Ok(denied) if denied.is_empty() => checks.push(Check::ok(NAME, format!("{account} may do all that it must"))),
            Ok(denied) => {
                let what = format!("{account} may not: {}", rights::text_of(denied));
                let fix = format!("upgrade the chart, or apply config/rbac ({})", page("permissions.md"));
                let harmless = denied.iter().all(Right::optional);
                checks.push(if harmless { Check::warn(NAME, what, fix) } else { Check::bad(NAME, what, fix) });
            }
        }
    }
    checks
}

fn named(deployment: &Value) -> String {
    let text = |key: &str| deployment["metadata"][key].as_str().unwrap_or_default();
    format!("{}/{}", text("namespace"), text("name"))
}

fn wanted(deployment: &Value) -> i64 {
    deployment["spec"]["replicas"].as_i64().unwrap_or(1)
}

fn reconciler(facts: &ClusterFacts) -> Check {
    const NAME: &str = "reconciler";
    let lease = match &facts.lease {
        Ok(lease) => lease.as_ref(),
        Err(gap) => return Check::unread(NAME, "the Lease of the reconcilers", gap, "get leases.coordination.k8s.io"),
    };
    let holder = lease.and_then(|lease| lease["spec"]["holderIdentity"].as_str()).filter(|holder| !holder.is_empty());
    let deployment = facts.deployments.as_ref().ok().and_then(|all| all.iter().find(|deployment| is_reconciler(deployment)));
    let available = deployment.map(|deployment| deployment["status"]["availableReplicas"].as_i64().unwrap_or(0));
    match (holder.filter(|_| facts.renewed), deployment, available) {
        (None, None, _) => {
            let fix = format!("install it ({}), or name its namespace by --namespace", page("quickstart.md"));
            Check::bad(NAME, format!("none runs in {}", facts.namespace), fix)
        }
        (None, Some(deployment), Some(0)) => {
            let fix = format!("kubectl -n {} get pods; then look at the log of one", facts.namespace);
            Check::bad(NAME, format!("no Pod of {} is available", named(deployment)), fix)
        }
        (None, Some(deployment), _) => Check::bad(
            NAME,
            format!("no leader: the Lease is not renewed, though {} has Pods", named(deployment)),
            "look at their log, and whether they may get and update the Lease",
        ),
        (Some(holder), Some(deployment), Some(available)) if available < 2 => {
            let fix = format!("set replicas of {} to 2, or see why one is away", named(deployment));
            Check::warn(NAME, format!("{holder} leads without a standby"), fix)
        }
        (Some(holder), _, available) => {
            let others = available.map_or_else(String::new, |available| format!(", {available} are available"));
            Check::ok(NAME, format!("{holder} leads{others}"))
        }
    }
}

fn operators(facts: &ClusterFacts) -> Check {
    const NAME: &str = "operators";
    let all = match &facts.deployments {
        Ok(all) => all,
        Err(gap) => return Check::unread(NAME, "Deployments", gap, "list deployments.apps in all namespaces"),
    };
    let running = |deployment: &&Value| wanted(deployment) > 0;
    let ours = all.iter().filter(running).find(|deployment| is_reconciler(deployment));
    let theirs = all.iter().filter(running).find(|deployment| is_operator(deployment));
    match (ours, theirs) {
        (Some(ours), Some(theirs)) => both_run(facts, ours, theirs),
        (None, Some(theirs)) => Check::ok(NAME, format!("the Tailscale operator {} alone", named(theirs))),
        (Some(_), None) if !unreconciled(facts).is_empty() => {
            let what = format!("the Tailscale operator does not run, nothing else reconciles {}", unreconciled(facts).join(", "));
            Check::warn(NAME, what, format!("delete what is not needed ({})", page("migrate.md")))
        }
        (..) => Check::ok(NAME, "the Tailscale operator does not run"),
    }
}

/// Reports that both operators run. That is harmless only if no group has a type that ours manages: the other operator manages all types.
fn both_run(facts: &ClusterFacts, ours: &Value, theirs: &Value) -> Check {
    const NAME: &str = "operators";
    let types = variable(ours, "TAILYARD_PROXY_GROUP_TYPES").unwrap_or("egress,ingress");
    let (ours, theirs) = (named(ours), named(theirs));
    let groups = match &facts.groups {
        Ok(groups) => groups,
        Err(gap) => {
            return Check::unread(NAME, &format!("the ProxyGroups that {ours} and {theirs} write"), gap, "list proxygroups.tailscale.com");
        }
    };
    let served = |group: &&Value| types.split(',').any(|served| group["spec"]["type"] == served.trim());
    let shared: Vec<_> = groups.iter().filter(served).filter_map(|group| group["metadata"]["name"].as_str()).collect();
    if shared.is_empty() {
        let what = format!("{ours} and the Tailscale operator {theirs} both run; no ProxyGroup is of type {types}");
        return Check::warn(NAME, what, format!("scale one of them to 0 before you create one ({})", page("migrate.md")));
    }
    let what = format!("{ours} and the Tailscale operator {theirs} both write the ProxyGroups {}", shared.join(", "));
    Check::bad(NAME, what, format!("scale one of them to 0 (in the order of {})", page("migrate.md")))
}

/// Kinds with objects that only the Tailscale operator reconciles, each with the objects' names.
fn unreconciled(facts: &ClusterFacts) -> Vec<String> {
    let there = facts.unreconciled.iter().filter_map(|(kind, objects)| Some((kind, objects.as_ref().ok()?)));
    let named = there.filter(|(_, objects)| !objects.is_empty()).map(|(kind, objects)| {
        let names = objects.iter().filter_map(|object| object["metadata"]["name"].as_str());
        format!("{kind} {}", names.collect::<Vec<_>>().join(" "))
    });
    named.collect()
}

fn pods(facts: &ClusterFacts) -> Check {
    const NAME: &str = "pods";
    let pods = match &facts.pods {
        Ok(pods) => pods,
        Err(gap) => return Check::unread(NAME, "the Pods of the proxies", gap, &format!("list pods in {}", facts.namespace)),
    };
    let pods: Vec<Pod> = pods.iter().filter_map(|pod| serde_json::from_value(pod.clone()).ok()).collect();
    let stuck = pods.iter().filter_map(|pod| Some(format!("{}: {}", pod.metadata.name.as_deref()?, stuck(pod)?)));
    let stuck: Vec<_> = stuck.collect();
    if stuck.is_empty() {
        return Check::ok(NAME, format!("none of {} waits for anything", pods.len()));
    }
    let fix = format!("kubectl -n {} describe pod names the event; tailyard status shows the others", facts.namespace);
    Check::bad(NAME, stuck.join("; "), fix)
}
