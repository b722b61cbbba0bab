//! Users' Services: creation, moves, and deletion of the objects in any order.

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tailyard::api::proxygroup::ProxyGroup;

use kit::apiserver::DEADLINE;
use kit::reconciler::{Running, Stage, USERS, stage};
use kit::wait::{eventually_async, until_async};

/// Creates a group with two replicas in the tailnet.
pub(super) async fn ready(stage: &Stage, group: &str) {
    stage.group(group, 2).await;
    stage.join(group, 2).await;
    eventually_async("ready", DEADLINE, async || stage.ready(group).await, |reported| reported.starts_with("True")).await;
}

async fn start(stage: &Stage) -> Running {
    let running = stage.reconciler("one", 9100);
    ready(stage, "g").await;
    running
}

/// Plays the kubelet: removes the terminating Pods.
async fn pods_go(stage: &Stage, group: &str) {
    for ordinal in 0..2 {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        stage.here::<Pod>().delete(&format!("{group}-{ordinal}"), &now).await.expect("the Pod goes");
    }
}

#[test]
fn external_name_is_set_when_every_replica_serves() {
    stage(async |stage| {
        let _running = start(&stage).await;
        stage.service("s", "g").await;
        eventually_async("a child", DEADLINE, async || stage.child("s").await, |child| child.len() == 1).await;
        assert_eq!(stage.external_name("s").await, "placeholder.invalid", "no replica holds it yet");
        stage.served("s", "g", 2).await;
        let child = stage.child("s").await.remove(0).0;
        assert_eq!(stage.external_name("s").await, format!("{child}.ts.svc.cluster.local"));
        stage.delete(&stage.here::<Service>(), &child).await;
        eventually_async(
            "a child that was deleted is back",
            DEADLINE,
            async || stage.child("s").await,
            |found| found.len() == 1 && found[0].0 == child,
        )
        .await;
    });
}

#[test]
fn moved_service_is_served_by_the_old_group_until_the_new_one_is_ready() {
    stage(async |stage| {
        let _running = start(&stage).await;
        ready(&stage, "gg").await;
        stage.service("s", "g").await;
        stage.served("s", "g", 2).await;
        let old = stage.external_name("s").await;
        stage.service("s", "gg").await;
        eventually_async("both serve it", DEADLINE, async || stage.child("s").await, |child| child.len() == 2).await;
        assert_eq!(stage.external_name("s").await, old, "the new group does not hold it yet");
        stage.served("s", "gg", 2).await;
        assert_ne!(stage.external_name("s").await, old, "it points to the new group");
    });
}

#[test]
fn service_deleted_before_its_group_leaves_nothing() {
    stage(async |stage| {
        let running = start(&stage).await;
        stage.service("s", "g").await;
        stage.served("s", "g", 2).await;
        assert!(stage.egress_config("g").await["default-s"].is_object(), "its entry");
        stage.delete(&stage.users(), "s").await;
        stage.gone(&stage.users(), "s").await;
        eventually_async("its child goes", DEADLINE, async || stage.child("s").await, Vec::is_empty).await;
        stage.quiet(&running).await;
        assert_eq!(stage.egress_config("g").await, json!({}), "no entry");
    });
}

#[test]
fn group_deleted_before_its_services_blocks_nothing() {
    stage(async |stage| {
        let _running = start(&stage).await;
        stage.service("s", "g").await;
        stage.served("s", "g", 2).await;
        stage.delete(&stage.all::<ProxyGroup>(), "g").await;
        pods_go(&stage, "g").await;
        stage.gone(&stage.all::<ProxyGroup>(), "g").await;
        let reported = async || stage.condition("s", "TailscaleEgressSvcValid").await;
        eventually_async("it is said", DEADLINE, reported, |reported| {
            reported.starts_with("Unknown ProxyGroupNotReady") && reported.contains("does not exist")
        })
        .await;
        assert_eq!(stage.external_name("s").await, "placeholder.invalid", "restored with the report");
        stage.delete(&stage.users(), "s").await;
        stage.gone(&stage.users(), "s").await;
        eventually_async("its child goes", DEADLINE, async || stage.child("s").await, Vec::is_empty).await;
    });
}

#[test]
fn service_without_annotations_is_released() {
    stage(async |stage| {
        let _running = start(&stage).await;
        stage.service("s", "g").await;
        stage.served("s", "g", 2).await;
        let none = json!({"metadata": {"annotations": {"tailscale.com/proxy-group": null, "tailscale.com/tailnet-ip": null}}});
        stage.users().patch("s", &PatchParams::default(), &Patch::Merge(none)).await.expect("changed");
        eventually_async("its child goes", DEADLINE, async || stage.child("s").await, Vec::is_empty).await;
        let finalizers = async || stage.users().get("s").await.ok().and_then(|service| service.metadata.finalizers).unwrap_or_default();
        eventually_async("nothing keeps it", DEADLINE, finalizers, Vec::is_empty).await;
        assert_eq!(stage.external_name("s").await, "placeholder.invalid");
    });
}

