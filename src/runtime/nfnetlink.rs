//! Blocking nfnetlink socket: requests, and responses matched by sequence number.
//!
//! The kernel responds within the system call. A socket belongs to the network namespace of the thread that opened it, whichever thread
//! uses it. The caller encodes and decodes message contents.

use std::io;
use std::ops::ControlFlow;

use netlink_packet_core::{NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer};
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;

/// Receive size; the kernel fills at most 32 KiB per receive.
pub const RECEIVE_SIZE: usize = 64 << 10;
/// Receive buffer, for more responses than those to one batch of deletions.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Maximum size of a transaction, if the system's limit may be exceeded: some 200,000 nftables elements.
const SEND_BUFFER: usize = 16 << 20;
/// Receive timeout; reached only with a faulty kernel.
const TIMEOUT: TimeVal = TimeVal::new(10, 0);

/// One message of a response.
pub type Answer<'a> = NetlinkBuffer<&'a [u8]>;

/// A socket that is connected to the kernel.
#[derive(Debug)]
pub struct NfnetlinkSocket {
    socket: Socket,
    /// Netlink port of this socket, as notifications name the origin of changes.
    pub port: u32,
    /// Whether a transaction may exceed the system's limit of socket buffers.
    pub send_unlimited: bool,
    sequence: u32,
    buffer: Vec<u8>,
}

/// End of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DumpEnd {
    Complete,
    /// The table changed so much during the listing that entries may be missing.
    Disturbed,
}

impl NfnetlinkSocket {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        let port = socket.bind_auto()?.port_number();
        socket.connect(&SocketAddr::new(0, 0))?;
        // Acknowledgments without a copy of the request.
        socket.set_cap_ack(true)?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TIMEOUT)?;
        setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER))?;
        let send_unlimited = setsockopt(&socket, sockopt::SndBufForce, &SEND_BUFFER).is_ok();
        if !send_unlimited {
            setsockopt(&socket, sockopt::SndBuf, &SEND_BUFFER)?;
        }
        Ok(Self { socket, port, send_unlimited, sequence: 0, buffer: Vec::with_capacity(RECEIVE_SIZE) })
    }

    /// Sequence number of the next message.
    pub fn next_sequence(&self) -> u32 {
        self.sequence.wrapping_add(1)
    }

    /// Sends messages with the sequence numbers from [`Self::next_sequence`] to `last`; passes their responses to `each` until it breaks.
    pub fn exchange<T>(&mut self, sent: &[u8], last: u32, mut each: impl FnMut(&Answer<'_>) -> ControlFlow<T>) -> io::Result<T> {
        let first = self.next_sequence();
        self.sequence = last;
        self.socket.send(sent, 0)?;
        loop {
            self.receive()?;
            for answer in messages(&self.buffer) {
                let answer = answer?;
                let ours = answer.sequence_number().wrapping_sub(first) <= last.wrapping_sub(first);
                if ours && let ControlFlow::Break(end) = each(&answer) {
                    return Ok(end);
                }
            }
        }
    }

    /// Sends one request; passes the responses before the acknowledgment or the end of the listing to `each`.
    pub fn request(&mut self, request: impl FnOnce(u32) -> Vec<u8>, mut each: impl FnMut(&Answer<'_>)) -> io::Result<DumpEnd> {
        let (sequence, mut end) = (self.next_sequence(), DumpEnd::Complete);
        self.exchange(&request(sequence), sequence, |answer| {
            if answer.flags() & NLM_F_DUMP_INTR != 0 {
                end = DumpEnd::Disturbed;
            }
            if let Some(outcome) = outcome(answer) {
                return ControlFlow::Break(outcome);
            }
            each(answer);
            ControlFlow::Continue(())
        })??;
        Ok(end)
    }

    fn receive(&mut self) -> io::Result<()> {
        self.buffer.clear();
        let mut buffer = bytes::BufMut::limit(&mut self.buffer, RECEIVE_SIZE);
        // A socket with a timeout is not restarted after a signal, e.g. the SIGCHLD of an ended child.
        while let Err(fault) = self.socket.recv(&mut buffer, 0) {
            if fault.kind() != io::ErrorKind::Interrupted {
                return Err(fault);
            }
        }
        Ok(())
    }

    /// Makes the receive buffer so small that responses are lost.
    #[cfg(test)]
    pub(crate) fn shrink_receive_buffer(&self) {
        setsockopt(&self.socket, sockopt::RcvBuf, &1).expect("a socket");
    }

    /// Sends a request and leaves its response in the socket.
    #[cfg(test)]
    pub(crate) fn send_only(&self, request: &[u8]) {
        let _ = self.socket.send(request, 0);
    }
}

/// Whether the kernel dropped responses because the buffer was full.
pub fn answers_lost(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ENOBUFS as i32)
}

/// Whether the requested object does not exist.
pub fn is_absent(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ENOENT as i32)
}

/// Messages of one datagram, up to and including the first malformed one.
pub fn messages(datagram: &[u8]) -> impl Iterator<Item = io::Result<Answer<'_>>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let bytes = Some(std::mem::take(&mut rest)).filter(|bytes| !bytes.is_empty())?;
        let message = NetlinkBuffer::new_checked(bytes).map_err(io::Error::other);
        Some(message.inspect(|message| {
            let length = usize::try_from(message.length()).unwrap_or(usize::MAX);
            rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        }))
    })
}

/// Outcome in an acknowledgment or at the end of a listing; `None` for other messages.
pub fn outcome(answer: &Answer<'_>) -> Option<io::Result<()>> {
    if !matches!(answer.message_type(), NLMSG_DONE | NLMSG_ERROR) {
        return None;
    }
    // Error number: zero or negative.
    let code = answer.payload().first_chunk::<4>().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    Some(if code < 0 { Err(io::Error::from_raw_os_error(code.saturating_neg())) } else { Ok(()) })
}
