//! Checks of the cluster network: addresses that overlap the tailnet's, kube-proxy, Cilium, nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::facts::ClusterFacts;
use super::{Check, ReadResult, condition};
use crate::model::base::net::Family;
use crate::model::base::netmap::tailnet_range;

/// Address ranges of tailnets.
const TAILNET: [&str; 2] = [tailnet_range(Family::V4), tailnet_range(Family::V6)];
/// First kernel whose nftables can reject connections before routing.
const REFUSES: KernelVersion = KernelVersion(5, 9, 0);
/// Kernels that send UDP GSO packets incorrectly: the first affected and the first fixed.
const GSO: (KernelVersion, KernelVersion) = (KernelVersion(7, 0, 0), KernelVersion(7, 1, 5));

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KernelVersion(u32, u32, u32);

impl KernelVersion {
    /// Parses the output of `uname -r`, such as `6.8.0-45-generic`.
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut numbers = text.split(|character: char| !character.is_ascii_digit()).map(str::parse::<u32>);
        let mut next = || numbers.next().and_then(Result::ok);
        Some(Self(next()?, next()?, next().unwrap_or(0)))
    }

    /// Known fault of this kernel and its remedy.
    pub(super) fn remark(self) -> Option<(&'static str, &'static str)> {
        if self < REFUSES {
            let fault = "nftables cannot refuse connections before routing, so that iptables holds the rules";
            return Some((fault, "use a kernel of 5.9 or later"));
        }
        let slow = "may send joined UDP packets wrongly, which makes tunnels slow";
        (self >= GSO.0 && self < GSO.1).then_some((slow, "use 7.1.5 or later, or set TS_DEBUG_DISABLE_UDP_GSO=true by the ProxyClass"))
    }
}

pub(super) fn checks(facts: &ClusterFacts) -> Vec<Check> {
    vec![addresses(facts), kube_proxy(facts), cilium(&facts.cilium), nodes(&facts.nodes)]
}

fn addresses(facts: &ClusterFacts) -> Check {
    const NAME: &str = "addresses";
    let texts =
        |value: &Value| value.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect::<Vec<_>>();
    let mut found: Vec<(&str, Vec<String>)> = Vec::new();
    let mut unread = Vec::new();
    match &facts.nodes {
        Ok(nodes) => {
            found.push(("Pods", nodes.iter().flat_map(|node| texts(&node["spec"]["podCIDRs"])).collect()));
            let addresses = nodes.iter().flat_map(|node| node["status"]["addresses"].as_array().into_iter().flatten());
            found.push(("nodes", addresses.filter_map(|address| address["address"].as_str().map(str::to_owned)).collect()));
        }
        Err(gap) => unread.push(("nodes", gap)),
    }
    match &facts.ranges {
        Ok(ranges) => found.push(("Services", ranges.iter().flat_map(|range| texts(&range["spec"]["cidrs"])).collect())),
        Err(gap) => unread.push(("the ranges of Services", gap)),
    }
    if let Ok(Some(dns)) = &facts.dns {
        found.push(("the cluster's DNS", texts(&dns["spec"]["clusterIPs"])));
    }
    if let Ok(pods) = &facts.pods {
        let addresses = pods.iter().flat_map(|pod| pod["status"]["podIPs"].as_array().into_iter().flatten());
        found.push(("Pods", addresses.filter_map(|address| address["ip"].as_str().map(str::to_owned)).collect()));
    }
    let taken = |text: &String| network(text).is_some_and(|network| tailnet().iter().any(|range| overlap(range, &network)));
    let all = found.iter().flat_map(|(what, texts)| texts.iter().map(move |text| (what, text)));
    let clashes: BTreeSet<String> = all.filter(|(_, text)| taken(text)).map(|(what, text)| format!("{what} have {text}")).collect();
    if !clashes.is_empty() {
        let what = format!("{}: within what tailnets use ({})", clashes.into_iter().collect::<Vec<_>>().join(", "), TAILNET.join(", "));
        return Check::warn(NAME, what, "use Tailyard's image, and give the tailnet an IP pool that the cluster does not use");
    }
    match unread.first() {
        Some((what, gap)) => Check::unread(NAME, what, gap, "list nodes and servicecidrs.networking.k8s.io"),
        None => Check::ok(NAME, "no address of the cluster is one of tailnets"),
    }
}

