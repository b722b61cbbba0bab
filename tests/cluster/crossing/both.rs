//! Clusters of this tier, used by one test at a time: starting them takes longer than any of the tests.

use std::mem;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Instant;

use crate::crossing::sides::Sides;

/// Exists as long as a test uses the clusters or waits for them.
static SHARED: Mutex<Weak<Shared>> = Mutex::new(Weak::new());

#[derive(Default)]
struct Shared {
    sides: OnceLock<Sides>,
    turn: Mutex<()>,
}

/// Reference to the clusters. A test uses them exclusively and deletes everything that it applies.
pub(crate) struct Both(Arc<Shared>);

impl Both {
    /// References the clusters, without starting them.
    pub(crate) fn new() -> Self {
        let mut shared = lock(&SHARED);
        Self(shared.upgrade().unwrap_or_else(|| {
            let made = Arc::default();
            *shared = Arc::downgrade(&made);
            made
        }))
    }

    /// Waits for exclusive use; the first user starts the clusters.
    pub(crate) fn turn(&self) -> Turn<'_> {
        let turn = lock(&self.0.turn);
        let start = || {
            let begin = Instant::now();
            let sides = Sides::start();
            println!("two clusters, the chart on each, a group on one: {:?}", begin.elapsed());
            sides
        };
        Turn { sides: self.0.sides.get_or_init(start), _turn: turn }
    }
}

/// A failed test keeps the logs, whichever tests follow.
impl Drop for Both {
    fn drop(&mut self) {
        if thread::panicking() && Arc::strong_count(&self.0) > 1 {
            let dir = self.0.sides.get().map(|sides| sides.user.tailnet.dir().display().to_string());
            eprintln!("logs of the tailnet are kept in {}", dir.unwrap_or_default());
            mem::forget(Arc::clone(&self.0));
        }
    }
}

/// Exclusive use of the clusters.
pub(crate) struct Turn<'a> {
    sides: &'a Sides,
    _turn: MutexGuard<'a, ()>,
}

impl Deref for Turn<'_> {
    type Target = Sides;

    fn deref(&self) -> &Sides {
        self.sides
    }
}

/// Locks a poisoned mutex as well: a failed test leaves no partial change in these.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
