//! The links and addresses of this network namespace, over rtnetlink.
//!
//! Notifications only say *that* something changed; what is true is always read anew, whole, and only a difference is
//! published. So a lost notification (a full socket buffer) costs one more reading and never a wrong state. A link may
//! vanish and come back, under another index. Decides nothing; what follows from a link's state is the model's business.

pub mod build;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, TryStreamExt};
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use rtnetlink::{Handle, MulticastGroup};
use tokio::sync::watch;

use crate::model::base::net::{Family, InterfaceName};

/// How long a broken notification socket rests before it is opened again.
const REOPEN: Duration = Duration::from_secs(1);

/// What one link is like at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkState {
    /// Whether a link of that name exists; if not, nothing else here says anything.
    pub present: bool,
    /// Whether it is administratively up and has a carrier.
    pub up: bool,
    /// The largest packet it takes, in bytes.
    pub mtu: u32,
    /// Its usable addresses: neither link-local nor still (or for ever) in duplicate detection.
    pub addresses: BTreeSet<IpAddr>,
}

/// Links could not be read, watched or made.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No netlink socket.
    #[error("cannot open a netlink socket for links and addresses: {0}")]
    Open(#[source] io::Error),
    /// The kernel's answer to a question was an error, or none.
    #[error("cannot read {what}: {source}")]
    Read {
        /// What was asked for.
        what: &'static str,
        /// The kernel's answer.
        source: rtnetlink::Error,
    },
    /// The netlink socket stopped working.
    #[error("the netlink socket for links and addresses was closed")]
    Closed,
    /// The kernel refused a change.
    #[error("cannot {action}: {source}")]
    Change {
        action: String,
        /// The kernel's answer.
        source: rtnetlink::Error,
    },
    #[error("there is no interface {0} in this network namespace")]
    Missing(InterfaceName),
}

impl LinkError {
    /// A closed set of words for metric labels.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Open(_) => "Open",
            Self::Read { .. } => "Read",
            Self::Closed => "Closed",
            Self::Change { .. } => "Change",
            Self::Missing(_) => "Missing",
        }
    }
}

/// Follows one link. Nothing is followed unless [`Links::run`] is polled.
#[derive(Debug)]
pub struct Links {
    interface: InterfaceName,
    state: watch::Sender<LinkState>,
}

impl Links {
    /// Reads the link's state in the calling thread's network namespace and prepares to follow it.
    ///
    /// The receiver starts with the state as read. Changes between here and the first poll of [`Links::run`] are not
    /// lost: the state is read again there.
    pub async fn watch(interface: InterfaceName) -> Result<(Self, watch::Receiver<LinkState>), LinkError> {
        let first = with_handle(async |handle| state_of(handle, &interface).await).await?.1;
        let (state, receiver) = watch::channel(first);
        Ok((Self { interface, state }, receiver))
    }

    /// Follows the link until no receiver is left. Errors are logged and outlived: the last state stands meanwhile.
    pub async fn run(self) {
        loop {
            tokio::select! {
                () = self.state.closed() => return,
                Err(error) = self.follow() => {
                    tracing::warn!(interface = %self.interface, reason = error.reason(), %error, "lost link notifications; reading links again");
                }
            }
            tokio::time::sleep(REOPEN).await;
        }
    }

