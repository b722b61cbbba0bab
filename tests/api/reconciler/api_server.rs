//! Groups of type `kube-apiserver`: rights that the API server lets the reconciler grant, and the published name.

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tailyard::api::proxygroup::ProxyGroup;

use kit::apiserver::{DEADLINE, NAMESPACE};
use kit::hosted::DOMAIN;
use kit::reconciler::{Stage, stage};
use kit::wait::{eventually_async, until_async};

const FLAGS: [&str; 4] = ["--impersonate-users", "*", "--impersonate-groups", "viewers"];
const OWN: &str = "tailyard-impersonation-kube";

/// Limits what the reconciler may impersonate, and so what it may grant.
async fn limit(stage: &Stage, users: &[&str], groups: &[&str]) {
    let api = stage.all::<ClusterRole>();
    let mut role = api.get("tailyard-reconciler-impersonation").await.expect("a role");
    for rule in role.rules.iter_mut().flatten() {
        let is_of = |name: &str| rule.resources.as_ref().is_some_and(|all| all.iter().any(|resource| resource == name));
        let names = if is_of("users") { users } else { groups };
        if is_of("users") || is_of("groups") {
            rule.resource_names = Some(names.iter().map(|name| (*name).to_owned()).collect());
        }
    }
    api.replace("tailyard-reconciler-impersonation", &PostParams::default(), &role).await.expect("changed");
}

/// Whether the account of the group's Pods may impersonate this.
async fn may(stage: &Stage, mut what: Value) -> bool {
    what["verb"] = json!("impersonate");
    let user = format!("system:serviceaccount:{NAMESPACE}:kube");
    let review: SubjectAccessReview =
        serde_json::from_value(json!({"spec": {"user": user, "resourceAttributes": what}})).expect("a review");
    let answer = stage.all::<SubjectAccessReview>().create(&PostParams::default(), &review).await.expect("an answer");
    answer.status.is_some_and(|status| status.allowed)
}

async fn url(stage: &Stage) -> Option<String> {
    stage.all::<ProxyGroup>().get_opt("kube").await.ok().flatten()?.status?.url
}

#[test]
fn group_gets_the_rights_that_it_lists_and_none_that_the_reconciler_lacks() {
    stage(async |stage| {
        stage.grant("impersonation.yaml", "").await;
        limit(&stage, &["a@example.com", "b@example.com"], &["viewers"]).await;
        let _running = stage.reconciler_with("one", 9100, &FLAGS);
        stage.group_of("kube", json!({"type": "kube-apiserver", "replicas": 1})).await;
        let reported = async || stage.ready("kube").await;
        let refused = |text: &String| text.contains("ProxyGroupCreationFailed") && text.contains("not currently held");
        let text = eventually_async("all users are refused", DEADLINE, reported, refused).await;
        assert!(text.contains("spec.tailyard.impersonation"), "{text}");
        assert!(stage.here::<StatefulSet>().get_opt("kube").await.expect("an answer").is_none(), "no Pods without rights");

        let listed = json!({"users": ["a@example.com"], "groups": ["viewers"]});
        stage.group_of("kube", json!({"type": "kube-apiserver", "replicas": 1, "tailyard": {"impersonation": listed}})).await;
        let has_pods = async || stage.here::<StatefulSet>().get_opt("kube").await.ok().flatten().is_some();
        until_async("Pods", DEADLINE, has_pods).await;
        let core = |resource: &str, name: &str| json!({"resource": resource, "name": name});
        let extra = |key: &str| json!({"group": "authentication.k8s.io", "resource": "userextras", "subresource": key, "name": "x"});
        for (what, allowed) in [
            (core("users", "a@example.com"), true),
            (core("users", "b@example.com"), false),
            (core("groups", "viewers"), true),
            (core("groups", "system:masters"), false),
            (core("serviceaccounts", "default"), false),
            (extra("tailyard.io/node"), true),
            (extra("scopes"), false),
        ] {
            assert_eq!(may(&stage, what.clone()).await, allowed, "{what}");
        }

        stage.member("kube", 0).await;
        let dns = format!("kube.{DOMAIN}");
        stage.certify(&dns).await;
        let advertised = async || {
            stage.advertise("kube", 1).await;
            url(&stage).await
        };
        let shown = eventually_async("its URL", DEADLINE, advertised, Option::is_some).await;
        assert_eq!(shown, Some(format!("https://{dns}")));
        eventually_async("ready", DEADLINE, reported, |text| text.starts_with("True")).await;
        let vip = stage.hosted.vips()["svc:kube"].clone();
        let owners = vip["annotations"]["tailscale.com/owner-references"].as_str().expect("owners");
        assert!(owners.contains(r#""resource":{"kind":"ProxyGroup","name":"kube""#), "{owners}");

        stage.group_of("kube", json!({"type": "kube-apiserver", "replicas": 1, "kubeAPIServer": {"mode": "noauth"}})).await;
        stage.gone(&stage.all::<ClusterRoleBinding>(), OWN).await;
        stage.gone(&stage.all::<ClusterRole>(), OWN).await;
    });
}

#[test]
fn group_in_mode_noauth_needs_no_right() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        stage.group_of("kube", json!({"type": "kube-apiserver", "replicas": 1, "kubeAPIServer": {"mode": "noauth"}})).await;
        stage.member("kube", 0).await;
        stage.certify(&format!("kube.{DOMAIN}")).await;
        let advertised = async || {
            stage.advertise("kube", 1).await;
            url(&stage).await
        };
        eventually_async("its URL", DEADLINE, advertised, Option::is_some).await;
        stage.group_of("kube", json!({"type": "kube-apiserver", "replicas": 1})).await;
        let reported = async || stage.ready("kube").await;
        eventually_async("mode auth is refused", DEADLINE, reported, |text| text.contains("apiServerProxyConfig.allowImpersonation")).await;
        assert_eq!(
            stage.published("kube", "tailyard-routes.json").await["svc:kube"]["apiServer"]["mode"],
            "noauth",
            "the last valid config"
        );
    });
}

