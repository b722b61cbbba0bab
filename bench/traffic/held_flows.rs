//! Long-lived connections and UDP flows with periodic requests: who answers, and how they end.

use std::time::{Duration, Instant};

use anyhow::Result;
use tailyard::edge::netns::Namespace;
use tailyard::load::Load;
use tailyard::load::flows::{FlowUpdate, Rhythm, hold};
use tailyard::load::protocol::TargetProtocol;
use tailyard::model::diagnostics::load::{Attempt, AttemptFailure, AttemptReport, TargetIdentity};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Interval of the requests.
pub(crate) const EVERY: Duration = Duration::from_millis(20);

/// A flow and its outcome.
pub(crate) struct HeldFlow {
    pub(crate) attempt: Attempt,
    /// Request times, as offsets from the start, and the targets that answered.
    pub(crate) answers: Vec<(Duration, TargetIdentity)>,
    /// Whether it was reset.
    pub(crate) reset: bool,
}

/// Runs a load of these attempts and these long-lived flows in one network namespace while `work` runs; `work` gets their start time.
/// Returns the reports, the flows, and the result of `work`.
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
    /// Runs all flows in the network namespace of the calling thread, until this time after the start.
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
        let ended = timeout(remaining, hold(attempt, &TargetProtocol::Identity, Rhythm::always(EVERY), start, note)).await;
        Self { attempt, answers, reset: matches!(ended, Ok(Err(AttemptFailure::Reset))) }
    }
}
