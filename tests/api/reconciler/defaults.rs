//! Objects without annotation: default groups, the group of the `IngressClass`, and opting out.

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::networking::v1::IngressClass;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use kit::apiserver::DEADLINE;
use kit::reconciler::{Stage, USERS, stage};
use kit::wait::eventually_async;

use crate::reconciler::services::ready;

const DEFAULTS: [&str; 6] = ["--default-egress-group", "g", "--default-ingress-group", "in", "--standalone", "off"];
/// `externalName` of new Services.
const PLACEHOLDER: &str = "placeholder.invalid";

/// Creates an egress Service without group.
async fn unnamed(stage: &Stage, name: &str) {
    let object = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "annotations": {"tailscale.com/tailnet-ip": "100.64.0.9"}},
        "spec": {"type": "ExternalName", "externalName": PLACEHOLDER, "ports": [{"name": "web", "port": 80, "protocol": "TCP"}]}});
    stage.apply(stage.users(), name, object).await;
}

/// Creates an Ingress without group, to the backend `web`.
async fn unnamed_ingress(stage: &Stage, name: &str) {
    let backend = json!({"service": {"name": "web", "port": {"name": "web"}}});
    let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": name},
        "spec": {"ingressClassName": "tailscale", "tls": [{"hosts": [name]}], "defaultBackend": backend}});
    stage.apply(stage.ingresses(), name, object).await;
}

/// Sets annotations of a Service; null removes one.
async fn annotate(stage: &Stage, service: &str, annotations: Value) {
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    stage.users().patch(service, &PatchParams::default(), &patch).await.expect("changed");
}

/// Sets the label of the users' namespace that opts out; null removes it.
async fn label(stage: &Stage, value: Value) {
    let patch = Patch::Merge(json!({"metadata": {"labels": {"tailyard.io/default-proxy-group": value}}}));
    stage.all::<Namespace>().patch(USERS, &PatchParams::default(), &patch).await.expect("changed");
}

/// Names a group in the parameters of the `IngressClass`.
async fn class_names(stage: &Stage, kind: &str, name: &str) {
    let parameters = json!({"apiGroup": "tailscale.com", "kind": kind, "name": name, "scope": "Cluster"});
    let patch = Patch::Merge(json!({"spec": {"parameters": parameters}}));
    stage.all::<IngressClass>().patch("tailscale", &PatchParams::default(), &patch).await.expect("changed");
}

/// Waits until a Service is released: no child, no record, its own `externalName`.
async fn released(stage: &Stage, service: &str) {
    let look = async || {
        let found = stage.users().get(service).await.expect("a Service");
        let record = found.metadata.annotations.unwrap_or_default().remove("tailyard.io/former-external-name");
        (stage.child(service).await.len(), found.metadata.finalizers.unwrap_or_default().len(), record, stage.external_name(service).await)
    };
    let clean = |state: &(usize, usize, Option<String>, String)| *state == (0, 0, None, PLACEHOLDER.to_owned());
    eventually_async("the Service is released", DEADLINE, look, clean).await;
}

#[test]
fn default_egress_group_serves_until_an_object_opts_out() {
    stage(async |stage| {
        let running = stage.reconciler_with("one", 9100, &DEFAULTS);
        ready(&stage, "g").await;
        unnamed(&stage, "s").await;
        stage.served("s", "g", 2).await;
        let child = stage.child("s").await.remove(0).0;
        assert_eq!(stage.external_name("s").await, format!("{child}.ts.svc.cluster.local"));
        let found = stage.users().get("s").await.expect("a Service");
        assert_eq!(found.metadata.annotations.expect("annotations")["tailyard.io/former-external-name"], PLACEHOLDER);
        label(&stage, json!("disabled")).await;
        released(&stage, "s").await;
        label(&stage, json!(null)).await;
        stage.served("s", "g", 2).await;
        annotate(&stage, "s", json!({"tailscale.com/proxy-group": ""})).await;
        released(&stage, "s").await;

        ready(&stage, "gg").await;
        annotate(&stage, "s", json!({"tailscale.com/proxy-group": "gg"})).await;
        stage.served("s", "gg", 2).await;
        annotate(&stage, "s", json!({"tailscale.com/proxy-group": null})).await;
        stage.served("s", "g", 2).await;
        stage.quiet(&running).await;
        assert_eq!(stage.events("s").await, [""; 0]);
    });
}

#[test]
fn default_ingress_group_publishes_ingresses_and_services() {
    stage(async |stage| {
        let running = stage.reconciler_with("one", 9100, &DEFAULTS);
        stage.class().await;
        stage.backend("web").await;
        unnamed_ingress(&stage, "app").await;
        let reported = async || stage.events("app").await;
        let says = "ProxyGroup in, the default of --default-ingress-group (chart: defaultProxyGroups.ingress), does not exist: create it";
        eventually_async("the missing group", DEADLINE, reported, |reported| reported.iter().any(|event| event.contains(says))).await;
        stage.publisher("in", 2).await;
        let annotations = json!({"tailscale.com/expose": "true", "tailscale.com/hostname": "db"});
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "db", "annotations": annotations},
            "spec": {"ports": [{"name": "web", "port": 80, "protocol": "TCP"}]}});
        stage.apply(stage.users(), "db", object).await;
        stage.endpoint("db", true).await;
        stage.certify("app.tail-lab.ts.net").await;
        stage.wait_advertised("in", &["svc:app", "svc:db"]).await;
        stage.serves("app", "in").await;
        label(&stage, json!("disabled")).await;
        stage.wait_advertised("in", &[]).await;
        stage.advertise("in", 2).await;
        let vips = async || stage.hosted.vips().len();
        eventually_async("no name is left", DEADLINE, vips, |count| *count == 0).await;
        let web = stage.users().get("web").await.expect("the backend");
        assert_eq!((web.metadata.finalizers, web.status.and_then(|status| status.conditions)), (None, None), "it requests nothing");
        stage.quiet(&running).await;
    });
}

#[test]
fn class_parameters_move_ingresses_and_invalid_ones_change_nothing() {
    stage(async |stage| {
        let running = stage.reconciler_with("one", 9100, &DEFAULTS);
        stage.publisher("old", 2).await;
        stage.publisher("new", 2).await;
        class_names(&stage, "ProxyGroup", "old").await;
        unnamed_ingress(&stage, "app").await;
        stage.certify("app.tail-lab.ts.net").await;
        stage.serves("app", "old").await;
        class_names(&stage, "ProxyGroup", "new").await;
        stage.wait_advertised("new", &["svc:app"]).await;
        stage.serves("app", "new").await;
        stage.wait_advertised("old", &[]).await;
        stage.advertise("old", 2).await;

        class_names(&stage, "ConfigMap", "new").await;
        unnamed_ingress(&stage, "late").await;
        let reported = async || stage.events("late").await;
        eventually_async("the parameters are reported", DEADLINE, reported, |reported| {
            reported.iter().any(|event| event.starts_with("InvalidIngressClass") && event.contains("which is no ProxyGroup"))
        })
        .await;
        stage.quiet(&running).await;
        stage.wait_advertised("new", &["svc:app"]).await;
        stage.wait_advertised("old", &[]).await;
        class_names(&stage, "ProxyGroup", "new").await;
        stage.certify("late.tail-lab.ts.net").await;
        stage.wait_advertised("new", &["svc:app", "svc:late"]).await;
    });
}
