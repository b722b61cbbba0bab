//! ctnetlink messages (`linux/netfilter/nfnetlink_conntrack.h`): encodes requests, parses flows and counters.
//!
//! Parsing is one pass over the bytes without an allocation for each attribute, as a dump has thousands of flows. It is total: any input
//! gives a flow or none.

use std::net::{IpAddr, SocketAddr};

use super::Pressure;
use crate::model::base::net::Family;
use crate::model::firewall::netlink::{
    ACK, Attributes, DUMP, FAMILY_IPV4, FAMILY_IPV6, FAMILY_UNSPEC, Header, REQUEST, find, nest, put, request,
};
use crate::model::flows::flow::{DST_NAT, Flow, FlowFilter, TcpState, Tuple};

/// Conntrack subsystem of nfnetlink.
const SUBSYSTEM: u16 = 1 << 8;
const GET: u16 = 1;
const DELETE: u16 = 2;
const GET_STATS_CPU: u16 = 4;
const GET_STATS: u16 = 5;

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

const STATS_GLOBAL_ENTRIES: u16 = 1;
const STATS_GLOBAL_MAX_ENTRIES: u16 = 2;
const STATS_INSERT_FAILED: u16 = 9;
const STATS_DROP: u16 = 10;
const STATS_EARLY_DROP: u16 = 11;

const FILTER_ORIG_FLAGS: u16 = 1;
const FILTER_PROTO: u32 = 1 << 3;
const FILTER_DESTINATION: u32 = 1 << 5;

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// Requests all flows that match the filter; kernels before 5.8 return more. A filter by key needs a family.
pub(super) fn dump(filter: FlowFilter, sequence: u32) -> Vec<u8> {
    let family = filter.family.map_or(FAMILY_UNSPEC, number);
    request(header(family, GET, DUMP, sequence), |out| {
        if filter.forwarded {
            put(out, STATUS, &DST_NAT.to_be_bytes());
            put(out, STATUS_MASK, &DST_NAT.to_be_bytes());
        }
        if let Some(key) = filter.key {
            nest(out, TUPLE_ORIG, |out| {
                nest(out, TUPLE_PROTO, |out| {
                    put(out, PROTO_NUMBER, &[key.proto.number()]);
                    put(out, PROTO_DESTINATION, &key.port.get().to_be_bytes());
                });
            });
            nest(out, FILTER, |out| put(out, FILTER_ORIG_FLAGS, &(FILTER_PROTO | FILTER_DESTINATION).to_ne_bytes()));
        }
    })
}

/// Requests the deletion of the entry with both this ID and this reply tuple.
///
/// The ID alone may recur for a newer entry of the same client at the same memory address; the reply tuple also contains the target.
pub(super) fn delete(flow: &Flow, sequence: u32) -> Vec<u8> {
    request(header(number(Family::of(flow.target().ip())), DELETE, ACK, sequence), |out| {
        nest(out, TUPLE_REPLY, |out| tuple(out, flow.proto, &flow.reply));
        put(out, ID, &flow.id.to_be_bytes());
    })
}

/// Requests the number of entries and their limit.
pub(super) fn get_stats(sequence: u32) -> Vec<u8> {
    // The kernel marks its single response as multipart and sends no end message: the acknowledgment is the end.
    request(header(FAMILY_UNSPEC, GET_STATS, ACK, sequence), |_| ())
}

/// Requests the counters of each CPU.
pub(super) fn get_stats_cpu(sequence: u32) -> Vec<u8> {
    request(header(FAMILY_UNSPEC, GET_STATS_CPU, DUMP, sequence), |_| ())
}

fn header(family: u8, kind: u16, flags: u16, sequence: u32) -> Header {
    Header { kind: SUBSYSTEM | kind, flags: REQUEST | flags, family, resource: 0, sequence }
}

fn number(family: Family) -> u8 {
    match family {
        Family::V4 => FAMILY_IPV4,
        Family::V6 => FAMILY_IPV6,
    }
}

/// Attributes for ID, type and code of ICMP, which has no ports.
fn icmp_kinds(proto: u8) -> Option<[u16; 3]> {
    match proto {
        ICMP => Some([4, 5, 6]),
        ICMPV6 => Some([7, 8, 9]),
        _ => None,
    }
}

fn tuple(out: &mut Vec<u8>, proto: u8, tuple: &Tuple) {
    let (source, destination) = (tuple.source, tuple.destination);
    let address = |out: &mut Vec<u8>, ip, four, six| match ip {
        IpAddr::V4(ip) => put(out, four, &ip.octets()),
        IpAddr::V6(ip) => put(out, six, &ip.octets()),
    };
    nest(out, TUPLE_IP, |out| {
        address(out, source.ip(), IP4_SOURCE, IP6_SOURCE);
        address(out, destination.ip(), IP4_DESTINATION, IP6_DESTINATION);
    });
    nest(out, TUPLE_PROTO, |out| {
        put(out, PROTO_NUMBER, &[proto]);
        if let Some([id, kind, code]) = icmp_kinds(proto) {
            let [kind_value, code_value] = destination.port().to_be_bytes();
            put(out, id, &source.port().to_be_bytes());
            put(out, kind, &[kind_value]);
            put(out, code, &[code_value]);
        } else if source.port() != 0 || destination.port() != 0 {
            put(out, PROTO_SOURCE, &source.port().to_be_bytes());
            put(out, PROTO_DESTINATION, &destination.port().to_be_bytes());
        }
    });
}

/// Parses a flow from the attributes of a message; `None` without two complete tuples, or for a flow in a conntrack zone (not ours).
pub fn parse_flow(bytes: &[u8]) -> Option<Flow> {
    let (mut original, mut reply) = (None, None);
    let (mut status, mut mark, mut timeout, mut id, mut tcp) = (0, 0, 0, 0, None);
    for (kind, value) in Attributes(bytes) {
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

/// Parses only the TCP state of a flow.
pub fn parse_state(bytes: &[u8]) -> Option<TcpState> {
    find(bytes, PROTOINFO).and_then(parse_tcp_state)
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

/// Parses the table's size and limit into `pressure`.
pub fn parse_stats(bytes: &[u8], pressure: &mut Pressure) {
    for (kind, value) in Attributes(bytes) {
        match (kind, be_u32(value)) {
            (STATS_GLOBAL_ENTRIES, Some(entries)) => pressure.entries = entries,
            (STATS_GLOBAL_MAX_ENTRIES, Some(limit)) => pressure.limit = limit,
            _ => {}
        }
    }
}

/// Adds the counters of one CPU to `pressure`.
pub fn parse_stats_cpu(bytes: &[u8], pressure: &mut Pressure) {
    for (kind, value) in Attributes(bytes) {
        let count = be_u32(value).map_or(0, u64::from);
        match kind {
            STATS_INSERT_FAILED => pressure.insert_failed += count,
            STATS_DROP => pressure.dropped += count,
            STATS_EARLY_DROP => pressure.evicted += count,
            _ => {}
        }
    }
}

fn be_u32(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests;
