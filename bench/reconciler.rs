//! What does the reconciler use for 1,000 and for 10,000 egress Services on one group: until all are ready, for one more, and idle?
//!
//! The program itself under its real rights, on a real kube-apiserver, etcd and endpoint slice controller; the control plane is the
//! stand-in of the tests, and the replicas are the proxy's own code without a kernel.

mod replicas;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kit::passes::IdleGroup;
use kit::reconciler::{Running, Stage, stage};
use kit::sheet::counted;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::sleep;

use crate::support::{Args, Point, Sheet, milliseconds, ms, processor_time, processor_time_since_start, status};
use crate::users::Users;
use replicas::Replica;

/// The group of all Services.
const GROUP: &str = "g";
/// How many Services show that it works.
const FEW: usize = 20;
/// Number of replicas where it is not varied.
const REPLICAS: u8 = 2;
/// How many Services a group has where it is.
const MANY_REPLICAS: usize = 1_000;
/// Upper bound of every wait.
const PATIENCE: Duration = Duration::from_mins(20);
/// Interval between single Services: longer than a replica's interval between two status writes.
const APART: Duration = Duration::from_millis(1500);

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    let mut sheet = Sheet::new("One group: until all egress Services are ready, one more, and at rest");
    let sizes = args.size.map_or_else(|| if args.quick { vec![FEW] } else { vec![100, 1_000, 10_000] }, |size| vec![size]);
    for size in &sizes {
        decide(*size, args, &mut sheet)?;
    }
    let mut groups: Vec<_> = sizes.into_iter().map(|size| (size, REPLICAS)).collect();
    if groups.iter().any(|(size, _)| *size == MANY_REPLICAS) {
        groups.extend([1, 5].map(|replicas| (MANY_REPLICAS, replicas)));
    }
    for group in groups {
        on_stage(async |stage| measure(stage, group, args, &mut sheet).await)?;
    }
    Ok(sheet)
}

/// Measures on a stage of its own.
pub(crate) fn on_stage(measure: impl AsyncFnOnce(Stage) -> Result<()> + Send) -> Result<()> {
    let measured = Mutex::new(None);
    stage(async |stage| {
        let done = measure(stage).await;
        *measured.lock().expect("no panic under the lock") = Some(done);
    });
    measured.into_inner().expect("no panic under the lock").context("the stage's work did not end")?
}

/// The cost of a pass alone.
fn decide(size: usize, args: &Args, sheet: &mut Sheet) -> Result<()> {
    let mut group = IdleGroup::of(size)?;
    let (mut first, mut same, mut changed, mut acknowledged) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for number in 0..args.repetitions(30) {
        first.push(milliseconds(|| group.first_pass()).0);
        same.push(milliseconds(|| group.pass()).0);
        group.retarget(number % size)?;
        let (took, pass) = milliseconds(|| group.pass());
        changed.push(took);
        group.apply_plan(pass)?;
        group.acknowledge()?;
        let (took, pass) = milliseconds(|| group.pass());
        acknowledged.push(took);
        group.apply_plan(pass)?;
    }
    sheet.plot(point("a pass with nothing remembered", size), "ms", first, None);
    sheet.plot(point("a pass, nothing changed", size), "ms", same, None);
    sheet.plot(point("a pass, one Service changed", size), "ms", changed, None);
    sheet.plot(point("a pass, a replica took one up", size), "ms", acknowledged, None);
    Ok(())
}

/// Counters at a moment.
#[derive(Clone, Copy)]
struct Mark {
    requests: u64,
    writes: u64,
    looks: u64,
    processor: Duration,
}

impl Mark {
    fn set(running: &Running) -> Result<Self> {
        Ok(Self {
            requests: running.metric("tailyard_api_requests_total"),
            writes: running.metric("tailyard_api_writes_total"),
            looks: running.looks(),
            processor: processor_time(running.id())?,
        })
    }
}

/// Measures a number of Services on a group of a number of replicas.
async fn measure(mut stage: Stage, (size, replicas): (usize, u8), args: &Args, sheet: &mut Sheet) -> Result<()> {
    stage.cluster.start_endpoints();
    let running = stage.reconciler_with("one", 9100, &["--tenancy", "open"]);
    running.leads(true).await;
    let ports = json!({"start": 10_000, "end": 39_999});
    stage.group_of(GROUP, json!({"type": "egress", "replicas": replicas, "tailyard": {"matchPortRange": ports}})).await;
    stage.join(GROUP, replicas).await;
    let forwarding = forwarding(&stage, replicas).await?;
    let mut users = Users::watch(stage.users(), |number| format!("100.64.{}.{}", number / 250 % 64, number % 250));
    sleep(Duration::from_secs(2)).await;

    let before = Mark::set(&running)?;
    let start = Instant::now();
    users.make(GROUP, 0..size).await?;
    let made = start.elapsed();
    users.ready(size, PATIENCE).await?;
    let took = start.elapsed();
    settled(&running).await?;
    let all = Mark::set(&running)?;
    let goal = |text: &'static str| (size == 1_000).then_some(text);
    let system = if replicas == REPLICAS { "Tailyard".to_owned() } else { format!("Tailyard, {}", counted(replicas.into(), "replica")) };
    let point = |plot: &str, size: usize| Point::of(plot, &system, size as u64);
    let each = |from: u64, to: u64| per(to - from, size);
    sheet.plot(point("until the last is made by its user", size), "s", vec![made.as_secs_f64()], None);
    sheet.plot(point("until the last is ready", size), "s", vec![took.as_secs_f64()], goal("≤ 30"));
    sheet.plot(point("requests for each", size), "", vec![each(before.requests, all.requests)], goal("≤ 10"));
    sheet.plot(point("writes for each", size), "", vec![each(before.writes, all.writes)], goal("≤ 5"));
    sheet.plot(point("passes over the group", size), "", vec![per(all.looks - before.looks, 1)], None);
    let processor = ms(all.processor.saturating_sub(before.processor));
    sheet.plot(point("processor time for each", size), "ms", vec![processor / per_size(size)], None);
    sheet.plot(point("resident", size), "MB", vec![status(running.id(), "VmRSS:")?], goal("≤ 100"));
    sheet.plot(point("the most resident", size), "MB", vec![status(running.id(), "VmHWM:")?], None);

    if replicas == REPLICAS {
        shown(&stage, size, args, sheet).await?;
        idle(&running, size, args, sheet).await?;
        one_more(&running, &mut users, size, args, sheet).await?;
        restart(&stage, running, size, args, sheet).await?;
    }
    for replica in forwarding {
        replica.abort();
    }
    Ok(())
}

