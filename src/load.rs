//! Open-loop load generator: new connections and UDP flows on a fixed schedule, independent of earlier results.
//!
//! Limited by rate, time and attempts in flight. Sends and measures only; [`crate::model::diagnostics::load`] decides whether an answer is
//! right. Used by `tailyard load`, the demo and the benchmarks.

pub mod board;
pub mod flows;
pub mod frame;
pub mod https;
pub mod identity_protocol;
pub mod protocol;
pub mod report;
pub mod resolver;
pub mod run;
pub mod tui;

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::protocol::TargetProtocol;
use crate::model::base::net::Proto;
use crate::model::diagnostics::load::{Attempt, AttemptFailure, AttemptReport, LoadSchedule, TargetIdentity};

/// Time without an answer after which a datagram is resent.
const RESEND_DELAY: Duration = Duration::from_millis(250);
/// Bytes of a UDP answer that are compared.
const DATAGRAM: usize = 512;

#[derive(Debug, Clone)]
pub struct Load {
    pub protocol: TargetProtocol,
    pub schedule: LoadSchedule,
    /// Duration; no attempt starts later.
    pub lasts: Duration,
    /// Timeout of an attempt.
    pub timeout: Duration,
    /// Limit of attempts in flight. Attempts beyond it, and those that cannot start within their timeout, are failures of the generator
    /// itself ([`AttemptFailure::NotSent`]).
    pub max_in_flight: usize,
    /// Whether a TCP connection has a source port that none had for minutes, as UDP flows have: conntrack of a client's node maps a port
    /// whose connection was never answered to the same endpoint for two minutes.
    pub fresh_ports: bool,
}

impl Load {
    /// A load on identity targets, with a timeout of ten seconds and at most 4,096 attempts in flight.
    pub fn new(schedule: LoadSchedule, lasts: Duration) -> Self {
        Self {
            protocol: TargetProtocol::Identity,
            schedule,
            lasts,
            timeout: Duration::from_secs(10),
            max_in_flight: 4_096,
            fresh_ports: false,
        }
    }

    /// Offers the load in the calling thread's network namespace and returns when its last attempt has ended.
    ///
    /// `choose` returns the attempt with a number, or `None` to skip it; `record` gets every report. Both run on the calling task, one at a
    /// time. No attempt starts after `halted` is ready.
    pub async fn offer(
        self,
        start: Instant,
        mut choose: impl FnMut(u64) -> Option<Attempt>,
        mut record: impl FnMut(&AttemptReport),
        halted: impl Future<Output = ()>,
    ) {
        tokio::pin!(halted);
        let mut due = pace(self.schedule, start, self.lasts);
        let mut open = JoinSet::new();
        let mut begun_all = false;
        while !begun_all || !open.is_empty() {
            tokio::select! {
                number = due.recv(), if !begun_all => match number {
                    Some(number) => if let Some(attempt) = choose(number) {
                        self.begin(start, number, attempt, &mut open, &mut record);
                    },
                    None => begun_all = true,
                },
                () = &mut halted, if !begun_all => begun_all = true,
                Some(report) = open.join_next(), if !open.is_empty() => if let Ok(report) = report {
                    record(&report);
                },
            }
        }
    }

    fn begin(
        &self,
        start: Instant,
        number: u64,
        attempt: Attempt,
        open: &mut JoinSet<AttemptReport>,
        record: &mut impl FnMut(&AttemptReport),
    ) {
        let due = self.schedule.due(number);
        // A later start measures nothing: the simulated client has timed out already, because of the generator alone.
        let in_time = start.elapsed().saturating_sub(due) < self.timeout;
        if in_time && open.len() < self.max_in_flight {
            // Poll once, so that the first packet is sent now: on a busy machine the choice may be outdated by the task's first poll.
            let mut made = Box::pin(make(self.protocol.clone(), attempt, number, start, due, (self.timeout, self.fresh_ports)));
            match (&mut made).now_or_never() {
                Some(report) => record(&report),
                None => drop(open.spawn(made)),
            }
        } else {
            let now = start.elapsed();
            record(&AttemptReport {
                attempt,
                due,
                began: now,
                connected: None,
                ended: now,
                resent: 0,
                outcome: Err(AttemptFailure::NotSent),
            });
        }
    }
}

/// Sends each attempt's number at its due time. Sleeps on a separate thread: a runtime's timers have a resolution of a millisecond.
fn pace(schedule: LoadSchedule, start: Instant, lasts: Duration) -> mpsc::UnboundedReceiver<u64> {
    let (due, is_due) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for number in 0..schedule.within(lasts) {
            thread::sleep(schedule.due(number).saturating_sub(start.elapsed()));
            if due.send(number).is_err() {
                return;
            }
        }
        thread::sleep(lasts.saturating_sub(start.elapsed()));
        // The load ends only now: the last attempt may have been due long before.
        drop(due);
    });
    is_due
}

