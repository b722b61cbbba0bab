//! What of an object is kept in memory: what passes read, and no more.
//!
//! Ten thousand Services are ten thousand children and twice as many slices; what servers and other controllers write into them is
//! most of them, and changes while nothing changes for us. `managedFields` never come as far as here.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::WatchRole;
use super::certificates::pair;
use crate::api::names;
use crate::model::controller::objects::{Kind, VALID_UNTIL, domain_of, filled};

/// A copy of the whole object that `kubectl apply` leaves on it.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Removes what not even an object's type reads: of a node all but labels and addresses, as its images and conditions are most of it.
pub(super) fn trim(role: WatchRole, value: &mut Value) {
    if role == WatchRole::Node {
        keep(value, &["metadata", "status"]);
        keep_in(value, "/metadata", &["name", "labels"]);
        keep_in(value, "/status", &["addresses"]);
    }
}

/// Takes away what nobody reads, once the object was read into its type.
pub(super) fn lean(role: WatchRole, value: &mut Value) {
    if let Some(Value::Object(annotations)) = value.pointer_mut("/metadata/annotations") {
        annotations.remove(LAST_APPLIED);
    }
    match role {
        // Only their types are read.
        WatchRole::Service | WatchRole::Ingress | WatchRole::BackendSlice | WatchRole::Namespace => *value = Value::Null,
        WatchRole::Owned(Kind::Secret) if domain_of(value).is_some() => certificate(value),
        WatchRole::Pod => keep(value, &["metadata"]),
        WatchRole::Owned(Kind::EndpointSlice) => slice(value),
        WatchRole::Owned(Kind::Service) if value["metadata"]["labels"][names::SERVICE_TYPE] == names::EGRESS => {
            keep(value, &["metadata", "spec"]);
            keep_in(value, "/spec", &["selector", "ports"]);
        }
        // What a replica says is read; what tailscaled keeps there is no business of ours.
        WatchRole::Owned(Kind::Secret) if !name(value).ends_with(names::CONFIG_SECRET_SUFFIX) => {
            keep(value, &["metadata"]);
        }
        _ => {}
    }
}

/// A slice: whose it is, and whether any of its endpoints gets traffic.
fn slice(value: &mut Value) {
    let endpoints = value["endpoints"].as_array().into_iter().flatten();
    let ready = endpoints.map(|endpoint| &endpoint["conditions"]["ready"]).any(|ready| *ready != false);
    let endpoints = if ready { json!([{"conditions": {"ready": true}}]) } else { json!([]) };
    keep(value, &["metadata"]);
    keep_in(value, "/metadata", &["name", "namespace", "uid", "labels", "ownerReferences", "finalizers", "deletionTimestamp"]);
    value["endpoints"] = endpoints;
}

/// A certificate: whether it is there, and until when it is valid. Its key is no business of ours.
fn certificate(value: &mut Value) {
    let (set, until) = (filled(value), ends(value));
    keep(value, &["metadata", "type"]);
    let field = if set { "set" } else { "" };
    value["data"] = json!({"tls.crt": field, "tls.key": field});
    if let Some(until) = until {
        value[VALID_UNTIL] = json!(until.to_string());
    }
}

/// When the certificate in a Secret ends, if it can be read.
fn ends(secret: &Value) -> Option<Timestamp> {
    pair(secret).leaf().ok().map(|leaf| leaf.certificate.until)
}

fn name(value: &Value) -> &str {
    value["metadata"]["name"].as_str().unwrap_or_default()
}

fn keep_in(value: &mut Value, pointer: &str, keys: &[&str]) {
    if let Some(part) = value.pointer_mut(pointer) {
        keep(part, keys);
    }
}

fn keep(value: &mut Value, keys: &[&str]) {
    if let Some(object) = value.as_object_mut() {
        *object = keys.iter().filter_map(|key| object.remove_entry(*key)).collect::<Map<_, _>>();
    }
}

