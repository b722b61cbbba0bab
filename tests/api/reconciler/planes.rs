//! Control planes: wrong, late and deleted credentials, refused requests, and their effects on groups.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tailyard::api::proxyclass::ProxyClass;
use tailyard::api::proxygroup::ProxyGroup;
use tailyard::api::tailnet::Tailnet;

use kit::apiserver::DEADLINE;
use kit::hosted::CLIENT;
use kit::reconciler::stage;
use kit::wait::{eventually_async, until_async};

#[test]
fn default_credentials_are_reloaded_when_wrong_or_missing() {
    stage(async |stage| {
        stage.credential("secret", "wrong");
        let running = stage.reconciler("one", 9100);
        stage.group("g", 1).await;
        let reported = async || stage.ready("g").await;
        let refused =
            eventually_async("it is said", DEADLINE, reported, |reported| reported.contains("ProxyGroupTailnetUnavailable")).await;
        assert!(refused.contains("own control plane") && refused.contains("check ID and secret of the OAuth client"), "{refused}");
        let events = async || stage.events("g").await;
        eventually_async("and reported", DEADLINE, events, |reported| {
            reported.iter().any(|event| event.starts_with("ProxyGroupTailnetUnavailable"))
        })
        .await;
        let metric = async || running.get("/metrics").contains("tailyard_control_plane_ready{tailnet=\"_default\"} 0");
        until_async("and counted", DEADLINE, metric).await;
        stage.credential("secret", CLIENT.1);
        eventually_async("without a restart it works", DEADLINE, reported, |reported| reported.contains("ProxyGroupCreating")).await;
        assert_eq!(running.metric("tailyard_control_plane_ready{tailnet=\"_default\"}"), 1);
        stage.join("g", 1).await;
        eventually_async("ready", DEADLINE, reported, |reported| reported.starts_with("True")).await;
        stage.no_credential("secret");
        eventually_async("a file that went is said", DEADLINE, reported, |reported| {
            reported.contains("does not exist; is the Secret of the credentials mounted?")
        })
        .await;
        stage.credential("secret", CLIENT.1);
        eventually_async("and one that came", DEADLINE, reported, |reported| reported.starts_with("True")).await;
    });
}

#[test]
fn new_leader_reports_no_unqueried_control_plane() {
    stage(async |stage| {
        let first = stage.reconciler("one", 9100);
        stage.group("g", 1).await;
        stage.join("g", 1).await;
        eventually_async("ready", DEADLINE, async || stage.ready("g").await, |reported| reported.starts_with("True")).await;
        let running = stage.quiet(&first).await;
        assert!(running > 0);
        first.kill();
        let writes = stage.cluster.count("patch", "proxygroups");
        let second = stage.reconciler("two", 9101);
        second.leads(true).await;
        let ready_metric = async || second.metric("tailyard_control_plane_ready{tailnet=\"_default\"}");
        eventually_async("it has asked", DEADLINE, ready_metric, |works| *works == 1).await;
        stage.quiet(&second).await;
        assert_eq!(stage.cluster.count("patch", "proxygroups"), writes, "nothing about the group changed");
    });
}

#[test]
fn tailnet_condition_follows_its_secret_at_once() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        stage.tailnet("t").await;
        let reported = async || stage.tailnet_says("t").await;
        eventually_async("the Secret is missed", DEADLINE, reported, |reported| {
            reported.contains("InvalidSecret") && reported.contains("ts/creds")
        })
        .await;
        // With periodic reconciliation alone, each of these would take 30 or 60 s.
        let begin = std::time::Instant::now();
        for _ in 0..3 {
            stage.credentials("wrong").await;
            eventually_async("it is refused", DEADLINE, reported, |reported| reported.starts_with("False InvalidOAuth")).await;
            stage.cluster.patch_secret("creds", &[("client_secret", CLIENT.1)]).await;
            eventually_async("it works", DEADLINE, reported, |reported| reported.starts_with("True TailnetValid")).await;
            stage.cluster.delete_secret("creds").await;
            eventually_async("it is missed", DEADLINE, reported, |reported| reported.starts_with("False InvalidSecret")).await;
        }
        assert!(begin.elapsed().as_secs() < 120, "{:?}", begin.elapsed());
    });
}

