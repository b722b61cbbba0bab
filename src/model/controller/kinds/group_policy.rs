//! `ProxyGroupPolicy`: the policies of a namespace as two `ValidatingAdmissionPolicies`, of ingress and of egress, each with a binding.
//!
//! Names and rules of the objects are those of the Tailscale operator, so that either replaces the other's. An object without the annotation
//! passes, unless a policy limits standalone proxies. Objects in deletion and requests of the reconciler pass, too: else an object that is not
//! permitted any more would never lose its finalizers. Performs no I/O.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::condition::{PROXY_GROUP_POLICY_READY, reason};
use crate::api::names;
use crate::api::proxygrouppolicy::{ProxyGroupPolicy, ProxyGroupPolicyStatus};
use crate::model::base::bounded::{MAX_GROUP_NAMES, clean};
use crate::model::base::conditions;
use crate::model::base::conditions::{ConditionStatus, DesiredCondition};
use crate::model::controller::policy::annotations::{dns_label, is_on};
use crate::model::controller::workload::objects::{Kind, Manifest};

/// Maximum names that the message of a denial lists.
const MAX_LISTED: usize = 20;

/// Inputs of the rules besides policies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyRules {
    /// User name of the reconciler, whose requests pass.
    pub reconciler: String,
    /// Class of the Ingresses that may have standalone proxies.
    pub ingress_class: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// Prefix of the objects' names; the namespace follows.
    fn prefix(self) -> &'static str {
        match self {
            Self::Ingress => "ts-ingress-",
            Self::Egress => "ts-egress-",
        }
    }

    fn names(self, policy: &ProxyGroupPolicy) -> &[String] {
        match self {
            Self::Ingress => &policy.spec.ingress,
            Self::Egress => &policy.spec.egress,
        }
    }

    fn field(self) -> &'static str {
        match self {
            Self::Ingress => "spec.ingress",
            Self::Egress => "spec.egress",
        }
    }

    /// Kinds that the policy matches: API group, version and plural.
    fn resources(self) -> &'static [(&'static str, &'static str, &'static str)] {
        const SERVICES: (&str, &str, &str) = ("", "v1", "services");
        match self {
            Self::Ingress => &[("networking.k8s.io", "*", "ingresses"), SERVICES],
            Self::Egress => &[SERVICES],
        }
    }

    /// CEL expression: objects that the rule limits. `is_limited`: also those that request a proxy of their own.
    fn applies(self, is_limited: bool) -> &'static str {
        match (self, is_limited) {
            (Self::Ingress, false) => "variables.named && (variables.exposed || request.kind.kind == 'Ingress')",
            (Self::Ingress, true) => {
                "variables.exposed || (request.kind.kind == 'Ingress' && (variables.named || variables.ingressClass == variables.ownClass))"
            }
            (Self::Egress, false) => "variables.named && !variables.exposed",
            (Self::Egress, true) => "!variables.exposed && (variables.named || variables.targeted)",
        }
    }
}

/// Namespace whose policies an object enforces, by the object's name.
pub fn namespace_of(kind: Kind, name: &str) -> Option<&str> {
    let is_admission = Kind::ADMISSION.contains(&kind);
    Direction::ALL.into_iter().filter(|_| is_admission).find_map(|direction| name.strip_prefix(direction.prefix()))
}

/// Objects that enforce the policies of a namespace, in the order of creation.
pub fn manifests(namespace: &str, policies: &[Arc<ProxyGroupPolicy>], rules: &PolicyRules) -> Vec<Manifest> {
    if policies.is_empty() {
        return Vec::new();
    }
    let is_limited = policies.iter().any(|policy| is_on(policy.metadata.annotations.as_ref(), names::LIMIT_STANDALONE));
    let of = |direction: Direction| {
        let permitted: Vec<&str> = permitted(policies, direction).into_iter().take(MAX_GROUP_NAMES).collect();
        let name = format!("{}{namespace}", direction.prefix());
        let policy = manifest(Kind::AdmissionPolicy, namespace, &name, &policy(direction, &permitted, is_limited, rules));
        [policy, manifest(Kind::AdmissionBinding, namespace, &name, &binding(namespace, &name))]
    };
    Direction::ALL.into_iter().flat_map(of).collect()
}

