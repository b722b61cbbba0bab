//! Takeover of objects that the Tailscale operator wrote with plain creates and updates, and the way back.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::rbac::v1::Role;
use kube::api::{Api, PostParams};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tailyard::api::proxygroup::ProxyGroup;

use kit::apiserver::DEADLINE;
use kit::reconciler::{Stage, stage};
use kit::wait::{eventually_async, until_async};

/// Field manager of the Tailscale operator.
const THEIRS: &str = "operator";
/// Finalizer by which the Tailscale operator removes records of a Service. Nothing removes it once that operator is gone.
const DNS_FINALIZER: &str = "tailscale.com/dns-records-reconciler";

/// Writes an object as the Tailscale operator does: creates or updates the whole object.
async fn write<K>(api: &Api<K>, object: &Value) -> K
where
    K: Resource + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    let mut object: K = serde_json::from_value(object.clone()).expect("an object");
    let parameters = PostParams { field_manager: Some(THEIRS.to_owned()), ..PostParams::default() };
    match api.get_opt(&object.name_any()).await.expect("an answer") {
        None => api.create(&parameters, &object).await.expect("created"),
        Some(existing) => {
            object.meta_mut().resource_version = existing.resource_version();
            api.replace(&existing.name_any(), &parameters, &object).await.expect("replaced")
        }
    }
}

/// Labels and owner reference as the Tailscale operator sets them.
fn metadata(name: &str, uid: &str, more: &Value) -> Value {
    let mut labels =
        json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "proxygroup", "tailscale.com/parent-resource": "g"});
    for (key, value) in more.as_object().into_iter().flatten() {
        labels[key] = value.clone();
    }
    json!({"name": name, "namespace": "ts", "labels": labels, "ownerReferences": [{"apiVersion": "tailscale.com/v1alpha1",
        "kind": "ProxyGroup", "name": "g", "uid": uid, "controller": true, "blockOwnerDeletion": true}]})
}

fn set(uid: &str) -> Value {
    let labels =
        json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "proxygroup", "tailscale.com/parent-resource": "g"});
    let hook = json!({"preStop": {"httpGet": {"path": "/internal-egress-services-preshutdown", "port": 9002}}});
    let container = json!({"name": "tailscale", "image": "tailscale/tailscale:v1.102.0", "lifecycle": hook,
        "env": [{"name": "TS_USERSPACE", "value": "false"}, {"name": "TS_INTERNAL_APP", "value": "k8s-operator-proxygroup-egress"}],
        "securityContext": {"privileged": true}});
    json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata("g", uid, &json!({})),
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
            "spec": {"serviceAccountName": "g", "containers": [container],
                "readinessGates": [{"conditionType": "tailscale.com/egress-services"}]}}}})
}

fn role(uid: &str) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata("g", uid, &json!({})), "rules": [
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "patch", "update"], "resourceNames": ["g-0-config", "g-0"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch", "get"]}]})
}

/// Creates the Tailscale operator's objects for a group with one replica and one Service.
async fn theirs(stage: &Stage, uid: &str) {
    write(&stage.here::<StatefulSet>(), &set(uid)).await;
    write(&stage.here::<Role>(), &role(uid)).await;
    let config = json!({"Version": "alpha0", "Hostname": "g-0", "ServerURL": stage.hosted.url(), "acceptDNS": false}).to_string();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata("g-0-config", uid, &json!({"tailscale.com/secret-type": "config"})),
        "stringData": {"cap-106.hujson": config, "cap-95.hujson": "{}"}});
    write(&stage.here::<Secret>(), &secret).await;
    let existing = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata("g-0", uid, &json!({"tailscale.com/secret-type": "state"})),
        "stringData": {"device_id": "ng0", "_machinekey": "theirs"}});
    write(&stage.here::<Secret>(), &existing).await;
    let entry = json!({"default-s": {"healthCheckEndpoint": "", "tailnetTarget": {"ip": "100.64.0.9", "fqdn": ""},
        "ports": [{"protocol": "TCP", "matchPort": 10432, "targetPort": 80}]}});
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("g-egress-config", uid, &json!({})), "data": {"left": "over"},
        "binaryData": {"egress-services": k8s_openapi::ByteString(entry.to_string().into_bytes()), "hep-pings": k8s_openapi::ByteString(b"6".to_vec())}});
    write(&stage.here::<ConfigMap>(), &config).await;
    let mut child = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "ts-s-x7k2p", "namespace": "ts", "labels": {}},
        "spec": {"ipFamilyPolicy": "PreferDualStack", "ports": [
            {"name": "web", "protocol": "TCP", "port": 80, "targetPort": 10432},
            {"name": "tailscale-health-check", "protocol": "TCP", "port": 9002, "targetPort": 9002}]}});
    child["metadata"]["labels"] = json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "svc",
        "tailscale.com/parent-resource": "s", "tailscale.com/parent-resource-ns": "default", "tailscale.com/proxy-group": "g",
        "tailscale.com/svc-type": "egress", "left": "over"});
    // Its nameserver has a record of the Service.
    child["metadata"]["finalizers"] = json!([DNS_FINALIZER]);
    child["metadata"]["annotations"] = json!({"tailscale.com/magic-dnsname": "db.tail1.ts.net"});
    write(&stage.here::<Service>(), &child).await;
}

