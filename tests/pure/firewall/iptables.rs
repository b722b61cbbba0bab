use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;

use kit::ruleset_oracle::{FlowVerdict, Packet, SourceAddress, evaluate};
use tailyard::model::base::net::{Family, InterfaceName, Port, PortKey, Proto};
use tailyard::model::base::small_set::SortedSet;
use tailyard::model::firewall::iptables::{Jump, LeftoverRules, PREFIX, Table, chains_in, delta, ours, replace, restore, traffic};
use tailyard::model::firewall::ruleset::{Ruleset, diff};

use super::oracle::{packets, rulesets};

/// Effect of texts on `iptables-restore --noflush`: chains by table and name. Panics if it would refuse a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Kernel(BTreeMap<(String, String), Vec<String>>);

impl Kernel {
    fn restore(&mut self, text: &str) {
        let mut table = String::new();
        for line in text.lines() {
            let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
            let (name, rule) = rest.split_once(' ').unwrap_or((rest, ""));
            let at = (table.clone(), name.to_owned());
            match verb {
                "-A" => self.0.get_mut(&at).unwrap_or_else(|| panic!("no chain: {line}")).push(rule.to_owned()),
                "-I" => {
                    let (place, rule) = rule.split_once(' ').expect("a place");
                    self.0.entry(at).or_default().insert(index(place), rule.to_owned());
                }
                "-D" => drop(self.0.get_mut(&at).expect("a chain").remove(index(rule))),
                "-X" => assert_eq!(self.0.remove(&at), Some(Vec::new()), "{line}"),
                "COMMIT" => self.commit(),
                _ if verb.starts_with('*') => verb[1..].clone_into(&mut table),
                _ => drop(self.0.insert((table.clone(), verb.strip_prefix(':').expect("a chain").to_owned()), Vec::new())),
            }
        }
    }

    /// States that packets meet during a restore: the one after each commit, including the last.
    fn moments(&self, text: &str) -> Vec<Self> {
        let mut kernel = self.clone();
        let commit = |part| {
            kernel.restore(part);
            kernel.clone()
        };
        text.split_inclusive("COMMIT\n").map(commit).collect()
    }

    /// Own rules that a probe finds.
    fn found(&self) -> LeftoverRules {
        LeftoverRules { chains: self.0.keys().filter_map(own_chain).collect(), jumps: Jump::ALL.into_iter().collect() }
    }

    /// Checks that the chain of every jump exists.
    fn commit(&self) {
        for ((table, _), rules) in &self.0 {
            for to in rules.iter().filter_map(|rule| target(rule)).filter(|to| to.starts_with(PREFIX)) {
                assert!(self.0.contains_key(&(table.clone(), to.to_owned())), "{table} has no {to}");
            }
        }
    }

    /// Walks the nat table's PREROUTING: possible destinations of a packet with their probabilities. Empty for a refused packet, `None` for
    /// one that passes.
    fn walk(&self, packet: &Packet) -> Option<BTreeMap<SocketAddr, f64>> {
        let mut fates = BTreeMap::new();
        let mut rules: Vec<(&str, bool)> = Vec::new();
        let remaining = self.step("PREROUTING", packet, 1.0, &mut fates, &mut rules);
        assert!(rules.len() <= 3 * 16 + 30, "{} rules looked at", rules.len());
        (remaining < 1e-6).then_some(fates)
    }

    /// Walks one chain with the share of packets that enters it; returns the share that leaves it at its end.
    fn step<'a>(
        &'a self,
        chain: &str,
        packet: &Packet,
        mut share: f64,
        fates: &mut BTreeMap<SocketAddr, f64>,
        visited: &mut Vec<(&'a str, bool)>,
    ) -> f64 {
        for rule in &self.0[&("nat".to_owned(), chain.to_owned())] {
            let chance = selects(rule, packet);
            visited.push((rule, chance > 0.0));
            let taken = share * chance;
            if taken == 0.0 {
                continue;
            }
            match target(rule).expect("a target") {
                "DNAT" => {
                    let to = rule.split("--to-destination ").nth(1).expect("a destination");
                    let to = to.parse().unwrap_or_else(|_| SocketAddr::new(to.parse().expect("an address"), packet.port.get()));
                    *fates.entry(to).or_default() += taken;
                    share -= taken;
                }
                "ACCEPT" => share -= taken,
                "RETURN" => return share,
                "MARK" => assert!(rule.ends_with("--set-xmark 0x5458/0xffff"), "{rule}"),
                to if rule.contains(" -g ") || rule.starts_with("-g") => return self.step(to, packet, share, fates, visited),
                to => share = share - taken + self.step(to, packet, taken, fates, visited),
            }
        }
        share
    }
}

