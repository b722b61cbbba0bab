use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::cluster::{ClusterFacts, CredentialCheck, CredentialOutcome, DEFINITIONS, credentials, places};
use super::*;
use crate::api::localapi::DebugRejects;
use crate::api::names;
use crate::model::controller::kinds::tailnet::Credentials;
use crate::model::controller::workload::device_index::TAILSCALE;
use crate::model::diagnostics::overview::LiveStatus;
use crate::model::tailnet::rejects::recent;

mod admission_policy;
mod objects;
mod operators;
mod tailnet;

const DENIED_TAG: &str = "make an auth key: the control plane responds 400: requested tags [tag:web] are invalid or not permitted";

fn definition(ours: bool) -> Value {
    let spec = if ours { json!({"type": {}, "tailyard": {}}) } else { json!({"type": {}}) };
    json!({"spec": {"versions": [{"name": "v1alpha1", "served": true,
        "schema": {"openAPIV3Schema": {"properties": {"spec": {"properties": spec}}}}}]}})
}

fn deployment(namespace: &str, name: &str, image: &str, available: u8) -> Value {
    json!({"metadata": {"namespace": namespace, "name": name}, "status": {"availableReplicas": available},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [{"name": "one", "image": image}]}}}})
}

fn node(name: &str, kernel: &str, cidr: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"podCIDRs": [cidr]},
        "status": {"nodeInfo": {"kernelVersion": kernel, "architecture": "amd64", "operatingSystem": "linux"},
            "addresses": [{"type": "InternalIP", "address": "10.99.0.11"}], "conditions": [{"type": "Ready", "status": "True"}]}})
}

fn group(name: &str, type_: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"type": type_}})
}

/// A group that reports a fault.
fn reporting(name: &str, type_: &str, message: &str) -> Value {
    let mut group = group(name, type_);
    group["status"]["conditions"] = json!([{"type": "ProxyGroupReady", "status": "False", "message": message}]);
    group
}

fn set(name: &str, replicas: u32) -> Value {
    json!({"metadata": {"name": name}, "spec": {"replicas": replicas}})
}

/// Event of a `StatefulSet` whose first Pod is rejected.
fn create_failure(set: &str, cause: &str) -> Value {
    let note = format!("create Pod {set}-0 in StatefulSet {set} failed error: pods \"{set}-0\" is forbidden: {cause}");
    json!({"metadata": {"name": format!("{set}.1"), "namespace": "ts"}, "reason": "FailedCreate", "note": note, "eventTime": null,
        "regarding": {"kind": "StatefulSet", "name": set}, "deprecatedLastTimestamp": "2027-01-15T07:59:00Z"})
}

