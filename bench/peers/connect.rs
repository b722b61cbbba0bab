//! What does a new connection through the proxy and WireGuard cost, beside the Tailscale operator's proxy and plain forwarding?

use anyhow::Result;

use crate::peers::pod::Pod;
use crate::peers::probe::all_live;
use crate::peers::router::{Router, direct};
use crate::peers::stage::{Stage, on_stage};
use crate::peers::system::System;
use crate::support::{Args, PLAIN, Point, Sheet, ratios};
use crate::traffic::route::{AT_ONCE, DIALLED, Route};

/// How many services there are.
const SIZES: [u16; 4] = [10, 100, 1_000, 10_000];
/// Connections per second for latency: far below the limit of every route.
const CALM: u32 = 200;

/// Samples of a Pod at one size.
struct Measured {
    system: System,
    size: u16,
    way: Route,
}

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    on_stage(args, "New connections through the proxy and WireGuard, beside the Tailscale operator's proxy and plain forwarding", measure)
}

fn measure(stage: &Stage, args: &Args, sheet: &mut Sheet) -> Result<()> {
    let _router = Router::start(stage);
    let mut pods = Pod::one_of_each(stage)?;
    let sizes = if args.quick { &SIZES[..1] } else { &SIZES };
    let mut limit = Route::new(direct(stage, DIALLED));
    for size in sizes {
        let takes_part = |pod: &&mut Pod<'_>| pod.system.takes_part(*size);
        let mut measured = pods.iter_mut().filter(takes_part).map(|pod| Measured::begin(stage, pod, *size)).collect::<Result<Vec<_>>>()?;
        let before = limit.rates.len();
        for _ in 0..args.repetitions(5) {
            for way in measured.iter_mut().map(|measured| &mut measured.way).chain([&mut limit]) {
                way.rate(&stage.client.node.ns)?;
                way.latency(&stage.client.node.ns, CALM)?;
            }
        }
        report(sheet, &measured, &limit.rates[before..]);
    }
    let point = |plot: String| Point::limit(&plot, PLAIN);
    sheet.plot(point(rate()), "1/s", limit.rates, None);
    sheet.plot(point(connect("p50")), "ms", limit.latencies, None);
    sheet.plot(point(connect("p99")), "ms", limit.worst, None);
    Ok(())
}

impl Measured {
    /// Configures the Pod's services; the first, warming measurement is discarded.
    fn begin(stage: &Stage, pod: &mut Pod<'_>, size: u16) -> Result<Self> {
        pod.configure(0..size)?;
        all_live(stage, pod, size)?;
        let mut way = Route::new((0..DIALLED).map(|turn| pod.at(turn * (size / DIALLED))).collect());
        way.rate(&stage.client.node.ns)?;
        way.rates.clear();
        Ok(Self { system: pod.system, size, way })
    }
}

fn report(sheet: &mut Sheet, measured: &[Measured], limit: &[f64]) {
    for Measured { system, size, way } in measured {
        let point = |plot: String| Point::of(&plot, system.name, *size);
        sheet.plot(point(rate()), "1/s", way.rates.clone(), None);
        sheet.plot(point(connect("p50")), "ms", way.latencies.clone(), None);
        sheet.plot(point(connect("p99")), "ms", way.worst.clone(), None);
        sheet.add(format!("rate to plain forwarding: {}, {size} services", system.name), "ratio", ratios(&way.rates, limit), None);
        let theirs = measured.iter().find(|other| Some(other.system) == system.rival());
        if let Some(theirs) = theirs {
            let ratios = ratios(&way.rates, &theirs.way.rates);
            sheet.add(format!("rate, {}, {size} services: ours to theirs", system.firewall), "ratio", ratios, Some("≥ 1"));
        }
    }
}

fn rate() -> String {
    format!("rate, {AT_ONCE} at once")
}

fn connect(what: &str) -> String {
    format!("connect at {CALM}/s, {what}")
}
