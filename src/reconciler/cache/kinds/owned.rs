//! Objects that the reconciler creates, and others that are stored as JSON: pruned on entry to the fields that passes read.
//!
//! Ten thousand Services have ten thousand children and twice as many EndpointSlices. Most of each object is written by servers and other
//! controllers, and its changes do not concern us. `managedFields` are removed before.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize as _;
use serde_json::Value;

use super::CachedObject;
use crate::api::names;
use crate::model::base::bounded;
use crate::model::controller::egress::slices::is_manual;
use crate::model::controller::policy::requests::Parent;
use crate::model::controller::workload::objects::Kind;
use crate::model::controller::workload::objects::certificate::CertificateRecord;
use crate::model::controller::workload::objects::slice::ChildSlice;
use crate::model::controller::workload::observed::backend_service::BackendService;
use crate::model::controller::workload::observed::replica::{ReplicaConfig, ReplicaState};
use crate::model::controller::workload::secret_name::SecretName;

/// Annotation with a copy of the complete object, written by `kubectl apply`.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

impl CachedObject {
    /// What a backend reads of a Service.
    pub(in crate::reconciler::cache) fn as_backend(&self) -> Option<Arc<BackendService>> {
        match self {
            Self::Service(service) => Some(Arc::new(BackendService::from(&**service))),
            Self::Backend(service) => Some(Arc::clone(service)),
            _ => None,
        }
    }

    /// An object that the reconciler creates.
    pub(in crate::reconciler::cache) fn owned(&self) -> Option<&Arc<Value>> {
        match self {
            Self::Owned(value) | Self::State(value, _) | Self::Config(value, _) | Self::Certificate(value, _) => Some(value),
            _ => None,
        }
    }

    /// A user's object that may request publication.
    pub(in crate::reconciler::cache) fn parent(&self) -> Option<Parent<'_>> {
        match self {
            Self::Ingress(ingress) => Some(Parent::Ingress(ingress)),
            Self::Service(service) => Some(Parent::Service(service)),
            _ => None,
        }
    }

    /// Metadata of such an object.
    pub(in crate::reconciler::cache) fn user_metadata(&self) -> Option<&ObjectMeta> {
        self.parent().map(Parent::metadata)
    }
}

/// Parses and prunes an object that the reconciler creates.
pub(super) fn prune(kind: Kind, name: &str, mut value: Value) -> CachedObject {
    if let Some(Value::Object(annotations)) = value.pointer_mut("/metadata/annotations") {
        annotations.remove(LAST_APPLIED);
    }
    bounded::json(&mut value);
    match kind {
        // Labels of Secrets that Pods may write decide nothing.
        Kind::Secret => match SecretName::parse(name) {
            SecretName::Certificate => {
                let content = CertificateRecord::read(&value);
                CachedObject::Certificate(Arc::new(only(value, &[("metadata", &[]), ("type", &[])])), content)
            }
            SecretName::Config { .. } => {
                let config = ReplicaConfig::read(&Secret::deserialize(&value).unwrap_or_default());
                CachedObject::Config(Arc::new(value), Arc::new(config))
            }
            SecretName::State { .. } => {
                // Of tailscaled's keys only the values reported by the replica are read.
                let state = ReplicaState::read(&Secret::deserialize(&value).unwrap_or_default());
                CachedObject::State(Arc::new(only(value, &[("metadata", &[])])), Arc::new(state))
            }
            SecretName::Account { .. } | SecretName::SharedAccounts | SecretName::Other => {
                CachedObject::Owned(Arc::new(only(value, &[("metadata", &[])])))
            }
        },
        // Tenants may write those of their namespaces.
        Kind::RoleBinding => CachedObject::Owned(Arc::new(only(value, &[("metadata", &[]), ("roleRef", &[]), ("subjects", &[])]))),
        Kind::EndpointSlice if is_manual(&value) => CachedObject::Owned(Arc::new(only(value, &[("metadata", &[])]))),
        Kind::EndpointSlice => ChildSlice::read(&value).map_or(CachedObject::None, |slice| CachedObject::ChildSlice(Arc::new(slice))),
        Kind::Service if value["metadata"]["labels"][names::SERVICE_TYPE] == names::EGRESS => {
            let spec = ["selector", "ports", "ipFamilies", "publishNotReadyAddresses", "trafficDistribution", "clusterIPs"];
            CachedObject::Owned(Arc::new(only(value, &[("metadata", &[]), ("spec", &spec)])))
        }
        _ => CachedObject::Owned(Arc::new(value)),
    }
}

