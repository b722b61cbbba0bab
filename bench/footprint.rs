//! How much memory does a proxy use, and how much processor time when nothing changes and when everything does?

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tailyard::demo::services::DemoService;
use tailyard::demo::topology::Topology;

use crate::proxy::Proxy;
use crate::support::{Args, Point, Sheet, share, status, tailyard};

/// How many services there are.
const SIZES: [u16; 3] = [100, 1_000, 10_000];
/// Config changes each second.
const CHANGES: u32 = 100;

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    let own = fs::read_link("/proc/self").context("/proc is not mounted")?;
    let numbers_are_ours = own.as_os_str() == std::process::id().to_string().as_str();
    ensure!(numbers_are_ours, "/proc shows other processes than this benchmark's own: run it as root, or where /proc may be mounted");
    let mut sheet = Sheet::new("Memory and processor time of one proxy");
    for size in args.sizes(&SIZES) {
        let goal = match size {
            100 => Some("≤ 20"),
            10_000 => Some("≤ 40"),
            _ => None,
        };
        let (mut memory, mut idle, mut busy, mut bytes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..args.repetitions(5) {
            let topology = Topology::make(1, 2)?;
            let mut proxy = Proxy::start(&topology, 0, size)?;
            let pid = proxy.replica.pid().context("the proxy runs")?;
            idle.push(share(pid, || {
                std::thread::sleep(Duration::from_secs(if args.quick { 2 } else { 5 }));
                Ok(())
            })?);
            memory.push(status(pid, "VmRSS:")?);
            let changing = if size == 10_000 { Duration::from_secs(3) } else { Duration::from_secs(2) };
            busy.push(share(pid, || change(&topology, &mut proxy, size, changing))?);
            bytes.push(status(pid, "VmHWM:")?);
            proxy.end()?;
        }
        let system = tailyard();
        sheet.plot(Point::of("resident", &system, size), "MB", memory, goal);
        sheet.plot(Point::of("the most resident, after changes", &system, size), "MB", bytes, None);
        sheet.plot(Point::of("processor when idle", &system, size), "%", idle, Some("≤ 1"));
        sheet.plot(Point::of(&format!("processor at {CHANGES} changes/s"), &system, size), "%", busy, None);
    }
    Ok(sheet)
}

/// Retargets one service after another, in time.
fn change(topology: &Topology, proxy: &mut Proxy, size: u16, lasts: Duration) -> Result<()> {
    let mut services: Vec<DemoService> = (0..size).map(|number| DemoService { number, target: 0 }).collect();
    let (begun, total) = (Instant::now(), CHANGES * u32::try_from(lasts.as_secs())?);
    for number in 0..total {
        std::thread::sleep((lasts / total * number).saturating_sub(begun.elapsed()));
        let chosen = usize::try_from(number)? % services.len();
        if let Some(service) = services.get_mut(chosen) {
            service.target ^= 1;
        }
        proxy.volume.write(topology, services.iter().copied())?;
    }
    Ok(())
}
