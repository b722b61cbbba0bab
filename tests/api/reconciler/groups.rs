//! Objects of a group, from its creation to its deletion.

use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tailyard::api::proxyclass::ProxyClass;
use tailyard::api::proxygroup::ProxyGroup;
use tailyard::api::tailnet::Tailnet;

use kit::apiserver::DEADLINE;
use kit::reconciler::{Stage, stage};
use kit::wait::{eventually_async, until_async};

const WHOLE: [&str; 10] = [
    "ServiceAccount g",
    "Role g",
    "RoleBinding g",
    "Secret g-0",
    "Secret g-0-config",
    "Secret g-1",
    "Secret g-1-config",
    "ConfigMap g-egress-config",
    "PodDisruptionBudget g",
    "StatefulSet g",
];

async fn whole(stage: &Stage) {
    eventually_async("the group is whole", DEADLINE, async || stage.objects("g").await, |objects| objects == &WHOLE).await;
}

#[test]
fn group_is_created_repaired_and_then_idle() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        stage.group("g", 2).await;
        whole(&stage).await;
        stage.join("g", 2).await;
        eventually_async("ready", DEADLINE, async || stage.ready("g").await, |reported| reported.starts_with("True ProxyGroupReady")).await;
        // Ten groups accumulate reconciliations ten times as fast as one.
        let idle = (0..9).map(|ordinal| format!("idle{ordinal}"));
        for group in idle.clone() {
            stage.group(&group, 0).await;
        }
        for group in idle {
            eventually_async("judged", DEADLINE, async || stage.ready(&group).await, |reported| !reported.is_empty()).await;
        }
        let begin = stage.quiet(&running).await;
        let writes = stage.cluster.writes();
        let looks = async || {
            stage.poke().await;
            running.looks()
        };
        eventually_async("500 reconciliations", DEADLINE, looks, |looks| *looks >= begin + 500).await;
        assert_eq!(stage.cluster.writes(), writes, "nothing changed, so nothing is written");
        delete_objects(&stage, "g").await;
        drift(&stage).await;
    });
}

/// Time limit for the recreation of deleted objects: the goal is less than a second; a busy machine needs more.
const BACK: Duration = Duration::from_secs(10);

/// Deletes every object of a group and waits until they are recreated.
pub(super) async fn delete_objects(stage: &Stage, group: &str) {
    let deleted = stage.delete_objects(group).await;
    let begin = Instant::now();
    eventually_async("all of it is back", DEADLINE, async || stage.objects(group).await, |objects| *objects == deleted).await;
    let took = begin.elapsed();
    println!("{} objects are back after {took:?}", deleted.len());
    assert!(took < BACK, "{took:?}");
}

/// Changes an object as another client; the reconciler reverts the change.
async fn drift(stage: &Stage) {
    let drifted = Patch::Merge(json!({"spec": {"maxUnavailable": 2}}));
    stage.here::<PodDisruptionBudget>().patch("g", &PatchParams::default(), &drifted).await.expect("changed");
    let look = async || stage.here::<PodDisruptionBudget>().get("g").await.map(|budget| json!(budget.spec)["maxUnavailable"].clone()).ok();
    eventually_async("a change by others is undone", DEADLINE, look, |most| *most == Some(json!(1))).await;
}

#[test]
fn auth_keys_are_minted_for_existing_pods_and_scale_down_is_ordered() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        stage.group("g", 2).await;
        whole(&stage).await;
        assert_eq!(stage.hosted.calls("POST /api/v2/tailnet/-/keys"), 0, "no replica needs a key yet");
        stage.pod("g", 0).await;
        let key = async || String::from_utf8_lossy(&config(&stage, "g-0-config").await).contains("AuthKey");
        until_async("a key for the Pod that is there", DEADLINE, key).await;
        stage.join("g", 2).await;
        eventually_async("the key goes when it was used", DEADLINE, key, |there| !there).await;
        stage.group("g", 1).await;
        let set = async || stage.here::<StatefulSet>().get("g").await.ok().and_then(|set| set.spec).and_then(|spec| spec.replicas);
        eventually_async("fewer are asked for", DEADLINE, set, |replicas| *replicas == Some(1)).await;
        assert!(stage.hosted.devices().contains("ng1"), "its Pod is still there");
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        stage.here::<Pod>().delete("g-1", &now).await.expect("the Pod goes");
        eventually_async("its device goes", DEADLINE, async || stage.hosted.devices().contains("ng1"), |there| !there).await;
        stage.gone(&stage.here::<Secret>(), "g-1").await;
        stage.gone(&stage.here::<Secret>(), "g-1-config").await;
        assert!(stage.hosted.devices().contains("ng0"));
        stage.delete(&stage.all::<ProxyGroup>(), "g").await;
        stage.gone(&stage.here::<StatefulSet>(), "g").await;
        stage.here::<Pod>().delete("g-0", &now).await.expect("the Pod goes");
        stage.gone(&stage.all::<ProxyGroup>(), "g").await;
        assert!(stage.hosted.devices().is_empty());
    });
}

