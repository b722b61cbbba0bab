//! Compromised proxy Pods: their state Secrets cannot make the reconciler change anything at the control plane that is not theirs, and
//! give them no Secret of another workload.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::rbac::v1::Role;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tailyard::api::names::DEVICE;
use tailyard::api::proxygroup::ProxyGroup;

use kit::apiserver::{DEADLINE, NAMESPACE, read_status};
use kit::hosted::DOMAIN;
use kit::reconciler::{Stage, stage};
use kit::wait::{eventually_async, until_async};

use super::proxies::{INGRESS, SERVICE};
use super::{services, standalone, standalone_ingress};

/// Duration of hostile writes: passes follow each of them within a tenth of a second.
const ATTACK: Duration = Duration::from_secs(20);
/// Interval of hostile writes.
const PACE: Duration = Duration::from_millis(100);

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
        for (name, hostname) in [("a", "shop"), ("b", "other")] {
            expose(&stage, name, hostname).await;
            let workload = SERVICE.join(&stage, name, hostname).await;
            recorded(&stage, &format!("{workload}-0"), &format!("n{name}")).await;
        }
        let [a, b] = [SERVICE.set(&stage, "a").await, SERVICE.set(&stage, "b").await].map(|set| format!("{}-0", set.name_any()));
        // An edit takes no name of another proxy, and a Pod no device.
        let patch = json!({"metadata": {"annotations": {"tailscale.com/hostname": "shop"}}});
        stage.users().patch("b", &PatchParams::default(), &Patch::Merge(patch)).await.expect("patched");
        let refused = async || stage.condition("b", "TailscaleProxyReady").await;
        eventually_async("a refusal", DEADLINE, refused, |reported| reported.contains("Service default/a has the name shop already")).await;
        stage.cluster.patch_secret(&b, &[("device_id", "na"), ("reissue_authkey", "")]).await;
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

#[test]
fn finalizer_of_a_pod_does_not_hold_the_end_of_its_service() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        standalone::put(&stage, "hr", json!({"tailscale.com/expose": "true"}), standalone::web()).await;
        let workload = SERVICE.join(&stage, "hr", "default-hr").await;
        standalone::ready(&stage, "hr").await;
        let secrets: Api<Secret> = Api::namespaced(stage.cluster.client_of_account(&workload).await, NAMESPACE);
        let replica = format!("{workload}-0");
        let patch = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/hold"]}}));
        secrets.patch(&replica, &PatchParams::default(), &patch).await.expect("its Role has no rule about metadata");
        stage.delete(&stage.users(), "hr").await;
        stage.gone(&stage.here::<StatefulSet>(), &workload).await;
        stage.pod_goes(&replica).await;
        stage.gone(&stage.users(), "hr").await;
        assert_eq!(SERVICE.objects(&stage, "hr").await, [""; 0]);
    });
}

/// Names of the Secrets in the Role of a workload.
async fn named_secrets(stage: &Stage, workload: &str) -> BTreeSet<String> {
    let rules = stage.here::<Role>().get(workload).await.expect("a Role").rules.unwrap_or_default();
    let rules = rules.into_iter().filter(|rule| rule.resources.iter().flatten().any(|resource| resource == "secrets"));
    rules.flat_map(|rule| rule.resource_names.unwrap_or_default()).collect()
}

/// A patch that makes the state Secret of a replica look like that of an object with a proxy of its own.
fn disguise(labels: impl serde::Serialize, device: &str) -> Value {
    let mut labels = json!(labels);
    labels["tailscale.com/proxy-group"] = Value::Null;
    json!({"metadata": {"labels": labels, "ownerReferences": null}, "stringData": {"device_id": device}})
}

/// As the service account `eg`, patches the state Secret `eg-0` again and again, by turns; `look` runs after each patch.
async fn attack(stage: &Stage, secrets: &Api<Secret>, patches: &[Value], mut look: impl AsyncFnMut()) {
    let writes = async {
        let mut pace = tokio::time::interval(PACE);
        for patch in patches.iter().cycle() {
            pace.tick().await;
            secrets.patch("eg-0", &PatchParams::default(), &Patch::Merge(patch)).await.expect("it may write its state");
            look().await;
        }
    };
    assert!(tokio::time::timeout(ATTACK, writes).await.is_err());
    assert!(stage.here::<Secret>().get_opt("eg-0").await.expect("an answer").is_some(), "the state Secret is not deleted");
}

#[test]
fn labels_of_a_state_secret_move_nothing() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        services::ready(&stage, "eg").await;
        stage.publisher("in", 1).await;
        let workload = standalone_ingress::serve(&stage).await;
        standalone::put(&stage, "hr", json!({"tailscale.com/expose": "true"}), standalone::web()).await;
        SERVICE.join(&stage, "hr", "default-hr").await;
        standalone::ready(&stage, "hr").await;
        let own = named_secrets(&stage, "eg").await;
        let all = stage.here::<Secret>().list(&ListParams::default()).await.expect("a list");
        let foreign: Vec<_> = all.iter().map(ResourceExt::name_any).filter(|name| !own.contains(name)).collect();
        let certificate = format!("shop.{DOMAIN}");
        for name in [&certificate, "tailscale-acme-accounts", &format!("{workload}-0"), &format!("{workload}-0-config")] {
            assert!(foreign.iter().any(|found| found == name), "{name} in {foreign:?}");
        }
        let secrets: Api<Secret> = Api::namespaced(stage.cluster.client_of_account("eg").await, NAMESPACE);
        for name in &foreign {
            assert_eq!(read_status(&secrets, name).await, 403, "{name}, before the attack");
        }
        let group = json!({"tailscale.com/parent-resource-type": "proxygroup", "tailscale.com/parent-resource": "in",
            "tailscale.com/parent-resource-ns": null, "tailscale.com/secret-type": "certs"});
        let patches = [disguise(INGRESS.labels("app"), "neg0"), disguise(SERVICE.labels("hr"), "neg0"), disguise(group, "nin0")];
        let mut granted = BTreeSet::new();
        attack(&stage, &secrets, &patches, async || {
            for name in &foreign {
                let status = read_status(&secrets, name).await;
                if status != 403 {
                    granted.insert(format!("{status} for Secret {name}"));
                }
            }
            let named = named_secrets(&stage, "eg").await;
            granted.extend(named.difference(&own).map(|name| format!("Secret {name} in the Role")));
        })
        .await;
        assert_eq!(granted, BTreeSet::new());
        assert_eq!(named_secrets(&stage, "eg").await, own, "the replicas keep their rights");
        let (text, _) = stage.cluster.secret(&certificate).await;
        assert_eq!((text["tls.crt"].as_str(), text["tls.key"].as_str()), ("a chain", "a key"));
    });
}
