//! Netlink messages of netfilter and their attributes, for nftables and for connection tracking.
//!
//! A message is a netlink header, `struct nfgenmsg` and attributes. An attribute is two bytes of length, two of type, the payload and
//! padding to four bytes; everything in host order. Reading is total: what is cut short ends the walk. No sockets here.
//!
//! The crate netlink-packet-netfilter reads and writes the same by types. It builds several vectors for each element or flow and fails
//! on whatever it does not expect; dumps here have 100,000 of them. So attributes are walked in place, and named by constants.

pub const REQUEST: u16 = 0x1;
pub const ACK: u16 = 0x4;
pub const DUMP: u16 = 0x300;
pub const CREATE: u16 = 0x400;

/// The length of `struct nfgenmsg`, which goes before the attributes.
pub const NETFILTER_HEADER: usize = 4;

pub const FAMILY_UNSPEC: u8 = 0;
pub const FAMILY_INET: u8 = 1;
pub const FAMILY_IPV4: u8 = 2;
pub const FAMILY_IPV6: u8 = 10;

const HEADER: usize = 4;
const NESTED: u16 = 0x8000;
const TYPE: u16 = 0x3fff;

/// What goes before the attributes of a message.
#[derive(Debug, Clone, Copy)]
pub struct Header {
    /// Subsystem in the upper byte, type in the lower.
    pub kind: u16,
    pub flags: u16,
    pub family: u8,
    /// The subsystem of a batch, else zero.
    pub resource: u16,
    pub sequence: u32,
}

/// Appends one message, whose attributes `body` appends.
pub fn message(out: &mut Vec<u8>, header: Header, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&header.kind.to_ne_bytes());
    out.extend_from_slice(&header.flags.to_ne_bytes());
    out.extend_from_slice(&header.sequence.to_ne_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&[header.family, 0]);
    out.extend_from_slice(&header.resource.to_be_bytes());
    body(out);
    let length = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    if let Some(place) = out.get_mut(start..start + 4) {
        place.copy_from_slice(&length.to_ne_bytes());
    }
}

/// One message as bytes.
pub fn request(header: Header, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    message(&mut bytes, header, body);
    bytes
}

/// Appends an attribute.
pub fn put(out: &mut Vec<u8>, kind: u16, payload: &[u8]) {
    attribute(out, kind, |out| out.extend_from_slice(payload));
}

/// Appends an attribute that holds attributes.
pub fn nest(out: &mut Vec<u8>, kind: u16, payload: impl FnOnce(&mut Vec<u8>)) {
    attribute(out, kind | NESTED, payload);
}

/// Payload and header must fit 16 bits; callers ensure it.
fn attribute(out: &mut Vec<u8>, kind: u16, payload: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 2]);
    out.extend_from_slice(&kind.to_ne_bytes());
    payload(out);
    let length = u16::try_from(out.len() - start).unwrap_or(u16::MAX);
    if let Some(place) = out.get_mut(start..start + 2) {
        place.copy_from_slice(&length.to_ne_bytes());
    }
    out.resize(out.len().next_multiple_of(4), 0);
}

/// The payload of the first attribute of this type.
pub fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    Attributes(bytes).find(|(found, _)| *found == kind).map(|(_, payload)| payload)
}

/// Iterator over attributes: type and payload. A truncated attribute ends it.
#[derive(Debug, Clone)]
pub struct Attributes<'a>(pub &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let [l0, l1, k0, k1, ..] = *self.0 else { return None };
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let payload = self.0.get(HEADER..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([k0, k1]) & TYPE, payload))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn written_attributes_are_found() {
        let mut bytes = Vec::new();
        put(&mut bytes, 1, b"odd");
        nest(&mut bytes, 2, |out| put(out, 3, &[7]));
        assert_eq!(bytes.len(), 8 + 4 + 8, "padded to four bytes");
        assert_eq!((find(&bytes, 1), find(&bytes, 4)), (Some(&b"odd"[..]), None));
        assert_eq!(find(&bytes, 2).and_then(|inside| find(inside, 3)), Some(&[7][..]), "the flag of a nested one is not of its type");
    }

    /// The attributes, written again.
    fn rewritten(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Attributes(bytes).for_each(|(kind, payload)| put(&mut out, kind, payload));
        out
    }

    proptest! {
        #[test]
        fn attributes_of_random_bytes_round_trip(bytes in prop::collection::vec(any::<u8>(), 0..100), lengths in any::<bool>()) {
            let mut bytes = bytes;
            if lengths {
                // Lengths of which many fit, so that a walk takes more than one step.
                for chunk in bytes.chunks_exact_mut(8) {
                    let length = u16::from(4 + chunk[0] % 16);
                    chunk[..2].copy_from_slice(&length.to_ne_bytes());
                }
            }
            prop_assert!(Attributes(&bytes).count() <= bytes.len() / HEADER);
            let again = rewritten(&bytes);
            prop_assert!(Attributes(&bytes).eq(Attributes(&again)));
            prop_assert_eq!(rewritten(&again), again);
        }

        #[test]
        fn written_attributes_are_read_back_in_order(wanted in prop::collection::vec((0..=TYPE, prop::collection::vec(any::<u8>(), 0..20)), 0..10)) {
            let mut bytes = Vec::new();
            for (kind, payload) in &wanted {
                put(&mut bytes, *kind, payload);
            }
            prop_assert!(Attributes(&bytes).eq(wanted.iter().map(|(kind, payload)| (*kind, &payload[..]))));
            for (kind, _) in &wanted {
                let first = wanted.iter().find(|(other, _)| other == kind).map(|(_, payload)| &payload[..]);
                prop_assert_eq!(find(&bytes, *kind), first);
            }
        }
    }
}
