//! Heartbeats of tasks: a task that blocks its thread, or is not scheduled, stops beating. One that waits for an event beats on: what it
//! waits for has deadlines of its own.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

/// Time between two beats.
const BEAT: Duration = Duration::from_secs(1);

/// How long a task may not run before the process counts as hung.
pub const STALLED_AFTER: Duration = Duration::from_secs(30);

/// When each running task last beat.
#[derive(Debug, Clone, Default)]
pub struct Heartbeats(Arc<Mutex<Vec<Weak<Beat>>>>);

#[derive(Debug)]
struct Beat {
    task: &'static str,
    last: Mutex<Instant>,
}

impl Heartbeats {
    /// The tasks that have not beaten for `limit`.
    pub fn stalled(&self, limit: Duration) -> Vec<&'static str> {
        let mut beats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        beats.retain(|beat| beat.strong_count() > 0);
        let late = |beat: &Arc<Beat>| beat.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed() >= limit;
        beats.iter().filter_map(Weak::upgrade).filter(late).map(|beat| beat.task).collect()
    }

    /// The work of a task, which beats for as long as it runs.
    pub(super) fn watch<F: Future>(&self, task: &'static str, work: F) -> impl Future<Output = F::Output> + use<F> {
        let beat = Arc::new(Beat { task, last: Mutex::new(Instant::now()) });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&beat));
        async move {
            let (mut work, mut ticks) = (pin!(work), interval(BEAT));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    // First, for a task that is never out of work leaves nothing of its budget.
                    biased;
                    at = ticks.tick() => *beat.last.lock().unwrap_or_else(PoisonError::into_inner) = at,
                    done = &mut work => return done,
                }
            }
        }
    }
}
