//! Reconciler that values of our chart would install: the variables of its Deployment that decide which objects it serves.
//!
//! A test of the chart compares them with the rendered Deployment.

use serde_json::{Map, Value, json};

use super::values::get;

/// Values of our chart that decide which objects are served, each with its variable.
pub const SERVING: [(&str, &str); 24] = [
    ("proxyImage", "PROXY_IMAGE"),
    ("tags", "PROXY_TAGS"),
    ("defaultProxyClass", "PROXY_DEFAULT_CLASS"),
    ("firewallMode", "PROXY_FIREWALL_MODE"),
    ("watchNamespaces", "TAILYARD_WATCH_NAMESPACES"),
    ("standalone.enabled", "TAILYARD_STANDALONE"),
    ("standalone.tenants", "TAILYARD_STANDALONE_TENANTS"),
    ("connectors.enabled", "TAILYARD_CONNECTORS"),
    ("dnsConfigs.enabled", "TAILYARD_DNS_CONFIGS"),
    ("proxyGroupPolicies.enabled", "TAILYARD_PROXY_GROUP_POLICIES"),
    ("proxyGroupTypes", "TAILYARD_PROXY_GROUP_TYPES"),
    ("tenancy", "TAILYARD_TENANCY"),
    ("permittedTags", "TAILYARD_PERMITTED_TAGS"),
    ("targets.allowed", "TAILYARD_ALLOWED_TARGETS"),
    ("targets.denied", "TAILYARD_DENIED_TARGETS"),
    ("defaultProxyGroups.ingress", "TAILYARD_DEFAULT_INGRESS_GROUP"),
    ("defaultProxyGroups.egress", "TAILYARD_DEFAULT_EGRESS_GROUP"),
    ("ingress.className", "OPERATOR_INGRESS_CLASS_NAME"),
    ("ingress.sharedAcmeAccount", SHARED_ACCOUNT),
    ("controlPlane.url", "OPERATOR_LOGIN_SERVER"),
    ("apiServerProxyConfig.mode", MODE),
    ("operatorConfig.hostname", "OPERATOR_HOSTNAME"),
    ("operatorConfig.defaultTags", "OPERATOR_INITIAL_TAGS"),
    ("operatorConfig.secret", "OPERATOR_SECRET"),
];
const SHARED_ACCOUNT: &str = "OPERATOR_SHARED_ACME_ACCOUNT_KEY";
const MODE: &str = "APISERVER_PROXY";

/// Deployment of the reconciler that these values install in a namespace; values that they omit have the chart's defaults.
pub fn deployment(values: &Map<String, Value>, namespace: &str) -> Value {
    let get = |key: &str| get(values, key);
    let mut env: Vec<(&str, String)> = SERVING
        .iter()
        .filter_map(|(key, variable)| Some((*variable, text(get(key)?, matches!(*variable, SHARED_ACCOUNT | MODE))?)))
        .collect();
    let is_all = get("apiServerProxyConfig.allowImpersonation").is_some_and(|all| all == true || all == "true");
    for (resource, variable) in [("users", "TAILYARD_IMPERSONATE_USERS"), ("groups", "TAILYARD_IMPERSONATE_GROUPS")] {
        let listed = get(&format!("apiServerProxyConfig.impersonation.{resource}")).and_then(|names| text(names, false));
        let names: Vec<_> = is_all.then(|| "*".to_owned()).into_iter().chain(listed).collect();
        if !names.is_empty() {
            env.push((variable, names.join(",")));
        }
    }
    let env: Vec<_> = env.into_iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    let container = json!({"name": "reconciler", "env": env});
    json!({"metadata": {"namespace": namespace, "name": "tailyard-reconciler"}, "spec": {"template": {"spec": {"containers": [container]}}}})
}

/// Text of a value in a variable, as the chart writes it; `None` for a value that it omits.
fn text(value: &Value, is_plain: bool) -> Option<String> {
    let text = match value {
        Value::Bool(on) if is_plain => on.to_string(),
        Value::Bool(on) => if *on { "on" } else { "off" }.to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.iter().all(Value::is_string) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        Value::Array(_) => value.to_string(),
        _ => return None,
    };
    Some(text).filter(|text| !text.is_empty())
}
