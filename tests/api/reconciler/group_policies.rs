//! `ProxyGroupPolicies`: the Services and Ingresses that the API server accepts, drift, deletion; with the rights of config/rbac.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tailyard::api::proxygrouppolicy::ProxyGroupPolicy;

use kit::apiserver::DEADLINE;
use kit::reconciler::{Stage, USERS, stage};
use kit::wait::eventually_async;

const FLAGS: [&str; 2] = ["--proxy-group-policies", "on"];

fn policies(stage: &Stage) -> Api<ProxyGroupPolicy> {
    Api::namespaced(stage.client.clone(), USERS)
}

async fn policy(stage: &Stage, name: &str, spec: Value, limits_standalone: bool) {
    let annotations = json!({"tailyard.io/limit-standalone": limits_standalone.to_string()});
    let object = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroupPolicy",
        "metadata": {"name": name, "annotations": annotations}, "spec": spec});
    stage.apply(policies(stage), name, object).await;
}

/// Services and Ingresses without and with a `ProxyGroup`, each with a name for it.
fn objects() -> Vec<(&'static str, Value)> {
    let group = |name: &str| json!({"tailscale.com/proxy-group": name});
    let service = |annotations: Value, spec: Value| {
        let mut spec = spec;
        spec["ports"] = json!([{"port": 80}]);
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x", "annotations": annotations}, "spec": spec})
    };
    let ingress = |annotations: Value, class: &str| {
        let spec = json!({"ingressClassName": class, "defaultBackend": {"service": {"name": "x", "port": {"number": 80}}}});
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "x", "annotations": annotations}, "spec": spec})
    };
    let with = |mut annotations: Value, key: &str, value: &str| {
        annotations[key] = json!(value);
        annotations
    };
    let balanced = json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale"});
    let external = json!({"type": "ExternalName", "externalName": "x.invalid"});
    let target = |annotations: Value| service(with(annotations, "tailscale.com/tailnet-ip", "100.64.0.9"), external.clone());
    let exposed = |annotations: Value| service(with(annotations, "tailscale.com/expose", "true"), json!({}));
    vec![
        ("service", service(Value::Null, json!({}))),
        ("annotated service", service(json!({"a": "b", "tailscale.com/expose": "false"}), json!({}))),
        ("ingress", ingress(Value::Null, "other")),
        ("annotated ingress", ingress(json!({"a": "b"}), "other")),
        ("own exposed", exposed(json!({}))),
        ("own exposed, spaced", service(json!({"tailscale.com/expose": " true\n"}), json!({}))),
        ("empty target", service(json!({"tailscale.com/tailnet-fqdn": " "}), json!({}))),
        ("own balanced", service(Value::Null, balanced.clone())),
        ("own ingress", ingress(Value::Null, "tailscale")),
        ("own target", target(json!({}))),
        ("exposed by in", exposed(group("in"))),
        ("balanced by in", service(group("in"), balanced.clone())),
        ("ingress by in", ingress(group("in"), "tailscale")),
        ("ingress of another class by eg", ingress(group("eg"), "other")),
        ("balanced by eg", service(group("eg"), balanced)),
        ("target by eg", target(group("eg"))),
        ("target by in", target(group("in"))),
        ("target by none", target(group(""))),
    ]
}

/// Objects that the API server denies, in a dry run, with the messages.
async fn denials(stage: &Stage) -> Vec<(&'static str, String)> {
    let mut denied = Vec::new();
    for (what, object) in objects() {
        let resource = if object["kind"] == "Ingress" { ApiResource::erase::<Ingress>(&()) } else { ApiResource::erase::<Service>(&()) };
        let api: Api<DynamicObject> = Api::namespaced_with(stage.client.clone(), USERS, &resource);
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        match api.create(&PostParams { dry_run: true, ..PostParams::default() }, &object).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) => denied.push((what, status.message)),
            Err(error) => panic!("{what}: {error}"),
        }
    }
    denied
}

