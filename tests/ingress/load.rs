//! New connections of somebody in the tailnet while something changes: one begins every 100 ms, whatever became of the others.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::stage::Stage;

/// The time between two.
const PACE: Duration = Duration::from_millis(100);

/// What became of them.
#[derive(Default)]
pub(crate) struct Load {
    /// So many were answered.
    pub(crate) answered: usize,
    /// How long the slowest of them took.
    slowest: Duration,
    /// When each of the others began, and what its client said.
    pub(crate) failed: Vec<(Duration, String)>,
}

/// Asks from before a change until after it.
pub(crate) fn under_load(stage: &Stage, scheme: &str, service: &str, change: impl FnOnce()) -> Load {
    let (load, over) = (Mutex::new(Load::default()), AtomicBool::new(false));
    thread::scope(|scope| {
        let (load, over) = (&load, &over);
        scope.spawn(move || {
            let begin = Instant::now();
            let due = (0..).map(|count| begin + PACE * count).take_while(|_| !over.load(Ordering::Relaxed));
            for due in due {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                scope.spawn(move || {
                    let asked = Instant::now();
                    let answer = stage.ask(scheme, service);
                    let mut load = load.lock().expect("no panic");
                    match answer {
                        Ok(()) => {
                            load.answered += 1;
                            load.slowest = load.slowest.max(asked.elapsed());
                        }
                        Err(said) => load.failed.push((due - begin, said)),
                    }
                });
            }
        });
        let end = End(over);
        change();
        drop(end);
    });
    load.into_inner().expect("no panic")
}

/// Ends the load, however the change ends: else the test would wait for it for ever.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} answered, the slowest within {:?}, {} failed {:?}", self.answered, self.slowest, self.failed.len(), self.failed)
    }
}
