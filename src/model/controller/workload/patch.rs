//! Merge patches of objects that others write.

use serde_json::Value;

/// Whether a merge patch that was planned from one version of an object is right for another: both have the same values wherever the patch
/// changes one (its precondition aside), the same `spec` if it changes that, and both are deleted or neither is.
pub fn is_current(patch: &Value, planned: &Value, now: &Value) -> bool {
    planned["metadata"]["deletionTimestamp"] == now["metadata"]["deletionTimestamp"] && equal_in(patch, planned, now)
}

fn equal_in(patch: &Value, planned: &Value, now: &Value) -> bool {
    let Value::Object(fields) = patch else { return planned == now };
    fields.iter().filter(|(name, _)| *name != "resourceVersion").all(|(name, field)| {
        let (planned, now) = (&planned[name], &now[name]);
        if name == "spec" { planned == now } else { equal_in(field, planned, now) }
    })
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
        let changes: [(&str, &str, Value, &[&str]); 10] = [
            ("/metadata", "resourceVersion", json!("9"), &[]),
            ("/metadata/annotations", "theirs", json!("new"), &[]),
            ("/metadata/annotations", "tailyard.io/former", json!("x"), &["name"]),
            ("/metadata", "labels", json!({"a": "b"}), &[]),
            ("/metadata", "uid", json!("two"), &["finalizers", "name", "status"]),
            ("/metadata", "deletionTimestamp", json!("2026-01-01T00:00:00Z"), &["finalizers", "name", "status"]),
            ("/metadata", "finalizers", json!([]), &["finalizers"]),
            ("/spec", "type", json!("ClusterIP"), &["name"]),
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
