//! Reports of Pods that do not exist or do not run.

use super::*;
use crate::api::condition::PROXY_READY;
use crate::model::controller::policy::assignment::StandaloneScope;
use crate::model::controller::workload::pod_fault::CreateFailure;

const CAUSE: &str = "pods \"pg-1\" is forbidden: exceeded quota: q";

fn refuse_pods(world: &mut World, set: &str, pod: &str) {
    world.unmade.insert(pod.to_owned());
    world.create_failure = Some(CreateFailure { set: set.to_owned(), cause: CAUSE.to_owned(), at: world.time() });
}

fn permit_pods(world: &mut World) {
    world.unmade.clear();
    world.create_failure = None;
}

/// Sets the status of a Pod's container, and makes the Pod unready.
fn crash(world: &mut World, pod: &str) {
    let mut value = serde_json::to_value(&world.pods[pod]).expect("JSON");
    value["status"]["conditions"][0]["status"] = json!("False");
    value["status"]["containerStatuses"] = json!([{"name": "tailscale", "ready": false, "restartCount": 4, "image": "x", "imageID": "",
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
        "lastState": {"terminated": {"exitCode": 64, "reason": "Error"}}}]);
    world.pods.insert(pod.to_owned(), serde_json::from_value(value).expect("a Pod"));
}

#[test]
fn condition_of_a_group_says_why_a_pod_does_not_exist() {
    let mut world = World::new();
    world.group("pg", json!({"type": "egress"}));
    refuse_pods(&mut world, "pg", "pg-1");
    world.settle();
    let (status, reason, message) = world.ready("pg");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "ProxyGroupCreating"));
    let fix = "raise the ResourceQuota of the proxies' namespace";
    assert_eq!(message, format!("1/2 ProxyGroup pods running; Pod pg-1: cannot be created: {CAUSE}; {fix}"));
    assert_eq!(world.events, ["ProxyGroupCreating"], "one Event while it lasts");
    permit_pods(&mut world);
    world.settle();
    assert_eq!(world.ready("pg").0, "True");
}

#[test]
fn condition_of_a_group_says_why_a_pod_does_not_run() {
    let mut world = serving();
    crash(&mut world, "pg-0");
    world.pass("pg");
    let message = world.ready("pg").2;
    assert!(message.starts_with("1/2 ProxyGroup pods running; Pod pg-0: container tailscale ended with code 64 (Error)"), "{message}");
}

#[test]
fn condition_of_a_standalone_service_says_why_its_pod_does_not_exist_or_run() {
    let mut world = World::new();
    world.assignment.standalone = StandaloneScope::Everywhere;
    let key = ("default".to_owned(), "web".to_owned());
    let service = json!({"metadata": {"name": "web", "namespace": "default", "uid": "1234-UID", "annotations": {"tailscale.com/expose": "true"}},
        "spec": {"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"]}});
    world.services.insert(key, serde_json::from_value(service).expect("a Service"));
    let workload = world.observe("default/web").workload;
    let pod = names::replica(&workload, 0);
    refuse_pods(&mut world, &workload, &pod);
    world.settle();
    let condition = |world: &World| world.condition("web", PROXY_READY).expect("a condition");
    let (status, reason, message) = condition(&world);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "ProxyPending"));
    assert!(message.starts_with(&format!("Proxy {workload} does not serve yet: Pod {pod}: cannot be created: {CAUSE}; ")), "{message}");
    assert_eq!(world.events, ["ProxyPending"], "one Event while it lasts");
    permit_pods(&mut world);
    world.settle();
    assert_eq!(condition(&world).0, "True");
    crash(&mut world, &pod);
    world.pass("default/web");
    assert!(condition(&world).2.contains("ended with code 64"), "{:?}", condition(&world));
}

#[test]
fn fault_of_a_standalone_ingress_says_why_its_pod_does_not_exist() {
    let mut world = World::new();
    world.assignment.standalone = StandaloneScope::Everywhere;
    world.plain("web", json!({}), json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}]}));
    world.put_ingress("shop", json!({}), site("shop", "web"));
    let key = "ingress/default/shop";
    let workload = world.observe(key).workload;
    refuse_pods(&mut world, &workload, &names::replica(&workload, 0));
    world.rounds(5);
    let faults = world.pass(key).faults;
    assert!(faults.len() == 1 && faults[0].reason == "ProxyPending" && faults[0].message.contains(CAUSE), "{faults:?}");
    permit_pods(&mut world);
    world.settle();
    assert_eq!(world.pass(key).faults, []);
}
