//! Netlink messages of `nf_tables`: element changes, dumps, generations, notifications.
//!
//! Formats: the kernel's headers `netlink.h`, `nfnetlink.h` and `nf_tables.h`. Headers are in host order, `nf_tables` numbers in network
//! order. Decoding is total: truncated or invalid bytes are an error or skipped, never a panic.

use std::net::IpAddr;

use super::TABLE;
use super::element::{Edits, Element, ElementKey, Set, Value};
use crate::model::base::net::{Port, PortKey, Proto};
use crate::model::firewall::nlattr::{Attributes, find, nest, put};

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

const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;
const CREATE: u16 = 0x400;

const FAMILY_UNSPEC: u8 = 0;
const FAMILY_INET: u8 = 1;
const HEADER: usize = 16;
/// Maximum size of a list: an attribute's length has 16 bits; the other half is for enclosing attributes.
const LIST_BYTES: usize = 0x7fff;

/// A message of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The end of a dump.
    Done,
    /// Outcome of a message of ours: zero, or the (positive) errno.
    Outcome(i32),
    /// Elements of a set, in response to [`dump`].
    Elements(Vec<Counted>),
    /// Number of the last transaction in this network namespace.
    Generation {
        id: u32,
        /// In a notification: netlink port of the transaction's sender.
        port: u32,
    },
    /// Another object of `nf_tables`: a chain or rule of a dump, or a notification.
    Object {
        table: Vec<u8>,
        /// Message type and raw attributes.
        body: Vec<u8>,
    },
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

/// Subject of a dump.
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

