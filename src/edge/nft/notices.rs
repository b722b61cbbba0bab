//! Notices of the kernel that somebody changed nftables. A notice only says that an audit is due; what changed is for it to find.

use std::fmt;
use std::io;

use netlink_sys::constants::NETLINK_NETFILTER;
use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};

use super::NftError;
use crate::model::nft::wire::{Message, NOTICES, messages};

const READ: usize = 64 << 10;

/// A stream of changes made by others.
pub struct Changes {
    socket: TokioSocket,
    own: u32,
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("own", &self.own).finish_non_exhaustive()
    }
}

impl Changes {
    /// Listens in the network namespace of the calling thread; everybody's changes count, our own too.
    pub fn open() -> Result<Self, NftError> {
        Self::except(0)
    }

    /// The same, but for transactions that come from this netlink port.
    pub(super) fn except(own: u32) -> Result<Self, NftError> {
        let open = || -> io::Result<TokioSocket> {
            let mut socket = TokioSocket::new(NETLINK_NETFILTER)?;
            socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
            socket.socket_mut().add_membership(NOTICES)?;
            Ok(socket)
        };
        open().map(|socket| Self { socket, own }).map_err(|source| NftError::Kernel { what: "tell of changes to nftables", source })
    }

    /// Waits until somebody else changed something in nftables; the batches of the [`super::Nft`] that it was made
    /// from do not count, its runs of the nft program do.
    ///
    /// Notices that the kernel had to drop count as a change. It may be cancelled at any time.
    pub async fn next(&mut self) -> Result<(), NftError> {
        loop {
            let mut buffer = Vec::with_capacity(READ);
            match self.socket.recv(&mut buffer).await {
                Err(fault) if fault.raw_os_error() == Some(nix::errno::Errno::ENOBUFS as i32) => return Ok(()),
                Err(source) => return Err(NftError::Kernel { what: "tell of changes to nftables", source }),
                Ok(()) => {
                    let foreign = |(_, message): &(u32, Message)| matches!(message, Message::Generation { port, .. } if *port != self.own);
                    // What cannot be read may be anything: better an audit too many.
                    if messages(&buffer).map_or(true, |list| list.iter().any(foreign)) {
                        return Ok(());
                    }
                }
            }
        }
    }
}
