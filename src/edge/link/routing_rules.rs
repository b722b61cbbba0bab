//! Routing rules of this network namespace, and the route that shows that the tunnel is open.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt;
use ipnet::IpNet;
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use nix::errno::Errno;
use rtnetlink::{Handle, IpVersion, RouteMessageBuilder};

use super::{LinkError, link_named, with_handle};
use crate::model::base::net::{Family, InterfaceName};
use crate::model::firewall::routing::{PRIORITY, PacketSelector, RoutingRule, TUNNEL_PRIORITY, TUNNEL_TABLE};
use crate::model::firewall::ruleset::FALLBACK_MARK;

/// Makes the rules of our priorities equal to these: adds, then deletes. A family without routing rules in the kernel is skipped; tailscaled
/// has no table of its own there.
pub async fn sync(wanted: &BTreeSet<RoutingRule>) -> Result<(), LinkError> {
    with_handle(async |handle| {
        for family in Family::ALL {
            let Some(found) = existing(handle, family).await? else { continue };
            let mut missing: BTreeSet<_> = wanted.iter().filter(|rule| rule.family == family).cloned().collect();
            let (_, stale): (Vec<_>, Vec<_>) =
                found.into_iter().partition(|message| parse(message, family).is_some_and(|rule| missing.remove(&rule)));
            for rule in &missing {
                add(handle, rule).await?;
            }
            for message in stale {
                let deleted = handle.rule().del(message).execute().await;
                deleted.map_err(|source| LinkError::Change { action: "delete a stale routing rule".to_owned(), source })?;
            }
        }
        Ok(())
    })
    .await
}

/// Routes both families by an interface in [`TUNNEL_TABLE`], until the interface is deleted. A family that the interface does not have is
/// skipped: no target of it is reachable.
pub async fn open_tunnel(interface: &InterfaceName) -> Result<(), LinkError> {
    with_handle(async |handle| {
        let link = link_named(handle, interface).await?.ok_or_else(|| LinkError::Missing(interface.clone()))?;
        for family in Family::ALL {
            match handle.route().add(tunnel_route(family, link.header.index)).replace().execute().await {
                Err(rtnetlink::Error::NetlinkError(fault)) if is_absent_family(fault.raw_code()) => {}
                written => written.map_err(|source| LinkError::Change { action: format!("route by {interface}"), source })?,
            }
        }
        Ok(())
    })
    .await
}

fn tunnel_route(family: Family, index: u32) -> RouteMessage {
    let table = u32::from(TUNNEL_TABLE);
    match family {
        Family::V4 => RouteMessageBuilder::<Ipv4Addr>::new().table_id(table).output_interface(index).build(),
        Family::V6 => RouteMessageBuilder::<Ipv6Addr>::new().table_id(table).output_interface(index).build(),
    }
}

/// Whether the kernel or the interface does not have the family.
fn is_absent_family(code: i32) -> bool {
    [Errno::EAFNOSUPPORT, Errno::EOPNOTSUPP, Errno::ENODEV, Errno::EACCES].into_iter().any(|errno| code == -(errno as i32))
}

/// Rules of our priorities; `None` if the kernel has no rules for the family.
async fn existing(handle: &Handle, family: Family) -> Result<Option<Vec<RuleMessage>>, LinkError> {
    let version = if family == Family::V4 { IpVersion::V4 } else { IpVersion::V6 };
    let unsupported = [Errno::EAFNOSUPPORT, Errno::EOPNOTSUPP].map(|errno| -(errno as i32));
    let is_ours = |message: &RuleMessage| {
        [PRIORITY, TUNNEL_PRIORITY].into_iter().any(|priority| message.attributes.contains(&RuleAttribute::Priority(priority)))
    };
    match handle.rule().get(version).execute().try_collect::<Vec<_>>().await {
        Ok(all) => Ok(Some(all.into_iter().filter(is_ours).collect())),
        Err(rtnetlink::Error::NetlinkError(fault)) if unsupported.contains(&fault.raw_code()) => Ok(None),
        Err(source) => Err(LinkError::Read { what: "the routing rules", source }),
    }
}

/// The rule of a message; `None` if it selects the packets by something else, or another table.
fn parse(message: &RuleMessage, family: Family) -> Option<RoutingRule> {
    let (mut from, mut to, mut mark, mut mark_mask, mut priority) = (None, None, None, None, 0);
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Iifname(name) => from = Some(name.clone()),
            RuleAttribute::Destination(ip) => to = Some(IpNet::new(*ip, message.header.dst_len).ok()?),
            RuleAttribute::FwMark(found) => mark = Some(*found),
            RuleAttribute::FwMask(found) => mark_mask = Some(*found),
            RuleAttribute::Priority(found) => priority = *found,
            RuleAttribute::Source(_) | RuleAttribute::Oifname(_) | RuleAttribute::Goto(_) => return None,
            _ => {}
        }
    }
    let selector = match (from, to, mark.zip(mark_mask)) {
        (None, None, Some((FALLBACK_MARK, FALLBACK_MARK))) => PacketSelector::TunnelLookup,
        (Some(from), to, None) => PacketSelector::Arriving { from, to },
        _ => return None,
    };
    let is_in_place = (priority, message.header.table) == selector.place() && message.header.action == RuleAction::ToTable;
    Some(RoutingRule { family, selector }).filter(|_| is_in_place)
}

async fn add(handle: &Handle, RoutingRule { family, selector }: &RoutingRule) -> Result<(), LinkError> {
    let (priority, table) = selector.place();
    let mut request = handle.rule().add().action(RuleAction::ToTable).priority(priority).table_id(table.into());
    let (mut network, mut what) = (None, "that shows the tunnel".to_owned());
    match selector {
        PacketSelector::Arriving { from, to } => {
            (network, what) = (*to, format!("from {from}{}", to.map(|net| format!(" to {net}")).unwrap_or_default()));
            request = request.input_interface(&**from);
        }
        PacketSelector::TunnelLookup => {
            request = request.fw_mark(FALLBACK_MARK);
            request.message_mut().attributes.push(RuleAttribute::FwMask(FALLBACK_MARK));
        }
    }
    let added = match (family, network) {
        (_, Some(IpNet::V4(net))) => request.v4().destination_prefix(net.network(), net.prefix_len()).execute().await,
        (_, Some(IpNet::V6(net))) => request.v6().destination_prefix(net.network(), net.prefix_len()).execute().await,
        (Family::V4, None) => request.v4().execute().await,
        (Family::V6, None) => request.v6().execute().await,
    };
    added.map_err(|source| LinkError::Change { action: format!("add the routing rule {what}"), source })
}
