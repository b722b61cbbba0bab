//! Permissions that the reconciler and the replicas need, for access reviews: the rules of config/rbac.

use std::collections::BTreeMap;

use k8s_openapi::api::rbac::v1::PolicyRule;
use serde::Deserialize;
use serde_json::Value;

use super::{is_api_server, settings};
use crate::api::names;
use crate::api::proxygroup::Impersonation;
use crate::model::api_server::impersonation::{EVERY_NAME, PermittedImpersonation};
use crate::model::controller::workload::objects::APPLIED;
use crate::model::controller::workload::role::RoleConfig;

const CLUSTER: &str = include_str!("../../../../config/rbac/cluster.yaml");
const NAMESPACE: &str = include_str!("../../../../config/rbac/namespace.yaml");
const WATCHED: &str = include_str!("../../../../config/rbac/watched.yaml");
const IMPERSONATION: &str = include_str!("../../../../config/rbac/impersonation.yaml");
const POLICY: &str = include_str!("../../../../config/rbac/policy.yaml");
/// Role that is also bound in watched namespaces.
const SERVICES: &str = "tailyard-reconciler-services";
/// `ClusterRole` of replicas.
const ENDPOINTS: &str = "tailyard-endpoints";

/// A document of config/rbac; bindings have no rules.
#[derive(Deserialize)]
struct RoleDocument {
    metadata: RoleMetadata,
    #[serde(default)]
    rules: Vec<PolicyRule>,
}

#[derive(Deserialize)]
struct RoleMetadata {
    name: String,
}

/// One required permission.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// API group; empty for the core group.
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub verb: String,
    /// Name of the object; empty for any.
    pub name: String,
    pub namespace: String,
}

impl Right {
    /// Whether only a part depends on it: static endpoints, the target policy, scrapes, causes of missing Pods, workload identity or failover.
    pub fn optional(&self) -> bool {
        let resource = self.resource.as_str();
        let reads_events = resource == "events" && matches!(self.verb.as_str(), "list" | "watch");
        matches!(resource, "nodes" | "servicecidrs" | "servicemonitors") || reads_events || self.subresource == "token" || self.failover()
    }

    /// Whether only failover depends on it.
    pub fn failover(&self) -> bool {
        (self.resource == "pods" && self.subresource == "status") || self.name == "tailyard-failover"
    }
}

/// Maximum kinds of objects listed; an account that lacks more lacks the whole Role.
const NAMED: usize = 6;

/// Permissions as text, verbs grouped by kind of object.
pub fn text_of(rights: &[Right]) -> String {
    let mut verbs: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for right in rights {
        verbs.entry(right.object()).or_default().push(&right.verb);
    }
    let listed: Vec<_> = verbs.iter().take(NAMED).map(|(object, verbs)| format!("{} {object}", verbs.join("/"))).collect();
    let more = verbs.len().saturating_sub(NAMED);
    if more == 0 { listed.join(", ") } else { format!("{}, and {more} kinds of objects more", listed.join(", ")) }
}

impl Right {
    fn object(&self) -> String {
        let part = |before: &str, text: &str| if text.is_empty() { String::new() } else { format!("{before}{text}") };
        let (subresource, group) = (part("/", &self.subresource), part(".", &self.group));
        let (name, namespace) = (part(" ", &self.name), part(" in ", &self.namespace));
        format!("{}{subresource}{group}{name}{namespace}", self.resource)
    }
}

/// Permissions of a reconciler in `namespace` that watches Services in these namespaces, or in all if empty.
pub fn reconciler(namespace: &str, watched: &[String]) -> Vec<Right> {
    let mut rights = granted(CLUSTER, "", |role| role != ENDPOINTS && (watched.is_empty() || role != SERVICES));
    rights.extend(watched.iter().flat_map(|namespace| granted(WATCHED, namespace, |_| true)));
    rights.extend(granted(NAMESPACE, namespace, |_| true));
    rights
}

/// Permissions of a reconciler that grants impersonation. It may itself impersonate what its administrators choose.
pub fn impersonation() -> Vec<Right> {
    let mut rights = granted(IMPERSONATION, "", |_| true);
    rights.retain(|right| right.verb != "impersonate");
    rights
}

