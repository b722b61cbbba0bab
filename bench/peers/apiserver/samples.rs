//! Measurements of one way to the API server, and their figures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::client::Site;
use super::content::{self, POD, PODS};
use super::group::{Group, Usage};
use super::load::{self, Experience};
use super::{Extent, Side};
use crate::support::ms;
use crate::tls::slice;

/// Clients at once.
const CLIENTS: [u64; 3] = [1, 10, 100];
/// Watches that are opened at a time.
const AT_ONCE: usize = 16;
/// Changes of the watched object, and the time between two.
const CHANGES: usize = 10;
const BETWEEN: Duration = Duration::from_millis(200);
/// How long watches may take to deliver an event.
const DELIVERY: Duration = Duration::from_secs(30);
/// Sessions of one measurement.
const SESSIONS: usize = 20;
/// How long the load goes on after a restart.
const AFTER_RESTART: Duration = Duration::from_secs(3);

/// Samples of one way.
#[derive(Default)]
pub(crate) struct Samples {
    /// By the number of clients.
    pub(crate) requests: BTreeMap<u64, Vec<Requests>>,
    pub(crate) list: Vec<Transfer>,
    pub(crate) watches: Vec<Watches>,
    /// Milliseconds from the begin of a connection to the first byte of its session.
    pub(crate) exec: Vec<f64>,
    pub(crate) stream: Vec<Transfer>,
    pub(crate) restart: Vec<Experience>,
    pub(crate) kill: Vec<Experience>,
}

/// Requests of some clients, each of which sends one after the other.
pub(crate) struct Requests {
    pub(crate) rate: f64,
    /// Milliseconds.
    pub(crate) median: f64,
    pub(crate) p99: f64,
    /// Milliseconds for each.
    pub(crate) processor: Usage<f64>,
}

/// Bytes to one client.
pub(crate) struct Transfer {
    /// MB a second.
    pub(crate) rate: f64,
    /// Milliseconds for each MB.
    pub(crate) processor: Usage<f64>,
}

/// Open watches.
pub(crate) struct Watches {
    pub(crate) resident: Usage<f64>,
    /// Percent of a processor, without an event.
    pub(crate) idle: Usage<f64>,
    /// Microseconds for each event and watch.
    pub(crate) event: Usage<f64>,
}

impl Side {
    /// One round.
    pub(crate) async fn turn(&mut self, admin: &Site, extent: Extent, round: usize) -> Result<()> {
        for clients in CLIENTS {
            let sample = self.requests(clients, extent.slice).await.with_context(|| format!("requests of {clients} clients"))?;
            self.samples.requests.entry(clients).or_default().push(sample);
        }
        let list = self.list(extent.slice).await.context("lists")?;
        self.samples.list.push(list);
        let (latencies, stream) = (self.exec().await.context("sessions")?, self.stream(extent.session).await.context("a long session")?);
        self.samples.exec.extend(latencies);
        self.samples.stream.push(stream);
        let watches = self.watches(admin, extent.watches, extent.slice).await.context("watches")?;
        self.samples.watches.push(watches);
        let Some(group) = self.group.as_mut() else { return Ok(()) };
        let site = self.site.clone();
        let kill = || group.kill_busiest(|| std::thread::sleep(extent.slice));
        self.samples.kill.push(load::during(&site, extent.after_kill, kill).await?);
        group.wait_ready();
        site.reached(POD).await?;
        if round < extent.restarts {
            let restart = || {
                group.restart();
                Ok(())
            };
            self.samples.restart.push(load::during(&site, AFTER_RESTART, restart).await?);
            site.reached(POD).await?;
        }
        Ok(())
    }

    pub(crate) async fn requests(&self, clients: u64, lasts: Duration) -> Result<Requests> {
        let mut connections = Vec::new();
        for _ in 0..clients {
            connections.push(Arc::new(Mutex::new(self.site.connect().await?)));
        }
        let (site, before) = (self.site.clone(), used(self.group.as_ref())?);
        let slice = slice(lasts, connections, move |connection| {
            let (site, connection) = (site.clone(), Arc::clone(connection));
            async move { site.get(&mut *connection.lock().await, POD).await.is_ok() }
        })
        .await;
        let after = used(self.group.as_ref())?;
        ensure!(slice.failed == 0 && !slice.latencies.is_empty(), "{} of {} failed", slice.failed, slice.latencies.len());
        let mut latencies = slice.latencies;
        latencies.sort_unstable_by(f64::total_cmp);
        let at = |hundredths: usize| latencies[(latencies.len() * hundredths).div_ceil(100).saturating_sub(1)];
        let processor = after.since(before).for_each(number(latencies.len()) * 1e-3);
        Ok(Requests { rate: slice.rate, median: at(50), p99: at(99), processor })
    }

