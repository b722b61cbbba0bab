//! Standalone Services: each kind from manifest to Ready, change, deletion, takeover.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use kit::apiserver::DEADLINE;
use kit::hosted::DOMAIN;
use kit::reconciler::{Stage, stage};
use kit::wait::eventually_async;

use super::proxies::SERVICE;

const READY: &str = "TailscaleProxyReady";

pub(super) async fn put(stage: &Stage, name: &str, annotations: Value, spec: Value) {
    let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "annotations": annotations}, "spec": spec});
    stage.apply(stage.users(), name, object).await;
}

fn external(name: &str) -> Value {
    json!({"type": "ExternalName", "externalName": name})
}

pub(super) fn web() -> Value {
    json!({"ports": [{"name": "web", "port": 80, "protocol": "TCP"}]})
}

pub(super) async fn ready(stage: &Stage, service: &str) {
    eventually_async("ready", DEADLINE, async || stage.condition(service, READY).await, |found| found.starts_with("True ProxyCreated"))
        .await;
}

fn env(set: &StatefulSet, name: &str) -> Option<String> {
    let env = json!(set.spec)["template"]["spec"]["containers"][0]["env"].clone();
    env.as_array()?.iter().find(|variable| variable["name"] == name)?["value"].as_str().map(str::to_owned)
}

#[test]
fn each_kind_of_service_becomes_ready_and_is_deleted() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        let expose = || json!({"tailscale.com/expose": "true"});
        let mut balanced = web();
        balanced["type"] = json!("LoadBalancer");
        balanced["loadBalancerClass"] = json!("tailscale");
        let mut headless = web();
        headless["clusterIP"] = json!("None");
        let kinds = [
            ("lb", json!({}), balanced, "TS_DEST_IP"),
            ("exposed", expose(), web(), "TS_DEST_IP"),
            ("named", expose(), external("db.example.com"), "TS_EXPERIMENTAL_DEST_DNS_NAME"),
            ("headless", expose(), headless, "TS_EXPERIMENTAL_DEST_DNS_NAME"),
            ("ip", json!({"tailscale.com/tailnet-ip": "100.64.0.9"}), external("placeholder.invalid"), "TS_TAILNET_TARGET_IP"),
            (
                "fqdn",
                json!({"tailscale.com/tailnet-fqdn": "db.tail-lab.ts.net"}),
                external("placeholder.invalid"),
                "TS_TAILNET_TARGET_FQDN",
            ),
        ];
        for (name, annotations, spec, variable) in kinds {
            put(&stage, name, annotations, spec).await;
            let pending = async || stage.condition(name, READY).await;
            eventually_async("pending", DEADLINE, pending, |found| found.starts_with("False ProxyPending")).await;
            let set = SERVICE.set(&stage, name).await;
            assert!(env(&set, variable).is_some(), "{name}");
            let workload = SERVICE.join(&stage, name, &format!("default-{name}")).await;
            ready(&stage, name).await;
            let service = stage.users().get(name).await.expect("a Service");
            assert_eq!(service.finalizers(), ["tailscale.com/finalizer"]);
            let spec = service.spec.expect("a spec");
            if variable.contains("TARGET") {
                assert_eq!(spec.external_name, Some(format!("{workload}.ts.svc.cluster.local")));
            }
            let addresses = json!(service.status.and_then(|status| status.load_balancer?.ingress));
            if name == "lb" {
                assert_eq!(
                    (&addresses[0]["hostname"], &addresses[1]["ip"]),
                    (&json!(format!("default-lb.{DOMAIN}")), &json!(stage.hosted.addresses("nlb")[0]))
                );
            } else {
                assert_eq!(addresses, Value::Null, "{name}");
            }
        }
        for name in ["lb", "fqdn"] {
            SERVICE.quiet(&stage, &running, &stage.users(), name).await;
        }
        assert_eq!(stage.hosted.devices().len(), 6);
        for name in ["lb", "exposed", "named", "headless", "ip", "fqdn"] {
            let pod = format!("{}-0", SERVICE.set(&stage, name).await.name_any());
            stage.delete(&stage.users(), name).await;
            stage.gone(&stage.here::<StatefulSet>(), pod.trim_end_matches("-0")).await;
            assert!(stage.hosted.devices().contains(&format!("n{name}")), "its Pod may still serve");
            stage.pod_goes(&pod).await;
            stage.gone(&stage.users(), name).await;
            assert_eq!(SERVICE.objects(&stage, name).await, [""; 0], "{name}");
        }
        assert_eq!(stage.hosted.devices().len(), 0);
    });
}

