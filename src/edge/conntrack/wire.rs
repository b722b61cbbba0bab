//! ctnetlink's messages (`linux/netfilter/nfnetlink_conntrack.h`): requests written, flows and counters read.
//!
//! Reading is one pass over the bytes without an allocation for each attribute, as a dump has thousands of flows, and total:
//! whatever the bytes, there is a flow or there is none.

use std::net::{IpAddr, SocketAddr};

use netlink_packet_core::{
    DefaultNla, Emitable, NLA_F_NESTED, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload, NlasIterator,
};
use netlink_packet_netfilter::conntrack::ConntrackMessage;
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage, NetfilterProtoFamily};

use super::Pressure;
use crate::model::flow::{DST_NAT, Flow, FlowFilter, TcpState, Tuple};
use crate::model::net::Family;

/// The length of `struct nfgenmsg`, which goes before the attributes.
pub const HEADER: usize = 4;

const GET: u8 = 1;
const DELETE: u8 = 2;
const GET_STATS_CPU: u8 = 4;
const GET_STATS: u8 = 5;

const TUPLE_ORIG: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const STATUS: u16 = 3;
const PROTOINFO: u16 = 4;
const TIMEOUT: u16 = 7;
const MARK: u16 = 8;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
const STATUS_MASK: u16 = 26;

const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
const IP4_SOURCE: u16 = 1;
const IP4_DESTINATION: u16 = 2;
const IP6_SOURCE: u16 = 3;
const IP6_DESTINATION: u16 = 4;
const PROTO_NUMBER: u16 = 1;
const PROTO_SOURCE: u16 = 2;
const PROTO_DESTINATION: u16 = 3;
const PROTOINFO_TCP: u16 = 1;
const PROTOINFO_TCP_STATE: u16 = 1;

const FILTER_ORIG_FLAGS: u16 = 1;
const FILTER_PROTO: u32 = 1 << 3;
const FILTER_DESTINATION: u32 = 1 << 5;

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// Asks for every flow that the filter admits; kernels before 5.8 send more. A filter by key needs a family.
pub(super) fn dump(filter: FlowFilter, sequence: u32) -> Vec<u8> {
    let mut attributes = Vec::new();
    if filter.forwarded {
        attributes.push(leaf(STATUS, &DST_NAT.to_be_bytes()));
        attributes.push(leaf(STATUS_MASK, &DST_NAT.to_be_bytes()));
    }
    if let Some(key) = filter.key {
        let parts = [leaf(PROTO_NUMBER, &[key.proto.number()]), leaf(PROTO_DESTINATION, &key.port.get().to_be_bytes())];
        attributes.push(nest(TUPLE_ORIG, &[nest(TUPLE_PROTO, &parts)]));
        attributes.push(nest(FILTER, &[leaf(FILTER_ORIG_FLAGS, &(FILTER_PROTO | FILTER_DESTINATION).to_ne_bytes())]));
    }
    let family = filter.family.map_or(NetfilterProtoFamily::Unspec, number);
    request(family, GET, attributes, NLM_F_REQUEST | NLM_F_DUMP, sequence)
}

/// Asks to delete one entry: the one that has both this identity and this way back.
///
/// The identity alone can come again with a younger entry of the same client at the same place of memory; the way back
/// names the target as well.
pub(super) fn delete(flow: &Flow, sequence: u32) -> Vec<u8> {
    let attributes = vec![nest(TUPLE_REPLY, &tuple(flow.proto, &flow.reply)), leaf(ID, &flow.id.to_be_bytes())];
    request(number(Family::of(flow.target().ip())), DELETE, attributes, NLM_F_REQUEST | NLM_F_ACK, sequence)
}

/// Asks how many entries there are and may be.
pub(super) fn get_stats(sequence: u32) -> Vec<u8> {
    // The kernel marks its one answer as one of several and sends no end mark: the acknowledgment stands for it.
    request(NetfilterProtoFamily::Unspec, GET_STATS, Vec::new(), NLM_F_REQUEST | NLM_F_ACK, sequence)
}

/// Asks for each processor's counters.
pub(super) fn get_stats_cpu(sequence: u32) -> Vec<u8> {
    request(NetfilterProtoFamily::Unspec, GET_STATS_CPU, Vec::new(), NLM_F_REQUEST | NLM_F_DUMP, sequence)
}

fn request(family: NetfilterProtoFamily, message_type: u8, attributes: Vec<DefaultNla>, flags: u16, sequence: u32) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    header.sequence_number = sequence;
    // The crate's typed attributes drop the flag of nested ones that they do not know, and the kernel insists on it in a filter.
    let body = ConntrackMessage::Other { message_type, attributes };
    let body = NetfilterMessage::new(NetfilterHeader::new(family, 0, 0), body);
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(body));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn number(family: Family) -> NetfilterProtoFamily {
    match family {
        Family::V4 => NetfilterProtoFamily::IPv4,
        Family::V6 => NetfilterProtoFamily::IPv6,
    }
}

fn leaf(kind: u16, value: &[u8]) -> DefaultNla {
    DefaultNla::new(kind, value.to_vec())
}

fn nest(kind: u16, parts: &[DefaultNla]) -> DefaultNla {
    let mut value = vec![0; parts.buffer_len()];
    parts.emit(&mut value);
    DefaultNla::new(kind | NLA_F_NESTED, value)
}

