//! What do plan, difference and rendering cost, from nothing and for one change, at any size?

use std::hint::black_box;

use anyhow::Result;
use kit::world;
use tailyard::model::base::net::Family;
use tailyard::model::config::EgressConfig;
use tailyard::model::firewall::iptables;
use tailyard::model::firewall::nft;
use tailyard::model::firewall::nft::element::edits;
use tailyard::model::firewall::nft::wire::batch;
use tailyard::model::firewall::ruleset::diff;
use tailyard::model::plan::Planned;

use crate::support::{Args, Point, Sheet, milliseconds};

/// The measured system.
const SYSTEM: &str = "Tailyard";
/// Mappings, two for each service.
const SIZES: [u32; 5] = [10, 100, 1_000, 10_000, 100_000];

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    let mut sheet = Sheet::new("Plan, difference and rendering (no kernel, no files)");
    for mappings in args.sizes(&SIZES) {
        let repetitions = args.repetitions(if mappings >= 10_000 { 15 } else { 101 });
        whole(&mut sheet, mappings, repetitions)?;
        one_change(&mut sheet, mappings, args.repetitions(101))?;
    }
    Ok(sheet)
}

fn whole(sheet: &mut Sheet, mappings: u32, repetitions: usize) -> Result<()> {
    let (empty, bytes) = (world::world(), world::config(mappings, None)?);
    let mut samples: [Vec<f64>; 4] = Default::default();
    for _ in 0..repetitions {
        let (parsing, config) = milliseconds(|| EgressConfig::parse(&bytes));
        let full = world::with(&empty, config?);
        let (planning, planned) = milliseconds(|| Planned::new(&full));
        let (as_nft, _) = milliseconds(|| black_box(nft::table(&planned.ruleset).len()));
        let (as_iptables, _) = milliseconds(|| Family::ALL.map(|family| black_box(iptables::restore(&planned.ruleset, family).len())));
        for (samples, sample) in samples.iter_mut().zip([parsing, planning, as_nft, as_iptables]) {
            samples.push(sample);
        }
    }
    let [parsing, planning, as_nft, as_iptables] = samples;
    sheet.plot(Point::of("read the whole config", SYSTEM, mappings / 2), "ms", parsing, None);
    sheet.plot(Point::of("plan from nothing", SYSTEM, mappings / 2), "ms", planning, None);
    sheet.plot(Point::of("render for nft", SYSTEM, mappings / 2), "ms", as_nft, None);
    sheet.plot(Point::of("render for both iptables", SYSTEM, mappings / 2), "ms", as_iptables, None);
    Ok(())
}

/// One of all services gets another target.
fn one_change(sheet: &mut Sheet, mappings: u32, repetitions: usize) -> Result<()> {
    let (empty, bytes) = (world::world(), world::config(mappings, None)?);
    let before = Planned::new(&world::with(&empty, EgressConfig::parse(&bytes)?));
    let (mut reading, mut changing) = (Vec::new(), Vec::new());
    for number in 0..u32::try_from(repetitions)? {
        let bytes = world::config(mappings, Some(number % (mappings / 2)))?.into();
        let (read, config) = milliseconds(|| before.world.egress.next(&bytes));
        let changed = world::with(&before.world, config?);
        let (took, _) = milliseconds(|| {
            let after = before.next(&changed);
            let delta = diff(&before.ruleset, &after.ruleset);
            black_box(batch(&edits(&before.ruleset, &delta, &after.ruleset), 1))
        });
        reading.push(read);
        changing.push(took);
    }
    let goal = (mappings == 10_000).then_some("≤ 1");
    sheet.plot(Point::of("read a config with one change", SYSTEM, mappings / 2), "ms", reading, None);
    sheet.plot(Point::of("one change: plan, difference, netlink batch", SYSTEM, mappings / 2), "ms", changing, goal);
    Ok(())
}
