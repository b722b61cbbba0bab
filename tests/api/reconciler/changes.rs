//! Changes of existing objects: unchanged fields persist, drift is repaired, unwanted objects are deleted.

use std::time::{Duration, Instant};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tailyard::api::proxygroup::ProxyGroup;

use crate::reconciler::lacking::{node_port, static_endpoints};
use kit::apiserver::DEADLINE;
use kit::reconciler::stage;
use kit::wait::eventually_async;

/// Number of edits; each reaches the config within a second on average.
const EDITS: u32 = 20;

#[test]
fn match_ports_survive_service_and_reconciler_changes() {
    stage(async |stage| {
        let first = stage.reconciler("one", 9100);
        stage.ready_group().await;
        stage.service("other", "g").await;
        stage.service("s", "g").await;
        stage.served("s", "g", 1).await;
        let before = stage.port("default-s", 80).await.0.expect("a port");
        let other = stage.port("default-other", 80).await.0;
        let change = json!({"metadata": {"annotations": {"tailscale.com/tailnet-ip": "100.64.0.10"}}, "spec": {"ports": [
            {"name": "health", "port": 9002, "protocol": "TCP"}, {"name": "tls", "port": 443, "protocol": "TCP"},
            {"name": "web", "port": 80, "protocol": "TCP"}]}});
        stage.users().patch("s", &PatchParams::default(), &Patch::Merge(change)).await.expect("changed");
        let look = async || (stage.port("default-s", 443).await, stage.port("default-s", 9002).await.0);
        let ((tls, target), health) =
            eventually_async("both are added", DEADLINE, look, |((tls, _), health)| tls.is_some() && health.is_some()).await;
        assert!(target.contains("100.64.0.10"), "{target}");
        assert_eq!(stage.port("default-s", 80).await.0, Some(before), "what stays keeps its port");
        assert!(tls != Some(before) && health != Some(before) && tls != other && health != other && tls != health);
        let name = stage.child("s").await.remove(0).0;
        let child = stage.here::<Service>().get(&name).await.expect("a child");
        let ports = json!(child.spec.and_then(|spec| spec.ports));
        let checked = ports.as_array().into_iter().flatten().find(|port| port["name"] == "tailscale-health-check").cloned();
        let checked = checked.expect("a port for the health check");
        assert_eq!((&checked["port"], &checked["targetPort"]), (&json!(9003), &json!(9002)), "9002 is the user's now");
        stage.served("s", "g", 1).await;
        let (ports, entries) = (ports, stage.egress_config("g").await);
        first.kill();
        let second = stage.reconciler("two", 9101);
        second.leads(true).await;
        stage.quiet(&second).await;
        assert_eq!(stage.egress_config("g").await, entries, "the next leader writes the same");
        let child = stage.here::<Service>().get(&name).await.expect("a child");
        assert_eq!(json!(child.spec.and_then(|spec| spec.ports)), ports);
    });
}

#[test]
fn edited_target_is_in_the_config_within_a_second() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        stage.ready_group().await;
        stage.service("s", "g").await;
        stage.served("s", "g", 1).await;
        let begin = Instant::now();
        for number in 0..EDITS {
            let target = format!("100.64.0.{}", 10 + number);
            let patch = Patch::Merge(json!({"metadata": {"annotations": {"tailscale.com/tailnet-ip": target}}}));
            stage.users().patch("s", &PatchParams::default(), &patch).await.expect("changed");
            let written = |config: &serde_json::Map<String, serde_json::Value>| config["default-s"]["tailnetTarget"]["ip"] == target;
            eventually_async("the target is written", DEADLINE, async || stage.config("g").await, written).await;
        }
        println!("{EDITS} edits took {:?}", begin.elapsed());
        assert!(begin.elapsed() < Duration::from_secs(1) * EDITS, "{:?}", begin.elapsed());
    });
}