async fn config(stage: &Stage, name: &str) -> Vec<u8> {
    let secret = stage.here::<Secret>().get_opt(name).await.ok().flatten();
    let data = secret.and_then(|secret| secret.data).unwrap_or_default();
    data.into_values().next().map(|value| value.0).unwrap_or_default()
}

#[test]
fn foreign_object_is_not_overwritten() {
    stage(async |stage| {
        let api: Api<ServiceAccount> = stage.here();
        let object = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "g", "labels": {"mine": "yes"}}});
        api.patch("g", &PatchParams::apply("somebody"), &Patch::Apply(&object)).await.expect("made");
        let _running = stage.reconciler("one", 9100);
        stage.group("g", 1).await;
        let reported = async || stage.ready("g").await;
        eventually_async("it is said", DEADLINE, reported, |reported| reported.contains("ServiceAccount ts/g already exists")).await;
        let current = api.get("g").await.expect("there");
        assert_eq!((current.labels().len(), current.owner_references().len()), (1, 0), "{current:?}");
        stage.delete(&api, "g").await;
        eventually_async(
            "with the way free it is made",
            DEADLINE,
            async || stage.objects("g").await,
            |objects| objects.contains(&"ServiceAccount g".to_owned()),
        )
        .await;
    });
}

#[test]
fn classes_and_tailnets_get_conditions() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        let class = |labels: serde_json::Value| json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass", "metadata": {"name": "c"}, "spec": {"statefulSet": {"labels": labels}}});
        let apply = PatchParams::apply("user").force();
        let classes = stage.all::<ProxyClass>();
        classes.patch("c", &apply, &Patch::Apply(class(json!({"-bad": "x"})))).await.expect("made");
        let reported = async || json!(classes.get("c").await.ok().and_then(|class| class.status)).to_string();
        eventually_async("what is wrong is said", DEADLINE, reported, |reported| {
            reported.contains("ProxyClassInvalid") && reported.contains("no valid key")
        })
        .await;
        classes.patch("c", &apply, &Patch::Apply(class(json!({"good": "x"})))).await.expect("changed");
        eventually_async("it is valid", DEADLINE, reported, |reported| reported.contains("ProxyClassValid")).await;

        let object = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "Tailnet", "metadata": {"name": "t"},
            "spec": {"loginUrl": stage.hosted.url(), "credentials": {"secretName": "creds"}}});
        let tailnets = stage.all::<Tailnet>();
        tailnets.patch("t", &apply, &Patch::Apply(&object)).await.expect("made");
        let reported = async || json!(tailnets.get("t").await.ok().and_then(|tailnet| tailnet.status)).to_string();
        eventually_async("the Secret is missed", DEADLINE, reported, |reported| {
            reported.contains("InvalidSecret") && reported.contains("ts/creds")
        })
        .await;
        let (id, secret) = kit::hosted::CLIENT;
        stage.cluster.make_secret("creds", &[("client_id", id), ("client_secret", secret)]).await;
        let nudge = Patch::Merge(json!({"metadata": {"annotations": {"look": "again"}}}));
        tailnets.patch("t", &PatchParams::default(), &nudge).await.expect("changed");
        eventually_async("it works", DEADLINE, reported, |reported| reported.contains("TailnetValid")).await;
        stage.delete(&classes, "c").await;
        stage.gone(&classes, "c").await;
        stage.delete(&tailnets, "t").await;
        stage.gone(&tailnets, "t").await;
    });
}
