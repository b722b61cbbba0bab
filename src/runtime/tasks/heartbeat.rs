//! Heartbeats of tasks: a task that blocks its thread or is not scheduled has no heartbeat. A task that waits for an event has one: such
//! waits have their own deadlines.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

/// Interval of heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// Time without a heartbeat after which the process counts as hung.
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(30);

/// Last heartbeat of each running task.
#[derive(Debug, Clone, Default)]
pub struct Heartbeats(Arc<Mutex<Vec<Weak<Beat>>>>);

#[derive(Debug)]
struct Beat {
    task: &'static str,
    last: Mutex<Instant>,
}

impl Heartbeats {
    /// Tasks without a heartbeat for `limit`.
    pub fn stalled(&self, limit: Duration) -> Vec<&'static str> {
        let mut beats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        beats.retain(|beat| beat.strong_count() > 0);
        let late = |beat: &Arc<Beat>| beat.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed() >= limit;
        beats.iter().filter_map(Weak::upgrade).filter(late).map(|beat| beat.task).collect()
    }

    /// Wraps a task's future with a heartbeat while it runs.
    pub(super) fn watch<F: Future>(&self, task: &'static str, work: F) -> impl Future<Output = F::Output> + use<F> {
        let beat = Arc::new(Beat { task, last: Mutex::new(Instant::now()) });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&beat));
        async move {
            let (mut work, mut ticks) = (pin!(work), interval(HEARTBEAT_INTERVAL));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    // First, because a task that is always busy uses up its coop budget.
                    biased;
                    at = ticks.tick() => *beat.last.lock().unwrap_or_else(PoisonError::into_inner) = at,
                    done = &mut work => return done,
                }
            }
        }
    }
}
