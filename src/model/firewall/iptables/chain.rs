//! Our iptables chains for a ruleset, and the rules of each.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use crate::model::base::net::{Family, Port, PortKey, Proto};
use crate::model::base::netmap::tailnet_range;
use crate::model::base::small_set::SortedSet;
use crate::model::firewall::ruleset::{PROBE_MARK, Ruleset, SLOTS};

/// Name prefix of our chains.
pub const PREFIX: &str = "TAILYARD-";

/// Mark of packets to reject, in the low sixteen bits; tailscaled uses the high ones.
pub const REFUSE_MARK: u32 = 0x5458;

/// Depth of the port tree in digits; the rules of a leaf match the last digit.
const DEPTH: u8 = 3;

/// Tables of iptables in the order of a restore text: rejecting and counting rules before translating ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Before connection tracking.
    Raw,
    Filter,
    /// Clamping, marking, counting.
    Mangle,
    Nat,
}

impl Table {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Filter, Self::Mangle, Self::Nat];

    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Filter => "filter",
            Self::Mangle => "mangle",
            Self::Nat => "nat",
        }
    }
}

/// Ports with common leading hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Branch {
    proto: Proto,
    /// Number of digits, 0 to [`DEPTH`].
    depth: u8,
    digits: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Chain {
    Output,
    /// filter: from INPUT and FORWARD.
    Filter,
    Forward,
    /// mangle: counts the packets of relayed flows by match port.
    Count(Branch),
    /// mangle: from the leaves of [`Self::Count`]; drops packets to a match port that would leave by another interface than the tailnet's.
    Stray,
    Prerouting,
    /// nat: from the cluster to the Pod.
    Cluster,
    /// nat: from the tailnet.
    Tailnet,
    /// nat: marks packets to reject.
    Refuse,
    /// nat: match ports.
    Ports(Branch),
    Postrouting,
    /// mangle: replies of listeners leave by the tunnel alone.
    Replies,
}

impl Branch {
    fn root(proto: Proto) -> Self {
        Self { proto, depth: 0, digits: 0 }
    }

    fn of(key: PortKey, depth: u8) -> Self {
        let digits = key.port.get().checked_shr(16 - 4 * u32::from(depth)).unwrap_or(0);
        Self { proto: key.proto, depth, digits }
    }

    /// Its ports; the invalid port 0 may be the first.
    fn ports(self) -> RangeInclusive<u16> {
        let free = 16 - 4 * u32::from(self.depth);
        let first = self.digits.checked_shl(free).unwrap_or(0);
        first..=first | u16::MAX.checked_shr(16 - free).unwrap_or(0)
    }

    /// Its keys in a ruleset, with targets.
    fn keys(self, ruleset: &Ruleset) -> impl Iterator<Item = (&PortKey, &SortedSet<SocketAddr>)> {
        let key = |port: u16| Port::new(port.max(1)).map(|port| PortKey { proto: self.proto, port });
        let range = key(*self.ports().start()).zip(key(*self.ports().end()));
        range.into_iter().flat_map(|(first, last)| ruleset.ports.range(first..=last))
    }

    fn children(self, ruleset: &Ruleset) -> impl Iterator<Item = Self> {
        let child = move |digit| Self { depth: self.depth + 1, digits: self.digits << 4 | digit, ..self };
        (0..16).map(child).filter(|child| child.keys(ruleset).next().is_some())
    }
}

impl fmt::Display for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.proto.name())?;
        if self.depth == 0 { Ok(()) } else { write!(f, "-{:0width$x}", self.digits, width = usize::from(self.depth)) }
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        match self {
            Self::Output => f.write_str("OUTPUT"),
            Self::Filter | Self::Refuse => f.write_str("REFUSE"),
            Self::Forward => f.write_str("FORWARD"),
            Self::Stray => f.write_str("STRAY"),
            Self::Prerouting => f.write_str("PREROUTING"),
            Self::Cluster => f.write_str("CLUSTER"),
            Self::Tailnet => f.write_str("TAILNET"),
            Self::Postrouting => f.write_str("POSTROUTING"),
            Self::Replies => f.write_str("REPLIES"),
            Self::Count(branch) | Self::Ports(branch) => branch.fmt(f),
        }
    }
}

/// Every chain of a ruleset, jump targets first.
pub(super) fn all(ruleset: &Ruleset) -> Vec<Chain> {
    let mut tree = Vec::new();
    for proto in Proto::ALL {
        let mut level = vec![Branch::root(proto)];
        while !level.is_empty() {
            tree.extend(level.iter().flat_map(|branch| [Chain::Count(*branch), Chain::Ports(*branch)]));
            level = level.into_iter().filter(|branch| branch.depth < DEPTH).flat_map(|branch| branch.children(ruleset)).collect();
        }
    }
    let before = [Chain::Output, Chain::Filter, Chain::Refuse, Chain::Stray, Chain::Replies];
    let after = [Chain::Forward, Chain::Tailnet, Chain::Cluster, Chain::Prerouting, Chain::Postrouting];
    before.into_iter().chain(tree.into_iter().rev()).chain(after).collect()
}

