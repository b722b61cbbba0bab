//! Network types: IP families, protocols, ports and interface names, parsed once at the boundary.
//!
//! Inside the model a port is never zero and a protocol is never unknown.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::{Serialize, Serializer};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// Both families, IPv4 first.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Name, as in Kubernetes' objects.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A transport protocol that the data plane forwards by port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Proto {
    Tcp,
    Udp,
}

impl Proto {
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Udp];

    /// Name in nft, iptables and `/etc/protocols`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    /// IANA protocol number.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

impl fmt::Display for Proto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error for a text that is neither `TCP` nor `UDP`, in any case.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("protocol {0:?} is not TCP or UDP")]
pub struct UnknownProtocol(pub String);

impl FromStr for Proto {
    type Err = UnknownProtocol;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|proto| proto.name().eq_ignore_ascii_case(text)).ok_or_else(|| UnknownProtocol(text.to_owned()))
    }
}

/// A transport port; never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(NonZeroU16);

impl Port {
    /// A port; `None` for zero.
    pub fn new(port: u16) -> Option<Self> {
        NonZeroU16::new(port).map(Self)
    }

    pub fn get(self) -> u16 {
        self.0.get()
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Port {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(self.get())
    }
}

/// Protocol and port: the key by which packets to the Pod are matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortKey {
    pub proto: Proto,
    pub port: Port,
}

impl fmt::Display for PortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.proto, self.port)
    }
}

impl Serialize for PortKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Name of a network interface: 1 to 15 printable ASCII characters except blank, `/`, `:`, quotes, backslash and `*`; not `.` or `..`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct InterfaceName(String);

impl InterfaceName {
    /// Device that tailscaled creates.
    pub fn tailscale0() -> Self {
        Self("tailscale0".to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Error for a text that is not a valid interface name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an interface name (1 to 15 bytes, no blanks, slashes, quotes or colons)")]
pub struct BadInterfaceName(pub String);

impl FromStr for InterfaceName {
    type Err = BadInterfaceName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | ':' | '"' | '\'' | '\\' | '*');
        let fits = (1..=15).contains(&text.len()) && text.chars().all(plain);
        if fits && text != "." && text != ".." { Ok(Self(text.to_owned())) } else { Err(BadInterfaceName(text.to_owned())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_names_are_case_insensitive() {
        assert_eq!("TCP".parse(), Ok(Proto::Tcp));
        assert_eq!("udp".parse(), Ok(Proto::Udp));
        assert_eq!("SCTP".parse::<Proto>(), Err(UnknownProtocol("SCTP".into())));
    }

    #[test]
    fn port_zero_is_rejected() {
        assert_eq!(Port::new(0), None);
        assert_eq!(Port::new(65535).map(Port::get), Some(65535));
    }

    #[test]
    fn interface_names_cannot_break_out_of_a_rule() {
        for bad in ["", "a name", "sixteen-bytes-xx", "x\"; drop", "a/b", ".."] {
            assert!(bad.parse::<InterfaceName>().is_err(), "{bad:?}");
        }
        assert!("tailscale0".parse::<InterfaceName>().is_ok());
    }
}
