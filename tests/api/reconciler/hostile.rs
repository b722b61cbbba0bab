//! Compromised proxy Pods: their state Secrets cannot make the reconciler change anything at the control plane that is not theirs.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use tailyard::api::names::DEVICE;
use tailyard::api::proxygroup::ProxyGroup;

use super::proxies::SERVICE;
use kit::apiserver::DEADLINE;
use kit::hosted::DOMAIN;
use kit::reconciler::{Stage, stage};
use kit::wait::{eventually_async, until_async};

/// Creates a Service of type `LoadBalancer` whose device has this host name.
async fn expose(stage: &Stage, name: &str, hostname: &str) {
    let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "ports": [{"port": 80, "protocol": "TCP"}]});
    let object = json!({"metadata": {"name": name, "annotations": {"tailscale.com/hostname": hostname}}, "spec": spec});
    stage.users().create(&PostParams::default(), &serde_json::from_value(object).expect("a Service")).await.expect("created");
}

/// `status.loadBalancer.ingress` of a Service.
async fn shown(stage: &Stage, name: &str) -> Value {
    let status = stage.users().get(name).await.expect("a Service").status;
    json!(status.and_then(|status| status.load_balancer))["ingress"].clone()
}

/// Waits until the config Secret of a replica has the record of a device.
async fn recorded(stage: &Stage, replica: &str, device: &str) {
    let record = async || {
        let config = stage.here::<Secret>().get(&format!("{replica}-config")).await.expect("a Secret");
        config.annotations().get(DEVICE).is_some_and(|record| record.contains(&format!("\"{device}\"")))
    };
    until_async("the record", DEADLINE, record).await;
}

#[test]
fn addresses_and_name_that_a_pod_invents_are_not_shown() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        expose(&stage, "shop", "shop").await;
        let workload = SERVICE.join(&stage, "shop", "shop").await;
        let own = stage.hosted.addresses("nshop");
        let whole = json!([{"hostname": format!("shop.{DOMAIN}")}, {"ip": own[0], "ipMode": "VIP"}]);
        eventually_async("the device's own", DEADLINE, async || shown(&stage, "shop").await, |now| *now == whole).await;
        let replica = format!("{workload}-0");
        let invented = r#"["8.8.8.8","203.0.113.10","169.254.169.254","10.96.0.1"]"#;
        let reads = || stage.hosted.calls("GET /api/v2/device/nshop");
        let before = reads();
        stage.cluster.patch_secret(&replica, &[("device_ips", invented), ("device_fqdn", "mail.bank.example.")]).await;
        until_async("the device is read again", DEADLINE, async || reads() > before).await;
        SERVICE.quiet(&stage, &running, &stage.users(), "shop").await;
        assert_eq!(shown(&stage, "shop").await, whole);
        assert!(reads() <= before + 3, "a report that is not confirmed is read ever less often: {}", reads());
    });
}

#[test]
fn device_of_a_namesake_is_not_recorded_twice_nor_deleted() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        for name in ["a", "b"] {
            expose(&stage, name, "shop").await;
            let workload = SERVICE.join(&stage, name, "shop").await;
            recorded(&stage, &format!("{workload}-0"), &format!("n{name}")).await;
        }
        let [a, b] = [SERVICE.set(&stage, "a").await, SERVICE.set(&stage, "b").await].map(|set| format!("{}-0", set.name_any()));
        let minted = async || stage.hosted.calls("POST /api/v2/tailnet/-/keys");
        let before = minted().await;
        stage.cluster.patch_secret(&b, &[("device_id", "na"), ("reissue_authkey", "")]).await;
        eventually_async("another key", DEADLINE, minted, |calls| *calls > before).await;
        let keys = stage.here::<Secret>().get(&format!("{b}-config")).await.expect("a Secret");
        assert!(!keys.annotations().contains_key(DEVICE), "its own device was replaced");
        assert_eq!(stage.hosted.devices(), BTreeSet::from(["na".to_owned()]));
        // It claims the other's device with a fresh key, and is deleted.
        let patch = json!({"data": {"reissue_authkey": null}});
        let patch = kube::api::Patch::Merge(patch);
        stage.here::<Secret>().patch(&b, &kube::api::PatchParams::default(), &patch).await.expect("patched");
        let refused = async || stage.condition("b", "TailscaleProxyReady").await;
        eventually_async("a refusal", DEADLINE, refused, |reported| reported.contains("claims device na")).await;
        stage.delete(&stage.users(), "b").await;
        stage.gone(&stage.here::<StatefulSet>(), b.trim_end_matches("-0")).await;
        stage.pod_goes(&b).await;
        stage.gone(&stage.users(), "b").await;
        assert_eq!(stage.hosted.devices(), BTreeSet::from(["na".to_owned()]));
        recorded(&stage, &a, "na").await;
    });
}

#[test]
fn foreign_device_in_a_state_secret_is_not_deleted() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        stage.group("g", 2).await;
        stage.join("g", 2).await;
        stage.quiet(&running).await;
        stage.hosted.add_device("nVictim", "payroll-0");
        let calls = stage.hosted.all_calls().len();
        let minted = async || stage.hosted.calls("POST /api/v2/tailnet/-/keys");
        let before = minted().await;
        let path = "../tailnet/-/keys/k123?x=";
        for (replica, id) in [("g-0", "nVictim"), ("g-1", path)] {
            stage.cluster.patch_secret(replica, &[("device_id", id), ("reissue_authkey", "")]).await;
        }
        eventually_async("both get another key", DEADLINE, minted, |calls| *calls == before + 2).await;
        stage.delete(&stage.all::<ProxyGroup>(), "g").await;
        stage.gone(&stage.here::<StatefulSet>(), "g").await;
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        for replica in ["g-0", "g-1"] {
            stage.here::<Pod>().delete(replica, &now).await.expect("deleted");
        }
        stage.gone(&stage.all::<ProxyGroup>(), "g").await;
        assert_eq!(stage.hosted.devices(), BTreeSet::from(["nVictim".to_owned()]));
        let deleted: BTreeSet<_> = stage.hosted.all_calls().into_iter().skip(calls).filter(|call| call.starts_with("DELETE")).collect();
        let own = ["DELETE /api/v2/device/ng0", "DELETE /api/v2/device/ng1"].map(str::to_owned);
        let of_keys = |call: &&String| call.starts_with("DELETE /api/v2/tailnet/-/keys/k") && !call.ends_with("k123");
        assert_eq!(deleted.iter().filter(|call| !of_keys(call)).cloned().collect::<BTreeSet<_>>(), own.into());
    });
}
