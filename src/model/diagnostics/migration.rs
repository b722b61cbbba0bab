//! Check before a migration: what Tailyard takes over from a running Tailscale operator, what it does not serve, and what differs.
//!
//! Pure: objects in, findings out. Without a reconciler in the cluster and without values of the chart, the settings are those of the
//! operator, and what the chart does not enable by default is off.

use serde::Deserialize as _;
use serde_json::Value;

use super::doctor::cluster::ClusterFacts;
use super::doctor::objects::policy;
use super::doctor::operators::{CONNECTOR, DNS_CONFIG, GROUP_POLICY, is_running, mode, serves};
use super::doctor::{API_SERVER, Check, Finding, ReadResult, is_operator, is_reconciler, listed, named, page, variable};
use crate::api::proxygroup::ProxyGroupType;
use crate::model::settings::reconciler::Reconciler as Settings;
use objects::{ServedObjects, ingresses, names_check, services};

mod objects;
pub mod planned;
pub mod table;
pub mod values;

pub const PAGE: &str = "migrate.md";
/// Plural of each kind that is read, for the right that a user lacks.
const PLURALS: [(&str, &str); 5] = [
    (CONNECTOR, "connectors"),
    (DNS_CONFIG, "dnsconfigs"),
    ("PeerRelay", "peerrelays"),
    (GROUP_POLICY, "proxygrouppolicies"),
    ("Recorder", "recorders"),
];

/// Facts of a cluster with a Tailscale operator.
#[derive(Debug, Clone)]
pub struct MigrationFacts {
    pub cluster: ClusterFacts,
    pub proxy_classes: ReadResult<Vec<Value>>,
}

/// Exit code: 1 if something is lost, 2 if something could not be read, 0 if nothing prevents the migration.
pub fn exit_code(checks: &[Check]) -> u8 {
    match checks {
        _ if checks.iter().any(|check| check.finding == Finding::Bad && check.name != API_SERVER) => 1,
        _ if checks.iter().any(|check| check.is_unread() || check.name == API_SERVER) => 2,
        _ => 0,
    }
}

pub fn checks(facts: &MigrationFacts) -> Vec<Check> {
    let cluster = &facts.cluster;
    let deployments = match &cluster.deployments {
        Ok(deployments) => deployments.as_slice(),
        Err(gap) => return vec![Check::unread("operator", "Deployments", gap, "list deployments.apps in all namespaces")],
    };
    let operators: Vec<&Value> = deployments.iter().filter(|deployment| is_operator(deployment)).collect();
    let planned = deployments.iter().find(|deployment| is_reconciler(deployment));
    let mut checks = operator(&cluster.namespace, &operators);
    let Some(operator) = operators.first() else { return checks };
    let objects = ServedObjects::new(cluster, operator);
    checks.extend(settings_checks(operator, planned));
    checks.push(api_server(operator, planned));
    checks.extend(groups(cluster, &objects.settings));
    checks.extend(system_groups(cluster, planned, &objects.settings));
    checks.extend(services(cluster, &objects, operator));
    checks.extend(ingresses(cluster, &objects));
    let namespaces = cluster.namespaces.as_ref().err();
    checks.extend(namespaces.map(|gap| Check::unread("services", "labels of namespaces", gap, "list namespaces")));
    checks.extend(names_check(cluster, &objects.rules));
    checks.extend(policy(cluster));
    checks.extend(other_kinds(cluster, planned));
    checks.push(proxy_classes(&facts.proxy_classes));
    checks
}

