//! `tailyard status` and `tailyard doctor` with all permissions, with few, and without a cluster.

use std::process::{Output, Stdio};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;

use kit::apiserver::{DEADLINE, NAMESPACE};
use kit::doctor::Diagnosis;
use kit::hosted::CLIENT;
use kit::reconciler::{Stage, stage};
use kit::wait::eventually_async;

use super::standalone_ingress::serve;

pub(super) async fn run(stage: &Stage, user: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let done = tokio::time::timeout(DEADLINE, stage.tailyard(user, args).output()).await;
    let Output { status, stdout, stderr } = done.expect("an answer in time").expect("the binary");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

/// Serves a replica's status page at the address of the Pod that the stage created.
async fn page(ip: &str) {
    let added = Command::new("ip").args(["address", "add", &format!("{ip}/32"), "dev", "lo"]).status().await;
    assert!(added.expect("the ip command").success());
    let listener = TcpListener::bind((ip, 9002)).await.expect("the page's port");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let read = stream.read(&mut request).await.unwrap_or(0);
            let found = String::from_utf8_lossy(&request[..read]).starts_with("GET /status ");
            let body = json!({"version": "9.9.9", "flows": 42, "peers": {"direct": 1, "relayed": 2}}).to_string();
            let status = if found { "200 OK" } else { "404 Not Found" };
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            // A client that disconnects early is no error.
            let _ = stream.write_all((head + &body).as_bytes()).await;
        }
    });
}

/// Permits the Pods' user to list and watch groups and Services, and nothing else.
async fn few_rights(stage: &Stage) {
    let role = json!({"metadata": {"name": "looker"}, "rules": [
        {"apiGroups": ["tailscale.com"], "resources": ["proxygroups"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["services"], "verbs": ["list", "watch"]}]});
    let binding = json!({"metadata": {"name": "looker"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "looker"},
        "subjects": [{"kind": "User", "name": "pod", "apiGroup": "rbac.authorization.k8s.io"}]});
    let (roles, bindings) = (stage.all::<ClusterRole>(), stage.all::<ClusterRoleBinding>());
    roles.create(&PostParams::default(), &serde_json::from_value(role).expect("a role")).await.expect("made");
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).expect("a binding")).await.expect("made");
}

