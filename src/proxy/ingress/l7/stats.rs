//! Counters of each virtual host, read by scrapes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::runtime::metrics::HistogramSample;

/// Status classes of responses.
pub const CODES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Upper bounds of response times, in seconds: from a backend in the same zone to the response timeout.
const LATENCY_BOUNDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0, 60.0];

/// Counters of one virtual host.
#[derive(Debug, Default)]
pub struct Counts {
    codes: [AtomicU64; 5],
    latency: Latency,
    handshakes: Words,
    failures: Words,
    fallbacks: AtomicU64,
    upgrades: AtomicU64,
    refused: Words,
    aborted: Words,
    open: AtomicUsize,
}

/// Response times in buckets.
#[derive(Debug, Default)]
struct Latency {
    /// One for each bound, and one above the last.
    buckets: [AtomicU64; LATENCY_BOUNDS.len() + 1],
    sum_micros: AtomicU64,
}

/// Counters by label value of a closed set.
#[derive(Debug, Default)]
struct Words(Mutex<BTreeMap<&'static str, u64>>);

/// Sampled counters of one virtual host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SiteCounts {
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

/// Counters of all virtual hosts, and open connections.
#[derive(Debug, Clone)]
pub struct Stats {
    sites: Arc<Mutex<BTreeMap<String, Arc<Counts>>>>,
    open: watch::Sender<usize>,
}

/// Guard of an open connection.
#[derive(Debug)]
pub(super) struct OpenGuard {
    counts: Arc<Counts>,
    all: watch::Sender<usize>,
}

impl Latency {
    fn observe(&self, time: Duration) {
        let bucket = LATENCY_BOUNDS.partition_point(|bound| *bound < time.as_secs_f64());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_micros.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn sample(&self) -> HistogramSample {
        HistogramSample {
            bounds: &LATENCY_BOUNDS,
            counts: self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect(),
            sum: Duration::from_micros(self.sum_micros.load(Ordering::Relaxed)).as_secs_f64(),
        }
    }
}

impl Words {
    fn count(&self, word: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(word).or_default() += 1;
    }

    fn read(&self) -> BTreeMap<&'static str, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Counts {
    pub(super) fn answered(&self, status: u16, waited: Duration) {
        self.latency.observe(waited);
        if let Some(count) = usize::from(status / 100).checked_sub(1).and_then(|class| self.codes.get(class)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn handshake(&self, outcome: &'static str) {
        self.handshakes.count(outcome);
    }

    pub(super) fn failed(&self, kind: &'static str) {
        self.failures.count(kind);
    }

    pub(super) fn refused(&self, kind: &'static str) {
        self.refused.count(kind);
    }

    pub(super) fn aborted(&self, kind: &'static str) {
        self.aborted.count(kind);
    }

    pub(super) fn fell_back(&self) {
        self.fallbacks.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn upgraded(&self) {
        self.upgrades.fetch_add(1, Ordering::Relaxed);
    }

    fn sample(&self) -> SiteCounts {
        SiteCounts {
            codes: self.codes.each_ref().map(|count| count.load(Ordering::Relaxed)),
            latency: self.latency.sample(),
            handshakes: self.handshakes.read(),
            failures: self.failures.read(),
            fallbacks: self.fallbacks.load(Ordering::Relaxed),
            upgrades: self.upgrades.load(Ordering::Relaxed),
            refused: self.refused.read(),
            aborted: self.aborted.read(),
            open: self.open.load(Ordering::Relaxed),
        }
    }
}

impl Default for Stats {
    fn default() -> Self {
        Self { sites: Arc::default(), open: watch::Sender::new(0) }
    }
}

impl Stats {
    /// Samples all counters.
    pub fn sample(&self) -> BTreeMap<String, SiteCounts> {
        let sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        sites.iter().map(|(name, counts)| (name.clone(), counts.sample())).collect()
    }

    /// Number of open connections, including those of removed virtual hosts.
    pub fn open(&self) -> watch::Receiver<usize> {
        self.open.subscribe()
    }

    pub(super) fn site(&self, name: &str) -> Arc<Counts> {
        let mut sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(sites.entry(name.to_owned()).or_default())
    }

    /// Removes the counters of a virtual host.
    pub(super) fn forget(&self, name: &str) {
        self.sites.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    pub(super) fn opened(&self, counts: &Arc<Counts>) -> OpenGuard {
        counts.open.fetch_add(1, Ordering::Relaxed);
        self.open.send_modify(|open| *open += 1);
        OpenGuard { counts: Arc::clone(counts), all: self.open.clone() }
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.counts.open.fetch_sub(1, Ordering::Relaxed);
        self.all.send_modify(|open| *open = open.saturating_sub(1));
    }
}