/// Index of a rule; iptables counts from one.
fn index(place: &str) -> usize {
    place.parse::<usize>().expect("a number") - 1
}

fn target(rule: &str) -> Option<&str> {
    let mut words = rule.split(' ');
    words.by_ref().find(|word| matches!(*word, "-j" | "-g"))?;
    words.next()
}

/// Probability that a rule of the nat table's PREROUTING selects a packet.
fn selects(rule: &str, packet: &Packet) -> f64 {
    let mut words = rule.split(' ');
    let (mut chance, mut not) = (1.0, false);
    while let Some(word) = words.next() {
        let mut next = || words.next().expect("an argument");
        let holds = match word {
            "!" => {
                not = true;
                continue;
            }
            "-i" => (next() == "tailscale0") == packet.from_tailnet,
            "-p" => next() == packet.proto.name(),
            "-j" | "-g" | "-m" | "--mode" | "--to-destination" | "--set-xmark" => !next().is_empty(),
            "--dst-type" => next() == "LOCAL" && packet.to_pod,
            "-d" => next().split_once('/').expect("a prefix").0.parse() == Ok(packet.dst),
            "--dport" => {
                let ports = next();
                let (first, last) = ports.split_once(':').unwrap_or((ports, ports));
                (first.parse().expect("a port")..=last.parse().expect("a port")).contains(&packet.port.get())
            }
            "--probability" => {
                chance = next().parse().expect("a number");
                true
            }
            _ => panic!("{word} in {rule}"),
        };
        if holds == not {
            return 0.0;
        }
        not = false;
    }
    chance
}

fn loaded(ruleset: &Ruleset, family: Family) -> Kernel {
    let mut kernel = Kernel::default();
    kernel.restore(&restore(ruleset, family));
    kernel
}

/// Verdict of the chains.
fn verdict(kernel: &Kernel, packet: &Packet) -> FlowVerdict {
    let refused = || {
        let mut marked = Vec::new();
        kernel.step("PREROUTING", packet, 1.0, &mut BTreeMap::new(), &mut marked);
        marked.iter().any(|(rule, taken)| *taken && rule.contains("MARK"))
    };
    let Some(fates) = kernel.walk(packet) else { return FlowVerdict::Pass };
    if fates.is_empty() {
        assert!(refused(), "accepted without a mark");
        return FlowVerdict::Refuse;
    }
    let own: IpAddr = if packet.dst.is_ipv4() { [10, 0, 9, 0].into() } else { "fd00::9:1".parse().expect("an address") };
    if let Some(to) = fates.keys().find(|to| to.ip() == own) {
        return FlowVerdict::Listener(*to);
    }
    let fair = 1.0 / f64::from(u32::try_from(fates.len()).expect("few"));
    // A whole-address mapping may have one address with several ports as targets: all of them are distinguished here.
    assert!(fates.values().all(|share| (share - fair).abs() < 1e-6), "{fates:?}");
    let own = kernel.0[&("nat".to_owned(), format!("{PREFIX}POSTROUTING"))].iter().find_map(|rule| rule.split("--to-source ").nth(1));
    let source = match own.filter(|_| !packet.from_tailnet) {
        Some(own) => SourceAddress::Own(own.parse().expect("an address")),
        None => SourceAddress::Masquerade,
    };
    FlowVerdict::Dnat { to: fates.into_keys().collect(), source }
}

