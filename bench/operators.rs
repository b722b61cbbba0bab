//! What does the Tailscale operator take for egress Services on one group, and what does our reconciler?
//!
//! Both on the same cluster of two nodes, in the same run, one after the other: a user's group of two replicas, each party with the
//! proxies of its own. The control plane of both is the stand-in of the tests; all else is real. Requests are counted by the API
//! server, in its audit log. Needs root and what `tests/servers/build` makes.

#![allow(
    dead_code,
    unused_imports,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "shares the cluster and the parties of the tests"
)]

#[path = "support.rs"]
mod bench;
#[path = "../tests/dropin/parties.rs"]
mod parties;
#[path = "../tests/lab/tier.rs"]
mod tier;
mod users;

use std::net::IpAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use k8s_openapi::api::core::v1::Service;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use tokio::time::sleep;

use crate::bench::{Args, Point, Sheet, processor_time, ratios, status};
use crate::users::Users;
use kubernetes::audit::{Asked, asked};
use kubernetes::images::TAILYARD;
use parties::Stage;
use tier::{chart, client, kubernetes, lab, pods, support};

/// The group of all Services.
const GROUP: &str = "eg";
/// How long anything may take.
const PATIENCE: Duration = Duration::from_mins(10);
/// How long nothing may be asked until a party counts as at rest.
const REST: Duration = Duration::from_secs(4);

/// How it is called.
#[derive(Debug, Parser)]
struct Call {
    #[command(flatten)]
    args: Args,
    /// How many Services are made at once
    #[arg(long, default_values_t = [10, 100])]
    services: Vec<usize>,
}

/// Who makes of a Service what it asks for.
struct Party {
    name: &'static str,
    /// Its service account.
    account: &'static str,
    /// How its Pods are found.
    label: &'static str,
}

const THEIRS: Party = Party { name: "Tailscale operator", account: "operator", label: "app=operator" };
const OURS: Party = Party { name: "Tailyard", account: "tailyard-reconciler", label: "app.kubernetes.io/name=tailyard" };

/// A figure of a batch.
type Field = fn(&Batch) -> f64;

/// What one batch of Services took.
#[derive(Debug, Default, Clone, Copy)]
struct Batch {
    seconds: f64,
    requests: f64,
    writes: f64,
    processor: f64,
}

fn main() -> Result<ExitCode> {
    let Call { args, services } = Call::parse();
    let services = if args.quick { vec![5] } else { services };
    let mut sheet = Sheet::new("Egress Services on a real cluster: the Tailscale operator and Tailyard's reconciler");
    let stage = Stage::set();
    stage.install_theirs();
    stage.ask_for_a_group();
    let theirs = measured(&stage, &THEIRS, &services, &args, &mut sheet)?;
    take_back(&stage);
    stage.stop("operator");
    stage.install_ours(TAILYARD);
    stage.ask_for_a_group();
    let ours = measured(&stage, &OURS, &services, &args, &mut sheet)?;
    compare(&mut sheet, &ours, &theirs);
    bench::publish("operators", &args, &sheet)
}

/// Takes away what a user asked for, with all that became of it; the API's own Service stays.
fn take_back(stage: &Stage) {
    stage.cluster.kubectl(&["delete", "services", "-n", "default", "-l", "component!=apiserver", "--timeout=400s"]);
    stage.cluster.kubectl(&["delete", "proxygroup", GROUP, "--timeout=120s"]);
}

/// Ours to theirs, over all sizes and repetitions.
fn compare(sheet: &mut Sheet, ours: &[Batch], theirs: &[Batch]) {
    let of: [(&str, Field, &str); 4] = [
        ("time until all are ready", |batch| batch.seconds, "≤ 0.1"),
        ("requests", |batch| batch.requests, "≤ 0.2"),
        ("writes", |batch| batch.writes, "≤ 0.2"),
        ("processor time", |batch| batch.processor, "≤ 0.5"),
    ];
    for (what, field, goal) in of {
        let each = |batches: &[Batch]| batches.iter().map(field).collect::<Vec<_>>();
        sheet.add(format!("{what}, ours to theirs"), "ratio", ratios(&each(ours), &each(theirs)), Some(goal));
    }
}

/// Measures a party from the network of a node, for its Pods are reached from there.
fn measured(stage: &Stage, party: &Party, sizes: &[usize], args: &Args, sheet: &mut Sheet) -> Result<Vec<Batch>> {
    let inside = &stage.cluster.nodes.first().context("a node")?.machine.node.ns;
    inside.block_on(|| measure(stage, party, sizes, args, sheet))?
}

