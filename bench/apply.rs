//! How long does the kernel take to load all mappings from empty, and one more change?

use std::time::Instant;

use anyhow::Result;
use kit::world;
use tailyard::edge::netns::Namespace;
use tailyard::edge::nft::Nft;
use tailyard::model::config::EgressConfig;
use tailyard::model::firewall::ruleset::diff;
use tailyard::model::plan::Planned;

use crate::support::{Args, Point, Sheet, ms};

/// The measured system.
const SYSTEM: &str = "Tailyard, nftables";
/// Mappings, two for each service; each is an element for each family of its target.
const SIZES: [u32; 3] = [100, 10_000, 50_000];

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    let mut sheet = Sheet::new("nftables: everything from nothing, and one change");
    for mappings in args.sizes(&SIZES) {
        let plan = |moved| -> Result<Planned> {
            let config = EgressConfig::parse(&world::config(mappings, moved)?)?;
            Ok(Planned::new(&world::with(&world::world(), config)))
        };
        let (before, after) = (plan(None)?.ruleset, plan(Some(3))?.ruleset);
        let (there, back) = (diff(&before, &after), diff(&after, &before));
        let (mut whole, mut one) = (Vec::new(), Vec::new());
        for _ in 0..args.repetitions(15) {
            Namespace::make()?.block_on(|| async {
                let nft = Nft::open("nft")?;
                let begun = Instant::now();
                nft.rewrite(&before).await?;
                whole.push(ms(begun.elapsed()));
                for (from, delta, to) in [(&before, &there, &after), (&after, &back, &before)] {
                    let begun = Instant::now();
                    nft.patch(from, delta, to).await?;
                    one.push(ms(begun.elapsed()));
                }
                anyhow::Ok(())
            })??;
        }
        let goal = (mappings == 10_000).then_some("≤ 150");
        sheet.plot(Point::of("all from nothing", SYSTEM, mappings / 2), "ms", whole, goal);
        sheet.plot(Point::of("one retargeted", SYSTEM, mappings / 2), "ms", one, None);
    }
    Ok(sheet)
}