proptest! {
    #[test]
    fn chains_are_equivalent_to_the_ruleset(ruleset in rulesets(), packets in proptest::collection::vec(packets(), 20)) {
        let kernels = Family::ALL.map(|family| (family, loaded(&ruleset, family)));
        for packet in packets {
            let kernel = &kernels.iter().find(|(family, _)| *family == Family::of(packet.dst)).expect("a family").1;
            prop_assert_eq!(verdict(kernel, &packet), evaluate(&ruleset, &packet), "{:?}", packet);
        }
    }

    #[test]
    fn delta_yields_the_chains_of_the_new_ruleset(before in rulesets(), after in rulesets()) {
        let after = Ruleset { reserved: before.reserved.clone(), ..after };
        let change = diff(&before, &after);
        for family in Family::ALL {
            let mut kernel = loaded(&before, family);
            if let Some(text) = delta(&before, &change, &after, family) {
                kernel.restore(&text);
            }
            prop_assert_eq!(&kernel, &loaded(&after, family), "{}", family);
            prop_assert_eq!(delta(&after, &diff(&after, &after), &after, family), None, "{}", family);
        }
    }

    /// Commits for each table and family are no single transaction: each packet still meets either the old or the new ruleset.
    #[test]
    fn each_commit_of_a_change_matches_old_or_new_ruleset(before in rulesets(), after in rulesets(), packets in proptest::collection::vec(packets(), 20), whole: bool) {
        let after = Ruleset { reserved: before.reserved.clone(), ..after };
        let change = diff(&before, &after);
        for family in Family::ALL {
            let kernel = loaded(&before, family);
            let text = if whole { Some(replace(&after, family, &kernel.found(), usize::MAX)) } else { delta(&before, &change, &after, family) };
            let moments = kernel.moments(&text.unwrap_or_default());
            for (kernel, packet) in moments.iter().flat_map(|kernel| packets.iter().map(move |packet| (kernel, packet))) {
                if Family::of(packet.dst) == family {
                    let (now, ends) = (verdict(kernel, packet), [evaluate(&before, packet), evaluate(&after, packet)]);
                    prop_assert!(ends.contains(&now), "{packet:?}: {now:?}, neither of {ends:?}");
                }
            }
        }
    }

    /// Even for a table that is too large for one commit: targets that a key has before and after the change exist at every moment.
    #[test]
    fn stepwise_rewrite_never_removes_unchanged_targets(before in rulesets(), after in rulesets(), packets in proptest::collection::vec(packets(), 20)) {
        for family in Family::ALL {
            let kernel = loaded(&before, family);
            let moments = kernel.moments(&replace(&after, family, &kernel.found(), 2));
            for (kernel, packet) in moments.iter().flat_map(|kernel| packets.iter().map(move |packet| (kernel, packet))) {
                let key = PortKey { proto: packet.proto, port: packet.port };
                let ends = [evaluate(&before, packet), evaluate(&after, packet)];
                let same_map = before.ports.contains_key(&key) == after.ports.contains_key(&key) && before.reserved == after.reserved;
                if Family::of(packet.dst) == family && same_map {
                    let to = |verdict: &FlowVerdict| if let FlowVerdict::Dnat { to, .. } = verdict { Ok(to.clone()) } else { Err(verdict.clone()) };
                    let (now, ends) = (to(&verdict(kernel, packet)), ends.each_ref().map(to));
                    prop_assert!(ends.contains(&now), "{packet:?}: {now:?}, neither of {ends:?}");
                }
            }
        }
    }

    #[test]
    fn chains_of_an_earlier_process_are_replaced(before in rulesets(), after in rulesets(), jumps in prop::sample::subsequence(Jump::ALL.to_vec(), 0..=7), step in prop_oneof![Just(2usize), Just(usize::MAX)]) {
        let mut kernel = loaded(&before, Family::V6);
        let mut found = kernel.found();
        for jump in jumps {
            found.jumps.remove(&jump);
            let at = kernel.0.get_mut(&(jump.table.name().to_owned(), jump.from.to_owned())).expect("a built-in chain");
            at.retain(|rule| *rule != format!("-j {}", jump.to));
        }
        kernel.restore(&replace(&after, Family::V6, &found, step));
        prop_assert_eq!(&kernel, &loaded(&after, Family::V6));
    }
}

fn own_chain((table, name): &(String, String)) -> Option<(Table, String)> {
    let table = Table::ALL.into_iter().find(|candidate| candidate.name() == table)?;
    name.starts_with(PREFIX).then(|| (table, name.clone()))
}

fn key(proto: Proto, port: u16) -> PortKey {
    PortKey { proto, port: Port::new(port).expect("not zero") }
}

fn large(count: u16) -> Ruleset {
    let to = |i: u16| SocketAddr::from(([100, 64, (i >> 8) as u8, (i & 255) as u8], 5432));
    let ports = (0..count).map(|i| (key(Proto::Tcp, 10_000 + i), SortedSet::from([to(i)]))).collect();
    Ruleset { ports, ..Ruleset::empty(InterfaceName::tailscale0()) }
}

#[test]
fn a_lookup_among_ten_thousand_ports_tests_few_rules() {
    let kernel = loaded(&large(10_000), Family::V4);
    for port in [10_000, 15_555, 19_999] {
        let dst: IpAddr = "10.42.0.2".parse().expect("an address");
        let port = Port::new(port).expect("not zero");
        let packet = Packet { from_tailnet: false, dst, to_pod: true, proto: Proto::Tcp, port };
        assert!(matches!(verdict(&kernel, &packet), FlowVerdict::Dnat { .. }));
    }
}