/// Where a protocol keeps its identifier, type and code instead of ports.
fn icmp_kinds(proto: u8) -> Option<[u16; 3]> {
    match proto {
        ICMP => Some([4, 5, 6]),
        ICMPV6 => Some([7, 8, 9]),
        _ => None,
    }
}

fn tuple(proto: u8, tuple: &Tuple) -> [DefaultNla; 2] {
    let (source, destination) = (tuple.source, tuple.destination);
    let mut parts = vec![leaf(PROTO_NUMBER, &[proto])];
    if let Some([id, kind, code]) = icmp_kinds(proto) {
        let [kind_value, code_value] = destination.port().to_be_bytes();
        parts.extend([leaf(id, &source.port().to_be_bytes()), leaf(kind, &[kind_value]), leaf(code, &[code_value])]);
    } else if source.port() != 0 || destination.port() != 0 {
        parts.extend([leaf(PROTO_SOURCE, &source.port().to_be_bytes()), leaf(PROTO_DESTINATION, &destination.port().to_be_bytes())]);
    }
    let address = |ip, four, six| match ip {
        IpAddr::V4(ip) => leaf(four, &ip.octets()),
        IpAddr::V6(ip) => leaf(six, &ip.octets()),
    };
    let addresses = [address(source.ip(), IP4_SOURCE, IP6_SOURCE), address(destination.ip(), IP4_DESTINATION, IP6_DESTINATION)];
    [nest(TUPLE_IP, &addresses), nest(TUPLE_PROTO, &parts)]
}

/// Reads a flow out of a message's attributes; nothing if it has no two whole tuples, or is of a zone (not of our making).
#[must_use]
pub fn parse_flow(bytes: &[u8]) -> Option<Flow> {
    let (mut original, mut reply) = (None, None);
    let (mut status, mut mark, mut timeout, mut id, mut tcp) = (0, 0, 0, 0, None);
    for (kind, value) in attributes(bytes) {
        match kind {
            TUPLE_ORIG => original = parse_tuple(value),
            TUPLE_REPLY => reply = parse_tuple(value),
            STATUS => status = be_u32(value)?,
            MARK => mark = be_u32(value)?,
            TIMEOUT => timeout = be_u32(value)?,
            ID => id = be_u32(value)?,
            ZONE => return None,
            PROTOINFO => tcp = parse_tcp_state(value),
            _ => {}
        }
    }
    let ((proto, original), (_, reply)) = (original?, reply?);
    Some(Flow { proto, original, reply, tcp, status, mark, timeout, id })
}

fn parse_tcp_state(bytes: &[u8]) -> Option<TcpState> {
    TcpState::of(*find(find(bytes, PROTOINFO_TCP)?, PROTOINFO_TCP_STATE)?.first()?)
}

fn parse_tuple(bytes: &[u8]) -> Option<(u8, Tuple)> {
    let (ip, proto) = (find(bytes, TUPLE_IP)?, find(bytes, TUPLE_PROTO)?);
    let address = |v4, v6| {
        let four = || find(ip, v4).and_then(|octets| <[u8; 4]>::try_from(octets).ok()).map(IpAddr::from);
        let six = || find(ip, v6).and_then(|octets| <[u8; 16]>::try_from(octets).ok()).map(IpAddr::from);
        four().or_else(six)
    };
    let port = |kind| find(proto, kind).and_then(|octets| <[u8; 2]>::try_from(octets).ok()).map_or(0, u16::from_be_bytes);
    let byte = |kind| find(proto, kind).and_then(|octets| octets.first().copied()).unwrap_or(0);
    let number = *find(proto, PROTO_NUMBER)?.first()?;
    let (from, to) = match icmp_kinds(number) {
        Some([id, kind, code]) => (port(id), u16::from_be_bytes([byte(kind), byte(code)])),
        None => (port(PROTO_SOURCE), port(PROTO_DESTINATION)),
    };
    let source = SocketAddr::new(address(IP4_SOURCE, IP6_SOURCE)?, from);
    let destination = SocketAddr::new(address(IP4_DESTINATION, IP6_DESTINATION)?, to);
    Some((number, Tuple { source, destination }))
}

/// Reads the table's size and limit into `pressure`.
pub fn parse_stats(bytes: &[u8], pressure: &mut Pressure) {
    for (kind, value) in attributes(bytes) {
        match (kind, be_u32(value)) {
            (1, Some(entries)) => pressure.entries = entries,
            (2, Some(limit)) => pressure.limit = limit,
            _ => {}
        }
    }
}

/// Adds one processor's counters to `pressure`.
pub fn parse_stats_cpu(bytes: &[u8], pressure: &mut Pressure) {
    for (kind, value) in attributes(bytes) {
        let count = be_u32(value).map_or(0, u64::from);
        match kind {
            9 => pressure.insert_failed += count,
            10 => pressure.dropped += count,
            11 => pressure.evicted += count,
            _ => {}
        }
    }
}

/// The attributes of a message or of a nested attribute, up to the first malformed one.
fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(Result::ok).filter_map(|attribute| {
        let length = usize::from(attribute.length());
        Some((attribute.kind(), attribute.into_inner().get(HEADER..length)?))
    })
}

fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

fn be_u32(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests;
