//! One established connection, or one UDP flow, as fast as it goes.

use std::io::{ErrorKind, Read, Result as IoResult, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tailyard::edge::netns::Namespace;
use tailyard::model::base::net::Proto;

/// Duration of one measurement.
const SLICE: Duration = Duration::from_secs(1);
/// How much is written and read at once.
const CHUNK: usize = 256 * 1024;
/// Payload that fits into a packet of the tailnet in both families.
const DATAGRAM: usize = 1_200;
/// Time without a datagram that ends a UDP measurement.
const SILENCE: Duration = Duration::from_millis(100);

/// Discards everything on one port.
pub(crate) struct Sink {
    tcp: TcpListener,
    udp: UdpSocket,
}

/// The result of one measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copied {
    /// Received data, in Gbit/s.
    pub(crate) rate: f64,
    /// Processor time of the whole machine per received Gbit, in seconds: both ends and everything between them.
    pub(crate) processor: f64,
}

impl Sink {
    /// In the network namespace of the calling thread, on both families.
    pub(crate) fn bind(port: u16) -> IoResult<Self> {
        let at = (Ipv6Addr::UNSPECIFIED, port);
        let udp = UdpSocket::bind(at)?;
        udp.set_read_timeout(Some(SILENCE))?;
        Ok(Self { tcp: TcpListener::bind(at)?, udp })
    }

    /// Waits until a connection to it is established.
    pub(crate) fn open(&self, client: &Namespace, to: SocketAddr) -> Result<()> {
        while client.run(|| TcpStream::connect(to))?.is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.tcp.accept()?;
        Ok(())
    }

    /// Sends to it for a while.
    pub(crate) fn copy(&self, proto: Proto, client: &Namespace, to: SocketAddr) -> Result<Copied> {
        let busy = busy()?;
        let (bytes, lasted) = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| self.receive(proto));
            client.run(|| send(proto, to))??;
            anyhow::Ok(receiver.join().map_err(|_| anyhow::anyhow!("the receiver panicked"))??)
        })?;
        #[allow(clippy::cast_precision_loss, reason = "a few terabytes at most")]
        let gigabits = bytes as f64 * 8.0 / 1e9;
        let processor = self::busy()?.saturating_sub(busy).as_secs_f64() / gigabits;
        Ok(Copied { rate: gigabits / lasted.as_secs_f64(), processor })
    }

    /// Received bytes and duration.
    fn receive(&self, proto: Proto) -> IoResult<(u64, Duration)> {
        let (mut chunk, mut received) = (vec![0; CHUNK], 0);
        if proto == Proto::Tcp {
            let (mut stream, begun) = (self.tcp.accept()?.0, Instant::now());
            loop {
                match stream.read(&mut chunk)? {
                    0 => return Ok((received, begun.elapsed())),
                    some => received += some as u64,
                }
            }
        }
        let mut times: Option<(Instant, Instant)> = None;
        loop {
            match self.udp.recv(&mut chunk) {
                Ok(some) => {
                    received += some as u64;
                    times = Some((times.map_or_else(Instant::now, |(first, _)| first), Instant::now()));
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if let Some((first, last)) = times {
                        return Ok((received, last - first));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn send(proto: Proto, to: SocketAddr) -> IoResult<()> {
    let until = Instant::now() + SLICE;
    if proto == Proto::Tcp {
        let (mut stream, chunk) = (TcpStream::connect(to)?, vec![0; CHUNK]);
        while Instant::now() < until {
            stream.write_all(&chunk)?;
        }
        return Ok(());
    }
    let (socket, datagram) = (UdpSocket::bind((if to.is_ipv4() { "0.0.0.0" } else { "::" }, 0))?, [0; DATAGRAM]);
    socket.connect(to)?;
    while Instant::now() < until {
        socket.send(&datagram)?;
    }
    Ok(())
}

/// For how long the machine's processors have worked so far, all together.
fn busy() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let fields = stat.lines().next().context("a first line")?.split_whitespace().skip(1);
    let ticks: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>()?;
    // Of user, nice, system, idle, iowait, irq and softirq all but the two in which nothing is done, in hundredths of a second.
    let worked: u64 = ticks.iter().take(7).enumerate().filter(|(field, _)| ![3, 4].contains(field)).map(|(_, ticks)| ticks).sum();
    Ok(Duration::from_millis(worked * 10))
}

/// A figure of a measurement.
pub(crate) type Figure = fn(&Copied) -> f64;
pub(crate) const RATE: Figure = |copied| copied.rate;
pub(crate) const PROCESSOR: Figure = |copied| copied.processor;

/// A figure of each measurement.
pub(crate) fn of(copied: &[Copied], figure: Figure) -> Vec<f64> {
    copied.iter().map(figure).collect()
}