#[test]
fn retarget_replaces_one_rule_and_preserves_counters() {
    let before = large(10_000);
    let mut after = before.clone();
    after.ports.insert(key(Proto::Tcp, 10_010), SortedSet::from(["100.64.9.9:1".parse().expect("a target")]));
    let text = delta(&before, &diff(&before, &after), &after, Family::V4).expect("a change");
    let rule = "-p tcp -m tcp --dport 10010 -j DNAT --to-destination 100.64.9.9:1";
    assert_eq!(text, format!("*nat\n-D TAILYARD-tcp-271 11\n-I TAILYARD-tcp-271 11 {rule}\nCOMMIT\n"));
}

#[test]
fn added_port_deletes_no_rule() {
    let (before, after) = (large(1_000), large(1_001));
    let text = delta(&before, &diff(&before, &after), &after, Family::V4).expect("a change");
    let commands: Vec<_> = text.lines().filter(|line| line.starts_with(['-', ':'])).collect();
    assert!(commands.len() == 2 && commands.iter().all(|command| command.starts_with("-I TAILYARD-tcp-2af 9 ")), "{text}");
}

#[test]
fn ipv6_dnat_targets_have_brackets() {
    let mut ruleset = large(0);
    ruleset.ports.insert(key(Proto::Udp, 53), SortedSet::from(["[fd7a:115c:a1e0::2]:5353".parse().expect("a target")]));
    let text = restore(&ruleset, Family::V6);
    assert!(text.contains("-A TAILYARD-udp-003 -p udp -m udp --dport 53 -j DNAT --to-destination [fd7a:115c:a1e0::2]:5353\n"), "{text}");
    assert!(restore(&ruleset, Family::V4).contains("-A TAILYARD-udp-003 -p udp -m udp --dport 53 -j TAILYARD-REFUSE\n"));
}

#[test]
fn overflowing_counters_saturate() {
    let mut ruleset = large(0);
    ruleset.ports.insert(key(Proto::Tcp, 10_002), ["100.64.0.7:1", "100.64.0.8:1"].map(|to| to.parse().expect("a target")).into());
    let most = u64::MAX;
    let dump = format!("*nat\n[{most}:0] -A TAILYARD-tcp-271 -j DNAT\n[{most}:0] -A TAILYARD-tcp-271 -j DNAT\n");
    assert_eq!(traffic(&ruleset, Family::V4, &dump)[&key(Proto::Tcp, 10_002)].flows, most);
}

#[test]
fn counters_are_read_by_rule_position() {
    let mut ruleset = large(2);
    ruleset.ports.insert(key(Proto::Tcp, 10_002), ["100.64.0.7:1", "100.64.0.8:1"].map(|to| to.parse().expect("a target")).into());
    let dump = "*mangle\n:TAILYARD-tcp-271 - [0:0]\n[7:420] -A TAILYARD-tcp-271 -p tcp -j RETURN\n[0:0] -A TAILYARD-tcp-271 -p tcp -j RETURN\nCOMMIT\n\
                *nat\n[2:120] -A TAILYARD-tcp-271 -j DNAT\n[0:0] -A TAILYARD-tcp-271 -j DNAT\n[3:180] -A TAILYARD-tcp-271 -j DNAT\n[4:240] -A TAILYARD-tcp-271 -j DNAT\n";
    let counted = traffic(&ruleset, Family::V4, dump);
    let of = |port| counted.get(&key(Proto::Tcp, port)).map(|c| (c.flows, c.packets, c.bytes));
    assert_eq!([of(10_000), of(10_001), of(10_002)], [Some((2, 7, 420)), Some((0, 0, 0)), Some((7, 0, 0))]);
}

#[test]
fn foreign_rules_of_a_dump_are_ignored() {
    let dump = "# by iptables-save\n*nat\n:PREROUTING ACCEPT [1:60]\n:TAILYARD-PREROUTING - [0:0]\n-A PREROUTING -j TAILYARD-PREROUTING\n-A PREROUTING -j OTHER\n\
                -A TAILYARD-udp-003 -j DNAT --to-destination [fd7a::2]:53\nCOMMIT\n";
    let expected = [
        "*nat",
        ":TAILYARD-PREROUTING -",
        "-A PREROUTING -j TAILYARD-PREROUTING",
        "-A TAILYARD-udp-003 -j DNAT --to-destination [fd7a::2]:53",
    ];
    assert_eq!(ours(dump), expected);
    assert_eq!(chains_in(dump).collect::<Vec<_>>(), [(Table::Nat, "TAILYARD-PREROUTING".to_owned())]);
}
