//! The connection tracking of this network namespace, over ctnetlink.
//!
//! Lists flows, deletes single ones, tells how full the table is; which flows to delete is [`crate::model::flows::cleanup`]'s business.
//! Blocking: the kernel answers at once, but a dump of many flows takes milliseconds, so async callers use `spawn_blocking`.
//! A socket belongs to the namespace in which it was opened, whatever thread uses it.

pub mod wire;

use std::io;

use netlink_packet_core::{NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer};
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;
use serde::Serialize;

use crate::model::base::net::Family;
use crate::model::flows::flow::{Flow, FlowFilter};

/// The kernel fills at most 32 KiB for one receive.
const RECEIVE: usize = 64 << 10;
/// What may wait in the socket: more than the answers to one batch of deletions.
const SOCKET_BUFFER: usize = 4 << 20;
/// How many deletions go to the kernel in one message.
const BATCH: usize = 64;
/// How often a listing that was disturbed is begun anew.
const ATTEMPTS: usize = 4;

/// The kernel answers before the request returns; a message that went missing must not hold a thread for ever.
const TIMEOUT: TimeVal = TimeVal::new(5, 0);

/// A socket to connection tracking.
pub struct Conntrack {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

/// How full the table of this namespace is, and what that has cost since the namespace was made.
///
/// A full table (`entries` at `limit`, `dropped` growing) refuses new flows without harming those that exist.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Pressure {
    pub entries: u32,
    /// The most that the kernel allows (`net.netfilter.nf_conntrack_max`).
    pub limit: u32,
    /// Packets dropped because the table was full or memory short.
    pub dropped: u64,
    /// Unanswered flows evicted early to make room.
    pub evicted: u64,
    /// Entries that could not be inserted (a clash of tuples).
    pub insert_failed: u64,
}

/// A request to connection tracking failed.
#[derive(Debug, thiserror::Error)]
pub enum ConntrackError {
    #[error("cannot open connection tracking's netlink socket (the kernel needs nf_conntrack_netlink): {0}")]
    Open(#[source] io::Error),
    /// A listing failed, or was disturbed each time.
    #[error("cannot list tracked flows (NET_ADMIN is needed): {0}")]
    List(#[source] io::Error),
    /// A deletion failed for another reason than that the flow is gone.
    #[error("cannot delete a tracked flow (NET_ADMIN is needed): {0}")]
    Delete(#[source] io::Error),
    /// The counters could not be read.
    #[error("cannot read connection tracking's counters: {0}")]
    Count(#[source] io::Error),
}

impl ConntrackError {
    /// A closed set of words for metric labels.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Open(_) => "Open",
            Self::List(_) => "List",
            Self::Delete(_) => "Delete",
            Self::Count(_) => "Count",
        }
    }
}

/// What ended a run of answers.
enum DumpEnd {
    Complete,
    /// The table changed so much meanwhile that entries may be missing.
    Disturbed,
}

impl Conntrack {
    /// Opens a socket in the calling thread's namespace.
    pub fn open() -> Result<Self, ConntrackError> {
        let socket = connect().map_err(ConntrackError::Open)?;
        Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(RECEIVE) })
    }

    /// The flows that the filter admits. Flows that begin or end meanwhile may be in it or not.
    pub fn flows(&mut self, filter: FlowFilter) -> Result<Vec<Flow>, ConntrackError> {
        let mut flows = Vec::new();
        // The kernel compares ports only within a family.
        if filter.key.is_some() && filter.family.is_none() {
            for family in Family::ALL {
                self.list(FlowFilter { family: Some(family), ..filter }, &mut flows)?;
            }
        } else {
            self.list(filter, &mut flows)?;
        }
        Ok(flows)
    }

    fn list(&mut self, filter: FlowFilter, flows: &mut Vec<Flow>) -> Result<(), ConntrackError> {
        let others = flows.len();
        for _ in 0..ATTEMPTS {
            flows.truncate(others);
            // The kernel cannot tell apart by state; most entries may be over, and are not worth reading whole.
            let read = |attributes: &[u8]| {
                let flow = filter.admits_state(wire::parse_state(attributes)).then(|| wire::parse_flow(attributes));
                flows.extend(flow.flatten().filter(|flow| filter.admits(flow)));
            };
            let ended = self.ask(|sequence| wire::dump(filter, sequence), read);
            match ended {
                Ok(DumpEnd::Complete) => return Ok(()),
                Ok(DumpEnd::Disturbed) => {}
                // Answers were lost for want of buffer: what is left of them must not be taken for the next listing's.
                Err(error) if lost(&error) => {
                    self.socket = connect().map_err(ConntrackError::Open)?;
                }
                Err(error) => return Err(ConntrackError::List(error)),
            }
        }
        Err(ConntrackError::List(io::Error::other("the table kept changing while it was read")))
    }

