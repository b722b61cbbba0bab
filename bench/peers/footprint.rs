//! How much memory and processor time does the supervisor use, without tailscaled, compared with the Tailscale operator's proxy?

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::peers::container::Container;
use crate::peers::pod::Pod;
use crate::peers::stage::{Stage, on_stage};
use crate::peers::system::System;
use crate::support::{Args, Point, Sheet, ms, ratios, status};

/// How many services there are.
const SIZES: [u16; 4] = [10, 100, 1_000, 10_000];
/// Time for the remaining work after all services are live.
const REST: Duration = Duration::from_secs(2);
/// How long it is watched doing nothing.
const IDLE: Duration = Duration::from_secs(3);

/// Samples of one system at one size.
struct Samples {
    system: System,
    memory: Vec<f64>,
    own: Vec<f64>,
    start: Vec<f64>,
    idle: Vec<f64>,
}

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    on_stage(args, "Memory and processor of the supervisor, tailscaled left out, beside the Tailscale operator's proxy", measure)
}

fn measure(stage: &Stage, args: &Args, sheet: &mut Sheet) -> Result<()> {
    for size in if args.quick { &SIZES[1..2] } else { &SIZES } {
        let mut all = System::ALL.map(Samples::nothing);
        for _ in 0..args.repetitions(5) {
            let all = all.iter_mut().filter(|taken| taken.system.takes_part(*size));
            measure_together(stage, all.collect(), *size)?;
        }
        report(sheet, &all, *size);
    }
    Ok(())
}

/// A new Pod of each system: usage until all services are live and the remaining work is done, and usage when nothing changes.
fn measure_together(stage: &Stage, all: Vec<&mut Samples>, size: u16) -> Result<()> {
    let mut pods = Pod::started_together(stage, all.iter().map(|taken| taken.system), size)?;
    sleep(REST);
    let (before, begun) = (used(&mut pods)?, Instant::now());
    sleep(IDLE);
    let (after, lasted) = (used(&mut pods)?, begun.elapsed());
    for ((taken, pod), (before, after)) in all.into_iter().zip(&mut pods).zip(before.into_iter().zip(after)) {
        let programs = pod.container()?.programs()?;
        let all = |field| programs.iter().map(|pid| status(*pid, field)).collect::<Result<Vec<_>>>();
        let own: f64 = all("RssAnon:")?.into_iter().sum();
        // The program's file is there once, however many processes have it mapped.
        taken.memory.push(own + all("RssFile:")?.into_iter().fold(0.0, f64::max));
        taken.own.push(own);
        taken.start.push(ms(before));
        taken.idle.push(after.saturating_sub(before).as_secs_f64() / lasted.as_secs_f64() * 100.0);
    }
    pods.into_iter().try_for_each(Pod::end)
}

fn used(pods: &mut [Pod<'_>]) -> Result<Vec<Duration>> {
    pods.iter_mut().map(|pod| pod.container().and_then(|container| Container::used(container))).collect()
}

fn report(sheet: &mut Sheet, all: &[Samples], size: u16) {
    for taken in all {
        let point = |plot: &str| Point::of(plot, taken.system.name, size);
        sheet.plot(point("resident"), "MB", taken.memory.clone(), None);
        sheet.plot(point("resident without the program's file"), "MB", taken.own.clone(), None);
        sheet.plot(point("processor from start to all live and settled"), "ms", taken.start.clone(), None);
        sheet.plot(point("processor when idle"), "%", taken.idle.clone(), None);
        if let Some(theirs) = all.iter().find(|other| Some(other.system) == taken.system.rival()) {
            let mode = taken.system.firewall;
            sheet.add(
                format!("resident, {mode}, {size} services: ours to theirs"),
                "ratio",
                ratios(&taken.memory, &theirs.memory),
                Some("≤ 0.4"),
            );
            sheet.add(
                format!("processor at start, {mode}, {size} services: ours to theirs"),
                "ratio",
                ratios(&taken.start, &theirs.start),
                None,
            );
        }
    }
}

impl Samples {
    fn nothing(system: System) -> Self {
        Self { system, memory: Vec::new(), own: Vec::new(), start: Vec::new(), idle: Vec::new() }
    }
}
