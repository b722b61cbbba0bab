//! The ruleset for iptables and ip6tables: same semantics as [`crate::model::firewall::nft`], in chains of our own.
//!
//! Match ports form a tree: a chain for each leading hexadecimal digit, down to chains of at most sixteen ports. A lookup tests about thirty
//! rules for ten thousand ports. A port's place depends on its number alone, so a change edits only the chains on its path. [`restore`] is
//! the complete ruleset, [`delta`] a difference: texts for `iptables-restore --noflush`, which commits each table atomically.
//!
//! The nat table cannot reject: it marks such packets, and the filter table rejects marked ones.

mod chain;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::model::base::net::{Family, InterfaceName};
use crate::model::firewall::Traffic;
use crate::model::firewall::ruleset::{Delta, Ruleset};

pub use self::chain::{Branch, Chain, PREFIX, REFUSE_MARK, Table};

/// Name prefix of the chains of a [`trial`].
const TRIAL: &str = "TAILTRIAL-";

/// A jump from a built-in chain to ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Jump {
    pub table: Table,
    /// The built-in chain.
    pub from: &'static str,
    pub to: Chain,
}

impl Jump {
    pub const ALL: [Self; 7] = [
        Self { table: Table::Raw, from: "OUTPUT", to: Chain::Output },
        Self { table: Table::Mangle, from: "FORWARD", to: Chain::Forward },
        Self { table: Table::Mangle, from: "OUTPUT", to: Chain::Replies },
        Self { table: Table::Nat, from: "PREROUTING", to: Chain::Prerouting },
        Self { table: Table::Nat, from: "POSTROUTING", to: Chain::Postrouting },
        Self { table: Table::Filter, from: "INPUT", to: Chain::Filter },
        Self { table: Table::Filter, from: "FORWARD", to: Chain::Filter },
    ];

    /// The rule without its command, e.g. `PREROUTING -j …`.
    pub fn rule(&self) -> String {
        format!("{} -j {}", self.from, self.to)
    }
}

/// Rules of ours that an earlier process left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftoverRules {
    pub jumps: BTreeSet<Jump>,
    /// Existing chains, by table and name.
    pub chains: BTreeSet<(Table, String)>,
}

/// The complete ruleset, for a namespace without rules of ours.
pub fn restore(ruleset: &Ruleset, family: Family) -> String {
    replace(ruleset, family, &LeftoverRules::default(), usize::MAX)
}

/// The complete ruleset, for a namespace with rules of ours: rewrites chains, deletes unused ones, keeps existing jumps.
///
/// One commit for each table, unless it has more rules than `step`: then several, with jump targets first.
pub fn replace(ruleset: &Ruleset, family: Family, found: &LeftoverRules, step: usize) -> String {
    let mut text = Text::new(step);
    let mut wanted = BTreeSet::new();
    for chain in chain::all(ruleset) {
        wanted.insert((chain.table(), chain.to_string()));
        text.chain(chain.table(), &chain.to_string(), &chain.rules(ruleset, family));
    }
    for jump in Jump::ALL.iter().filter(|jump| !found.jumps.contains(jump)) {
        text.command(jump.table, &format!("-I {} 1 -j {}", jump.from, jump.to));
    }
    for (table, name) in found.chains.difference(&wanted) {
        text.drop_chain(*table, name);
    }
    text.finish()
}

/// The difference from `before` to `after`: inserted and deleted rules by position; `None` if equal. Chains are not flushed and refilled:
/// iptables-nft waits until all deleted rules are destroyed.
///
/// A change of the interface or of reserved ports is a [`Delta::rewrite`] instead.
pub fn delta(before: &Ruleset, delta: &Delta, after: &Ruleset, family: Family) -> Option<String> {
    let mut touched: BTreeSet<Chain> = delta.ports.keys().flat_map(|key| chain::way(*key)).collect();
    touched.extend((!delta.source.is_empty()).then_some(Chain::Postrouting));
    touched.extend([Chain::Cluster, Chain::Forward].into_iter().filter(|_| !delta.from_cluster.is_empty()));
    touched.extend((!delta.from_tailnet.is_empty()).then_some(Chain::Tailnet));
    touched.extend([Chain::Tailnet, Chain::Filter, Chain::Replies].into_iter().filter(|_| !delta.listeners.is_empty()));
    let mut text = Text::new(usize::MAX);
    for chain in touched {
        let (table, name) = (chain.table(), chain.to_string());
        match (chain.exists(before), chain.exists(after)) {
            (true, true) => text.edit(table, &name, &chain.rules(before, family), &chain.rules(after, family)),
            (false, true) => text.chain(table, &name, &chain.rules(after, family)),
            (true, false) => text.drop_chain(table, &name),
            (false, false) => {}
        }
    }
    (!text.parts.is_empty()).then(|| text.finish())
}

pub fn remove(found: &LeftoverRules) -> Option<String> {
    let mut text = Text::new(usize::MAX);
    for jump in &found.jumps {
        text.command(jump.table, &format!("-D {}", jump.rule()));
    }
    for (table, name) in &found.chains {
        text.drop_chain(*table, name);
    }
    (!text.parts.is_empty()).then(|| text.finish())
}

