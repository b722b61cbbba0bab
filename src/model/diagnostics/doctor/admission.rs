//! Whether the `ValidatingAdmissionPolicy` of config/rbac is in force: metadata of Secrets that proxies cannot change.

use serde_json::Value;

use super::facts::ClusterFacts;
use super::{Check, page, rights};

/// Name of the policy and of its binding.
pub const POLICY: &str = "tailyard-proxy-secrets";
const NAME: &str = "admission-policy";
/// Fields of the policy that decide about a request. The API server adds defaults to others.
const FIELDS: [&str; 5] = ["/failurePolicy", "/matchConstraints/resourceRules", "/matchConditions", "/variables", "/validations"];
/// Fields that must be empty: each restricts the requests that the policy or the binding matches.
const RESTRICTIONS: [&str; 3] = ["excludeResourceRules", "namespaceSelector", "objectSelector"];

pub(super) fn check(facts: &ClusterFacts) -> Check {
    let (policy, binding) = match (&facts.policy, &facts.policy_binding) {
        (Ok(policy), Ok(binding)) => (policy.as_ref(), binding.as_ref()),
        (Err(gap), _) | (_, Err(gap)) => {
            let group = "admissionregistration.k8s.io";
            let needs = format!("get validatingadmissionpolicies.{group} and validatingadmissionpolicybindings.{group}");
            return Check::unread(NAME, "the ValidatingAdmissionPolicy of proxies", gap, &needs);
        }
    };
    match fault(policy, binding, &facts.namespace) {
        None => Check::ok(NAME, format!("proxies in {} can change only data of Secrets", facts.namespace)),
        Some(fault) => {
            let what = format!("compromised proxies can change labels and owners of their Secrets: {fault}");
            let fix = format!(
                "set admissionPolicy.enabled of the chart, or apply config/rbac/policy.yaml; it needs Kubernetes 1.30 ({})",
                page("permissions.md")
            );
            Check::warn(NAME, what, fix)
        }
    }
}

/// Why the policy is not in force in this namespace.
fn fault(policy: Option<&Value>, binding: Option<&Value>, namespace: &str) -> Option<String> {
    let expected = rights::policy();
    let Some(policy) = policy else { return Some(format!("ValidatingAdmissionPolicy {POLICY} does not exist")) };
    let Some(binding) = binding else { return Some(format!("ValidatingAdmissionPolicyBinding {POLICY} does not exist")) };
    let (policy, binding) = (&policy["spec"], &binding["spec"]);
    let differs = |pointer: &&str| policy.pointer(pointer) != expected.pointer(&format!("/spec{pointer}"));
    if let Some(pointer) = FIELDS.into_iter().find(differs) {
        return Some(format!("spec{} of ValidatingAdmissionPolicy {POLICY} is not that of this version", pointer.replace('/', ".")));
    }
    if !unrestricted(&policy["matchConstraints"], &RESTRICTIONS) || !policy["paramKind"].is_null() {
        return Some(format!("ValidatingAdmissionPolicy {POLICY} does not match all Secrets"));
    }
    let denies = binding["validationActions"].as_array().is_some_and(|actions| actions.iter().any(|action| action == "Deny"));
    if binding["policyName"] != POLICY || !denies {
        return Some(format!("ValidatingAdmissionPolicyBinding {POLICY} does not deny anything"));
    }
    let matches = &binding["matchResources"];
    let all = ["excludeResourceRules", "objectSelector", "resourceRules"];
    let selected = unrestricted(matches, &all) && selects(&matches["namespaceSelector"], namespace);
    (!selected).then(|| format!("ValidatingAdmissionPolicyBinding {POLICY} does not select namespace {namespace}"))
}

fn unrestricted(matches: &Value, fields: &[&str]) -> bool {
    let empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    fields.iter().all(|field| empty(&matches[field]))
}

/// Whether a selector of namespaces selects this one, by the label that the API server sets.
fn selects(selector: &Value, namespace: &str) -> bool {
    let labels = selector["matchLabels"].as_object();
    let named = labels.is_none_or(|labels| labels.iter().all(|(key, value)| key == "kubernetes.io/metadata.name" && value == namespace));
    named && selector["matchExpressions"].as_array().is_none_or(Vec::is_empty)
}