/// Whether an object has exactly this content. A field that others add, such as a condition of the match, could end the enforcement.
pub fn is_current(manifest: &Manifest, observed: &Value) -> bool {
    manifest.holds(observed) && observed["spec"] == manifest.value["spec"]
}

/// Changed statuses of the policies of a namespace, by name. `failure`: why the API server rejects the objects.
pub fn statuses(policies: &[Arc<ProxyGroupPolicy>], failure: Option<&str>, now: Timestamp) -> Vec<(String, ProxyGroupPolicyStatus)> {
    let excess = Direction::ALL.into_iter().find(|direction| permitted(policies, *direction).len() > MAX_GROUP_NAMES);
    let excess = excess.map(|direction| {
        format!(
            "{} of the policies of this namespace has more than {MAX_GROUP_NAMES} names: remove some, the last ones are not permitted",
            direction.field()
        )
    });
    let status = |policy: &Arc<ProxyGroupPolicy>| {
        let fault = invalid(policy).or_else(|| excess.clone());
        let (status, reason, message) = match (failure, fault) {
            (Some(failure), _) => (ConditionStatus::False, reason::PROXY_GROUP_POLICY_NOT_ENFORCED, failure.to_owned()),
            (None, Some(fault)) => (ConditionStatus::False, reason::PROXY_GROUP_POLICY_INVALID, fault),
            (None, None) => (ConditionStatus::True, reason::PROXY_GROUP_POLICY_ENFORCED, "the API server enforces the policy".to_owned()),
        };
        let mut conditions = policy.status.clone().unwrap_or_default().conditions;
        let generation = policy.metadata.generation.unwrap_or_default();
        let wanted = DesiredCondition { kind: PROXY_GROUP_POLICY_READY, status, reason, message, generation };
        let is_changed = conditions::set(&mut conditions, &wanted, now);
        is_changed.then(|| (policy.metadata.name.clone().unwrap_or_default(), ProxyGroupPolicyStatus { conditions }))
    };
    policies.iter().filter_map(status).collect()
}

/// Valid names that the policies of a namespace permit. The empty one stands for a proxy of its own.
fn permitted(policies: &[Arc<ProxyGroupPolicy>], direction: Direction) -> BTreeSet<&str> {
    policies.iter().flat_map(|policy| direction.names(policy)).map(String::as_str).filter(|name| is_name(name)).collect()
}

fn is_name(name: &str) -> bool {
    name.is_empty() || dns_label(name)
}

/// The first name that no `ProxyGroup` can have, with an action.
fn invalid(policy: &ProxyGroupPolicy) -> Option<String> {
    Direction::ALL.into_iter().find_map(|direction| {
        let (index, name) = direction.names(policy).iter().enumerate().find(|(_, name)| !is_name(name))?;
        Some(format!(
            "{}[{index}] {:?} is no name of a ProxyGroup and permits nothing: correct or remove it",
            direction.field(),
            clean(name)
        ))
    })
}

fn manifest(kind: Kind, namespace: &str, name: &str, spec: &Value) -> Manifest {
    let labels = json!({names::MANAGED: "true", names::PARENT_TYPE: "proxygrouppolicy", names::PARENT_NAMESPACE: namespace});
    let value = json!({"apiVersion": kind.api_version(), "kind": kind.name(), "metadata": {"name": name, "labels": labels}, "spec": spec});
    // Fields of the Tailscale operator, and of an edit by hand, are removed.
    Manifest { adopt: true, ..Manifest::of_value(kind, value) }
}

