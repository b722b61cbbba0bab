//! What does a new connection through the proxy cost, at 10 and at 10,000 services, and by plain forwarding?

mod group;
mod support;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::num::NonZeroU32;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tailyard::demo::services::{FIRST_TARGET_PORT, Service, TARGET_PORTS, of_family};
use tailyard::demo::target::Target;
use tailyard::demo::topology::{Topology, forward_plainly};
use tailyard::edge::netns::Namespace;
use tailyard::load::{Load, wire};
use tailyard::model::load::{Attempt, Lane, Schedule, Tally};
use tailyard::model::net::{Family, Proto};

use crate::group::Proxy;
use crate::support::{Args, PLAIN, Point, Sheet, ratios, tailyard};

/// Services on the first and on the second proxy; the third way has no proxy at all.
const SIZES: [u16; 2] = [10, 10_000];
/// The same where it is only to be shown that it works.
const FEW: [u16; 2] = [10, 1_000];
/// How many of the services are dialled, in turn: the even ones of the first ten, and as many of the others.
const SERVICES_DIALLED: usize = 5;
/// How many connections are opened at once where only the rate counts.
const AT_ONCE: usize = 4;
/// How long one measurement of a rate takes.
const SLICE: Duration = Duration::from_millis(500);
/// Connections each second where latency counts: far below what any of the ways can take.
const CALM: u32 = 1_000;

/// One of the ways to the target: whom to dial, in turn.
struct Way {
    /// The services of its proxy, if there is one.
    size: Option<u16>,
    dial: Arc<Vec<SocketAddr>>,
    next: Arc<AtomicUsize>,
    rates: Vec<f64>,
    latencies: Vec<f64>,
    worst: Vec<f64>,
}

fn main() -> Result<ExitCode> {
    support::main("connect", bench)
}

fn bench(args: &Args) -> Result<Sheet> {
    let sizes = if args.quick { FEW } else { SIZES };
    let topology = Topology::make(3, 1)?;
    let ports = FIRST_TARGET_PORT..FIRST_TARGET_PORT + TARGET_PORTS;
    let target = topology.targets.first().context("there is a target")?;
    let _served = Target::start(&target.namespace, 0, ports.clone())?;
    let proxies = (0..).zip(sizes).map(|(number, size)| Proxy::start(&topology, number, size)).collect::<Result<Vec<_>>>()?;
    forward_plainly(&topology, 2)?;
    let mut ways = Vec::new();
    for (site, size) in topology.replicas.iter().zip(sizes) {
        let pod = of_family(site.pod.context("a replica has a Pod address")?, Family::V4);
        // As many destinations on every way, as a client's search for a free port gets slower the fewer there are.
        let services = (0..size).step_by(usize::from(size) / SERVICES_DIALLED).map(|number| Service { number: number & !1, target: 0 });
        let dial = services.take(SERVICES_DIALLED).map(|service| SocketAddr::new(pod, service.match_port()));
        ways.push(Way::new(Some(size), dial.collect()));
    }
    let direct: IpAddr = of_family(target.tailnet, Family::V4);
    let dial = ports.step_by(2).take(SERVICES_DIALLED).map(|port| SocketAddr::new(direct, port));
    ways.push(Way::new(None, dial.collect()));
    for way in &mut ways {
        way.rate(&topology.client)?;
        way.rates.clear();
    }
    for _ in 0..args.repetitions(15) {
        for way in &mut ways {
            way.rate(&topology.client)?;
            way.latency(&topology.client)?;
        }
    }
    proxies.into_iter().try_for_each(Proxy::end)?;
    Ok(sheet(&ways))
}

fn sheet(ways: &[Way]) -> Sheet {
    let mut sheet = Sheet::new("New connections through the proxy and by plain forwarding");
    for way in ways {
        let point = |plot: String| way.size.map_or_else(|| Point::limit(&plot, PLAIN), |size| Point::of(&plot, &tailyard(), size));
        sheet.plot(point(format!("rate, {AT_ONCE} at once")), "1/s", way.rates.clone(), None);
        sheet.plot(point(format!("connect at {CALM}/s, p50")), "ms", way.latencies.clone(), None);
        sheet.plot(point(format!("connect at {CALM}/s, p99")), "ms", way.worst.clone(), None);
    }
    if let [few, many, plain] = ways {
        sheet.add("rate at 10,000 services to that at 10", "ratio", ratios(&many.rates, &few.rates), Some("≥ 0.95"));
        sheet.add("rate at 10 services to plain forwarding", "ratio", ratios(&few.rates, &plain.rates), Some("≥ 0.8"));
        sheet.add("rate at 10,000 services to plain forwarding", "ratio", ratios(&many.rates, &plain.rates), Some("≥ 0.8"));
    }
    sheet
}

impl Way {
    fn new(size: Option<u16>, dial: Vec<SocketAddr>) -> Self {
        let next = Arc::new(AtomicUsize::new(0));
        Self { size, dial: Arc::new(dial), next, rates: Vec::new(), latencies: Vec::new(), worst: Vec::new() }
    }

    /// As many connections as some threads can open, use once and close, one after another. Without the answer awaited,
    /// the target's queue of unaccepted connections would be measured.
    fn rate(&mut self, client: &Namespace) -> Result<()> {
        let dialled = || -> std::io::Result<u32> {
            let (until, mut made) = (Instant::now() + SLICE, 0);
            while Instant::now() < until {
                let turn = self.next.fetch_add(1, Ordering::Relaxed);
                if let Some(to) = self.dial.get(turn % self.dial.len()) {
                    converse(*to, turn as u64)?;
                    made += 1;
                }
            }
            Ok(made)
        };
        let begun = Instant::now();
        let counts: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(|| client.run(dialled))).collect();
            threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        let mut made = 0;
        for count in counts {
            made += count.map_err(|_| anyhow::anyhow!("a dialling thread panicked"))???;
        }
        self.rates.push(f64::from(made) / begun.elapsed().as_secs_f64());
        Ok(())
    }

    /// How long a connection takes when there are not too many.
    fn latency(&mut self, client: &Namespace) -> Result<()> {
        let load = Load::new(Schedule::new(NonZeroU32::new(CALM).context("not zero")?), SLICE);
        let mut tally = Tally::default();
        let choose = |number: u64| {
            let to = *self.dial.get(usize::try_from(number).ok()? * 7 % self.dial.len())?;
            Some(Attempt { lane: Lane { service: 0, replica: 0 }, proto: Proto::Tcp, to })
        };
        client.block_on(|| load.offer(Instant::now(), choose, |report| tally.record(report, false), std::future::pending()))?;
        ensure!(tally.failed().is_empty(), "with {:?} services: {:?}", self.size, tally.failed());
        self.latencies.push(tally.connect().p50_ms);
        self.worst.push(tally.connect().p99_ms);
        Ok(())
    }
}

/// One question and its answer over a connection of its own.
fn converse(to: SocketAddr, nonce: u64) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(to)?;
    let mut answer = [0; wire::ANSWER];
    stream.write_all(&wire::question(nonce))?;
    stream.read_exact(&mut answer)?;
    wire::read(nonce, &answer).map(drop).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}
