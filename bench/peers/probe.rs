//! Probes of services from outside: connections that are answered by the expected target.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use tailyard::load::make;
use tailyard::load::protocol::TargetProtocol;
use tailyard::model::base::net::Proto;
use tailyard::model::diagnostics::load::{Attempt, AttemptFailure, AttemptReport, Lane, TargetIdentity};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::pod::{Pod, service};
use super::stage::Stage;

/// Shortest interval between two probes. It grows with the number of services and with the time waited, so that probes are cheap and as
/// precise as the measured time is short.
const FINEST: Duration = Duration::from_millis(1);
/// Divisor of the time waited so far that gives the interval between two probes.
const PART: u32 = 20;
/// Timeout of a probe.
const PATIENCE: Duration = Duration::from_secs(3);
/// Upper bound until the services of an applied config answer.
const ENOUGH: Duration = Duration::from_mins(1);
/// Number of sampled services where all change at once.
const SAMPLE: u16 = 16;

/// Waits until these services of a Pod are answered by their target; returns the time of the last one since a moment.
pub(crate) fn live(stage: &Stage, pod: &Pod<'_>, services: &[u16], since: Instant, limit: Duration) -> Result<Duration> {
    last(stage, pod, services, since, limit, |answered| answered.ended)
}

/// Waits like [`live`]; returns the start of the last answered connection: an unmapped port refuses at once, so the mapping existed then.
/// Not for a Pod whose tunnel may be down, as nothing refuses then.
pub(crate) fn mapped(stage: &Stage, pod: &Pod<'_>, services: &[u16], since: Instant, limit: Duration) -> Result<Duration> {
    last(stage, pod, services, since, limit, |answered| answered.began)
}

fn last(
    stage: &Stage,
    pod: &Pod<'_>,
    services: &[u16],
    since: Instant,
    limit: Duration,
    moment: impl Fn(&AttemptReport) -> Duration + Send + Sync,
) -> Result<Duration> {
    let answers = stage.client.node.ns.block_on(|| async move {
        let finest = FINEST * u32::try_from(services.len() / 4).unwrap_or(1).max(1);
        let each = services.iter().map(|number| answered(pod, *number, since, finest));
        timeout(limit, join_all(each)).await
    })?;
    let last = answers.ok().and_then(|answers| answers.iter().map(moment).max());
    last.with_context(|| format!("{}: not all of {} services were answered within {limit:?}", pod.system.name, services.len()))
}

/// Waits until each of the first services of a Pod was answered, a few at a time with low load.
pub(crate) fn all_live(stage: &Stage, pod: &Pod<'_>, size: u16) -> Result<()> {
    let begun = Instant::now();
    let one = async |number: u16| {
        while !is_live(pod, number, begun).await {
            sleep(FINEST * 10).await;
        }
    };
    let all = || async { timeout(ENOUGH, stream::iter(0..size).for_each_concurrent(4, one)).await };
    let done = stage.client.node.ns.block_on(all)?;
    done.with_context(|| format!("{}: not all of {size} services were answered within {ENOUGH:?}", pod.system.name))
}

/// Waits until none of these services of a Pod is answered any more.
pub(crate) fn gone(stage: &Stage, pod: &Pod<'_>, services: &[u16], limit: Duration) -> Result<()> {
    let ended = stage.client.node.ns.block_on(|| async move {
        let begun = Instant::now();
        for number in services {
            while is_live(pod, *number, begun).await {
                sleep((begun.elapsed() / PART).max(FINEST)).await;
                if begun.elapsed() > limit {
                    return false;
                }
            }
        }
        true
    })?;
    ensure!(ended, "{}: services that are configured no more were answered for {limit:?}", pod.system.name);
    Ok(())
}

/// A sample of the services, evenly spread with the first and the last.
pub(crate) fn sample(size: u16) -> Vec<u16> {
    let count = size.min(SAMPLE);
    let spread = |turn: u16| u32::from(turn) * u32::from(size - 1) / u32::from((count - 1).max(1));
    (0..count).filter_map(|turn| spread(turn).try_into().ok()).collect()
}

/// A connection to a service.
pub(crate) fn attempt(pod: &Pod<'_>, number: u16) -> Attempt {
    Attempt { lane: Lane { service: number.into(), replica: 0 }, proto: Proto::Tcp, to: pod.at(number) }
}

/// Waits until a service is answered by this target.
pub(crate) fn leads(stage: &Stage, pod: &Pod<'_>, number: u16, target: TargetIdentity) -> Result<()> {
    let begun = Instant::now();
    let answered_by_target = async || {
        while by(pod, number, begun).await != Ok(target) {
            sleep(FINEST * 10).await;
        }
    };
    let done = stage.client.node.ns.block_on(|| async { timeout(ENOUGH, answered_by_target()).await })?;
    done.with_context(|| format!("{}: service {number} did not lead to {target:?} within {ENOUGH:?}", pod.system.name))
}

/// Whether a service is answered by the right target.
async fn is_live(pod: &Pod<'_>, number: u16, start: Instant) -> bool {
    by(pod, number, start).await == Ok(service(number).identity())
}

/// The target that answers a service.
async fn by(pod: &Pod<'_>, number: u16, start: Instant) -> Result<TargetIdentity, AttemptFailure> {
    make(TargetProtocol::Identity, attempt(pod, number), 0, start, start.elapsed(), (PATIENCE, false)).await.outcome
}

/// Connects again and again until one connection is answered by the right target.
async fn answered(pod: &Pod<'_>, number: u16, since: Instant, finest: Duration) -> AttemptReport {
    let mut open = JoinSet::new();
    for nonce in 0.. {
        open.spawn(make(TargetProtocol::Identity, attempt(pod, number), nonce, since, since.elapsed(), (PATIENCE, false)));
        let next = sleep((since.elapsed() / PART).max(finest));
        tokio::pin!(next);
        loop {
            tokio::select! {
                () = &mut next => break,
                Some(report) = open.join_next(), if !open.is_empty() => if let Ok(report) = report
                    && report.outcome == Ok(service(number).identity()) {
                    return report;
                },
            }
        }
    }
    unreachable!("there are always more numbers")
}
