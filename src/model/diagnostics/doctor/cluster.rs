//! Checks of a cluster.

use serde_json::Value;

use super::rights::{self, Right};
use super::{API_SERVER, Check, admission, control, is_reconciler, named, network, objects, operators, page, pods, rejects, tailnet};

pub use super::control::{CredentialLocation, credentials, places};
pub use super::facts::ClusterFacts;
pub use super::facts::{CredentialCheck, CredentialOutcome};

/// Required CRDs; the first is indispensable.
pub const DEFINITIONS: [&str; 3] = ["proxygroups.tailscale.com", "proxyclasses.tailscale.com", "tailnets.tailscale.com"];
const VERSION: &str = "v1alpha1";
/// `ServiceAccount` of the reconciler, after its namespace.
const RECONCILER: &str = "/tailyard-reconciler";
/// Command that installs the CRDs.
const INSTALL: &str = "tailyard crd | kubectl apply --server-side --force-conflicts -f -";

pub fn checks(facts: &ClusterFacts) -> Vec<Check> {
    let mut checks = vec![Check::ok(API_SERVER, format!("answers, version {}", facts.server))];
    checks.extend(definitions(facts));
    checks.extend(permissions(facts));
    checks.push(admission::check(facts));
    checks.push(reconciler(facts));
    checks.extend(operators::checks(facts));
    checks.extend(control::checks(facts));
    checks.extend(tailnet::checks(facts));
    checks.extend(network::checks(facts));
    checks.push(pods::check(facts));
    checks.extend(rejects::checks(facts));
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
                let fix = if account.ends_with(RECONCILER) {
                    format!("upgrade the chart, or apply config/rbac ({})", page("permissions.md"))
                } else {
                    "the reconciler writes the Role of this name: its log names the error".to_owned()
                };
                let harmless = denied.iter().all(Right::optional);
                checks.push(if harmless { Check::warn(NAME, what, fix) } else { Check::bad(NAME, what, fix) });
            }
        }
    }
    checks
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
