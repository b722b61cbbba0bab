//! Encoding and decoding of TCP segments without data: SYN probes and resets.
//!
//! Formats: RFC 791, RFC 8200, RFC 9293.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const TCP: u8 = 6;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const TTL: u8 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    from: SocketAddr,
    to: SocketAddr,
    sequence: u32,
    acknowledgment: u32,
    flags: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedSegment {
    pub from: SocketAddr,
    pub port: u16,
    /// First sequence number.
    pub sequence: u32,
    /// Acknowledgment number.
    pub acknowledgment: u32,
    /// Length in sequence numbers: data, and one for a FIN.
    pub length: u32,
    pub end: SegmentSender,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentSender {
    /// Has the connection; its numbers are valid.
    Alive,
    /// Does not have the connection: refused it, or treated the probe as a new one.
    Gone,
}

impl Segment {
    /// A SYN: a live end responds to it, with any sequence number, by an acknowledgment of its own state (RFC 5961 §4).
    pub fn probe(from: SocketAddr, to: SocketAddr, sequence: u32) -> Self {
        Self { from, to, sequence, acknowledgment: 0, flags: SYN }
    }

    /// A reset, valid at `to` if `sequence` is exactly the number that it expects next (RFC 5961 §3).
    pub fn reset(from: SocketAddr, to: SocketAddr, sequence: u32, acknowledgment: u32) -> Self {
        Self { from, to, sequence, acknowledgment, flags: RST | ACK }
    }

    /// An acknowledgment with the same numbers as this reset: an end without the connection responds to it by a reset (RFC 9293 §3.10.7.1).
    #[must_use]
    pub fn without_reset(self) -> Self {
        Self { flags: ACK, ..self }
    }

    pub fn to(&self) -> SocketAddr {
        self.to
    }

    /// Key of the responses to this segment: the sender's address, and our port.
    pub fn end(&self) -> (SocketAddr, u16) {
        (self.to, self.from.port())
    }

    /// Complete packet with checksums; `None` if the two addresses are of different families.
    pub fn packet(&self) -> Option<Vec<u8>> {
        let tcp = self.tcp()?;
        let mut packet = Vec::with_capacity(40 + tcp.len());
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                // Version and header length, no service class; total length; identification; don't fragment.
                packet.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, TTL, TCP, 0, 0]);
                packet.extend(from.octets());
                packet.extend(to.octets());
                let sum = checksum(&[&packet]);
                packet[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                packet.extend([0x60, 0, 0, 0, 0, 20, TCP, TTL]);
                packet.extend(from.octets());
                packet.extend(to.octets());
            }
            _ => return None,
        }
        packet.extend(tcp);
        Some(packet)
    }

    fn tcp(&self) -> Option<[u8; 20]> {
        let mut tcp = [0; 20];
        tcp[0..2].copy_from_slice(&self.from.port().to_be_bytes());
        tcp[2..4].copy_from_slice(&self.to.port().to_be_bytes());
        tcp[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        tcp[8..12].copy_from_slice(&self.acknowledgment.to_be_bytes());
        tcp[12] = 5 << 4;
        tcp[13] = self.flags;
        // Some stacks reject a SYN with a window of zero.
        tcp[14..16].copy_from_slice(&1024_u16.to_be_bytes());
        let tail = [0, TCP, 0, 20];
        let sum = match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => checksum(&[&from.octets(), &to.octets(), &tail, &tcp]),
            (IpAddr::V6(from), IpAddr::V6(to)) => checksum(&[&from.octets(), &to.octets(), &tail, &tcp]),
            _ => return None,
        };
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        Some(tcp)
    }
}

impl ObservedSegment {
    /// Parses an IPv4 packet from a raw socket; `None` if it is not a first fragment with a complete TCP header.
    pub fn in_ipv4(packet: &[u8]) -> Option<Self> {
        let first = *packet.first()?;
        let header = usize::from(first & 0x0f) * 4;
        let total = usize::from(u16_at(packet, 2)?);
        let fragment = u16_at(packet, 6)? & 0x1fff;
        if first >> 4 != 4 || header < 20 || *packet.get(9)? != TCP || fragment != 0 {
            return None;
        }
        let source: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
        Self::in_tcp(packet.get(header..total.min(packet.len()))?, IpAddr::V4(Ipv4Addr::from(source)))
    }