#[test]
fn lost_config_entry_is_restored() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        stage.ready_group().await;
        stage.service("s", "g").await;
        stage.served("s", "g", 1).await;
        let entries = stage.egress_config("g").await;
        let api = stage.here::<ConfigMap>();
        let empty = json!({"binaryData": {"egress-services": ByteString(b"{}".to_vec())}});
        api.patch("g-egress-config", &PatchParams::default(), &Patch::Merge(empty)).await.expect("changed");
        eventually_async("the entry is back as it was", DEADLINE, async || stage.egress_config("g").await, |now| *now == entries).await;
        let gone = json!({"binaryData": {"egress-services": null}});
        api.patch("g-egress-config", &PatchParams::default(), &Patch::Merge(gone)).await.expect("changed");
        eventually_async("and the key", DEADLINE, async || stage.egress_config("g").await, |now| *now == entries).await;
        assert!(stage.condition("s", "TailscaleEgressSvcReady").await.starts_with("True"), "the Service noticed nothing");
    });
}

#[test]
fn ambiguous_service_names_have_separate_entries() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        stage.ready_group().await;
        for (namespace, name, target) in [("a-b", "c", "100.64.0.1"), ("a", "b-c", "100.64.0.2")] {
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
            stage.all::<Namespace>().patch(namespace, &PatchParams::apply("test"), &Patch::Apply(&object)).await.expect("a namespace");
            let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name,
                "annotations": {"tailscale.com/proxy-group": "g", "tailscale.com/tailnet-ip": target}},
                "spec": {"type": "ExternalName", "externalName": "placeholder.invalid", "ports": [{"name": "web", "port": 80}]}});
            let api = Api::<Service>::namespaced(stage.client.clone(), namespace);
            api.patch(name, &PatchParams::apply("user"), &Patch::Apply(&object)).await.expect("made");
        }
        let entries = async || stage.egress_config("g").await.as_object().cloned().unwrap_or_default();
        let entries = eventually_async("two entries", DEADLINE, entries, |entries| entries.len() == 2).await;
        let of = |what: &str| entries.values().map(|entry| entry.pointer(what).cloned().unwrap_or_default()).collect::<Vec<_>>();
        let (ports, targets) = (of("/ports/0/matchPort"), of("/tailnetTarget/ip"));
        assert_ne!(ports[0], ports[1]);
        assert_ne!(targets[0], targets[1]);
    });
}

#[test]
fn unused_static_endpoints_are_removed() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        static_endpoints(&stage, json!([{"port": 31000, "endPort": 31010}])).await;
        eventually_async("a Service", DEADLINE, async || node_port(&stage).await, |port| *port == Some(31000)).await;
        let none = Patch::Merge(json!({"spec": {"proxyClass": null}}));
        stage.all::<ProxyGroup>().patch("g", &PatchParams::default(), &none).await.expect("changed");
        stage.gone(&stage.here::<Service>(), "g-0-nodeport").await;
        let config = async || stage.cluster.secret("g-0-config").await.0.into_values().collect::<String>();
        eventually_async("nothing is advertised", DEADLINE, config, |config| !config.contains("StaticEndpoints")).await;
    });
}

#[test]
fn failed_auth_key_is_replaced_once_across_leaders() {
    stage(async |stage| {
        let first = stage.reconciler("one", 9100);
        stage.ready_group().await;
        stage.quiet(&first).await;
        let before = stage.hosted.calls("POST /api/v2/tailnet/-/keys");
        stage.cluster.patch_secret("g-0", &[("reissue_authkey", "")]).await;
        let minted = async || stage.hosted.calls("POST /api/v2/tailnet/-/keys");
        eventually_async("another one is made", DEADLINE, minted, |calls| *calls == before + 1).await;
        let config = async || stage.cluster.secret("g-0-config").await.0.into_values().collect::<String>();
        eventually_async("it is where the replica finds it", DEADLINE, config, |config| config.contains("AuthKey")).await;
        assert!(!stage.hosted.devices().contains("ng0"), "the device that cannot log in is gone");
        first.kill();
        let second = stage.reconciler("two", 9101);
        second.leads(true).await;
        stage.quiet(&second).await;
        assert_eq!(minted().await, before + 1, "the replica has not looked yet; the next leader sees that it was helped");
        let secret_data = stage.here::<Secret>().get("g-0").await.expect("a Secret").data.unwrap_or_default();
        assert!(secret_data.contains_key("reissue_authkey"), "only the replica takes its wish back");
    });
}
