//! Counters of the listeners of each Tailscale Service, read by scrapes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::runtime::metrics::HistogramSample;

/// Status classes of responses.
pub const CODES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Upper bounds of response times, in seconds: from a backend in the same zone to the response timeout.
pub const LATENCY_BOUNDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0, 60.0];

/// Counters of the listeners of one Tailscale Service.
#[derive(Debug)]
pub struct Counts(Mutex<ListenerCounts>);

/// Values of the counters of one Tailscale Service.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ListenerCounts {
    /// Requests by [`CODES`].
    pub codes: [u64; 5],
    /// Time until the response head.
    pub latency: HistogramSample,
    /// Handshakes by outcome.
    pub handshakes: BTreeMap<&'static str, u64>,
    /// Failed upstream attempts, by reason.
    pub failures: BTreeMap<&'static str, u64>,
    /// Requests that used the `ClusterIP`.
    pub fallbacks: u64,
    /// Upgraded connections.
    pub upgrades: u64,
    /// Rejected connections, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Aborted requests and tunnels, by the side that stalled.
    pub aborted: BTreeMap<&'static str, u64>,
    pub open: usize,
}

/// Counters of all listeners, and open connections.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    sites: Arc<Mutex<BTreeMap<String, Arc<Counts>>>>,
    open: watch::Sender<usize>,
    long_running: watch::Sender<usize>,
}

/// Guard of an open connection.
#[derive(Debug)]
pub(super) struct OpenGuard {
    counts: Arc<Counts>,
    all: watch::Sender<usize>,
}

/// Guard of a long-running request, until its response or tunnel ends.
#[derive(Debug)]
pub(super) struct LongRunningGuard(watch::Sender<usize>);

impl Default for Counts {
    fn default() -> Self {
        Self(Mutex::new(ListenerCounts { latency: HistogramSample::new(&LATENCY_BOUNDS), ..ListenerCounts::default() }))
    }
}

impl Counts {
    fn locked(&self) -> MutexGuard<'_, ListenerCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn answered(&self, status: u16, waited: Duration) {
        let mut counts = self.locked();
        counts.latency.observe(waited.as_secs_f64());
        if let Some(count) = usize::from(status / 100).checked_sub(1).and_then(|class| counts.codes.get_mut(class)) {
            *count += 1;
        }
    }

    pub(super) fn handshake(&self, outcome: &'static str) {
        *self.locked().handshakes.entry(outcome).or_default() += 1;
    }

    pub(super) fn failed(&self, reason: &'static str) {
        *self.locked().failures.entry(reason).or_default() += 1;
    }

    pub(super) fn refused(&self, reason: &'static str) {
        *self.locked().refused.entry(reason).or_default() += 1;
    }

    pub(super) fn aborted(&self, reason: &'static str) {
        *self.locked().aborted.entry(reason).or_default() += 1;
    }

    pub(super) fn fell_back(&self) {
        self.locked().fallbacks += 1;
    }

    pub(super) fn upgraded(&self) {
        self.locked().upgrades += 1;
    }
}

impl Stats {
    pub fn sample(&self) -> BTreeMap<String, ListenerCounts> {
        let sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        sites.iter().map(|(name, counts)| (name.clone(), counts.locked().clone())).collect()
    }

    /// Number of open connections, including those of removed listeners.
    pub fn open(&self) -> watch::Receiver<usize> {
        self.open.subscribe()
    }

    /// Number of long-running requests.
    pub fn long_running(&self) -> watch::Receiver<usize> {
        self.long_running.subscribe()
    }

    pub(super) fn site(&self, name: &str) -> Arc<Counts> {
        let mut sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(sites.entry(name.to_owned()).or_default())
    }

    /// Removes the counters of a Tailscale Service.
    pub(super) fn forget(&self, name: &str) {
        self.sites.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    pub(super) fn opened(&self, counts: &Arc<Counts>) -> OpenGuard {
        counts.locked().open += 1;
        self.open.send_modify(|open| *open += 1);
        OpenGuard { counts: Arc::clone(counts), all: self.open.clone() }
    }

    /// Counts a long-running request.
    pub(super) fn began(&self) -> LongRunningGuard {
        self.long_running.send_modify(|number| *number += 1);
        LongRunningGuard(self.long_running.clone())
    }
}

impl Drop for LongRunningGuard {
    fn drop(&mut self) {
        self.0.send_modify(|number| *number = number.saturating_sub(1));
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.counts.locked().open -= 1;
        self.all.send_modify(|open| *open = open.saturating_sub(1));
    }
}