/// The Tailscale operator, whatever its name.
fn operator(namespace: &str, operators: &[&Value]) -> Vec<Check> {
    const NAME: &str = "operator";
    let [operator, others @ ..] = operators else {
        let what = "no Deployment has the image k8s-operator or the variable OPERATOR_SECRET: there is nothing to take over";
        return vec![Check::warn(NAME, what, "name the cluster by --context")];
    };
    let state = if is_running(operator) { "runs" } else { "is stopped" };
    let image = operator["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap_or_default();
    let secret = variable(operator, "OPERATOR_SECRET").unwrap_or("operator");
    let mut checks = vec![Check::ok(NAME, format!("{} {state}, image {image}, state Secret {secret}", named(operator)))];
    if operator["metadata"]["namespace"] != namespace {
        let fix = "install Tailyard's chart in the operator's namespace, and name it by --namespace";
        checks.push(Check::bad(NAME, format!("{} is not in the namespace {namespace}", named(operator)), fix));
    }
    if !others.is_empty() {
        let all = listed(others.iter().map(|other| named(other)).collect(), ", ");
        checks.push(Check::bad(
            NAME,
            format!("there are others: {all}"),
            "one release of Tailyard takes over one operator: stop the others",
        ));
    }
    checks
}

/// Settings of the operator that Tailyard does not have yet.
fn settings_checks(operator: &Value, planned: Option<&Value>) -> Vec<Check> {
    const NAME: &str = "settings";
    let env = operator["spec"]["template"]["spec"]["containers"][0]["env"].as_array();
    let text = |entry: &'_ Value| Some((entry["name"].as_str()?.to_owned(), entry["value"].as_str().map(str::to_owned)));
    let env: Vec<_> = env.into_iter().flatten().filter_map(text).collect();
    let has = |name: &str, value: &Option<String>| planned.is_some_and(|planned| variable(planned, name) == value.as_deref());
    // Step 3 of the migration sets the image, and the check of the API server is another one.
    let is_compared = |name: &str| !name.starts_with("CLIENT_") && !matches!(name, "PROXY_IMAGE" | "APISERVER_PROXY" | "AUTH_PROXY");
    let others = env.iter().filter(|(name, value)| is_compared(name) && !has(name, value));
    let converted = values::of_environment(others.map(|(name, value)| (name.as_str(), value.as_deref())));
    let mut checks: Vec<_> =
        converted.refused.iter().map(|(name, why)| Check::bad(NAME, format!("{name} of the operator has no counterpart"), why)).collect();
    let differing = flattened("", &Value::Object(converted.values));
    if !differing.is_empty() {
        let what = format!("the operator has {}", listed(differing, ", "));
        checks.push(Check::warn(NAME, what, format!("set these values of Tailyard's chart ({})", page(PAGE))));
    }
    if env.iter().any(|(name, value)| name == "CLIENT_ID" && value.is_some()) {
        let subject =
            format!("system:serviceaccount:{}:tailyard-reconciler", operator["metadata"]["namespace"].as_str().unwrap_or_default());
        let fix = format!("add a federated identity with the subject {subject}, and set controlPlane.credentials.workloadIdentity");
        checks.push(Check::warn(NAME, "the operator has a federated identity, which names its ServiceAccount", fix));
    }
    if checks.is_empty() { vec![Check::ok(NAME, "Tailyard has those of the operator")] } else { checks }
}

/// `key=value` of each value that is no mapping.
fn flattened(prefix: &str, value: &Value) -> Vec<String> {
    let key = |name: &String| if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
    match value {
        Value::Object(fields) => fields.iter().flat_map(|(name, value)| flattened(&key(name), value)).collect(),
        Value::String(text) => vec![format!("{prefix}={text}")],
        other => vec![format!("{prefix}={other}")],
    }
}

/// Whether kubectl through the operator's own device ends.
fn api_server(operator: &Value, planned: Option<&Value>) -> Check {
    const NAME: &str = "api-server-proxy";
    let deprecated = variable(operator, "AUTH_PROXY").filter(|mode| *mode == "true");
    let Some(mode_of_operator) = mode(operator).or(deprecated) else {
        return Check::ok(NAME, "the operator's process is no API server proxy");
    };
    if planned.and_then(mode).is_some() {
        return Check::ok(NAME, "the operator's device is taken over: kubectl through it pauses during the migration");
    }
    let device = variable(operator, "OPERATOR_HOSTNAME").unwrap_or("tailscale-operator");
    let what = format!("kubectl through the device {device} ends with the operator, which is an API server proxy ({mode_of_operator})");
    Check::bad(NAME, what, format!("set apiServerProxyConfig.mode={mode_of_operator}, which takes the device over ({})", page(PAGE)))
}

fn groups(facts: &ClusterFacts, settings: &Settings) -> Vec<Check> {
    const NAME: &str = "proxygroups";
    let groups = match &facts.groups {
        Ok(groups) => groups,
        Err(gap) => return vec![Check::unread(NAME, "ProxyGroups", gap, "list proxygroups.tailscale.com")],
    };
    let (served, unserved): (Vec<_>, Vec<_>) = groups.iter().partition(|group| has_served_type(group, settings));
    let names = |groups: &[&Value]| listed(groups.iter().map(|group| named(group)).collect(), ", ");
    let mut checks = vec![taken_over(NAME, "ProxyGroups", served.iter().map(|group| named(group)).collect())];
    if !unserved.is_empty() {
        let what = format!("not reconciled, as proxyGroupTypes omits their type: {}", names(&unserved));
        checks.push(Check::bad(NAME, what, "add the type to proxyGroupTypes"));
    }
    let impersonating: Vec<&Value> = served.iter().filter(|group| impersonates(group)).copied().collect();
    if !impersonating.is_empty() && settings.workloads.impersonation.users.is_empty() {
        let what = format!("kubectl fails through ProxyGroups that may not impersonate users: {}", names(&impersonating));
        let fix = "set apiServerProxyConfig.allowImpersonation=true, and list groups such as system:masters in apiServerProxyConfig.impersonation";
        checks.push(Check::bad(NAME, what, fix));
    }
    checks
}

/// Whether a group requests the API server as its clients.
fn impersonates(group: &Value) -> bool {
    group["spec"]["type"] == "kube-apiserver" && group["spec"]["kubeAPIServer"]["mode"].as_str().unwrap_or("auth") == "auth"
}

/// Groups of Kubernetes itself, which the Tailscale operator's proxies may always impersonate.
fn system_groups(facts: &ClusterFacts, planned: Option<&Value>, settings: &Settings) -> Option<Check> {
    let is_used = facts.groups.iter().flatten().any(impersonates) || planned.and_then(mode) == Some("true");
    if !is_used || settings.workloads.impersonation.groups.iter().any(|group| group.starts_with("system:")) {
        return None;
    }
    let what = "clients get status 403 where their grants name groups of Kubernetes itself, such as system:masters";
    Some(Check::warn(
        "api-server-proxy",
        what,
        "list these groups in apiServerProxyConfig.impersonation.groups, besides allowImpersonation",
    ))
}

fn has_served_type(group: &Value, settings: &Settings) -> bool {
    ProxyGroupType::deserialize(&group["spec"]["type"]).is_ok_and(|type_| settings.workloads.types.contains(&type_))
}

fn taken_over(name: &'static str, kind: &str, all: Vec<String>) -> Check {
    if all.is_empty() {
        Check::ok(name, format!("there are no {kind}"))
    } else {
        Check::ok(name, format!("taken over: {}", listed(all, ", ")))
    }
}

/// Kinds that only the Tailscale operator reconciles, or that are off by default.
fn other_kinds(facts: &ClusterFacts, planned: Option<&Value>) -> Vec<Check> {
    const NAME: &str = "kinds";
    let mut checks = Vec::new();
    for (kind, plural) in PLURALS {
        let objects = match facts.unreconciled.get(kind) {
            Some(Ok(objects)) => objects,
            Some(Err(gap)) => {
                checks.push(Check::unread(NAME, plural, gap, &format!("list {plural}.tailscale.com")));
                continue;
            }
            None => continue,
        };
        if objects.is_empty() {
            continue;
        }
        let all = listed(objects.iter().map(named).collect(), ", ");
        checks.push(match kind {
            DNS_CONFIG if planned.is_some_and(|planned| serves(planned, kind)) => Check::warn(
                NAME,
                format!("taken over: {kind} {all}; Ingresses that Pods do not reach lose their record"),
                format!("see {}", page("nameserver.md")),
            ),
            _ if planned.is_some_and(|planned| serves(planned, kind)) => Check::ok(NAME, format!("taken over: {kind} {all}")),
            CONNECTOR => Check::bad(NAME, format!("off by default: {kind} {all}"), "set connectors.enabled=true"),
            DNS_CONFIG => Check::bad(NAME, format!("off by default: {kind} {all}"), "set dnsConfigs.enabled=true"),
            GROUP_POLICY => Check::bad(NAME, format!("off by default: {kind} {all}"), "set proxyGroupPolicies.enabled=true"),
            _ => Check::bad(NAME, format!("not served by Tailyard: {kind} {all}"), format!("delete what is not needed ({})", page(PAGE))),
        });
    }
    if checks.is_empty() { vec![Check::ok(NAME, "there are no objects of kinds that Tailyard does not serve by default")] } else { checks }
}

/// Images of classes, which Tailyard uses as they are.
fn proxy_classes(classes: &ReadResult<Vec<Value>>) -> Check {
    const NAME: &str = "proxyclasses";
    let classes = match classes {
        Ok(classes) => classes,
        Err(gap) => return Check::unread(NAME, "ProxyClasses", gap, "list proxyclasses.tailscale.com"),
    };
    let has_image = |class: &&Value| {
        let pod = &class["spec"]["statefulSet"]["pod"];
        ["tailscaleContainer", "tailscaleInitContainer"].iter().any(|container| pod[container]["image"].is_string())
    };
    let with_image: Vec<_> = classes.iter().filter(has_image).map(named).collect();
    if with_image.is_empty() {
        return taken_over(NAME, "ProxyClasses", classes.iter().map(named).collect());
    }
    let what = format!("taken over; their proxies run on with the image that the ProxyClass names: {}", listed(with_image, ", "));
    Check::warn(NAME, what, "change or remove the images in the last step")
}

#[cfg(test)]
mod tests;
