//! What does a compromised proxy Pod cost the reconciler: memory, and the time of other tenants?
//!
//! The program itself under its real rights, on a real kube-apiserver and etcd. The Pod has the token of its `ServiceAccount`, and writes
//! the Secrets that its Role names.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::future::{Either, select, try_join, try_join_all};
use futures_util::stream::{StreamExt, TryStreamExt};
use k8s_openapi::ByteString;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::rbac::v1::Role;
use kit::apiserver::NAMESPACE;
use kit::reconciler::{Health, Running, Stage};
use kit::wait::eventually_async;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use tailyard::api::{egress, ingress};
use tailyard::model::base::gzip;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::reconciler::on_stage;
use crate::support::{Args, Sheet, ms, status};
use crate::users::Users;

/// Upper bound of every wait.
const PATIENCE: Duration = Duration::from_mins(2);
/// Maximum JSON elements of a state that the reconciler parses, and of the ingress status in it.
const ELEMENTS: usize = 200_000;
const INGRESS_ELEMENTS: usize = 50_000;
/// Bytes of a Secret: the API server's maximum, without what a state Secret has of its own.
const ROOM: usize = (1 << 20) - (8 << 10);
/// Writes of the Pod in a second, and how many of them at a time.
const RATE: u32 = 140;
const AT_ONCE: u32 = 4;
/// Interval between two Services of the other tenant.
const APART: Duration = Duration::from_millis(400);

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    let mut sheet = Sheet::new("The reconciler beside a proxy Pod that writes whatever its Role lets it");
    let (replicas, ingresses, services) = if args.quick { (1, 2, 5) } else { (2, 40, 50) };
    on_stage(async |stage| memory(&stage, replicas, ingresses, &mut sheet).await)?;
    on_stage(async |stage| latency(&stage, services, &mut sheet).await)?;
    Ok(sheet)
}

/// Measures the reconciler's memory before and after all Secrets of the Pod are filled.
async fn memory(stage: &Stage, replicas: u8, ingresses: usize, sheet: &mut Sheet) -> Result<()> {
    let running = lead(stage).await;
    stage.publisher("in", replicas).await;
    for number in 0..ingresses {
        stage.ingress(&format!("i{number}"), "in", &format!("i{number}")).await;
    }
    let all = ingresses + usize::from(replicas) + 1;
    let names = eventually_async("the Pod's Secrets", PATIENCE, async || writable(stage, "in").await, |names| names.len() == all).await;
    let running = restart(stage, running).await;
    let before = resident(stage, &running).await?;
    let secrets = secrets(stage, "in").await;
    let patch = Patch::Merge(json!({"data": expensive()?}));
    for name in &names {
        secrets.patch_metadata(name, &PatchParams::default(), &patch).await.with_context(|| format!("Secret {name}"))?;
    }
    let after = resident(stage, &running).await?;
    let most = status(running.id(), "VmHWM:")?;
    let again = resident(stage, &restart(stage, running).await).await?;
    let of = format!("{} Secrets of an ingress group", names.len());
    sheet.add(format!("resident, {of}"), "MB", vec![before], None);
    sheet.add(format!("resident, {of}, filled: more than before"), "MB", vec![after - before], Some("≤ 50"));
    sheet.add(format!("the most resident, {of}, filled: more than before"), "MB", vec![most - before], None);
    sheet.add(format!("resident, {of}, filled, after a restart: more than before"), "MB", vec![again - before], Some("≤ 50"));
    Ok(())
}

