//! Activity of a connection: running requests, the side that each waits for, and the start of idle time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::rt::Executor;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::model::front_end::vhosts::min_rate::unpaid;

#[derive(Debug, Clone)]
pub(super) struct Activity(Arc<(Mutex<State>, Notify)>);

#[derive(Debug)]
struct State {
    in_flight: Vec<Request>,
    begun: u64,
    since: Instant,
}

#[derive(Debug)]
struct Request {
    number: u64,
    turn: Turn,
    since: Instant,
    /// Unpaid wait for the client ([`unpaid`]), and the size of the data that it must read now.
    unpaid: Duration,
    offered: usize,
    /// Task that serves the request, if it shares the connection with others.
    task: Option<AbortHandle>,
}

/// Side that a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The response head, which has its own deadline.
    Head,
    Backend,
    /// The client, reading the response.
    Client,
}

impl Request {
    /// Time for which the request has waited for this side.
    fn waited(&self) -> Duration {
        let earlier = if self.turn == Turn::Client { self.unpaid } else { Duration::ZERO };
        earlier + self.since.elapsed()
    }

    fn turn_to(&mut self, turn: Turn) {
        if self.turn == Turn::Client {
            self.unpaid = unpaid(self.waited(), self.offered);
        }
        self.turn = turn;
    }
}

/// Guard of a running request in the number of its upstream, until its response body is sent.
#[derive(Debug)]
pub(super) struct InFlightGuard {
    number: Arc<AtomicUsize>,
    /// Permit of its connection, if that may become a tunnel.
    pub(super) permit: Option<OwnedSemaphorePermit>,
    /// Its stream on an HTTP/2 connection.
    pub(super) stream: Option<Arc<()>>,
}

impl InFlightGuard {
    pub(super) fn new(number: &Arc<AtomicUsize>) -> Self {
        number.fetch_add(1, Ordering::Relaxed);
        Self { number: Arc::clone(number), permit: None, stream: None }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.number.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Guard of a running request.
#[derive(Debug)]
pub(super) struct InFlight(pub(super) Progress);

/// Progress of a request; a weak reference.
#[derive(Debug, Clone)]
pub(super) struct Progress(Activity, u64);

#[derive(Debug, Clone, Copy)]
pub(super) struct IdleTimeouts {
    pub(super) first: Duration,
    /// Between requests.
    pub(super) next: Duration,
}

impl Activity {
    pub(super) fn new() -> Self {
        let state = State { in_flight: Vec::new(), begun: 0, since: Instant::now() };
        Self(Arc::new((Mutex::new(state), Notify::new())))
    }

    pub(super) fn begin(&self) -> InFlight {
        let number = self.with(|state| {
            state.begun += 1;
            state.in_flight.push(Request {
                number: state.begun,
                turn: Turn::Head,
                since: Instant::now(),
                unpaid: Duration::ZERO,
                offered: 0,
                task: None,
            });
            state.begun
        });
        self.0.1.notify_one();
        InFlight(Progress(self.clone(), number))
    }

    /// Waits until a request begins. For one waiter.
    pub(super) async fn request_began(&self) {
        while self.with(|state| state.begun) == 0 {
            self.0.1.notified().await;
        }
    }

    /// End of the idle timeout; `None` during a request.
    pub(super) fn until(&self, patience: IdleTimeouts) -> Option<Instant> {
        self.with(|state| {
            let limit = if state.begun > 0 { patience.next } else { patience.first };
            state.in_flight.is_empty().then_some(state.since + limit)
        })
    }

    /// Ends requests that have waited for longer than `limit`, and reports the side; returns whether one has the connection for itself, which
    /// must then be closed.
    pub(super) fn end_stalled(&self, limit: impl Fn(Turn) -> Option<Duration>, mut ended: impl FnMut(Turn)) -> bool {
        self.with(|state| {
            let stalled = |request: &&mut Request| limit(request.turn).is_some_and(|limit| request.waited() >= limit);
            state.in_flight.iter_mut().filter(stalled).fold(false, |is_exclusive, request| {
                ended(request.turn);
                request.turn = Turn::Head;
                request.task.take().map(|task| task.abort()).is_none() || is_exclusive
            })
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Runs each stream of an HTTP/2 connection as a task that can be aborted: hyper spawns it right after the request has begun.
impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Activity {
    fn execute(&self, stream: F) {
        let task = tokio::spawn(stream).abort_handle();
        self.with(|state| {
            if let Some(last) = state.in_flight.last_mut() {
                last.task = Some(task);
            }
        });
    }
}

impl InFlight {
    /// The client has read all earlier data and must now read so many bytes.
    pub(super) fn offered(&self, bytes: usize) {
        self.0.with(|request| {
            request.turn_to(Turn::Client);
            (request.since, request.offered) = (Instant::now(), bytes);
        });
    }

    /// The client has read all data; the request waits for the backend.
    pub(super) fn awaits_backend(&self) {
        self.0.with(|request| {
            if request.turn != Turn::Backend {
                request.turn_to(Turn::Backend);
                request.since = Instant::now();
            }
        });
    }
}

impl Progress {
    /// Records data of the client: extends the backend's deadline.
    pub(super) fn moved(&self) {
        self.with(|request| {
            if request.turn != Turn::Client {
                request.since = Instant::now();
            }
        });
    }

    /// Whether the response has begun.
    pub(super) fn is_answered(&self) -> bool {
        self.with(|request| request.turn != Turn::Head).unwrap_or(true)
    }

    /// Time of the last progress; `None` after the end of the request.
    pub(super) fn since(&self) -> Option<Instant> {
        self.with(|request| request.since)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Request) -> T) -> Option<T> {
        self.0.with(|state| state.in_flight.iter_mut().find(|request| request.number == self.1).map(act))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let Progress(activity, number) = &self.0;
        activity.with(|state| {
            state.in_flight.retain(|request| request.number != *number);
            state.since = Instant::now();
        });
    }
}
