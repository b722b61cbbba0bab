//! Connections and UDP flows that are held open and ask again and again: who answered, and how they ended.

use std::time::{Duration, Instant};

use anyhow::Result;
use tailyard::edge::netns::Namespace;
use tailyard::load::Load;
use tailyard::load::flows::{FlowUpdate, Rhythm, hold};
use tailyard::load::protocol::Talk;
use tailyard::model::diagnostics::load::{Attempt, AttemptFailure, AttemptReport, TargetIdentity};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How often each asks.
pub(crate) const EVERY: Duration = Duration::from_millis(20);

/// A flow, and what became of it.
pub(crate) struct HeldFlow {
    pub(crate) attempt: Attempt,
    /// When it asked, as an offset from the start, and who answered.
    pub(crate) answers: Vec<(Duration, TargetIdentity)>,
    /// Whether it was reset.
    pub(crate) reset: bool,
}

/// Offers a load of these attempts, in turn, and holds these flows, all from one network namespace, while something is done that is told
/// when both began. What the load and the flows met, and what came of it.
pub(crate) fn meanwhile<T>(
    from: &Namespace,
    load: Load,
    attempts: &[Attempt],
    flows: Vec<Attempt>,
    work: impl FnOnce(Instant) -> Result<T>,
) -> Result<(Vec<AttemptReport>, Vec<HeldFlow>, T)> {
    let (mut reports, begun, lasts) = (Vec::new(), Instant::now(), load.lasts);
    let offer = || {
        let choose = |number: u64| attempts.get(usize::try_from(number).ok()? % attempts.len()).copied();
        let load = load.offer(begun, choose, |report| reports.push(*report), std::future::pending());
        from.block_on(|| async { tokio::join!(HeldFlow::all(flows, begun, lasts), load).0 })
    };
    let (flows, done) = std::thread::scope(|scope| {
        let offering = scope.spawn(offer);
        let done = work(begun);
        let flows = offering.join().map_err(|_| anyhow::anyhow!("the load panicked"))???;
        anyhow::Ok((flows, done?))
    })?;
    Ok((reports, flows, done))
}

impl HeldFlow {
    /// Holds all of them in the network namespace of the calling thread, for so long after the start.
    async fn all(flows: Vec<Attempt>, start: Instant, lasts: Duration) -> Result<Vec<Self>> {
        let mut open: JoinSet<Self> = flows.into_iter().map(|flow| Self::one(flow, start, lasts)).collect();
        let mut flows = Vec::new();
        while let Some(one) = open.join_next().await {
            flows.push(one?);
        }
        Ok(flows)
    }

    async fn one(attempt: Attempt, start: Instant, lasts: Duration) -> Self {
        let mut answers = Vec::new();
        let note = |beat| {
            if let FlowUpdate::Answered { by, began, .. } = beat {
                answers.push((began, by));
            }
        };
        let remaining = lasts.saturating_sub(start.elapsed());
        let ended = timeout(remaining, hold(attempt, &Talk::Identity, Rhythm::always(EVERY), start, note)).await;
        Self { attempt, answers, reset: matches!(ended, Ok(Err(AttemptFailure::Reset))) }
    }
}