/// `status reason message` of the Service that requests the operator's device.
async fn condition(stage: &Stage) -> String {
    let service = stage.here::<Service>().get_opt("tailyard-api-server").await.ok().flatten();
    let conditions = service.and_then(|service| service.status?.conditions).unwrap_or_default();
    let condition = conditions.into_iter().find(|condition| condition.type_ == "TailscaleProxyReady");
    condition.map_or(String::new(), |condition| format!("{} {} {}", condition.status, condition.reason, condition.message))
}

/// State Secret of the operator's device.
async fn state(stage: &Stage) -> Option<Secret> {
    let labelled = ListParams::default().labels("tailscale.com/parent-resource=tailyard-api-server");
    stage.here::<Secret>().list(&labelled).await.expect("Secrets").items.pop()
}

#[test]
fn operators_device_gets_the_state_of_the_tailscale_operator_once_that_is_stopped() {
    stage(async |stage| {
        let profile = json!({"Config": {"NodeID": "nOperator1CNTRL"}}).to_string();
        let state_of_theirs =
            json!({"_machinekey": "m", "_profiles": "p", "_current-profile": "profile-1", "profile-1": profile, "cert.key": "k"});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "operator"}, "stringData": state_of_theirs});
        stage.apply(stage.here::<Secret>(), "operator", secret).await;
        let labels = json!({"app": "operator"});
        let container =
            json!({"name": "operator", "image": "tailscale/k8s-operator:v1", "env": [{"name": "OPERATOR_SECRET", "value": "operator"}]});
        let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [container]}});
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "operator"},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}});
        stage.apply(stage.here::<Deployment>(), "operator", deployment).await;

        let running = stage.reconciler_with("one", 9100, &["--api-server-proxy", "noauth"]);
        let reported = async || condition(&stage).await;
        let text = eventually_async("their operator runs", DEADLINE, reported, |text| !text.is_empty()).await;
        assert!(text.starts_with("False ProxyFailed The Tailscale operator runs"), "{text}");
        assert_eq!(stage.here::<StatefulSet>().list(&ListParams::default()).await.expect("sets").items.len(), 0);
        assert!(state(&stage).await.is_none(), "nothing is written before");

        let merge = |patch: Value| (PatchParams::default(), Patch::Merge(patch));
        let (parameters, stop) = merge(json!({"spec": {"replicas": 0}}));
        stage.here::<Deployment>().patch("operator", &parameters, &stop).await.expect("stopped");
        let (parameters, again) = merge(json!({"metadata": {"annotations": {"example.com/again": "1"}}}));
        stage.here::<Service>().patch("tailyard-api-server", &parameters, &again).await.expect("a pass");
        let filled = async || state(&stage).await.filter(|secret| secret.data.as_ref().is_some_and(|data| data.contains_key("device_id")));
        let secret = eventually_async("its state", DEADLINE, filled, Option::is_some).await.expect("a Secret");
        let data = secret.data.as_ref().expect("data");
        assert_eq!(data["device_id"].0, b"nOperator1CNTRL");
        assert!(data.contains_key("_machinekey") && data.contains_key("profile-1") && !data.contains_key("cert.key"), "{:?}", data.keys());
        let set = secret.name_any().trim_end_matches("-0").to_owned();
        let has_set = async || stage.here::<StatefulSet>().get_opt(&set).await.ok().flatten().is_some();
        until_async("its Pods", DEADLINE, has_set).await;
        assert!(stage.here::<Secret>().get("operator").await.expect("their Secret").data.expect("data").contains_key("cert.key"));

        drop(running);
        let _running = stage.reconciler("two", 9101);
        stage.gone(&stage.here::<Service>(), "tailyard-api-server").await;
        stage.gone(&stage.here::<StatefulSet>(), &set).await;
    });
}

#[test]
fn right_to_impersonate_ends_with_the_mode_of_the_operators_device_that_needs_it() {
    for mode in ["noauth", "false"] {
        stage(async |stage| {
            stage.grant("impersonation.yaml", "").await;
            let running = stage.reconciler_with("one", 9100, &[&FLAGS[..], &["--api-server-proxy", "true"]].concat());
            let labelled = ListParams::default().labels("tailscale.com/parent-resource=tailyard-api-server");
            let rights = async || {
                let roles = stage.all::<ClusterRole>().list(&labelled).await.expect("roles").items.len();
                roles + stage.all::<ClusterRoleBinding>().list(&labelled).await.expect("bindings").items.len()
            };
            eventually_async("a role and its binding", DEADLINE, &rights, |count| *count == 2).await;
            drop(running);
            // As the chart does in these modes.
            let name = "tailyard-reconciler-impersonation";
            stage.all::<ClusterRoleBinding>().delete(name, &DeleteParams::default()).await.expect("deleted");
            stage.all::<ClusterRole>().delete(name, &DeleteParams::default()).await.expect("deleted");
            let _running = stage.reconciler_with("two", 9101, &["--api-server-proxy", mode]);
            eventually_async(mode, DEADLINE, &rights, |count| *count == 0).await;
        });
    }
}