    /// Lists all Pods over and over.
    async fn list(&self, lasts: Duration) -> Result<Transfer> {
        let path = format!("{PODS}?resourceVersion=0");
        let mut connection = self.site.connect().await?;
        let (before, begun, mut bytes) = (used(self.group.as_ref())?, Instant::now(), 0);
        while begun.elapsed() < lasts {
            bytes += self.site.get(&mut connection, &path).await?;
        }
        Ok(Transfer::of(bytes, begun, used(self.group.as_ref())?.since(before)))
    }

    /// Milliseconds from the connection to the first byte of a session, several times.
    async fn exec(&self) -> Result<Vec<f64>> {
        let mut latencies = Vec::new();
        for _ in 0..SESSIONS {
            let begun = Instant::now();
            let mut session = self.site.exec(&content::exec(false)).await?;
            session.write_all(b"x").await?;
            session.read_u8().await?;
            latencies.push(ms(begun.elapsed()));
        }
        Ok(latencies)
    }

    /// Reads a long session.
    async fn stream(&self, size: usize) -> Result<Transfer> {
        let mut session = self.site.exec(&content::exec(true)).await?;
        let (mut buffer, mut bytes) = (vec![0; 64 << 10], 0);
        let (before, begun) = (used(self.group.as_ref())?, Instant::now());
        while bytes < size {
            let read = session.read(&mut buffer).await?;
            ensure!(read > 0, "the session ended after {bytes} bytes");
            bytes += read;
        }
        Ok(Transfer::of(bytes, begun, used(self.group.as_ref())?.since(before)))
    }

    async fn watches(&self, admin: &Site, count: usize, rest: Duration) -> Result<Watches> {
        let events = Arc::new(AtomicUsize::new(0));
        let mut open = JoinSet::new();
        for first in (0..count).step_by(AT_ONCE) {
            let batch = (first..count.min(first + AT_ONCE)).map(|_| self.site.connect());
            for connection in futures_util::future::try_join_all(batch).await? {
                open.spawn(watch(self.site.clone(), connection, Arc::clone(&events)));
            }
        }
        // Each begins with the present state.
        delivered(&events, count).await?;
        sleep(rest).await;
        let (resident, before, begun) = (resident(self.group.as_ref())?, used(self.group.as_ref())?, Instant::now());
        sleep(rest).await;
        let (rested, lasted) = (used(self.group.as_ref())?, begun.elapsed());
        for change in 1..=CHANGES {
            content::change(admin, change).await?;
            sleep(BETWEEN).await;
        }
        // A change that equals the one before is none.
        content::change(admin, 0).await?;
        let expected = count * (CHANGES + 2);
        delivered(&events, expected).await?;
        let worked = used(self.group.as_ref())?.since(rested);
        ensure!(open.try_join_next().is_none(), "a watch ended");
        let idle = rested.since(before).for_each(lasted.as_secs_f64() / 100.0);
        Ok(Watches { resident, idle, event: worked.for_each(number(expected - count) * 1e-6) })
    }
}

/// Counts the events of a watch until it ends.
async fn watch(site: Site, mut connection: super::client::Connection, events: Arc<AtomicUsize>) -> Result<()> {
    let mut body = site.begin(&mut connection, &content::watch()).await?.into_body();
    while let Some(frame) = body.frame().await {
        let lines = frame?.data_ref().map_or(0, |data| data.split(|byte| *byte == b'\n').count() - 1);
        events.fetch_add(lines, Ordering::Relaxed);
    }
    Ok(())
}

/// Waits for a number of events.
async fn delivered(events: &AtomicUsize, count: usize) -> Result<()> {
    let wait = async {
        while events.load(Ordering::Relaxed) < count {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let late = || format!("{} of {count} events", events.load(Ordering::Relaxed));
    timeout(DELIVERY, wait).await.with_context(late)
}

fn used(group: Option<&Group>) -> Result<Usage<Duration>> {
    group.map_or_else(|| Ok(Usage::default()), Group::processor)
}

fn resident(group: Option<&Group>) -> Result<Usage<f64>> {
    group.map_or_else(|| Ok(Usage::default()), Group::resident)
}

impl Usage<Duration> {
    fn since(self, before: Self) -> Self {
        Self {
            proxy: self.proxy.saturating_sub(before.proxy),
            with_tailscaled: self.with_tailscaled.saturating_sub(before.with_tailscaled),
        }
    }

    /// Seconds divided by this.
    fn for_each(self, count: f64) -> Usage<f64> {
        Usage { proxy: self.proxy.as_secs_f64() / count, with_tailscaled: self.with_tailscaled.as_secs_f64() / count }
    }
}

impl Transfer {
    fn of(bytes: usize, begun: Instant, used: Usage<Duration>) -> Self {
        let megabytes = number(bytes) / 1e6;
        Self { rate: megabytes / begun.elapsed().as_secs_f64(), processor: used.for_each(megabytes * 1e-3) }
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts are small")]
fn number(count: usize) -> f64 {
    count as f64
}
