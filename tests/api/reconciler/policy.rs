//! Rules of administrators, and messages about annotations, for users' Services and Ingresses.

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use kit::apiserver::DEADLINE;
use kit::reconciler::{Stage, stage};
use kit::wait::eventually_async;

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
        reports(&stage, "s", "UnknownAnnotation Annotation tailscale.com/exposed is unknown").await;
        let annotate = async |annotations: Value| {
            let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
            stage.users().patch("s", &PatchParams::default(), &patch).await.expect("changed");
        };
        annotate(json!({"example.com/exposed": null})).await;
        annotate(json!({"tailscale.com/exposed": null, "tailscale.com/hostnam": "a"})).await;
        reports(&stage, "s", "the nearest known one is tailscale.com/hostname").await;
        put(&stage, "last", json!({"tailscale.com/exposed": "true"}), web()).await;
        reports(&stage, "last", "UnknownAnnotation").await;
        assert_eq!(stage.events("s").await.len(), 2, "{:?}", stage.events("s").await);
        let doctor = stage.tailyard("admin", &["doctor", "-o", "json"]).output().await.expect("the binary");
        let checks: Vec<Value> = serde_json::from_slice(&doctor.stdout).expect("JSON");
        let listed = checks.iter().find(|check| check["name"] == "annotations").expect("the check");
        let what = listed["what"].as_str().unwrap_or_default();
        assert!(listed["finding"] == "warn" && what.contains("Service default/s: Annotation tailscale.com/hostnam"), "{listed}");
    });
}
