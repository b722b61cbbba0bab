//! Permitted target addresses. Targets come from tenants and DNS, so those that are the proxy, its node, a metadata service or the cluster's
//! Services are rejected, unless an administrator allows them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::Serialize;

use crate::model::base::netmap::in_tailscale_range;

/// Administrator's policy for targets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TargetPolicy {
    /// Always allowed, except the proxy's own addresses (`TAILYARD_ALLOWED_TARGETS`).
    pub allowed: Vec<IpNet>,
    /// Rejected in addition to the [`ReservedRange`]s (`TAILYARD_DENIED_TARGETS`), including the API server (`KUBERNETES_SERVICE_HOST`).
    pub denied: Vec<IpNet>,
}

/// A range of addresses that are not targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservedRange {
    /// Of the Pod or its tailnet node.
    Own,
    /// `TAILYARD_DENIED_TARGETS`, or the API server.
    Denied,
    /// `0.0.0.0/8`, `::`.
    Unspecified,
    /// `127.0.0.0/8`, `::1`.
    Loopback,
    /// `169.254.0.0/16`, `fe80::/10`, including metadata services of most clouds.
    LinkLocal,
    /// Metadata services at other addresses.
    Metadata,
    /// `224.0.0.0/4`, `ff00::/8`.
    Multicast,
    /// `255.255.255.255`.
    Broadcast,
    /// Tailnet ranges: nodes that the proxy may reach, but not its clients.
    Tailnet,
}

const RANGES: [(IpNet, ReservedRange); 12] = [
    (v4([0, 0, 0, 0], 8), ReservedRange::Unspecified),
    (v4([127, 0, 0, 0], 8), ReservedRange::Loopback),
    (v4([169, 254, 0, 0], 16), ReservedRange::LinkLocal),
    (v4([168, 63, 129, 16], 32), ReservedRange::Metadata),
    (v4([224, 0, 0, 0], 4), ReservedRange::Multicast),
    (v4([255, 255, 255, 255], 32), ReservedRange::Broadcast),
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 128), ReservedRange::Unspecified),
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), ReservedRange::Loopback),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), ReservedRange::LinkLocal),
    (v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128), ReservedRange::Metadata),
    (v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128), ReservedRange::Metadata),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), ReservedRange::Multicast),
];

const fn v4(octets: [u8; 4], length: u8) -> IpNet {
    IpNet::new_assert(IpAddr::V4(Ipv4Addr::from_octets(octets)), length)
}

const fn v6(segments: [u16; 8], length: u8) -> IpNet {
    IpNet::new_assert(IpAddr::V6(Ipv6Addr::from_segments(segments)), length)
}

impl TargetPolicy {
    /// Why an address must not be an egress target, if so.
    pub fn refuses(&self, ip: IpAddr, is_own: bool) -> Option<ReservedRange> {
        let ip = behind(ip);
        let within = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&ip));
        if is_own {
            return Some(ReservedRange::Own);
        }
        if within(&self.allowed) {
            return None;
        }
        let denied = within(&self.denied).then_some(ReservedRange::Denied);
        denied.or_else(|| RANGES.iter().find(|(net, _)| net.contains(&ip)).map(|(_, range)| *range))
    }

    /// The same for an address of a DNS answer for an ingress backend.
    pub fn refuses_answer(&self, ip: IpAddr, is_own: bool) -> Option<ReservedRange> {
        let tailnet = || in_tailscale_range(behind(ip)) && !self.allowed.iter().any(|net| net.contains(&behind(ip)));
        self.refuses(ip, is_own).or_else(|| tailnet().then_some(ReservedRange::Tailnet))
    }
}

/// IPv4 address of a mapped or translated (`64:ff9b::/96`) one; any other address unchanged.
fn behind(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(six) if six.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0] => {
            let [.., a, b, c, d] = six.octets();
            Ipv4Addr::new(a, b, c, d).into()
        }
        other => other,
    }
}

impl fmt::Display for ReservedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "an address of the proxy itself",
            Self::Denied => "in a range that TAILYARD_DENIED_TARGETS names, or the API server",
            Self::Unspecified => "an unspecified address",
            Self::Loopback => "a loopback address",
            Self::LinkLocal => "a link-local address",
            Self::Metadata => "a cloud's metadata service",
            Self::Multicast => "a multicast address",
            Self::Broadcast => "a broadcast address",
            Self::Tailnet => "an address of the tailnet's ranges",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn nets(text: &[&str]) -> Vec<IpNet> {
        text.iter().map(|net| net.parse().expect("a prefix")).collect()
    }

    #[test]
    fn reserved_ranges_are_refused_by_name() {
        let policy = TargetPolicy { allowed: Vec::new(), denied: nets(&["10.96.0.0/12"]) };
        let refused = |text| (policy.refuses(ip(text), false), policy.refuses_answer(ip(text), false));
        let rows = [
            ("10.96.0.1", Some(ReservedRange::Denied)),
            ("0.0.0.0", Some(ReservedRange::Unspecified)),
            ("::", Some(ReservedRange::Unspecified)),
            ("127.0.0.53", Some(ReservedRange::Loopback)),
            ("::1", Some(ReservedRange::Loopback)),
            ("::ffff:127.0.0.1", Some(ReservedRange::Loopback)),
            ("169.254.169.254", Some(ReservedRange::LinkLocal)),
            ("::ffff:169.254.169.254", Some(ReservedRange::LinkLocal)),
            ("64:ff9b::a9fe:a9fe", Some(ReservedRange::LinkLocal)),
            ("fe80::1", Some(ReservedRange::LinkLocal)),
            ("168.63.129.16", Some(ReservedRange::Metadata)),
            ("fd00:ec2::254", Some(ReservedRange::Metadata)),
            ("224.0.0.1", Some(ReservedRange::Multicast)),
            ("ff02::1", Some(ReservedRange::Multicast)),
            ("255.255.255.255", Some(ReservedRange::Broadcast)),
            ("10.1.2.3", None),
            ("192.0.2.1", None),
            ("2001:db8::1", None),
            ("64:ff9b::c000:201", None),
        ];
        for (text, range) in rows {
            assert_eq!(refused(text), (range, range), "{text}");
        }
        for text in ["100.64.0.3", "100.127.255.254", "fd7a:115c:a1e0::3"] {
            assert_eq!(refused(text), (None, Some(ReservedRange::Tailnet)), "{text}");
        }
    }

    #[test]
    fn allowed_targets_override_every_range_except_own_addresses() {
        let policy =
            TargetPolicy { allowed: nets(&["100.100.0.0/16", "169.254.20.10/32", "10.96.0.10/32"]), denied: nets(&["10.96.0.0/12"]) };
        for text in ["100.100.7.7", "169.254.20.10", "10.96.0.10"] {
            let refused = [false, true].map(|is_own| policy.refuses_answer(ip(text), is_own));
            assert_eq!(refused, [None, Some(ReservedRange::Own)], "{text}");
        }
        assert_eq!(policy.refuses_answer(ip("169.254.169.254"), false), Some(ReservedRange::LinkLocal));
        assert_eq!(policy.refuses_answer(ip("100.64.0.1"), false), Some(ReservedRange::Tailnet));
    }
}
