//! Parses the tenants of standalone proxies, a setting of the reconciler: a JSON list with the fields of `spec.tailyard.tenants` that apply
//! to them.
//!
//! The API server validates the tenants of a group; nothing validates these. A misspelt field or selector would permit more than is
//! meant, so it is a fault.

use serde_json::Value;

use crate::api::proxygroup::Tenant;

/// Fields of a tenant that apply to standalone proxies.
const FIELDS: [&str; 6] = ["namespaceSelector", "names", "tags", "funnel", "maxNames", "maxCertificatesPerWeek"];
/// Maximum number of tenants, as of a group.
const MAX_TENANTS: usize = 64;
/// Maximum number of patterns of a field, as of a group.
const MAX_PATTERNS: usize = 256;
const OPERATORS: [&str; 4] = ["In", "NotIn", "Exists", "DoesNotExist"];

/// Parses and validates tenants.
///
/// # Errors
///
/// The first fault, with its field.
pub fn parse(text: &str) -> Result<Vec<Tenant>, String> {
    let list: Vec<Value> = serde_json::from_str(text).map_err(|error| format!("it must be a JSON list of tenants: {error}"))?;
    if list.len() > MAX_TENANTS {
        return Err(format!("it has {} tenants: at most {MAX_TENANTS} are permitted", list.len()));
    }
    let tenant = |(index, value): (usize, Value)| tenant(value).map_err(|why| format!("tenant {index}: {why}"));
    list.into_iter().enumerate().map(tenant).collect()
}

fn tenant(value: Value) -> Result<Tenant, String> {
    only(&value, "the tenant", &FIELDS)?;
    let selector = value.get("namespaceSelector").ok_or("namespaceSelector is missing: {} selects all namespaces")?;
    only(selector, "namespaceSelector", &["matchLabels", "matchExpressions"])?;
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        only(expression, "matchExpressions", &["key", "operator", "values"])?;
        let operator = expression["operator"].as_str().unwrap_or_default();
        if !OPERATORS.contains(&operator) {
            return Err(format!("matchExpressions has the operator {operator:?}: use one of {}", OPERATORS.join(", ")));
        }
    }
    let tenant: Tenant = serde_json::from_value(value).map_err(|error| error.to_string())?;
    let names = tenant.names.as_deref().unwrap_or_default();
    for (field, patterns, is_valid) in [("names", names, is_name as fn(&str) -> bool), ("tags", &tenant.tags, is_tag_pattern)] {
        if patterns.len() > MAX_PATTERNS {
            return Err(format!("{field} has {} patterns: at most {MAX_PATTERNS} are permitted", patterns.len()));
        }
        if let Some(wrong) = patterns.iter().find(|pattern| !is_valid(pattern)) {
            return Err(format!("{field} has {wrong:?}: use names, or prefixes with a final *"));
        }
    }
    for (field, limit) in [("maxNames", tenant.max_names), ("maxCertificatesPerWeek", tenant.max_certificates_per_week)] {
        if limit.is_some_and(i64::is_negative) {
            return Err(format!("{field} is negative"));
        }
    }
    Ok(tenant)
}

/// Checks that a value is an object with these fields only.
fn only(value: &Value, what: &str, fields: &[&str]) -> Result<(), String> {
    let Value::Object(object) = value else { return Err(format!("{what} must be an object")) };
    match object.keys().find(|key| !fields.contains(&key.as_str())) {
        Some(key) => Err(format!("{what} has the field {key}: use {}", fields.join(", "))),
        None => Ok(()),
    }
}

/// Whether a text is `*`, or a name or prefix of letters, digits and dashes.
fn is_name(pattern: &str) -> bool {
    let name = pattern.strip_suffix('*').unwrap_or(pattern);
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    pattern == "*" || (name.starts_with(|c| is_inner(c) && c != '-') && name.len() <= 63 && name.chars().all(is_inner))
}

pub fn is_tag_pattern(pattern: &str) -> bool {
    let name = |rest: &str| rest.strip_suffix('*').unwrap_or(rest).to_owned();
    let is_inner = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let is_tag = |rest: &str| rest == "*" || (rest.starts_with(|c: char| c.is_ascii_alphabetic()) && name(rest).chars().all(is_inner));
    pattern == "*" || pattern.strip_prefix("tag:").is_some_and(is_tag)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn valid_tenants_are_read() {
        let text = json!([
            {"namespaceSelector": {"matchLabels": {"team": "shop"}}, "names": ["shop", "shop-*"], "tags": ["tag:shop", "tag:k*", "tag:*"],
                "funnel": true, "maxNames": 5},
            {"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}, "names": ["*"], "tags": ["*"]},
            {"namespaceSelector": {}},
        ]);
        let tenants = parse(&text.to_string()).expect("tenants");
        assert_eq!((tenants.len(), tenants[0].funnel, tenants[0].max_names, tenants[1].funnel), (3, true, Some(5), false));
        assert_eq!((tenants[0].names.as_deref().map(<[_]>::len), tenants[2].names.as_deref()), (Some(2), None));
        assert_eq!(parse("[]"), Ok(Vec::new()));
    }

    #[test]
    fn each_fault_of_a_tenant_names_its_field() {
        let selected = |field: &str, value: Value| {
            let mut tenant = json!({"namespaceSelector": {}});
            tenant[field] = value;
            json!([tenant])
        };
        let expression = |operator: &str| json!([{"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": operator}]}}]);
        let table = [
            (json!({}), "JSON list"),
            (json!(["a"]), "tenant 0: the tenant must be an object"),
            (json!([{"namespaceSelector": {}}, {}]), "tenant 1: namespaceSelector is missing"),
            (json!([{"namespaceSelector": null}]), "namespaceSelector must be an object"),
            (json!([{"namespaceSelector": {"matchlabels": {"a": "b"}}}]), "namespaceSelector has the field matchlabels"),
            (json!([{"namespaceSelector": {"matchLabels": "a"}}]), "tenant 0: invalid type"),
            (expression("Equals"), r#"operator "Equals": use one of In"#),
            (selected("name", json!(["a"])), "has the field name: use namespaceSelector, names"),
            (selected("maxPorts", json!(1)), "has the field maxPorts"),
            (selected("names", json!(["a.b"])), r#"names has "a.b""#),
            (selected("names", json!(["*-a"])), r#"names has "*-a""#),
            (selected("names", json!(["-a"])), r#"names has "-a""#),
            (selected("names", json!(["a".repeat(64)])), "names has"),
            (selected("names", json!(vec!["a"; 257])), "at most 256"),
            (selected("tags", json!(["shop"])), r#"tags has "shop""#),
            (selected("tags", json!(["tag:1"])), r#"tags has "tag:1""#),
            (selected("funnel", json!("yes")), "invalid type"),
            (selected("maxNames", json!(-1)), "maxNames is negative"),
            (selected("maxCertificatesPerWeek", json!(-1)), "maxCertificatesPerWeek is negative"),
            (json!(vec![json!({"namespaceSelector": {}}); 65]), "at most 64"),
        ];
        for (value, why) in table {
            let fault = parse(&value.to_string()).expect_err("a fault");
            assert!(fault.contains(why), "{value}: {fault}");
        }
        assert!(parse("[{").is_err_and(|fault| fault.contains("JSON list")));
    }
}