/// `ValidatingAdmissionPolicy` that restricts replicas; null if the file is malformed.
pub fn policy() -> Value {
    let document = POLICY.split("\n---\n").next().unwrap_or_default();
    serde_saphyr::from_str(document).unwrap_or_default()
}

/// Accounts of the proxies' Pods and their permissions: their own state, and the config that their environment names. Only of `StatefulSet`s that
/// the reconciler wrote; a waiting Pod has the account of the active one.
pub fn proxies(namespace: &str, sets: &[Value]) -> BTreeMap<String, Vec<Right>> {
    let has = |set: &&Value, kind: &str, key: &str| !set["metadata"][kind][key].is_null();
    let own = sets.iter().filter(|set| has(set, "annotations", APPLIED) && !has(set, "labels", names::STANDBY));
    own.filter_map(|set| of_set(namespace, set)).collect()
}

fn of_set(namespace: &str, set: &Value) -> Option<(String, Vec<Right>)> {
    let pod = &set["spec"]["template"]["spec"];
    let right = |resource: &str, verb: &str, name: &str| {
        let [resource, verb, name, namespace] = [resource, verb, name, namespace].map(str::to_owned);
        Right { resource, verb, name, namespace, ..Right::default() }
    };
    let running = set["spec"]["replicas"].as_u64() != Some(0);
    let state = running.then(|| names::replica(set["metadata"]["name"].as_str().unwrap_or_default(), 0));
    let secrets = state.iter().flat_map(|state| ["get", "update", "patch"].map(|verb| right("secrets", verb, state)));
    let variables = pod["containers"].as_array().into_iter().flatten().filter_map(|container| container["env"].as_array()).flatten();
    let is_config = |variable: &&Value| RoleConfig::ALL.iter().any(|config| variable["name"] == config.variable());
    let configs = variables.filter(is_config).filter_map(|variable| Some(variable["value"].as_str()?.rsplit_once('/')?.1));
    let reads = configs.flat_map(|config| ["get", "list", "watch"].map(|verb| right("configmaps", verb, config)));
    Some((pod["serviceAccountName"].as_str()?.to_owned(), secrets.chain(reads).collect()))
}

/// Maximum users and groups of a `ProxyGroup` whose impersonation is checked: each is a request.
const MAX_SUBJECTS: usize = 10;

/// Permissions of [`proxies`], and those to impersonate: of groups of type kube-apiserver in mode auth, which have the users and groups of their
/// own list, else of the reconciler's. These are the first.
pub fn impersonating_proxies(namespace: &str, sets: &[Value], groups: &[Value], reconciler: Option<&Value>) -> Vec<(String, Vec<Right>)> {
    let mut proxies = proxies(namespace, sets);
    let mut first = Vec::new();
    for group in groups.iter().filter(|group| is_api_server(group) && group["spec"]["kubeAPIServer"]["mode"] != "noauth") {
        let Some((account, mut rights)) = group["metadata"]["name"].as_str().and_then(|name| proxies.remove_entry(name)) else { continue };
        rights.extend(impersonation_of(&group["spec"]["tailyard"]["impersonation"], reconciler));
        first.push((account, rights));
    }
    first.into_iter().chain(proxies).collect()
}

/// Permissions to impersonate the users and groups of a list that the reconciler permits, else all of these.
fn impersonation_of(list: &Value, reconciler: Option<&Value>) -> Vec<Right> {
    let requested = Option::<Impersonation>::deserialize(list).unwrap_or_default();
    let permitted = reconciler.map(|deployment| settings(Some(deployment)).workloads.impersonation);
    let names = match (requested, permitted) {
        (Some(requested), None) => requested,
        (requested, permitted) => PermittedImpersonation::new(requested.as_ref(), &permitted.unwrap_or_default()).names,
    };
    let mut rights = Vec::new();
    for (resource, names) in [("users", names.users), ("groups", names.groups)] {
        let right =
            |name: &str| Right { resource: resource.to_owned(), verb: "impersonate".to_owned(), name: name.to_owned(), ..Right::default() };
        if names.iter().any(|name| name == EVERY_NAME) {
            rights.push(right(""));
        } else {
            rights.extend(names.iter().take(MAX_SUBJECTS).map(|name| right(name)));
        }
    }
    rights
}

