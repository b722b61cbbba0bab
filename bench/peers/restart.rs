//! How long is it from the start of a proxy with everything configured until all of it is live, beside the Tailscale operator's proxy?

use anyhow::Result;

use crate::peers::pod::Pod;
use crate::peers::stage::{Stage, on_stage};
use crate::peers::system::System;
use crate::support::{Args, Point, Sheet, in_turn, ms, ratios};

/// How many services there are.
const SIZES: [u16; 3] = [10, 1_000, 10_000];

/// Samples of one system at one size.
struct Samples {
    system: System,
    starts: Vec<f64>,
}

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    on_stage(args, "Start of a proxy with everything configured → all services live, beside the Tailscale operator's proxy", measure)
}

/// Each start is that of a new Pod, as in a rolling restart: the node's state is in its Secret, in the kernel there is nothing.
fn measure(stage: &Stage, args: &Args, sheet: &mut Sheet) -> Result<()> {
    // The first login makes the node and its state.
    Pod::one_of_each(stage)?.into_iter().try_for_each(Pod::end)?;
    for size in if args.quick { &SIZES[..1] } else { &SIZES } {
        let mut all = System::ALL.map(|system| Samples { system, starts: Vec::new() });
        for round in 0..args.repetitions(5) {
            for taken in in_turn(&mut all, round).into_iter().filter(|taken| taken.system.takes_part(*size)) {
                let (pod, took) = Pod::started(stage, taken.system, *size)?;
                taken.starts.push(ms(took));
                pod.end()?;
            }
        }
        report(sheet, &all, *size);
    }
    Ok(())
}

fn report(sheet: &mut Sheet, all: &[Samples], size: u16) {
    for Samples { system, starts } in all {
        sheet.plot(Point::of("started until all live", system.name, size), "ms", starts.clone(), None);
        if let Some(theirs) = all.iter().find(|other| Some(other.system) == system.rival()) {
            let what = format!("started until all live, {}, {size} services: ours to theirs", system.firewall);
            sheet.add(what, "ratio", ratios(starts, &theirs.starts), Some("≤ 1"));
        }
    }
}