/// Prunes an object to these fields, and each of them to these parts; all parts if none are named.
fn only(value: Value, fields: &[(&str, &[&str])]) -> Value {
    let Value::Object(all) = value else { return value };
    let pruned = all.into_iter().filter_map(|(name, field)| {
        let (_, parts) = fields.iter().find(|(wanted, _)| *wanted == name)?;
        let field = match field {
            Value::Object(all) if !parts.is_empty() => all.into_iter().filter(|(part, _)| parts.contains(&part.as_str())).collect(),
            field => field,
        };
        Some((name, field))
    });
    pruned.collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use serde_json::json;

    use super::*;
    use crate::reconciler::cache::WatchRole;

    fn read(role: WatchRole, value: Value) -> CachedObject {
        role.decode(value).parse().object
    }

    fn pruned(kind: Kind, value: Value) -> Value {
        Value::clone(read(WatchRole::Owned(kind), value).owned().expect("an object of ours"))
    }

    #[test]
    fn slices_of_the_tailscale_operator_keep_metadata_and_others_what_is_compared() {
        let slice = |by: &str, ready: Value| {
            let labels = json!({"kubernetes.io/service-name": "c", "endpointslice.kubernetes.io/managed-by": by,
                "tailscale.com/svc-type": "egress", "tailscale.com/proxy-group": "g"});
            let target = json!({"kind": "Pod", "name": "g-0", "uid": "u"});
            let slice = json!({"addressType": "IPv4", "metadata": {"name": "s", "resourceVersion": "1", "labels": labels},
                "endpoints": [{"addresses": ["10.0.0.1"], "targetRef": target, "conditions": {"ready": ready}}]});
            read(WatchRole::Owned(Kind::EndpointSlice), slice)
        };
        let own = "endpointslice-controller.k8s.io";
        assert_eq!(slice(own, json!(true)), slice(own, Value::Null), "not known counts as ready");
        assert_ne!(slice(own, json!(true)), slice(own, json!(false)));
        assert!(matches!(slice(own, json!(true)), CachedObject::ChildSlice(slice) if slice.ready && &*slice.child == "c"));
        let stored = slice("tailscale.com", json!(true));
        assert_eq!(stored.owned().expect("a slice")["metadata"]["labels"]["kubernetes.io/service-name"], "c");
        assert_eq!(slice("another", json!(true)), CachedObject::None);
    }

    #[test]
    fn pruned_nodes_keep_labels_and_addresses() {
        let addresses = json!([{"type": "ExternalIP", "address": "198.51.100.1"}]);
        let node = |version: &str, more: Value| {
            let mut node = json!({"metadata": {"name": "n1", "labels": {"a": "b"}}, "status": {"addresses": addresses}});
            if !version.is_empty() {
                node["metadata"]["resourceVersion"] = json!(version);
                node["metadata"]["annotations"] = json!({"c": "d"});
                node["status"]["images"] = json!([{"names": ["x"]}]);
                node["status"]["conditions"] = more;
                node["spec"] = json!({"podCIDR": "10.0.0.0/24"});
            }
            read(WatchRole::Node, node)
        };
        let condition = |time: &str| json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": time}]);
        let whole = node("1", condition("2026-01-01T00:00:00Z"));
        assert_eq!(whole, node("2", condition("2026-01-01T00:05:00Z")), "its kubelet wrote it");
        assert_eq!(whole, node("", Value::Null));
    }

    #[test]
    fn pruned_child_services_keep_compared_fields() {
        let labels = json!({"tailscale.com/svc-type": "egress"});
        let child = json!({"kind": "Service", "metadata": {"name": "c", "labels": labels, "annotations": {LAST_APPLIED: "{}"}},
            "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}], "selector": {"a": "b"}, "ipFamilies": ["IPv4"], "trafficDistribution": "PreferSameNode"},
            "status": {"loadBalancer": {}}});
        let lean = json!({"metadata": {"name": "c", "labels": labels, "annotations": {}},
            "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}, "ipFamilies": ["IPv4"], "trafficDistribution": "PreferSameNode"}});
        assert_eq!(pruned(Kind::Service, child), lean);
    }

    #[test]
    fn certificate_is_recorded_by_its_expiry_without_its_key() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new(vec!["a.ts.net".to_owned()]).expect("names");
        params.not_after = rcgen::date_time_ymd(2027, 4, 1);
        let chain = params.self_signed(&key).expect("a certificate").pem();
        let labels = json!({"tailscale.com/secret-type": "certs"});
        let data = [("tls.crt", chain.clone()), ("tls.key", key.serialize_pem())]
            .map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())));
        let data = std::collections::BTreeMap::from(data);
        let secret = json!({"metadata": {"name": "a.ts.net", "labels": labels}, "type": "kubernetes.io/tls", "data": data});
        let stored = json!({"metadata": {"name": "a.ts.net", "labels": labels}, "type": "kubernetes.io/tls"});
        let content = CertificateRecord { filled: true, valid_until: Some("2027-04-01T00:00:00Z".parse().expect("a time")) };
        let role = WatchRole::Owned(Kind::Secret);
        assert_eq!(read(role, secret.clone()), CachedObject::Certificate(Arc::new(stored.clone()), content));
        let mut long = secret;
        long["data"]["tls.crt"] = json!(ByteString([chain.repeat(200), "x".into()].concat().into_bytes()));
        let content = CertificateRecord { filled: true, valid_until: None };
        assert_eq!(read(role, long), CachedObject::Certificate(Arc::new(stored.clone()), content), "too long to be read at each write");
        let mut empty = stored.clone();
        empty["data"] = json!({"tls.crt": "YQ==", "tls.key": ""});
        let content = CertificateRecord { filled: false, valid_until: None };
        assert_eq!(read(role, empty), CachedObject::Certificate(Arc::new(stored), content));
    }

    #[test]
    fn pruned_state_secret_drops_data_and_config_secret_keeps_it() {
        let secret = |name: &str| json!({"metadata": {"name": name}, "data": {"egress-services": "e30="}});
        let (state, config) = (pruned(Kind::Secret, secret("g-0")), pruned(Kind::Secret, secret("g-0-config")));
        assert_eq!((state, config), (json!({"metadata": {"name": "g-0"}}), secret("g-0-config")));
    }
}
