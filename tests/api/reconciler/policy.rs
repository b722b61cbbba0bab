//! Rules of administrators, and messages about annotations, for users' Services and Ingresses.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use kit::apiserver::DEADLINE;
use kit::reconciler::{Stage, USERS, stage};
use kit::wait::eventually_async;

use super::proxies::SERVICE;

async fn put(stage: &Stage, name: &str, annotations: Value, spec: Value) {
    let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "annotations": annotations}, "spec": spec});
    stage.apply(stage.users(), name, object).await;
}

fn web() -> Value {
    json!({"ports": [{"name": "web", "port": 80, "protocol": "TCP"}]})
}

/// Waits for an Event about an object with these words.
async fn reports(stage: &Stage, name: &str, words: &str) {
    let all = async || stage.events(name).await;
    eventually_async(words, DEADLINE, all, |all| all.iter().any(|event| event.contains(words))).await;
}

#[test]
fn misspelt_annotation_of_a_foreign_service_is_reported_once() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        put(&stage, "s", json!({"tailscale.com/exposed": "true", "example.com/exposed": "true"}), web()).await;
        reports(&stage, "s", "IneffectiveAnnotation Annotation tailscale.com/exposed is unknown").await;
        let annotate = async |annotations: Value| {
            let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
            stage.users().patch("s", &PatchParams::default(), &patch).await.expect("changed");
        };
        annotate(json!({"example.com/exposed": null})).await;
        annotate(json!({"tailscale.com/exposed": null, "tailscale.com/hostnam": "a"})).await;
        reports(&stage, "s", "the nearest known one is tailscale.com/hostname").await;
        put(&stage, "last", json!({"tailscale.com/exposed": "true"}), web()).await;
        reports(&stage, "last", "IneffectiveAnnotation").await;
        let reported = stage.events("s").await;
        assert_eq!(reported.iter().filter(|event| event.starts_with("IneffectiveAnnotation")).count(), 2, "{reported:?}");
        let doctor = stage.tailyard("admin", &["doctor", "-o", "json"]).output().await.expect("the binary");
        let checks: Vec<Value> = serde_json::from_slice(&doctor.stdout).expect("JSON");
        let listed =
            |words: &str| checks.iter().any(|c| c["finding"] == "warn" && c["what"].as_str().unwrap_or_default().starts_with(words));
        assert!(listed("Service default/s: Annotation tailscale.com/hostnam is unknown"), "{checks:?}");
        assert!(listed("Service default/last: Annotation tailscale.com/exposed is unknown"), "{checks:?}");
    });
}

#[test]
fn tenants_of_standalone_proxies_follow_namespace_labels_and_limits() {
    stage(async |stage| {
        let tenants = json!([{"namespaceSelector": {"matchLabels": {"team": "shop"}}, "maxNames": 2}]).to_string();
        let _running = stage.reconciler_with("one", 9100, &["--standalone-tenants", &tenants]);
        let expose = || json!({"tailscale.com/expose": "true"});
        let condition = async |name: &str, words: &str| {
            let found = async || stage.condition(name, "TailscaleProxyReady").await;
            eventually_async(words, DEADLINE, found, |found| found.contains(words)).await;
        };
        put(&stage, "a", expose(), web()).await;
        condition("a", "False NotAllowed Namespace default may not use the tailnet without a ProxyGroup").await;
        reports(&stage, "a", "NotAllowed Namespace default").await;
        let sets = async || stage.here::<StatefulSet>().list(&kube::api::ListParams::default()).await.expect("a list").items.len();
        assert_eq!((sets().await, stage.hosted.key_requests().len()), (0, 0));
        let label = async |team: &str| {
            let labels = Patch::Merge(json!({"metadata": {"labels": {"team": team}}}));
            stage.all::<Namespace>().patch(USERS, &PatchParams::default(), &labels).await.expect("changed");
        };
        label("shop").await;
        SERVICE.join(&stage, "a", "default-a").await;
        condition("a", "True ProxyCreated").await;
        put(&stage, "b", expose(), web()).await;
        SERVICE.join(&stage, "b", "default-b").await;
        condition("b", "True ProxyCreated").await;
        put(&stage, "c", expose(), web()).await;
        condition("c", "False TooManyNames Namespace default may have 2 standalone proxies and has or requests 2 before").await;
        label("hr").await;
        condition("a", "False NotAllowed").await;
        assert_eq!((sets().await, stage.hosted.devices().len()), (2, 2), "existing proxies stay");
    });
}
