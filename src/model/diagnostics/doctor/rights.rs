//! The rights that the reconciler and the replicas need: those of config/rbac, which a test compares, as questions to the API server.

use std::collections::BTreeMap;

/// One thing that somebody is to be allowed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// The API group; the core group's is empty.
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub verb: String,
    /// With which object; empty for any.
    pub name: String,
    pub namespace: String,
}

/// A rule as config/rbac spells it: API group, resources, names, verbs.
type Rule = (&'static str, &'static [&'static str], &'static [&'static str], &'static [&'static str]);

/// `ClusterRole` `tailyard-reconciler`.
const CLUSTER: [Rule; 5] = [
    ("tailscale.com", &["proxygroups", "proxyclasses", "tailnets"], &[], &["get", "list", "watch", "patch"]),
    ("tailscale.com", &["proxygroups/status", "proxyclasses/status", "tailnets/status"], &[], &["patch"]),
    ("tailscale.com", &["proxygroups/finalizers"], &[], &["update"]),
    ("networking.k8s.io", &["ingressclasses"], &[], &["get", "list", "watch"]),
    ("", &["namespaces"], &[], &["get", "list", "watch"]),
];

/// `ClusterRole` `tailyard-reconciler-services`, and the Role of that name in a watched namespace.
const SERVICES: [Rule; 7] = [
    ("", &["services"], &[], &["get", "list", "watch", "patch"]),
    ("", &["services/status"], &[], &["patch"]),
    ("events.k8s.io", &["events"], &[], &["create", "patch"]),
    ("networking.k8s.io", &["ingresses"], &[], &["get", "list", "watch", "patch"]),
    ("networking.k8s.io", &["ingresses/status"], &[], &["patch"]),
    ("discovery.k8s.io", &["endpointslices"], &[], &["get", "list", "watch"]),
    ("rbac.authorization.k8s.io", &["rolebindings"], &[], &["get", "list", "watch", "create", "patch"]),
];

/// What the `ClusterRole` `tailyard-reconciler-services` has beyond the Role.
const NODES: [Rule; 1] = [("", &["nodes"], &[], &["list", "watch"])];

/// Role `tailyard-reconciler`.
const NAMESPACE: [Rule; 12] = [
    ("", &["secrets", "configmaps"], &[], &["get", "list", "watch", "create", "update", "patch", "delete"]),
    ("", &["services", "serviceaccounts"], &[], &["get", "list", "watch", "create", "patch", "delete"]),
    ("", &["pods"], &[], &["get", "list", "watch"]),
    ("apps", &["statefulsets"], &[], &["get", "list", "watch", "create", "patch", "delete"]),
    ("policy", &["poddisruptionbudgets"], &[], &["get", "list", "watch", "create", "patch", "delete"]),
    ("rbac.authorization.k8s.io", &["roles", "rolebindings"], &[], &["get", "list", "watch", "create", "patch", "delete"]),
    ("discovery.k8s.io", &["endpointslices"], &[], &["get", "list", "watch", "delete"]),
    ("monitoring.coreos.com", &["servicemonitors"], &[], &["get", "list", "watch", "create", "patch", "delete"]),
    ("", &["events"], &[], &["create", "get", "patch"]),
    ("coordination.k8s.io", &["leases"], &[], &["create"]),
    ("coordination.k8s.io", &["leases"], &["tailyard-reconciler"], &["get", "patch"]),
    ("coordination.k8s.io", &["leases"], &[], &["get", "patch", "update"]),
];

/// What only workload identity federation needs.
const IDENTITY: [Rule; 1] = [("", &["serviceaccounts/token"], &["tailyard-reconciler"], &["create"])];

impl Right {
    /// Whether the rest works without it: static endpoints, scrapes and workload identity do not.
    #[must_use]
    pub fn optional(&self) -> bool {
        matches!(self.resource.as_str(), "nodes" | "servicemonitors") || self.subresource == "token"
    }
}

/// So many kinds of objects are named; who lacks more lacks the whole Role.
const NAMED: usize = 6;

/// Rights in words: the verbs of each kind of object together.
#[must_use]
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

/// What a reconciler in `namespace` needs that looks for Services in these namespaces, or everywhere.
#[must_use]
pub fn reconciler(namespace: &str, watched: &[String]) -> Vec<Right> {
    let mut rights = of(&CLUSTER, "");
    if watched.is_empty() {
        rights.extend(of(&SERVICES, ""));
        rights.extend(of(&NODES, ""));
    }
    rights.extend(watched.iter().flat_map(|namespace| of(&SERVICES, namespace)));
    rights.extend(of(&NAMESPACE, namespace));
    rights.extend(of(&IDENTITY, namespace));
    rights
}

/// What the replicas of a group need: their own state, and the config of their group.
#[must_use]
pub fn replicas(namespace: &str, group: &str) -> Vec<Right> {
    let (state, config) = (crate::api::names::replica(group, 0), crate::api::names::egress_config(group));
    let right = |resource: &str, verb: &str, name: &str| Right {
        group: String::new(),
        resource: resource.to_owned(),
        subresource: String::new(),
        verb: verb.to_owned(),
        name: name.to_owned(),
        namespace: namespace.to_owned(),
    };
    let secrets = ["get", "update", "patch"].map(|verb| right("secrets", verb, &state));
    secrets.into_iter().chain(["get", "list", "watch"].map(|verb| right("configmaps", verb, &config))).collect()
}

fn of(rules: &[Rule], namespace: &str) -> Vec<Right> {
    let mut rights = Vec::new();
    for (group, resources, names, verbs) in rules {
        for (resource, verb) in resources.iter().flat_map(|resource| verbs.iter().map(move |verb| (*resource, *verb))) {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let names = if names.is_empty() { &[""] } else { *names };
            rights.extend(names.iter().map(|name| Right {
                group: (*group).to_owned(),
                resource: resource.to_owned(),
                subresource: subresource.to_owned(),
                verb: verb.to_owned(),
                name: (*name).to_owned(),
                namespace: namespace.to_owned(),
            }));
        }
    }
    rights
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use k8s_openapi::api::rbac::v1::PolicyRule;
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Document {
        kind: String,
        #[serde(default)]
        metadata: Metadata,
        #[serde(default)]
        rules: Vec<PolicyRule>,
    }

    #[derive(Default, Deserialize)]
    struct Metadata {
        #[serde(default)]
        name: String,
        #[serde(default)]
        namespace: String,
    }

    /// The rights that a file of config/rbac grants to the reconciler.
    fn granted(file: &str) -> Vec<Right> {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("config/rbac").join(file)).expect("a file");
        let documents: Vec<Document> = text.split("\n---\n").map(|text| serde_saphyr::from_str(text).expect("an object")).collect();
        let mut rights = Vec::new();
        for document in
            documents.iter().filter(|document| document.kind.ends_with("Role") && document.metadata.name != "tailyard-endpoints")
        {
            for rule in &document.rules {
                let texts =
                    |texts: &Option<Vec<String>>| texts.clone().filter(|texts| !texts.is_empty()).unwrap_or_else(|| vec![String::new()]);
                for (group, resource) in
                    texts(&rule.api_groups).iter().flat_map(|group| texts(&rule.resources).into_iter().map(move |of| (group.clone(), of)))
                {
                    let (resource, subresource) = resource.split_once('/').unwrap_or((&resource, ""));
                    for (verb, name) in
                        rule.verbs.iter().flat_map(|verb| texts(&rule.resource_names).into_iter().map(move |name| (verb, name)))
                    {
                        rights.push(Right {
                            group: group.clone(),
                            resource: resource.to_owned(),
                            subresource: subresource.to_owned(),
                            verb: verb.clone(),
                            name,
                            namespace: document.metadata.namespace.clone(),
                        });
                    }
                }
            }
        }
        rights
    }

    fn sorted(mut rights: Vec<Right>) -> Vec<Right> {
        rights.sort();
        rights.dedup();
        rights
    }

    #[test]
    fn the_rights_are_those_of_config_rbac() {
        let everywhere = [granted("cluster.yaml"), granted("namespace.yaml")].concat();
        assert_eq!(sorted(reconciler("tailscale", &[])), sorted(everywhere));
        let watched = sorted(granted("watched.yaml"));
        assert_eq!(
            sorted(reconciler("tailscale", &["watched".into()]).into_iter().filter(|right| right.namespace == "watched").collect()),
            watched
        );
    }

    #[test]
    fn rights_are_told_by_object_and_not_all_of_very_many() {
        let all = reconciler("ts", &[]);
        let of = |resource: &str| all.iter().filter(|right| right.resource == resource).cloned().collect::<Vec<_>>();
        assert_eq!(
            text_of(&of("leases")),
            "create/get/patch/update leases.coordination.k8s.io in ts, get/patch leases.coordination.k8s.io tailyard-reconciler in ts"
        );
        assert!(text_of(&all).ends_with(" kinds of objects more"), "{}", text_of(&all));
    }
}
