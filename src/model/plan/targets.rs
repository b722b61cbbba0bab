//! Permitted target addresses. Targets come from tenants and DNS, so those that are the proxy, its node, a metadata service or the cluster's
//! Services are rejected, unless an administrator allows them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::{fmt, iter};

use ipnet::IpNet;
use serde::Serialize;

use crate::api::targets::TargetRules;
use crate::model::base::netmap::in_tailscale_range;

/// Policy for targets: of the proxy's own settings, and of the reconciler.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TargetPolicy {
    /// Allowed, except the proxy's own addresses and what the reconciler denies (`TAILYARD_ALLOWED_TARGETS`).
    pub allowed: Vec<IpNet>,
    /// Rejected in addition to the [`ReservedRange`]s, whatever the reconciler allows (`TAILYARD_DENIED_TARGETS`).
    pub denied: Vec<IpNet>,
    /// The API server (`KUBERNETES_SERVICE_HOST`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_server: Option<IpAddr>,
    /// The Kubernetes node (`NODE_IP`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<IpAddr>,
    /// Rules of the reconciler.
    #[serde(skip_serializing_if = "is_empty")]
    pub rules: Arc<TargetRules>,
}

/// A range of addresses that are not targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservedRange {
    /// Of the Pod or its tailnet node.
    Own,
    /// Denied by an administrator.
    Denied,
    /// The API server's Service.
    ApiServer,
    /// A node, an endpoint of the API server, or a Service of the cluster.
    Cluster,
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

const RANGES: [(IpNet, ReservedRange); 13] = [
    (v4([0, 0, 0, 0], 8), ReservedRange::Unspecified),
    (v4([127, 0, 0, 0], 8), ReservedRange::Loopback),
    (v4([169, 254, 0, 0], 16), ReservedRange::LinkLocal),
    (v4([168, 63, 129, 16], 32), ReservedRange::Metadata),
    (v4([192, 0, 0, 192], 32), ReservedRange::Metadata),
    (v4([224, 0, 0, 0], 4), ReservedRange::Multicast),
    (v4([255, 255, 255, 255], 32), ReservedRange::Broadcast),
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 128), ReservedRange::Unspecified),
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), ReservedRange::Loopback),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), ReservedRange::LinkLocal),
    (v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0], 32), ReservedRange::Metadata),
    (v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128), ReservedRange::Metadata),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), ReservedRange::Multicast),
];

/// Places of an IPv4 address in an IPv6 one, for prefixes of 96, 48, 56 and 64 bits (RFC 6052, 2.2).
static PLACES: [[usize; 4]; 4] = [[12, 13, 14, 15], [6, 7, 9, 10], [7, 9, 10, 11], [9, 10, 11, 12]];

const fn v4(octets: [u8; 4], length: u8) -> IpNet {
    IpNet::new_assert(IpAddr::V4(Ipv4Addr::from_octets(octets)), length)
}

const fn v6(segments: [u16; 8], length: u8) -> IpNet {
    IpNet::new_assert(IpAddr::V6(Ipv6Addr::from_segments(segments)), length)
}

impl TargetPolicy {
    /// Why an address must not be an egress target, if so. `target` is the target as requested.
    pub fn refuses(&self, ip: IpAddr, is_own: bool, target: &str) -> Option<ReservedRange> {
        self.refuses_unless(ip, is_own, self.rules.exempt.contains(target))
    }

    fn refuses_unless(&self, ip: IpAddr, is_own: bool, is_exempt: bool) -> Option<ReservedRange> {
        let ip = ip.to_canonical();
        if is_own {
            return Some(ReservedRange::Own);
        }
        let rules = &self.rules;
        if within(&rules.denied, ip) && !permits(&rules.allowed, ip) {
            return Some(ReservedRange::Denied);
        }
        if permits(&self.allowed, ip) {
            return None;
        }
        if within(&self.denied, ip) {
            return Some(ReservedRange::Denied);
        }
        if permits(&rules.allowed, ip) {
            return None;
        }
        if within(&rules.inherited, ip) && !is_exempt {
            return Some(ReservedRange::Denied);
        }
        let reserved = |ip: IpAddr| RANGES.iter().find(|(net, _)| net.contains(&ip)).map(|(_, range)| *range);
        let one = |ip: IpAddr| (self.api_server == Some(ip)).then_some(ReservedRange::ApiServer).or_else(|| reserved(ip));
        iter::once(ip).chain(behind(ip)).find_map(one)
    }

