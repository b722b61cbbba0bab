//! Many standalone Services: requests of each, none at rest and none of a new leader.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::stream::{StreamExt, iter};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::{ListParams, PostParams};
use kube::core::PartialObjectMeta;
use serde_json::json;
use tailyard::api::names::DEVICE;

use super::proxies::SERVICE;
use kit::reconciler::{Running, Stage, stage};
use kit::wait::{eventually_async, until_async};

const LONG: Duration = Duration::from_mins(10);
/// Requests at once.
const CLIENTS: usize = 16;

/// Number of Services: `TAILYARD_PROXIES`, or few.
fn number() -> usize {
    kit::setting("TAILYARD_PROXIES").unwrap_or(40)
}

async fn make(stage: &Stage, name: String) {
    let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "ports": [{"port": 80, "protocol": "TCP"}]});
    let object = json!({"metadata": {"name": name}, "spec": spec});
    stage.users().create(&PostParams::default(), &serde_json::from_value(object).expect("a Service")).await.expect("made");
}

/// Conditions of the Services that are not ready.
async fn unready(stage: &Stage) -> BTreeMap<String, Vec<Condition>> {
    let services = stage.users().list(&ListParams::default()).await.expect("Services").items;
    let exposed = services.into_iter().filter(|service| service.spec.as_ref().is_some_and(|spec| spec.load_balancer_class.is_some()));
    let conditions = exposed.map(|service| (service.name_any(), service.status.and_then(|status| status.conditions).unwrap_or_default()));
    let is_ready = |condition: &Condition| condition.type_ == "TailscaleProxyReady" && condition.status == "True";
    conditions.filter(|(_, conditions)| !conditions.iter().any(is_ready)).collect()
}

/// Config Secrets without the record of their devices.
async fn unrecorded(stage: &Stage) -> Vec<String> {
    let secrets = stage.here::<Secret>().list_metadata(&ListParams::default()).await.expect("Secrets").items;
    let lacks = |secret: &&PartialObjectMeta<Secret>| secret.name_any().ends_with("-config") && !secret.annotations().contains_key(DEVICE);
    secrets.iter().filter(lacks).map(ResourceExt::name_any).collect()
}

/// Waits until each Service was reconciled by this process.
async fn reconciled(running: &Running, number: usize) {
    let passes = || running.metric("tailyard_reconcile_total{kind=\"Service\"");
    until_async("each was reconciled", LONG, async || passes() >= number as u64).await;
}

#[test]
fn many_standalone_services_cost_few_requests_and_a_new_leader_writes_nothing() {
    stage(async |stage| {
        let number = number();
        let running = stage.reconciler("one", 9100);
        running.leads(true).await;
        let (before, begin) = (stage.cluster.requests().len(), Instant::now());
        iter(0..number).for_each_concurrent(CLIENTS, |each| make(&stage, format!("s{each}"))).await;
        let join = async |each: usize| {
            let name = format!("s{each}");
            SERVICE.join(&stage, &name, &format!("default-{name}")).await;
        };
        iter(0..number).for_each_concurrent(CLIENTS, join).await;
        let joined = begin.elapsed();
        eventually_async("all are ready", LONG, async || unready(&stage).await, BTreeMap::is_empty).await;
        println!("{number} Services: all Pods joined after {joined:?}, all ready after {:?}", begin.elapsed());
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        for request in stage.cluster.requests().into_iter().skip(before) {
            let words: Vec<_> = request.split(' ').collect();
            *kinds.entry(words[..words.len() - 2].join(" ")).or_default() += 1;
        }
        println!("requests: {kinds:#?}");
        eventually_async("each device is recorded", LONG, async || unrecorded(&stage).await, Vec::is_empty).await;
        SERVICE.quiet(&stage, &running, &stage.users(), "s0").await;
        let (writes, reads) = (stage.cluster.writes(), || stage.hosted.calls("GET /api/v2/device/n"));
        assert_eq!(reads(), number, "one request for each new device");
        running.kill();
        let next = stage.reconciler("two", 9101);
        next.leads(true).await;
        reconciled(&next, number).await;
        SERVICE.quiet(&stage, &next, &stage.users(), "s0").await;
        assert_eq!(stage.cluster.writes().split_off(writes.len()), [""; 0], "nothing has changed");
        assert_eq!(reads(), number, "none at rest, and none of a new leader");
        // The device is recorded before the Service is ready.
        assert!(kinds.values().sum::<usize>() <= 15 * number, "{kinds:#?}");
    });
}