#[test]
fn changed_target_name_and_annotation_keep_the_device() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        put(&stage, "s", json!({"tailscale.com/tailnet-ip": "100.64.0.9"}), external("placeholder.invalid")).await;
        let workload = SERVICE.join(&stage, "s", "default-s").await;
        ready(&stage, "s").await;
        let annotate = async |annotations: Value| {
            let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
            stage.users().patch("s", &PatchParams::default(), &patch).await.expect("changed");
        };
        annotate(json!({"tailscale.com/tailnet-ip": "100.64.0.10", "tailscale.com/hostname": "db"})).await;
        let target = async || env(&SERVICE.set(&stage, "s").await, "TS_TAILNET_TARGET_IP");
        eventually_async("the new target", DEADLINE, target, |target| target.as_deref() == Some("100.64.0.10")).await;
        let config = async || {
            let secret = stage.here::<Secret>().get(&format!("{workload}-0-config")).await.expect("a Secret");
            String::from_utf8_lossy(&secret.data.expect("data")["cap-106.hujson"].0).into_owned()
        };
        eventually_async("the new name", DEADLINE, config, |text| text.contains(r#""Hostname":"db""#)).await;
        assert_eq!(stage.hosted.devices().len(), 1);
        ready(&stage, "s").await;

        annotate(json!({"tailscale.com/tailnet-ip": "100.64.0.0/24"})).await;
        let invalid = async || stage.condition("s", READY).await;
        let says = |found: &String| found.starts_with("False ProxyInvalid") && found.contains("tailscale.com/tailnet-ip");
        eventually_async("it is invalid", DEADLINE, invalid, says).await;
        let reported = async || stage.events("s").await;
        eventually_async("an Event", DEADLINE, reported, |events| events.iter().any(|event| event.starts_with("ProxyInvalid"))).await;
        assert_eq!(env(&SERVICE.set(&stage, "s").await, "TS_TAILNET_TARGET_IP").as_deref(), Some("100.64.0.10"), "served as before");

        annotate(json!({"tailscale.com/tailnet-ip": null, "tailscale.com/hostname": null})).await;
        stage.gone(&stage.here::<StatefulSet>(), &workload).await;
        stage.pod_goes(&format!("{workload}-0")).await;
        let released = async || {
            let service = stage.users().get("s").await.expect("a Service");
            (service.finalizers().len(), service.spec.and_then(|spec| spec.external_name).unwrap_or_default())
        };
        eventually_async("released", DEADLINE, released, |found| *found == (0, "placeholder.invalid".to_owned())).await;
        assert_eq!(SERVICE.objects(&stage, "s").await, [""; 0]);
        assert_eq!((stage.hosted.devices().len(), stage.condition("s", READY).await), (0, String::new()));
    });
}

