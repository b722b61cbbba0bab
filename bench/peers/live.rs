//! How long is it from a config in place until its services are live: all from nothing, and one more; beside the Tailscale operator's proxy?

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::peers::pod::Pod;
use crate::peers::probe::{all_live, gone, live, mapped, sample};
use crate::peers::stage::{Stage, on_stage};
use crate::peers::system::System;
use crate::support::{Args, Point, Sheet, in_turn, ms, ratios};

/// How many services there are.
const SIZES: [u16; 3] = [10, 100, 1_000];
/// More than the number of base chains per kernel hook: as many as the Tailscale proxy needs.
const BEYOND: u16 = 1_100;
/// A size for our proxy only.
const MANY: u16 = 10_000;
/// How many more come one by one in each round.
const MORE: u16 = 3;
/// From this number of services on, a new Pod is faster than the removal of all services by the Tailscale proxy.
const HEAVY: u16 = 1_000;
/// Upper bound of a change.
const LIMIT: Duration = Duration::from_secs(90);
/// Last log line of the Tailscale proxy when a config is too large for it.
const FATAL: &str = "egress proxy failed";
/// Pause after each change, for remaining writes of a program.
const REST: Duration = Duration::from_millis(200);

/// Samples of one system at one size.
struct Samples {
    system: System,
    size: u16,
    whole: Vec<f64>,
    more: Vec<f64>,
}

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    on_stage(args, "Config in place → all services live from nothing, and one more, beside the Tailscale operator's proxy", measure)
}

fn measure(stage: &Stage, args: &Args, sheet: &mut Sheet) -> Result<()> {
    let mut pods = Pod::one_of_each(stage)?;
    for pod in &mut pods {
        clear(stage, pod, 1)?;
    }
    let sizes = if args.quick { &SIZES[..1] } else { &SIZES };
    for size in sizes {
        let mut taken = System::ALL.map(|system| Samples { system, size: *size, whole: Vec::new(), more: Vec::new() });
        for round in 0..args.repetitions(5) {
            for (pod, taken) in in_turn(pods.iter_mut().zip(&mut taken), round) {
                taken.take(stage, pod)?;
            }
        }
        report(sheet, &taken);
    }
    if let [ours, stock, ..] = &mut pods[..]
        && !args.quick
    {
        beyond(stage, ours, BEYOND, sheet)?;
        beyond(stage, stock, BEYOND, sheet)?;
        let mut many = Samples { system: ours.system, size: MANY, whole: Vec::new(), more: Vec::new() };
        for _ in 0..args.repetitions(5) {
            many.take(stage, ours)?;
        }
        many.add(sheet);
    }
    Ok(())
}

impl Samples {
    /// All services from nothing, at the first time each of them looked at; then some more one by one; then none again.
    fn take(&mut self, stage: &Stage, pod: &mut Pod<'_>) -> Result<()> {
        let chosen = sample(self.size);
        let stands = pod.configure(0..self.size)?;
        self.whole.push(ms(mapped(stage, pod, &chosen, stands, LIMIT)?));
        if self.whole.len() == 1 {
            all_live(stage, pod, self.size)?;
        }
        for more in self.size..self.size + MORE {
            sleep(REST);
            let stands = pod.configure(0..=more)?;
            self.more.push(ms(mapped(stage, pod, &[more], stands, LIMIT)?));
        }
        clear(stage, pod, self.size)
    }

    fn add(&self, sheet: &mut Sheet) {
        let point = |plot: &str| Point::of(plot, self.system.name, self.size);
        sheet.plot(point("all from nothing"), "ms", self.whole.clone(), None);
        sheet.plot(point("one more"), "ms", self.more.clone(), None);
    }
}

/// All systems at one size, and ours to theirs.
fn report(sheet: &mut Sheet, taken: &[Samples; 4]) {
    for taken in taken {
        taken.add(sheet);
    }
    for pair in taken.chunks_exact(2) {
        if let [ours, theirs] = pair {
            let (goal, size, mode) = (ours.size == 1_000, ours.size, ours.system.firewall);
            let of = |text: &'static str| goal.then_some(text);
            sheet.add(
                format!("{mode}, {size} services, all from nothing: theirs to ours"),
                "ratio",
                ratios(&theirs.whole, &ours.whole),
                of("≥ 50"),
            );
            sheet.add(format!("{mode}, one more at {size}: theirs to ours"), "ratio", ratios(&theirs.more, &ours.more), of("≥ 20"));
        }
    }
}

/// Whether this number of services works, and the last error if not.
fn beyond(stage: &Stage, pod: &mut Pod<'_>, size: u16, sheet: &mut Sheet) -> Result<()> {
    let begun = Instant::now();
    let stands = pod.configure(0..size)?;
    let mut works = None;
    while works.is_none() && !pod.container()?.ended() && begun.elapsed() < LIMIT {
        works = live(stage, pod, &sample(size), stands, Duration::from_secs(1)).ok();
    }
    let output = pod.container()?.output();
    if let Some(last) = output.lines().rfind(|line| line.contains(FATAL)).filter(|_| works.is_none()) {
        println!("{} with {size} services does not work: {last}", pod.system.name);
    }
    let works = if works.is_some() { 1.0 } else { 0.0 };
    sheet.plot(Point::of("works at all", pod.system.name, size), "1: it does, 0: it does not", vec![works], None);
    if works > 0.5 { clear(stage, pod, size) } else { Ok(()) }
}

/// Removes all services.
fn clear(stage: &Stage, pod: &mut Pod<'_>, size: u16) -> Result<()> {
    let mut remaining = size;
    if size >= HEAVY {
        pod.renew()?;
        remaining = 1;
    }
    pod.configure([])?;
    gone(stage, pod, &sample(remaining), LIMIT)?;
    sleep(REST);
    Ok(())
}