/// Probe of all required features in unreferenced chains, and the text that removes them.
pub fn trial(interface: &InterfaceName, family: Family) -> (String, String) {
    let empty = Ruleset::empty(interface.clone());
    let jumps = Jump::ALL.into_iter().collect();
    let chains = chain::all(&empty).into_iter().map(|chain| (chain.table(), chain.to_string())).collect();
    let make = replace(&empty, family, &LeftoverRules { jumps, chains: BTreeSet::new() }, usize::MAX);
    let unmake = remove(&LeftoverRules { jumps: BTreeSet::new(), chains }).unwrap_or_default();
    (make.replace(PREFIX, TRIAL), unmake.replace(PREFIX, TRIAL))
}

/// Traffic counters by match port, from an `iptables-save -c` dump of the written ruleset.
pub fn traffic(ruleset: &Ruleset, family: Family, dump: &str) -> Traffic {
    let leaves = chain::all(ruleset).into_iter().filter(|chain| chain.is_leaf());
    let leaves: BTreeMap<String, Chain> = leaves.map(|chain| (format!("{} {chain}", chain.table().name()), chain)).collect();
    let mut found: BTreeMap<Chain, Vec<(u64, u64)>> = BTreeMap::new();
    let mut table = "";
    for line in dump.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        let rule = line.strip_prefix('[').and_then(|line| line.split_once("] -A "));
        let Some((numbers, rule)) = rule else { continue };
        let chain = rule.split(' ').next().and_then(|name| leaves.get(&format!("{table} {name}")));
        let numbers = numbers.split_once(':').and_then(|(packets, bytes)| packets.parse().ok().zip(bytes.parse().ok()));
        if let Some((chain, numbers)) = chain.zip(numbers) {
            found.entry(*chain).or_default().push(numbers);
        }
    }
    let mut traffic = Traffic::new();
    for (chain, numbers) in found {
        // A changed chain is not counted; the audit detects it.
        let keys = chain.counted(ruleset, family);
        for (key, (packets, bytes)) in keys.iter().zip(numbers).filter_map(|(key, numbers)| key.zip(Some(numbers))) {
            let counters = traffic.entry(key).or_default();
            if chain.table() == Table::Nat {
                counters.flows = counters.flows.saturating_add(packets);
            } else {
                (counters.packets, counters.bytes) = (packets, bytes);
            }
        }
    }
    traffic
}

/// Our chains in an `iptables-save` dump.
pub fn chains_in(dump: &str) -> impl Iterator<Item = (Table, String)> {
    let mut table = None;
    dump.lines().filter_map(move |line| {
        if let Some(name) = line.strip_prefix('*') {
            table = Table::ALL.into_iter().find(|table| table.name() == name);
        }
        let name = line.strip_prefix(':')?.split(' ').next()?;
        name.starts_with(PREFIX).then_some((table?, name.to_owned()))
    })
}

/// Our rules in an `iptables-save` dump, without counters, for comparison.
pub fn ours(dump: &str) -> Vec<String> {
    let ours = dump.lines().filter(|line| line.starts_with('*') || line.contains(PREFIX));
    let plain = |line: &str| if line.starts_with(':') { line.split(" [").next().unwrap_or(line).to_owned() } else { line.to_owned() };
    ours.map(plain).collect()
}

/// Builder of a restore text: for each table declarations, rules, then deletions.
#[derive(Debug)]
struct Text {
    /// Maximum rules for one commit.
    step: usize,
    parts: BTreeMap<Table, RulePart>,
}

#[derive(Debug, Default)]
struct RulePart {
    /// Complete commits.
    done: String,
    declare: String,
    rules: String,
    finally: String,
    count: usize,
}

impl Text {
    fn new(step: usize) -> Self {
        Self { step, parts: BTreeMap::new() }
    }

    /// A chain with exactly these rules; a declaration flushes it.
    fn chain(&mut self, table: Table, name: &str, rules: &[String]) {
        let step = self.step;
        let part = self.parts.entry(table).or_default();
        if part.count > 0 && part.count + rules.len() > step {
            part.close(table);
        }
        part.count += rules.len();
        let _ = writeln!(part.declare, ":{name} - [0:0]");
        for rule in rules {
            let _ = writeln!(part.rules, "-A {name} {rule}");
        }
    }

    /// Edits a chain: replaces the rules between the common prefix and suffix.
    fn edit(&mut self, table: Table, name: &str, was: &[String], is: &[String]) {
        let begin = was.iter().zip(is).take_while(|(was, is)| was == is).count();
        let (was, is) = (was.get(begin..).unwrap_or_default(), is.get(begin..).unwrap_or_default());
        let end = was.iter().rev().zip(is.iter().rev()).take_while(|(was, is)| was == is).count();
        for _ in end..was.len() {
            self.command(table, &format!("-D {name} {}", begin + 1));
        }
        for (place, rule) in (begin + 1..).zip(is.iter().take(is.len() - end)) {
            self.command(table, &format!("-I {name} {place} {rule}"));
        }
    }

    fn command(&mut self, table: Table, command: &str) {
        let _ = writeln!(self.parts.entry(table).or_default().rules, "{command}");
    }

    fn drop_chain(&mut self, table: Table, name: &str) {
        let part = self.parts.entry(table).or_default();
        let _ = writeln!(part.declare, ":{name} - [0:0]");
        let _ = writeln!(part.finally, "-X {name}");
    }

    fn finish(self) -> String {
        let closed = self.parts.into_iter().map(|(table, mut part)| {
            part.close(table);
            part.done
        });
        closed.collect()
    }
}

impl RulePart {
    fn close(&mut self, table: Table) {
        let _ = writeln!(self.done, "*{}\n{}{}{}COMMIT", table.name(), self.declare, self.rules, self.finally);
        *self = Self { done: std::mem::take(&mut self.done), ..Self::default() };
    }
}
