//! Whether anything happens on a connection: how many requests are being answered, and since when none is.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What happens on one connection.
#[derive(Debug, Clone)]
pub(super) struct Activity(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    in_flight: usize,
    asked: bool,
    since: Instant,
}

/// A request that is being answered.
#[derive(Debug)]
pub(super) struct InFlight(Activity);

/// How long a connection may be without a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Before the first one.
    pub(super) first: Duration,
    /// Between two.
    pub(super) next: Duration,
}

impl Activity {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(State { in_flight: 0, asked: false, since: Instant::now() })))
    }

    /// A request begins.
    pub(super) fn begin(&self) -> InFlight {
        self.with(|state| {
            state.in_flight += 1;
            state.asked = true;
        });
        InFlight(self.clone())
    }

    /// When patience will be at its end, if nothing happens; nothing while a request is being answered.
    pub(super) fn until(&self, patience: Patience) -> Option<Instant> {
        self.with(|state| {
            let limit = if state.asked { patience.next } else { patience.first };
            (state.in_flight == 0).then_some(state.since + limit)
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.with(|state| {
            state.in_flight = state.in_flight.saturating_sub(1);
            state.since = Instant::now();
        });
    }
}
