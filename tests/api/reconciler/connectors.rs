//! Connectors: from manifest to devices, a change of routes and of replicas, deletion; with the rights of config/rbac.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tailyard::api::connector::Connector;

use kit::apiserver::DEADLINE;
use kit::hosted::DOMAIN;
use kit::reconciler::{Stage, stage};
use kit::wait::eventually_async;

const NAME: &str = "lab";
const LABELS: &str = "tailscale.com/parent-resource-type=connector,tailscale.com/parent-resource=lab,tailscale.com/parent-resource-ns=";

async fn put(stage: &Stage, spec: Value) {
    let object = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "Connector", "metadata": {"name": NAME}, "spec": spec});
    stage.apply(stage.all::<Connector>(), NAME, object).await;
}

async fn ready(stage: &Stage, wanted: &str) {
    condition(stage, "ConnectorReady", wanted).await;
}

/// Waits for a status, reason and message of a condition that begins so.
async fn condition(stage: &Stage, kind: &str, wanted: &str) {
    let condition = async || {
        let status = stage.all::<Connector>().get(NAME).await.ok().and_then(|connector| connector.status).unwrap_or_default();
        let found = status.conditions.into_iter().find(|condition| condition.type_ == kind);
        found.map_or(String::new(), |ready| format!("{} {} {}", ready.status, ready.reason, ready.message))
    };
    eventually_async(wanted, DEADLINE, condition, |found| found.starts_with(wanted)).await;
}

/// The only `StatefulSet`, once it has this number of replicas.
async fn set(stage: &Stage, replicas: i32) -> StatefulSet {
    let selector = ListParams::default().labels(LABELS);
    let sets = async || stage.here::<StatefulSet>().list(&selector).await.expect("a list").items;
    let has_replicas = |set: &StatefulSet| set.spec.as_ref().and_then(|spec| spec.replicas) == Some(replicas);
    eventually_async("a StatefulSet", DEADLINE, sets, |sets| sets.len() == 1 && has_replicas(&sets[0])).await.remove(0)
}

/// Simulates kubelet and tailscaled of a replica: its Pod runs, and its device joins the tailnet and advertises a route.
async fn join(stage: &Stage, set: &StatefulSet, ordinal: u32, (label, route): (&str, &str)) {
    let name = format!("{}-{ordinal}", set.name_any());
    let labels = json!(set.spec)["template"]["metadata"]["labels"].clone();
    let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
        "spec": {"serviceAccountName": set.name_any(), "containers": [{"name": "tailscale", "image": "x"}]}});
    stage.apply(stage.here::<Pod>(), &name, object).await;
    let ip = format!("10.1.9.{}", ordinal + 1);
    let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let pod = stage.here::<Pod>().patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.expect("a status");
    stage.log_in(&pod, &format!("nlab{ordinal}"), label).await;
    let profile = json!({"AdvertiseRoutes": [route]}).to_string();
    stage.cluster.patch_secret(&name, &[("_current-profile", "profile-1"), ("profile-1", &profile)]).await;
}

/// Waits until the config of a replica advertises these routes.
async fn advertises(stage: &Stage, workload: &str, ordinal: u32, routes: &str) {
    let config = async || {
        let secret = stage.here::<Secret>().get_opt(&format!("{workload}-{ordinal}-config")).await.ok().flatten();
        let data = secret.and_then(|secret| secret.data).unwrap_or_default();
        data.get("cap-106.hujson").map(|config| String::from_utf8_lossy(&config.0).into_owned()).unwrap_or_default()
    };
    let wanted = format!(r#""AdvertiseRoutes":{routes}"#);
    eventually_async(&wanted, DEADLINE, config, |config| config.contains(&wanted)).await;
}

#[test]
fn connector_becomes_ready_follows_its_spec_and_is_deleted() {
    stage(async |stage| {
        let running = stage.reconciler_with("one", 9100, &["--connectors", "on"]);
        put(&stage, json!({"subnetRouter": {"advertiseRoutes": ["10.40.0.0/14"]}, "replicas": 2})).await;
        ready(&stage, "False ConnectorCreating 0 of 2 devices").await;
        let first = set(&stage, 2).await;
        let workload = first.name_any();
        stage.here::<PodDisruptionBudget>().get(&workload).await.expect("a budget");
        let route = "10.40.0.0/14";
        stage.hosted.approve_routes("nlab0", &[route]);
        join(&stage, &first, 0, ("lab-connector", route)).await;
        join(&stage, &first, 1, ("lab-connector-1", route)).await;
        ready(&stage, "True ConnectorCreated 2 of 2 devices").await;
        let unapproved = "False RoutesNotApproved The control plane has not approved routes that devices advertise, and peers do not use \
             them: lab-connector-1 (10.40.0.0/14).";
        condition(&stage, "TailyardRoutesApproved", unapproved).await;
        let status = stage.all::<Connector>().get(NAME).await.expect("a Connector").status.expect("a status");
        let hosts: Vec<_> = status.devices.iter().map(|device| device.hostname.clone()).collect();
        assert_eq!(hosts, [format!("lab-connector.{DOMAIN}"), format!("lab-connector-1.{DOMAIN}")]);
        assert_eq!((status.subnet_routes.as_str(), status.hostname.as_str()), ("10.40.0.0/14", hosts[0].as_str()));
        let template = json!(first.spec)["template"].clone();
        for (spec, routes) in [
            (json!({"exitNode": true, "subnetRouter": null}), r#"["0.0.0.0/0","::/0"]"#),
            (json!({"exitNode": null, "appConnector": {}}), "[]"),
        ] {
            let patch = Patch::Merge(json!({"spec": spec}));
            stage.all::<Connector>().patch(NAME, &PatchParams::default(), &patch).await.expect("changed");
            for ordinal in 0..2 {
                advertises(&stage, &workload, ordinal, routes).await;
            }
        }
        assert_eq!(json!(set(&stage, 2).await.spec)["template"], template, "no Pod restarts");
        let patch = Patch::Merge(json!({"spec": {"replicas": 1}}));
        stage.all::<Connector>().patch(NAME, &PatchParams::default(), &patch).await.expect("changed");
        set(&stage, 1).await;
        assert_eq!(stage.hosted.devices().len(), 2, "its Pod forwards still");
        stage.pod_goes(&format!("{workload}-1")).await;
        stage.gone(&stage.here::<Secret>(), &format!("{workload}-1-config")).await;
        ready(&stage, "True ConnectorCreated 1 of 1 devices").await;
        let counted = async || running.metric("tailyard_connectors{state=\"ready\"}");
        eventually_async("the metric follows the status", DEADLINE, counted, |count| *count == 1).await;
        stage.delete(&stage.all::<Connector>(), NAME).await;
        stage.gone(&stage.here::<StatefulSet>(), &workload).await;
        stage.pod_goes(&format!("{workload}-0")).await;
        stage.gone(&stage.all::<Connector>(), NAME).await;
        assert_eq!(stage.hosted.devices().len(), 0);
        let secrets = stage.here::<Secret>().list(&ListParams::default().labels(LABELS)).await.expect("a list").items;
        assert_eq!(secrets.len(), 0);
    });
}

#[test]
fn connectors_are_not_touched_by_default() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        put(&stage, json!({"exitNode": true})).await;
        stage.group("g", 0).await;
        stage.quiet(&running).await;
        let connector = stage.all::<Connector>().get(NAME).await.expect("a Connector");
        assert_eq!((connector.finalizers().len(), connector.status), (0, None));
    });
}