/// A Service with an annotation and the condition of its standalone proxy.
fn service(annotation: &str, status: &str, reason: &str, message: &str) -> Value {
    let condition = json!({"type": "TailscaleProxyReady", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let annotations = json!({format!("tailscale.com/{annotation}"): "true"});
    json!({"metadata": {"namespace": "u", "name": "web", "annotations": annotations}, "status": {"conditions": [condition]}})
}

/// A warning about an Ingress, some minutes ago.
fn ingress_event(name: &str, reason: &str, message: &str, minutes: i64) -> Value {
    let at = Timestamp::from_second(1_800_000_000 - 60 * minutes).expect("a time");
    json!({"type": "Warning", "reason": reason, "note": message, "eventTime": at.strftime("%Y-%m-%dT%H:%M:%S.000000Z").to_string(),
        "reportingController": names::EVENT_CONTROLLER, "regarding": {"kind": "Ingress", "namespace": "u", "name": name, "uid": name}})
}

/// Status of a replica with these rejects.
fn live(pod: &str, rejects: &Value) -> BTreeMap<String, LiveStatus> {
    [(pod.to_owned(), Ok(serde_json::from_value(json!({"rejects": rejects})).expect("a status")))].into()
}

fn reject(count: u64, direction: &str, reason: &str, port: u16) -> Value {
    json!({"count": count, "direction": direction, "reason": reason, "protocol": 6, "port": port})
}

/// The policy of config/rbac and its binding, for the namespace `ts`.
fn policy_objects() -> [Value; 2] {
    let text = include_str!("../../../../config/rbac/policy.yaml").replace("metadata.name: tailscale", "metadata.name: ts");
    let objects: Vec<Value> = text.split("\n---\n").map(|text| serde_saphyr::from_str(text).expect("an object")).collect();
    objects.try_into().expect("a policy and a binding")
}

fn well() -> ClusterFacts {
    let tried = CredentialCheck { user: "the reconciler".into(), secret: "oauth".into(), outcome: CredentialOutcome::Works };
    ClusterFacts {
        namespace: "ts".into(),
        server: "v1.36.0".into(),
        definitions: DEFINITIONS.map(|name| (name, Ok(Some(definition(true))))).into(),
        denied: [("ts/eg", vec![]), ("ts/tailyard-reconciler", vec![])].map(|(account, denied)| (account.to_owned(), Ok(denied))).into(),
        policy: Ok(Some(policy_objects()[0].clone())),
        policy_binding: Ok(Some(policy_objects()[1].clone())),
        deployments: Ok(vec![deployment("ts", "tailyard-reconciler", "localhost/tailyard:0.1.0", 2)]),
        groups: Ok(vec![group("eg", "egress")]),
        sets: Ok(vec![set("eg", 1)]),
        failures: Ok(vec![]),
        unreconciled: [("Connector", Ok(vec![])), ("Recorder", Err(Gap::Unknown))].into(),
        lease: Ok(Some(json!({"spec": {"holderIdentity": "tailyard-reconciler-abc"}}))),
        renewed: true,
        pods: Ok(vec![json!({"metadata": {"name": "eg-0"}, "status": {"podIPs": [{"ip": "10.244.1.2"}]}})]),
        live: live("eg-0", &json!({"recorded": true})),
        services: Ok(vec![service("expose", "True", "ProxyCreated", "served")]),
        ingresses: Ok(vec![]),
        namespaces: Ok(vec![json!({"metadata": {"name": "u"}})]),
        classes: Ok(vec![json!({"metadata": {"name": "tailscale"}, "spec": {"controller": names::INGRESS_CONTROLLER}})]),
        ingress_events: Ok(vec![]),
        now: Duration::from_hours(500_000),
        nodes: Ok(vec![node("n1", "6.8.0-45-generic", "10.244.1.0/24"), node("n2", "6.8.0-45-generic", "10.244.2.0/24")]),
        ranges: Ok(vec![json!({"spec": {"cidrs": ["10.96.0.0/16"]}})]),
        dns: Ok(Some(json!({"spec": {"clusterIPs": ["10.96.0.10"]}}))),
        kube_proxy: Ok(Some(json!({"data": {"config.conf": "kind: KubeProxyConfiguration\nmode: \"nftables\"\n"}}))),
        cilium: Ok(None),
        credentials: Ok(vec![tried]),
    }
}

/// A cluster with every detectable fault.
fn ill() -> ClusterFacts {
    let mut definitions: BTreeMap<_, _> = DEFINITIONS.map(|name| (name, Ok(None))).into();
    definitions.insert(DEFINITIONS[0], Ok(Some(definition(false))));
    let rights = rights::reconciler("ts", &[]);
    let of =
        |resource: &str, verb: &str| rights.iter().find(|right| right.resource == resource && right.verb == verb).expect("a right").clone();
    let denied = vec![of("secrets", "patch"), of("leases", "patch")];
    let tried = |user: &str, outcome| CredentialCheck { user: user.into(), secret: "s".into(), outcome };
    let unscheduled = json!({"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available: 2 Insufficient cpu."});
    ClusterFacts {
        definitions,
        denied: [("ts/eg".into(), Err(Gap::Forbidden)), ("ts/tailyard-reconciler".into(), Ok(denied))].into(),
        policy_binding: Ok(None),
        deployments: Ok(vec![
            deployment("ts", "tailyard-reconciler", "localhost/tailyard:0.1.0", 1),
            deployment("tailscale", "operator", "docker.io/tailscale/k8s-operator:v1.102.3", 1),
        ]),
        groups: Ok(vec![reporting("eg", "egress", DENIED_TAG)]),
        renewed: false,
        pods: Ok(vec![json!({"metadata": {"name": "eg-0"}, "status": {"phase": "Pending", "conditions": [unscheduled]}})]),
        live: live(
            "eg-1",
            &json!({"recorded": true, "others": 4, "flows": [
            reject(12, "outgoing", "acl", 5432), reject(2, "incoming", "shields", 80), reject(1, "outgoing", "timeout", 443)]}),
        ),
        sets: Ok(vec![set("eg", 1), set("ts-web", 1)]),
        failures: Ok(vec![create_failure("ts-web", "violates PodSecurity \"baseline:latest\": privileged")]),
        services: Ok(vec![service("exposed", "False", "ProxyPending", "Pod ts-web-0 is not ready")]),
        ingresses: Err(Gap::Forbidden),
        ingress_events: Ok(vec![ingress_event("shop", "InvalidIngressConfiguration", "It has no route.", 10)]),
        nodes: Ok(vec![node("old", "5.4.0-200", "100.65.0.0/16"), node("new", "7.1.2", "10.244.2.0/24")]),
        cilium: Ok(Some(json!({"data": {"kube-proxy-replacement": "true"}}))),
        kube_proxy: Ok(None),
        credentials: Ok(vec![
            tried("the reconciler", CredentialOutcome::Missing("it does not exist".into())),
            tried("Tailnet a", CredentialOutcome::Refused("the control plane refuses the credentials (401)".into())),
            tried("Tailnet e", CredentialOutcome::WithoutServices("list Tailscale Services: not permitted".into())),
            tried("Tailnet b", CredentialOutcome::Unreachable("no answer within 10s".into())),
            tried("Tailnet c", CredentialOutcome::Untested),
            tried("Tailnet d", CredentialOutcome::Unread(Gap::Forbidden)),
        ]),
        ..well()
    }
}

/// A cluster where nothing may be read.
fn closed() -> ClusterFacts {
    ClusterFacts {
        namespace: "ts".into(),
        server: "v1.36.0".into(),
        definitions: DEFINITIONS.map(|name| (name, Err(Gap::Forbidden))).into(),
        denied: [("ts/tailyard-reconciler".to_owned(), Err(Gap::Forbidden))].into(),
        policy: Err(Gap::Forbidden),
        policy_binding: Err(Gap::Forbidden),
        deployments: Err(Gap::Forbidden),
        groups: Err(Gap::Forbidden),
        sets: Err(Gap::Forbidden),
        failures: Err(Gap::Forbidden),
        unreconciled: [("Recorder", Err(Gap::Forbidden))].into(),
        lease: Err(Gap::Forbidden),
        renewed: false,
        pods: Err(Gap::Forbidden),
        live: BTreeMap::new(),
        services: Err(Gap::Forbidden),
        ingresses: Err(Gap::Forbidden),
        namespaces: Err(Gap::Forbidden),
        classes: Err(Gap::Forbidden),
        ingress_events: Err(Gap::Forbidden),
        now: Duration::ZERO,
        nodes: Err(Gap::Forbidden),
        ranges: Err(Gap::Forbidden),
        dns: Err(Gap::Forbidden),
        kube_proxy: Err(Gap::Forbidden),
        cilium: Err(Gap::Forbidden),
        credentials: Err(Gap::Forbidden),
    }
}

fn machine() -> node::NodeFacts {
    node::NodeFacts {
        kernel: Some("6.8.0-45-generic".into()),
        namespace: Ok(()),
        firewalls: vec![("nftables", Ok(())), ("iptables-nft", Ok(())), ("iptables-legacy", Err("no program".into()))],
        tun: Ok(()),
        links: vec![("eth0".into(), 1500), ("lo".into(), 65_536), ("tailscale0".into(), 1280)],
        connections: Ok((120, 262_144)),
        offloads: Some(Ok(None)),
        kubernetes_grants: None,
        rejects: Some(Vec::new()),
    }
}

fn broken() -> node::NodeFacts {
    let flow =
        json!({"Last": "2026-11-29T11:59:00Z", "Count": 3, "Proto": 6, "Src": "100.64.0.9:40000", "Dst": "100.64.0.1:22", "Reason": "acl"});
    let rejected = DebugRejects { enabled: true, incoming: vec![flow], ..DebugRejects::default() };
    let missing = || Err("no program".into());
    node::NodeFacts {
        kernel: None,
        namespace: Ok(()),
        firewalls: vec![("nftables", missing()), ("iptables-nft", missing()), ("iptables-legacy", Err("no module".into()))],
        tun: Err("/dev/net/tun: No such file or directory".into()),
        links: vec![("eth0".into(), 1300)],
        connections: Ok((31_000, 32_000)),
        offloads: Some(Ok(Some("UDP GRO forwarding is suboptimally configured on eth0".into()))),
        kubernetes_grants: Some(Ok(0)),
        rejects: recent(&rejected, Duration::from_hours(498_876)),
    }
}

fn golden(name: &str, text: &str) {
    kit::golden::assert_golden(&format!("tests/golden/doctor/{name}"), text);
}

#[test]
fn doctor_output_matches_golden_files() {
    for (name, facts, code) in [("well", well(), 0), ("ill", ill(), 1), ("closed", closed(), 2)] {
        let checks = cluster::checks(&facts);
        golden(&format!("{name}.txt"), &text(&checks, PAGE));
        assert_eq!(exit_code(&checks), code, "{name}");
    }
    for (name, facts, code) in [("machine", machine(), 0), ("broken", broken(), 1)] {
        let checks = node::checks(&facts);
        golden(&format!("{name}.txt"), &text(&checks, PAGE));
        assert_eq!(exit_code(&checks), code, "{name}");
    }
    golden("ill.json", &(serde_json::to_string_pretty(&cluster::checks(&ill())).expect("JSON") + "\n"));
}

#[test]
fn grants_of_the_kubernetes_capability_are_counted_in_a_proxy_of_the_api_server() {
    let grants = |value: Value| node::kubernetes_grants(&serde_json::from_value::<Vec<_>>(value).expect("rules"));
    let grant = |name: &str| json!({"SrcIPs": ["100.64.0.2"], "CapGrant": [{"Dsts": ["100.64.0.1/32"], "CapMap": {name: [{}]}}]});
    let ports = json!({"SrcIPs": ["*"], "DstPorts": [{"IP": "*", "Ports": {"First": 0, "Last": 65535}}], "CapGrant": null});
    let other = json!({"CapGrant": [{"CapMap": null}, {"CapMap": {"tailscale.com/cap/ingress": null}}]});
    assert_eq!(grants(json!([ports, other])), 0);
    let both = ["tailscale.com/cap/kubernetes", "https://tailscale.com/cap/kubernetes"].map(grant);
    assert_eq!(grants(json!([ports, both[0], other, both[1]])), 2);
    let found = |grants| {
        let checks = node::checks(&node::NodeFacts { kubernetes_grants: grants, ..machine() });
        checks.into_iter().filter(|check| check.name == "grants").map(|check| check.finding).collect::<Vec<_>>()
    };
    assert_eq!(found(None), [], "another proxy or machine");
    assert_eq!((found(Some(Ok(1))), found(Some(Ok(0)))), (vec![Finding::Ok], vec![Finding::Warn]));
    assert_eq!(found(Some(Err("no answer".to_owned()))), [Finding::Warn]);
}

#[test]
fn exit_code_of_an_unread_cluster_differs_from_that_of_a_healthy_one() {
    let checks = |facts: &ClusterFacts| cluster::checks(facts);
    assert_eq!(exit_code(&checks(&ClusterFacts { nodes: well().nodes, ..closed() })), 0, "something is read");
    assert_eq!(exit_code(&[checks(&closed()), node::checks(&machine())].concat()), 0, "of the machine");
    assert_eq!(exit_code(&checks(&ClusterFacts { pods: Err(Gap::Failed("no answer".into())), ..closed() })), 2);
}

#[test]
fn every_check_is_documented_and_has_a_fix() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/doctor.md")).expect("docs/doctor.md");
    let all = [cluster::checks(&ill()), cluster::checks(&well()), node::checks(&broken())].concat();
    for check in all {
        assert!(page.contains(&format!("\n### {}\n", check.name)), "{} has no section in docs/doctor.md", check.name);
        assert!(check.finding == Finding::Ok || !check.fix.is_empty() || check.what.contains("cannot be read"), "{check:?} has no fix");
    }
}

/// Asserts that the check of this name has this finding, with this word in its text.
fn finds(facts: &ClusterFacts, name: &str, finding: Finding, word: &str) {
    let checks = cluster::checks(facts);
    let found = checks.iter().any(|check| check.name == name && check.finding == finding && check.what.contains(word));
    assert!(found, "{name} {word}: {checks:#?}");
}

#[test]
fn reconciler_check_depends_on_lease_renewal() {
    finds(&ClusterFacts { renewed: false, ..well() }, "reconciler", Finding::Bad, "no leader");
    finds(&ClusterFacts { deployments: Ok(Vec::new()), ..well() }, "reconciler", Finding::Ok, "tailyard-reconciler-abc leads");
    let none = ClusterFacts { deployments: Ok(Vec::new()), lease: Ok(None), renewed: false, ..well() };
    finds(&none, "reconciler", Finding::Bad, "none runs");
    let pods = |count| Ok(vec![deployment("ts", "tailyard-reconciler", "x", count)]);
    finds(&ClusterFacts { deployments: pods(1), ..well() }, "reconciler", Finding::Warn, "without a standby");
    let none = ClusterFacts { deployments: pods(0), renewed: false, ..well() };
    finds(&none, "reconciler", Finding::Bad, "no Pod of ts/tailyard-reconciler");
}

fn set_variables(deployment: &mut Value, variables: &[(&str, &str)]) {
    let env: Vec<_> = variables.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    deployment["spec"]["template"]["spec"]["containers"][0]["env"] = json!(env);
}

#[test]
fn credentials_that_are_no_secret_are_not_missing() {
    let with = |variables: &[(&str, &str)]| {
        let mut reconciler = deployment("ts", "tailyard-reconciler", "x", 2);
        set_variables(&mut reconciler, variables);
        ClusterFacts { deployments: Ok(vec![reconciler]), credentials: Ok(vec![]), ..well() }
    };
    for variable in ["CLIENT_ID", "CLIENT_ID_FILE"] {
        finds(&with(&[(variable, "x")]), "credentials", Finding::Ok, "no Secret; only the reconciler itself can try them");
    }
    finds(&with(&[]), "credentials", Finding::Warn, "no Secret with credentials is named");
}

#[test]
fn missing_pod_is_bad_with_its_cause_and_a_warning_without() {
    let sets = Ok(vec![set("eg", 3)]);
    let failures = Ok(vec![create_failure("eg", "exceeded quota: pods")]);
    let refused = ClusterFacts { sets: sets.clone(), failures: failures.clone(), ..well() };
    finds(&refused, "pods", Finding::Bad, "eg-1: cannot be created: pods \"eg-0\" is forbidden: exceeded quota: pods; eg-2: cannot");
    finds(&ClusterFacts { failures, ..well() }, "pods", Finding::Ok, "none of 1");
    finds(&ClusterFacts { sets: sets.clone(), ..well() }, "pods", Finding::Warn, "not created yet: eg-1, eg-2");
    let checks = cluster::checks(&ClusterFacts { sets, failures: Err(Gap::Forbidden), ..well() });
    assert!(checks.iter().any(|check| check.fix.contains("list events.events.k8s.io in ts")), "{checks:#?}");
    finds(&ClusterFacts { sets: Ok(vec![set("eg", 30)]), ..well() }, "pods", Finding::Warn, ", and 19 more");
}

#[test]
fn rejected_flows_are_a_warning_for_each_replica_that_records_them() {
    let with = |rejects: &Value| ClusterFacts { live: live("eg-0", rejects), ..well() };
    let acl = json!({"recorded": true, "flows": [reject(3, "incoming", "acl", 22)]});
    finds(&with(&acl), "rejects", Finding::Warn, "eg-0: connections rejected in the last hour: incoming acl tcp:22 (3)");
    let drain = json!({"recorded": true, "flows": [reject(3, "incoming", "shields", 22)]});
    finds(&with(&drain), "rejects", Finding::Ok, "none in the last hour, of 1 replicas");
    finds(&with(&json!({"recorded": false})), "rejects", Finding::Ok, "no node attribute debug-conn-reject");
    let refused = ClusterFacts { live: [("eg-0".to_owned(), Err(Gap::Forbidden))].into(), ..well() };
    finds(&refused, "rejects", Finding::Warn, "cannot be read");
    for silent in [live("eg-0", &Value::Null), [("eg-0".to_owned(), Err(Gap::Failed("no answer".into())))].into(), BTreeMap::new()] {
        let checks = cluster::checks(&ClusterFacts { live: silent, ..well() });
        assert!(checks.iter().all(|check| check.name != "rejects"), "{checks:#?}");
    }
    let all = (10..30).flat_map(|ordinal| live(&format!("eg-{ordinal}"), &acl)).collect();
    finds(&ClusterFacts { live: all, ..well() }, "rejects", Finding::Warn, "10 more replicas");
}

#[test]
fn documentation_link_is_a_url_if_the_repository_is_set() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(located("", "egress.md"), format!("docs/egress.md of Tailyard {version}"));
    assert_eq!(located("https://git.example/t", "egress.md"), format!("https://git.example/t/blob/v{version}/docs/egress.md"));
}

