//! Failure windows: time spans in which attempts failed, that is, outages as seen by clients.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

/// Maximum gap between failures of one window.
const MAX_GAP: Duration = Duration::from_secs(1);

/// A time span with failed attempts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FailureWindow {
    /// Due time of the first failed attempt, in seconds since the start.
    pub from: f64,
    /// Due time of the last one.
    pub to: f64,
    pub failed: u64,
}

/// Failed attempts by the second of their due time. Memory grows with the length of the run, not with the number of failures.
#[derive(Debug, Clone, Default)]
pub struct Windows {
    seconds: BTreeMap<u64, (Duration, Duration, u64)>,
}

impl Windows {
    /// Records a failed attempt by its due time, in any order.
    pub fn note(&mut self, due: Duration) {
        let second = self.seconds.entry(due.as_secs()).or_insert((due, due, 0));
        *second = (second.0.min(due), second.1.max(due), second.2 + 1);
    }

    /// The windows, in chronological order.
    pub fn all(&self) -> Vec<FailureWindow> {
        let mut spans: Vec<(Duration, Duration, u64)> = Vec::new();
        for (from, to, failed) in self.seconds.values().copied() {
            match spans.last_mut() {
                Some(last) if from.saturating_sub(last.1) <= MAX_GAP => *last = (last.0, to, last.2 + failed),
                _ => spans.push((from, to, failed)),
            }
        }
        spans.into_iter().map(|(from, to, failed)| FailureWindow { from: from.as_secs_f64(), to: to.as_secs_f64(), failed }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_failures_form_one_window() {
        let mut windows = Windows::default();
        for ms in [5_200, 1_900, 2_100, 2_050, 9_000] {
            windows.note(Duration::from_millis(ms));
        }
        let all = windows.all();
        assert_eq!(all.iter().map(|window| window.failed).collect::<Vec<_>>(), [3, 1, 1]);
        assert!((all[0].from - 1.9).abs() < 1e-9 && (all[0].to - 2.1).abs() < 1e-9, "{all:?}");
        assert!(Windows::default().all().is_empty());
    }
}
