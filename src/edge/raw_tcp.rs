//! Raw TCP sockets: send probes that find a flow's sequence numbers, and the resets that end it.
//!
//! [`crate::model::flows::tcp_reset`] decides what to send and interprets responses; this module has the sockets. Every packet sent has
//! [`PROBE_MARK`], which a rule exempts from connection tracking, as masquerading would change its port. A response arrives here only if
//! the conntrack entry of the flow is deleted and no NAT map forwards it: hence the order is rules, [`RawTcpSockets::open`], entries,
//! [`RawTcpSockets::reset`]. Blocking; async callers use `spawn_blocking`.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::model::base::net::Family;
use crate::model::firewall::ruleset::PROBE_MARK;
use crate::model::flows::flow::Flow;
use crate::model::flows::tcp_reset::{PendingResets, ResetReport};
use crate::model::flows::tcp_segment::{ObservedSegment, Segment};

/// Segments sent between two reads of responses.
const BURST: usize = 64;
/// Size of the receive buffer, in bytes.
const SOCKET_BUFFER: usize = 8 << 20;
/// Maximum size of a received packet, in bytes.
const PACKET: usize = 64 << 10;

#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
pub enum ProbeError {
    /// A raw socket could not be opened, or its mark not set.
    #[error("cannot open a raw socket, so the ends of flows that are cut here will hang (give the container NET_RAW and NET_ADMIN): {0}")]
    Open(#[source] io::Error),
    #[error("cannot receive answers to probes: {0}")]
    Receive(#[source] io::Error),
}

impl ProbeError {
    /// Closed set of values for metric labels.
    pub fn reason(&self) -> &'static str {
        self.into()
    }
}

/// Sockets that capture the segments of flow endpoints from their opening on.
///
/// They are opened before the conntrack entries are deleted: after that, this host's TCP resets an endpoint at its next packet, and only
/// the segments captured until then give the sequence numbers to reset the other endpoint.
pub struct RawTcpSockets {
    wires: Vec<Wire>,
}

/// Sockets of one family.
struct Wire {
    family: Family,
    sender: Socket,
    receiver: Socket,
    buffer: Vec<u8>,
}

impl RawTcpSockets {
    /// Opens the sockets in the calling thread's network namespace. A family that the kernel does not support is skipped, as it has no
    /// flows.
    pub fn open() -> Result<Self, ProbeError> {
        let lacking = |error: &io::Error| error.raw_os_error() == Some(Errno::EAFNOSUPPORT as i32);
        let opened = Family::ALL.into_iter().map(Wire::open).filter(|wire| !wire.as_ref().is_err_and(lacking));
        Ok(Self { wires: opened.collect::<io::Result<_>>().map_err(ProbeError::Open)? })
    }

    /// Resets TCP flows at both endpoints, all in parallel; flows of other protocols are skipped.
    ///
    /// Their conntrack entries must be deleted before. Returns when all flows are handled, at the deadline at the latest.
    pub fn reset(self, flows: &[Flow], deadline: Instant) -> Result<ResetReport, ProbeError> {
        let run = |wire: Wire| {
            let ours = flows.iter().filter(|flow| Family::of(flow.target().ip()) == wire.family);
            let mut resets = PendingResets::new(ours, fastrand::u32(..));
            wire.run(&mut resets, deadline).map(|()| resets.report())
        };
        thread::scope(|scope| {
            let started: Vec<_> = self.wires.into_iter().map(|wire| scope.spawn(move || run(wire))).collect();
            started.into_iter().try_fold(ResetReport::default(), |mut report, wire| {
                report += wire.join().map_err(|_| ProbeError::Receive(io::Error::other("the thread panicked")))??;
                Ok(report)
            })
        })
    }
}

impl Wire {
    fn open(family: Family) -> io::Result<Self> {
        let domain = if family == Family::V4 { Domain::IPV4 } else { Domain::IPV6 };
        let receiver = Socket::new(domain, Type::RAW, Some(Protocol::TCP))?;
        let plain = |_| setsockopt(&receiver, sockopt::RcvBuf, &SOCKET_BUFFER);
        setsockopt(&receiver, sockopt::RcvBufForce, &SOCKET_BUFFER).or_else(plain)?;
        // With this protocol the sender writes the IP header itself, in both families.
        let sender = Socket::new(domain, Type::RAW, Some(Protocol::from(nix::libc::IPPROTO_RAW)))?;
        sender.set_mark(PROBE_MARK)?;
        Ok(Self { family, sender, receiver, buffer: vec![0; PACKET] })
    }

    fn run(mut self, resets: &mut PendingResets, deadline: Instant) -> Result<(), ProbeError> {
        let start = Instant::now();
        let limit = deadline.saturating_duration_since(start);
        while !resets.is_over() {
            let mut now = start.elapsed();
            for _ in 0..BURST {
                let Some(segment) = resets.take(now) else { break };
                if !self.send(&segment) {
                    resets.failed(&segment);
                }
            }
            while let Some(heard) = self.receive(MsgFlags::MSG_DONTWAIT)? {
                resets.observe(&heard, now);
            }
            now = start.elapsed();
            if now >= limit {
                break;
            }
            let patience = resets.next().unwrap_or(limit).min(limit).saturating_sub(now);
            // A timeout of zero would mean no timeout.
            if patience > Duration::from_micros(1) {
                self.receiver.set_read_timeout(Some(patience)).map_err(ProbeError::Receive)?;
                if let Some(heard) = self.receive(MsgFlags::empty())? {
                    resets.observe(&heard, start.elapsed());
                }
            }
        }
        Ok(())
    }

    /// Whether the segment was sent, or a retry may succeed.
    fn send(&self, segment: &Segment) -> bool {
        let Some(packet) = segment.packet() else { return false };
        // The port must be zero: the kernel would interpret it as a protocol.
        let to = SockAddr::from(SocketAddr::new(segment.to().ip(), 0));
        match self.sender.send_to(&packet, &to) {
            Ok(_) => true,
            Err(error) => matches!(Errno::from_raw(error.raw_os_error().unwrap_or(0)), Errno::ENOBUFS | Errno::EAGAIN | Errno::EINTR),
        }
    }

    /// Receives the next segment; `None` if no more is queued, or none arrives within the socket's timeout.
    fn receive(&mut self, flags: MsgFlags) -> Result<Option<ObservedSegment>, ProbeError> {
        loop {
            let mut parts = [IoSliceMut::new(&mut self.buffer)];
            let (length, source) = match recvmsg::<SockaddrStorage>(self.receiver.as_raw_fd(), &mut parts, None, flags) {
                Ok(message) => (message.bytes, message.address),
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(ProbeError::Receive(errno.into())),
            };
            let bytes = self.buffer.get(..length).unwrap_or_default();
            let source = source.and_then(|address| address.as_sockaddr_in6().map(|six| IpAddr::V6(six.ip())));
            let heard = match self.family {
                Family::V4 => ObservedSegment::in_ipv4(bytes),
                Family::V6 => source.and_then(|source| ObservedSegment::in_tcp(bytes, source)),
            };
            if heard.is_some() {
                return Ok(heard);
            }
        }
    }
}
