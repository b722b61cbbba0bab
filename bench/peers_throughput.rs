//! How fast is one established connection through the proxy and WireGuard, beside the Tailscale operator's proxy and plain forwarding?

#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr, reason = "shares the stage of the tests")]

#[path = "support.rs"]
mod bench;
mod copy;
mod peers;

use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;

use crate::bench::{Args, PLAIN, Point, Sheet, in_turn, ratios};
use crate::copy::copy;
use crate::peers::pod::Pod;
use crate::peers::router::Router;
use crate::peers::stage::{Stage, on_stage};
use crate::peers::system::System;

/// The port of the target that takes everything.
const SINK: u16 = 6_999;
/// What the report calls it.
const PLOT: &str = "one TCP connection through WireGuard";

/// A way to the sink: by which system, or by plain forwarding.
struct Way {
    by: Option<System>,
    to: SocketAddr,
    rates: Vec<f64>,
}

fn main() -> Result<ExitCode> {
    on_stage("peers_throughput", "One established TCP connection through the proxy and WireGuard, as fast as it goes", measure)
}

fn measure(stage: &Stage, args: &Args, sheet: &mut Sheet) -> Result<()> {
    let _router = Router::start(stage);
    let listener = stage.behind.node.ns.run(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, SINK)))??;
    let mut pods = Pod::one_of_each(stage)?;
    let mut ways = vec![Way { by: None, to: SocketAddr::new(stage.target, SINK), rates: Vec::new() }];
    for pod in &mut pods {
        pod.lead_to(SINK)?;
        ways.push(Way { by: Some(pod.system), to: pod.at(0), rates: Vec::new() });
    }
    for way in &ways {
        open(stage, &listener, way.to)?;
        copy(&stage.client.node.ns, &listener, way.to)?;
    }
    for round in 0..args.repetitions(10) {
        for way in in_turn(&mut ways, round) {
            way.rates.push(copy(&stage.client.node.ns, &listener, way.to)?);
        }
    }
    report(sheet, &ways);
    Ok(())
}

/// Waits until a connection stands.
fn open(stage: &Stage, listener: &TcpListener, to: SocketAddr) -> Result<()> {
    while stage.client.node.ns.run(|| TcpStream::connect(to))?.is_err() {
        sleep(Duration::from_millis(10));
    }
    listener.accept()?;
    Ok(())
}

fn report(sheet: &mut Sheet, ways: &[Way]) {
    let rates = |by: Option<System>| ways.iter().find(|way| way.by == by).map(|way| way.rates.as_slice()).unwrap_or_default();
    for way in ways {
        let point = way.by.map_or_else(|| Point::limit(PLOT, PLAIN), |system| Point::of(PLOT, system.name, 1_u8));
        sheet.plot(point, "Gbit/s", way.rates.clone(), None);
    }
    for system in System::ALL {
        sheet.add(format!("{}: to plain forwarding", system.name), "ratio", ratios(rates(Some(system)), rates(None)), None);
        if let Some(theirs) = system.rival() {
            let ratios = ratios(rates(Some(system)), rates(Some(theirs)));
            sheet.add(format!("{}: ours to theirs", system.firewall), "ratio", ratios, Some("≥ 1"));
        }
    }
}
