//! What does a new connection through the proxy cost, at 10 and at 10,000 services, and by plain forwarding?

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use tailyard::demo::services::{DemoService, FIRST_TARGET_PORT, TARGET_PORTS, of_family};
use tailyard::demo::target::DemoTarget;
use tailyard::demo::topology::{Topology, forward_plainly};
use tailyard::model::base::net::Family;

use crate::proxy::Proxy;
use crate::support::{Args, PLAIN, Point, Sheet, ratios, tailyard};
use crate::traffic::route::{AT_ONCE, DIALLED, Route};

/// Services on the first and the second proxy; the third route has no proxy.
const SIZES: [u16; 2] = [10, 10_000];
/// The same where it is only to be shown that it works.
const FEW: [u16; 2] = [10, 1_000];
/// Connections per second for latency: far below the limit of every route.
const CALM: u32 = 1_000;

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    let sizes = if args.quick { FEW } else { SIZES };
    let topology = Topology::make(3, 1)?;
    let ports = FIRST_TARGET_PORT..FIRST_TARGET_PORT + TARGET_PORTS;
    let target = topology.targets.first().context("there is a target")?;
    let _served = DemoTarget::start(&target.namespace, 0, ports.clone())?;
    let proxies = (0..).zip(sizes).map(|(number, size)| Proxy::start(&topology, number, size)).collect::<Result<Vec<_>>>()?;
    forward_plainly(&topology, 2)?;
    let mut ways = Vec::new();
    for (site, size) in topology.replicas.iter().zip(sizes) {
        let pod = of_family(site.pod.context("a replica has a Pod address")?, Family::V4);
        // The even ones have an IPv4 address.
        let services = (0..DIALLED).map(|turn| DemoService { number: (turn * (size / DIALLED)) & !1, target: 0 });
        let dial = services.map(|service| SocketAddr::new(pod, service.match_port()));
        ways.push((Some(size), Route::new(dial.collect())));
    }
    let direct: IpAddr = of_family(target.tailnet, Family::V4);
    let dial = ports.step_by(2).take(DIALLED.into()).map(|port| SocketAddr::new(direct, port));
    ways.push((None, Route::new(dial.collect())));
    for (_, way) in &mut ways {
        way.rate(&topology.client)?;
        way.rates.clear();
    }
    for _ in 0..args.repetitions(15) {
        for (_, way) in &mut ways {
            way.rate(&topology.client)?;
            way.latency(&topology.client, CALM)?;
        }
    }
    proxies.into_iter().try_for_each(Proxy::end)?;
    Ok(sheet(&ways))
}

fn sheet(ways: &[(Option<u16>, Route)]) -> Sheet {
    let mut sheet = Sheet::new("New connections through the proxy and by plain forwarding");
    for (size, way) in ways {
        let point = |plot: String| size.map_or_else(|| Point::limit(&plot, PLAIN), |size| Point::of(&plot, &tailyard(), size));
        sheet.plot(point(format!("rate, {AT_ONCE} at once")), "1/s", way.rates.clone(), None);
        sheet.plot(point(format!("connect at {CALM}/s, p50")), "ms", way.latencies.clone(), None);
        sheet.plot(point(format!("connect at {CALM}/s, p99")), "ms", way.worst.clone(), None);
    }
    if let [(_, few), (_, many), (_, plain)] = ways {
        sheet.add("rate at 10,000 services to that at 10", "ratio", ratios(&many.rates, &few.rates), Some("≥ 0.95"));
        sheet.add("rate at 10 services to plain forwarding", "ratio", ratios(&few.rates, &plain.rates), Some("≥ 0.8"));
        sheet.add("rate at 10,000 services to plain forwarding", "ratio", ratios(&many.rates, &plain.rates), Some("≥ 0.8"));
    }
    sheet
}
