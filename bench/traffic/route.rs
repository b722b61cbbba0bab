//! A route to a target: new connections per second, and the latency of one.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tailyard::edge::netns::Namespace;
use tailyard::load::{Load, identity_protocol};
use tailyard::model::base::net::Proto;
use tailyard::model::diagnostics::load::{Attempt, Lane, LoadSchedule, Tally};

/// Number of destinations on every route: a client's search for a free port gets slower the fewer there are.
pub(crate) const DIALLED: u16 = 5;
/// How many connections are opened at once where only the rate counts.
pub(crate) const AT_ONCE: usize = 4;
/// Duration of one measurement.
const SLICE: Duration = Duration::from_millis(500);

/// A route: its destinations, used in turn, and its samples.
pub(crate) struct Route {
    dial: Arc<Vec<SocketAddr>>,
    next: Arc<AtomicUsize>,
    /// Connections each second.
    pub(crate) rates: Vec<f64>,
    /// The middle one of each measurement's connects, in milliseconds.
    pub(crate) latencies: Vec<f64>,
    /// 99 of 100 took no longer.
    pub(crate) worst: Vec<f64>,
}

impl Route {
    pub(crate) fn new(dial: Vec<SocketAddr>) -> Self {
        let next = Arc::new(AtomicUsize::new(0));
        Self { dial: Arc::new(dial), next, rates: Vec::new(), latencies: Vec::new(), worst: Vec::new() }
    }

    /// As many connections as some threads can open, use once and close, one after another. Without the answer awaited,
    /// the target's queue of unaccepted connections would be measured.
    pub(crate) fn rate(&mut self, client: &Namespace) -> Result<()> {
        let dialled = || -> std::io::Result<u32> {
            let (until, mut made) = (Instant::now() + SLICE, 0);
            while Instant::now() < until {
                let turn = self.next.fetch_add(1, Ordering::Relaxed);
                if let Some(to) = self.dial.get(turn % self.dial.len()) {
                    converse(*to, turn as u64)?;
                    made += 1;
                }
            }
            Ok(made)
        };
        let begun = Instant::now();
        let counts: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(|| client.run(dialled))).collect();
            threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        let mut made = 0;
        for count in counts {
            made += count.map_err(|_| anyhow::anyhow!("a dialling thread panicked"))???;
        }
        self.rates.push(f64::from(made) / begun.elapsed().as_secs_f64());
        Ok(())
    }

    /// The latency of a connection at this rate per second.
    pub(crate) fn latency(&mut self, client: &Namespace, each_second: u32) -> Result<()> {
        let load = Load::new(LoadSchedule::new(NonZeroU32::new(each_second).context("not zero")?), SLICE);
        let mut tally = Tally::default();
        let choose = |number: u64| {
            let to = *self.dial.get(usize::try_from(number).ok()? * 7 % self.dial.len())?;
            Some(Attempt { lane: Lane { service: 0, replica: 0 }, proto: Proto::Tcp, to })
        };
        client.block_on(|| load.offer(Instant::now(), choose, |report| tally.record(report, false), std::future::pending()))?;
        ensure!(tally.failed().is_empty(), "by {:?}: {:?}", self.dial, tally.failed());
        self.latencies.push(tally.connect().p50_ms);
        self.worst.push(tally.connect().p99_ms);
        Ok(())
    }
}

/// One request and its answer over a connection of its own.
fn converse(to: SocketAddr, nonce: u64) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(to)?;
    let mut answer = [0; identity_protocol::ANSWER];
    stream.write_all(&identity_protocol::request(nonce))?;
    stream.read_exact(&mut answer)?;
    identity_protocol::read(nonce, &answer).map(drop).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}
