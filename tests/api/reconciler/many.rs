//! A thousand Services at once, with Kubernetes' controller of EndpointSlices: requests of each, and slices that are written once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::stream::{StreamExt, iter};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use kit::apiserver::DEADLINE;
use kit::reconciler::{Stage, stage};
use kit::wait::until_async;

const SERVICES: usize = 1000;
const LONG: Duration = Duration::from_mins(3);

/// A replica's Pod on a node of its own, as Kubernetes' controller ignores Pods of unknown nodes.
async fn place(stage: &Stage, ordinal: u8) {
    let (name, node) = (format!("g-{ordinal}"), format!("n{ordinal}"));
    let object = json!({"metadata": {"name": node, "labels": {"topology.kubernetes.io/zone": "z"}}});
    stage.all::<Node>().create(&PostParams::default(), &serde_json::from_value(object).expect("a Node")).await.expect("made");
    let spec = json!({"nodeName": node, "serviceAccountName": "g", "containers": [{"name": "tailscale", "image": "x"}]});
    let object = json!({"metadata": {"name": name}, "spec": spec});
    let make =
        async || stage.here::<Pod>().create(&PostParams::default(), &serde_json::from_value(object.clone()).expect("a Pod")).await.is_ok();
    until_async("the Pod", DEADLINE, make).await;
}

/// Creates the Services.
async fn make(stage: &Stage) {
    let one = async |number: usize| {
        let annotations = json!({"tailscale.com/proxy-group": "g", "tailscale.com/tailnet-ip": "100.64.0.9"});
        let object = json!({"metadata": {"name": format!("s{number}"), "annotations": annotations},
            "spec": {"type": "ExternalName", "externalName": "placeholder.invalid", "ports": [{"name": "web", "port": 80, "protocol": "TCP"}]}});
        stage.users().create(&PostParams::default(), &serde_json::from_value(object).expect("a Service")).await.expect("made");
    };
    iter(0..SERVICES).for_each_concurrent(16, one).await;
}

/// The children's slices.
async fn slices(stage: &Stage) -> Vec<EndpointSlice> {
    let children = ListParams::default().labels("tailscale.com/svc-type=egress");
    stage.here::<EndpointSlice>().list(&children).await.expect("slices").items
}

/// Whether each child has exactly one slice, in which so many endpoints are ready.
async fn complete(stage: &Stage, ready: usize) -> bool {
    let slices = slices(stage).await;
    let is_ready = |slice: &EndpointSlice| {
        let endpoints = slice.endpoints.iter().flatten().filter_map(|endpoint| endpoint.conditions.as_ref()?.ready);
        endpoints.filter(|ready| *ready).count() == ready
    };
    slices.len() == SERVICES && slices.iter().all(is_ready)
}

/// Waits until Kubernetes' controller has done what was to do: it takes Services in turn, and this one comes last.
async fn caught_up(stage: &Stage, name: &str) {
    let object = json!({"metadata": {"name": name}, "spec": {"selector": {"a": name}, "ports": [{"port": 80}]}});
    stage.here::<Service>().create(&PostParams::default(), &serde_json::from_value(object).expect("a Service")).await.expect("made");
    let of = ListParams::default().labels(&format!("kubernetes.io/service-name={name}"));
    let made = async || !stage.here::<EndpointSlice>().list(&of).await.expect("slices").items.is_empty();
    until_async("the controller has caught up", LONG, made).await;
}

/// Whether all users' Services are ready.
async fn all_ready(stage: &Stage) -> bool {
    stage.acknowledge("g", 2).await;
    let services = stage.users().list(&ListParams::default()).await.expect("Services");
    let ready = |service: &Service| {
        let conditions = service.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        conditions.iter().any(|condition| condition.type_ == "TailscaleEgressSvcReady" && condition.status == "True")
    };
    services.iter().filter(|service| ready(service)).count() == SERVICES
}

/// Versions of the slices' content, by name.
async fn generations(stage: &Stage) -> BTreeMap<String, i64> {
    slices(stage).await.into_iter().map(|slice| (slice.name_any(), slice.metadata.generation.unwrap_or_default())).collect()
}

/// Number of slices that the reconciler has changed.
fn patched_slices(stage: &Stage) -> usize {
    stage.cluster.writes().iter().filter(|write| write.starts_with("patch endpointslices")).count()
}

#[test]
fn thousand_services_cost_few_requests_and_slices_are_written_once() {
    stage(async |mut stage| {
        stage.cluster.start_endpoints();
        let _running = stage.reconciler_with("one", 9100, &["--tenancy", "open"]);
        stage.group("g", 2).await;
        place(&stage, 0).await;
        place(&stage, 1).await;
        stage.join("g", 2).await;
        caught_up(&stage, "first").await;
        let (before, begin) = (stage.cluster.requests().len(), Instant::now());
        make(&stage).await;
        let made = begin.elapsed();
        until_async("all are served", LONG, async || all_ready(&stage).await).await;
        let served = begin.elapsed();
        until_async("all slices are there", LONG, async || complete(&stage, 2).await).await;
        println!("{SERVICES} Services made after {made:?}, served after {served:?}, with slices after {:?}", begin.elapsed());
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        for request in stage.cluster.requests().into_iter().skip(before) {
            let words: Vec<_> = request.split(' ').collect();
            *kinds.entry(words[..words.len() - 2].join(" ")).or_default() += 1;
        }
        println!("requests: {kinds:#?}");
        // Three of each and its slice; two more of a Service that was reported unready first, on a slow machine.
        assert!(kinds.values().sum::<usize>() <= 6 * SERVICES, "{kinds:#?}");
        assert!(kinds.get("get services").is_none_or(|reads| *reads < 10), "{kinds:#?}");
        caught_up(&stage, "second").await;
        let first = generations(&stage).await;
        let early = first.keys().filter(|name| name.ends_with("-ipv4")).count();
        println!("{early} slices written by the reconciler");
        // Kubernetes' controller writes 20 a second: it keeps up with a slow machine.
        let keeps_up = served > Duration::from_secs(SERVICES as u64 / 20);
        assert!((early > 0 || keeps_up) && first.values().all(|generation| *generation == 1), "{early}: {first:#?}");

        let (begin, before) = (Instant::now(), patched_slices(&stage));
        let status =
            json!({"status": {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:01Z"}]}});
        stage.here::<Pod>().patch_status("g-1", &PatchParams::default(), &Patch::Merge(status)).await.expect("a status");
        until_async("no slice has the lost replica", LONG, async || complete(&stage, 1).await).await;
        println!("a lost replica has left all slices after {:?}", begin.elapsed());
        assert!(patched_slices(&stage) > before, "Kubernetes' controller alone needs 50 s");
        caught_up(&stage, "third").await;
        let second = generations(&stage).await;
        assert!(second.keys().eq(first.keys()) && second.values().all(|generation| *generation == 2), "{second:#?}");
    });
}