    /// Subscribes, reads, and reads again after each burst of notifications that may concern the link. Only ever fails.
    async fn follow(&self) -> Result<std::convert::Infallible, LinkError> {
        let groups = [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
        let (connection, _asks_nothing, mut events) = rtnetlink::new_multicast_connection(&groups).map_err(LinkError::Open)?;
        let reading = with_handle(async |handle| {
            let mut index = self.publish(handle).await?;
            while let Some((first, _)) = events.next().await {
                let mut concerned = concerns(&first, &self.interface, index);
                while let Some(Some((more, _))) = events.next().now_or_never() {
                    concerned |= concerns(&more, &self.interface, index);
                }
                if concerned {
                    index = self.publish(handle).await?;
                }
            }
            Err(LinkError::Closed)
        });
        tokio::select! {
            () = connection => Err(LinkError::Closed),
            result = reading => result,
        }
    }

    /// Reads the link and publishes what is new; returns the link's index.
    async fn publish(&self, handle: &Handle) -> Result<Option<u32>, LinkError> {
        let (index, read) = state_of(handle, &self.interface).await?;
        self.state.send_if_modified(|state| {
            let differs = *state != read;
            *state = read;
            differs
        });
        Ok(index)
    }
}

/// The addresses by which the cluster reaches this Pod, where nobody told them (`POD_IPS` is unset).
///
/// Of each family the first usable address of the first link, in index order, that is neither a loopback nor the tailnet's.
pub async fn pod_addresses(tailnet: &InterfaceName) -> Result<BTreeSet<IpAddr>, LinkError> {
    with_handle(async |handle| {
        let read = |source| LinkError::Read { what: "the links", source };
        let links: Vec<LinkMessage> = handle.link().get().execute().try_collect().await.map_err(read)?;
        let foreign = |link: &&LinkMessage| {
            link.header.flags.contains(LinkFlags::Loopback) || name_of(link).is_some_and(|name| name == tailnet.as_str())
        };
        let foreign: BTreeSet<u32> = links.iter().filter(foreign).map(|link| link.header.index).collect();
        let mut addresses = addresses(handle).await?;
        addresses.retain(|message| !foreign.contains(&message.header.index));
        addresses.sort_by_key(|message| message.header.index);
        let mut found = BTreeMap::new();
        for address in addresses.iter().filter_map(usable) {
            found.entry(Family::of(address)).or_insert(address);
        }
        Ok(found.into_values().collect())
    })
    .await
}

/// Asks questions on a socket of their own, so that no burst of notifications can crowd out an answer.
async fn with_handle<T>(work: impl AsyncFnOnce(&Handle) -> Result<T, LinkError>) -> Result<T, LinkError> {
    let (connection, handle, _no_events) = rtnetlink::new_connection().map_err(LinkError::Open)?;
    tokio::select! {
        result = work(&handle) => result,
        () = connection => Err(LinkError::Closed),
    }
}

/// The link's index, if it exists, and its state.
async fn state_of(handle: &Handle, interface: &InterfaceName) -> Result<(Option<u32>, LinkState), LinkError> {
    let Some(link) = link_named(handle, interface).await? else { return Ok((None, LinkState::default())) };
    let index = link.header.index;
    let mtu = link.attributes.iter().find_map(|attribute| if let LinkAttribute::Mtu(mtu) = attribute { Some(*mtu) } else { None });
    let own = addresses(handle).await?;
    let state = LinkState {
        present: true,
        up: link.header.flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
        mtu: mtu.unwrap_or_default(),
        addresses: own.iter().filter(|message| message.header.index == index).filter_map(usable).collect(),
    };
    Ok((Some(index), state))
}

async fn link_named(handle: &Handle, interface: &InterfaceName) -> Result<Option<LinkMessage>, LinkError> {
    let answer = handle.link().get().match_name(interface.as_str()).execute().boxed().try_next().await;
    match answer {
        Err(rtnetlink::Error::NetlinkError(fault)) if fault.raw_code() == -(nix::errno::Errno::ENODEV as i32) => Ok(None),
        answer => answer.map_err(|source| LinkError::Read { what: "a link", source }),
    }
}

async fn addresses(handle: &Handle) -> Result<Vec<AddressMessage>, LinkError> {
    let read = |source| LinkError::Read { what: "the addresses", source };
    handle.address().get().execute().try_collect().await.map_err(read)
}

fn name_of(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|attribute| if let LinkAttribute::IfName(name) = attribute { Some(name.as_str()) } else { None })
}

/// The address of a message, unless it is link-local, tentative or a duplicate. On a point-to-point link the local end counts.
fn usable(message: &AddressMessage) -> Option<IpAddr> {
    let long = |attribute: &AddressAttribute| if let AddressAttribute::Flags(flags) = attribute { Some(*flags) } else { None };
    let unproven = AddressFlags::Tentative | AddressFlags::Dadfailed;
    let short = AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed;
    let doubtful =
        message.attributes.iter().find_map(long).map_or(message.header.flags.intersects(short), |flags| flags.intersects(unproven));
    if doubtful || !matches!(message.header.scope, AddressScope::Universe | AddressScope::Site) {
        return None;
    }
    let local = |attribute: &AddressAttribute| if let AddressAttribute::Local(ip) = attribute { Some(*ip) } else { None };
    let remote = |attribute: &AddressAttribute| if let AddressAttribute::Address(ip) = attribute { Some(*ip) } else { None };
    let ip = message.attributes.iter().find_map(local).or_else(|| message.attributes.iter().find_map(remote));
    // An IPv4 link-local address is given with any scope; IPv6 ones have theirs from the kernel.
    ip.filter(|ip| !matches!(ip, IpAddr::V4(ip) if ip.is_link_local()))
}

/// Whether a notification may have changed the link's state. One that tells of lost ones always may.
fn concerns(message: &NetlinkMessage<RouteNetlinkMessage>, interface: &InterfaceName, index: Option<u32>) -> bool {
    use RouteNetlinkMessage::{DelAddress, DelLink, NewAddress, NewLink};
    match &message.payload {
        NetlinkPayload::InnerMessage(NewLink(link) | DelLink(link)) => {
            Some(link.header.index) == index || name_of(link).is_some_and(|name| name == interface.as_str())
        }
        NetlinkPayload::InnerMessage(NewAddress(address) | DelAddress(address)) => Some(address.header.index) == index,
        _ => true,
    }
}