/// The policy, with the API server's defaults, so that it can be compared.
fn policy(direction: Direction, permitted: &[&str], is_limited: bool, rules: &PolicyRules) -> Value {
    let rule = |(group, version, plural): &(&str, &str, &str)| {
        let operations = ["CREATE", "UPDATE"];
        json!({"apiGroups": [group], "apiVersions": [version], "operations": operations, "resources": [plural], "scope": "*"})
    };
    let resources: Vec<_> = direction.resources().iter().map(rule).collect();
    let quoted: Vec<_> = permitted.iter().map(|name| quote(name)).collect();
    let expression = format!("!({}) || variables.name in [{}]", direction.applies(is_limited), quoted.join(", "));
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}, "resourceRules": resources},
        "matchConditions": [
            {"name": "not-in-deletion", "expression": "!has(object.metadata.deletionTimestamp)"},
            {"name": "not-the-reconciler", "expression": format!("request.userInfo.username != {}", quote(&rules.reconciler))},
        ],
        "variables": variables(rules),
        "validations": [{"expression": expression, "message": denial(permitted, is_limited)}],
    })
}

/// Variables of the expressions. An object without annotations has none of the keys.
fn variables(rules: &PolicyRules) -> Vec<Value> {
    let has = |key: &str| format!("{} in variables.annotations", quote(key));
    // As the reconciler reads annotations: without white space around the value.
    let value = |key: &str| format!("string(variables.annotations[{}]).trim()", quote(key));
    let filled = |key: &str| format!("({} && {} != '')", has(key), value(key));
    let field = |name: &str| format!("dyn(object).?spec.?{name}.orValue('')");
    let targets = [names::TAILNET_FQDN, names::TAILNET_IP, names::FORMER_TAILNET_IP].map(filled).join(" || ");
    let is_exposed = format!("{} && {} == 'true'", has(names::EXPOSE), value(names::EXPOSE));
    let is_balanced = format!("{} == {}", field("loadBalancerClass"), quote(names::LOAD_BALANCER_CLASS));
    let all = [
        ("annotations", "object.metadata.?annotations.orValue({})".to_owned()),
        ("named", has(names::PROXY_GROUP)),
        ("name", format!("variables.named ? {} : ''", value(names::PROXY_GROUP))),
        ("exposed", format!("request.kind.kind == 'Service' && ({is_balanced} || ({is_exposed}))")),
        ("targeted", targets),
        ("ingressClass", field("ingressClassName")),
        ("ownClass", quote(&rules.ingress_class)),
    ];
    all.map(|(name, expression)| json!({"name": name, "expression": expression})).into()
}

fn binding(namespace: &str, name: &str) -> Value {
    json!({
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {
            "matchPolicy": "Equivalent",
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "objectSelector": {},
        },
    })
}

