//! The operator's device: one name in the tailnet with a standby Pod, which serves without a reconciler, in both modes.

use std::time::{Duration, SystemTime};

use kit::cluster::chart::{self, NAMESPACE, RECONCILER};
use kit::cluster::{DEADLINE, site};
use kit::wait::{eventually, until};

use super::stage::{DEVS, Stage, has_group};

const DEVICE: &str = "tailscale-operator";
const SERVICE: &str = "service/tailyard-api-server";
const PODS: &str = "tailscale.com/parent-resource=tailyard-api-server";
/// Port of the Kubernetes API.
const HTTPS: u16 = 443;
/// Number of answers after which the API is served again.
const ENOUGH: u64 = 60;
/// Time limit of the take-over by the other Pod.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(20);

/// Sets the mode of the operator's API server proxy by the chart.
fn set_mode(stage: &Stage, mode: &str) {
    let class = format!("defaultProxyClass={}", site::CLASS);
    let mode = format!("apiServerProxyConfig.mode={mode}");
    chart::helm(&stage.cluster, "upgrade", &[&mode, "operatorConfig.defaultTags={tag:k8s}", &class], &["--reset-then-reuse-values"]);
}

/// Serves kubectl by the operator's device: while no reconciler runs, and after the active Pod is deleted.
pub(crate) fn serves_without_a_reconciler(stage: &Stage) {
    let cluster = &stage.cluster;
    let issued = stage.pebble.issued();
    set_mode(stage, "true");
    until("its Service", DEADLINE, || cluster.try_kubectl(&["get", "-n", NAMESPACE, SERVICE]).status.success());
    cluster.wait(&["-n", NAMESPACE, "--for=condition=TailscaleProxyReady", SERVICE]);
    eventually("no fault", DEADLINE, || cluster.doctor().faults(&[]).is_empty().then_some(()));
    stage.alice.configure(DEVICE);
    let identity = || stage.alice.identity(DEVICE, &[]).ok();
    let user = eventually("an identity", DEADLINE, || identity().filter(|user| has_group(user, DEVS)));
    let address = cluster.tailnet.addresses_of(DEVICE);
    assert_eq!(stage.pebble.issued(), issued + 1, "one order");
    eventually("an active and a waiting Pod", DEADLINE, || (running(stage).len() == 2).then_some(()));

    cluster.kubectl(&["scale", "-n", NAMESPACE, RECONCILER, "--replicas=0"]);
    let reconcilers = || cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=reconciler", "-o", "name"]);
    eventually("no reconciler", DEADLINE, || reconcilers().is_empty().then_some(()));
    assert!(stage.alice.kubectl(&["get", "pods", "-o", "name"]).contains("pod/"), "without a reconciler");
    let load = stage.alice.client.begin((DEVICE, HTTPS), "{", "20", "5s");
    let (deleted, active) = (SystemTime::now(), ready(stage));
    cluster.kubectl(&["delete", "pod", "-n", NAMESPACE, &active, "--wait=false"]);
    std::thread::sleep(Duration::from_secs(3));
    let answered = load.so_far().answered_so_far();
    eventually("answers of the other Pod", DEADLINE, || (load.so_far().answered_so_far() > answered + ENOUGH).then_some(()));
    let report = load.end();
    let outage = report.last_failure_after(deleted);
    println!("the active Pod is deleted: the last failed connection began after {outage:?}; {report}");
    report.measured("the active Pod of the operator's device is deleted");
    assert!(outage < TAKEN_OVER_WITHIN, "{report}");
    assert_eq!((identity(), cluster.tailnet.addresses_of(DEVICE)), (Some(user), address), "the same device");
    assert!(stage.alice.kubectl(&["exec", super::stage::SHELL, "--", "echo", "hello"]).contains("hello"));

    set_mode(stage, "noauth");
    let token = cluster.kubectl(&["create", "token", "reader"]);
    let bearer = format!("Authorization: Bearer {}", token.trim());
    stage.mallory.client.resolve(DEVICE);
    let (own, took) = Stage::timed("the identity of the token", || {
        let user = stage.mallory.identity(DEVICE, &["-H", &bearer]).ok()?;
        (user["username"] == "system:serviceaccount:default:reader").then_some(user)
    });
    println!("the operator's device in mode noauth after {took:?}: {own}");
    let refusal = stage.alice.identity(DEVICE, &[]).expect_err("the tailnet identity has no effect");
    assert!(refusal.contains("system:anonymous") || refusal.contains("status: 401"), "{refusal}");

    set_mode(stage, "false");
    eventually("no Service", DEADLINE, || (!cluster.try_kubectl(&["get", "-n", NAMESPACE, SERVICE]).status.success()).then_some(()));
    chart::wait_gone(cluster, "tailyard-api-server");
    assert!(!cluster.tailnet.knows(DEVICE), "its device is deleted");
    assert_eq!(cluster.kubectl(&["get", "clusterroles,clusterrolebindings", "-l", PODS, "-o", "name"]), "");
}

/// Names of its Pods whose container runs, each with whether it is ready.
fn running(stage: &Stage) -> Vec<(String, bool)> {
    let fields = "{.metadata.name} {.status.containerStatuses[0].started} {.status.containerStatuses[0].ready} ";
    let path = format!("jsonpath={{range .items[*]}}{fields}{{end}}");
    let found = stage.cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", PODS, "-o", &path]);
    let words: Vec<&str> = found.split_whitespace().collect();
    words.chunks(3).filter(|pod| pod.get(1) == Some(&"true")).map(|pod| (pod[0].to_owned(), pod.get(2) == Some(&"true"))).collect()
}

/// The Pod that serves.
fn ready(stage: &Stage) -> String {
    eventually("a ready Pod", DEADLINE, || running(stage).into_iter().find(|(_, is_ready)| *is_ready)).0
}
