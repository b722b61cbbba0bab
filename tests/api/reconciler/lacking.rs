//! Missing prerequisites of the reconciler: definitions, permissions, a free port, a name.

use k8s_openapi::api::core::v1::{Namespace, Node, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, Role};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tailyard::api::proxyclass::ProxyClass;
use tailyard::api::proxygroup::ProxyGroup;

use kit::apiserver::{DEADLINE, NAMESPACE};
use kit::reconciler::{Stage, USERS, bare, stage};
use kit::wait::eventually_async;

#[test]
fn definitions_may_be_installed_after_the_reconciler() {
    bare(async |stage| {
        let running = stage.reconciler("one", 9100);
        let log = async || running.log();
        eventually_async("it is said", DEADLINE, log, |log| log.contains("ProxyGroup of tailscale.com/v1alpha1 is not installed")).await;
        eventually_async("and what to do", DEADLINE, log, |log| log.contains("tailyard crd | kubectl apply")).await;
        let page = async || running.get("/readyz");
        eventually_async("it is not ready", DEADLINE, page, |page| {
            page.contains("503") && page.contains("no complete list of ProxyGroup yet")
        })
        .await;
        stage.define_all().await;
        stage.group("g", 1).await;
        stage.join("g", 1).await;
        eventually_async("it goes on by itself", DEADLINE, async || stage.ready("g").await, |reported| reported.starts_with("True")).await;
        eventually_async("ready", DEADLINE, page, |page| page.contains("200 OK")).await;
        let class = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass", "metadata": {"name": "c"}, "spec": {}});
        let classes = stage.all::<ProxyClass>();
        classes.patch("c", &PatchParams::apply("user"), &Patch::Apply(&class)).await.expect("made");
        let reported = async || json!(classes.get("c").await.ok().and_then(|class| class.status)).to_string();
        eventually_async("classes too", DEADLINE, reported, |reported| reported.contains("ProxyClassValid")).await;
    });
}

/// Removes the rules for a resource from the reconciler's Role; returns the original Role.
async fn without(stage: &Stage, resource: &str) -> Role {
    let api = stage.here::<Role>();
    let whole = api.get("tailyard-reconciler").await.expect("a Role");
    let mut less = whole.clone();
    let rules = less.rules.as_mut().expect("rules");
    rules.retain(|rule| rule.resources.as_ref().is_none_or(|names| names.iter().all(|name| name != resource)));
    api.replace("tailyard-reconciler", &PostParams::default(), &less).await.expect("changed");
    whole
}

#[test]
fn missing_permission_is_named_and_affects_one_group() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        stage.group("g", 1).await;
        stage.join("g", 1).await;
        eventually_async("ready", DEADLINE, async || stage.ready("g").await, |reported| reported.starts_with("True")).await;
        let whole = without(&stage, "poddisruptionbudgets").await;
        stage.group("late", 1).await;
        let reported = async || stage.ready("late").await;
        let refused = eventually_async("it is said", DEADLINE, reported, |reported| reported.contains("ProxyGroupCreationFailed")).await;
        let rule = r#"{apiGroups: ["policy"], resources: ["poddisruptionbudgets"]"#;
        assert!(refused.contains(rule), "{refused}");
        let events = async || stage.events("late").await;
        eventually_async("and reported", DEADLINE, events, |reported| reported.iter().any(|event| event.contains(rule))).await;
        eventually_async("and logged", DEADLINE, async || running.log(), |log| log.contains("add the rule")).await;
        assert!(running.metric("tailyard_reconcile_errors_total{kind=\"ProxyGroup\",reason=\"Forbidden\"") > 0, "and counted");
        stage.service("s", "g").await;
        stage.served("s", "g", 1).await;
        let api = stage.here::<Role>();
        let mut less = api.get("tailyard-reconciler").await.expect("a Role");
        less.rules = whole.rules;
        api.replace("tailyard-reconciler", &PostParams::default(), &less).await.expect("changed");
        let made = async || stage.here::<PodDisruptionBudget>().get_opt("late").await.ok().flatten();
        eventually_async("with the rule it is made", DEADLINE, made, Option::is_some).await;
        stage.join("late", 1).await;
        eventually_async("and well", DEADLINE, reported, |reported| reported.starts_with("True")).await;
    });
}

