//! The clusters of this tier, which its tests use in turn: to start them takes longer than any of the tests.

use std::mem;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Instant;

use crate::crossing::sides::Sides;

/// There as long as a test has it or waits for its turn.
static SHARED: Mutex<Weak<Shared>> = Mutex::new(Weak::new());

#[derive(Default)]
struct Shared {
    sides: OnceLock<Sides>,
    turn: Mutex<()>,
}

/// The clusters, of which a test has its turn; what it applies, it takes away.
pub(crate) struct Both(Arc<Shared>);

impl Both {
    /// Has a place in the row.
    pub(crate) fn new() -> Self {
        let mut shared = lock(&SHARED);
        Self(shared.upgrade().unwrap_or_else(|| {
            let made = Arc::default();
            *shared = Arc::downgrade(&made);
            made
        }))
    }

    /// Waits for its turn; the clusters are started by whoever has the first one.
    pub(crate) fn turn(&self) -> Turn<'_> {
        let turn = lock(&self.0.turn);
        let start = || {
            let begin = Instant::now();
            let sides = Sides::start();
            println!("two clusters, a group of two replicas on each: {:?}", begin.elapsed());
            sides
        };
        Turn { sides: self.0.sides.get_or_init(start), _turn: turn }
    }
}

/// Where a test fails, the logs are kept, whoever comes after it.
impl Drop for Both {
    fn drop(&mut self) {
        if thread::panicking() && Arc::strong_count(&self.0) > 1 {
            let dir = self.0.sides.get().map(|sides| sides.user.tailnet.dir().display().to_string());
            eprintln!("logs of the tailnet are kept in {}", dir.unwrap_or_default());
            mem::forget(Arc::clone(&self.0));
        }
    }
}

/// A turn.
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

/// A test that failed leaves nothing half done in here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
