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
use kit::servers::tailscale_release;
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
pub(crate) const IDLE: Duration = Duration::from_secs(10);

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
pub(crate) struct Samples {
    /// By the number of Services.
    batches: BTreeMap<usize, Vec<Batch>>,
    one_more: Vec<f64>,
    resident: Vec<f64>,
    idle: Vec<f64>,
    /// Processor at rest, in percent.
    rest: Vec<f64>,
}

/// Services to create, and whose they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Demand<'a> {
    /// Group of egress Services, or class of standalone ones.
    pub(crate) group: &'a str,
    /// How many at once, one after the other.
    pub(crate) sizes: &'a [usize],
    /// Ready Services of the stage itself.
    pub(crate) own: usize,
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
            // The user's own Service `db` is ready, too.
            measured(&game, &mut made, Demand { group: GROUP, sizes, own: 1 }, taken)?;
        }
    }
    let mut sheet = Sheet::new("Egress Services on a real cluster: the Tailscale operator and Tailyard's reconciler");
    sheet.version("Tailscale operator", tailscale_release());
    for (party, taken) in [(&OURS, &ours), (&THEIRS, &theirs)] {
        add_samples(&mut sheet, party, taken);
    }
    compare(&mut sheet, &ours, &theirs, ["≤ 0.1", "≤ 0.2", "≤ 0.2", "≤ 0.5"].map(Some));
    Ok(sheet)
}

/// Adds an operator's figures.
pub(crate) fn add_samples(sheet: &mut Sheet, party: &Operator, taken: &Samples) {
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
    add("processor at rest, all Pods of the party", "%", &taken.rest);
}

/// Ours to theirs, for each size, with goals of time, requests, writes and processor time.
pub(crate) fn compare(sheet: &mut Sheet, ours: &Samples, theirs: &Samples, goals: [Option<&str>; 4]) {
    let of: [(&str, Field); 4] = [
        ("time until all are ready", |batch| batch.seconds),
        ("requests", |batch| batch.requests),
        ("writes", |batch| batch.writes),
        ("processor time", |batch| batch.processor),
    ];
    for ((what, field), goal) in of.into_iter().zip(goals) {
        for ((size, ours), theirs) in ours.batches.iter().zip(theirs.batches.values()) {
            let each = |batches: &[Batch]| batches.iter().map(field).collect::<Vec<_>>();
            sheet.add(format!("{what}, {size} at once: ours to theirs"), "ratio", ratios(&each(ours), &each(theirs)), goal);
        }
    }
}

/// Measures the active operator from the network of a node, where its Pods are reachable.
fn measured(game: &OperatorPair, made: &mut usize, demand: Demand<'_>, taken: &mut Samples) -> Result<()> {
    let target = game.stage.cluster.tailnet.addresses_of("db").into_iter().find(IpAddr::is_ipv4).context("an address")?.to_string();
    measured_with(game, |services| Users::watch(services, move |_| target.clone()), made, demand, taken)
}

/// As [`measured`], with these users of Services.
pub(crate) fn measured_with(
    game: &OperatorPair,
    users: impl FnOnce(Api<Service>) -> Users + Send,
    made: &mut usize,
    demand: Demand<'_>,
    taken: &mut Samples,
) -> Result<()> {
    with_services(game, async |services| measure(game, users(services), made, demand, taken).await)
}

/// Runs work on the users' Services, in the network of a node.
pub(crate) fn with_services<T: Send>(game: &OperatorPair, work: impl AsyncFnOnce(Api<Service>) -> Result<T> + Send) -> Result<T> {
    let node = game.stage.cluster.nodes.first().context("a node")?.machine.node.ns.clone();
    node.block_on(|| async move {
        let kubeconfig = Kubeconfig::read_from(&game.stage.cluster.control.kubeconfig)?;
        let client = Client::try_from(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)?;
        work(Api::namespaced(client, "default")).await
    })?
}

async fn measure(game: &OperatorPair, users: Users, made: &mut usize, demand: Demand<'_>, taken: &mut Samples) -> Result<()> {
    let log = Log::open(&game.stage.cluster.control, game.playing.account);
    let mut turn = Turn { party: game.playing, pids: game.playing.pids(&game.stage), log, users, demand, made: *made };
    turn.rested().await?;
    for size in demand.sizes {
        taken.batches.entry(*size).or_default().push(turn.batch(*size).await?);
    }
    taken.one_more.push(turn.batch(1).await?.seconds);
    taken.resident.push(turn.pids.iter().map(|pid| status(*pid, "VmRSS:")).sum::<Result<f64>>()?);
    let (before, used) = (turn.log.counts(), processor(&turn.pids)?);
    sleep(IDLE).await;
    taken.rest.push(processor(&turn.pids)?.saturating_sub(used).as_secs_f64() / IDLE.as_secs_f64() * 100.0);
    taken.idle.push(number(turn.log.counts().since(before).writes));
    *made = turn.made;
    Ok(())
}

/// A measurement of the active operator.
struct Turn<'a> {
    party: &'static Operator,
    pids: Vec<u32>,
    log: Log,
    users: Users,
    demand: Demand<'a>,
    /// How many Services there are.
    made: usize,
}

impl Turn<'_> {
    /// Creates Services at once, and waits until they are ready and the operator is idle.
    async fn batch(&mut self, count: usize) -> Result<Batch> {
        let (before, used, begun) = (self.log.counts(), processor(&self.pids)?, Instant::now());
        let (numbers, size) = (self.made..self.made + count, number(count));
        self.made = numbers.end;
        self.users.make(self.demand.group, numbers).await?;
        self.users.ready(self.made + self.demand.own, PATIENCE).await?;
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

pub(crate) fn processor(pids: &[u32]) -> Result<Duration> {
    pids.iter().map(|pid| processor_time(*pid)).sum()
}

#[allow(clippy::cast_precision_loss, reason = "counts are small")]
fn number(count: usize) -> f64 {
    count as f64
}