/// Waits until exactly these objects are denied; returns the message of the first.
async fn denies(stage: &Stage, wanted: &[&str]) -> String {
    let wanted: BTreeSet<_> = wanted.iter().copied().collect();
    let names = |denied: &Vec<(&'static str, String)>| denied.iter().map(|(what, _)| *what).collect::<BTreeSet<_>>();
    let denied = eventually_async(&format!("{wanted:?}"), DEADLINE, async || denials(stage).await, |denied| names(denied) == wanted).await;
    denied.into_iter().next().map_or(String::new(), |(_, message)| message)
}

#[test]
fn api_server_enforces_the_policies_of_a_namespace_and_nothing_else() {
    stage(async |stage| {
        stage.grant("proxygrouppolicies.yaml", "").await;
        let _running = stage.reconciler_with("one", 9100, &FLAGS);
        denies(&stage, &[]).await;
        let by_eg = ["ingress of another class by eg", "balanced by eg"];
        policy(&stage, "in", json!({"ingress": ["in"]}), false).await;
        let message = denies(&stage, &[&by_eg[..], &["target by eg", "target by in", "target by none"]].concat()).await;
        assert!(message.contains("\"tailscale.com/proxy-group\" must be one of [in] (ProxyGroupPolicy)"), "{message}");
        policy(&stage, "eg", json!({"egress": ["eg"]}), false).await;
        denies(&stage, &[&by_eg[..], &["target by in", "target by none"]].concat()).await;
        policy(&stage, "eg", json!({"egress": ["eg", ""]}), true).await;
        denies(&stage, &[&by_eg[..], &["target by in", "own exposed", "own exposed, spaced", "own balanced", "own ingress"]].concat())
            .await;
        policy(&stage, "own", json!({"ingress": ["", "eg"]}), false).await;
        denies(&stage, &["target by in"]).await;
        let ready = async || policies(&stage).get("own").await.expect("a policy").status.unwrap_or_default().conditions;
        let ready = eventually_async("a condition", DEADLINE, ready, |conditions| !conditions.is_empty()).await;
        assert_eq!((ready[0].type_.as_str(), ready[0].status.as_str()), ("ProxyGroupPolicyReady", "True"));
        for name in ["in", "eg", "own"] {
            stage.delete(&policies(&stage), name).await;
        }
        denies(&stage, &[]).await;
        for name in ["ts-ingress-default", "ts-egress-default"] {
            stage.gone(&stage.all::<ValidatingAdmissionPolicy>(), name).await;
            stage.gone(&stage.all::<ValidatingAdmissionPolicyBinding>(), name).await;
        }
    });
}

#[test]
fn changes_of_admission_objects_by_others_are_repaired() {
    const NAME: &str = "ts-egress-default";
    stage(async |stage| {
        stage.grant("proxygrouppolicies.yaml", "").await;
        let running = stage.reconciler_with("one", 9100, &FLAGS);
        policy(&stage, "none", json!({}), false).await;
        let all = objects().into_iter().map(|(what, _)| what).filter(|what| what.contains(" by ")).collect::<Vec<_>>();
        denies(&stage, &all).await;
        let (rules, bindings) = (stage.all::<ValidatingAdmissionPolicy>(), stage.all::<ValidatingAdmissionPolicyBinding>());
        let written = rules.get(NAME).await.expect("a policy").spec;
        stage.delete(&bindings, NAME).await;
        denies(&stage, &all).await;
        let never = json!({"spec": {"matchConditions": [{"name": "never", "expression": "false"}]}});
        for edit in [never, json!({"spec": {"failurePolicy": "Ignore"}})] {
            rules.patch(NAME, &PatchParams::default(), &Patch::Merge(edit)).await.expect("edited");
            let spec = async || rules.get(NAME).await.expect("a policy").spec;
            eventually_async("the policy is restored", DEADLINE, spec, |spec| *spec == written).await;
        }
        // The definition of the Tailscale operator has no labels.
        let labels = Patch::Merge(json!({"metadata": {"labels": null}}));
        bindings.patch(NAME, &PatchParams::default(), &labels).await.expect("edited");
        let labels = async || bindings.get(NAME).await.expect("a binding").metadata.labels.unwrap_or_default();
        eventually_async("labels", DEADLINE, labels, |labels| !labels.is_empty()).await;
        stage.group("g", 0).await;
        stage.quiet(&running).await;
    });
}

#[test]
fn object_that_is_not_permitted_any_more_can_be_deleted() {
    stage(async |stage| {
        stage.grant("proxygrouppolicies.yaml", "").await;
        let (_, mut object) = objects().into_iter().find(|(what, _)| *what == "target by in").expect("an object");
        object["metadata"]["finalizers"] = json!(["example.com/wait"]);
        stage.apply(stage.users(), "x", object).await;
        let _running = stage.reconciler_with("one", 9100, &FLAGS);
        policy(&stage, "eg", json!({"egress": ["eg"]}), false).await;
        let edit = async |patch: Value| {
            let parameters = PatchParams { dry_run: true, ..PatchParams::default() };
            stage.users().patch("x", &parameters, &Patch::Merge(patch)).await.map(drop).map_err(|error| error.to_string())
        };
        let label = || json!({"metadata": {"labels": {"a": "b"}}});
        let denied = async || edit(label()).await.is_err();
        eventually_async("an edit is denied", DEADLINE, denied, |denied| *denied).await;
        stage.delete(&stage.users(), "x").await;
        edit(label()).await.expect("an object in deletion passes");
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        stage.users().patch("x", &PatchParams::default(), &patch).await.expect("no finalizer");
        stage.gone(&stage.users(), "x").await;
    });
}

#[test]
fn group_policies_are_not_touched_by_default() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        policy(&stage, "none", json!({}), false).await;
        stage.group("g", 0).await;
        stage.quiet(&running).await;
        assert_eq!(policies(&stage).get("none").await.expect("a policy").status, None);
        denies(&stage, &[]).await;
    });
}
