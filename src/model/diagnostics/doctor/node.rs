//! Checks of a machine or Pod that proxies run on.

use super::network::KernelVersion;
use super::{Check, page};

/// tailscaled's interface carries so many bytes; what comes to it over a smaller one is cut in two.
const MTU: u32 = 1280;
/// What the tunnel adds to a packet: an outer header of IPv6 and UDP, and WireGuard's own.
const TUNNEL: u32 = 80;
/// A table of connections that is fuller than this part may be full soon.
const FULL: f64 = 0.8;
/// A table that is smaller is small for a proxy.
const SMALL: u32 = 32_768;

/// A firewall by name, and why it does not work if it does not.
pub type NamedFirewall = (&'static str, Result<(), String>);

/// What was tried and read.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    /// What `uname -r` says.
    pub kernel: Option<String>,
    /// Whether the firewalls could be tried in a namespace of their own.
    pub namespace: Result<(), String>,
    /// The firewalls in the order of preference, and why each does not work, if it does not.
    pub firewalls: Vec<NamedFirewall>,
    /// Why there is no TUN device, if there is none.
    pub tun: Result<(), String>,
    pub links: Vec<(String, u32)>,
    /// Entries of the table of connections, and the most there may be.
    pub connections: Result<(u32, u32), String>,
    /// What tailscaled says of joined UDP packets, if there is one: nothing if all is well.
    pub offloads: Option<Result<Option<String>, String>>,
}

/// Every check of a machine or Pod.
pub fn checks(facts: &NodeFacts) -> Vec<Check> {
    vec![kernel(facts), firewall(facts), tun(facts), mtu(facts), offloads(facts), connections(facts)]
}

fn kernel(facts: &NodeFacts) -> Check {
    const NAME: &str = "kernel";
    let Some(kernel) = &facts.kernel else { return Check::warn(NAME, "its version cannot be read", "look at uname -r") };
    match KernelVersion::read(kernel).and_then(KernelVersion::remark) {
        Some((remark, fix)) => Check::warn(NAME, format!("{kernel}: {remark}"), fix),
        None => Check::ok(NAME, kernel.clone()),
    }
}

fn firewall(facts: &NodeFacts) -> Check {
    const NAME: &str = "firewall";
    if let Err(why) = &facts.namespace {
        let fix = "run it as root on the node, or look at /readyz of a replica, which names a firewall that does not work";
        return Check::warn(NAME, format!("cannot be tried without touching what is in force here: {why}"), fix);
    }
    let failed: Vec<_> = facts.firewalls.iter().filter_map(|(name, tried)| Some(format!("{name}: {}", tried.as_ref().err()?))).collect();
    match facts.firewalls.iter().find(|(_, tried)| tried.is_ok()) {
        None => Check::bad(
            NAME,
            format!("none works; {}", failed.join("; ")),
            "install nft, and the kernel's modules nf_tables and nft_chain_nat",
        ),
        Some((first, _)) if *first != "nftables" => {
            let what = format!("{first} works, which takes longer for each change; {}", failed.join("; "));
            Check::warn(NAME, what, "install nft, and the kernel's module nf_tables")
        }
        Some((first, _)) => {
            let works: Vec<_> = facts.firewalls.iter().filter(|(_, tried)| tried.is_ok()).map(|(name, _)| *name).collect();
            Check::ok(NAME, format!("{first} is used; what works: {}", works.join(", ")))
        }
    }
}

fn tun(facts: &NodeFacts) -> Check {
    match &facts.tun {
        Ok(()) => Check::ok("tun", "/dev/net/tun can be opened"),
        Err(why) => Check::bad(
            "tun",
            format!("/dev/net/tun cannot be opened: {why}"),
            format!(
                "modprobe tun on the node; in a Pod: a runtime that allows it, or a device plugin named by spec.tailyard.tunDeviceResource ({})",
                page("egress.md")
            ),
        ),
    }
}

fn mtu(facts: &NodeFacts) -> Check {
    const NAME: &str = "mtu";
    let outside = |name: &str| name != "lo" && !name.starts_with("tailscale");
    let small = facts.links.iter().filter(|(name, mtu)| outside(name) && *mtu < MTU + TUNNEL);
    let small: Vec<_> = small.map(|(name, mtu)| format!("{name} {mtu}")).collect();
    if small.is_empty() {
        let all: Vec<_> = facts.links.iter().map(|(name, mtu)| format!("{name} {mtu}")).collect();
        return Check::ok(NAME, all.join(", "));
    }
    let what = format!("{}: less than {} bytes, so that packets of the tunnel are cut in two", small.join(", "), MTU + TUNNEL);
    Check::warn(NAME, what, "raise the MTU of the Pod network, or set TS_DEBUG_MTU by the ProxyClass to 80 less than it")
}

fn offloads(facts: &NodeFacts) -> Check {
    const NAME: &str = "udp-offloads";
    match &facts.offloads {
        None => Check::ok(NAME, "no tailscaled runs here"),
        Some(Err(why)) => Check::warn(NAME, format!("tailscaled does not say: {why}"), "look at tailscaled's log"),
        Some(Ok(None)) => Check::ok(NAME, "tailscaled finds them as they should be"),
        Some(Ok(Some(warning))) => Check::warn(
            NAME,
            warning.clone(),
            "ethtool -K LINK rx-udp-gro-forwarding on rx-gro-list off, on the node's link to the outside",
        ),
    }
}

fn connections(facts: &NodeFacts) -> Check {
    const NAME: &str = "connections";
    let fix = "raise net.netfilter.nf_conntrack_max on the node; a Pod cannot";
    match &facts.connections {
        Err(why) => {
            Check::warn(NAME, format!("the table of connections cannot be read: {why}"), "run it as root, or with NET_ADMIN in a Pod")
        }
        Ok((entries, limit)) if f64::from(*entries) >= FULL * f64::from(*limit) => {
            Check::bad(NAME, format!("{entries} of {limit} entries are taken: new connections will be dropped"), fix)
        }
        Ok((entries, limit)) if *limit < SMALL => {
            Check::warn(NAME, format!("{entries} of {limit} entries are taken, and the table is small"), fix)
        }
        Ok((entries, limit)) => Check::ok(NAME, format!("{entries} of {limit} entries are taken")),
    }
}