    /// The same for an address of a DNS answer for an ingress backend: it leaves the proxy into the cluster, not into the tailnet.
    pub fn refuses_answer(&self, ip: IpAddr, is_own: bool, name: &str) -> Option<ReservedRange> {
        self.refuses_answer_unless(ip, is_own, self.rules.exempt.contains(name))
    }

    /// The same for a service of a group.
    pub fn refuses_service(&self, ip: IpAddr, is_own: bool, (service, name): (&str, &str)) -> Option<ReservedRange> {
        self.refuses_answer_unless(ip, is_own, self.rules.is_exempt(service, name))
    }

    fn refuses_answer_unless(&self, ip: IpAddr, is_own: bool, is_exempt: bool) -> Option<ReservedRange> {
        let refused = self.refuses_unless(ip, is_own, is_exempt);
        let ip = ip.to_canonical();
        if refused.is_some() || permits(&self.allowed, ip) || permits(&self.rules.allowed, ip) {
            return refused;
        }
        let mut all = iter::once(ip).chain(behind(ip));
        if all.clone().any(in_tailscale_range) {
            return Some(ReservedRange::Tailnet);
        }
        let is_cluster = all.any(|ip| self.node == Some(ip)) || within(&self.rules.cluster, ip);
        (is_cluster && !is_exempt).then_some(ReservedRange::Cluster)
    }
}

/// Whether a range contains an address, or an IPv4 address behind it.
fn within(nets: &[IpNet], ip: IpAddr) -> bool {
    nets.iter().any(|net| iter::once(ip).chain(behind(ip)).any(|ip| net.contains(&ip)))
}

/// Whether ranges contain an address, or every IPv4 address that may be behind it.
fn permits(nets: &[IpNet], ip: IpAddr) -> bool {
    let contained = |ip: IpAddr| nets.iter().any(|net| net.contains(&ip));
    let mut behind = behind(ip).peekable();
    contained(ip) || (behind.peek().is_some() && behind.all(contained))
}

fn is_empty(rules: &Arc<TargetRules>) -> bool {
    **rules == TargetRules::default()
}

/// IPv4 addresses that may be behind an IPv6 one: in its last 32 bits (`64:ff9b::/96`, and 4via6: `fd7a:115c:a1e0:b1a::/64`), or at any
/// place that RFC 6052 defines for a prefix in `64:ff9b:1::/48`, as the length of the translator's prefix is unknown.
pub(super) fn behind(ip: IpAddr) -> impl Iterator<Item = IpAddr> + Clone {
    let octets = if let IpAddr::V6(six) = ip.to_canonical() { six.octets() } else { [0; 16] };
    let places: &[[usize; 4]] = match Ipv6Addr::from(octets).segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, ..] | [0xfd7a, 0x115c, 0xa1e0, 0xb1a, ..] => &PLACES[..1],
        [0x64, 0xff9b, 1, ..] => &PLACES,
        _ => &[],
    };
    let found = places.iter().map(move |place| place.map(|at| octets[at]));
    // Where the address is at another place, there are zeros at this one.
    found.enumerate().filter(|(at, four)| *at == 0 || four[0] != 0).map(|(_, four)| Ipv4Addr::from(four).into())
}

