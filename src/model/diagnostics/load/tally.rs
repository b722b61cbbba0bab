//! Tally of a load: counts, latencies and individual failures.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::{AttemptFailure, AttemptReport, Lane};
use crate::model::base::net::Proto;

/// Maximum number of individually recorded failures; further ones are only counted.
const KEPT: usize = 1_000;

/// Maximum of the latency histograms, in nanoseconds.
const HOUR: u64 = 3_600 * 1_000_000_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailedAttempt {
    /// Due time of the attempt, in seconds since the start.
    #[serde(serialize_with = "seconds")]
    pub at: Duration,
    #[serde(serialize_with = "seconds")]
    pub began: Duration,
    #[serde(serialize_with = "seconds")]
    pub ended: Duration,
    #[serde(flatten)]
    pub lane: Lane,
    pub proto: Proto,
    pub failure: AttemptFailure,
    /// Whether it is within a window of documented failures.
    pub excused: bool,
}

/// Percentiles of a distribution, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// Number of values.
    pub count: u64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub max_ms: f64,
}

/// Results of a load.
#[derive(Debug, Clone)]
pub struct Tally {
    answered: BTreeMap<Proto, u64>,
    failed: BTreeMap<AttemptFailure, u64>,
    excused: BTreeMap<AttemptFailure, u64>,
    resent: u64,
    faults: Vec<FailedAttempt>,
    connect: Histogram<u64>,
    answer: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            answered: BTreeMap::new(),
            failed: BTreeMap::new(),
            excused: BTreeMap::new(),
            resent: 0,
            faults: Vec::new(),
            connect: latencies(),
            answer: latencies(),
        }
    }
}

impl Tally {
    /// Counts one attempt. `excused`: it is within a window of documented failures.
    pub fn record(&mut self, report: &AttemptReport, excused: bool) {
        let latency = |at: Duration| at.saturating_sub(report.due);
        if report.attempt.proto == Proto::Tcp
            && let Some(connected) = report.connected
        {
            note(&mut self.connect, latency(connected));
        }
        self.resent += u64::from(report.resent);
        match report.outcome {
            Ok(_) => {
                *self.answered.entry(report.attempt.proto).or_default() += 1;
                note(&mut self.answer, latency(report.ended));
            }
            Err(failure) => {
                let counts = if excused { &mut self.excused } else { &mut self.failed };
                *counts.entry(failure).or_default() += 1;
                if self.faults.len() < KEPT {
                    let AttemptReport { attempt, due, began, ended, .. } = *report;
                    self.faults.push(FailedAttempt { at: due, began, ended, lane: attempt.lane, proto: attempt.proto, failure, excused });
                }
            }
        }
    }

    /// Number of attempts answered by the expected target.
    pub fn answered(&self) -> u64 {
        self.answered.values().sum()
    }

    /// Number of those over this protocol.
    pub fn answered_over(&self, proto: Proto) -> u64 {
        self.answered.get(&proto).copied().unwrap_or_default()
    }

    /// Number of retransmitted datagrams.
    pub fn resent(&self) -> u64 {
        self.resent
    }

    /// Failures outside of all documented windows, by kind.
    pub fn failed(&self) -> &BTreeMap<AttemptFailure, u64> {
        &self.failed
    }

    /// Failures within a documented window, by kind.
    pub fn excused(&self) -> &BTreeMap<AttemptFailure, u64> {
        &self.excused
    }

    /// The first failures individually, in the order of their ends.
    pub fn faults(&self) -> &[FailedAttempt] {
        &self.faults
    }

    /// Time from due to established TCP connection.
    pub fn connect(&self) -> Percentiles {
        Percentiles::of(&self.connect)
    }

    /// Time from due to answer.
    pub fn answer(&self) -> Percentiles {
        Percentiles::of(&self.answer)
    }
}

impl Percentiles {
    /// Percentiles of a histogram of nanoseconds.
    pub fn of(nanoseconds: &Histogram<u64>) -> Self {
        let at = |quantile| milliseconds(nanoseconds.value_at_quantile(quantile).min(nanoseconds.max()));
        Self { count: nanoseconds.len(), p50_ms: at(0.5), p99_ms: at(0.99), p999_ms: at(0.999), max_ms: milliseconds(nanoseconds.max()) }
    }

    pub fn of_all(durations: impl IntoIterator<Item = Duration>) -> Self {
        let mut histogram = latencies();
        for duration in durations {
            note(&mut histogram, duration);
        }
        Self::of(&histogram)
    }
}

/// A histogram of nanoseconds up to one hour, with three significant digits.
fn latencies() -> Histogram<u64> {
    Histogram::new_with_max(HOUR, 3).unwrap_or_else(|_| unreachable!("an hour and three digits are within the type's bounds"))
}

/// Values above one hour count as one hour.
fn note(histogram: &mut Histogram<u64>, latency: Duration) {
    histogram.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
}

/// Precise enough: 2^52 nanoseconds are 52 days.
#[allow(clippy::cast_precision_loss)]
fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

fn seconds<S: serde::Serializer>(at: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(at.as_secs_f64())
}