/// Field managers that applied or updated an object.
fn managers<K: Resource>(object: &K) -> Vec<String> {
    object
        .meta()
        .managed_fields
        .iter()
        .flatten()
        .filter(|entry| entry.subresource.is_none())
        .filter_map(|entry| entry.manager.clone())
        .collect()
}

#[test]
fn objects_of_the_tailscale_operator_are_taken_over_and_handed_back() {
    stage(async |stage| {
        stage.group("g", 1).await;
        let uid = stage.all::<ProxyGroup>().get("g").await.expect("a group").uid().expect("a UID");
        theirs(&stage, &uid).await;
        stage.service("s", "g").await;
        stage.hosted.add_device("ng0", "g-0");
        let running = stage.reconciler("one", 9100);
        stage.join("g", 1).await;
        stage.served("s", "g", 1).await;
        eventually_async("ready", DEADLINE, async || stage.ready("g").await, |reported| reported.starts_with("True")).await;

        let set = stage.here::<StatefulSet>().get("g").await.expect("a set");
        let pod = json!(set.spec)["template"]["spec"].clone();
        assert!(pod["readinessGates"].is_null() && pod["containers"][0]["lifecycle"].is_null(), "{pod}");
        assert_eq!(pod["containers"][0]["image"], "tailyard:test");
        let role = json!(stage.here::<Role>().get("g").await.expect("a Role").rules).to_string();
        assert!(!role.contains("\"list\"") || role.matches("resourceNames").count() >= 2, "{role}");
        assert!(!role.contains(r#""resources":["secrets"],"verbs":["list","watch"]"#), "no right to all Secrets: {role}");
        let secret = stage.here::<Secret>().get("g-0-config").await.expect("a Secret");
        let keys: Vec<_> = secret.data.iter().flatten().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["cap-106.hujson", "siblings.json", "target-policy.json"], "what we do not write is gone");
        let state = stage.cluster.secret("g-0").await.0;
        assert_eq!(state.get("_machinekey").map(String::as_str), Some("theirs"), "what the replica wrote is its own");
        let config = stage.here::<ConfigMap>().get("g-egress-config").await.expect("a config");
        assert_eq!(config.data, None, "what we do not write is gone");
        let child = stage.here::<Service>().get("ts-s-x7k2p").await.expect("the child is kept");
        assert!(!child.labels().contains_key("left") && child.spec.as_ref().is_some_and(|spec| spec.selector.is_some()));
        assert!(json!(child.spec).to_string().contains("10432"), "and its port");
        assert!(child.finalizers().is_empty() && !child.annotations().contains_key("tailscale.com/magic-dnsname"), "it can be deleted");
        assert_eq!(stage.child("s").await.len(), 1);
        for managers in [managers(&set), managers(&secret), managers(&config), managers(&child)] {
            assert!(managers.contains(&"tailyard".to_owned()) && !managers.contains(&THEIRS.to_owned()), "{managers:?}");
        }
        stage.quiet(&running).await;

        running.kill();
        theirs(&stage, &uid).await;
        let set = stage.here::<StatefulSet>().get("g").await.expect("a set");
        let pod = json!(set.spec)["template"]["spec"].clone();
        assert_eq!(pod["readinessGates"][0]["conditionType"], "tailscale.com/egress-services", "whoever updates the whole has the whole");
        assert!(pod["containers"][0]["readinessProbe"].is_null() && pod["topologySpreadConstraints"].is_null(), "{pod}");
        let child = stage.here::<Service>().get("ts-s-x7k2p").await.expect("the child");
        assert!(child.spec.as_ref().is_some_and(|spec| spec.selector.is_none()), "their slices are written by hand");

        let _again = stage.reconciler("two", 9101);
        let taken = async || {
            json!(stage.here::<StatefulSet>().get("g").await.ok().and_then(|set| set.spec))["template"]["spec"]["readinessGates"].is_null()
        };
        until_async("and it is ours again", DEADLINE, taken).await;
        stage.served("s", "g", 1).await;
    });
}
