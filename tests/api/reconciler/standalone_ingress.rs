//! Standalone Ingresses: from manifest to a served name, change, deletion, takeover.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use kit::apiserver::DEADLINE;
use kit::hosted::DOMAIN;
use kit::reconciler::{Stage, USERS, stage};
use kit::wait::eventually_async;

use super::proxies::INGRESS;

/// Creates an Ingress of our class without a group, or changes it.
async fn put(stage: &Stage, name: &str, label: &str, backend: &str) {
    let backend = json!({"service": {"name": backend, "port": {"name": "web"}}});
    let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": name, "annotations": {"tailscale.com/http-redirect": "true"}},
        "spec": {"ingressClassName": "tailscale", "tls": [{"hosts": [label]}], "defaultBackend": backend}});
    stage.apply(stage.ingresses(), name, object).await;
}

/// Waits for the certificate's Secret and fills it, as the replica does.
async fn certify(stage: &Stage, label: &str) {
    let name = format!("{label}.{DOMAIN}");
    let there = async || stage.here::<Secret>().get_opt(&name).await.ok().flatten().is_some();
    eventually_async("the Secret of the certificate", DEADLINE, there, |there| *there).await;
    stage.cluster.patch_secret(&name, &[("tls.crt", "a chain"), ("tls.key", "a key")]).await;
}

async fn shows(stage: &Stage, ingress: &str, wanted: Value) {
    eventually_async("the status", DEADLINE, async || stage.reached(ingress).await["ingress"].clone(), |found| *found == wanted).await;
}

fn addresses(label: &str, ports: &[u16]) -> Value {
    let ports: Vec<_> = ports.iter().map(|port| json!({"port": port, "protocol": "TCP"})).collect();
    json!([{"hostname": format!("{label}.{DOMAIN}"), "ports": ports}])
}

/// Creates the Ingress `app` and waits until it is served as `shop`; returns the name of its workload.
pub(super) async fn serve(stage: &Stage) -> String {
    stage.class().await;
    stage.backend("web").await;
    put(stage, "app", "shop", "web").await;
    let workload = INGRESS.join(stage, "app", "shop").await;
    certify(stage, "shop").await;
    shows(stage, "app", addresses("shop", &[443, 80])).await;
    workload
}

/// Deletes an Ingress and waits until nothing of its proxy remains but the certificate, which stays for a week.
async fn ends(stage: &Stage, ingress: &str, workload: &str) {
    stage.delete(&stage.ingresses(), ingress).await;
    stage.gone(&stage.here::<StatefulSet>(), workload).await;
    assert!(stage.hosted.devices().contains(&format!("n{ingress}")), "its Pod may still serve");
    stage.pod_goes(&format!("{workload}-0")).await;
    stage.gone(&stage.ingresses(), ingress).await;
    let certificate = format!("shop.{DOMAIN}");
    assert_eq!((INGRESS.objects(stage, ingress).await, stage.hosted.devices().len()), (vec![certificate], 0));
}

#[test]
fn ingress_is_served_by_a_proxy_of_its_own_and_deleted() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        let workload = serve(&stage).await;
        assert_eq!(stage.ingresses().get("app").await.expect("an Ingress").finalizers(), ["tailscale.com/finalizer"]);
        let routes = stage.published(&workload, "tailyard-routes.json").await;
        let dns = format!("shop.{DOMAIN}");
        assert_eq!(routes["svc:shop"]["hosts"], json!({&dns: {"secret": dns, "issue": true}}));
        let bindings: Api<RoleBinding> = Api::namespaced(stage.client.clone(), USERS);
        let binding = bindings.get(&format!("tailyard-endpoints-{workload}")).await.expect("a binding");
        assert_eq!(binding.owner_references()[0].kind, "Ingress", "deleted with it");

        INGRESS.quiet(&stage, &running, &stage.ingresses(), "app").await;
        assert!(stage.hosted.vips().is_empty(), "a device, not a Tailscale Service");

        // An invalid edit is reported and changes nothing.
        put(&stage, "app", "shop", "missing").await;
        let reported = async || stage.events("app").await;
        eventually_async("an Event", DEADLINE, reported, |all| all.iter().any(|one| one.contains("Service default/missing"))).await;
        assert_eq!(stage.published(&workload, "tailyard-routes.json").await, routes);

        put(&stage, "app", "shop", "web").await;
        ends(&stage, "app", &workload).await;
    });
}

