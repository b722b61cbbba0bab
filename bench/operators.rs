//! How many API requests, and how much time and memory, do the Tailscale operator and our reconciler need for egress Services on one group?
//!
//! Both on the same cluster of two nodes, in the same run, alternating: ours, theirs, theirs, ours, and so on. Each creates a new group of
//! two replicas with its own proxies; the other one has no Pods meanwhile. The control plane of both is the stand-in of the tests; all else
//! is real. The API server's audit log counts the requests. Needs root and the output of `tests/servers/build`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use kit::cluster::audit::Log;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use tokio::time::sleep;

use crate::players::{GROUP, OURS, Operator, OperatorPair, THEIRS};
use crate::support::{Args, Point, Sheet, in_turn, processor_time, ratios, status};
use crate::users::Users;

/// Upper bound of every wait.
const PATIENCE: Duration = Duration::from_mins(4);
/// Time without requests after which an operator counts as idle.
const REST: Duration = Duration::from_secs(3);
/// Observation time of an idle operator.
const IDLE: Duration = Duration::from_secs(10);

/// How many Services are made at once, by both.
const SIZES: [usize; 2] = [10, 100];

/// A figure of a batch.
type Field = fn(&Batch) -> f64;

/// Samples of one batch of Services.
#[derive(Debug, Default, Clone, Copy)]
struct Batch {
    seconds: f64,
    requests: f64,
    writes: f64,
    processor: f64,
}

/// Samples of an operator.
#[derive(Debug, Default)]
struct Samples {
    /// By the number of Services.
    batches: BTreeMap<usize, Vec<Batch>>,
    one_more: Vec<f64>,
    resident: Vec<f64>,
    idle: Vec<f64>,
}

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    let sizes = if args.quick { &SIZES[..1] } else { &SIZES };
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    // How many Services there are.
    let (mut game, mut made) = (OperatorPair::begin(), 0);
    for round in 0..args.repetitions(5) {
        // The second operator of a round is first in the next: a change takes longer than the measurement.
        for (party, taken) in in_turn([(&OURS, &mut ours), (&THEIRS, &mut theirs)], round) {
            if game.hand_to(party) {
                made = 0;
            }
            measured(&game, &mut made, sizes, taken)?;
        }
    }
    let mut sheet = Sheet::new("Egress Services on a real cluster: the Tailscale operator and Tailyard's reconciler");
    for (party, taken) in [(&OURS, &ours), (&THEIRS, &theirs)] {
        add_samples(&mut sheet, party, taken);
    }
    compare(&mut sheet, &ours, &theirs);
    Ok(sheet)
}

/// Adds an operator's figures.
fn add_samples(sheet: &mut Sheet, party: &Operator, taken: &Samples) {
    for (size, batches) in &taken.batches {
        let of = |plot: &str| Point::of(plot, party.name, *size as u64);
        let each = |field: Field| batches.iter().map(field).collect::<Vec<_>>();
        sheet.plot(of("made at once: seconds until all are ready"), "s", each(|batch| batch.seconds), None);
        sheet.plot(of("API requests for each"), "", each(|batch| batch.requests), None);
        sheet.plot(of("writes for each"), "", each(|batch| batch.writes), None);
        sheet.plot(of("processor time for each"), "ms", each(|batch| batch.processor), None);
    }
    let mut add = |what: &str, unit: &str, values: &[f64]| sheet.add(format!("{}: {what}", party.name), unit, values.to_vec(), None);
    add("one more after them, until it is ready", "s", &taken.one_more);
    add("resident after them, all Pods of the party", "MB", &taken.resident);
    add("writes in 10 s at rest", "", &taken.idle);
}

/// Ours to theirs, for each size.
fn compare(sheet: &mut Sheet, ours: &Samples, theirs: &Samples) {
    let of: [(&str, Field, &str); 4] = [
        ("time until all are ready", |batch| batch.seconds, "≤ 0.1"),
        ("requests", |batch| batch.requests, "≤ 0.2"),
        ("writes", |batch| batch.writes, "≤ 0.2"),
        ("processor time", |batch| batch.processor, "≤ 0.5"),
    ];
    for (what, field, goal) in of {
        for ((size, ours), theirs) in ours.batches.iter().zip(theirs.batches.values()) {
            let each = |batches: &[Batch]| batches.iter().map(field).collect::<Vec<_>>();
            sheet.add(format!("{what}, {size} at once: ours to theirs"), "ratio", ratios(&each(ours), &each(theirs)), Some(goal));
        }
    }
}

/// Measures the active operator from the network of a node, where its Pods are reachable.
fn measured(game: &OperatorPair, made: &mut usize, sizes: &[usize], taken: &mut Samples) -> Result<()> {
    let node = game.stage.cluster.nodes.first().context("a node")?.machine.node.ns.clone();
    node.block_on(|| measure(game, made, sizes, taken))?
}

async fn measure(game: &OperatorPair, made: &mut usize, sizes: &[usize], taken: &mut Samples) -> Result<()> {
    let cluster = &game.stage.cluster;
    let kubeconfig = Kubeconfig::read_from(&cluster.control.kubeconfig)?;
    let client = Client::try_from(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)?;
    let target = cluster.tailnet.addresses_of("db").into_iter().find(IpAddr::is_ipv4).context("an address")?.to_string();
    let users = Users::watch(Api::<Service>::namespaced(client, "default"), move |_| target.clone());
    let log = Log::open(&cluster.control, game.playing.account);
    let mut turn = Turn { party: game.playing, pids: game.playing.pids(&game.stage), log, users, made: *made };
    turn.rested().await?;
    for size in sizes {
        taken.batches.entry(*size).or_default().push(turn.batch(*size).await?);
    }
    taken.one_more.push(turn.batch(1).await?.seconds);
    taken.resident.push(turn.pids.iter().map(|pid| status(*pid, "VmRSS:")).sum::<Result<f64>>()?);
    let before = turn.log.counts();
    sleep(IDLE).await;
    taken.idle.push(number(turn.log.counts().since(before).writes));
    *made = turn.made;
    Ok(())
}

/// A measurement of the active operator.
struct Turn {
    party: &'static Operator,
    pids: Vec<u32>,
    log: Log,
    users: Users,
    /// How many Services there are.
    made: usize,
}

impl Turn {
    /// Creates Services at once, and waits until they are ready and the operator is idle.
    async fn batch(&mut self, count: usize) -> Result<Batch> {
        let (before, used, begun) = (self.log.counts(), processor(&self.pids)?, Instant::now());
        let (numbers, size) = (self.made..self.made + count, number(count));
        self.made = numbers.end;
        self.users.make(GROUP, numbers).await?;
        // The user's own Service `db` is ready, too.
        self.users.ready(self.made + 1, PATIENCE).await?;
        let seconds = begun.elapsed().as_secs_f64();
        self.rested().await?;
        let counts = self.log.counts().since(before);
        ensure!(counts.writes > 0, "the API server has seen no write of {}", self.party.account);
        let processor = processor(&self.pids)?.saturating_sub(used).as_secs_f64() * 1e3 / size;
        Ok(Batch { seconds, requests: number(counts.requests) / size, writes: number(counts.writes) / size, processor })
    }

    /// Waits until the operator sends no requests.
    async fn rested(&mut self) -> Result<()> {
        let (begun, mut last) = (Instant::now(), (self.log.counts(), Instant::now()));
        while last.1.elapsed() < REST {
            ensure!(begun.elapsed() < PATIENCE, "{} finds no rest", self.party.name);
            sleep(Duration::from_millis(250)).await;
            let now = self.log.counts();
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