async fn measure(stage: &Stage, party: &Party, sizes: &[usize], args: &Args, sheet: &mut Sheet) -> Result<Vec<Batch>> {
    let kubeconfig = Kubeconfig::read_from(&stage.cluster.control.kubeconfig)?;
    let client = Client::try_from(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)?;
    let target = stage.cluster.tailnet.addresses_of("db").into_iter().find(IpAddr::is_ipv4).context("an address")?.to_string();
    let mut users = Users::watch(Api::<Service>::namespaced(client, "default"), move |_| target.clone());
    let pids = party.pids(stage);
    let (mut all, mut made) = (Vec::new(), 0);
    for &size in sizes {
        let (mut batches, mut one_more) = (Vec::new(), Vec::new());
        for _ in 0..args.repetitions(3) {
            batches.push(batch(stage, party, &pids, &mut users, made..made + size).await?);
            made += size;
        }
        for _ in 0..args.repetitions(5) {
            one_more.push(batch(stage, party, &pids, &mut users, made..made + 1).await?.seconds);
            made += 1;
        }
        let of = |plot: &str| Point::of(plot, party.name, size as u64);
        let each = |field: Field| batches.iter().map(field).collect::<Vec<_>>();
        sheet.plot(of("made at once: seconds until all are ready"), "s", each(|batch| batch.seconds), None);
        sheet.plot(of("API requests for each"), "", each(|batch| batch.requests), None);
        sheet.plot(of("writes for each"), "", each(|batch| batch.writes), None);
        sheet.plot(of("processor time for each"), "ms", each(|batch| batch.processor), None);
        sheet.plot(of("one more after them: until it is ready"), "s", one_more, None);
        let resident = pids.iter().map(|pid| status(*pid, "VmRSS:")).sum::<Result<f64>>()?;
        sheet.plot(of("resident after them, all Pods of the party"), "MB", vec![resident], None);
        all.extend(batches);
    }
    let before = party.asked(stage);
    sleep(Duration::from_secs(if args.quick { 5 } else { 30 })).await;
    let idle = party.asked(stage).since(before);
    sheet.add(format!("{}: writes in 30 s at rest", party.name), "", vec![number(idle.writes)], None);
    Ok(all)
}

/// Makes Services at once, and waits until they are ready and the party rests.
async fn batch(stage: &Stage, party: &Party, pids: &[u32], users: &mut Users, numbers: std::ops::Range<usize>) -> Result<Batch> {
    let (size, end) = (number(numbers.len()), numbers.end);
    let before = (party.asked(stage), processor(pids)?, Instant::now());
    users.make(GROUP, numbers).await?;
    // The user's own Service `db` is ready, too.
    users.ready(end + 1, PATIENCE).await?;
    let seconds = before.2.elapsed().as_secs_f64();
    party.rested(stage).await?;
    let asked = party.asked(stage).since(before.0);
    ensure!(asked.writes > 0, "the API server has seen no write of {}", party.account);
    let processor = processor(pids)?.saturating_sub(before.1).as_secs_f64() * 1e3 / size;
    Ok(Batch { seconds, requests: number(asked.requests) / size, writes: number(asked.writes) / size, processor })
}

impl Party {
    /// Its processes, those that hold its Pods' namespaces included.
    fn pids(&self, stage: &Stage) -> Vec<u32> {
        let uids =
            stage.cluster.kubectl(&["get", "pods", "-n", chart::NAMESPACE, "-l", self.label, "-o", "jsonpath={.items[*].metadata.uid}"]);
        let found = uids.split_whitespace().flat_map(|uid| pods::processes(uid, None));
        let found: Vec<u32> = found.filter_map(|pid| pid.try_into().ok()).collect();
        assert!(!found.is_empty(), "no process of {}", self.name);
        found
    }

    /// What it has asked of the API server so far.
    fn asked(&self, stage: &Stage) -> Asked {
        asked(&stage.cluster.control, self.account)
    }

    /// Waits until it asks for nothing any more.
    async fn rested(&self, stage: &Stage) -> Result<()> {
        let (begun, mut last) = (Instant::now(), (self.asked(stage), Instant::now()));
        while last.1.elapsed() < REST {
            ensure!(begun.elapsed() < PATIENCE, "{} finds no rest", self.name);
            sleep(Duration::from_millis(250)).await;
            let now = self.asked(stage);
            if now != last.0 {
                last = (now, Instant::now());
            }
        }
        Ok(())
    }
}

fn processor(pids: &[u32]) -> Result<Duration> {
    pids.iter().map(|pid| processor_time(*pid)).sum()
}

#[allow(clippy::cast_precision_loss, reason = "counts are small")]
fn number(count: usize) -> f64 {
    count as f64
}
