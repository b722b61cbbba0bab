//! How long does a DNS name's old address get traffic after a change, compared with the Tailscale operator's proxy?
//!
//! The proxy of a Service whose target is a DNS name (`ExternalName`): traffic from the tailnet is forwarded to the name's address. The
//! client is a node of the tailnet, the DNS server a real one.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kit::dns::Dns;
use tailyard::demo::services::FIRST_TARGET_PORT;
use tailyard::demo::target::DemoTarget;
use tailyard::load::protocol::TargetProtocol;
use tailyard::load::{Load, make};
use tailyard::model::base::net::Proto;
use tailyard::model::diagnostics::load::{Attempt, AttemptReport, Lane, LoadSchedule};
use tokio::sync::{mpsc, oneshot};

use crate::peers::pod::Pod;
use crate::peers::stage::{Stage, on_stage};
use crate::peers::system::System;
use crate::support::{Args, Point, Sheet, at_once, ratios};
use crate::traffic::held_flows::meanwhile;

/// The name, and the TTL of its record in seconds.
const NAME: &str = "app.test";
const TTL: u32 = 5;
/// New connections each second.
const RATE: u32 = 50;
/// When the name changes, and how long is measured.
const CHANGE: Duration = Duration::from_secs(1);
const LASTS: Duration = Duration::from_secs(31);
/// The same where it is only to be shown that it works.
const BRIEF: Duration = Duration::from_secs(5);
/// Upper bound of a proxy start.
const START: Duration = Duration::from_mins(1);
/// Timeout of a connection.
const PATIENCE: Duration = Duration::from_secs(1);

/// Samples of a system: seconds until the last new connection, and the last datagram of a flow, to the old address; failed connects.
#[derive(Default)]
struct Samples {
    connection: Vec<f64>,
    datagram: Vec<f64>,
    failed: Vec<f64>,
}

/// The zone; its server runs in another thread and ends with it.
struct Zone(mpsc::UnboundedSender<(IpAddr, oneshot::Sender<Instant>)>);

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    on_stage(args, "A DNS name gets another address, under 50 new connections a second, beside the Tailscale operator's proxy", measure)
}

fn measure(stage: &Stage, args: &Args, sheet: &mut Sheet) -> Result<()> {
    let lasts = if args.quick { BRIEF } else { LASTS };
    let apps = ["app-0", "app-1"].map(|name| stage.tailnet.machine(name));
    let serve = |(number, app)| DemoTarget::start(app, number, FIRST_TARGET_PORT..FIRST_TARGET_PORT + 1);
    let _targets = (0..).zip(apps.each_ref().map(|app| &app.node.ns)).map(serve).collect::<Result<Vec<_>, _>>()?;
    let addresses = apps.each_ref().map(|app| app.address);
    let systems = [System::OURS, System::STOCK];
    let mut taken = systems.map(|_| Samples::default());
    std::thread::scope(|scope| {
        let server = stage.client.address;
        let (changes, mut requests) = mpsc::unbounded_channel::<(IpAddr, oneshot::Sender<Instant>)>();
        let work = move || async move {
            let dns = Dns::start(&server.to_string()).await;
            while let Some((address, done)) = requests.recv().await {
                dns.set(NAME, TTL, &[&address.to_string()]).await;
                done.send(Instant::now()).map_err(|_| anyhow::anyhow!("who asked is gone"))?;
            }
            anyhow::Ok(())
        };
        scope.spawn(|| stage.client.node.ns.block_on(work)?);
        let zone = Zone(changes);
        for _ in 0..args.repetitions(5) {
            zone.lead_to(addresses[0])?;
            let mut pods = systems.into_iter().map(|system| Pod::named(stage, system, NAME, server)).collect::<Result<Vec<_>>>()?;
            for pod in &mut pods {
                pod.start();
            }
            let attempts = systems.into_iter().map(|system| answered(stage, system)).collect::<Result<Vec<_>>>()?;
            // Both at the same time: nearly all of it is waiting.
            let change = || zone.lead_to(addresses[1]);
            at_once(taken.iter_mut().zip(attempts).map(|(taken, attempt)| move || taken.take(stage, attempt, change, lasts)))?;
            pods.into_iter().try_for_each(Pod::end)?;
        }
        anyhow::Ok(())
    })?;
    let number = u64::from(RATE) * lasts.as_secs();
    for (system, taken) in systems.iter().zip(&taken) {
        let mut plot = |of: &str, unit: &str, values: &[f64]| sheet.plot(Point::of(of, system.name, 1_u8), unit, values.to_vec(), None);
        plot("until the last new connection to the old address", "s", &taken.connection);
        plot("until the last datagram of a flow to the old address", "s", &taken.datagram);
        plot("failed connects", &format!("of {number}"), &taken.failed);
    }
    let [ours, theirs] = taken;
    sheet.add(
        "until the last new connection to the old address: ours to theirs",
        "ratio",
        ratios(&ours.connection, &theirs.connection),
        None,
    );
    Ok(())
}