impl fmt::Display for ReservedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "an address of the proxy itself",
            Self::Denied => "in a range that an administrator denies",
            Self::ApiServer => "the API server",
            Self::Cluster => "a node, an API server endpoint or a Service of the cluster",
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
    use crate::api::targets::ExemptService;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn nets(text: &[&str]) -> Vec<IpNet> {
        text.iter().map(|net| net.parse().expect("a prefix")).collect()
    }

    #[test]
    fn reserved_ranges_are_refused_by_name() {
        let policy = TargetPolicy { denied: nets(&["10.96.0.0/12"]), ..TargetPolicy::default() };
        let refused = |text| (policy.refuses(ip(text), false, text), policy.refuses_answer(ip(text), false, "db"));
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
            ("64:ff9b:1::a9fe:a9fe", Some(ReservedRange::LinkLocal)),
            ("64:ff9b:1:fffe::7f00:1", Some(ReservedRange::Loopback)),
            ("64:ff9b:1::a60:1", Some(ReservedRange::Denied)),
            ("fe80::1", Some(ReservedRange::LinkLocal)),
            ("168.63.129.16", Some(ReservedRange::Metadata)),
            ("192.0.0.192", Some(ReservedRange::Metadata)),
            ("fd00:ec2::254", Some(ReservedRange::Metadata)),
            ("fd00:ec2::23", Some(ReservedRange::Metadata)),
            ("fd20:ce::254", Some(ReservedRange::Metadata)),
            ("224.0.0.1", Some(ReservedRange::Multicast)),
            ("ff02::1", Some(ReservedRange::Multicast)),
            ("255.255.255.255", Some(ReservedRange::Broadcast)),
            ("10.1.2.3", None),
            ("192.0.2.1", None),
            ("2001:db8::1", None),
            ("64:ff9b::c000:201", None),
            ("64:ff9b:1::c000:201", None),
            ("64:ff9b:2::a9fe:a9fe", None),
            ("192.0.0.170", None),
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
        let allowed = nets(&["100.100.0.0/16", "169.254.20.10/32", "10.96.0.10/32"]);
        let policy = TargetPolicy { allowed, denied: nets(&["10.96.0.0/12"]), ..TargetPolicy::default() };
        for text in ["100.100.7.7", "169.254.20.10", "10.96.0.10"] {
            let refused = [false, true].map(|is_own| policy.refuses_answer(ip(text), is_own, "db"));
            assert_eq!(refused, [None, Some(ReservedRange::Own)], "{text}");
        }
        assert_eq!(policy.refuses_answer(ip("169.254.169.254"), false, "db"), Some(ReservedRange::LinkLocal));
        assert_eq!(policy.refuses_answer(ip("100.64.0.1"), false, "db"), Some(ReservedRange::Tailnet));
    }

    #[test]
    fn translated_address_is_denied_by_its_own_range_and_by_that_of_the_address_behind_it() {
        let policy = |allowed: &[&str], denied: &[&str]| {
            let rules = TargetRules { allowed: nets(allowed), denied: nets(denied), ..TargetRules::default() };
            TargetPolicy { rules: rules.into(), ..TargetPolicy::default() }
        };
        let refused = |policy: &TargetPolicy, text: &str| policy.refuses_answer(ip(text), false, "db");
        for denied in ["64:ff9b::/96", "::/0", "192.0.2.0/24"] {
            assert_eq!(refused(&policy(&[], &[denied]), "64:ff9b::c000:201"), Some(ReservedRange::Denied), "{denied}");
        }
        assert_eq!(refused(&policy(&[], &["64:ff9b::/96"]), "192.0.2.1"), None);
        assert_eq!(refused(&policy(&["64:ff9b::/96"], &["::/0"]), "64:ff9b::c000:201"), None);
        assert_eq!(refused(&policy(&[], &[]), "64:ff9b::6440:3"), Some(ReservedRange::Tailnet));
    }

    #[test]
    fn address_with_a_denied_ipv4_address_is_denied() {
        let rules = TargetRules { denied: nets(&["10.0.0.0/8"]), ..TargetRules::default() };
        let policy = TargetPolicy { rules: rules.into(), ..TargetPolicy::default() };
        let refused = |text: &str| policy.refuses(ip(text), false, text);
        let denied = [
            "10.0.0.5",
            "64:ff9b::a00:5",
            // 4via6, of any site.
            "fd7a:115c:a1e0:b1a:0:7:a00:5",
            "fd7a:115c:a1e0:b1a:1:ffff:a00:5",
            // Prefixes of 48, 56, 64 and 96 bits in 64:ff9b:1::/48.
            "64:ff9b:1:a00:0:500::",
            "64:ff9b:1:aa0a:0000:0005::",
            "64:ff9b:1:aaaa:a:0:500:0",
            "64:ff9b:1:0:a:0:500:0",
            "64:ff9b:1:aaaa:bbbb:cccc:a00:5",
        ];
        assert_eq!(denied.map(|text| (text, refused(text))), denied.map(|text| (text, Some(ReservedRange::Denied))));
        assert_eq!(refused("fd7a:115c:a1e0:b1a:0:7:a9fe:a9fe"), Some(ReservedRange::LinkLocal));
        for text in ["fd7a:115c:a1e0:b1a:0:7:c000:201", "fd7a:115c:a1e0::a00:5", "64:ff9b:1::c000:201", "2001:db8::a00:5"] {
            assert_eq!(refused(text), None, "{text}");
        }
    }

    #[test]
    fn nodes_api_server_and_services_are_no_targets_of_dns_names() {
        let rules = TargetRules { cluster: nets(&["10.96.0.0/12", "10.0.0.4/32"]), ..TargetRules::default() };
        let policy =
            TargetPolicy { api_server: Some(ip("10.96.0.1")), node: Some(ip("10.0.0.5")), rules: rules.into(), ..TargetPolicy::default() };
        for (text, answer) in [
            ("10.96.0.1", ReservedRange::ApiServer),
            ("10.96.0.10", ReservedRange::Cluster),
            ("10.0.0.4", ReservedRange::Cluster),
            ("10.0.0.5", ReservedRange::Cluster),
            ("::ffff:10.0.0.5", ReservedRange::Cluster),
        ] {
            assert_eq!(policy.refuses_answer(ip(text), false, "db"), Some(answer), "{text}");
        }
        assert_eq!(policy.refuses_answer(ip("10.0.0.6"), false, "db"), None);
        assert_eq!(
            policy.refuses(ip("10.96.0.10"), false, "10.96.0.10"),
            None,
            "egress leaves through the tailnet, where this is another host"
        );
        let policy = |allowed: &[&str], exempt: &str| TargetPolicy {
            rules: TargetRules { allowed: nets(allowed), exempt: [exempt.to_owned()].into(), ..(*policy.rules).clone() }.into(),
            ..policy.clone()
        };
        let refused =
            |policy: &TargetPolicy| ["10.96.0.1", "10.96.0.10", "10.0.0.5"].map(|text| policy.refuses_answer(ip(text), false, "db"));
        assert_eq!(refused(&policy(&["10.96.0.0/12", "10.0.0.5/32"], "")), [None; 3]);
        assert_eq!(refused(&policy(&[], "db")), [Some(ReservedRange::ApiServer), None, None], "what was served before");
        let mut rules = (*policy(&[], "db").rules).clone();
        rules.exempt_services.insert("svc:a".into(), ExemptService { target: "db".into(), of: None });
        let policy = TargetPolicy { rules: rules.into(), ..policy(&[], "") };
        let of_service = ["svc:a", "svc:b"].map(|service| policy.refuses_service(ip("10.96.0.10"), false, (service, "db")));
        assert_eq!(of_service, [None, Some(ReservedRange::Cluster)], "of another service with the same target");
    }

    #[test]
    fn class_narrows_the_policy_of_the_reconciler_and_does_not_widen_what_that_denies() {
        let rules = TargetRules { allowed: nets(&["10.1.0.0/16"]), denied: nets(&["10.0.0.0/8"]), ..TargetRules::default() };
        let class = TargetPolicy {
            allowed: nets(&["10.2.0.0/16"]),
            denied: nets(&["10.1.1.0/24"]),
            rules: rules.into(),
            ..TargetPolicy::default()
        };
        let refused = ["10.1.0.1", "10.1.1.1", "10.2.0.1"].map(|text| class.refuses_answer(ip(text), false, "db"));
        assert_eq!(refused, [None, Some(ReservedRange::Denied), Some(ReservedRange::Denied)]);
    }
}