#[test]
fn missing_group_definition_is_bad_and_missing_optional_right_a_warning() {
    let mut facts = well();
    facts.definitions.insert(DEFINITIONS[0], Ok(None));
    finds(&facts, "definitions", Finding::Bad, "not installed");
    let optional: Vec<_> = rights::reconciler("ts", &[]).into_iter().filter(rights::Right::optional).collect();
    facts.denied = [("ts/tailyard-reconciler".to_owned(), Ok(optional))].into();
    finds(&facts, "permissions", Finding::Warn, "list/watch nodes");
}

#[test]
fn address_overlap_with_the_tailnet_is_found() {
    let ranges = |cidr: &str| Ok(vec![json!({"spec": {"cidrs": [cidr]}})]);
    finds(&ClusterFacts { ranges: ranges("fd7a:115c:a1e0:1::/112"), ..well() }, "addresses", Finding::Warn, "Services");
    finds(&ClusterFacts { ranges: ranges("100.0.0.0/8"), ..well() }, "addresses", Finding::Warn, "Services have 100.0.0.0/8");
    let pods = Ok(vec![node("n1", "6.8.0", "100.65.0.0/16")]);
    finds(&ClusterFacts { nodes: pods, ..well() }, "addresses", Finding::Warn, "Pods have 100.65.0.0/16");
    let dns = Ok(Some(json!({"spec": {"clusterIPs": ["100.100.2.136"]}})));
    finds(&ClusterFacts { dns, ..well() }, "addresses", Finding::Warn, "DNS have 100.100.2.136");
}

