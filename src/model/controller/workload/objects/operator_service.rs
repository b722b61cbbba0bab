//! The Service by which the reconciler requests the device that serves the Kubernetes API.
//!
//! Its annotations show users what the device is, and its status whether that serves. Of them passes read `tailscale.com/proxy-class` only.
//! It selects no Pods.

use serde_json::{Value, json};

use crate::api::names;
use crate::model::controller::policy::operator_device::OperatorDevice;
use crate::model::controller::workload::objects::compare::covers;
use crate::model::controller::workload::objects::{Kind, Manifest, ObjectRef};

const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
const COMPONENT: &str = "api-server-proxy";

impl OperatorDevice {
    /// The Service, without the hash of other manifests: users see it.
    pub fn service(&self, namespace: &str) -> Manifest {
        let labels = json!({"app.kubernetes.io/name": "tailyard", COMPONENT_LABEL: COMPONENT});
        let annotations = json!({
            names::API_SERVER_MODE: self.mode,
            names::API_SERVER_HTTP: self.is_http.to_string(),
            names::API_SERVER_CERTIFICATE: self.certificate.as_deref().unwrap_or_default(),
            names::HOSTNAME: self.hostname,
            names::TAGS: self.tags.join(","),
            names::STANDBY: "true",
        });
        let port = if self.is_http { json!({"name": "http", "port": 80}) } else { json!({"name": "https", "port": 443}) };
        let value = json!({
            "apiVersion": Kind::Service.api_version(),
            "kind": Kind::Service.name(),
            "metadata": {"name": names::API_SERVER_SERVICE, "namespace": namespace, "labels": labels, "annotations": annotations},
            "spec": {"clusterIP": "None", "ports": [port]},
        });
        Manifest { object: service_ref(namespace), value, adopt: false, yields: false }
    }
}

pub fn service_ref(namespace: &str) -> ObjectRef {
    ObjectRef::new(Kind::Service, namespace, names::API_SERVER_SERVICE)
}

/// What the reconciler does with its Service.
#[derive(Debug, Clone, PartialEq)]
pub enum RequestChange {
    None,
    Apply(Manifest),
    Delete,
    /// A Service of this name is another owner's.
    Foreign,
}

/// The change to an existing Service, for the wanted device.
pub fn change(device: Option<&OperatorDevice>, namespace: &str, existing: Option<&Value>) -> RequestChange {
    // Either one marks the Service as ours: the other may have been removed.
    let marks = |existing: &Value| {
        let metadata = &existing["metadata"];
        metadata["annotations"][names::API_SERVER_MODE].is_string() || metadata["labels"][COMPONENT_LABEL] == COMPONENT
    };
    let is_own = existing.is_none_or(marks);
    let is_terminating = existing.is_some_and(|existing| existing["metadata"]["deletionTimestamp"].is_string());
    match device.map(|device| device.service(namespace)) {
        Some(_) if !is_own => RequestChange::Foreign,
        // A new one follows once its device is deleted.
        _ if is_terminating || !is_own => RequestChange::None,
        Some(service) if existing.is_some_and(|existing| covers(existing, &service.value)) => RequestChange::None,
        Some(service) => RequestChange::Apply(service),
        None if existing.is_some() => RequestChange::Delete,
        None => RequestChange::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::proxygroup::{ApiServerMode, Impersonation};

    fn device() -> OperatorDevice {
        let (mode, hostname) = (ApiServerMode::Auth, "tailscale-operator".to_owned());
        OperatorDevice {
            mode,
            impersonation: Impersonation::default(),
            hostname,
            tags: vec!["tag:a".into(), "tag:b".into()],
            is_http: false,
            certificate: None,
        }
    }

    #[test]
    fn service_is_written_once_and_deleted_with_the_setting() {
        let (device, other) = (device(), OperatorDevice { is_http: true, ..device() });
        let stored = device.service("ts").value;
        let mut terminating = stored.clone();
        terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let [mut unlabelled, mut unannotated] = [&stored, &stored].map(Value::clone);
        unlabelled["metadata"]["labels"] = json!(null);
        unannotated["metadata"]["annotations"] = json!({names::EXPOSE: "true"});
        let foreign = json!({"metadata": {"name": names::API_SERVER_SERVICE}, "spec": {}});
        let table = [
            (Some(&device), None, RequestChange::Apply(device.service("ts"))),
            (Some(&device), Some(&stored), RequestChange::None),
            (Some(&other), Some(&stored), RequestChange::Apply(other.service("ts"))),
            (Some(&device), Some(&terminating), RequestChange::None),
            (Some(&device), Some(&foreign), RequestChange::Foreign),
            (Some(&device), Some(&unlabelled), RequestChange::Apply(device.service("ts"))),
            (Some(&device), Some(&unannotated), RequestChange::Apply(device.service("ts"))),
            (None, Some(&unannotated), RequestChange::Delete),
            (None, Some(&stored), RequestChange::Delete),
            (None, Some(&terminating), RequestChange::None),
            (None, Some(&foreign), RequestChange::None),
            (None, None, RequestChange::None),
        ];
        for (device, existing, wanted) in table {
            assert_eq!(change(device, "ts", existing), wanted, "{device:?} {existing:?}");
        }
    }
}
