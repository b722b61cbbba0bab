//! What does a new connection cost through our proxy and through the real kube-proxy in nftables mode, with a growing number of services?
//!
//! No WireGuard: a client, a target, and three routes over equal links: our proxy, a node with the rules of kube-proxy for as many Services
//! of a real kube-apiserver, and plain forwarding. Needs `tests/servers/build etcd kube-apiserver kube-proxy`.

mod node;

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Mutex;

use anyhow::{Context, Result};
use kit::apiserver::{Cluster, cluster_in};
use kit::servers::kubernetes_release;
use tailyard::demo::services::{DemoService, FIRST_TARGET_PORT, TARGET_PORTS, of_family};
use tailyard::demo::target::DemoTarget;
use tailyard::demo::topology::{Topology, forward_plainly};
use tailyard::model::base::net::Family;

use crate::proxy::Proxy;
use crate::support::{Args, PLAIN, Point, Sheet, in_turn, ratios, tailyard};
use crate::traffic::route::{AT_ONCE, DIALLED, Route};

use node::Node;

/// How many services there are.
const SIZES: [u16; 4] = [10, 100, 1_000, 10_000];
/// Where it is only to be shown that it works.
const FEW: [u16; 2] = [10, 100];
/// Connections per second for latency: far below the limit of every route.
const CALM: u32 = 1_000;
/// The reference's name in plots.
const KUBE_PROXY: &str = "kube-proxy, nftables";
/// Numbers of the routes between client and target.
const OURS: usize = 0;
const THEIRS: usize = 1;
const NOBODY: usize = 2;

/// Samples of one size: our proxy, kube-proxy, and plain forwarding.
struct Measured {
    size: u16,
    ways: [Route; 3],
}

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    let topology = Topology::make(3, 1)?;
    let target = topology.targets.first().context("there is a target")?;
    let _served = DemoTarget::start(&target.namespace, 0, ports())?;
    forward_plainly(&topology, NOBODY)?;
    let measured = Mutex::new(Ok(Vec::new()));
    let site = topology.replicas.get(THEIRS).context("there is a way")?;
    cluster_in(&site.namespace, async |cluster| {
        *measured.lock().expect("no panic under the lock") = measure(&topology, cluster, args).await;
    });
    Ok(sheet(&measured.into_inner().expect("no panic under the lock")?))
}

/// Measures one size after the other, alternating between the routes; in the network of the node with the API server.
async fn measure(topology: &Topology, cluster: Cluster, args: &Args) -> Result<Vec<Measured>> {
    let target = of_family(topology.targets.first().context("there is a target")?.tailnet, Family::V4);
    let mut node = Node::start(cluster, topology, THEIRS, target).await?;
    let mut all = Vec::new();
    for size in if args.quick { &FEW[..] } else { &SIZES } {
        node.serve(*size).await?;
        let proxy = Proxy::start(topology, OURS, *size)?;
        let pod = of_family(topology.replicas.get(OURS).and_then(|site| site.pod).context("a way has a Pod address")?, Family::V4);
        // The even ones have an IPv4 address.
        let services = || (0..DIALLED).map(|turn| DemoService { number: (turn * (size / DIALLED)) & !1, target: 0 });
        let ours = services().map(|service| SocketAddr::new(pod, service.match_port())).collect();
        let theirs = services().map(|service| SocketAddr::new(node::address(service.number).into(), node::PORT)).collect();
        let plain = ports().step_by(2).take(DIALLED.into()).map(|port| SocketAddr::new(target, port)).collect();
        let mut ways = [ours, theirs, plain].map(Route::new);
        for way in &mut ways {
            way.rate(&topology.client)?;
            way.rates.clear();
        }
        for round in 0..args.repetitions(8) {
            for way in in_turn(&mut ways, round) {
                way.rate(&topology.client)?;
                way.latency(&topology.client, CALM)?;
            }
        }
        proxy.end()?;
        all.push(Measured { size: *size, ways });
    }
    Ok(all)
}

fn sheet(all: &[Measured]) -> Sheet {
    let mut sheet = Sheet::new("New connections through our proxy, through kube-proxy's rules and by plain forwarding");
    sheet.version("kube-proxy", kubernetes_release());
    let mut plain = Route::new(Vec::new());
    for Measured { size, ways: [ours, theirs, limit] } in all {
        for (name, way) in [(tailyard(), ours), (KUBE_PROXY.to_owned(), theirs)] {
            add_series(&mut sheet, way, |plot| Point::of(plot, &name, *size));
        }
        plain.rates.extend(&limit.rates);
        plain.latencies.extend(&limit.latencies);
        plain.worst.extend(&limit.worst);
        let (to_theirs, to_limit) = (ratios(&ours.rates, &theirs.rates), ratios(&theirs.rates, &limit.rates));
        sheet.add(format!("rate at {size} services, ours to kube-proxy's"), "ratio", to_theirs, (*size == 10_000).then_some("≥ 0.9"));
        sheet.add(format!("rate at {size} services, kube-proxy's to plain forwarding"), "ratio", to_limit, None);
    }
    add_series(&mut sheet, &plain, |plot| Point::limit(plot, PLAIN));
    sheet
}

fn add_series(sheet: &mut Sheet, way: &Route, point: impl Fn(&str) -> Point) {
    sheet.plot(point(&format!("rate, {AT_ONCE} at once")), "1/s", way.rates.clone(), None);
    sheet.plot(point(&format!("connect at {CALM}/s, p50")), "ms", way.latencies.clone(), None);
    sheet.plot(point(&format!("connect at {CALM}/s, p99")), "ms", way.worst.clone(), None);
}

/// The ports of the target.
fn ports() -> Range<u16> {
    FIRST_TARGET_PORT..FIRST_TARGET_PORT + TARGET_PORTS
}