/// Measures the time of another tenant's Services, and the gaps of failover probes, without and with an attack.
async fn latency(stage: &Stage, services: usize, sheet: &mut Sheet) -> Result<()> {
    let running = lead(stage).await;
    stage.group("x", 1).await;
    stage.member("x", 0).await;
    stage.group("other", 2).await;
    let probed = [stage.probed_pod("other", 0).await, stage.probed_pod("other", 1).await];
    stage.quiet(&running).await;
    let secrets = secrets(stage, "x").await;
    let tenant = async |from: usize| tenant(stage, &probed, from..from + services).await;
    let without_attack = observe(sheet, "no attack", tenant(0).await?);
    let packed = gzip::pack(&ports(ELEMENTS / 2 - 10))?;
    let states =
        [("200,000 elements", BTreeMap::from([(egress::KEY_COMPRESSED, ByteString(packed))])), ("the largest Secret", expensive()?)];
    for (number, (state, data)) in states.into_iter().enumerate() {
        secrets.patch_metadata("x-0", &PatchParams::default(), &Patch::Merge(json!({"data": data}))).await?;
        let (begun, writes) = (Instant::now(), Cell::new(0));
        let attack = pin!(attack(&secrets, "x-0", &writes));
        let attacked = match select(pin!(tenant((number + 1) * services)), attack).await {
            Either::Left((attacked, _)) => attacked?,
            Either::Right((ended, _)) => return ended.context("the attack ended"),
        };
        let rate = f64::from(writes.get()) / begun.elapsed().as_secs_f64();
        sheet.add(format!("writes of the Pod in a second, {state}"), "", vec![rate], None);
        let p99 = observe(sheet, state, attacked);
        sheet.add(
            format!("p99 of a Service of another tenant, {state}: more than without"),
            "ms",
            vec![p99 - without_attack],
            Some("≤ 1000"),
        );
    }
    sheet.add("pauses of failover", "", vec![pauses(&running)], Some("≤ 0"));
    Ok(())
}

/// What another tenant has seen, in milliseconds.
struct Tenant {
    /// From the time when a Service was due until it had a child, and until its request was answered.
    taken: Vec<f64>,
    requests: Vec<f64>,
    /// The longest time between two probes of a replica.
    gap: Duration,
}

/// Adds the lines of a tenant's Services; returns the p99 of their times.
fn observe(sheet: &mut Sheet, beside: &str, Tenant { taken, requests, gap }: Tenant) -> f64 {
    sheet.add(format!("longest time between two probes of a replica, {beside}"), "ms", vec![ms(gap)], None);
    sheet.add(format!("a Service of another tenant: the request that makes it, {beside}"), "ms", requests, None);
    sheet.add(format!("a Service of another tenant: made until it has a child, {beside}"), "ms", taken, None);
    sheet.lines.last().map_or(f64::INFINITY, |line| line.p99)
}

/// Creates Services of another tenant, each when it is due; returns the time until each has a child, and the longest gap of probes.
async fn tenant(stage: &Stage, probed: &[Health], numbers: Range<usize>) -> Result<Tenant> {
    let users = Users::watch(stage.users(), |number| format!("100.64.0.{}", number % 250));
    let mut changes = watcher(stage.here::<Service>(), watcher::Config::default()).default_backoff().applied_objects().boxed();
    let (unanswered, mut taken, mut requests) = (RefCell::new(BTreeMap::new()), Vec::new(), Vec::new());
    let gap = || probed.iter().map(Health::longest_gap).max().unwrap_or_default();
    gap();
    let make = async {
        let mut due = interval(APART);
        for number in numbers.clone() {
            let due = due.tick().await.into_std();
            unanswered.borrow_mut().insert(format!("service-{number}"), due);
            users.make("other", number..number + 1).await?;
            requests.push(ms(due.elapsed()));
        }
        anyhow::Ok(())
    };
    let hear = async {
        while taken.len() < numbers.len() {
            let child = timeout(PATIENCE, changes.try_next()).await.context("no answer")??.context("the watch ended")?;
            let parent = child.labels().get("tailscale.com/parent-resource");
            let answered = parent.and_then(|parent| unanswered.borrow_mut().remove(parent));
            taken.extend(answered.map(|due: Instant| ms(due.elapsed())));
        }
        Ok(())
    };
    try_join(make, hear).await?;
    Ok(Tenant { taken, requests, gap: gap() })
}