impl Zone {
    /// Sets the name's address; returns the time of the change.
    fn lead_to(&self, address: IpAddr) -> Result<Instant> {
        let (done, is_done) = oneshot::channel();
        self.0.send((address, done)).ok().context("the DNS server has ended")?;
        Ok(is_done.blocking_recv()?)
    }
}

impl Samples {
    /// The name changes under load.
    fn take(&mut self, stage: &Stage, attempt: Attempt, change: impl Fn() -> Result<Instant>, lasts: Duration) -> Result<()> {
        let load = Load::new(LoadSchedule::new(NonZeroU32::new(RATE).context("not zero")?), lasts);
        let flows = vec![Attempt { proto: Proto::Udp, ..attempt }];
        let (reports, flows, changed) = meanwhile(&stage.behind.node.ns, load, &[attempt], flows, |begun| {
            sleep((begun + CHANGE).saturating_duration_since(Instant::now()));
            Ok(change()?.duration_since(begun))
        })?;
        let after = |moments: &mut dyn Iterator<Item = Duration>| moments.max().unwrap_or_default().saturating_sub(changed).as_secs_f64();
        let of_old = |report: &&AttemptReport| report.outcome.is_ok_and(|by| by.target == 0);
        self.connection.push(after(&mut reports.iter().filter(of_old).map(|report| report.began)));
        let answers = flows.iter().flat_map(|flow| &flow.answers).filter(|(_, by)| by.target == 0);
        self.datagram.push(after(&mut answers.map(|(at, _)| *at)));
        let failed = reports.iter().filter(|report| report.outcome.is_err()).count();
        self.failed.push(f64::from(u32::try_from(failed)?));
        Ok(())
    }
}

/// A connection to the proxy's node, once the old address has answered one.
fn answered(stage: &Stage, system: System) -> Result<Attempt> {
    let begun = Instant::now();
    let address_of_pod =
        || stage.tailnet.knows(system.pod).then(|| stage.tailnet.addresses_of(system.pod).into_iter().find(IpAddr::is_ipv4)).flatten();
    while begun.elapsed() < START {
        if let Some(ip) = address_of_pod() {
            let to = SocketAddr::new(ip, FIRST_TARGET_PORT);
            let attempt = Attempt { lane: Lane { service: 0, replica: 0 }, proto: Proto::Tcp, to };
            let requests = || make(TargetProtocol::Identity, attempt, 0, begun, begun.elapsed(), (PATIENCE, false));
            if stage.behind.node.ns.block_on(requests)?.outcome.is_ok_and(|by| by.target == 0) {
                return Ok(attempt);
            }
        }
        sleep(Duration::from_millis(100));
    }
    bail!("{}: the name's address did not answer within {START:?}", system.name)
}