/// Whether a change is none to us: of a node, whose kubelet writes it every few minutes, and of a slice, as Pods come and go.
pub(super) fn same(role: WatchRole, old: &Value, new: &Value) -> bool {
    let reported = |node: &Value| (node["metadata"]["labels"].clone(), node["status"]["addresses"].clone());
    match role {
        WatchRole::Node => reported(old) == reported(new),
        WatchRole::Owned(Kind::EndpointSlice) => old == new,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn slices_keep_whose_they_are_and_whether_they_serve() {
        let slice = |version: &str, ready: Value| {
            let mut slice = json!({"addressType": "IPv4", "metadata": {"name": "s", "resourceVersion": version, "annotations": {"t": version},
                "labels": {"kubernetes.io/service-name": "c"}}, "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}]});
            lean(WatchRole::Owned(Kind::EndpointSlice), &mut slice);
            slice
        };
        let role = WatchRole::Owned(Kind::EndpointSlice);
        assert!(same(role, &slice("1", json!(true)), &slice("2", Value::Null)), "not known counts as ready");
        assert!(!same(role, &slice("1", json!(true)), &slice("2", json!(false))));
        assert_eq!(slice("1", json!(true))["metadata"]["labels"]["kubernetes.io/service-name"], "c");
    }

    #[test]
    fn nodes_keep_their_labels_and_addresses() {
        let addresses = json!([{"type": "ExternalIP", "address": "198.51.100.1"}]);
        let mut node = json!({"metadata": {"name": "n1", "labels": {"a": "b"}, "annotations": {"c": "d"}},
            "status": {"addresses": addresses, "images": [{"names": ["x"]}], "conditions": [{"type": "Ready"}]}, "spec": {"podCIDR": "10.0.0.0/24"}});
        trim(WatchRole::Node, &mut node);
        assert_eq!(node, json!({"metadata": {"name": "n1", "labels": {"a": "b"}}, "status": {"addresses": addresses}}));
    }

    #[test]
    fn children_keep_what_they_are_judged_by() {
        let labels = json!({"tailscale.com/svc-type": "egress"});
        let mut child = json!({"kind": "Service", "metadata": {"name": "c", "labels": labels, "annotations": {LAST_APPLIED: "{}"}},
            "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}], "selector": {"a": "b"}}, "status": {"loadBalancer": {}}});
        lean(WatchRole::Owned(Kind::Service), &mut child);
        let lean = json!({"metadata": {"name": "c", "labels": labels, "annotations": {}},
            "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}});
        assert_eq!(child, lean);
    }

    #[test]
    fn certificate_is_kept_as_its_end_alone() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new(vec!["a.ts.net".to_owned()]).expect("names");
        params.not_after = rcgen::date_time_ymd(2027, 4, 1);
        let chain = params.self_signed(&key).expect("a certificate").pem();
        let labels = json!({"tailscale.com/secret-type": "certs"});
        let data =
            [("tls.crt", chain), ("tls.key", key.serialize_pem())].map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())));
        let data = std::collections::BTreeMap::from(data);
        let mut secret = json!({"metadata": {"name": "a.ts.net", "labels": labels}, "type": "kubernetes.io/tls", "data": data});
        lean(WatchRole::Owned(Kind::Secret), &mut secret);
        let set = json!({"tls.crt": "set", "tls.key": "set"});
        let kept = json!({"metadata": {"name": "a.ts.net", "labels": labels}, "type": "kubernetes.io/tls", "data": set,
            "validUntil": "2027-04-01T00:00:00Z"});
        assert_eq!(secret, kept);
    }

    #[test]
    fn a_state_is_kept_as_it_was_read_and_a_config_whole() {
        let secret = |name: &str| json!({"metadata": {"name": name}, "data": {"egress-services": "e30="}});
        let (mut state, mut config) = (secret("g-0"), secret("g-0-config"));
        lean(WatchRole::Owned(Kind::Secret), &mut state);
        lean(WatchRole::Owned(Kind::Secret), &mut config);
        assert_eq!((state, config), (json!({"metadata": {"name": "g-0"}}), secret("g-0-config")));
    }
}