#[test]
fn control_plane_refusal_is_reported_by_the_group() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        stage.hosted.deny("POST /api/v2/tailnet/-/keys", 400);
        stage.group("g", 1).await;
        eventually_async("the set", DEADLINE, async || stage.here::<StatefulSet>().get_opt("g").await.ok().flatten(), Option::is_some)
            .await;
        stage.pod("g", 0).await;
        let reported = async || stage.ready("g").await;
        let refused = eventually_async("it is said", DEADLINE, reported, |reported| reported.contains("ProxyGroupCreationFailed")).await;
        assert!(refused.contains("make an auth key") && refused.contains("not permitted"), "{refused}");
        let tries = stage.hosted.calls("POST /api/v2/tailnet/-/keys");
        let more = async || stage.hosted.calls("POST /api/v2/tailnet/-/keys");
        eventually_async("it is asked again", DEADLINE, more, |calls| *calls > tries + 2).await;
        let writes = stage.cluster.count("patch", "proxygroups");
        let tries = stage.hosted.calls("POST /api/v2/tailnet/-/keys");
        eventually_async("and again", DEADLINE, more, |calls| *calls > tries + 1).await;
        assert_eq!(stage.cluster.count("patch", "proxygroups"), writes, "said once");
        assert!(running.metric("tailyard_reconcile_errors_total{kind=\"ProxyGroup\",reason=\"Refused\"") > 0);
        stage.hosted.deny_nothing();
        stage.poke().await;
        stage.join("g", 1).await;
        eventually_async("and it is well", DEADLINE, reported, |reported| reported.starts_with("True")).await;
    });
}

#[test]
fn credentials_and_class_may_be_deleted_before_their_group() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        stage.credentials(CLIENT.1).await;
        stage.tailnet("t").await;
        let class = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass", "metadata": {"name": "c"}, "spec": {}});
        let (classes, tailnets, groups) = (stage.all::<ProxyClass>(), stage.all::<Tailnet>(), stage.all::<ProxyGroup>());
        classes.patch("c", &PatchParams::apply("user"), &Patch::Apply(&class)).await.expect("made");
        stage.group_with("g", json!({"type": "egress", "replicas": 1, "tailnet": "t", "proxyClass": "c"})).await;
        stage.join("g", 1).await;
        eventually_async("ready", DEADLINE, async || stage.ready("g").await, |reported| reported.starts_with("True")).await;
        let finalized = async || tailnets.get("t").await.ok().and_then(|tailnet| tailnet.metadata.finalizers).unwrap_or_default();
        eventually_async("it is held", DEADLINE, finalized, |finalizers| !finalizers.is_empty()).await;
        stage.delete(&classes, "c").await;
        stage.delete(&tailnets, "t").await;
        eventually_async(
            "it says for whom it stays",
            DEADLINE,
            async || stage.tailnet_says("t").await,
            |reported| reported.contains("ProxyGroups are gone"),
        )
        .await;
        stage.cluster.delete_secret("creds").await;
        eventually_async("no credentials", DEADLINE, async || stage.tailnet_says("t").await, |reported| reported.contains("InvalidSecret"))
            .await;
        stage.delete(&groups, "g").await;
        stage.gone(&stage.here::<StatefulSet>(), "g").await;
        stage.pod_goes("g-0").await;
        let reported = async || stage.ready("g").await;
        let waits = eventually_async("it says what it waits for", DEADLINE, reported, |reported| reported.contains("waits for that")).await;
        assert!(waits.contains("ProxyGroupTailnetUnavailable") && waits.contains("ts/creds"), "{waits}");
        assert!(stage.hosted.devices().contains("ng0"));
        stage.credentials(CLIENT.1).await;
        stage.gone(&groups, "g").await;
        assert!(stage.hosted.devices().is_empty());
        stage.gone(&tailnets, "t").await;
        stage.gone(&classes, "c").await;
        stage.gone(&stage.here::<Secret>(), "g-0").await;
    });
}