/// Chains on a match port's path.
pub(super) fn way(key: PortKey) -> impl Iterator<Item = Chain> {
    let branches = (0..=DEPTH).map(move |depth| Branch::of(key, depth));
    branches.flat_map(|branch| [Chain::Count(branch), Chain::Ports(branch)])
}

impl Chain {
    pub fn table(self) -> Table {
        match self {
            Self::Output => Table::Raw,
            Self::Filter => Table::Filter,
            Self::Forward | Self::Count(_) | Self::Stray | Self::Replies => Table::Mangle,
            _ => Table::Nat,
        }
    }

    pub(super) fn exists(self, ruleset: &Ruleset) -> bool {
        match self {
            Self::Count(branch) | Self::Ports(branch) => branch.depth == 0 || branch.keys(ruleset).next().is_some(),
            _ => true,
        }
    }

    /// Whether its rules match single ports.
    pub(super) fn is_leaf(self) -> bool {
        matches!(self, Self::Count(branch) | Self::Ports(branch) if branch.depth == DEPTH)
    }

    /// Match port that each of its rules counts.
    pub(super) fn counted(self, ruleset: &Ruleset, family: Family) -> Vec<Option<PortKey>> {
        match self {
            Self::Count(branch) => branch.keys(ruleset).map(|(key, _)| Some(*key)).collect(),
            Self::Ports(branch) => {
                let rules = |(key, targets): (&PortKey, &SortedSet<SocketAddr>)| match of_family(targets, family).len() {
                    0 => vec![None],
                    count => vec![Some(*key); count],
                };
                branch.keys(ruleset).flat_map(rules).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Its rules, in order, without the command that adds them.
    pub(super) fn rules(self, ruleset: &Ruleset, family: Family) -> Vec<String> {
        let ts = &ruleset.interface;
        match self {
            Self::Output => vec![format!("-m mark --mark {PROBE_MARK:#x} -j CT --notrack")],
            Self::Filter => listening(ruleset, family).chain(refuse(family)).collect(),
            Self::Forward => forward(ruleset, family),
            Self::Stray => vec![format!("! -o {ts} -m conntrack --ctdir ORIGINAL -j DROP")],
            Self::Prerouting => {
                vec![format!("-i {ts} -g {}", Self::Tailnet), format!("! -i {ts} -m addrtype --dst-type LOCAL -g {}", Self::Cluster)]
            }
            Self::Refuse => vec![format!("-j MARK --set-xmark {REFUSE_MARK:#x}/0xffff"), "-j ACCEPT".to_owned()],
            Self::Postrouting => postrouting(ruleset, family),
            Self::Replies => replies(ruleset, family).collect(),
            Self::Tailnet => {
                let listeners = listeners(ruleset, family).map(|(at, to)| {
                    let length = if at.is_ipv4() { 32 } else { 128 };
                    format!("-d {}/{length} -p tcp -m tcp --dport {} -j DNAT --to-destination {to}", at.ip(), at.port())
                });
                listeners.chain(ruleset.from_tailnet.iter().flat_map(|(ip, to)| host(*ip, to, family))).collect()
            }
            Self::Cluster => cluster(ruleset, family),
            Self::Count(branch) | Self::Ports(branch) if branch.depth < DEPTH => {
                let (proto, count) = (branch.proto, matches!(self, Self::Count(_)));
                let rule = |child: Branch| {
                    let (first, last) = child.ports().into_inner();
                    let test = if count { "conntrack --ctorigdstport" } else { proto.name() };
                    let test = if count { test.to_owned() } else { format!("{test} --dport") };
                    let child = if count { Self::Count(child) } else { Self::Ports(child) };
                    format!("-p {proto} -m {test} {first}:{last} -g {child}")
                };
                branch.children(ruleset).map(rule).collect()
            }
            Self::Count(branch) => {
                let rule = |key: &PortKey| format!("-p {} -m conntrack --ctorigdstport {} -g {}", key.proto, key.port, Self::Stray);
                branch.keys(ruleset).map(|(key, _)| rule(key)).collect()
            }
            Self::Ports(branch) => branch.keys(ruleset).flat_map(|(key, targets)| port(*key, &of_family(targets, family))).collect(),
        }
    }
}

fn of_family(targets: &[SocketAddr], family: Family) -> Vec<SocketAddr> {
    targets.iter().copied().filter(|to| Family::of(to.ip()) == family).take(SLOTS).collect()
}

fn listeners(ruleset: &Ruleset, family: Family) -> impl Iterator<Item = (&SocketAddr, &SocketAddr)> {
    ruleset.listeners.iter().filter(move |(at, _)| Family::of(at.ip()) == family)
}

/// Rejects packets to a listener that were not translated to it, and drops those that did not come through the tunnel.
fn listening(ruleset: &Ruleset, family: Family) -> impl Iterator<Item = String> {
    let ports: BTreeSet<u16> = listeners(ruleset, family).map(|(_, to)| to.port()).collect();
    let ts = &ruleset.interface;
    ports.into_iter().flat_map(move |port| {
        let to_listener = format!("-p tcp -m tcp --dport {port} -m addrtype --dst-type LOCAL");
        [
            format!("{to_listener} -m conntrack ! --ctstate DNAT -j REJECT --reject-with tcp-reset"),
            format!("! -i {ts} {to_listener} -j DROP"),
        ]
    })
}

fn replies(ruleset: &Ruleset, family: Family) -> impl Iterator<Item = String> {
    let addresses: BTreeSet<IpAddr> = listeners(ruleset, family).map(|(at, _)| at.ip()).collect();
    let ts = &ruleset.interface;
    addresses.into_iter().map(move |ip| format!("! -o {ts} -p tcp -m conntrack --ctstate DNAT --ctdir REPLY --ctorigdst {ip} -j DROP"))
}

fn refuse(family: Family) -> Vec<String> {
    let unreachable = if family == Family::V4 { "icmp-port-unreachable" } else { "icmp6-port-unreachable" };
    vec![
        format!("-m mark ! --mark {REFUSE_MARK:#x}/0xffff -j RETURN"),
        "-p tcp -j REJECT --reject-with tcp-reset".to_owned(),
        format!("-j REJECT --reject-with {unreachable}"),
    ]
}

/// Drops tailnet traffic that would leave by another interface while tailscaled and its routes are away: traffic to an L3 address or to
/// tailnet ranges here, traffic to match ports by [`Chain::Stray`].
fn forward(ruleset: &Ruleset, family: Family) -> Vec<String> {
    let (ts, relayed) = (&ruleset.interface, "-m conntrack --ctstate DNAT");
    let stray = |test: String| format!("{test} ! -o {ts} {relayed} --ctdir ORIGINAL -j DROP");
    let whole = ruleset.from_cluster.keys().filter(|ip| Family::of(**ip) == family);
    let whole = whole.map(|ip| stray(format!("-m conntrack --ctorigdst {ip}")));
    let clamp = |side| format!("-{side} {ts} -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu");
    let count = |proto: Proto| format!("-p {proto} {relayed} -j {}", Chain::Count(Branch::root(proto)));
    let before = [
        clamp('o'),
        clamp('i'),
        format!("! -i {ts} -o {ts} {relayed} -j MARK --set-xmark 0x40000/0xff0000"),
        format!("-i {ts} {relayed} --ctdir ORIGINAL -j RETURN"),
        stray(format!("-d {}", tailnet_range(family))),
    ];
    let after = [format!("-o {ts} {relayed} --ctdir REPLY -j RETURN"), count(Proto::Tcp), count(Proto::Udp)];
    before.into_iter().chain(whole).chain(after).collect()
}

fn postrouting(ruleset: &Ruleset, family: Family) -> Vec<String> {
    let relayed = "-m conntrack --ctstate DNAT";
    let own = ruleset.source.get(&family);
    let own = own.map(|own| format!("-o {} {relayed} -j SNAT --to-source {own}", ruleset.interface));
    own.into_iter().chain([format!("{relayed} -j MASQUERADE")]).collect()
}

fn cluster(ruleset: &Ruleset, family: Family) -> Vec<String> {
    let tree = |proto| format!("-p {proto} -j {}", Chain::Ports(Branch::root(proto)));
    let reserved = |key: &PortKey| format!("-p {0} -m {0} --dport {1} -j RETURN", key.proto, key.port);
    let hosts = ruleset.from_cluster.iter().flat_map(|(ip, to)| host(*ip, to, family));
    Proto::ALL.map(tree).into_iter().chain(ruleset.reserved.iter().map(reserved)).chain(hosts).collect()
}

fn port(key: PortKey, targets: &[SocketAddr]) -> Vec<String> {
    // The text form of an IPv6 socket address has the brackets that iptables requires.
    balance_rules(&format!("-p {0} -m {0} --dport {1}", key.proto, key.port), targets)
}

fn host(ip: IpAddr, targets: &[IpAddr], family: Family) -> Vec<String> {
    if Family::of(ip) != family {
        return Vec::new();
    }
    let of_family: Vec<IpAddr> = targets.iter().copied().filter(|to| Family::of(*to) == family).take(SLOTS).collect();
    balance_rules(&format!("-d {ip}/{}", if ip.is_ipv4() { 32 } else { 128 }), &of_family)
}

/// Rules that distribute matching packets equally to the targets; without target they are rejected.
fn balance_rules<T: fmt::Display>(test: &str, targets: &[T]) -> Vec<String> {
    let remaining = (1..=targets.len()).rev();
    let rule = |(to, rest): (&T, usize)| {
        let others = u32::try_from(rest).unwrap_or(u32::MAX);
        let share = format!(" -m statistic --mode random --probability {:.10}", 1.0 / f64::from(others));
        format!("{test}{} -j DNAT --to-destination {to}", if others == 1 { "" } else { &share })
    };
    match targets {
        [] => vec![format!("{test} -j {}", Chain::Refuse)],
        _ => targets.iter().zip(remaining).map(rule).collect(),
    }
}
