//! Merge patches of objects that others write.

use serde_json::Value;

use crate::model::base::bounded::is_read;

/// Whether a merge patch that was planned from one version of an object is right for another: both have the same values wherever the patch
/// changes one (its precondition aside), the same `spec`, the same labels and annotations that passes read, and both are deleted or neither is.
pub fn is_current(patch: &Value, planned: &Value, now: &Value) -> bool {
    let is_equal = |path: &str| planned.pointer(path) == now.pointer(path);
    let texts = |object: &Value, field: &str| match &object["metadata"][field] {
        Value::Object(texts) => texts.iter().filter(|(key, _)| is_read(key)).map(|(key, text)| (key.clone(), text.clone())).collect(),
        _ => Vec::new(),
    };
    let reads_equal = |field: &str| texts(planned, field) == texts(now, field);
    is_equal("/metadata/deletionTimestamp")
        && is_equal("/spec")
        && reads_equal("labels")
        && reads_equal("annotations")
        && equal_in(patch, planned, now)
}

fn equal_in(patch: &Value, planned: &Value, now: &Value) -> bool {
    let Value::Object(fields) = patch else { return planned == now };
    fields.iter().filter(|(name, _)| *name != "resourceVersion").all(|(name, field)| equal_in(field, &planned[name], &now[name]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn patch_is_current_while_others_change_only_other_fields() {
        let planned = json!({
            "metadata": {"name": "s", "uid": "one", "resourceVersion": "5", "annotations": {"theirs": "old"}, "finalizers": ["theirs/a"]},
            "spec": {"type": "ExternalName", "externalName": "placeholder.invalid"},
            "status": {"conditions": [{"type": "Theirs", "status": "True"}], "loadBalancer": {}}});
        let patch = |metadata: Value, more: Value| {
            let mut patch = json!({"metadata": {"resourceVersion": "5", "uid": "one"}});
            patch["metadata"].as_object_mut().expect("a map").extend(metadata.as_object().expect("a map").clone());
            patch.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
            patch
        };
        let former = json!({"annotations": {"tailyard.io/former": "placeholder.invalid"}});
        let patches = [
            ("finalizers", patch(json!({"finalizers": ["theirs/a", "ours/b"]}), json!({}))),
            ("name", patch(former, json!({"spec": {"externalName": "p.ts.svc"}}))),
            ("status", patch(json!({}), json!({"status": {"conditions": [], "loadBalancer": {"ingress": []}}}))),
        ];
        let all: &[&str] = &["finalizers", "name", "status"];
        let changes: [(&str, &str, Value, &[&str]); 13] = [
            ("/metadata", "resourceVersion", json!("9"), &[]),
            ("/metadata/annotations", "theirs", json!("new"), &[]),
            ("/metadata/annotations", "tailyard.io/former", json!("x"), all),
            ("/metadata/annotations", "tailscale.com/proxy-group", json!("other"), all),
            ("/metadata/annotations", "kubernetes.io/ingress.class", json!("other"), all),
            ("/metadata", "labels", json!({"a": "b"}), &[]),
            ("/metadata", "labels", json!({"tailscale.com/proxy-class": "b"}), all),
            ("/metadata", "uid", json!("two"), all),
            ("/metadata", "deletionTimestamp", json!("2026-01-01T00:00:00Z"), all),
            ("/metadata", "finalizers", json!([]), &["finalizers"]),
            ("/spec", "type", json!("ClusterIP"), all),
            ("/status", "conditions", json!([]), &["status"]),
            ("/status/loadBalancer", "ingress", json!([{"ip": "192.0.2.1"}]), &["status"]),
        ];
        for (parent, field, value, affected) in changes {
            let mut now = planned.clone();
            now.pointer_mut(parent).expect("a parent")[field] = value;
            for (patched, patch) in &patches {
                assert_eq!(is_current(patch, &planned, &now), !affected.contains(patched), "{patched} after {parent} {field}");
            }
        }
    }
}