#[test]
fn missing_scope_for_services_is_bad_only_for_a_tailnet_with_a_group_that_advertises() {
    let outcome = CredentialOutcome::WithoutServices("get a Tailscale Service: not permitted".into());
    let with = |user: &str, groups| {
        let tried = CredentialCheck { user: user.into(), secret: "s".into(), outcome: outcome.clone() };
        ClusterFacts { credentials: Ok(vec![tried]), groups, ..well() }
    };
    let mut in_lab = group("web", "ingress");
    in_lab["spec"]["tailnet"] = json!("lab");
    let one = |group: &Value| Ok(vec![group.clone()]);
    let bad = "do not permit ProxyGroups of type ingress and kube-apiserver: get a Tailscale Service: not permitted";
    finds(&with("the reconciler", one(&group("web", "ingress"))), "credentials", Finding::Bad, bad);
    finds(&with("the reconciler", one(&group("kube", "kube-apiserver"))), "credentials", Finding::Bad, bad);
    finds(&with("Tailnet lab", one(&in_lab)), "credentials", Finding::Bad, bad);
    finds(&with("the reconciler", Err(Gap::Forbidden)), "credentials", Finding::Bad, bad);
    for harmless in [with("the reconciler", one(&in_lab)), with("Tailnet lab", one(&group("eg", "egress")))] {
        finds(&harmless, "credentials", Finding::Warn, "work, but do not permit ProxyGroups of type ingress");
    }
}