/// Changes a Secret at a rate, without end; `writes` counts.
async fn attack(secrets: &Api<Secret>, name: &str, writes: &Cell<u32>) -> Result<()> {
    let write = async |_| {
        let mut due = interval(Duration::from_secs(1) * AT_ONCE / RATE);
        due.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            due.tick().await;
            let patch = json!({"stringData": {"n": fastrand::u64(..).to_string()}});
            match secrets.patch_metadata(name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(_) => writes.set(writes.get() + 1),
                Err(kube::Error::Api(conflict)) if conflict.code == 409 => {}
                Err(error) => return Err(error),
            }
        }
    };
    let _: Vec<()> = try_join_all((0..AT_ONCE).map(write)).await?;
    Ok(())
}

/// Starts a reconciler, which leads.
async fn lead(stage: &Stage) -> Running {
    let running = stage.reconciler_with("one", 9100, &["--tenancy", "open"]);
    running.leads(true).await;
    running
}

/// Ends a reconciler, and starts another one without the wait for the Lease.
async fn restart(stage: &Stage, running: Running) -> Running {
    running.kill();
    stage.delete(&stage.here::<Lease>(), "tailyard-reconciler").await;
    lead(stage).await
}

/// The memory of a reconciler that has nothing to do, in MB.
async fn resident(stage: &Stage, running: &Running) -> Result<f64> {
    stage.quiet(running).await;
    status(running.id(), "VmRSS:")
}

/// How often failover did not run.
#[allow(clippy::cast_precision_loss, reason = "counts are small")]
fn pauses(running: &Running) -> f64 {
    running.log().matches("this process did not run").count() as f64
}

/// Secrets, with the rights of a workload's Pods.
async fn secrets(stage: &Stage, workload: &str) -> Api<Secret> {
    Api::namespaced(stage.cluster.client_of_account(workload).await, NAMESPACE)
}

/// The Secrets that the Pods of a workload may write.
async fn writable(stage: &Stage, workload: &str) -> Vec<String> {
    let role = stage.here::<Role>().get_opt(workload).await.expect("an answer").and_then(|role| role.rules);
    let rules = role.into_iter().flatten().filter(|rule| rule.verbs.iter().any(|verb| verb == "patch"));
    let rules = rules.filter(|rule| rule.resources.iter().flatten().any(|resource| resource == "secrets"));
    rules.flat_map(|rule| rule.resource_names.unwrap_or_default()).collect()
}

/// The data of a Secret that takes the most memory: as many entries as are parsed, compressed, and as many as have room beside.
fn expensive() -> Result<BTreeMap<&'static str, ByteString>> {
    let packed = gzip::pack(&object("rejected", |number| format!(r#""{number:020}":0"#), ELEMENTS - INGRESS_ELEMENTS - 2))?;
    let room = ROOM.saturating_sub(packed.len());
    let entry = |number| format!(r#""{number:05x}":{{}}"#);
    let plain = object("configs", entry, ((room - 20) / (entry(0).len() + 1)).min(INGRESS_ELEMENTS / 2 - 2));
    ensure!(plain.len() <= room, "too large");
    Ok([(egress::KEY_COMPRESSED, ByteString(packed)), (ingress::KEY, ByteString(plain))].into())
}

/// A JSON object with an object of these entries.
fn object(key: &str, entry: impl Fn(usize) -> String, entries: usize) -> Vec<u8> {
    format!(r#"{{"{key}":{{{}}}}}"#, (0..entries).map(entry).collect::<Vec<_>>().join(",")).into_bytes()
}

/// The state of a replica with one service of so many ports.
fn ports(count: usize) -> Vec<u8> {
    let ports = vec!["{}"; count].join(",");
    format!(r#"{{"services":{{"a":{{"ports":[{ports}],"tailnetTarget":{{}}}}}}}}"#).into_bytes()
}