/// Makes one attempt, with its timeout and whether its connection has a [fresh port](Load::fresh_ports).
pub async fn make(
    protocol: TargetProtocol,
    attempt: Attempt,
    nonce: u64,
    start: Instant,
    due: Duration,
    (timeout, fresh_port): (Duration, bool),
) -> AttemptReport {
    let began = start.elapsed();
    let (mut connected, mut sent) = (None, 0);
    let exchange = async {
        match attempt.proto {
            Proto::Tcp => ask_tcp(&protocol, attempt, nonce, fresh_port, || connected = Some(start.elapsed())).await,
            Proto::Udp => {
                let count = || {
                    connected.get_or_insert_with(|| start.elapsed());
                    sent += 1;
                };
                ask_udp(&protocol, attempt, nonce, count).await
            }
        }
    };
    let outcome = tokio::time::timeout(timeout, exchange).await.unwrap_or(Err(AttemptFailure::Timeout));
    AttemptReport { attempt, due, began, connected, ended: start.elapsed(), resent: u32::saturating_sub(sent, 1), outcome }
}

async fn ask_tcp(
    protocol: &TargetProtocol,
    attempt: Attempt,
    nonce: u64,
    fresh_port: bool,
    connected: impl FnOnce(),
) -> Result<TargetIdentity, AttemptFailure> {
    let connecting =
        async { if fresh_port { from_fresh_port(attempt.to)?.connect(attempt.to).await } else { TcpStream::connect(attempt.to).await } };
    let mut stream = connecting.await.map_err(|error| failure_of(&error))?;
    connected();
    protocol.first(&mut stream, nonce, attempt.lane.service).await
}

/// Resends until answered: UDP clients must resend lost datagrams.
async fn ask_udp(
    protocol: &TargetProtocol,
    attempt: Attempt,
    nonce: u64,
    mut sent: impl FnMut(),
) -> Result<TargetIdentity, AttemptFailure> {
    let socket = udp_from(next_port(), attempt).await.map_err(|error| failure_of(&error))?;
    let (request, mut answer) = (protocol.request(nonce), [0; DATAGRAM]);
    loop {
        socket.send(&request).await.map_err(|error| failure_of(&error))?;
        sent();
        if let Ok(received) = tokio::time::timeout(RESEND_DELAY, socket.recv(&mut answer)).await {
            let length = received.map_err(|error| failure_of(&error))?;
            return protocol.read(nonce, answer.get(..length).unwrap_or_default());
        }
    }
}

/// A TCP socket with the next port that no server of this host has.
fn from_fresh_port(to: SocketAddr) -> io::Result<TcpSocket> {
    loop {
        let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // Connections that were closed here wait for a minute.
        socket.set_reuseaddr(true)?;
        match socket.bind(SocketAddr::new(any(to), next_port())) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return bound.map(|()| socket),
        }
    }
}

/// Source port of the next flow: round robin, below the ephemeral ports.
///
/// For conntrack, a datagram from a port used half a minute ago belongs to the earlier flow, and follows its target until the entry
/// expires. A new flow needs a port that was unused for longer.
fn next_port() -> u16 {
    const PORTS: std::ops::Range<u16> = 1_024..32_768;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let turn = NEXT.fetch_add(1, Ordering::Relaxed) % u32::from(PORTS.end - PORTS.start);
    PORTS.start + u16::try_from(turn).unwrap_or_default()
}

/// A new socket, and so a new flow; port 0 selects a free one.
pub async fn udp_from(port: u16, attempt: Attempt) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((any(attempt.to), port)).await?;
    socket.connect(attempt.to).await?;
    Ok(socket)
}

/// The unspecified address of a destination's family.
fn any(to: SocketAddr) -> IpAddr {
    if to.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) }
}

/// Identity of a server that does not identify itself.
const ANY_TARGET: TargetIdentity = TargetIdentity { target: 0, port: 0 };

/// Identity for an answer that begins with the expected text.
fn greeted(expected: &[u8], answer: &[u8]) -> Result<TargetIdentity, AttemptFailure> {
    answer.starts_with(expected).then_some(ANY_TARGET).ok_or(AttemptFailure::WrongTarget)
}

/// Failure for an I/O error; [`AttemptFailure::NotSent`] if it is not about the network.
pub fn failure_of(error: &io::Error) -> AttemptFailure {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => AttemptFailure::Refused,
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted => AttemptFailure::Reset,
        io::ErrorKind::TimedOut => AttemptFailure::Timeout,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => AttemptFailure::Unreachable,
        io::ErrorKind::UnexpectedEof => AttemptFailure::Closed,
        _ => AttemptFailure::NotSent,
    }
}

#[cfg(test)]
mod tests;