#[test]
fn forbidden_token_request_is_reported_by_the_tailnet() {
    stage(async |stage| {
        let _whole = without(&stage, "serviceaccounts/token").await;
        let _running = stage.reconciler("one", 9100);
        stage.cluster.make_secret("creds", &[("client_id", "c"), ("audience", "a")]).await;
        stage.tailnet("t").await;
        let reported = async || stage.tailnet_says("t").await;
        let rule = r#"resources: ["serviceaccounts/token"], resourceNames: ["tailyard-reconciler"], verbs: ["create"]"#;
        eventually_async("it is said", DEADLINE, reported, |reported| {
            reported.starts_with("False InvalidOAuth") && reported.contains(rule)
        })
        .await;
    });
}

#[test]
fn forbidden_events_do_not_block_reconciliation() {
    stage(async |stage| {
        let watched = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "watched"}});
        stage.all::<Namespace>().patch("watched", &PatchParams::apply("test"), &Patch::Apply(&watched)).await.expect("a namespace");
        stage.delete(&stage.all::<ClusterRoleBinding>(), "tailyard-reconciler-services").await;
        stage.grant("watched.yaml", "watched").await;
        let running = stage.reconciler_with("one", 9100, &["--watch-namespaces", "watched"]);
        // A conflicting object of another manager is reported by an Event of the group. The Event belongs in a namespace that the
        // reconciler may not write.
        let foreign = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "g"}});
        stage.here::<ServiceAccount>().patch("g", &PatchParams::apply("somebody"), &Patch::Apply(&foreign)).await.expect("made");
        stage.group("g", 1).await;
        let reported = async || stage.ready("g").await;
        eventually_async("the condition says it", DEADLINE, reported, |reported| reported.contains("ServiceAccount ts/g already exists"))
            .await;
        let log = async || running.log();
        eventually_async("what is missing is logged", DEADLINE, log, |log| {
            log.contains("cannot write an Event") && log.contains("events.k8s.io")
        })
        .await;
        stage.delete(&stage.here::<ServiceAccount>(), "g").await;
        stage.join("g", 1).await;
        eventually_async("the group is made", DEADLINE, reported, |reported| reported.starts_with("True")).await;
        stage.credential("secret", "wrong");
        eventually_async("another reason in the condition", DEADLINE, reported, |reported| {
            reported.contains("ProxyGroupTailnetUnavailable")
        })
        .await;
        assert_eq!(running.log().matches("cannot write an Event").count(), 1, "said once");
        let services = Api::<Service>::namespaced(stage.client.clone(), "watched");
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "bad",
            "annotations": {"tailscale.com/proxy-group": "g", "tailscale.com/tailnet-ip": "nonsense"}},
            "spec": {"type": "ExternalName", "externalName": "placeholder.invalid", "ports": [{"port": 80}]}});
        services.patch("bad", &PatchParams::apply("user"), &Patch::Apply(&object)).await.expect("made");
        let events = async || stage.events("bad").await;
        eventually_async("Services get an Event", DEADLINE, events, |reported| {
            reported.iter().any(|event| event.starts_with("INVALIDSERVICE"))
        })
        .await;
    });
}

/// Creates a class with static endpoints at these node ports, and a node with an address.
pub(crate) async fn static_endpoints(stage: &Stage, ports: Value) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    let nodes = stage.all::<Node>();
    nodes.patch("n", &PatchParams::apply("test"), &Patch::Apply(&node)).await.expect("a node");
    let status = json!({"status": {"addresses": [{"type": "ExternalIP", "address": "203.0.113.7"}]}});
    nodes.patch_status("n", &PatchParams::default(), &Patch::Merge(status)).await.expect("an address");
    let class = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass", "metadata": {"name": "c"},
        "spec": {"staticEndpoints": {"nodePort": {"ports": ports}}}});
    stage.all::<ProxyClass>().patch("c", &PatchParams::apply("user"), &Patch::Apply(&class)).await.expect("a class");
    let group = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": "g"},
        "spec": {"type": "egress", "replicas": 1, "proxyClass": "c"}});
    stage.all::<ProxyGroup>().patch("g", &PatchParams::apply("user"), &Patch::Apply(&group)).await.expect("a group");
}

pub(crate) async fn node_port(stage: &Stage) -> Option<i32> {
    let service = stage.here::<Service>().get_opt("g-0-nodeport").await.ok().flatten()?;
    service.spec?.ports?.first()?.node_port
}

