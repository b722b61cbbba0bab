//! Netlink messages of `nf_tables`: element changes, dumps, generations, notifications.
//!
//! Formats: the kernel's headers `nfnetlink.h` and `nf_tables.h`. Encoding writes what the kernel of any architecture reads (headers
//! in host order, `nf_tables` numbers in network order); decoding is total: bytes that are cut short or make no sense are left out,
//! never a panic. No sockets here.

use std::net::{IpAddr, SocketAddr};

use super::TABLE;
use super::element::{Edits, Element, ElementKey, Set, Value};
use crate::model::base::net::{Port, PortKey, Proto};
use crate::model::firewall::netlink::{
    ACK, Attributes, CREATE, DUMP, FAMILY_INET, FAMILY_UNSPEC, Header, NETFILTER_HEADER, REQUEST, find, message, nest, put, request,
};

/// The multicast group of changes to nftables (`NFNLGRP_NFTABLES`).
pub const NOTICES: u32 = 7;

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const GET_TABLE: u16 = 1;
const GET_CHAIN: u16 = 4;
const GET_RULE: u16 = 7;
const NEW_ELEMENT: u16 = 12;
const GET_ELEMENT: u16 = 13;
const DELETE_ELEMENT: u16 = 14;
const NEW_GENERATION: u16 = 15;
const GET_GENERATION: u16 = 16;

/// Attributes of tables, chains, rules and element lists: the table's name is the first of all.
const TABLE_NAME: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
const LIST_ITEM: u16 = 1;
const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
/// The expression of an element that has one.
const ELEMENT_EXPRESSION: u16 = 7;
/// The expressions of an element that has several.
const ELEMENT_EXPRESSIONS: u16 = 11;
const DATA_VALUE: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const COUNTER_BYTES: u16 = 1;
const COUNTER_PACKETS: u16 = 2;
const GENERATION_ID: u16 = 1;

/// An attribute's length is 16 bits; half of that leaves room for whatever surrounds a list.
const LIST_BYTES: usize = 0x7fff;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Elements of a set; an answer to [`dump`].
    Elements(Vec<Counted>),
    /// Number of the last transaction in this network namespace; in a notification also the netlink port of its sender.
    Generation { id: u32, port: u32 },
    /// Another object of `nf_tables`, a chain or rule of a dump or a notification: message type and raw attributes.
    Object { table: Vec<u8>, body: Vec<u8> },
}

/// A received element.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counted {
    pub key: Vec<u8>,
    /// Bytes of the value; empty in a set.
    pub value: Vec<u8>,
    pub packets: u64,
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dump {
    /// The elements of a set of our table.
    Elements(Set),
    /// All `inet` tables.
    Tables,
    /// The chains of all `inet` tables.
    Chains,
    /// The rules of our table.
    Rules,
}

/// An encoded transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Messages for one datagram.
    pub bytes: Vec<u8>,
    /// Sequence number of the first message, used for errors of the whole batch.
    pub first: u32,
    /// Sequence number of the last message, whose outcome comes last.
    pub last: u32,
}

/// Encodes a change of elements as one transaction: deletions first.
pub fn batch(edits: &Edits, sequence: u32) -> Batch {
    let mut bytes = Vec::with_capacity(64 + 80 * (edits.delete.len() + edits.add.len()));
    let bound = |kind, sequence| Header { kind, flags: REQUEST, family: FAMILY_UNSPEC, resource: SUBSYSTEM, sequence };
    message(&mut bytes, bound(BATCH_BEGIN, sequence), |_| ());
    let mut last = sequence;
    let mut start = 0;
    for (kind, flags, list) in [(DELETE_ELEMENT, 0, &edits.delete), (NEW_ELEMENT, CREATE, &edits.add)] {
        let mut rest = &list[..];
        while let Some(first) = rest.first() {
            (last, start) = (last.wrapping_add(1), bytes.len());
            let mut taken = 0;
            message(&mut bytes, header(kind, flags, FAMILY_INET, last), |out| {
                put(out, TABLE_NAME, &text(TABLE));
                put(out, LIST_SET, &text(first.set.name()));
                let room = out.len() + LIST_BYTES;
                nest(out, LIST_ELEMENTS, |out| {
                    while let Some(next) = rest.get(taken).filter(|next| next.set == first.set && out.len() < room) {
                        element(out, next, kind == NEW_ELEMENT);
                        taken += 1;
                    }
                });
            });
            rest = rest.get(taken..).unwrap_or_default();
        }
    }
    acknowledge(&mut bytes, start);
    message(&mut bytes, bound(BATCH_END, last.wrapping_add(1)), |_| ());
    Batch { bytes, first: sequence, last }
}

/// Encodes a dump request.
pub fn dump(what: Dump, sequence: u32) -> Vec<u8> {
    let kind = match what {
        Dump::Elements(_) => GET_ELEMENT,
        Dump::Tables => GET_TABLE,
        Dump::Chains => GET_CHAIN,
        Dump::Rules => GET_RULE,
    };
    request(header(kind, DUMP, FAMILY_INET, sequence), |out| {
        if !matches!(what, Dump::Tables | Dump::Chains) {
            put(out, TABLE_NAME, &text(TABLE));
        }
        if let Dump::Elements(set) = what {
            put(out, LIST_SET, &text(set.name()));
        }
    })
}

/// Encodes a generation request.
pub fn generation(sequence: u32) -> Vec<u8> {
    request(header(GET_GENERATION, ACK, FAMILY_UNSPEC, sequence), |_| ())
}