/// Permissions granted in a namespace by the roles of a file.
fn granted(file: &str, namespace: &str, includes: impl Fn(&str) -> bool) -> Vec<Right> {
    let documents = file.split("\n---\n").filter_map(|text| serde_saphyr::from_str::<RoleDocument>(text).ok());
    let rules = documents.filter(|document| includes(&document.metadata.name)).flat_map(|document| document.rules);
    rules.flat_map(|rule| rights_of(&rule, namespace)).collect()
}

fn rights_of(rule: &PolicyRule, namespace: &str) -> Vec<Right> {
    let any = [String::new()];
    let names = rule.resource_names.as_deref().filter(|names| !names.is_empty()).unwrap_or(&any);
    let mut rights = Vec::new();
    for (group, resource) in rule.api_groups.iter().flatten().flat_map(|group| rule.resources.iter().flatten().map(move |of| (group, of))) {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        for (verb, name) in rule.verbs.iter().flat_map(|verb| names.iter().map(move |name| (verb, name))) {
            let [resource, subresource, namespace] = [resource, subresource, namespace].map(str::to_owned);
            rights.push(Right { group: group.clone(), resource, subresource, verb: verb.clone(), name: name.clone(), namespace });
        }
    }
    rights
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of permissions for a resource in a namespace.
    fn count(rights: &[Right], resource: &str, namespace: &str) -> usize {
        rights.iter().filter(|right| right.resource == resource && right.namespace == namespace).count()
    }

    #[test]
    fn each_document_of_config_rbac_is_read() {
        for (file, roles) in [(CLUSTER, 3), (NAMESPACE, 1), (WATCHED, 1), (IMPERSONATION, 1)] {
            let documents: Vec<RoleDocument> = file.split("\n---\n").map(|text| serde_saphyr::from_str(text).expect("an object")).collect();
            assert_eq!(documents.iter().filter(|document| !document.rules.is_empty()).count(), roles);
            assert!(documents.iter().any(|document| document.metadata.name.starts_with("tailyard-reconciler")));
        }
    }

    #[test]
    fn rights_on_services_are_asked_for_where_services_are_watched() {
        let (everywhere, watched) = (reconciler("ts", &[]), reconciler("ts", &["shop".into(), "web".into()]));
        let counts = |rights: &[Right]| ["", "shop", "web", "ts"].map(|namespace| count(rights, "services", namespace));
        assert_eq!(counts(&everywhere), [5, 0, 0, 7]);
        assert_eq!(counts(&watched), [0, 5, 5, 7]);
        assert_eq!((count(&everywhere, "nodes", ""), count(&watched, "nodes", "")), (2, 0));
        assert_eq!(count(&watched, "proxygroups", ""), 6);
        let own = everywhere.iter().filter(|right| right.name == "tailyard-reconciler");
        let own: Vec<_> = own.map(|right| (right.resource.as_str(), right.subresource.as_str(), right.verb.as_str())).collect();
        assert_eq!(own, [("leases", "", "get"), ("leases", "", "patch"), ("serviceaccounts", "token", "create")]);
    }

    #[test]
    fn impersonation_requires_rights_on_roles_and_no_particular_user() {
        let text = "create/delete/get/list/patch/watch clusterrolebindings.rbac.authorization.k8s.io, \
                    create/delete/get/list/patch/watch clusterroles.rbac.authorization.k8s.io";
        let mut rights = impersonation();
        rights.sort();
        assert_eq!(text_of(&rights), text);
    }

    /// Permissions of the Pods of a golden file's `StatefulSet`s, by account.
    fn of_golden_objects(name: &str) -> Vec<(String, String)> {
        let path = format!("{}/tests/golden/objects/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let objects: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).expect("a golden file")).expect("objects");
        let sets: Vec<Value> = objects.into_iter().filter(|object| object["kind"] == "StatefulSet").collect();
        proxies("tailscale", &sets).into_iter().map(|(account, rights)| (account, text_of(&rights))).collect()
    }

    #[test]
    fn required_rights_of_proxies_follow_type_and_image() {
        let own = |pod: &str| format!("get/update/patch secrets {pod}-0 in tailscale");
        let of = |pod: &str, config: &str| vec![(pod.to_owned(), format!("get/list/watch configmaps {config} in tailscale, {}", own(pod)))];
        assert_eq!(of_golden_objects("plain"), of("pg", "pg-egress-config"));
        assert_eq!(of_golden_objects("ingress"), of("pg", "pg-ingress-config"));
        let workload = "ts-app-dd19c338de513241";
        assert_eq!(of_golden_objects("standalone-ingress"), of(workload, &format!("{workload}-ingress-config")));
        for stock in ["stock-image", "ingress-stock-image"] {
            assert_eq!(of_golden_objects(stock), [("pg".to_owned(), own("pg"))], "the image reads the mounted config: {stock}");
        }
        let standby = "ts-web-9584120d97941a57";
        assert_eq!(of_golden_objects("standalone-standby"), [(standby.to_owned(), own(standby))], "one account of two Pods");
    }

    #[test]
    fn rights_of_pods_of_the_tailscale_operator_are_not_required() {
        let pod = serde_json::json!({"spec": {"serviceAccountName": "api", "containers": [{"name": "tailscale"}]}});
        let set =
            |annotations: Value| serde_json::json!({"metadata": {"name": "api", "annotations": annotations}, "spec": {"template": pod}});
        assert!(proxies("ts", &[set(serde_json::json!({}))]).is_empty(), "a ProxyGroup of type kube-apiserver");
        assert_eq!(proxies("ts", &[set(serde_json::json!({APPLIED: "hash"}))]).len(), 1);
    }

    #[test]
    fn impersonation_is_required_of_proxies_in_mode_auth_for_the_listed_names() {
        use serde_json::json;
        let set = |name: &str| {
            let pod = json!({"spec": {"serviceAccountName": name, "containers": []}});
            json!({"metadata": {"name": name, "annotations": {APPLIED: "hash"}}, "spec": {"replicas": 0, "template": pod}})
        };
        let group = |name: &str, mode: &Value, list: &Value| {
            let spec = json!({"type": "kube-apiserver", "kubeAPIServer": {"mode": mode}, "tailyard": {"impersonation": list}});
            json!({"metadata": {"name": name}, "spec": spec})
        };
        let variable = |name: &str, value: &str| json!({"name": name, "value": value});
        let env = [variable("TAILYARD_IMPERSONATE_USERS", "*"), variable("TAILYARD_IMPERSONATE_GROUPS", "a, system:masters")];
        let reconciler = json!({"spec": {"template": {"spec": {"containers": [{"env": env}]}}}});
        let listed = json!({"users": ["me@example.com"], "groups": ["system:nodes"]});
        let groups = [
            group("z-all", &Value::Null, &Value::Null),
            group("z-listed", &json!("auth"), &listed),
            group("z-noauth", &json!("noauth"), &listed),
            group("absent", &json!("auth"), &listed),
        ];
        let sets = ["a", "z-all", "z-listed", "z-noauth"].map(set);
        let required = |reconciler| {
            let proxies = impersonating_proxies("ts", &sets, &groups, reconciler);
            proxies.into_iter().map(|(account, rights)| (account, text_of(&rights))).collect::<Vec<_>>()
        };
        let row = |account: &str, text: &str| (account.to_owned(), text.to_owned());
        let all = "impersonate groups a, impersonate groups system:masters, impersonate users";
        let others = [row("a", ""), row("z-noauth", "")];
        let listed = row("z-listed", "impersonate users me@example.com");
        assert_eq!(required(Some(&reconciler)), [&[row("z-all", all), listed.clone()], &others[..]].concat());
        let unlimited = row("z-listed", "impersonate groups system:nodes, impersonate users me@example.com");
        assert_eq!(required(None), [&[row("z-all", ""), unlimited], &others[..]].concat(), "the condition of the ProxyGroup reports it");
    }

    #[test]
    fn rights_are_printed_by_object_and_truncated() {
        let all = reconciler("ts", &[]);
        let of = |resource: &str| all.iter().filter(|right| right.resource == resource).cloned().collect::<Vec<_>>();
        assert_eq!(
            text_of(&of("leases")),
            "create/get/list/watch/patch/update/delete leases.coordination.k8s.io in ts, get/patch leases.coordination.k8s.io tailyard-failover in ts, \
             get/patch leases.coordination.k8s.io tailyard-reconciler in ts"
        );
        assert!(text_of(&all).ends_with(" kinds of objects more"), "{}", text_of(&all));
    }
}
