//! How do clients experience the retargeting of all services under load, and their removal, compared with the Tailscale operator's proxy?
//!
//! New connections at a fixed rate, and on some services one established connection and one UDP flow. Every answer has the target's port,
//! and another port is another target.

use std::num::NonZeroU32;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tailyard::load::Load;
use tailyard::model::base::net::Proto;
use tailyard::model::diagnostics::load::{Attempt, AttemptReport, LoadSchedule};

use crate::peers::pod::{Pod, service};
use crate::peers::probe::{attempt, leads, sample};
use crate::peers::stage::{Stage, on_stage};
use crate::peers::system::System;
use crate::support::{Args, Point, Sheet, in_turn, ms, ratios};
use crate::traffic::held_flows::{EVERY, HeldFlow, meanwhile};

/// How many services there are.
const SIZE: u16 = 100;
/// New connections each second.
const RATE: u32 = 200;
/// How long a client waits.
const PATIENCE: Duration = Duration::from_secs(3);
/// When all services get another target, and when they are taken away; how long is measured.
const SWAP: Duration = Duration::from_millis(1_500);
const GONE: Duration = Duration::from_millis(6_500);
const LASTS: Duration = Duration::from_secs(10);
/// How long after it was taken away a service's connection counts as one that goes on.
const OUTLIVES: Duration = Duration::from_secs(2);

/// A figure of one round.
type Field = fn(&Round) -> f64;

/// Samples of a system in one round.
#[derive(Debug, Default)]
struct Round {
    failed: f64,
    /// From the new config in place until the last new connection, and the last datagram, that the old target answered; in ms.
    last_connection: f64,
    last_datagram: f64,
    /// Of the connections that were there when their service was taken away: those that were reset, and that went on.
    reset: f64,
    outlived: f64,
}

/// Times of the changes, as offsets from the start.
struct Moments {
    swap: Duration,
    gone: Duration,
}

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    on_stage(
        args,
        "All services get another target under 200 new connections a second, and are taken away, beside the Tailscale operator's proxy",
        measure,
    )
}

fn measure(stage: &Stage, args: &Args, sheet: &mut Sheet) -> Result<()> {
    let systems = if args.quick { &System::ALL[..2] } else { &System::ALL };
    let mut pods = Pod::started_together(stage, systems.iter().copied(), 1)?;
    let mut taken: Vec<Vec<Round>> = pods.iter().map(|_| Vec::new()).collect();
    for round in 0..args.repetitions(5) {
        for (pod, rounds) in in_turn(pods.iter_mut().zip(&mut taken), round) {
            rounds.push(take(stage, pod, u16::try_from(round)?)?);
        }
    }
    for (pod, rounds) in pods.iter().zip(&taken) {
        let mut plot = |of: &str, unit: &str, field: Field| {
            sheet.plot(Point::of(of, pod.system.name, SIZE), unit, rounds.iter().map(field).collect(), None);
        };
        let flows = format!("of {}", sample(SIZE).len());
        plot("another target: failed connects", &format!("of {}", u64::from(RATE) * GONE.as_secs()), |round| round.failed);
        plot("another target: until the last new connection to the old one", "ms", |round| round.last_connection);
        plot("another target: until the last datagram of a flow to the old one", "ms", |round| round.last_datagram);
        plot("taken away: connections that are reset", &flows, |round| round.reset);
        plot("taken away: connections that go on", &flows, |round| round.outlived);
        if let Some(theirs) = pods.iter().zip(&taken).find(|(other, _)| Some(other.system) == pod.system.rival()) {
            let of = |rounds: &[Round], field: Field| rounds.iter().map(field).collect::<Vec<_>>();
            let mut compare = |what: &str, field: Field, goal| {
                let what = format!("{what}, {}: theirs to ours", pod.system.firewall);
                sheet.add(what, "ratio", ratios(&of(theirs.1, field), &of(rounds, field)), Some(goal));
            };
            compare("until the last new connection to the old target", |round| round.last_connection, "≥ 20");
            compare("until the last datagram of a flow to the old target", |round| round.last_datagram, "≥ 20");
        }
    }
    Ok(())
}

/// All services get one target, then another one, and are removed.
fn take(stage: &Stage, pod: &mut Pod<'_>, turn: u16) -> Result<Round> {
    pod.shift(SIZE, turn)?;
    for number in sample(SIZE) {
        leads(stage, pod, number, service(number + turn).identity())?;
    }
    let load = Load { timeout: PATIENCE, ..Load::new(LoadSchedule::new(NonZeroU32::new(RATE).context("not zero")?), LASTS) };
    let attempts: Vec<_> = sample(SIZE).into_iter().map(|number| attempt(pod, number)).collect();
    let flows = attempts.iter().flat_map(|tcp| [*tcp, Attempt { proto: Proto::Udp, ..*tcp }]).collect();
    let (reports, flows, moments) = meanwhile(&stage.client.node.ns, load, &attempts, flows, |begun| {
        sleep((begun + SWAP).saturating_duration_since(Instant::now()));
        let swap = pod.shift(SIZE, turn + 1)?.duration_since(begun);
        sleep((begun + GONE).saturating_duration_since(Instant::now()));
        Ok(Moments { swap, gone: pod.shift(0, 0)?.duration_since(begun) })
    })?;
    judge(&reports, &flows, &moments, turn)
}

fn judge(reports: &[AttemptReport], flows: &[HeldFlow], moments: &Moments, turn: u16) -> Result<Round> {
    // The resolution is the time between two attempts.
    let (connections, datagrams) = (Duration::from_secs(1) / RATE, EVERY);
    let mut round = Round { last_connection: ms(connections), last_datagram: ms(datagrams), ..Round::default() };
    let port = |attempt: &Attempt, by: u16| anyhow::Ok(service(u16::try_from(attempt.lane.service)? + turn + by).identity().port);
    for report in reports.iter().filter(|report| report.ended < moments.gone) {
        match report.outcome {
            Ok(by) if by.port == port(&report.attempt, 0)? => {
                round.last_connection = round.last_connection.max(ms(report.began.saturating_sub(moments.swap)));
            }
            Ok(by) => ensure!(by.port == port(&report.attempt, 1)?, "answered by neither target: {report:?}"),
            Err(_) => round.failed += 1.0,
        }
    }
    for flow in flows {
        let old = port(&flow.attempt, 0)?;
        let last = flow.answers.iter().rfind(|(_, by)| by.port == old).map_or(Duration::ZERO, |(at, _)| *at);
        let goes_on = flow.answers.last().is_some_and(|(at, _)| *at > moments.gone + OUTLIVES);
        match flow.attempt.proto {
            Proto::Udp => round.last_datagram = round.last_datagram.max(ms(last.min(moments.gone).saturating_sub(moments.swap))),
            Proto::Tcp if goes_on => round.outlived += 1.0,
            Proto::Tcp if flow.reset => round.reset += 1.0,
            Proto::Tcp => {}
        }
    }
    Ok(round)
}
