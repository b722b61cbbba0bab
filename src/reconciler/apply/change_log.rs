//! Log of changes: one line for each write that changes the state of a user's object, with its key and the reason.
//!
//! Nothing is written at rest, so nothing is logged. Other writes are logged at level debug. Lines have no content of objects but conditions,
//! which every reader of the object sees.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::Value;

use crate::api::condition::{TRUE, reason};
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::workload::actions::Notice;
use crate::model::controller::workload::objects::{Kind, ObjectRef};

/// Reason and text of a line.
pub(super) type ChangeLine = (String, String);

/// Logs a line about a user's object.
pub(super) fn log(key: &WorkloadKey, line: Option<ChangeLine>) {
    if let Some((reason, message)) = line {
        tracing::info!(kind = key.kind(), namespace = key.namespace(), name = key.name(), reason, "{message}");
    }
}

/// Line about a merge patch of a user's object or group. `before`: its conditions until then.
pub(super) fn of_patch(patch: &Value, before: &[Condition], adds_finalizer: bool) -> Option<ChangeLine> {
    let metadata = &patch["metadata"];
    if metadata["finalizers"].is_array() {
        let (reason, message) =
            if adds_finalizer { ("Accepted", "it is accepted") } else { ("Released", "it is released: all that served it is deleted") };
        return Some((reason.to_owned(), message.to_owned()));
    }
    if let Some(name) = patch["spec"]["externalName"].as_str() {
        return Some(("ExternalNameChanged".to_owned(), format!("spec.externalName is {name} now")));
    }
    let status = &patch["status"];
    let after: Vec<Condition> = serde_json::from_value(status["conditions"].clone()).unwrap_or_default();
    let changed: Vec<_> = after.iter().filter(|condition| is_changed(before, condition)).collect();
    let texts = changed.iter().map(|Condition { type_, status, reason, message, .. }| format!("{type_} {status} {reason}: {message}"));
    let entries = status["loadBalancer"].as_object().map(|balancer| balancer["ingress"].as_array().cloned().unwrap_or_default());
    let entry = |entry: &Value| entry["hostname"].as_str().or(entry["ip"].as_str()).unwrap_or_default().to_owned();
    let addresses = entries.map(|entries| match entries.iter().map(entry).collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "its status has no address".to_owned(),
        addresses => format!("its addresses are {addresses}"),
    });
    let texts: Vec<_> = texts.chain(addresses).collect();
    let reason = changed.last().map_or("AddressesChanged", |condition| &condition.reason);
    (!texts.is_empty()).then(|| (reason.to_owned(), texts.join("; ")))
}

/// Whether a condition is another one than before. The text of one that is true may count replicas.
fn is_changed(before: &[Condition], condition: &Condition) -> bool {
    let former = before.iter().find(|former| former.type_ == condition.type_);
    former.is_none_or(|former| {
        former.status != condition.status
            || former.reason != condition.reason
            || (condition.status != TRUE && former.message != condition.message)
    })
}

/// Logs faults that are new and in no condition.
pub(super) fn faults(new: &[Notice]) {
    for Notice { subject, reason, message, .. } in new {
        if matches!(subject, WorkloadKey::Ingress(..)) || *reason == reason::CONFIGURATION_FAILED {
            log(subject, Some(((*reason).to_owned(), message.clone())));
        }
    }
}

/// Logs that an object of a workload was created or changed.
pub(super) fn applied(key: &WorkloadKey, object: &ObjectRef, replaces: bool) {
    if object.kind == Kind::StatefulSet {
        let (reason, what) = if replaces { ("Changed", "changed") } else { ("Created", "created") };
        log(key, Some((reason.to_owned(), format!("{object} is {what}"))));
    } else {
        tracing::debug!(workload = %key, %object, replaces, "applied");
    }
}

/// Logs that an object of a workload was deleted.
pub(super) fn deleted(object: &ObjectRef) {
    if object.kind == Kind::StatefulSet {
        tracing::info!(kind = object.kind.name(), namespace = object.namespace, name = object.name, reason = "Deleted", "it is deleted");
    } else {
        tracing::debug!(%object, "deleted");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn condition(status: &str, reason: &str, message: &str) -> Condition {
        let condition = json!({"type": "TailscaleProxyReady", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        serde_json::from_value(condition).expect("a condition")
    }

    fn line(patch: &Value, before: &[Condition]) -> Option<(String, String)> {
        of_patch(patch, before, true)
    }

    #[test]
    fn line_has_the_changed_condition_and_its_reason() {
        let invalid = condition("False", "ProxyInvalid", "tags: not allowed.");
        let patch = json!({"status": {"conditions": [invalid]}});
        let text = "TailscaleProxyReady False ProxyInvalid: tags: not allowed.";
        let expected = Some(("ProxyInvalid".to_owned(), text.to_owned()));
        assert_eq!(line(&patch, &[]), expected);
        assert_eq!(line(&patch, &[condition("False", "ProxyPending", "")]), expected);
        assert_eq!(line(&patch, &[condition("False", "ProxyInvalid", "spec.type: wrong.")]), expected, "another fault");
        assert_eq!(line(&patch, &[invalid]), None, "another writer's condition changes");
        let count = |count: &str| condition("True", "IngressSvcConfigured", count);
        assert_eq!(line(&json!({"status": {"conditions": [count("2/2")]}}), &[count("1/2")]), None, "the number of replicas");
    }

    #[test]
    fn addresses_acceptance_and_release_have_lines() {
        let of = |reason: &str, text: &str| Some((reason.to_owned(), text.to_owned()));
        let ingress = json!([{"hostname": "a.ts.net"}, {"ip": "100.64.0.1"}]);
        let status = |ingress: Value| json!({"status": {"loadBalancer": {"ingress": ingress}}});
        assert_eq!(line(&status(ingress), &[]), of("AddressesChanged", "its addresses are a.ts.net, 100.64.0.1"));
        assert_eq!(line(&status(Value::Null), &[]), of("AddressesChanged", "its status has no address"));
        let patch = json!({"metadata": {"finalizers": ["tailscale.com/finalizer"]}});
        assert_eq!(of_patch(&patch, &[], true).expect("a line").0, "Accepted");
        assert_eq!(of_patch(&patch, &[], false).expect("a line").0, "Released");
        assert_eq!(line(&json!({"metadata": {"annotations": {"a": "b"}}}), &[]), None);
    }
}
