//! The ruleset for nftables: one table with static rules, and maps whose elements change.
//!
//! [`table`] is the complete table from any state; [`delta`] a change of elements. Both encode [`element::elements`], so that their results
//! are equal.

pub mod dump;
pub mod element;
pub mod json;
pub mod wire;

use std::fmt::Write;

use self::element::{Element, ElementKey, Set, Value, edits, elements};
use crate::model::base::net::{Family, InterfaceName};
use crate::model::base::netmap::tailnet_range;
use crate::model::firewall::ruleset::{Delta, FALLBACK_MARK, PROBE_MARK, Ruleset, SLOTS};

pub use self::json::delta;

/// Name of our table, family `inet`.
pub const TABLE: &str = "tailyard";

/// [`table`], [`skeleton`] or [`trial`] for a kernel without conntrack timeouts in nftables (`CONFIG_NF_CONNTRACK_TIMEOUT`).
pub fn without_timeouts(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| !line.contains("ct timeout ")).collect()
}

/// Number of elements that a delta deletes and adds.
pub fn operations(before: &Ruleset, delta: &Delta, after: &Ruleset) -> usize {
    let edits = edits(before, delta, after);
    edits.delete.len() + edits.add.len()
}

/// Text for `nft -f -` that replaces the table in one transaction, whatever its state.
pub fn table(ruleset: &Ruleset) -> String {
    render(ruleset, elements(ruleset).iter())
}

/// The same without elements, except those that the rules require: forwards nothing, and its size does not depend on the ruleset.
pub fn skeleton(ruleset: &Ruleset) -> String {
    render(ruleset, elements(ruleset).iter().filter(|element| element.set == Set::Reserved))
}

/// Text that removes the table, if it exists.
pub fn removal() -> String {
    format!("table inet {TABLE} {{}}\ndelete table inet {TABLE}\n")
}

/// Text for the disco mute: invalidates tailscaled's disco packets (by their six magic bytes), in a table of its own; see
/// [`crate::model::flows::drain::DISCO_MUTE_PERIOD`]. Packets are corrupted, not dropped: after a send error tailscaled opens new sockets.
pub fn mute() -> String {
    let rule = "meta l4proto udp @th,64,48 0x5453f09f92ac @th,64,8 set 0";
    format!(
        "{}table inet {TABLE}-shutdown {{\n\tchain output {{\n\t\ttype filter hook output priority filter;\n\t\t{rule}\n\t}}\n}}\n",
        unmute()
    )
}

/// Text that drops new TCP connections from the tailnet, in the table of the disco mute. A client repeats a SYN without an answer after a
/// second: the next Pod, which has the same address, answers that.
pub fn drop_new_connections(interface: &InterfaceName) -> String {
    let rule = format!("iifname \"{interface}\" tcp flags & (syn | ack) == syn drop");
    format!("table inet {TABLE}-shutdown {{\n\tchain prerouting {{\n\t\ttype filter hook prerouting priority raw;\n\t\t{rule}\n\t}}\n}}\n")
}

/// Text that ends [`mute`] and [`drop_new_connections`], if active.
pub fn unmute() -> String {
    removal().replace(&format!("inet {TABLE}"), &format!("inet {TABLE}-shutdown"))
}

/// Probe of all features that [`table`] requires: creates a table and removes it. Also ends the mute of a replica that was killed during its
/// drain.
pub fn trial(interface: &InterfaceName) -> String {
    let name = format!("table inet {TABLE}-trial");
    let whole = table(&Ruleset::empty(interface.clone())).replace(&format!("table inet {TABLE}"), &name);
    format!("{whole}delete {name}\n{}", unmute())
}

fn render<'a>(ruleset: &Ruleset, elements: impl Iterator<Item = &'a Element>) -> String {
    let mut text = removal();
    let mut elements = elements.peekable();
    let _ = writeln!(text, "table inet {TABLE} {{");
    for set in Set::ALL {
        let kind = if set.is_map() { "map" } else { "set" };
        let _ = write!(text, "\t{kind} {} {{\n\t\t{}\n", set.name(), set.shape());
        if set.counts() {
            text.push_str("\t\tcounter\n");
        }
        let mut open = "\t\telements = {\n";
        while let Some(element) = elements.next_if(|element| element.set == set) {
            let _ = write!(text, "{open}\t\t\t{element}");
            open = ",\n";
        }
        text.push_str(if open == ",\n" { "\n\t\t}\n\t}\n" } else { "\t}\n" });
    }
    translating(&mut text, &ruleset.interface);
    forwarding(&mut text, &ruleset.interface);
    listening(&mut text, &ruleset.interface);
    text.push_str("}\n");
    text
}

