//! Creates links, addresses and routes for the demo, the benchmarks and the kernel tests.
//!
//! Works in the calling thread's network namespace and changes no other, except to put the far end of a pair into it. The data plane does
//! not use this module.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use ipnet::IpNet;
use netlink_packet_route::address::{AddressAttribute, AddressFlags};
use netlink_packet_route::link::{InfoData, InfoVeth, LinkMessage};
use rtnetlink::{Handle, LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};

use super::{LinkError, link_named, with_handle};
use crate::model::base::net::{Family, InterfaceName};

/// Changes the links of one network namespace.
#[derive(Debug)]
pub struct Build<'h>(&'h Handle);

/// Runs work in the calling thread's network namespace.
pub async fn build<T>(work: impl AsyncFnOnce(&Build<'_>) -> Result<T, LinkError>) -> Result<T, LinkError> {
    with_handle(async |handle| work(&Build(handle)).await).await
}

impl Build<'_> {
    /// Creates a veth pair, `near` here and `far` in the namespace of the open file `there`. Both are down.
    pub async fn veth(&self, near: &InterfaceName, far: &InterfaceName, there: &impl AsFd) -> Result<(), LinkError> {
        let mut peer = LinkMessageBuilder::<LinkUnspec>::new().name(far.as_str()).build();
        peer.attributes.push(netlink_packet_route::link::LinkAttribute::NetNsFd(there.as_fd().as_raw_fd()));
        let pair = LinkVeth::new(near.as_str(), far.as_str()).set_info_data(InfoData::Veth(InfoVeth::Peer(peer))).build();
        self.add(pair, format!("make the pair {near} and {far}")).await
    }

    /// Creates a bridge, down and without ports.
    pub async fn bridge(&self, name: &InterfaceName) -> Result<(), LinkError> {
        self.add(LinkBridge::new(name.as_str()).build(), format!("make the bridge {name}")).await
    }

    /// Attaches a link to a bridge as a port.
    pub async fn attach(&self, port: &InterfaceName, bridge: &InterfaceName) -> Result<(), LinkError> {
        let bridge_index = self.index(bridge).await?;
        let link = LinkUnspec::new_with_index(self.index(port).await?).controller(bridge_index).build();
        self.set(link, format!("attach {port} to {bridge}")).await
    }

    pub async fn up(&self, name: &InterfaceName) -> Result<(), LinkError> {
        let link = LinkUnspec::new_with_index(self.index(name).await?).up().build();
        self.set(link, format!("set {name} up")).await
    }

    /// Sets the MTU of a link, in bytes.
    pub async fn mtu(&self, name: &InterfaceName, mtu: u32) -> Result<(), LinkError> {
        let link = LinkUnspec::new_with_index(self.index(name).await?).mtu(mtu).build();
        self.set(link, format!("set the MTU of {name} to {mtu}")).await
    }

    /// Adds an address with its prefix length to a link. It is usable at once, without duplicate address detection.
    pub async fn address(&self, name: &InterfaceName, address: IpNet) -> Result<(), LinkError> {
        let mut request = self.0.address().add(self.index(name).await?, address.addr(), address.prefix_len());
        if Family::of(address.addr()) == Family::V6 {
            request.message_mut().attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        request.execute().await.map_err(|source| LinkError::Change { action: format!("give {name} the address {address}"), source })
    }

    /// Adds a route to a destination through a gateway; prefix length 0 is the default route of its family.
    pub async fn route(&self, destination: IpNet, gateway: IpAddr) -> Result<(), LinkError> {
        let action = format!("route {destination} by {gateway}");
        let malformed = |_| rtnetlink::Error::InvalidNla(format!("{destination} and {gateway} are of different families"));
        let message = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(destination.network(), destination.prefix_len())
            .and_then(|route| route.gateway(gateway))
            .map_err(malformed);
        let added = match message {
            Ok(route) => self.0.route().add(route.build()).execute().await,
            Err(malformed) => Err(malformed),
        };
        added.map_err(|source| LinkError::Change { action, source })
    }

    async fn index(&self, name: &InterfaceName) -> Result<u32, LinkError> {
        link_named(self.0, name).await?.map(|link| link.header.index).ok_or_else(|| LinkError::Missing(name.clone()))
    }

    async fn add(&self, link: LinkMessage, action: String) -> Result<(), LinkError> {
        self.0.link().add(link).execute().await.map_err(|source| LinkError::Change { action, source })
    }

    async fn set(&self, link: LinkMessage, action: String) -> Result<(), LinkError> {
        self.0.link().set(link).execute().await.map_err(|source| LinkError::Change { action, source })
    }
}
