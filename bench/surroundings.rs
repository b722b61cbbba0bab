//! How much memory does the reconciler use in a large cluster with few relevant objects?
//!
//! The program itself under its real rights, on a real kube-apiserver and etcd: one group without Services, beside unrelated Nodes,
//! Services and `EndpointSlices`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::stream::{StreamExt, TryStreamExt, iter};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kit::reconciler::Stage;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::reconciler::on_stage;
use crate::support::{Args, Sheet, ms, processor_time, status};

/// Objects that are made at a time.
const AT_ONCE: usize = 16;
/// The images of a node, of which it names fifty at most.
const IMAGES: usize = 50;

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    let mut sheet = Sheet::new("Memory of the reconciler beside Nodes and Services that are no business of its groups");
    let [nodes, services] = if args.quick { [20, 50] } else { [1_000, 10_000] };
    on_stage(async |stage| measure(&stage, nodes, services, &mut sheet).await)?;
    Ok(sheet)
}

async fn measure(stage: &Stage, nodes: usize, services: usize, sheet: &mut Sheet) -> Result<()> {
    stage.group("g", 0).await;
    let one_group = resident(stage, "alone").await?;
    make(&stage.all::<Node>(), nodes, node).await?;
    make(&stage.users(), services, service).await?;
    make(&Api::<EndpointSlice>::namespaced(stage.client.clone(), kit::reconciler::USERS), services, slice).await?;
    let beside = resident(stage, "beside").await?;
    let of = format!("{nodes} Nodes, {services} Services and EndpointSlices of others");
    sheet.add("resident, with one group alone", "MB", vec![one_group.resident], None);
    sheet.add(format!("resident, {of}"), "MB", vec![beside.resident], Some("≤ 100"));
    sheet.add(format!("the most resident while it starts, {of}"), "MB", vec![beside.most], None);
    sheet.add(format!("processor time of its start, {of}"), "ms", vec![ms(beside.processor.saturating_sub(one_group.processor))], None);
    Ok(())
}

/// What a reconciler has used until its first sync.
struct Start {
    /// Resident memory, and its peak, in MB.
    resident: f64,
    most: f64,
    processor: Duration,
}

async fn resident(stage: &Stage, name: &str) -> Result<Start> {
    let running = stage.reconciler(name, 9100);
    running.leads(true).await;
    stage.quiet(&running).await;
    let (resident, most) = (status(running.id(), "VmRSS:")?, status(running.id(), "VmHWM:")?);
    let taken = Start { resident, most, processor: processor_time(running.id())? };
    running.kill();
    Ok(taken)
}

/// Creates objects with the status that kubelets and controllers write.
async fn make<K>(api: &Api<K>, count: usize, object: fn(usize) -> Value) -> Result<()>
where
    K: Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let one = async |number: usize| {
        let object = object(number);
        let name = object["metadata"]["name"].as_str().context("a name")?.to_owned();
        api.create(&PostParams::default(), &serde_json::from_value(object.clone())?).await?;
        if let Some(status) = object.get("status") {
            let patch = json!({"status": status});
            api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        anyhow::Ok(())
    };
    iter(0..count).map(one).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    let made = api.list_metadata(&kube::api::ListParams::default()).await?.items.len();
    ensure!(made >= count, "{made} of {count} were made");
    Ok(())
}

fn node(number: usize) -> Value {
    let label = |label: usize| (format!("example.com/label-{label}"), json!(format!("value-{label}-of-node-{number}")));
    let labels: serde_json::Map<_, _> = (0..25).map(label).collect();
    let digest = "0123456789abcdef".repeat(4);
    let image = |image: usize| {
        let name = format!("registry.example.com/team-{}/image-{image}", number % 10);
        json!({"names": [format!("{name}@sha256:{digest}"), format!("{name}:v1.{image}")], "sizeBytes": 100_000_000})
    };
    let condition = |kind: &str| {
        json!({"type": kind, "status": "False", "reason": "KubeletHasEnough", "message": "kubelet has enough of it",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let conditions: Vec<_> = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"].map(condition).into();
    let [high, low] = [number / 250, number % 250 + 1];
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("node-{number}"), "labels": labels},
        "spec": {"podCIDR": format!("10.{high}.{low}.0/24"), "podCIDRs": [format!("10.{high}.{low}.0/24")]},
        "status": {"addresses": [{"type": "InternalIP", "address": format!("192.168.{high}.{low}")}, {"type": "Hostname", "address": format!("node-{number}")}],
            "conditions": conditions, "images": (0..IMAGES).map(image).collect::<Vec<_>>(),
            "capacity": {"cpu": "64", "memory": "256Gi", "pods": "110"}, "allocatable": {"cpu": "63", "memory": "250Gi", "pods": "110"}}})
}

fn service(number: usize) -> Value {
    let labels = json!({"app.kubernetes.io/name": format!("app-{number}"), "app.kubernetes.io/part-of": "shop", "team": format!("team-{}", number % 50)});
    let port = |port: u16| json!({"name": format!("p{port}"), "port": port, "protocol": "TCP"});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("other-{number}"), "labels": labels,
            "annotations": {"example.com/note": "a Service of another team, with some words about its purpose and its contact"}},
        "spec": {"clusterIP": "None", "selector": labels, "ports": [port(80), port(443), port(9090)]}})
}

fn slice(number: usize) -> Value {
    let endpoint = |last: usize| {
        json!({"addresses": [format!("10.{}.{}.{last}", number / 250 % 250, number % 250)], "conditions": {"ready": true, "serving": true},
            "nodeName": format!("node-{}", number % 1_000), "targetRef": {"kind": "Pod", "name": format!("other-{number}-{last}"), "namespace": "default"}})
    };
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("other-{number}-abcde"), "labels": {"kubernetes.io/service-name": format!("other-{number}")}},
        "endpoints": [endpoint(1), endpoint(2), endpoint(3)], "ports": [{"name": "p80", "port": 80, "protocol": "TCP"}]})
}
