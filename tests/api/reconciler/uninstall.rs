//! `tailyard uninstall`: everything is released, and users' objects stay.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::api::rbac::v1::Role;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::fmt::Debug;
use tailyard::api::proxyclass::ProxyClass;
use tailyard::api::proxygroup::ProxyGroup;
use tailyard::api::tailnet::Tailnet;

use kit::apiserver::{DEADLINE, NAMESPACE};
use kit::hosted::CLIENT;
use kit::reconciler::{Stage, stage};
use kit::wait::eventually_async;

use super::proxies::SERVICE;
use super::standalone::{put, ready, web};
use super::standalone_ingress;

/// Names of all objects of a kind, and those of them that have finalizers.
async fn names<K>(api: Api<K>) -> (Vec<String>, Vec<String>)
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let all = api.list(&ListParams::default()).await.expect("a list").items;
    let with_finalizers = all.iter().filter(|object| !object.finalizers().is_empty()).map(ResourceExt::name_any).collect();
    (all.iter().map(ResourceExt::name_any).collect(), with_finalizers)
}

/// Proxies of each kind: an egress group with a Tailnet and a class, an ingress group, a standalone Service and Ingress.
async fn serve(stage: &Stage) {
    stage.credentials(CLIENT.1).await;
    stage.tailnet("t").await;
    let class = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass", "metadata": {"name": "c"}, "spec": {}});
    stage.apply(stage.all::<ProxyClass>(), "c", class).await;
    stage.group_with("g", json!({"type": "egress", "replicas": 1, "tailnet": "t", "proxyClass": "c"})).await;
    stage.join("g", 1).await;
    stage.service("s", "g").await;
    stage.served("s", "g", 1).await;
    // As the replica that orders certificates does: with the owner of its state Secret, which is the group.
    let owners = stage.here::<Secret>().get("g-0").await.expect("a Secret").metadata.owner_references;
    let lease = json!({"metadata": {"name": "g-issuer", "ownerReferences": owners}});
    stage.here::<Lease>().create(&PostParams::default(), &serde_json::from_value(lease).expect("a Lease")).await.expect("made");

    standalone_ingress::serve(stage).await;
    stage.publisher("in", 1).await;
    stage.ingress("shared", "in", "my-app").await;
    let named = async || stage.named("in-0").await;
    eventually_async("the replica advertises it", DEADLINE, named, |names| *names == ["svc:my-app"]).await;
    stage.advertise("in", 1).await;
    let mut balanced = web();
    balanced["type"] = json!("LoadBalancer");
    balanced["loadBalancerClass"] = json!("tailscale");
    put(stage, "lb", json!({}), balanced).await;
    SERVICE.join(stage, "lb", "default-lb").await;
    ready(stage, "lb").await;
}

/// Simulates the kubelets: each Pod without a `StatefulSet` goes.
async fn pods_go(stage: &Stage) {
    for pod in names(stage.here::<Pod>()).await.0 {
        let set = pod.rsplit_once('-').expect("an ordinal").0;
        if stage.here::<StatefulSet>().get_opt(set).await.expect("an answer").is_none() {
            stage.pod_goes(&pod).await;
        }
    }
}

#[test]
fn uninstall_leaves_no_finalizer_device_secret_or_lease() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        serve(&stage).await;
        assert!(names(stage.here::<Secret>()).await.0.contains(&"tailscale-acme-accounts".to_owned()), "standalone Ingresses share it");

        // With the rights of the reconciler, as in its Pod.
        let mut command = stage.tailyard("reconciler", &["uninstall", "--timeout", "2m"]);
        let command = tokio::spawn(async move { command.output().await.expect("the binary") });
        while !command.is_finished() {
            pods_go(&stage).await;
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
        let output = command.await.expect("an end");
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("waiting for ") && text.contains("everything is released"), "{text}");

        assert_eq!((stage.hosted.devices().len(), stage.hosted.vips().len()), (0, 0));
        assert_eq!(names(stage.here::<Secret>()).await.0, ["creds"]);
        let of_chart = |name: &String| ["tailyard-failover", "tailyard-reconciler"].contains(&name.as_str());
        assert!(names(stage.here::<Lease>()).await.0.iter().all(of_chart), "those of the group are gone");
        for (kind, found) in [
            ("StatefulSet", names(stage.here::<StatefulSet>()).await.0),
            ("ConfigMap", names(stage.here::<ConfigMap>()).await.0),
            ("Service", names(stage.here::<Service>()).await.0),
            ("Role", names(stage.here::<Role>()).await.0.into_iter().filter(|name| name != "tailyard-reconciler").collect()),
        ] {
            assert_eq!(found, [""; 0], "{kind}");
        }
        let with_finalizers = [
            names(stage.all::<Service>()).await.1,
            names(stage.all::<Ingress>()).await.1,
            names(stage.all::<ProxyGroup>()).await.1,
            names(stage.all::<ProxyClass>()).await.1,
            names(stage.all::<Tailnet>()).await.1,
        ];
        assert_eq!(with_finalizers.concat(), [""; 0], "no finalizer");
        assert_eq!(names(stage.all::<ProxyGroup>()).await.0, ["g", "in"], "users' objects stay");
        let name = stage.users().get("s").await.expect("a Service").spec.and_then(|spec| spec.external_name);
        assert_eq!(name.as_deref(), Some("placeholder.invalid"));
        stage.quiet(&running).await;
        assert_eq!(names(stage.here::<StatefulSet>()).await.0, [""; 0], "nothing is created again");
    });
}

#[test]
fn cancelled_uninstall_serves_again() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        stage.ready_group().await;
        let leases: Api<Lease> = Api::namespaced(stage.client.clone(), NAMESPACE);
        let request = async |value| {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {"tailyard.io/uninstall": value}}}));
            leases.patch("tailyard-reconciler", &PatchParams::default(), &patch).await.expect("changed");
        };
        request(Some("now")).await;
        let condition = async || stage.ready("g").await;
        eventually_async("it is reported", DEADLINE, condition, |found| found.contains("uninstall")).await;
        stage.gone(&stage.here::<StatefulSet>(), "g").await;
        stage.pod_goes("g-0").await;
        stage.gone(&stage.here::<Secret>(), "g-0-config").await;
        request(None).await;
        stage.join("g", 1).await;
        eventually_async("ready again", DEADLINE, condition, |found| found.starts_with("True")).await;
    });
}