/// Creates the Tailscale operator's objects for an exposed Service.
async fn theirs(stage: &Stage, service: &str, uid: &str) {
    let parameters = PostParams { field_manager: Some("operator".to_owned()), ..PostParams::default() };
    let labels = json!(SERVICE.labels(service));
    let mut pod_labels = labels.clone();
    pod_labels["app"] = json!(uid);
    let metadata = |name: &str| json!({"name": name, "namespace": "ts", "labels": labels});
    let headless = json!({"metadata": metadata("ts-s-x7k2p"),
        "spec": {"clusterIP": "None", "ipFamilyPolicy": "PreferDualStack", "selector": {"app": uid}}});
    stage.here::<Service>().create(&parameters, &serde_json::from_value(headless).expect("a Service")).await.expect("created");
    let secret = json!({"metadata": metadata("ts-s-x7k2p-0"), "stringData": {
        "cap-95.hujson": "{}", "cap-107.hujson": r#"{"Version":"alpha0","Hostname":"default-s"}"#, "device_id": "ns", "_machinekey": "theirs"}});
    stage.here::<Secret>().create(&parameters, &serde_json::from_value(secret).expect("a Secret")).await.expect("created");
    let container = json!({"name": "tailscale", "image": "tailscale/tailscale:v1.102.5", "securityContext": {"privileged": true},
        "env": [{"name": "TS_USERSPACE", "value": "false"}, {"name": "TS_DEST_IP", "value": "10.96.0.1"}]});
    let set = json!({"metadata": metadata("ts-s-x7k2p"), "spec": {"replicas": 1, "serviceName": "ts-s-x7k2p",
        "selector": {"matchLabels": {"app": uid}},
        "template": {"metadata": {"labels": pod_labels}, "spec": {"serviceAccountName": "proxies", "containers": [container]}}}});
    stage.here::<StatefulSet>().create(&parameters, &serde_json::from_value(set).expect("a set")).await.expect("created");
}

#[test]
fn proxy_of_the_tailscale_operator_keeps_name_device_and_state() {
    stage(async |stage| {
        put(&stage, "s", json!({"tailscale.com/expose": "true"}), web()).await;
        let uid = stage.users().get("s").await.expect("a Service").uid().expect("a UID");
        theirs(&stage, "s", &uid).await;
        stage.hosted.add_device("ns", "default-s");
        let running = stage.reconciler("one", 9100);
        assert_eq!(SERVICE.join(&stage, "s", "default-s").await, "ts-s-x7k2p");
        ready(&stage, "s").await;
        let set = SERVICE.set(&stage, "s").await;
        let pod = json!(set.spec)["template"]["spec"].clone();
        assert_eq!((&pod["serviceAccountName"], &pod["containers"][0]["image"]), (&json!("ts-s-x7k2p"), &json!("tailyard:test")));
        assert_eq!(pod["containers"][0]["securityContext"]["privileged"], false);
        assert_eq!(stage.cluster.secret("ts-s-x7k2p-0").await.0.get("_machinekey").map(String::as_str), Some("theirs"));
        assert_eq!((stage.hosted.devices().len(), stage.hosted.key_requests().len()), (1, 0));
        let config = async || {
            stage.here::<Secret>().get("ts-s-x7k2p-0-config").await.expect("a Secret").annotations().contains_key("tailyard.io/device")
        };
        eventually_async("the device is recorded", DEADLINE, config, |recorded| *recorded).await;
        SERVICE.quiet(&stage, &running, &stage.users(), "s").await;
        stage.delete(&stage.users(), "s").await;
        stage.gone(&stage.here::<StatefulSet>(), "ts-s-x7k2p").await;
        stage.pod_goes("ts-s-x7k2p-0").await;
        stage.gone(&stage.users(), "s").await;
        assert_eq!((SERVICE.objects(&stage, "s").await, stage.hosted.devices().len()), (Vec::new(), 0));
    });
}

#[test]
fn disabled_standalone_proxies_are_not_touched() {
    stage(async |stage| {
        put(&stage, "s", json!({"tailscale.com/expose": "true"}), web()).await;
        let uid = stage.users().get("s").await.expect("a Service").uid().expect("a UID");
        theirs(&stage, "s", &uid).await;
        let running = stage.reconciler_with("one", 9100, &["--standalone", "off"]);
        running.leads(true).await;
        super::services::ready(&stage, "g").await;
        stage.quiet(&running).await;
        assert_eq!(stage.condition("s", READY).await, "");
        assert!(stage.cluster.writes().iter().all(|write| !write.contains("ts-s-x7k2p")), "{:?}", stage.cluster.writes());
    });
}