fn header(kind: u16, flags: u16, family: u8, sequence: u32) -> Header {
    Header { kind: SUBSYSTEM << 8 | kind, flags: REQUEST | flags, family, resource: 0, sequence }
}

/// Decodes one message by its type, the netlink port in its header, and what follows the header; nothing if it is not of `nf_tables`.
pub fn decode(kind: u16, port: u32, payload: &[u8]) -> Option<Message> {
    (kind >> 8 == SUBSYSTEM).then(|| object(kind & 0xff, port, payload.get(NETFILTER_HEADER..).unwrap_or_default()))
}

fn object(kind: u16, port: u32, bytes: &[u8]) -> Message {
    if kind == NEW_GENERATION {
        let id = find(bytes, GENERATION_ID).and_then(|id| id.try_into().ok());
        return Message::Generation { id: id.map_or(0, u32::from_be_bytes), port };
    }
    if let Some(list) = find(bytes, LIST_ELEMENTS).filter(|_| kind == NEW_ELEMENT) {
        return Message::Elements(Attributes(list).map(|(_, element)| counted(element)).collect());
    }
    let name = find(bytes, TABLE_NAME).map(|name| name.strip_suffix(b"\0").unwrap_or(name).to_vec());
    let mut body = kind.to_be_bytes().to_vec();
    body.extend_from_slice(bytes);
    Message::Object { table: name.unwrap_or_default(), body }
}

fn counted(bytes: &[u8]) -> Counted {
    let mut element = Counted::default();
    let datum = |bytes| find(bytes, DATA_VALUE).map(<[u8]>::to_vec).unwrap_or_default();
    for (kind, bytes) in Attributes(bytes) {
        match kind {
            ELEMENT_KEY => element.key = datum(bytes),
            ELEMENT_DATA => element.value = datum(bytes),
            ELEMENT_EXPRESSION => counter(&mut element, bytes),
            ELEMENT_EXPRESSIONS => Attributes(bytes).for_each(|(_, expression)| counter(&mut element, expression)),
            _ => {}
        }
    }
    element
}

fn counter(element: &mut Counted, expression: &[u8]) {
    if find(expression, EXPRESSION_NAME) == Some(b"counter\0") {
        for (kind, number) in Attributes(find(expression, EXPRESSION_DATA).unwrap_or_default()) {
            let number = number.try_into().map_or(0, u64::from_be_bytes);
            match kind {
                COUNTER_BYTES => element.bytes = number,
                COUNTER_PACKETS => element.packets = number,
                _ => {}
            }
        }
    }
}

/// Bytes of an element's key: fields in network order, padded to four bytes; marks in host order.
pub fn key(element: &Element) -> Vec<u8> {
    let port = |key: &PortKey| {
        let [high, low] = key.port.get().to_be_bytes();
        vec![key.proto.number(), 0, 0, 0, high, low, 0, 0]
    };
    let slot = |mut bytes: Vec<u8>, slot: u32| {
        bytes.extend_from_slice(&slot.to_ne_bytes());
        bytes
    };
    match &element.key {
        ElementKey::Interface(name) => {
            let mut bytes = name.as_str().as_bytes().to_vec();
            bytes.resize(16, 0);
            bytes
        }
        ElementKey::Number(port) => port.get().to_be_bytes().to_vec(),
        ElementKey::Port(key) => port(key),
        ElementKey::PortSlot(key, mark) => slot(port(key), *mark),
        ElementKey::Socket(at) => socket(*at),
        ElementKey::Host(ip) => octets(*ip),
        ElementKey::HostSlot(ip, mark) => slot(octets(*ip), *mark),
    }
}

/// Bytes of an element's value, likewise; empty in a set.
pub fn value(element: &Element) -> Vec<u8> {
    match element.value {
        None => Vec::new(),
        Some(Value::Address(ip)) => octets(ip),
        Some(Value::Socket(to)) => socket(to),
    }
}

/// Match port of a traffic set's key.
pub fn match_port(set: Set, key: &[u8]) -> Option<PortKey> {
    let (proto, port) = match (set, key) {
        (Set::Traffic(proto), [high, low]) => (proto, [*high, *low]),
        (Set::Port(_) | Set::PortSlot(_), [number, _, _, _, high, low, ..]) => {
            (Proto::ALL.into_iter().find(|proto| proto.number() == *number)?, [*high, *low])
        }
        _ => return None,
    };
    Some(PortKey { proto, port: Port::new(u16::from_be_bytes(port))? })
}

fn element(out: &mut Vec<u8>, element: &Element, values: bool) {
    nest(out, LIST_ITEM, |out| {
        nest(out, ELEMENT_KEY, |out| put(out, DATA_VALUE, &key(element)));
        if values && element.value.is_some() {
            nest(out, ELEMENT_DATA, |out| put(out, DATA_VALUE, &value(element)));
        }
    });
}

fn socket(at: SocketAddr) -> Vec<u8> {
    let [high, low] = at.port().to_be_bytes();
    [octets(at.ip()), vec![high, low, 0, 0]].concat()
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn text(name: &str) -> Vec<u8> {
    [name.as_bytes(), b"\0"].concat()
}

/// Requests the outcome of the message that starts here.
fn acknowledge(out: &mut [u8], start: usize) {
    if let Some([low, high]) = out.get_mut(start + 6..start + 8) {
        [*low, *high] = (u16::from_ne_bytes([*low, *high]) | ACK).to_ne_bytes();
    }
}
