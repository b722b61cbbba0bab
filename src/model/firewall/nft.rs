//! The ruleset as nftables holds it: one table of our own, static rules, and maps whose elements are all that ever changes.
//!
//! [`table`] is the text that makes the table whole from any state; [`delta`] is the change of elements from one ruleset to
//! another. Both print the same value, [`element::elements`], so that what they leave in the kernel cannot differ.
//! Nothing here talks to the kernel.

pub mod dump;
pub mod element;
pub mod json;
pub mod wire;

use std::fmt::Write;

use self::element::{Element, ElementKey, Set, Value, edits, elements};
use crate::model::base::net::{Family, InterfaceName};
use crate::model::base::netmap::tailnet_range;
use crate::model::firewall::ruleset::{Delta, PROBE_MARK, Ruleset, SLOTS};

pub use self::json::delta;

/// The name of our table, of the `inet` family.
pub const TABLE: &str = "tailyard";

/// The number of elements that a delta deletes and adds.
#[must_use]
pub fn operations(before: &Ruleset, delta: &Delta, after: &Ruleset) -> usize {
    let edits = edits(before, delta, after);
    edits.delete.len() + edits.add.len()
}

/// The text that, given to `nft -f -`, makes the table whole in one transaction, whatever stood there before.
#[must_use]
pub fn table(ruleset: &Ruleset) -> String {
    render(ruleset, elements(ruleset).iter())
}

/// The same with every map empty but those that the rules cannot do without: forwards nothing, and is small at any size of the ruleset.
#[must_use]
pub fn skeleton(ruleset: &Ruleset) -> String {
    render(ruleset, elements(ruleset).iter().filter(|element| element.set == Set::Reserved))
}

/// The text that removes the table, whether or not it is there.
#[must_use]
pub fn removal() -> String {
    format!("table inet {TABLE} {{}}\ndelete table inet {TABLE}\n")
}

/// The text that keeps back what tailscaled says to its peers outside the tunnel (its disco packets begin with six bytes of their
/// own), in a table beside ours, whether or not it is there; see [`crate::model::flows::drain::HUSH`]. A packet is spoilt and not dropped: a sender
/// who is refused makes itself new sockets.
#[must_use]
pub fn mute() -> String {
    let rule = "meta l4proto udp @th,64,48 0x5453f09f92ac @th,64,8 set 0";
    format!(
        "{}table inet {TABLE}-disco-mute {{\n\tchain output {{\n\t\ttype filter hook output priority filter;\n\t\t{rule}\n\t}}\n}}\n",
        unmute()
    )
}

/// The text that takes [`mute`] back, whether or not it is there.
#[must_use]
pub fn unmute() -> String {
    removal().replace(&format!("inet {TABLE}"), &format!("inet {TABLE}-disco-mute"))
}

/// The text with which a kernel and an nft show that they can do all that [`table`] needs: it makes a table and removes it again.
/// What a replica that was killed while it left kept back is let go.
#[must_use]
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
    text.push_str("}\n");
    text
}

/// The static part that translates. One line is one rule; blank lines part the chains.
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
		meta nfproto ipv4 dnat ip to meta l4proto . th dport map @port4
		meta nfproto ipv6 dnat ip6 to meta l4proto . th dport map @port6
		meta l4proto . th dport @port-many ct mark set numgen random mod {SLOTS}
		meta nfproto ipv4 dnat ip to meta l4proto . th dport . ct mark map @port4-slot
		meta nfproto ipv6 dnat ip6 to meta l4proto . th dport . ct mark map @port6-slot
		meta l4proto tcp th dport @traffic-tcp reject with tcp reset
		meta l4proto udp th dport @traffic-udp reject with icmpx type port-unreachable
		meta l4proto . th dport @reserved return
{cluster}	}}

	chain from-tailnet {{
{tailnet}	}}

	chain postrouting {{
		type nat hook postrouting priority 99; policy accept;
		oifname "{interface}" ct status dnat snat ip to oifname map @source4
		oifname "{interface}" ct status dnat snat ip6 to oifname map @source6
		ct status dnat masquerade
	}}"#,
        cluster = whole_address("pod"),
        tailnet = whole_address("vip"),
    );
}

/// What every packet pays that is passed on: a relayed flow that both ends have answered for comes by the first rule of `forward` alone.
/// Such a flow has its segment size agreed, so SYNs are looked for only before. docs/benchmarks.md says what each step costs.
///
/// What is meant for the tailnet (it came by a match port, to a whole address of the Pod, or goes to the tailnet's own ranges) and would
/// leave by another way, as long as tailscaled and its routes are away, is dropped in `stray`: it would go to whoever has the target's address in the cluster, in plain, and its entry would keep it from the tailnet for good.
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
		ct direction original goto stray
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

/// The rules that relay or refuse whatever is sent to an address of these maps.
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
