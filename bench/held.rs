//! Connections and UDP flows that are held open and ask again and again: who answered, and how they ended.

use std::time::{Duration, Instant};

use anyhow::Result;
use tailyard::load::flows::{Beat, Rhythm, hold};
use tailyard::load::talk::Talk;
use tailyard::model::load::{Attempt, Failure, Identity};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How often each asks.
pub(crate) const EVERY: Duration = Duration::from_millis(20);

/// A flow, and what became of it.
pub(crate) struct Held {
    pub(crate) attempt: Attempt,
    /// When it asked, as an offset from the start, and who answered.
    pub(crate) answers: Vec<(Duration, Identity)>,
    /// Whether it was reset.
    pub(crate) reset: bool,
}

impl Held {
    /// Holds all of them in the network namespace of the calling thread, for so long after the start.
    pub(crate) async fn all(flows: Vec<Attempt>, start: Instant, lasts: Duration) -> Result<Vec<Self>> {
        let mut open: JoinSet<Self> = flows.into_iter().map(|flow| Self::one(flow, start, lasts)).collect();
        let mut held = Vec::new();
        while let Some(one) = open.join_next().await {
            held.push(one?);
        }
        Ok(held)
    }

    async fn one(attempt: Attempt, start: Instant, lasts: Duration) -> Self {
        let mut answers = Vec::new();
        let note = |beat| {
            if let Beat::Answered { by, began, .. } = beat {
                answers.push((began, by));
            }
        };
        let left = lasts.saturating_sub(start.elapsed());
        let ended = timeout(left, hold(attempt, &Talk::Identity, Rhythm::always(EVERY), start, note)).await;
        Self { attempt, answers, reset: matches!(ended, Ok(Err(Failure::Reset))) }
    }
}
