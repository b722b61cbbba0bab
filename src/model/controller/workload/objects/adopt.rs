//! Adoption of objects that the Tailscale operator wrote with plain updates.
//!
//! A server-side apply removes only fields that its own manager applied before. So entries of managers that updated the object are
//! rewritten as ours with operation Apply, and the next apply removes what we do not set. Entries of other appliers, of replicas (which
//! own their state) and of subresources are not changed.

use serde_json::{Value, json};

use crate::api::names::{POD_FIELD_MANAGER, RECONCILER_FIELD_MANAGER};

/// `managedFields` that make us the owner of fields that others updated; `None` if nothing changes.
///
/// `api_version` is the object's. Several entries become one: their fields are merged.
pub fn adopted(managed_fields: &Value, api_version: &str) -> Option<Value> {
    let entries = managed_fields.as_array()?;
    let text = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let whole = |entry: &&Value| text(entry, "subresource").is_empty();
    let ours = |entry: &&Value| whole(entry) && text(entry, "manager") == RECONCILER_FIELD_MANAGER && text(entry, "operation") == "Apply";
    let replicas = |entry: &&Value| text(entry, "manager") == POD_FIELD_MANAGER;
    let theirs = |entry: &&Value| whole(entry) && text(entry, "operation") == "Update" && !replicas(entry);
    if !entries.iter().any(|entry| theirs(&entry)) {
        return None;
    }
    let mut fields = json!({});
    for entry in entries.iter().filter(|entry| ours(entry) || theirs(entry)) {
        merge(&mut fields, entry.get("fieldsV1").unwrap_or(&Value::Null));
    }
    let version = entries.iter().find(ours).or_else(|| entries.iter().find(theirs)).map(|entry| text(entry, "apiVersion"));
    let version = version.filter(|version| !version.is_empty()).unwrap_or_else(|| api_version.to_owned());
    let entry = json!({
        "manager": RECONCILER_FIELD_MANAGER, "operation": "Apply", "apiVersion": version, "fieldsType": "FieldsV1", "fieldsV1": fields,
    });
    let rest = entries.iter().filter(|entry| !ours(entry) && !theirs(entry)).cloned();
    Some(Value::Array(std::iter::once(entry).chain(rest).collect()))
}

/// Merges two field sets: trees whose leaves are empty objects.
fn merge(into: &mut Value, from: &Value) {
    let (Some(into), Some(from)) = (into.as_object_mut(), from.as_object()) else { return };
    for (key, value) in from {
        match into.get_mut(key) {
            Some(existing) => merge(existing, value),
            None => drop(into.insert(key.clone(), value.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn update_managers_are_migrated_to_our_apply() {
        let fields = json!([
            {"manager": "operator", "operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:data": {".": {}, "f:a": {}}}},
            {"manager": "kubectl-edit", "operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:data": {"f:b": {}}}},
            {"manager": "tailscale-container", "operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:data": {"f:c": {}}}},
            {"manager": "gitops", "operation": "Apply", "apiVersion": "v1", "fieldsV1": {"f:metadata": {}}},
            {"manager": "kube", "operation": "Update", "subresource": "status", "apiVersion": "v1", "fieldsV1": {"f:status": {}}},
        ]);
        let adopted = adopted(&fields, "v1").expect("a change");
        let managers: Vec<_> = adopted.as_array().expect("a list").iter().map(|entry| entry["manager"].clone()).collect();
        assert_eq!(managers, ["tailyard", "tailscale-container", "gitops", "kube"]);
        assert_eq!(adopted[0]["fieldsV1"], json!({"f:data": {".": {}, "f:a": {}, "f:b": {}}}));
        assert_eq!(adopted[0]["operation"], "Apply");
        assert_eq!(super::adopted(&adopted, "v1"), None, "once");
    }

    #[test]
    fn object_without_update_managers_is_not_migrated() {
        assert_eq!(adopted(&Value::Null, "v1"), None);
        assert_eq!(adopted(&json!([{"manager": "gitops", "operation": "Apply"}]), "v1"), None);
    }
}
