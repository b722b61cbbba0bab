//! How long is it from a config file in place until its new mapping accepts a connection?

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tailyard::demo::scoreboard::{Scoreboard, ScoreboardChange, SharedScoreboard, look};
use tailyard::demo::services::{DemoService, FIRST_TARGET_PORT, TARGET_PORTS};
use tailyard::demo::swap::seen_in_force;
use tailyard::demo::target::DemoTarget;
use tailyard::demo::topology::Topology;

use crate::proxy::Proxy;
use crate::support::{Args, Point, Sheet, ms, tailyard};

/// Services, twice as many mappings (TCP and UDP) and up to four times as many elements (both families).
const SIZES: [u16; 3] = [10, 1_000, 10_000];

/// The time between two changes.
const APART: Duration = Duration::from_millis(100);

/// A group of one replica under one config.
struct Group {
    size: u16,
    board: SharedScoreboard,
    proxy: Proxy,
    _targets: Vec<DemoTarget>,
    topology: Topology,
    samples: [Vec<f64>; 2],
}

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    let mut sheet = Sheet::new("Config file written → the new mapping accepts a connection, in both families");
    let mut groups = args.sizes(&SIZES).into_iter().map(Group::start).collect::<Result<Vec<_>>>()?;
    for round in 0..args.repetitions(100) {
        for group in &mut groups {
            group.measure(round)?;
        }
    }
    for group in groups {
        let goal = (group.size == 10_000).then_some("p99 ≤ 25");
        let [added, moved] = group.samples;
        sheet.plot(Point::of("one more", &tailyard(), group.size), "ms", added, goal);
        sheet.plot(Point::of("one retargeted", &tailyard(), group.size), "ms", moved, goal);
        group.proxy.end()?;
    }
    Ok(sheet)
}

impl Group {
    fn start(size: u16) -> Result<Self> {
        let topology = Topology::make(1, 2)?;
        let ports = FIRST_TARGET_PORT..FIRST_TARGET_PORT + TARGET_PORTS;
        let serve = |(number, site): (u16, &tailyard::demo::topology::DemoSite)| DemoTarget::start(&site.namespace, number, ports.clone());
        let targets = (0..).zip(&topology.targets).map(serve).collect::<Result<Vec<_>, _>>()?;
        let proxy = Proxy::start(&topology, 0, size)?;
        let services = (0..size).map(|number| DemoService { number, target: 0 });
        let board = Arc::new(Mutex::new(Scoreboard::new(Instant::now(), &topology, services)));
        Ok(Self { size, board, proxy, _targets: targets, topology, samples: [Vec::new(), Vec::new()] })
    }

    /// Adds a service with both families, retargets it, and removes it.
    fn measure(&mut self, round: usize) -> Result<()> {
        // Services with an even number have a name as target, and thus both families.
        let number = self.size + 2 * (u16::try_from(round % 1_000)? + 1);
        look(&self.board).write(DemoService { number, target: 0 });
        let added = self.put(number, ScoreboardChange::Add)?;
        look(&self.board).write(DemoService { number, target: 1 });
        let moved = self.put(number, ScoreboardChange::Retarget)?;
        look(&self.board).write_removal(number);
        self.put(number, ScoreboardChange::Remove)?;
        look(&self.board).rows.remove(&number);
        for (samples, took) in self.samples.iter_mut().zip([added, moved]) {
            samples.push(ms(took));
        }
        ensure!(look(&self.board).faults.is_empty(), "{:?}", look(&self.board).faults);
        Ok(())
    }

    /// Puts the config into place and waits for the change of one service to be in force.
    fn put(&mut self, number: u16, change: ScoreboardChange) -> Result<Duration> {
        // One change at a time: an immediate next one would wait for the remaining work of this one.
        std::thread::sleep(APART);
        let mut services: Vec<DemoService> = look(&self.board).rows.values().map(|row| row.service).collect();
        services.retain(|service| change != ScoreboardChange::Remove || service.number != number);
        let (board, volume, topology) = (&self.board, &mut self.proxy.volume, &self.topology);
        // The client's thread and runtime are there before the clock starts.
        let took = topology.client.block_on(|| async move {
            let stands = volume.write(topology, services)?;
            let written = stands.duration_since(look(board).start);
            std::io::Result::Ok(seen_in_force(board, &[number], Some(change), written).await)
        })?;
        Ok(took?)
    }
}
