//! Netlink attributes: two bytes of length, two of type, the payload, padding to four bytes; everything in host order.

const HEADER: usize = 4;
const NESTED: u16 = 0x8000;
const TYPE: u16 = 0x3fff;

/// Appends an attribute.
pub(super) fn put(out: &mut Vec<u8>, kind: u16, payload: &[u8]) {
    attribute(out, kind, |out| out.extend_from_slice(payload));
}

/// Appends an attribute that holds attributes.
pub(super) fn nest(out: &mut Vec<u8>, kind: u16, payload: impl FnOnce(&mut Vec<u8>)) {
    attribute(out, kind | NESTED, payload);
}

/// The payload must fit 16 bits with the header; callers bound what they put in.
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

/// Walks the attributes in some bytes: type and payload of each. What is cut short ends the walk.
pub(super) struct Attributes<'a>(pub(super) &'a [u8]);

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