/// Static translating rules, one for each line; blank lines separate chains.
///
/// A replica whose tunnel is closed translates to a sibling replica, unless the packet is from one: two such replicas would send it to each
/// other. The kernel closes the tunnel, as it deletes a route with its interface: no process needs to live for that. A SYN sent just before
/// is lost with tailscaled, and the client sends it again after a second: until then its conntrack entry, with the same target, has expired.
/// Not so where there are several targets: an answer that takes longer than a second would find the entry of another one.
fn translating(text: &mut String, interface: &InterfaceName) {
    let _ = writeln!(
        text,
        r#"
	chain prerouting {{
		type nat hook prerouting priority -101; policy accept;
		iifname "{interface}" goto from-tailnet
		fib daddr type local goto from-cluster
	}}

	chain from-cluster {{
		ip daddr @replica4 ip saddr != @replica4 jump if-closed
		ip6 daddr @replica6 ip6 saddr != @replica6 jump if-closed
		meta nfproto ipv4 dnat ip to meta l4proto . th dport map @port4
		meta nfproto ipv6 dnat ip6 to meta l4proto . th dport map @port6
		meta l4proto . th dport @port-many ct mark set numgen random mod {SLOTS}
		meta nfproto ipv4 dnat ip to meta l4proto . th dport . ct mark map @port4-slot
		meta nfproto ipv6 dnat ip6 to meta l4proto . th dport . ct mark map @port6-slot
		meta l4proto tcp th dport @traffic-tcp reject with tcp reset
		meta l4proto udp th dport @traffic-udp reject with icmpx type port-unreachable
		meta l4proto . th dport @reserved return
{cluster}	}}

	ct timeout unanswered {{ protocol tcp; l3proto ip; policy = {{ syn_sent : 1 }}; }}

	chain if-closed {{
		meta l4proto . th dport != @port-many ct timeout set "unanswered"
		meta mark set meta mark | {FALLBACK_MARK:#010x}
		fib saddr . mark oifname != "{interface}" jump to-sibling
		meta mark set meta mark & {unmarked:#010x}
	}}

	chain to-sibling {{
		meta l4proto != {{ tcp, udp }} return
		meta l4proto tcp th dport != @traffic-tcp return
		meta l4proto udp th dport != @traffic-udp return
		meta mark set meta mark & {unmarked:#010x}
		ct mark set {FALLBACK_MARK:#010x}
		dnat ip to ip daddr map @fallback4
		dnat ip6 to ip6 daddr map @fallback6
	}}

	chain from-tailnet {{
		meta l4proto tcp dnat ip to ip daddr . tcp dport map @listener4
		meta l4proto tcp dnat ip6 to ip6 daddr . tcp dport map @listener6
{tailnet}	}}

	chain postrouting {{
		type nat hook postrouting priority 99; policy accept;
		oifname "{interface}" ct status dnat snat ip to oifname map @source4
		oifname "{interface}" ct status dnat snat ip6 to oifname map @source6
		ct status dnat masquerade
	}}"#,
        unmarked = !FALLBACK_MARK,
        cluster = whole_address("pod"),
        tailnet = whole_address("vip"),
    );
}

/// Static rules for every forwarded packet: an established flow matches the first rule of `forward` only. Its MSS is negotiated, so SYNs
/// are matched earlier. docs/benchmarks.md has the cost of each step.
///
/// Tailnet traffic (to a match port, an L3 address of the Pod, or tailnet ranges) that would leave by another interface while tailscaled and
/// its routes are away is dropped in `stray`: it would reach the target's address in the cluster unencrypted, and its conntrack entry would
/// keep it off the tailnet. A flow to a sibling replica leaves in the cluster, while that is a replica.
fn forwarding(text: &mut String, interface: &InterfaceName) {
    let _ = writeln!(
        text,
        r#"
	chain opening {{
		oifname "{interface}" tcp option maxseg size set rt mtu
		iifname "{interface}" tcp option maxseg size set rt mtu
	}}

	chain outward {{
		meta mark set meta mark & 0xff00ffff | 0x00040000
		ct direction reply return
		meta l4proto tcp ct original proto-dst @traffic-tcp
		meta l4proto udp ct original proto-dst @traffic-udp
	}}

	chain stray {{
		iifname "{interface}" return
		meta l4proto tcp ct original proto-dst @traffic-tcp drop
		meta l4proto udp ct original proto-dst @traffic-udp drop
		ct original ip daddr @pod4 drop
		ct original ip daddr @pod4-many drop
		ct original ip6 daddr @pod6 drop
		ct original ip6 daddr @pod6-many drop
		ip daddr {tailnet4} drop
		ip6 daddr {tailnet6} drop
	}}

	chain relayed {{
		oifname "{interface}" goto outward
		ct direction original ct mark != {FALLBACK_MARK:#010x} goto stray
		ct direction original ip daddr != @replica4 drop
		ct direction original ip6 daddr != @replica6 drop
		meta l4proto tcp ct original proto-dst @traffic-tcp
		meta l4proto udp ct original proto-dst @traffic-udp
	}}

	chain forward {{
		type filter hook forward priority -150; policy accept;
		ct status & (assured | dnat) == assured | dnat goto relayed
		tcp flags & (syn | rst) == syn jump opening
		ct status dnat goto relayed
	}}

	chain output {{
		type filter hook output priority -300; policy accept;
		meta mark {PROBE_MARK:#x} notrack
	}}"#,
        tailnet4 = tailnet_range(Family::V4),
        tailnet6 = tailnet_range(Family::V6),
    );
}

/// Static rules for the listeners of virtual hosts: only translated packets from the tunnel reach them, and replies leave by it alone. A
/// neighbour could send packets of an established connection, which are translated, too. While tailscaled and its routes are away, replies
/// over IPv6 would leave in the cluster, unencrypted.
fn listening(text: &mut String, interface: &InterfaceName) {
    let _ = writeln!(
        text,
        r#"
	chain input {{
		type filter hook input priority -150; policy accept;
		tcp dport @listening ct status & dnat != dnat reject with tcp reset
		tcp dport @listening iifname != "{interface}" drop
	}}

	chain replies {{
		type filter hook output priority -150; policy accept;
		meta l4proto != tcp return
		oifname "{interface}" return
		meta l4proto tcp ct direction reply ct original ip daddr . ct original proto-dst @listener4 drop
		meta l4proto tcp ct direction reply ct original ip6 daddr . ct original proto-dst @listener6 drop
	}}"#
    );
}

/// Rules that forward or reject all traffic to the addresses of these maps.
fn whole_address(maps: &str) -> String {
    let mut text = String::new();
    for (ip, n) in [("ip", 4), ("ip6", 6)] {
        let _ = write!(
            text,
            "\t\tdnat {ip} to {ip} daddr map @{maps}{n}
\t\t{ip} daddr @{maps}{n}-many ct mark set numgen random mod {SLOTS}
\t\tdnat {ip} to {ip} daddr . ct mark map @{maps}{n}-slot
\t\t{ip} daddr @{maps}{n}-none meta l4proto tcp reject with tcp reset
\t\t{ip} daddr @{maps}{n}-none reject with icmpx type port-unreachable\n"
        );
    }
    text
}

impl std::fmt::Display for Element {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.key {
            ElementKey::Interface(name) => write!(f, "\"{name}\""),
            ElementKey::Number(port) => write!(f, "{port}"),
            ElementKey::Port(key) => write!(f, "{} . {}", key.proto, key.port),
            ElementKey::PortSlot(key, slot) => write!(f, "{} . {} . {slot}", key.proto, key.port),
            ElementKey::Socket(at) => write!(f, "{} . {}", at.ip(), at.port()),
            ElementKey::Host(ip) => write!(f, "{ip}"),
            ElementKey::HostSlot(ip, slot) => write!(f, "{ip} . {slot}"),
        }?;
        match self.value {
            Some(Value::Address(ip)) => write!(f, " : {ip}"),
            Some(Value::Socket(to)) => write!(f, " : {} . {}", to.ip(), to.port()),
            None => Ok(()),
        }
    }
}