#[test]
fn occupied_node_port_is_skipped() {
    stage(async |stage| {
        let taken = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 31000, "protocol": "TCP"}, ]}});
        stage.users().patch("web", &PatchParams::apply("user"), &Patch::Apply(&taken)).await.expect("it has the port");
        let udp = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "dns"},
            "spec": {"type": "NodePort", "ports": [{"port": 53, "nodePort": 31001, "protocol": "UDP"}]}});
        stage.users().patch("dns", &PatchParams::apply("user"), &Patch::Apply(&udp)).await.expect("it has the port");
        let _running = stage.reconciler("one", 9100);
        static_endpoints(&stage, json!([{"port": 20000, "endPort": 20010}, {"port": 31001, "endPort": 31002}])).await;
        let port = async || node_port(&stage).await;
        eventually_async("the next one that is free, of those that the cluster has", DEADLINE, port, |port| *port == Some(31002)).await;
        stage.join("g", 1).await;
        let config = async || stage.cluster.secret("g-0-config").await.0.into_values().collect::<String>();
        eventually_async("it is advertised", DEADLINE, config, |config| config.contains("203.0.113.7:31002")).await;
        eventually_async("ready", DEADLINE, async || stage.ready("g").await, |reported| reported.starts_with("True")).await;
        let reported = stage.events("g").await;
        assert!(
            reported.iter().all(|reported| !reported.starts_with("ProxyGroupCreationFailed")),
            "no Service gets an Event: {reported:?}"
        );
        assert_eq!(stage.users().get("dns").await.expect("untouched").spec.and_then(|spec| spec.ports?.first()?.node_port), Some(31001));
    });
}

#[test]
fn exhausted_node_ports_are_reported_by_the_group() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        static_endpoints(&stage, json!([{"port": 20000, "endPort": 20002}])).await;
        let reported = async || stage.ready("g").await;
        let refused = eventually_async("it is said", DEADLINE, reported, |reported| reported.contains("service-node-port-range")).await;
        assert!(refused.starts_with("False ProxyGroupCreationFailed"), "{refused}");
        assert_eq!(node_port(&stage).await, None);
    });
}

#[test]
fn released_external_name_is_reported() {
    stage(async |stage| {
        // Otherwise a proxy of its own would follow.
        let _running = stage.reconciler_with("one", 9100, &["--standalone", "off"]);
        stage.group("g", 1).await;
        stage.join("g", 1).await;
        stage.service("s", "g").await;
        stage.served("s", "g", 1).await;
        let none = json!({"metadata": {"annotations": {"tailscale.com/proxy-group": null, "tailyard.io/former-external-name": null}}});
        stage.users().patch("s", &PatchParams::default(), &Patch::Merge(none)).await.expect("changed");
        let events = async || stage.events("s").await;
        let reported = eventually_async("it is reported", DEADLINE, events, |reported| {
            reported.iter().any(|event| event.starts_with("EgressReleased"))
        })
        .await;
        assert!(
            reported.iter().any(|event| event.contains(&format!(".{NAMESPACE}.svc.cluster.local")) && event.contains("no longer resolves")),
            "{reported:?}"
        );
        assert_eq!(stage.condition("s", "TailscaleEgressSvcReady").await, "", "nothing claims that it is served");
        eventually_async("its child goes", DEADLINE, async || stage.child("s").await, Vec::is_empty).await;
        assert_eq!(stage.users().get("s").await.expect("there").metadata.namespace.as_deref(), Some(USERS));
    });
}

#[test]
fn group_of_an_unserved_type_is_not_changed() {
    stage(async |stage| {
        let running = stage.reconciler_with("one", 9100, &["--proxy-group-types", "egress,ingress"]);
        let group = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": "in"}, "spec": {"type": "kube-apiserver"}});
        let groups = stage.all::<ProxyGroup>();
        groups.patch("in", &PatchParams::apply("user"), &Patch::Apply(&group)).await.expect("made");
        let counted = async || running.metric("tailyard_unmanaged_proxygroups");
        eventually_async("it is counted", DEADLINE, counted, |count| *count == 1).await;
        eventually_async("and logged", DEADLINE, async || running.log(), |log| log.contains("leaving it to the Tailscale operator")).await;
        stage.quiet(&running).await;
        let current = groups.get("in").await.expect("there");
        assert_eq!((current.metadata.finalizers, current.status.map(|status| status.conditions.len())), (None, None));
        assert_eq!(stage.cluster.count("patch", "proxygroups"), 0);
        assert_eq!(running.log().matches("leaving it to the Tailscale operator").count(), 1, "logged once");
        stage.delete(&groups, "in").await;
        stage.gone(&groups, "in").await;
    });
}
