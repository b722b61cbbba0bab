//! Conntrack entries created by hand, many at a time.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};

use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_NETFILTER;
use tailyard::model::firewall::netlink::{CREATE, FAMILY_IPV4, Header, REQUEST, message, nest, put};

/// Timeout of an entry, in seconds.
const TIMEOUT: u32 = 600;
/// Number of requests in a batch.
const BATCH: usize = 100;

/// Entry to track: an assured flow (packets in both directions), which the kernel never evicts to make room.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) client: SocketAddrV4,
    pub(crate) service: SocketAddrV4,
    /// DNAT target of the flow, if any.
    pub(crate) target: Option<SocketAddrV4>,
    /// The kernel's number of a TCP flow's state; `None` for UDP.
    pub(crate) tcp: Option<u8>,
}

impl Entry {
    fn tuple(self, out: &mut Vec<u8>, source: SocketAddrV4, destination: SocketAddrV4) {
        nest(out, 1, |out| {
            put(out, 1, &source.ip().octets());
            put(out, 2, &destination.ip().octets());
        });
        nest(out, 2, |out| {
            put(out, 1, &[if self.tcp.is_some() { 6 } else { 17 }]);
            put(out, 2, &source.port().to_be_bytes());
            put(out, 3, &destination.port().to_be_bytes());
        });
    }

    /// Appends the request that creates the entry.
    fn request(self, out: &mut Vec<u8>) {
        const NEW: u16 = 1 << 8;
        let header = Header { kind: NEW, flags: REQUEST | CREATE, family: FAMILY_IPV4, resource: 0, sequence: 0 };
        message(out, header, |out| self.attributes(out));
    }

    fn attributes(self, out: &mut Vec<u8>) {
        const SEEN_REPLY_ASSURED_CONFIRMED: u32 = 2 | 4 | 8;
        nest(out, 1, |out| self.tuple(out, self.client, self.service));
        nest(out, 2, |out| self.tuple(out, self.service, self.client));
        put(out, 3, &SEEN_REPLY_ASSURED_CONFIRMED.to_be_bytes());
        if let Some(state) = self.tcp {
            nest(out, 4, |out| nest(out, 1, |out| put(out, 1, &[state])));
        }
        put(out, 7, &TIMEOUT.to_be_bytes());
        if let Some(target) = self.target {
            nest(out, 13, |out| {
                put(out, 1, &target.ip().octets());
                put(out, 2, &target.ip().octets());
                nest(out, 3, |out| {
                    put(out, 1, &target.port().to_be_bytes());
                    put(out, 2, &target.port().to_be_bytes());
                });
            });
        }
    }
}

/// Creates these conntrack entries in the current namespace. Errors of entries that do not fit are not read.
pub(crate) fn track(entries: impl Iterator<Item = Entry>) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    let mut entries = entries.peekable();
    while entries.peek().is_some() {
        let mut batch = Vec::new();
        entries.by_ref().take(BATCH).for_each(|entry| entry.request(&mut batch));
        socket.send(&batch, 0)?;
    }
    Ok(())
}

/// A client address, unique for each number.
pub(crate) fn some_client(number: u32) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(0x0a80_0000 + number), 4000)
}
