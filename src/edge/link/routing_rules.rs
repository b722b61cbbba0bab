//! Routing rules of this network namespace.

use std::collections::BTreeSet;

use futures_util::TryStreamExt;
use ipnet::IpNet;
use netlink_packet_route::route::RouteHeader;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use nix::errno::Errno;
use rtnetlink::{Handle, IpVersion};

use super::{LinkError, with_handle};
use crate::model::base::net::Family;
use crate::model::firewall::routing::{PRIORITY, RoutingRule};

/// Makes the rules of our priority equal to these: adds, then deletes. A family without routing rules in the kernel is skipped; tailscaled
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
                deleted.map_err(|source| LinkError::Change { action: format!("delete a routing rule of priority {PRIORITY}"), source })?;
            }
        }
        Ok(())
    })
    .await
}

/// Rules of our priority; `None` if the kernel has no rules for the family.
async fn existing(handle: &Handle, family: Family) -> Result<Option<Vec<RuleMessage>>, LinkError> {
    let version = if family == Family::V4 { IpVersion::V4 } else { IpVersion::V6 };
    let unsupported = [Errno::EAFNOSUPPORT, Errno::EOPNOTSUPP].map(|errno| -(errno as i32));
    let is_ours = |message: &RuleMessage| message.attributes.contains(&RuleAttribute::Priority(PRIORITY));
    match handle.rule().get(version).execute().try_collect::<Vec<_>>().await {
        Ok(all) => Ok(Some(all.into_iter().filter(is_ours).collect())),
        Err(rtnetlink::Error::NetlinkError(fault)) if unsupported.contains(&fault.raw_code()) => Ok(None),
        Err(source) => Err(LinkError::Read { what: "the routing rules", source }),
    }
}

/// The rule of a message; `None` if it selects the packets by something else, or another table.
fn parse(message: &RuleMessage, family: Family) -> Option<RoutingRule> {
    let (mut from, mut to) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Iifname(name) => from = Some(name.clone()),
            RuleAttribute::Destination(ip) => to = Some(IpNet::new(*ip, message.header.dst_len).ok()?),
            RuleAttribute::Source(_) | RuleAttribute::Oifname(_) | RuleAttribute::FwMark(_) | RuleAttribute::Goto(_) => return None,
            _ => {}
        }
    }
    let is_main = message.header.table == RouteHeader::RT_TABLE_MAIN && message.header.action == RuleAction::ToTable;
    Some(RoutingRule { family, from: from?, to }).filter(|_| is_main)
}

async fn add(handle: &Handle, rule: &RoutingRule) -> Result<(), LinkError> {
    let request = handle.rule().add().input_interface(&*rule.from).action(RuleAction::ToTable).priority(PRIORITY);
    let added = match (rule.family, rule.to) {
        (_, Some(IpNet::V4(net))) => request.v4().destination_prefix(net.network(), net.prefix_len()).execute().await,
        (_, Some(IpNet::V6(net))) => request.v6().destination_prefix(net.network(), net.prefix_len()).execute().await,
        (Family::V4, None) => request.v4().execute().await,
        (Family::V6, None) => request.v6().execute().await,
    };
    let to = rule.to.map(|net| format!(" to {net}")).unwrap_or_default();
    added.map_err(|source| LinkError::Change { action: format!("add the routing rule from {}{to}", rule.from), source })
}
