//! PROXY protocol, version 2: parsing and encoding of its header.
//!
//! Source: the specification of `HAProxy` (`proxy-protocol.txt`), section 2.2. Supports what tailscaled writes: TCP over IPv4 or IPv6. Any
//! other well-formed header has no client address. Extensions are skipped. Does no I/O.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Length of the fixed part of the header, which contains the length of the rest.
pub const FIXED: usize = 16;
/// Maximum accepted length of the rest: two IPv6 addresses and some extensions. The format would allow 65535.
pub const MAX_BYTES: usize = 1024;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// The fixed part of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fixed {
    family: HeaderFamily,
    pub rest: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeaderFamily {
    Ipv4,
    Ipv6,
    Untold,
}

/// Error of an invalid header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PreambleError {
    /// Not a version 2 header.
    #[error("the connection does not begin with a PROXY header of version 2; only tailscaled may connect here")]
    Signature,
    /// Unknown version or command.
    #[error("a PROXY header of version and command {0:#04x}; version 2, LOCAL or PROXY is expected")]
    Command(u8),
    /// The rest is too short for its addresses, or longer than [`MAX_BYTES`].
    #[error("a PROXY header with {0} bytes of addresses and extensions")]
    Length(usize),
}

impl PreambleError {
    /// Label value; closed set.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Signature => "Signature",
            Self::Command(_) => "Command",
            Self::Length(_) => "Length",
        }
    }
}

impl Fixed {
    /// Parses the first [`FIXED`] bytes. Fails if they are not the start of a header.
    pub fn read(bytes: &[u8; FIXED]) -> Result<Self, PreambleError> {
        let [signature @ .., command, family, high, low] = bytes;
        if *signature != SIGNATURE {
            return Err(PreambleError::Signature);
        }
        let family = match (*command, *family) {
            (0x21, 0x11) => HeaderFamily::Ipv4,
            (0x21, 0x21) => HeaderFamily::Ipv6,
            (0x20 | 0x21, _) => HeaderFamily::Untold,
            (other, _) => return Err(PreambleError::Command(other)),
        };
        let rest = usize::from(u16::from_be_bytes([*high, *low]));
        let least = match family {
            HeaderFamily::Ipv4 => 12,
            HeaderFamily::Ipv6 => 36,
            HeaderFamily::Untold => 0,
        };
        if rest < least || rest > MAX_BYTES { Err(PreambleError::Length(rest)) } else { Ok(Self { family, rest }) }
    }

    /// Client address from the rest of the header ([`Self::rest`] bytes); `None` if the header has none, as for health checks.
    pub fn client(self, rest: &[u8]) -> Option<SocketAddr> {
        let (ip, port): (IpAddr, _) = match self.family {
            HeaderFamily::Ipv4 => (Ipv4Addr::from(*rest.first_chunk::<4>()?).into(), rest.get(8..10)?),
            HeaderFamily::Ipv6 => (Ipv6Addr::from(*rest.first_chunk::<16>()?).to_canonical(), rest.get(32..34)?),
            HeaderFamily::Untold => return None,
        };
        Some(SocketAddr::new(ip, u16::from_be_bytes(port.try_into().ok()?)))
    }
}

/// Encodes a header with client and server address: the counterpart of [`Fixed`]. Addresses of different families are both encoded as IPv6.
pub fn header(client: SocketAddr, server: SocketAddr) -> Vec<u8> {
    let mut bytes = SIGNATURE.to_vec();
    if let (IpAddr::V4(from), IpAddr::V4(to)) = (client.ip(), server.ip()) {
        bytes.extend([0x21, 0x11, 0, 12]);
        bytes.extend(from.octets().into_iter().chain(to.octets()));
    } else {
        let wide = |ip| match ip {
            IpAddr::V4(ip) => Ipv4Addr::to_ipv6_mapped(&ip),
            IpAddr::V6(ip) => ip,
        };
        bytes.extend([0x21, 0x21, 0, 36]);
        bytes.extend(wide(client.ip()).octets().into_iter().chain(wide(server.ip()).octets()));
    }
    bytes.extend(client.port().to_be_bytes().into_iter().chain(server.port().to_be_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8]) -> Result<Option<SocketAddr>, PreambleError> {
        let fixed = Fixed::read(bytes.first_chunk().expect("16 bytes"))?;
        assert_eq!(bytes.len(), FIXED + fixed.rest);
        Ok(fixed.client(&bytes[FIXED..]))
    }

    proptest! {
        #[test]
        fn proxy_protocol_header_round_trips(client: (IpAddr, u16), server: (IpAddr, u16)) {
            let (client, server) = (SocketAddr::from(client), SocketAddr::from(server));
            let source = read(&header(client, server)).expect("a header").expect("an address");
            prop_assert_eq!((source.ip(), source.port()), (client.ip().to_canonical(), client.port()));
        }
    }

    #[test]
    fn local_header_and_extensions_are_accepted() {
        let mut local = SIGNATURE.to_vec();
        local.extend([0x20, 0, 0, 3, 1, 2, 3]);
        assert_eq!(read(&local), Ok(None));
        let client: SocketAddr = "100.64.0.9:51234".parse().expect("an address");
        let mut extended = header(client, client);
        extended[15] += 3;
        extended.extend([4, 0, 0]);
        assert_eq!(read(&extended), Ok(Some(client)));
    }

    #[test]
    fn invalid_proxy_protocol_header_is_rejected() {
        let address: SocketAddr = "[fd7a::9]:1".parse().expect("an address");
        let with = |at: usize, byte: u8| {
            let mut bytes = header(address, address);
            bytes[at] = byte;
            Fixed::read(bytes.first_chunk().expect("16 bytes"))
        };
        assert_eq!(Fixed::read(b"GET / HTTP/1.1\r\n"), Err(PreambleError::Signature));
        assert_eq!(with(12, 0x11), Err(PreambleError::Command(0x11)));
        assert_eq!(with(15, 35), Err(PreambleError::Length(35)));
        assert_eq!(with(14, 0xff).map_err(|error| error.reason()), Err("Length"));
    }
}
