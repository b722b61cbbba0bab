//! Merge patches of objects that others write.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::model::base::bounded::is_read;
use crate::model::controller::workload::finalizers;

/// A merge patch for an object as it is now, with our finalizer as `wanted` if it changes that, and the finalizers that others have set by
/// now. `None` if the patch, which was planned from another version of the object, is not right for this one.
pub fn repeated(
    patch: &Value,
    (finalizer, wanted): (&str, bool),
    (planned, now): (&Value, &Value),
    metadata: &ObjectMeta,
) -> Option<Value> {
    let mut patch = is_current(patch, planned, now).then(|| patch.clone())?;
    patch["metadata"]["resourceVersion"] = json!(metadata.resource_version);
    if let Some(finalizers) = patch["metadata"].get_mut("finalizers") {
        let changed = finalizers::change(metadata, finalizer, wanted);
        *finalizers = json!(changed.or_else(|| metadata.finalizers.clone()).unwrap_or_default());
    }
    Some(patch)
}

/// Whether a merge patch that was planned from one version of an object is right for another: both have the same values wherever the patch
/// changes one (precondition and finalizers aside), the same `spec`, the same labels and annotations that passes read, and both are deleted or
/// neither is.
fn is_current(patch: &Value, planned: &Value, now: &Value) -> bool {
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
    fields
        .iter()
        .filter(|(name, _)| !matches!(name.as_str(), "resourceVersion" | "finalizers"))
        .all(|(name, field)| equal_in(field, &planned[name], &now[name]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::api::names::SERVICE_FINALIZER;

    proptest! {
        /// Others add and remove finalizers and write annotations of their own between a plan and its patch.
        #[test]
        fn finalizers_of_others_are_those_of_now_and_ours_is_as_planned(
            lists in prop::array::uniform2(prop::collection::vec("[a-c]\\.example/[a-d]", 0..5)),
            ours in prop::array::uniform2(prop::option::of(0..6_usize)),
            wanted in any::<bool>(),
        ) {
            let [planned, now] = [0, 1].map(|version| {
                let mut finalizers = lists[version].clone();
                if let Some(place) = ours[version] {
                    finalizers.insert(place.min(finalizers.len()), SERVICE_FINALIZER.to_owned());
                }
                json!({"metadata": {"resourceVersion": version.to_string(), "finalizers": finalizers, "annotations": {"storm": version.to_string()}}})
            });
            let read = |object: &Value| serde_json::from_value::<ObjectMeta>(object["metadata"].clone()).expect("metadata");
            let Some(list) = finalizers::change(&read(&planned), SERVICE_FINALIZER, wanted) else { return Ok(()) };
            let patch = json!({"metadata": {"resourceVersion": "0", "uid": null, "finalizers": list}});
            let repeated = repeated(&patch, (SERVICE_FINALIZER, wanted), (&planned, &now), &read(&now)).expect("a patch");
            let changed: ObjectMeta = read(&repeated);
            let others: Vec<String> = changed.finalizers.iter().flatten().filter(|name| *name != SERVICE_FINALIZER).cloned().collect();
            prop_assert_eq!(&others, &lists[1]);
            prop_assert_eq!(finalizers::has(&changed, SERVICE_FINALIZER), wanted);
            prop_assert_eq!(changed.resource_version.as_deref(), Some("1"));
        }
    }

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
            ("/metadata", "finalizers", json!([]), &[]),
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