    /// Parses a TCP segment sent by `source`; `None` if its header is incomplete.
    pub fn in_tcp(segment: &[u8], source: IpAddr) -> Option<Self> {
        let header = usize::from(*segment.get(12)? >> 4) * 4;
        let data = segment.len().checked_sub(header).filter(|_| header >= 20)?;
        let flags = *segment.get(13)?;
        let alive = flags & (SYN | RST | ACK) == ACK;
        Some(Self {
            from: SocketAddr::new(source, u16_at(segment, 0)?),
            port: u16_at(segment, 2)?,
            sequence: u32_at(segment, 4)?,
            acknowledgment: u32_at(segment, 8)?,
            length: u32::try_from(data).ok()? + u32::from(flags & FIN != 0),
            end: if alive { SegmentSender::Alive } else { SegmentSender::Gone },
        })
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The Internet checksum (RFC 1071) over parts of even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.as_chunks::<2>().0).map(|pair| u32::from(u16::from_be_bytes(*pair)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(!sum & 0xffff).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn packet_round_trips() {
        let probe = Segment::reset(address("10.0.0.1:4000"), address("100.64.0.2:5432"), 7, 9);
        let packet = probe.packet().expect("one family");
        let heard = ObservedSegment::in_ipv4(&packet).expect("a segment");
        assert_eq!((heard.from, heard.port, heard.sequence, heard.acknowledgment), (address("10.0.0.1:4000"), 5432, 7, 9));
        assert_eq!((heard.end, heard.length), (SegmentSender::Gone, 0));
        assert_eq!(checksum(&[&packet[..20]]), 0, "the header's own checksum");
        assert_eq!(checksum(&[&packet[12..20], &[0, TCP, 0, 20], &packet[20..]]), 0, "the segment's checksum");
    }

    #[test]
    fn ipv6_packets_carry_a_checksum_over_both_addresses() {
        let packet = Segment::probe(address("[fd00::1]:4000"), address("[fd00::2]:80"), 1).packet().expect("one family");
        assert_eq!(packet.len(), 60);
        assert_eq!(checksum(&[&packet[8..40], &[0, TCP, 0, 20], &packet[40..]]), 0);
    }

    #[test]
    fn mixed_address_families_yield_no_packet() {
        assert_eq!(Segment::probe(address("[fd00::1]:1"), address("10.0.0.1:2"), 1).packet(), None);
    }

    #[test]
    fn only_ack_without_syn_is_a_live_end() {
        for (flags, end) in [
            (ACK, SegmentSender::Alive),
            (ACK | FIN, SegmentSender::Alive),
            (SYN | ACK, SegmentSender::Gone),
            (RST | ACK, SegmentSender::Gone),
            (SYN, SegmentSender::Gone),
        ] {
            let mut tcp = Segment::probe(address("10.0.0.1:1"), address("10.0.0.2:2"), 1).tcp().expect("one family");
            tcp[13] = flags;
            assert_eq!(ObservedSegment::in_tcp(&tcp, address("10.0.0.1:1").ip()).map(|heard| heard.end), Some(end), "{flags:#x}");
        }
    }

    proptest! {
        /// Link-layer padding is not data, and a truncated packet is rejected.
        #[test]
        fn reset_round_trips_with_link_padding(
            from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), numbers: (u32, u32), padding in prop::collection::vec(any::<u8>(), 0..20), cut in 0_usize..40,
        ) {
            let segment = Segment::reset(SocketAddr::from(from), SocketAddr::from(to), numbers.0, numbers.1);
            let mut packet = segment.packet().expect("one family");
            prop_assert_eq!(ObservedSegment::in_ipv4(&packet[..cut]), None);
            packet.extend(padding);
            let heard = ObservedSegment::in_ipv4(&packet).expect("a segment");
            prop_assert_eq!((heard.from, heard.port), (SocketAddr::from(from), to.1));
            prop_assert_eq!((heard.sequence, heard.acknowledgment, heard.length, heard.end), (numbers.0, numbers.1, 0, SegmentSender::Gone));
        }

        /// For any header length and flags, data is the total length minus headers, and a FIN takes one sequence number.
        #[test]
        fn segment_of_random_bytes_has_consistent_numbers_and_length(bytes in prop::collection::vec(any::<u8>(), 0..120), start in any::<bool>()) {
            let mut bytes = bytes;
            if start && bytes.len() > 9 {
                let total = u16::try_from(bytes.len()).expect("small");
                bytes[0] = 0x40 | (bytes[0] & 0x07);
                bytes[2..4].copy_from_slice(&total.to_be_bytes());
                bytes[6..8].fill(0);
                bytes[9] = TCP;
            }
            let source = IpAddr::V4(Ipv4Addr::LOCALHOST);
            if let Some(heard) = ObservedSegment::in_tcp(&bytes, source) {
                prop_assert_eq!(heard.from, SocketAddr::new(source, u16::from_be_bytes([bytes[0], bytes[1]])));
                prop_assert_eq!(heard.port, u16::from_be_bytes([bytes[2], bytes[3]]));
                prop_assert_eq!(&heard.sequence.to_be_bytes(), &bytes[4..8]);
                prop_assert_eq!(&heard.acknowledgment.to_be_bytes(), &bytes[8..12]);
                let header = usize::from(bytes[12] >> 4) * 4;
                prop_assert_eq!(heard.length as usize, bytes.len() - header + usize::from(bytes[13] & FIN));
            }
            if let Some(heard) = ObservedSegment::in_ipv4(&bytes) {
                let (header, total) = (usize::from(bytes[0] & 0x0f) * 4, usize::from(u16::from_be_bytes([bytes[2], bytes[3]])));
                let source = IpAddr::from([bytes[12], bytes[13], bytes[14], bytes[15]]);
                prop_assert!((bytes[0] >> 4, bytes[9]) == (4, TCP) && header >= 20);
                prop_assert_eq!(Some(heard), ObservedSegment::in_tcp(&bytes[header..total.min(bytes.len())], source));
            }
        }
    }
}
