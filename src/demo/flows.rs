//! Long-lived connections and UDP flows, each asking again and again over the same socket.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::load::{converse, failure_of, udp_from};
use super::wire;
use crate::model::load::{Attempt, Failure, Identity};
use crate::model::net::Proto;

/// How many datagrams in a row may be lost before a UDP flow counts as broken.
const TRIES: u32 = 12;

/// Something that happened to a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat {
    /// The connection stands; for UDP, the first answer came.
    Open,
    /// A question was answered.
    Answered {
        /// By whom.
        by: Identity,
        /// When it was asked.
        began: Duration,
        /// When the answer came.
        ended: Duration,
    },
    /// A datagram or its answer was lost.
    Lost,
}

/// Opens a flow and asks at this interval until it breaks; dropping the future ends the flow in order.
pub async fn hold(flow: Attempt, every: Duration, start: Instant, note: impl FnMut(Beat)) -> Failure {
    let broken = match flow.proto {
        Proto::Tcp => hold_tcp(flow, every, start, note).await,
        Proto::Udp => hold_udp(flow, every, start, note).await,
    };
    match broken {
        Ok(never) => match never {},
        Err(failure) => failure,
    }
}

/// How long a flow waits for an answer: until a connection counts as hung, or a datagram as lost.
fn patience(proto: Proto) -> Duration {
    match proto {
        Proto::Tcp => Duration::from_secs(5),
        Proto::Udp => Duration::from_millis(250),
    }
}

async fn hold_tcp(flow: Attempt, every: Duration, start: Instant, mut note: impl FnMut(Beat)) -> Result<Infallible, Failure> {
    let connecting = timeout(patience(flow.proto), TcpStream::connect(flow.to));
    let mut stream = connecting.await.map_err(|_| Failure::Timeout)?.map_err(|error| failure_of(&error))?;
    stream.set_nodelay(true).map_err(|error| failure_of(&error))?;
    note(Beat::Open);
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for nonce in 0.. {
        // While nobody is asked, an end from the other side must still be seen at once.
        tokio::select! {
            _ = ticks.tick() => {}
            ended = stream.readable() => {
                ended.map_err(|error| failure_of(&error))?;
                let mut nothing = [0];
                match stream.try_read(&mut nothing) {
                    Ok(0) => return Err(Failure::Closed),
                    Ok(_) => return Err(Failure::Garbled),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                    Err(error) => return Err(failure_of(&error)),
                }
            }
        }
        let began = start.elapsed();
        let by = timeout(patience(flow.proto), converse(&mut stream, nonce)).await.map_err(|_| Failure::Timeout)??;
        note(Beat::Answered { by, began, ended: start.elapsed() });
    }
    Err(Failure::Closed)
}

async fn hold_udp(flow: Attempt, every: Duration, start: Instant, mut note: impl FnMut(Beat)) -> Result<Infallible, Failure> {
    let socket = udp_from(0, flow).await.map_err(|error| failure_of(&error))?;
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut nonce, mut open) = (0_u64, false);
    loop {
        ticks.tick().await;
        let mut tries = 0;
        let (began, by) = loop {
            nonce += 1;
            let began = start.elapsed();
            match timeout(patience(flow.proto), ask(&socket, nonce)).await {
                Ok(by) => break (began, by.map_err(|error| failure_of(&error))?),
                Err(_) if tries == TRIES => return Err(Failure::Timeout),
                Err(_) => note(Beat::Lost),
            }
            tries += 1;
        };
        if !std::mem::replace(&mut open, true) {
            note(Beat::Open);
        }
        note(Beat::Answered { by, began, ended: start.elapsed() });
    }
}

/// Asks once; late answers to earlier questions are passed over.
async fn ask(socket: &UdpSocket, nonce: u64) -> std::io::Result<Identity> {
    socket.send(&wire::question(nonce)).await?;
    let mut answer = [0; wire::ANSWER];
    loop {
        let length = socket.recv(&mut answer).await?;
        if let Some(identity) = wire::read(nonce, answer.get(..length).unwrap_or_default()) {
            return Ok(identity);
        }
    }
}
