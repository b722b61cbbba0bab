//! Long-lived connections and UDP flows: each repeats requests over one socket, or stays idle.

use std::time::{Duration, Instant};

use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use super::protocol::TargetProtocol;
use super::{DATAGRAM, failure_of, udp_from};
use crate::model::base::net::Proto;
use crate::model::diagnostics::load::{Attempt, AttemptFailure, TargetIdentity};

/// Consecutive lost datagrams after which a UDP flow counts as broken.
const TRIES: u32 = 12;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowUpdate {
    /// The connection is established; for UDP, the first answer was received.
    Open {
        /// The server's first line.
        greeting: String,
    },
    Answered {
        by: TargetIdentity,
        began: Duration,
        ended: Duration,
    },
    /// A datagram or its answer was lost.
    Lost,
}

#[derive(Debug, Clone)]
pub struct Rhythm {
    /// Interval of requests; `None` for an idle flow.
    pub every: Option<Duration>,
    /// True: the flow sends its last request. It detects an idle flow that hangs.
    pub last: watch::Receiver<bool>,
}

impl Rhythm {
    pub fn always(every: Duration) -> Self {
        Self { every: Some(every), last: watch::channel(false).1 }
    }

    fn ticks(&self) -> Option<Interval> {
        let mut ticks = interval(self.every?);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Some(ticks)
    }
}

/// Opens a flow and sends requests at this interval until the flow breaks or its last request is answered. Dropping the future closes the
/// flow in order.
pub async fn hold(
    flow: Attempt,
    protocol: &TargetProtocol,
    rhythm: Rhythm,
    start: Instant,
    note: impl FnMut(FlowUpdate),
) -> Result<(), AttemptFailure> {
    match flow.proto {
        Proto::Tcp => hold_tcp(flow, protocol, rhythm, start, note).await,
        Proto::Udp => hold_udp(flow, protocol, rhythm, start, note).await,
    }
}

/// Timeout of an answer: after it a connection counts as hung, or a datagram as lost.
fn answer_timeout(proto: Proto) -> Duration {
    match proto {
        Proto::Tcp => Duration::from_secs(5),
        Proto::Udp => Duration::from_millis(250),
    }
}

async fn hold_tcp(
    flow: Attempt,
    protocol: &TargetProtocol,
    mut rhythm: Rhythm,
    start: Instant,
    mut note: impl FnMut(FlowUpdate),
) -> Result<(), AttemptFailure> {
    let opening = async {
        let mut stream = TcpStream::connect(flow.to).await.map_err(|error| failure_of(&error))?;
        stream.set_nodelay(true).map_err(|error| failure_of(&error))?;
        let greeting = protocol.open(&mut stream).await?;
        Ok((stream, greeting))
    };
    let (mut stream, greeting) = timeout(answer_timeout(flow.proto), opening).await.map_err(|_| AttemptFailure::Timeout)??;
    note(FlowUpdate::Open { greeting });
    let (mut ticks, mut nonce) = (rhythm.ticks(), 0);
    loop {
        // A close by the peer must be detected between requests too.
        let last = tokio::select! {
            () = tick(&mut ticks) => false,
            () = is_last(&mut rhythm.last) => true,
            ended = stream.readable() => {
                ended.map_err(|error| failure_of(&error))?;
                let mut nothing = [0];
                match stream.try_read(&mut nothing) {
                    Ok(0) => return Err(AttemptFailure::Closed),
                    Ok(_) => return Err(AttemptFailure::Garbled),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                    Err(error) => return Err(failure_of(&error)),
                }
            }
        };
        let began = start.elapsed();
        let by = timeout(answer_timeout(flow.proto), protocol.again(&mut stream, nonce)).await.map_err(|_| AttemptFailure::Timeout)??;
        note(FlowUpdate::Answered { by, began, ended: start.elapsed() });
        if last {
            return Ok(());
        }
        nonce += 1;
    }
}

async fn hold_udp(
    flow: Attempt,
    protocol: &TargetProtocol,
    mut rhythm: Rhythm,
    start: Instant,
    mut note: impl FnMut(FlowUpdate),
) -> Result<(), AttemptFailure> {
    let socket = udp_from(0, flow).await.map_err(|error| failure_of(&error))?;
    let (mut ticks, mut nonce, mut open) = (rhythm.ticks(), 0_u64, false);
    loop {
        let last = tokio::select! {
            () = tick(&mut ticks) => false,
            () = is_last(&mut rhythm.last) => true,
        };
        let mut tries = 0;
        let (began, by) = loop {
            nonce += 1;
            let began = start.elapsed();
            match timeout(answer_timeout(flow.proto), exchange(&socket, protocol, nonce)).await {
                Ok(by) => break (began, by.map_err(|error| failure_of(&error))?),
                Err(_) if tries == TRIES => return Err(AttemptFailure::Timeout),
                Err(_) => note(FlowUpdate::Lost),
            }
            tries += 1;
        };
        if !std::mem::replace(&mut open, true) {
            note(FlowUpdate::Open { greeting: String::new() });
        }
        note(FlowUpdate::Answered { by, began, ended: start.elapsed() });
        if last {
            return Ok(());
        }
    }
}

async fn tick(ticks: &mut Option<Interval>) {
    match ticks {
        Some(ticks) => drop(ticks.tick().await),
        None => std::future::pending().await,
    }
}

/// Returns once it is true; never if the sender was dropped before.
async fn is_last(last: &mut watch::Receiver<bool>) {
    if last.wait_for(|last| *last).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Sends one request; ignores late answers to earlier ones.
async fn exchange(socket: &UdpSocket, protocol: &TargetProtocol, nonce: u64) -> std::io::Result<TargetIdentity> {
    socket.send(&protocol.request(nonce)).await?;
    let mut answer = [0; DATAGRAM];
    loop {
        let length = socket.recv(&mut answer).await?;
        if let Ok(identity) = protocol.read(nonce, answer.get(..length).unwrap_or_default()) {
            return Ok(identity);
        }
    }
}
