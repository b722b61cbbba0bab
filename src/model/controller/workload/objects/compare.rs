//! Comparison of an observed object with a manifest: every desired field must be present; additional fields belong to other writers.
//!
//! Predicts whether a server-side apply would change anything. Zero values that the server omits, quantities in another notation and
//! items that others added to a list keyed by name are no difference.

use serde_json::Value;

/// Lists keyed by name: an apply does not change items of other managers.
const BY_NAME: [&str; 6] = ["containers", "initContainers", "env", "volumes", "ports", "imagePullSecrets"];

/// Fields with the type of an object.
const TYPE: [&str; 2] = ["apiVersion", "kind"];

/// Whether every desired field of an object is observed, its type apart: items of lists have none.
pub fn covers(observed: &Value, wanted: &Value) -> bool {
    let Value::Object(fields) = wanted else { return covered("", observed, wanted) };
    fields.iter().filter(|(key, _)| !TYPE.contains(&key.as_str())).all(|(key, wanted)| has(observed, key, wanted))
}

fn has(observed: &Value, key: &str, wanted: &Value) -> bool {
    observed.get(key).map_or_else(|| zero(wanted), |observed| covered(key, observed, wanted))
}

fn covered(key: &str, observed: &Value, wanted: &Value) -> bool {
    match (observed, wanted) {
        (_, Value::Null) => true,
        (Value::Object(_), Value::Object(wanted)) => wanted.iter().all(|(key, wanted)| has(observed, key, wanted)),
        (Value::Array(observed), Value::Array(wanted)) if key == "ownerReferences" => {
            wanted.iter().all(|wanted| observed.iter().any(|observed| covered("", observed, wanted)))
        }
        (Value::Array(observed), Value::Array(wanted)) if BY_NAME.contains(&key) => {
            let named = |name: &Value| observed.iter().find(|item| item.get("name") == Some(name));
            wanted.iter().all(|wanted| wanted.get("name").and_then(named).is_some_and(|observed| covered("", observed, wanted)))
        }
        (Value::Array(observed), Value::Array(wanted)) => {
            observed.len() == wanted.len() && observed.iter().zip(wanted).all(|(observed, wanted)| covered("", observed, wanted))
        }
        (Value::String(observed), Value::String(wanted)) => observed == wanted || same_quantity(observed, wanted),
        _ => observed == wanted,
    }
}

/// Whether the server may omit the value.
fn zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(zero),
    }
}

/// Whether two quantities are equal, e.g. `1000m` and `1`.
fn same_quantity(one: &str, other: &str) -> bool {
    matches!((quantity(one), quantity(other)), (Some(one), Some(other)) if (one - other).abs() <= f64::EPSILON * one.abs())
}

fn quantity(text: &str) -> Option<f64> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let scale = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "Ki" => 1024.0,
        "Mi" => 1024.0 * 1024.0,
        "Gi" => 1024.0 * 1024.0 * 1024.0,
        "Ti" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    number.parse::<f64>().ok().map(|number| number * scale)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn server_defaults_and_omitted_empty_fields_are_no_difference() {
        let wanted = json!({"a": {"b": 1, "empty": {}, "none": [], "zero": 0, "no": false}, "list": [{"x": 1}]});
        let observed = json!({"a": {"b": 1, "defaulted": true}, "list": [{"x": 1, "y": 2}], "status": {}});
        assert!(covers(&observed, &wanted));
    }

    #[test]
    fn foreign_changes_are_a_difference() {
        let wanted = json!({"a": {"b": 1}, "rules": [{"verbs": ["get"]}]});
        for observed in [
            json!({"a": {"b": 2}, "rules": [{"verbs": ["get"]}]}),
            json!({"a": {}, "rules": [{"verbs": ["get"]}]}),
            json!({"a": {"b": 1}, "rules": [{"verbs": ["get", "list"]}]}),
            json!({"a": {"b": 1}, "rules": [{"verbs": ["get"]}, {"verbs": ["list"]}]}),
        ] {
            assert!(!covers(&observed, &wanted), "{observed}");
        }
    }

    #[test]
    fn items_of_lists_have_no_type() {
        let wanted = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"ownerReferences": [{"kind": "X", "uid": "1"}]}});
        assert!(covers(&json!({"metadata": {"ownerReferences": [{"kind": "X", "uid": "1"}]}}), &wanted));
        assert!(!covers(&json!({"metadata": {"ownerReferences": [{"uid": "1"}]}}), &wanted));
    }

    #[test]
    fn named_lists_tolerate_foreign_items_in_any_order() {
        let wanted = json!({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]});
        assert!(covers(&json!({"env": [{"name": "C"}, {"name": "B", "value": "2"}, {"name": "A", "value": "1"}]}), &wanted));
        assert!(!covers(&json!({"env": [{"name": "A", "value": "1"}]}), &wanted));
        let owners = json!({"ownerReferences": [{"uid": "1"}]});
        assert!(covers(&json!({"ownerReferences": [{"uid": "2"}, {"uid": "1", "kind": "X"}]}), &owners));
    }

    #[test]
    fn quantities_are_compared_by_value() {
        for (one, other) in [("1000m", "1"), ("0.5", "500m"), ("1024Mi", "1Gi"), ("1k", "1000")] {
            assert!(covers(&json!({"cpu": one}), &json!({"cpu": other})), "{one} {other}");
        }
        for (one, other) in [("100m", "1"), ("1Mi", "1M"), ("a", "b"), ("1x", "1")] {
            assert!(!covers(&json!({"cpu": one}), &json!({"cpu": other})), "{one} {other}");
        }
    }
}