/// Message of a denial.
fn denial(permitted: &[&str], is_limited: bool) -> String {
    if permitted.is_empty() {
        let standalone = if is_limited { ", nor a proxy without a ProxyGroup" } else { "" };
        return format!(
            r#"Annotation "{}" cannot be used on this resource in this namespace{standalone} (ProxyGroupPolicy)"#,
            names::PROXY_GROUP
        );
    }
    let listed: Vec<_> = permitted.iter().take(MAX_LISTED).map(|name| if name.is_empty() { r#""""# } else { *name }).collect();
    let more = if permitted.len() > MAX_LISTED { ", …" } else { "" };
    let condition = if is_limited { "Annotation" } else { "If set, annotation" };
    format!(r#"{condition} "{}" must be one of [{}{more}] (ProxyGroupPolicy)"#, names::PROXY_GROUP, listed.join(", "))
}

/// A CEL string.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\\', r"\\").replace('\'', r"\'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policies(specs: &Value) -> Vec<Arc<ProxyGroupPolicy>> {
        let policy = |(index, spec): (usize, &Value)| {
            let metadata = json!({"name": format!("p{index}"), "namespace": "shop", "generation": 1, "annotations": spec["annotations"]});
            Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a policy"))
        };
        specs.as_array().expect("a list").iter().enumerate().map(policy).collect()
    }

    fn expression(specs: &Value, index: usize) -> String {
        let manifests = manifests("shop", &policies(specs), &PolicyRules::default());
        manifests[index].value["spec"]["validations"][0]["expression"].as_str().expect("an expression").to_owned()
    }

    #[test]
    fn policies_of_a_namespace_add_up_and_without_one_there_is_no_object() {
        assert_eq!(manifests("shop", &[], &PolicyRules::default()), []);
        let specs = json!([{"ingress": ["in", "b"]}, {"ingress": ["a", "in"], "egress": ["eg"]}]);
        assert!(expression(&specs, 0).ends_with("variables.name in ['a', 'b', 'in']"));
        assert!(expression(&specs, 2).ends_with("variables.name in ['eg']"));
        assert!(expression(&json!([{}]), 0).ends_with("variables.name in []"));
    }

    #[test]
    fn invalid_names_permit_nothing_and_are_reported() {
        let specs = json!([{"ingress": ["in", "a' || true || 'a"]}, {"egress": ["", "eg"]}]);
        assert!(expression(&specs, 0).ends_with("variables.name in ['in']"));
        assert!(expression(&specs, 2).ends_with("variables.name in ['', 'eg']"));
        let statuses = statuses(&policies(&specs), None, Timestamp::UNIX_EPOCH);
        let texts: Vec<_> = statuses.iter().map(|(name, status)| (name.as_str(), status.conditions[0].message.as_str())).collect();
        assert_eq!(texts[0].0, "p0");
        assert!(texts[0].1.starts_with("spec.ingress[1] \"a' || true || 'a\" is no name of a ProxyGroup"), "{texts:?}");
        assert_eq!(texts[1], ("p1", "the API server enforces the policy"));
    }

    #[test]
    fn expressions_are_bounded_and_an_excess_is_reported() {
        let names: Vec<_> = (0..=MAX_GROUP_NAMES).map(|number| format!("{}{number:04}", "a".repeat(59))).collect();
        let specs = json!([{"ingress": names[..300]}, {"ingress": names[300..]}]);
        // cel-go parses at most 100,000 characters.
        assert!(expression(&specs, 0).len() < 50_000);
        assert!(!expression(&specs, 0).contains(&names[MAX_GROUP_NAMES]));
        let all = statuses(&policies(&specs), None, Timestamp::UNIX_EPOCH);
        assert!(all.iter().all(|(_, status)| status.conditions[0].message.contains("more than 500 names")), "{all:?}");
        let message = denial(&names.iter().map(String::as_str).collect::<Vec<_>>(), false);
        assert!(message.len() < 2_000 && message.contains('…'), "{message}");
    }

    #[test]
    fn unchanged_condition_is_not_written_again() {
        let mut all = policies(&json!([{"ingress": ["in"]}]));
        let (_, status) = statuses(&all, Some("forbidden"), Timestamp::UNIX_EPOCH).remove(0);
        assert_eq!((status.conditions[0].status.as_str(), status.conditions[0].message.as_str()), ("False", "forbidden"));
        Arc::make_mut(&mut all[0]).status = Some(status);
        assert_eq!(statuses(&all, Some("forbidden"), Timestamp::UNIX_EPOCH), []);
    }

    #[test]
    fn field_that_another_writer_adds_is_a_difference() {
        let all = manifests("shop", &policies(&json!([{}])), &PolicyRules::default());
        for manifest in &all {
            assert!(is_current(manifest, &manifest.value));
            let mut edited = manifest.value.clone();
            edited["spec"]["paramKind"] = json!({"apiVersion": "v1", "kind": "ConfigMap"});
            assert!(!is_current(manifest, &edited), "{}", manifest.object);
            assert_eq!(namespace_of(manifest.object.kind, &manifest.object.name), Some("shop"));
        }
        assert_eq!(namespace_of(Kind::AdmissionPolicy, "tailyard-proxy-secrets"), None);
        assert_eq!(namespace_of(Kind::ClusterRole, "ts-ingress-shop"), None);
    }
}