#[test]
fn concurrent_writers_do_not_block_a_service() {
    stage(async |stage| {
        let _running = start(&stage).await;
        let api = stage.users();
        stage.service("s", "g").await;
        let storm = async {
            let mut pace = tokio::time::interval(std::time::Duration::from_millis(20));
            loop {
                pace.tick().await;
                let patch = Patch::Merge(json!({"metadata": {"annotations": {"storm": fastrand::u64(..).to_string()}}}));
                api.patch("s", &PatchParams::default(), &patch).await.expect("changed");
            }
        };
        tokio::select! {
            () = stage.served("s", "g", 2) => {}
            () = storm => {}
        }
    });
}

#[test]
fn finalizers_of_others_survive_each_write_beside_theirs() {
    stage(async |stage| {
        let _running = start(&stage).await;
        let api = stage.users();
        stage.service("s", "g").await;
        stage.served("s", "g", 2).await;
        let names: Vec<String> = (0..20).map(|number| format!("theirs.example/{number}")).collect();
        let add = async {
            for name in &names {
                let patch = Patch::Strategic(json!({"metadata": {"finalizers": [name], "annotations": {"storm": name}}}));
                api.patch("s", &PatchParams::default(), &patch).await.expect("added");
                tokio::time::sleep(std::time::Duration::from_millis(15)).await;
            }
        };
        let release = async {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            let none = json!({"metadata": {"annotations": {"tailscale.com/proxy-group": null, "tailscale.com/tailnet-ip": null}}});
            api.patch("s", &PatchParams::default(), &Patch::Merge(none)).await.expect("changed");
        };
        tokio::join!(add, release);
        let finalizers = async || api.get("s").await.expect("a Service").metadata.finalizers.unwrap_or_default();
        let is_ours = |name: &String| !name.starts_with("theirs.example/");
        eventually_async("ours is gone", DEADLINE, finalizers, |found| !found.iter().any(is_ours)).await;
        assert_eq!(finalizers().await.len(), names.len(), "{:?}", finalizers().await);
        assert_eq!(stage.external_name("s").await, "placeholder.invalid");
        api.patch("s", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"finalizers": null}}))).await.expect("changed");
    });
}

#[test]
fn namespaced_roles_are_sufficient() {
    stage(async |stage| {
        let bindings = stage.all::<ClusterRoleBinding>();
        stage.delete(&bindings, "tailyard-reconciler-services").await;
        stage.grant("watched.yaml", USERS).await;
        let _running = stage.reconciler_with("one", 9100, &["--watch-namespaces", USERS]);
        ready(&stage, "g").await;
        stage.service("s", "g").await;
        stage.served("s", "g", 2).await;
    });
}

#[test]
fn admission_refusal_of_one_service_blocks_no_other() {
    stage(async |stage| {
        let running = start(&stage).await;
        let rules =
            json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["services", "services/status"]}]);
        let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "p"},
            "spec": {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": rules},
                "validations": [{"expression": "!object.metadata.name.startsWith('bad')", "message": "it is not to be touched"}]}});
        let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": "p"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
        let all = PatchParams::apply("test");
        stage.all::<ValidatingAdmissionPolicy>().patch("p", &all, &Patch::Apply(policy)).await.expect("a policy");
        stage.all::<ValidatingAdmissionPolicyBinding>().patch("p", &all, &Patch::Apply(binding)).await.expect("in force");
        stage.service("bad-one", "none").await;
        let patch = Patch::Merge(json!({"metadata": {"labels": {"any": "thing"}}}));
        let denied = async || stage.users().patch("bad-one", &PatchParams::default(), &patch).await.is_err();
        until_async("the policy holds", DEADLINE, denied).await;
        stage.service("bad", "g").await;
        stage.service("good", "g").await;
        stage.served("good", "g", 2).await;
        let refused = async || running.metric("tailyard_reconcile_errors_total{kind=\"ProxyGroup\",reason=\"Invalid\"");
        eventually_async("it is counted", DEADLINE, refused, |count| *count > 0).await;
        let reported = async || stage.events("bad").await;
        eventually_async("it is said", DEADLINE, reported, |reported| {
            reported.iter().any(|event| event.contains("it is not to be touched"))
        })
        .await;
        assert!(stage.ready("g").await.starts_with("True"), "the group is well");
    });
}