    /// Deletes this very flow; `false` if it is gone already. A younger flow in its place is left alone.
    pub fn delete(&mut self, flow: &Flow) -> Result<bool, ConntrackError> {
        self.delete_all([flow]).map(|deleted| deleted == 1)
    }

    /// Deletes these very flows and says how many of them were still there, as far as the answers were not lost. After an error
    /// others may remain.
    pub fn delete_all<'a>(&mut self, flows: impl IntoIterator<Item = &'a Flow>) -> Result<usize, ConntrackError> {
        let (mut flows, mut deleted) = (flows.into_iter(), 0);
        loop {
            let (mut batch, first) = (Vec::new(), self.sequence);
            for flow in flows.by_ref().take(BATCH) {
                self.sequence = self.sequence.wrapping_add(1);
                batch.extend(wire::delete(flow, self.sequence));
            }
            if batch.is_empty() {
                return Ok(deleted);
            }
            let count = self.sequence.wrapping_sub(first);
            let mut answer = self.deleted(&batch, count);
            if answer.as_ref().is_err_and(lost) {
                // Which of them are gone is not known: they are asked for once more, and those that are gone do no harm.
                self.socket = connect().map_err(ConntrackError::Open)?;
                answer = self.deleted(&batch, count);
            }
            deleted += answer.map_err(ConntrackError::Delete)?;
        }
    }

    /// How full the table is.
    pub fn pressure(&mut self) -> Result<Pressure, ConntrackError> {
        let mut pressure = Pressure::default();
        self.ask(wire::get_stats, |attributes| wire::parse_stats(attributes, &mut pressure)).map_err(ConntrackError::Count)?;
        self.ask(wire::get_stats_cpu, |attributes| wire::parse_stats_cpu(attributes, &mut pressure)).map_err(ConntrackError::Count)?;
        Ok(pressure)
    }

    /// Sends a request and hands the attributes of each answer to `each`.
    fn ask(&mut self, request: impl FnOnce(u32) -> Vec<u8>, mut each: impl FnMut(&[u8])) -> io::Result<DumpEnd> {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        self.socket.send(&request(sequence), 0)?;
        let mut disturbed = false;
        loop {
            self.receive()?;
            for message in messages(&self.buffer).filter(|message| message.sequence_number() == sequence) {
                disturbed |= message.flags() & NLM_F_DUMP_INTR != 0;
                match message.message_type() {
                    NLMSG_DONE | NLMSG_ERROR => {
                        verdict(message.payload())?;
                        return Ok(if disturbed { DumpEnd::Disturbed } else { DumpEnd::Complete });
                    }
                    _ => each(message.payload().get(wire::HEADER..).unwrap_or_default()),
                }
            }
        }
    }

    fn deleted(&mut self, batch: &[u8], count: u32) -> io::Result<usize> {
        self.socket.send(batch, 0)?;
        let newest = self.sequence;
        let (mut answered, mut deleted, mut fault) = (0, 0, None);
        while answered < count {
            self.receive()?;
            for message in messages(&self.buffer).filter(|message| newest.wrapping_sub(message.sequence_number()) < count) {
                answered += 1;
                match verdict(message.payload()) {
                    Ok(()) => deleted += 1,
                    Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => {}
                    Err(error) => fault = Some(error),
                }
            }
        }
        fault.map_or(Ok(deleted), Err)
    }

    fn receive(&mut self) -> io::Result<()> {
        self.buffer.clear();
        let room = RECEIVE;
        let mut buffer = bytes::BufMut::limit(&mut self.buffer, room);
        // A socket with a timeout is not resumed after a signal: a child that ends sends one.
        while let Err(fault) = self.socket.recv(&mut buffer, 0) {
            if fault.kind() != io::ErrorKind::Interrupted {
                return Err(fault);
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Conntrack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conntrack").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

fn connect() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    // Acknowledgments without a copy of the request.
    socket.set_cap_ack(true)?;
    setsockopt(&socket, sockopt::RcvBufForce, &SOCKET_BUFFER).or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &SOCKET_BUFFER))?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TIMEOUT)?;
    Ok(socket)
}

/// Whether the kernel had to drop answers for want of room.
fn lost(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ENOBUFS as i32)
}

/// The messages of one datagram, up to the first malformed one.
fn messages(datagram: &[u8]) -> impl Iterator<Item = NetlinkBuffer<&[u8]>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let message = NetlinkBuffer::new_checked(rest).ok()?;
        let length = usize::try_from(message.length()).ok()?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// The error number that begins the payload of an acknowledgment or of a listing's end: zero, or negative.
fn verdict(payload: &[u8]) -> io::Result<()> {
    let code = payload.first_chunk::<4>().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    if code < 0 { Err(io::Error::from_raw_os_error(-code)) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