#[test]
fn changed_host_renames_the_device_in_place() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        let workload = serve(&stage).await;
        put(&stage, "app", "store", "web").await;
        let config = async || {
            let secret = stage.here::<Secret>().get(&format!("{workload}-0-config")).await.expect("a Secret");
            String::from_utf8_lossy(&secret.data.expect("data")["cap-106.hujson"].0).into_owned()
        };
        eventually_async("the new name", DEADLINE, config, |text| text.contains(r#""Hostname":"store""#)).await;
        shows(&stage, "app", addresses("shop", &[443, 80])).await;
        INGRESS.rename(&stage, "app", &workload, "store").await;
        certify(&stage, "store").await;
        shows(&stage, "app", addresses("store", &[443, 80])).await;
        let former = format!("shop.{DOMAIN}");
        let role = async || json!(stage.here::<Role>().get(&workload).await.expect("a Role").rules).to_string();
        eventually_async("a Role without the former name", DEADLINE, role, |rules| !rules.contains(&former)).await;
        assert!(stage.here::<Secret>().get_opt(&former).await.expect("an answer").is_some(), "it stays for its week");
        assert_eq!(stage.hosted.devices().len(), 1);
    });
}

/// Creates the Tailscale operator's objects for an Ingress.
async fn theirs(stage: &Stage, ingress: &str, uid: &str) {
    let parameters = PostParams { field_manager: Some("operator".to_owned()), ..PostParams::default() };
    let labels = json!(INGRESS.labels(ingress));
    let mut pod_labels = labels.clone();
    pod_labels["app"] = json!(uid);
    let metadata = |name: &str| json!({"name": name, "namespace": "ts", "labels": labels});
    let headless = json!({"metadata": metadata("ts-app-x7k2p"),
        "spec": {"clusterIP": "None", "ipFamilyPolicy": "PreferDualStack", "selector": {"app": uid}}});
    stage.here::<Service>().create(&parameters, &serde_json::from_value(headless).expect("a Service")).await.expect("created");
    let secret = json!({"metadata": metadata("ts-app-x7k2p-0"), "stringData": {"serve-config": "{}",
        "cap-107.hujson": r#"{"Version":"alpha0","Hostname":"shop"}"#, "device_id": "napp", "_machinekey": "theirs"}});
    stage.here::<Secret>().create(&parameters, &serde_json::from_value(secret).expect("a Secret")).await.expect("created");
    let container = json!({"name": "tailscale", "image": "tailscale/tailscale:v1.102.5",
        "env": [{"name": "TS_USERSPACE", "value": "true"}, {"name": "TS_SERVE_CONFIG", "value": "/etc/tailscaled/$(POD_NAME)/serve-config"}]});
    let set = json!({"metadata": metadata("ts-app-x7k2p"), "spec": {"replicas": 1, "serviceName": "ts-app-x7k2p",
        "selector": {"matchLabels": {"app": uid}},
        "template": {"metadata": {"labels": pod_labels}, "spec": {"serviceAccountName": "proxies", "containers": [container]}}}});
    stage.here::<StatefulSet>().create(&parameters, &serde_json::from_value(set).expect("a set")).await.expect("created");
}

#[test]
fn proxy_of_the_tailscale_operator_keeps_name_device_and_state() {
    stage(async |stage| {
        stage.class().await;
        stage.backend("web").await;
        put(&stage, "app", "shop", "web").await;
        let uid = stage.ingresses().get("app").await.expect("an Ingress").uid().expect("a UID");
        theirs(&stage, "app", &uid).await;
        stage.hosted.add_device("napp", "shop");
        let _running = stage.reconciler("one", 9100);
        let own = async || {
            let set = stage.here::<StatefulSet>().get("ts-app-x7k2p").await.expect("a set");
            json!(set.spec)["template"]["spec"]["containers"][0]["image"].clone()
        };
        eventually_async("our image", DEADLINE, own, |image| image == "tailyard:test").await;
        assert_eq!(INGRESS.join(&stage, "app", "shop").await, "ts-app-x7k2p");
        certify(&stage, "shop").await;
        shows(&stage, "app", addresses("shop", &[443, 80])).await;
        assert_eq!(stage.cluster.secret("ts-app-x7k2p-0").await.0.get("_machinekey").map(String::as_str), Some("theirs"));
        assert_eq!((stage.hosted.devices().len(), stage.hosted.key_requests().len()), (1, 0));
        ends(&stage, "app", "ts-app-x7k2p").await;
    });
}

#[test]
fn disabled_standalone_proxies_are_not_touched() {
    stage(async |stage| {
        stage.class().await;
        stage.backend("web").await;
        put(&stage, "app", "shop", "web").await;
        let uid = stage.ingresses().get("app").await.expect("an Ingress").uid().expect("a UID");
        theirs(&stage, "app", &uid).await;
        let running = stage.reconciler_with("one", 9100, &["--standalone", "off"]);
        running.leads(true).await;
        super::services::ready(&stage, "g").await;
        stage.quiet(&running).await;
        assert!(stage.cluster.writes().iter().all(|write| !write.contains("ts-app-x7k2p")), "{:?}", stage.cluster.writes());
        assert!(stage.ingresses().get("app").await.expect("an Ingress").finalizers().is_empty());
    });
}