#[test]
fn credentials_are_read_from_the_mounted_secret() {
    let container = json!({"env": [{"name": "OPERATOR_LOGIN_SERVER", "value": "https://hs.lab"}, {"name": "TAILYARD_HEADSCALE_KEY_FILE", "value": "/control/key"}],
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "control", "mountPath": "/control"}]});
    let volumes = json!([{"name": "control", "secret": {"secretName": "headscale", "items": [{"key": "api_key", "path": "key"}]}}]);
    let deployment = json!({"metadata": {"name": "tailyard-reconciler"}, "spec": {"template": {"spec": {"containers": [container], "volumes": volumes}}}});
    let tailnet = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "Tailnet", "metadata": {"name": "t"}, "spec": {"credentials": {"secretName": "oauth"}}});
    let found = places(&[deployment], &[tailnet]);
    let mounts: Vec<_> = found.iter().map(|place| (place.user.as_str(), place.secret.as_str(), place.url.as_str())).collect();
    assert_eq!(mounts, [("the reconciler", "headscale", "https://hs.lab"), ("Tailnet t", "oauth", TAILSCALE)]);
    let secret = |key: &str| json!({"data": {key: k8s_openapi::ByteString(b"k".to_vec())}});
    assert!(matches!(credentials(&found[0], &secret("api_key")), Ok(Credentials::Headscale { .. })));
    assert_eq!(credentials(&found[0], &secret("key")), Err("has no api_key".to_owned()));
    assert!(credentials(&found[1], &secret("client_id")).is_err_and(|why| why.contains("client_secret")));
}
