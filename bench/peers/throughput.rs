//! How fast is one established connection through the proxy and WireGuard, beside the Tailscale operator's proxy and plain forwarding?

use std::net::SocketAddr;

use anyhow::Result;
use tailyard::model::base::net::Proto;

use crate::peers::pod::Pod;
use crate::peers::router::Router;
use crate::peers::stage::{Stage, on_stage};
use crate::peers::system::System;
use crate::support::{Args, PLAIN, Point, Sheet, in_turn, ratios};
use crate::traffic::copy::{Copied, Figure, PROCESSOR, RATE, Sink, of};

/// The port of the target's sink.
const SINK: u16 = 6_999;

/// A route to the sink: through a system, or by plain forwarding.
struct SinkRoute {
    by: Option<System>,
    to: SocketAddr,
    tcp: Vec<Copied>,
    udp: Vec<Copied>,
}

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    on_stage(args, "One established connection, or UDP flow, through the proxy and WireGuard, as fast as it goes", measure)
}

fn measure(stage: &Stage, args: &Args, sheet: &mut Sheet) -> Result<()> {
    let _router = Router::start(stage);
    let sink = stage.behind.node.ns.run(|| Sink::bind(SINK))??;
    let mut pods = Pod::one_of_each(stage)?;
    let way = |by, to| SinkRoute { by, to, tcp: Vec::new(), udp: Vec::new() };
    let mut ways = vec![way(None, SocketAddr::new(stage.target, SINK))];
    for pod in &mut pods {
        pod.lead_to(SINK)?;
        ways.push(way(Some(pod.system), pod.at(0)));
    }
    let client = &stage.client.node.ns;
    for way in &ways {
        sink.open(client, way.to)?;
        sink.copy(Proto::Tcp, client, way.to)?;
    }
    for round in 0..args.repetitions(10) {
        for way in in_turn(&mut ways, round) {
            way.tcp.push(sink.copy(Proto::Tcp, client, way.to)?);
            way.udp.push(sink.copy(Proto::Udp, client, way.to)?);
        }
    }
    report(sheet, "one TCP connection", &ways, |way| &way.tcp);
    report(sheet, "one UDP flow", &ways, |way| &way.udp);
    Ok(())
}

fn report(sheet: &mut Sheet, what: &str, ways: &[SinkRoute], field: fn(&SinkRoute) -> &[Copied]) {
    let of =
        |by: Option<System>, figure: Figure| ways.iter().find(|way| way.by == by).map(|way| of(field(way), figure)).unwrap_or_default();
    for (plot, unit, figure) in [("through WireGuard", "Gbit/s", RATE), ("processor time", "s for each Gbit", PROCESSOR)] {
        let plot = format!("{what}: {plot}");
        for SinkRoute { by, .. } in ways {
            let point = by.map_or_else(|| Point::limit(&plot, PLAIN), |system| Point::of(&plot, system.name, 1_u8));
            sheet.plot(point, unit, of(*by, figure), None);
        }
    }
    for system in System::ALL {
        sheet.add(format!("{what}, {}: to plain forwarding", system.name), "ratio", ratios(&of(Some(system), RATE), &of(None, RATE)), None);
        if let Some(theirs) = system.rival() {
            let mut compare = |of_what: &str, figure, goal| {
                let ratios = ratios(&of(Some(system), figure), &of(Some(theirs), figure));
                sheet.add(format!("{what}, {}{of_what}: ours to theirs", system.firewall), "ratio", ratios, Some(goal));
            };
            compare("", RATE, "≥ 1");
            compare(", processor time for each Gbit", PROCESSOR, "≤ 1");
        }
    }
}