/// The bytes are not netlink messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the kernel's answer cannot be read: {0}")]
pub struct WireError(&'static str);

/// Encodes a change of elements as one transaction: deletions first.
#[must_use]
pub fn batch(edits: &Edits, sequence: u32) -> Batch {
    let mut bytes = Vec::with_capacity(64 + 80 * (edits.delete.len() + edits.add.len()));
    message(&mut bytes, BATCH_BEGIN, REQUEST, FAMILY_UNSPEC, SUBSYSTEM, sequence, |_| ());
    let mut last = sequence;
    let mut start = 0;
    for (kind, flags, list) in [(DELETE_ELEMENT, REQUEST, &edits.delete), (NEW_ELEMENT, REQUEST | CREATE, &edits.add)] {
        let mut rest = &list[..];
        while let Some(first) = rest.first() {
            (last, start) = (last.wrapping_add(1), bytes.len());
            let mut taken = 0;
            message(&mut bytes, SUBSYSTEM << 8 | kind, flags, FAMILY_INET, 0, last, |out| {
                put(out, 1, &text(TABLE));
                put(out, 2, &text(first.set.name()));
                let room = out.len() + LIST_BYTES;
                nest(out, 3, |out| {
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
    message(&mut bytes, BATCH_END, REQUEST, FAMILY_UNSPEC, SUBSYSTEM, last.wrapping_add(1), |_| ());
    Batch { bytes, first: sequence, last }
}

/// Encodes a dump request.
#[must_use]
pub fn dump(what: Dump, sequence: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let kind = match what {
        Dump::Elements(_) => GET_ELEMENT,
        Dump::Tables => GET_TABLE,
        Dump::Chains => GET_CHAIN,
        Dump::Rules => GET_RULE,
    };
    message(&mut bytes, SUBSYSTEM << 8 | kind, REQUEST | DUMP, FAMILY_INET, 0, sequence, |out| {
        if !matches!(what, Dump::Tables | Dump::Chains) {
            put(out, 1, &text(TABLE));
        }
        if let Dump::Elements(set) = what {
            put(out, 2, &text(set.name()));
        }
    });
    bytes
}

/// Encodes a generation request.
#[must_use]
pub fn generation(sequence: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    message(&mut bytes, SUBSYSTEM << 8 | GET_GENERATION, REQUEST, FAMILY_UNSPEC, 0, sequence, |_| ());
    bytes
}

/// Decodes all messages of one read, with the sequence numbers of their requests.
pub fn messages(mut bytes: &[u8]) -> Result<Vec<(u32, Message)>, WireError> {
    let mut list = Vec::new();
    while let Some((header, _)) = bytes.split_first_chunk::<HEADER>() {
        let [l0, l1, l2, l3, k0, k1, _, _, s0, s1, s2, s3, p0, p1, p2, p3] = *header;
        let length = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX);
        let body = bytes.get(HEADER..length).ok_or(WireError("a message is cut short"))?;
        let (sequence, port) = (u32::from_ne_bytes([s0, s1, s2, s3]), u32::from_ne_bytes([p0, p1, p2, p3]));
        list.extend(decode(u16::from_ne_bytes([k0, k1]), port, body)?.map(|message| (sequence, message)));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    if bytes.is_empty() { Ok(list) } else { Err(WireError("a header is cut short")) }
}

fn decode(kind: u16, port: u32, body: &[u8]) -> Result<Option<Message>, WireError> {
    match kind {
        2 => {
            let (errno, _) = body.split_first_chunk().ok_or(WireError("an outcome is cut short"))?;
            Ok(Some(Message::Outcome(i32::from_ne_bytes(*errno).saturating_neg())))
        }
        3 => Ok(Some(Message::Done)),
        _ if kind >> 8 == SUBSYSTEM => {
            let attributes = body.get(4..).ok_or(WireError("a message is shorter than its header"))?;
            Ok(Some(object(kind & 0xff, port, attributes)))
        }
        _ => Ok(None),
    }
}

fn object(kind: u16, port: u32, bytes: &[u8]) -> Message {
    if kind == NEW_GENERATION {
        let id = find(bytes, 1).and_then(|id| id.try_into().ok());
        return Message::Generation { id: id.map_or(0, u32::from_be_bytes), port };
    }
    if let Some(list) = find(bytes, 3).filter(|_| kind == NEW_ELEMENT) {
        return Message::Elements(Attributes(list).map(|(_, element)| counted(element)).collect());
    }
    let name = find(bytes, 1).map(|name| name.strip_suffix(b"\0").unwrap_or(name).to_vec());
    let mut body = kind.to_be_bytes().to_vec();
    body.extend_from_slice(bytes);
    Message::Object { table: name.unwrap_or_default(), body }
}

fn counted(bytes: &[u8]) -> Counted {
    let mut element = Counted::default();
    let datum = |bytes| find(bytes, 1).map(<[u8]>::to_vec).unwrap_or_default();
    for (kind, bytes) in Attributes(bytes) {
        match kind {
            1 => element.key = datum(bytes),
            2 => element.value = datum(bytes),
            7 => counter(&mut element, bytes),
            11 => Attributes(bytes).for_each(|(_, expression)| counter(&mut element, expression)),
            _ => {}
        }
    }
    element
}

/// Reads a counter expression.
fn counter(element: &mut Counted, expression: &[u8]) {
    if Attributes(expression).any(|(kind, name)| kind == 1 && name == b"counter\0") {
        for (_, data) in Attributes(expression).filter(|(kind, _)| *kind == 2) {
            for (kind, number) in Attributes(data) {
                let number = number.try_into().map_or(0, u64::from_be_bytes);
                match kind {
                    1 => element.bytes = number,
                    2 => element.packets = number,
                    _ => {}
                }
            }
        }
    }
}

/// Bytes of an element's key: fields in network order, padded to four bytes; marks in host order.
#[must_use]
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
        ElementKey::Host(ip) => octets(*ip),
        ElementKey::HostSlot(ip, mark) => slot(octets(*ip), *mark),
    }
}

/// Bytes of an element's value, likewise; empty in a set.
#[must_use]
pub fn value(element: &Element) -> Vec<u8> {
    match element.value {
        None => Vec::new(),
        Some(Value::Address(ip)) => octets(ip),
        Some(Value::Socket(to)) => {
            let mut bytes = octets(to.ip());
            bytes.extend_from_slice(&to.port().to_be_bytes());
            bytes.extend_from_slice(&[0, 0]);
            bytes
        }
    }
}

/// Match port of a traffic set's key.
#[must_use]
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
    nest(out, 1, |out| {
        nest(out, 1, |out| put(out, 1, &key(element)));
        if values && element.value.is_some() {
            nest(out, 2, |out| put(out, 1, &value(element)));
        }
    });
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

/// Appends a message; its length is set after `body`.
fn message(out: &mut Vec<u8>, kind: u16, flags: u16, family: u8, resource: u16, sequence: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(&flags.to_ne_bytes());
    out.extend_from_slice(&sequence.to_ne_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&[family, 0]);
    out.extend_from_slice(&resource.to_be_bytes());
    body(out);
    let length = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    if let Some(place) = out.get_mut(start..start + 4) {
        place.copy_from_slice(&length.to_ne_bytes());
    }
}

/// Requests an acknowledgment for the message at `start`.
fn acknowledge(out: &mut [u8], start: usize) {
    if let Some([low, high]) = out.get_mut(start + 6..start + 8) {
        [*low, *high] = (u16::from_ne_bytes([*low, *high]) | ACK).to_ne_bytes();
    }
}

#[cfg(test)]
mod tests;