/// The duration of `tailyard status`.
async fn shown(stage: &Stage, size: usize, args: &Args, sheet: &mut Sheet) -> Result<()> {
    let mut took = Vec::new();
    for _ in 0..args.repetitions(10) {
        let begun = Instant::now();
        let output = stage.tailyard("admin", &["status"]).output().await?;
        took.push(ms(begun.elapsed()));
        let rows = output.stdout.split(|byte| *byte == b'\n').filter(|row| row.windows(8).any(|part| part == b"service-")).count();
        ensure!(output.status.success() && rows >= size, "status shows {rows} of {size} Services");
    }
    sheet.plot(point("tailyard status, until it has shown all", size), "ms", took, None);
    Ok(())
}

/// The usage when nothing changes.
async fn idle(running: &Running, size: usize, args: &Args, sheet: &mut Sheet) -> Result<()> {
    let lasts = Duration::from_secs(if args.quick { 2 } else { 60 });
    let before = Mark::set(running)?;
    sleep(lasts).await;
    let after = Mark::set(running)?;
    let share = after.processor.saturating_sub(before.processor).as_secs_f64() / lasts.as_secs_f64() * 100.0;
    sheet.plot(
        point(&format!("writes in {} s at rest", lasts.as_secs()), size),
        "",
        vec![per(after.writes - before.writes, 1)],
        Some("≤ 0"),
    );
    sheet.plot(point("processor at rest", size), "%", vec![share], Some("≤ 1"));
    Ok(())
}

/// One Service after another is made, each when the one before is ready.
async fn one_more(running: &Running, users: &mut Users, size: usize, args: &Args, sheet: &mut Sheet) -> Result<()> {
    let (mut taken, mut requests, mut processor) = (Vec::new(), Vec::new(), Vec::new());
    for number in size..size + args.repetitions(if size > 1_000 { 20 } else { 60 }) {
        sleep(APART).await;
        let before = Mark::set(running)?;
        let begun = Instant::now();
        users.make(GROUP, number..number + 1).await?;
        users.ready(number + 1, PATIENCE).await?;
        taken.push(ms(begun.elapsed()));
        settled(running).await?;
        let after = Mark::set(running)?;
        requests.push(per(after.requests - before.requests, 1));
        processor.push(ms(after.processor.saturating_sub(before.processor)));
    }
    let goal = (size == 1_000).then_some("p99 ≤ 1000");
    sheet.plot(point("one more: applied until ready", size), "ms", taken, goal);
    sheet.plot(point("one more: requests", size), "", requests, None);
    sheet.plot(point("one more: processor time", size), "ms", processor, None);
    Ok(())
}

/// The processor time of a start with all objects in place, until it rests as the leader.
async fn restart(stage: &Stage, running: Running, size: usize, args: &Args, sheet: &mut Sheet) -> Result<()> {
    running.kill();
    let mut used = Vec::new();
    for _ in 0..args.repetitions(5) {
        let running = stage.reconciler_with("next", 9100, &["--tenancy", "open"]);
        running.leads(true).await;
        settled(&running).await?;
        used.push(ms(processor_time_since_start(running.id())?));
        running.kill();
    }
    sheet.plot(point("start with all of them: processor time", size), "ms", used, None);
    Ok(())
}

/// Starts the replicas.
async fn forwarding(stage: &Stage, replicas: u8) -> Result<Vec<tokio::task::JoinHandle<()>>> {
    let mut started = Vec::new();
    for ordinal in 0..replicas {
        let name = format!("{GROUP}-{ordinal}");
        let pod = stage.here::<Pod>().get(&name).await?;
        let address = pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()).context("a Pod without an address")?.parse()?;
        let replica = Replica { name: pod.name_any(), address, configs: stage.here(), states: stage.here() };
        started.push(tokio::spawn(async move {
            if let Err(error) = replica.run(GROUP.to_owned()).await {
                println!("a replica ended: {error:#}");
            }
        }));
    }
    Ok(started)
}

/// Waits until the API server had no requests for a second.
async fn settled(running: &Running) -> Result<()> {
    let (begun, mut last) = (Instant::now(), (u64::MAX, Instant::now()));
    while last.1.elapsed() < Duration::from_secs(1) || last.0 == u64::MAX {
        if begun.elapsed() > PATIENCE {
            bail!("the reconciler finds no rest");
        }
        let now = running.metric("tailyard_api_requests_total");
        if now != last.0 {
            last = (now, Instant::now());
        }
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// The position of a figure in a plot.
fn point(plot: &str, size: usize) -> Point {
    Point::of(plot, "Tailyard", size as u64)
}

#[allow(clippy::cast_precision_loss, reason = "counts are small")]
fn per_size(size: usize) -> f64 {
    size as f64
}

#[allow(clippy::cast_precision_loss, reason = "counts are small")]
fn per(count: u64, size: usize) -> f64 {
    count as f64 / per_size(size)
}
