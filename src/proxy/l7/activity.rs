//! Whether anything happens on a connection: how many requests are being answered, and since when none is.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// What happens on one connection.
#[derive(Debug, Clone)]
pub(super) struct Activity(Arc<(Mutex<State>, Notify)>);

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
        let state = State { in_flight: 0, asked: false, since: Instant::now() };
        Self(Arc::new((Mutex::new(state), Notify::new())))
    }

    /// A request begins.
    pub(super) fn begin(&self) -> InFlight {
        self.with(|state| {
            state.in_flight += 1;
            state.asked = true;
        });
        self.0.1.notify_one();
        InFlight(self.clone())
    }

    /// Returns once a request has begun. One may wait.
    pub(super) async fn asked(&self) {
        while !self.with(|state| state.asked) {
            self.0.1.notified().await;
        }
    }

    /// When patience will be at its end, if nothing happens; nothing while a request is being answered.
    pub(super) fn until(&self, patience: Patience) -> Option<Instant> {
        self.with(|state| {
            let limit = if state.asked { patience.next } else { patience.first };
            (state.in_flight == 0).then_some(state.since + limit)
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.0.lock().unwrap_or_else(PoisonError::into_inner))
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
