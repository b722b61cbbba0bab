//! Checks of a machine or Pod that runs proxies.

use super::network::KernelVersion;
use super::{Check, page, rejects};
use crate::api::localapi::FilterRule;
use crate::model::api_server::grants::{CAPABILITY, FORMER_CAPABILITY};
use crate::model::tailnet::rejects::RejectedFlow;

/// MTU of tailscaled's interface, in bytes; tunnel packets on links below this plus [`TUNNEL`] are fragmented.
const MTU: u32 = 1280;
/// Tunnel overhead per packet, in bytes: outer IPv6 and UDP headers, and those of WireGuard.
const TUNNEL: u32 = 80;
/// Fill level of the conntrack table that counts as nearly full.
const FULL: f64 = 0.8;
/// Conntrack table size below which the table is small for a proxy.
const SMALL: u32 = 32_768;

/// Firewall by name, and the error if it does not work.
pub type NamedFirewall = (&'static str, Result<(), String>);

/// Facts read or tested on the machine.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    /// Output of `uname -r`.
    pub kernel: Option<String>,
    /// Whether the firewalls could be tested in a separate network namespace.
    pub namespace: Result<(), String>,
    /// Firewalls by preference, each with its error if it does not work.
    pub firewalls: Vec<NamedFirewall>,
    /// Error if there is no TUN device.
    pub tun: Result<(), String>,
    pub links: Vec<(String, u32)>,
    /// Number of conntrack entries, and the limit.
    pub connections: Result<(u32, u32), String>,
    /// tailscaled's warning about UDP offloads; `None` without tailscaled, `Some(Ok(None))` without a warning.
    pub offloads: Option<Result<Option<String>, String>>,
    /// Number of grants of the Kubernetes capability to this node; `None` outside of groups of type `kube-apiserver`.
    pub kubernetes_grants: Option<Result<usize, String>>,
    /// Connections that tailscaled rejected or that were rejected; `None` if it records none.
    pub rejects: Option<Vec<RejectedFlow>>,
}

/// Number of rules that grant the Kubernetes capability.
pub fn kubernetes_grants(rules: &[FilterRule]) -> usize {
    rules
        .iter()
        .flat_map(|rule| &rule.cap_grant)
        .filter(|grant| [CAPABILITY, FORMER_CAPABILITY].iter().any(|name| grant.cap_map.contains_key(*name)))
        .count()
}

pub fn checks(facts: &NodeFacts) -> Vec<Check> {
    let mut checks = vec![kernel(facts), firewall(facts), tun(facts), mtu(facts), offloads(facts), connections(facts)];
    checks.extend(facts.kubernetes_grants.as_ref().map(grants));
    checks.extend(facts.rejects.as_deref().map(rejects::of_node));
    checks
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
        None => {
            let fix = "install nft, and the kernel's modules nf_tables and nft_chain_nat";
            Check::bad(NAME, format!("none works; {}", failed.join("; ")), fix)
        }
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
        Err(why) => {
            let plugin = format!("a device plugin named by spec.tailyard.tunDeviceResource ({})", page("egress.md"));
            let fix = format!("modprobe tun on the node; in a Pod: a runtime that allows it, or {plugin}");
            Check::bad("tun", format!("/dev/net/tun cannot be opened: {why}"), fix)
        }
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
        Some(Ok(Some(warning))) => {
            let fix = "ethtool -K LINK rx-udp-gro-forwarding on rx-gro-list off, on the node's link to the outside";
            Check::warn(NAME, warning.clone(), fix)
        }
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

fn grants(found: &Result<usize, String>) -> Check {
    const NAME: &str = "grants";
    match found {
        Err(why) => Check::warn(NAME, format!("tailscaled does not name the grants: {why}"), "look at tailscaled's log"),
        Ok(0) => {
            let fix = format!("add a grant of it to the tags of this ProxyGroup, or bind users in RBAC ({})", page("api-server.md"));
            Check::warn(NAME, format!("no grant of {CAPABILITY} to this device: users have their login name and no group"), fix)
        }
        Ok(number) => Check::ok(NAME, format!("{number} of {CAPABILITY} to this device")),
    }
}
