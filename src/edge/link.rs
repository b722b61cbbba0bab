//! Links and addresses of this network namespace, over rtnetlink.
//!
//! Notifications only signal *that* something changed; the state is then read again in full, and published if it differs. So a lost
//! notification (a full socket buffer) costs one more read and never a wrong state. A link may be deleted and recreated with another index.
//! Makes no decisions; the model interprets the state of a link.

pub mod build;
pub mod routing_rules;
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
use crate::runtime::watch_ext::put;

/// Pause before a failed notification socket is reopened.
const REOPEN_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkState {
    /// Whether a link of that name exists; if not, the other fields have no meaning.
    pub present: bool,
    /// Whether it is administratively up and has a carrier.
    pub up: bool,
    /// MTU in bytes.
    pub mtu: u32,
    /// Usable addresses: neither link-local nor tentative or failed in duplicate address detection.
    pub addresses: BTreeSet<IpAddr>,
}

/// Links could not be read, watched or created.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
pub enum LinkError {
    #[error("cannot open a netlink socket for links and addresses: {0}")]
    Open(#[source] io::Error),
    /// The kernel responded to a query with an error, or not at all.
    #[error("cannot read {what}: {source}")]
    Read { what: &'static str, source: rtnetlink::Error },
    #[error("the netlink socket for links and addresses was closed")]
    Closed,
    #[error("cannot {action}: {source}")]
    Change { action: String, source: rtnetlink::Error },
    #[error("there is no interface {0} in this network namespace")]
    Missing(InterfaceName),
}

impl LinkError {
    /// Closed set of values for metric labels.
    pub fn reason(&self) -> &'static str {
        self.into()
    }
}

/// Watcher of one link. Runs only while [`Links::run`] is polled.
#[derive(Debug)]
pub struct Links {
    interface: InterfaceName,
    state: watch::Sender<LinkState>,
}

impl Links {
    /// Reads the link's state in the calling thread's network namespace and prepares the watch.
    ///
    /// The receiver starts with this state. Changes between this call and the first poll of [`Links::run`] are not lost, as the state is
    /// read again there.
    pub async fn watch(interface: InterfaceName) -> Result<(Self, watch::Receiver<LinkState>), LinkError> {
        let first = with_handle(async |handle| state_of(handle, &interface).await).await?.1;
        let (state, receiver) = watch::channel(first);
        Ok((Self { interface, state }, receiver))
    }

    /// Watches the link until no receiver is left. Errors are logged and retried; meanwhile the last state remains published.
    pub async fn run(self) {
        loop {
            tokio::select! {
                () = self.state.closed() => return,
                Err(error) = self.follow() => {
                    tracing::warn!(interface = %self.interface, reason = error.reason(), %error, "lost link notifications; reading links again");
                }
            }
            tokio::time::sleep(REOPEN_DELAY).await;
        }
    }

    /// Subscribes, reads, and reads again after each burst of notifications that may affect the link. Returns only on errors.
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

    /// Reads the link and publishes a difference; returns the link's index.
    async fn publish(&self, handle: &Handle) -> Result<Option<u32>, LinkError> {
        let (index, read) = state_of(handle, &self.interface).await?;
        put(&self.state, read);
        Ok(index)
    }
}

/// Pod addresses in the cluster network, for use without `POD_IPS`.
///
/// For each family the first usable address of the first link in index order, without loopback and tailnet links.
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

/// Runs requests on a dedicated socket, so that a burst of notifications cannot displace a response.
async fn with_handle<T>(work: impl AsyncFnOnce(&Handle) -> Result<T, LinkError>) -> Result<T, LinkError> {
    let (connection, handle, _no_events) = rtnetlink::new_connection().map_err(LinkError::Open)?;
    tokio::select! {
        result = work(&handle) => result,
        () = connection => Err(LinkError::Closed),
    }
}

/// Index of the link, if it exists, and its state.
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

/// Address of a message, unless it is link-local, tentative or a duplicate. For a point-to-point link it is the local address.
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
    // An IPv4 link-local address may have any scope; for IPv6 ones the kernel sets the scope.
    ip.filter(|ip| !matches!(ip, IpAddr::V4(ip) if ip.is_link_local()))
}

/// Whether a notification may affect the link's state. A report of lost notifications always may.
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