fn tailnet() -> Vec<IpNet> {
    TAILNET.iter().filter_map(|range| range.parse().ok()).collect()
}

fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

fn kube_proxy(facts: &ClusterFacts) -> Check {
    const NAME: &str = "kube-proxy";
    let config = match &facts.kube_proxy {
        Ok(Some(config)) => config["data"]["config.conf"].as_str().unwrap_or_default(),
        Ok(None) if replaces(&facts.cilium) => return Check::ok(NAME, "Cilium takes its place"),
        Ok(None) => return Check::ok(NAME, "its config is not in kube-system: it is set elsewhere, or something else takes its place"),
        Err(gap) => return Check::unread(NAME, "its config", gap, "get configmaps in kube-system"),
    };
    let value = |key: &str| config.lines().find_map(|line| line.strip_prefix(key)).map(|value| value.trim().trim_matches('"').to_owned());
    match value("mode:").unwrap_or_default().as_str() {
        "" => Check::ok(NAME, "its default mode, iptables"),
        "userspace" => Check::bad(NAME, "mode userspace takes away where connections come from", "use nftables or iptables"),
        mode => Check::ok(NAME, format!("mode {mode}")),
    }
}

/// Whether Cilium replaces kube-proxy.
fn replaces(cilium: &ReadResult<Option<Value>>) -> bool {
    let config = cilium.as_ref().ok().and_then(Option::as_ref).map(|config| &config["data"]["kube-proxy-replacement"]);
    config.and_then(Value::as_str).is_some_and(|mode| matches!(mode, "true" | "strict"))
}

fn cilium(cilium: &ReadResult<Option<Value>>) -> Check {
    const NAME: &str = "cilium";
    let config = match cilium {
        Ok(Some(config)) => &config["data"],
        Ok(None) => return Check::ok(NAME, "not in use"),
        Err(gap) => return Check::unread(NAME, "its config", gap, "get configmaps in kube-system"),
    };
    let on = |key: &str| config[key] == "true";
    if (replaces(cilium) || on("bpf-lb-sock")) && !on("bpf-lb-sock-hostns-only") {
        let what = "it translates addresses of Services at the sockets of Pods, and so not what a proxy forwards to them";
        return Check::warn(NAME, what, "set socketLB.hostNamespaceOnly=true in Cilium's chart");
    }
    Check::ok(NAME, "its settings are fit for proxies")
}

fn nodes(nodes: &ReadResult<Vec<Value>>) -> Check {
    const NAME: &str = "nodes";
    let nodes = match nodes {
        Ok(nodes) => nodes,
        Err(gap) => return Check::unread(NAME, "the nodes", gap, "list nodes"),
    };
    let info = |node: &Value, key: &str| node["status"]["nodeInfo"][key].as_str().unwrap_or("unknown").to_owned();
    let name = |node: &Value| node["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let linux = nodes.iter().filter(|node| node["status"]["nodeInfo"]["operatingSystem"] != "windows");
    let (mut kinds, mut remarks, mut fixes) = (BTreeMap::<_, usize>::new(), Vec::new(), BTreeSet::new());
    for node in linux {
        let kernel = info(node, "kernelVersion");
        if let Some((remark, fix)) = KernelVersion::read(&kernel).and_then(KernelVersion::remark) {
            remarks.push(format!("{} (kernel {kernel}): {remark}", name(node)));
            fixes.insert(fix);
        }
        if condition(node, "Ready").is_some_and(|ready| ready["status"] != "True") {
            remarks.push(format!("{} is not ready", name(node)));
            fixes.insert("kubectl describe node says why a node is not ready");
        }
        *kinds.entry(format!("{} {}", info(node, "architecture"), kernel)).or_default() += 1;
    }
    if !remarks.is_empty() {
        return Check::warn(NAME, remarks.join("; "), fixes.into_iter().collect::<Vec<_>>().join("; "));
    }
    let kinds: Vec<_> = kinds.into_iter().map(|(kind, count)| format!("{count} of {kind}")).collect();
    Check::ok(NAME, kinds.join(", "))
}
