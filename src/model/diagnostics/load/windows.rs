//! In which spans of time attempts failed: what an outage looks like to those who connect.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

/// Failures further apart than this belong to two spans.
const APART: Duration = Duration::from_secs(1);

/// A span in which attempts failed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FailureWindow {
    /// When the first attempt that failed was due, in seconds since the start.
    pub from: f64,
    /// When the last one was due.
    pub to: f64,
    pub failed: u64,
}

/// When the attempts were due that failed, by whole seconds: as much memory as the run is long, whatever fails.
#[derive(Debug, Clone, Default)]
pub struct Windows {
    seconds: BTreeMap<u64, (Duration, Duration, u64)>,
}

impl Windows {
    /// An attempt that was due then has failed. They may come in any order.
    pub fn note(&mut self, due: Duration) {
        let second = self.seconds.entry(due.as_secs()).or_insert((due, due, 0));
        *second = (second.0.min(due), second.1.max(due), second.2 + 1);
    }

    /// The spans, in the order of time.
    pub fn all(&self) -> Vec<FailureWindow> {
        let mut spans: Vec<(Duration, Duration, u64)> = Vec::new();
        for (from, to, failed) in self.seconds.values().copied() {
            match spans.last_mut() {
                Some(last) if from.saturating_sub(last.1) <= APART => *last = (last.0, to, last.2 + failed),
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
