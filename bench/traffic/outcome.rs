//! Outcome of a load: failed connections, longest gap without an answer, and connect latency.

use std::time::Duration;

use anyhow::{Result, ensure};
use tailyard::model::diagnostics::load::{AttemptFailure, AttemptReport};

/// A connection without an answer after this time counts as hanging.
const LATE: Duration = Duration::from_secs(1);

/// The outcome of a load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoadOutcome {
    /// How many connections were sent.
    pub(crate) sent: usize,
    /// How many of them were never answered.
    pub(crate) failed: usize,
    /// How many of these were refused at once.
    pub(crate) refused: usize,
    /// How many of those sent were not answered within a second; those that failed are among them.
    pub(crate) late: usize,
    /// The longest time in which none was answered.
    pub(crate) gap: Duration,
    /// When the last one was due that failed.
    pub(crate) last: Duration,
    /// 99th percentile of the connect time of answered connections, since they were due.
    pub(crate) connect: Duration,
}

impl LoadOutcome {
    /// The outcome of these reports of a load of this duration. Fails if the generator did not send more than a tenth: unsent attempts are
    /// no evidence about the network.
    pub(crate) fn of(reports: &[AttemptReport], lasts: Duration) -> Result<Self> {
        let sent: Vec<&AttemptReport> = reports.iter().filter(|report| report.outcome != Err(AttemptFailure::NotSent)).collect();
        let unsent = reports.len() - sent.len();
        ensure!(unsent * 10 <= sent.len() && !sent.is_empty(), "the generator sent {} and could not send {unsent}", sent.len());
        let answered: Vec<&AttemptReport> = sent.iter().copied().filter(|report| report.outcome.is_ok()).collect();
        let soon = answered.iter().filter(|report| report.ended.saturating_sub(report.due) <= LATE).count();
        let last = sent.iter().filter(|report| report.outcome.is_err()).map(|report| report.due).max();
        let connects = answered.iter().filter_map(|report| Some(report.connected?.saturating_sub(report.due))).collect();
        Ok(Self {
            sent: sent.len(),
            failed: sent.len() - answered.len(),
            refused: sent.iter().filter(|report| report.outcome == Err(AttemptFailure::Refused)).count(),
            late: sent.len() - soon,
            gap: gap(answered.iter().map(|report| report.ended).collect(), lasts),
            last: last.unwrap_or_default(),
            connect: p99(connects),
        })
    }
}

/// The longest time between two of these moments, or after the last.
pub(crate) fn gap(mut moments: Vec<Duration>, until: Duration) -> Duration {
    moments.sort_unstable();
    moments.push(moments.last().copied().unwrap_or_default().max(until));
    let apart = moments.windows(2).filter_map(|pair| Some(pair.last()?.saturating_sub(*pair.first()?)));
    apart.max().unwrap_or(until)
}

/// 99 of 100 are at most this.
fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get((times.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or_default()
}