#[test]
fn status_shows_groups_replicas_and_services() {
    stage(async |stage| {
        let reconciler = stage.reconciler("one", 9100);
        stage.group("g", 2).await;
        stage.join("g", 2).await;
        stage.service("web", "g").await;
        stage.served("web", "g", 2).await;
        page("10.1.1.1").await;
        let (code, text, error) = run(&stage, "admin", &["status"]).await;
        assert_eq!((code, error.as_str()), (Some(0), ""), "{text}");
        let row = |begins: &str| {
            let line = text.lines().find(|line| line.starts_with(begins)).unwrap_or_else(|| panic!("no {begins} in {text}"));
            line.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(row("g "), ["g", "egress", "2/2", "-"]);
        let own = stage.hosted.addresses("ng0").remove(0);
        assert_eq!(row("g-0"), ["g-0", "Ready", "-", own.as_str(), "1 direct, 2 relayed", "acknowledged", "42", "-"]);
        assert_eq!(row("default/web"), ["default/web", "g", "100.64.0.9", "2/2", "-"]);
        assert!(text.contains("? the own pages of some replicas cannot be read") && text.contains("g-1: "), "g-1 does not answer: {text}");
        let (_, wide, _) = run(&stage, "admin", &["status", "g", "-o", "json"]).await;
        let printed: Value = serde_json::from_str(&wide).expect("JSON");
        assert_eq!((&printed["replicas"][0]["version"], &printed["replicas"][1]["flows"]), (&json!("9.9.9"), &Value::Null));
        assert_eq!((&printed["replicas"][0]["tailnetName"], &printed["services"][0]["ready"]), (&json!("g-0.tail-lab.ts.net"), &json!(2)));
        assert_eq!(run(&stage, "admin", &["status", "h"]).await.0, Some(1), "there is no such group");
        watches(&stage).await;
        reconciler.kill();
    });
}

/// A watch without a terminal prints a line for each changed row.
async fn watches(stage: &Stage) {
    let mut child = stage.tailyard("admin", &["status", "--watch"]).stdout(Stdio::piped()).spawn().expect("the binary");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut until = async |begins: &str| {
        let look = async {
            loop {
                let line = lines.next_line().await.expect("a line").expect("it goes on");
                if line.starts_with(begins) {
                    return;
                }
            }
        };
        tokio::time::timeout(DEADLINE, look).await.unwrap_or_else(|_| panic!("never: {begins:?}"));
    };
    until("service\tdefault/web\tg\t100.64.0.9\t2/2").await;
    stage.service("more", "g").await;
    until("service\tdefault/more\tg\t100.64.0.9\t").await;
    stage.delete(&stage.users(), "more").await;
    until("service default/more is gone").await;
    child.kill().await.expect("ended");
}

#[test]
fn status_names_missing_rules_and_shows_the_rest() {
    stage(async |mut stage| {
        stage.group("g", 1).await;
        let (code, text, error) = run(&stage, "pod", &["status"]).await;
        assert_eq!((code, text.as_str()), (Some(1), ""));
        assert!(error.contains(r#"{apiGroups: ["tailscale.com"], resources: ["proxygroups"], verbs: ["list", "watch"]}"#), "{error}");
        few_rights(&stage).await;
        let shown = async || run(&stage, "pod", &["status"]).await;
        let (_, text, _) = eventually_async("the rights count", DEADLINE, shown, |(code, ..)| *code == Some(0)).await;
        assert!(text.contains("?/1") && text.contains("ProxyGroupReady Unknown NoReconciler"), "{text}");
        for resource in ["pods", "secrets", "configmaps"] {
            assert!(
                text.contains(&format!(r#"{{apiGroups: [""], resources: ["{resource}"], verbs: ["list", "watch"]}} in namespace ts"#)),
                "{text}"
            );
        }
        for (group, resource) in [("networking.k8s.io", "ingresses"), ("events.k8s.io", "events")] {
            let rule = format!(r#"{{apiGroups: [{group:?}], resources: [{resource:?}], verbs: ["list", "watch"]}} in all namespaces"#);
            assert!(text.contains(&rule), "{text}");
        }
        stage.all::<CustomResourceDefinition>().delete("proxygroups.tailscale.com", &DeleteParams::default()).await.expect("deleted");
        let shown = async || run(&stage, "admin", &["status"]).await;
        let (.., error) = eventually_async("the kind is gone", DEADLINE, shown, |(code, ..)| *code == Some(1)).await;
        assert!(error.contains("tailyard crd | kubectl apply --server-side -f -"), "{error}");
        stage.cluster.kill_server();
        let (code, _, error) = run(&stage, "admin", &["status"]).await;
        assert!(code == Some(1) && error.contains("the API server cannot be reached"), "{error}");
        let nowhere = stage.tailyard("admin", &["status"]).env("KUBECONFIG", "/nowhere").output().await.expect("the binary");
        let error = String::from_utf8_lossy(&nowhere.stderr).into_owned();
        assert!(nowhere.status.code() == Some(1) && error.contains("/nowhere") && error.contains("KUBECONFIG"), "{error}");
    });
}

#[test]
fn refused_ingress_is_shown_by_status_and_counted_until_it_is_deleted() {
    stage(async |stage| {
        let reconciler = stage.reconciler("one", 9100);
        stage.class().await;
        stage.backend("web").await;
        stage.ingress("app", "missing", "app").await;
        let row = async || {
            let (code, text, error) = run(&stage, "admin", &["status"]).await;
            assert_eq!((code, error.as_str()), (Some(0), ""), "{text}");
            text.lines().find(|line| line.starts_with("default/app ")).map(str::to_owned).unwrap_or_default()
        };
        let shown = eventually_async("its fault is shown", DEADLINE, &row, |row| row.contains("ProxyGroup missing does not exist")).await;
        let count = async || reconciler.metric("tailyard_ingress_faults{");
        assert_eq!(count().await, 1, "{shown}");
        let (_, text, _) = run(&stage, "admin", &["status", "-o", "json"]).await;
        let printed: Value = serde_json::from_str(&text).expect("JSON");
        let reason = printed["ingressFaults"][0]["reason"].as_str().expect("a reason");
        assert!(reconciler.get("/metrics").contains(&format!("tailyard_ingress_faults{{reason={reason:?}}} 1")), "{printed}");
        stage.delete(&stage.ingresses(), "app").await;
        eventually_async("it is not counted", DEADLINE, &count, |count| *count == 0).await;
        assert_eq!(row().await, "", "its Event remains");
        reconciler.kill();
    });
}

/// Creates a Deployment; no controller creates its Pods.
pub(super) async fn deployment(stage: &Stage, namespace: &str, name: &str, container: Value, volumes: Value) {
    let labels = json!({"app": name});
    let object = json!({"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
        "spec": {"containers": [container], "volumes": volumes}}}});
    let api: Api<Deployment> = Api::namespaced(stage.client.clone(), namespace);
    api.create(&PostParams::default(), &serde_json::from_value(object).expect("a Deployment")).await.expect("made");
}

/// Creates the reconciler's Deployment, with credentials that the stand-in of the hosted API rejects.
async fn deploy(stage: &Stage) {
    stage.cluster.make_secret("oauth", &[("client_id", CLIENT.0), ("client_secret", "wrong")]).await;
    let env = [
        ("OPERATOR_LOGIN_SERVER", stage.hosted.url()),
        ("CLIENT_ID_FILE", "/etc/oauth/client_id".to_owned()),
        ("CLIENT_SECRET_FILE", "/etc/oauth/client_secret".to_owned()),
    ];
    let env = env.map(|(name, value)| json!({"name": name, "value": value}));
    let container =
        json!({"name": "reconciler", "image": "tailyard:test", "env": env, "volumeMounts": [{"name": "oauth", "mountPath": "/etc/oauth"}]});
    deployment(stage, NAMESPACE, "tailyard-reconciler", container, json!([{"name": "oauth", "secret": {"secretName": "oauth"}}])).await;
}

/// Runs doctor as a user of the cluster.
async fn diagnosis(stage: &Stage, user: &str) -> Diagnosis {
    let done = tokio::time::timeout(DEADLINE, stage.tailyard(user, &["doctor", "-o", "json"]).output()).await;
    Diagnosis::read(&done.expect("an answer in time").expect("the binary"))
}

/// Exit code, and finding and text of each check with a name.
pub(super) type Found = (Option<i32>, Vec<(String, String)>);

/// Doctor's findings for a check.
pub(super) async fn finds(stage: &Stage, user: &str, name: &str) -> Found {
    let found = diagnosis(stage, user).await;
    (found.code, found.of(name))
}

#[test]
fn doctor_finds_no_fault_with_an_ingress_group_and_a_standalone_ingress() {
    stage(async |stage| {
        let reconciler = stage.reconciler("one", 9100);
        reconciler.leads(true).await;
        stage.publisher("web", 1).await;
        stage.group("eg", 1).await;
        stage.join("eg", 1).await;
        serve(&stage).await;
        let faults = async || diagnosis(&stage, "admin").await.faults(&["admission-policy", "credentials"]);
        assert_eq!(faults().await, [""; 0]);
        let permissions = diagnosis(&stage, "admin").await.of("permissions");
        assert_eq!(permissions.len(), 4, "of the reconciler and of three proxies: {permissions:?}");
        reconciler.kill();
        stage.here::<Role>().delete("eg", &DeleteParams::default()).await.expect("deleted");
        let bad = async || diagnosis(&stage, "admin").await.of("permissions");
        let is_bad =
            |found: &Vec<(String, String)>| found.iter().any(|(finding, what)| finding == "bad" && what.contains("eg-egress-config"));
        eventually_async("a Role is missing", DEADLINE, bad, is_bad).await;
    });
}

#[test]
fn doctor_finds_cluster_problems() {
    stage(async |stage| {
        let reconciler = stage.reconciler("one", 9100);
        stage.group("g", 1).await;
        stage.join("g", 1).await;
        reconciler.leads(true).await;
        let (code, text, error) = run(&stage, "admin", &["doctor"]).await;
        assert_eq!((code, error.as_str()), (Some(0), ""), "{text}");
        let well = [
            "ts/tailyard-reconciler may do all",
            "ts/g may do all",
            "with spec.tailyard",
            " leads",
            "does not run",
            "no address of the cluster",
        ];
        for printed in well {
            assert!(text.contains(printed), "{printed} in {text}");
        }
        let own = finds(&stage, "reconciler", "permissions").await;
        assert!(
            own.1.contains(&("ok".into(), "ts/tailyard-reconciler may do all that it must".into())),
            "anybody may ask for himself: {own:?}"
        );
        deploy(&stage).await;
        let refused = finds(&stage, "admin", "credentials").await;
        assert!(refused.0 == Some(1) && refused.1[0].0 == "bad" && refused.1[0].1.contains("are refused"), "{refused:?}");
        stage.cluster.patch_secret("oauth", &[("client_secret", CLIENT.1)]).await;
        let works = finds(&stage, "admin", "credentials").await;
        assert_eq!(works.1[0].0, "ok", "{works:?}");
        stage.hosted.deny("GET /api/v2/tailnet/-/vip-services", 403);
        let lacks = finds(&stage, "admin", "credentials").await;
        assert!(lacks.1[0].0 == "warn" && lacks.1[0].1.contains("do not permit ProxyGroups of type ingress"), "{lacks:?}");
        stage.hosted.deny_nothing();
        let (_, text, _) = run(&stage, "admin", &["doctor", "--control-ca", "/nowhere.pem"]).await;
        assert!(text.contains("could not be tried from here") && text.contains("/nowhere.pem"), "it is read: {text}");
        let container = json!({"name": "operator", "image": "docker.io/tailscale/k8s-operator:v1.102.3"});
        deployment(&stage, "default", "operator", container, json!([])).await;
        let both = finds(&stage, "admin", "operators").await;
        assert!(
            both.0 == Some(1) && both.1[0].1.contains("ts/tailyard-reconciler") && both.1[0].1.contains("default/operator"),
            "{both:?}"
        );
        stage.all::<ClusterRoleBinding>().delete("tailyard-reconciler", &DeleteParams::default()).await.expect("deleted");
        // The message names the first kinds only.
        let lacks = |what: &str| what.contains("get/list/watch ingressclasses.networking.k8s.io");
        let denied = |found: &Found| found.1.iter().any(|(finding, what)| finding == "bad" && lacks(what));
        eventually_async("the missing right is found", DEADLINE, async || finds(&stage, "admin", "permissions").await, denied).await;
        reconciler.kill();
        let remaining = finds(&stage, "admin", "reconciler").await;
        assert_eq!(remaining.1[0].0, "bad", "no reconciler leads: {remaining:?}");
        let (code, text, _) = run(&stage, "pod", &["doctor"]).await;
        assert!(code == Some(2) && !text.contains("BAD"), "nothing could be read: {text}");
        assert!(text.contains("ask for the right to create subjectaccessreviews.authorization.k8s.io"), "{text}");
    });
}

/// Creates the Event by which Kubernetes' controller reports that it cannot create the first Pod of a `StatefulSet`.
async fn reject_pod(stage: &Stage, set: &str, cause: &str) {
    let about = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "namespace": NAMESPACE, "name": set});
    let message = format!("create Pod {set}-0 in StatefulSet {set} failed error: pods \"{set}-0\" is forbidden: {cause}");
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    let event = json!({"metadata": {"name": format!("{set}.1"), "namespace": NAMESPACE}, "involvedObject": about, "reason": "FailedCreate",
        "message": message, "type": "Warning", "source": {"component": "statefulset-controller"}, "count": 1,
        "firstTimestamp": now, "lastTimestamp": now});
    let event: k8s_openapi::api::core::v1::Event = serde_json::from_value(event).expect("an Event");
    stage.here().create(&PostParams::default(), &event).await.expect("made");
}

#[test]
fn cause_of_a_missing_pod_is_in_condition_status_and_doctor() {
    stage(async |stage| {
        let reconciler = stage.reconciler("one", 9100);
        stage.group("g", 1).await;
        let ready = async || stage.ready("g").await;
        eventually_async("it is reconciled", DEADLINE, ready, |ready| ready.contains("0/1 ProxyGroup pods running")).await;
        let cause = "violates PodSecurity \"baseline:latest\": non-default capabilities";
        reject_pod(&stage, "g", cause).await;
        let shown = eventually_async("the cause", DEADLINE, ready, |ready| ready.contains(cause)).await;
        assert!(shown.contains("Pod g-0: cannot be created") && shown.contains("enforce=privileged"), "{shown}");
        let (_, text, _) = run(&stage, "admin", &["status"]).await;
        assert!(text.contains(cause), "{text}");
        let pods = finds(&stage, "admin", "pods").await;
        assert!(pods.0 == Some(1) && pods.1[0].0 == "bad" && pods.1[0].1.contains(cause), "{pods:?}");
        let events = async || stage.events("g").await;
        let is_reported =
            |events: &Vec<String>| events.iter().any(|event| event.starts_with("ProxyGroupCreating") && event.contains(cause));
        eventually_async("an Event of the group", DEADLINE, events, is_reported).await;
        stage.join("g", 1).await;
        eventually_async("it runs", DEADLINE, ready, |ready| ready.starts_with("True")).await;
        assert_eq!(finds(&stage, "admin", "pods").await.1[0].0, "ok");
        reconciler.kill();
    });
}

#[test]
fn doctor_checks_a_machine_without_a_cluster() {
    stage(async |stage| {
        let nowhere = stage.tailyard("admin", &["doctor", "--node-checks", "-o", "json"]).env("KUBECONFIG", "/nowhere").output().await;
        let nowhere = nowhere.expect("the binary");
        let doctor = stage.tailyard("admin", &["doctor"]).env("KUBECONFIG", "/nowhere").output().await.expect("the binary");
        assert_eq!(doctor.status.code(), Some(1), "without a cluster there is nothing else to look at");
        let checks: Vec<Value> = serde_json::from_slice(&nowhere.stdout).expect("JSON");
        let finding =
            |name: &str| checks.iter().find(|check| check["name"] == name).map(|check| check["finding"].clone()).unwrap_or_default();
        assert_eq!(finding("api-server"), json!("warn"), "a machine need not have a kubeconfig");
        assert_eq!((finding("firewall"), finding("mtu")), (json!("ok"), json!("ok")), "{checks:#?}");
        for name in ["kernel", "tun", "udp-offloads", "connections"] {
            assert_ne!(finding(name), Value::Null, "{name}");
        }
    });
}
