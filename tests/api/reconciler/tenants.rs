//! Tenants of a group: namespace selectors, evaluated with the labels that the API server has.

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tailyard::api::proxygroup::ProxyGroup;

use kit::apiserver::DEADLINE;
use kit::reconciler::{USERS, stage};
use kit::wait::eventually_async;

#[test]
fn namespace_labels_decide_tenant_access() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        stage.publisher("g", 2).await;
        let tenants = json!([{"namespaceSelector": {"matchLabels": {"team": "shop"}}, "names": ["app*"]}]);
        let spec = Patch::Merge(json!({"spec": {"tailyard": {"tenants": tenants}}}));
        stage.all::<ProxyGroup>().patch("g", &PatchParams::default(), &spec).await.expect("changed");
        stage.ingress("app", "g", "app").await;
        let says = async |name: &str, what: &str| {
            let reported = async || stage.events(name).await;
            eventually_async(what, DEADLINE, reported, |reported| reported.iter().any(|event| event.contains(what))).await;
        };
        says("app", &format!("Namespace {USERS} may not use it in ProxyGroup g")).await;
        stage.quiet(&running).await;
        assert!(stage.hosted.vips().is_empty());
        let label = async |team: &str| {
            let labels = Patch::Merge(json!({"metadata": {"labels": {"team": team}}}));
            stage.all::<Namespace>().patch(USERS, &PatchParams::default(), &labels).await.expect("changed");
        };
        label("shop").await;
        stage.wait_advertised("g", &["svc:app"]).await;
        stage.ingress("payroll", "g", "payroll").await;
        says("payroll", "may not use the name payroll").await;
        label("hr").await;
        stage.ingress("app-two", "g", "app-two").await;
        says("app-two", "may not use it").await;
        stage.quiet(&running).await;
        stage.wait_advertised("g", &["svc:app"]).await;
        assert_eq!(stage.hosted.vips().keys().collect::<Vec<_>>(), ["svc:app"], "what is served stays, and nothing is added");

        let wrong = Patch::Merge(json!({"spec": {"tailyard": {"tenants": [{"namespaceSelector": {}, "names": ["*-a"]}]}}}));
        let refused = stage.all::<ProxyGroup>().patch("g", &PatchParams::default(), &wrong).await.expect_err("no pattern");
        assert!(refused.to_string().contains("tenants[0].names"), "{refused}");
    });
}
