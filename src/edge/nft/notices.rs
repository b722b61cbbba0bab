//! Kernel notifications of nftables changes. A notification only triggers an audit, which finds the change.

use std::io;

use netlink_sys::constants::NETLINK_NETFILTER;
use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};

use super::NftError;
use crate::model::firewall::nft::wire::{Message, NOTICES, decode};
use crate::runtime::nfnetlink::{Answer, RECEIVE_SIZE, answers_lost, messages};

/// Stream of changes by other processes.
pub struct NotificationStream {
    socket: TokioSocket,
    own: u32,
}

impl NotificationStream {
    /// Subscribes in the network namespace of the calling thread; ignores transactions of the netlink port `own`.
    pub(super) fn open(own: u32) -> Result<Self, NftError> {
        let open = || -> io::Result<TokioSocket> {
            let mut socket = TokioSocket::new(NETLINK_NETFILTER)?;
            socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
            socket.socket_mut().add_membership(NOTICES)?;
            Ok(socket)
        };
        open().map(|socket| Self { socket, own }).map_err(|source| NftError::Kernel { what: "subscribe to changes of nftables", source })
    }

    /// Waits for a change of nftables by another process. The batches of the [`super::Nft`] that created the stream are ignored, its runs
    /// of the nft program are not.
    ///
    /// Notifications that the kernel dropped count as a change. Cancel-safe.
    pub async fn next(&mut self) -> Result<(), NftError> {
        loop {
            let mut buffer = Vec::with_capacity(RECEIVE_SIZE);
            match self.socket.recv(&mut buffer).await {
                Err(fault) if answers_lost(&fault) => return Ok(()),
                Err(source) => return Err(NftError::Kernel { what: "subscribe to changes of nftables", source }),
                Ok(()) => {
                    let foreign = |message: Answer<'_>| {
                        let decoded = decode(message.message_type(), message.port_number(), message.payload());
                        matches!(decoded, Some(Message::Generation { port, .. }) if port != self.own)
                    };
                    // An unreadable message may be a change; a superfluous audit is harmless.
                    if messages(&buffer).any(|message| message.map_or(true, foreign)) {
                        return Ok(());
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use nix::sys::socket::{setsockopt, sockopt};
    use tokio::time::timeout;

    use super::*;
    use crate::edge::netns::Namespace;
    use crate::edge::nft::Nft;
    use crate::model::base::net::{InterfaceName, Port, PortKey, Proto};
    use crate::model::firewall::ruleset::{Ruleset, diff};

    const LONG: Duration = Duration::from_secs(20);

    /// Ruleset with this number of keys.
    fn rules(keys: u16) -> Ruleset {
        let mut rules = Ruleset::empty(InterfaceName::tailscale0());
        let key = |i| PortKey { proto: Proto::Tcp, port: Port::new(10_000 + i).expect("not zero") };
        rules.ports = (0..keys).map(|i| (key(i), BTreeSet::from(["100.64.0.2:80".parse().expect("an address")]))).collect();
        rules
    }

    /// Own changes are ignored; lost notifications are not, as any of them may be a foreign change.
    #[test]
    fn lost_notifications_count_as_a_change() {
        let work = || async {
            let nft = Nft::open("nft").expect("a socket");
            let (few, many) = (rules(1), rules(40));
            nft.rewrite(&few).await.expect("loaded");
            let mut changes = nft.changes().expect("notices");
            nft.patch(&few, &diff(&few, &many), &many).await.expect("patched");
            assert!(timeout(Duration::from_millis(300), changes.next()).await.is_err(), "our own change is no news");
            setsockopt(changes.socket.socket_mut(), sockopt::RcvBuf, &1).expect("set");
            nft.patch(&many, &diff(&many, &few), &few).await.expect("patched");
            timeout(LONG, changes.next()).await.expect("in time").expect("a notice");
            // The stream continues: the next foreign change is reported too.
            while timeout(Duration::from_millis(300), changes.next()).await.is_ok() {}
            let other = tokio::process::Command::new("nft").args(["add", "table", "inet", "other"]).status().await.expect("nft");
            assert!(other.success());
            timeout(LONG, changes.next()).await.expect("in time").expect("a notice");
        };
        Namespace::make().expect("a namespace").block_on(work).expect("ran");
    }
}
