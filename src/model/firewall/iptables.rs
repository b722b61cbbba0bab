//! The ruleset as iptables and ip6tables hold it: the same meaning as [`crate::model::firewall::nft`], in chains of our own.
//!
//! Match ports are a tree: a chain for each leading hexadecimal digit of a port, down to chains of at most sixteen ports;
//! a lookup tests some thirty rules among ten thousand ports, not five thousand. A port's place in the tree depends on its
//! number alone, so a change edits only the chains on its way. [`restore`] is everything; [`delta`] is what differs.
//! Both are texts for `iptables-restore --noflush`, which takes each table's part in one step. Nothing here runs a program.
//!
//! The nat table cannot refuse: there a packet to be refused gets a mark, and the filter table refuses what bears it.

mod chain;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::model::base::net::{Family, InterfaceName};
use crate::model::firewall::Traffic;
use crate::model::firewall::ruleset::{Delta, Ruleset};

pub use self::chain::{Branch, Chain, PREFIX, REFUSE_MARK, Table};

/// What the names of the chains of a [`trial`] begin with.
const TRIAL: &str = "TAILTRIAL-";

/// A rule of a built-in chain by which packets get into ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Jump {
    pub table: Table,
    /// The built-in chain.
    pub from: &'static str,
    pub to: Chain,
}

impl Jump {
    pub const ALL: [Self; 6] = [
        Self { table: Table::Raw, from: "OUTPUT", to: Chain::Output },
        Self { table: Table::Mangle, from: "FORWARD", to: Chain::Forward },
        Self { table: Table::Nat, from: "PREROUTING", to: Chain::Prerouting },
        Self { table: Table::Nat, from: "POSTROUTING", to: Chain::Postrouting },
        Self { table: Table::Filter, from: "INPUT", to: Chain::Filter },
        Self { table: Table::Filter, from: "FORWARD", to: Chain::Filter },
    ];

    /// The rule, without the command that adds, checks or deletes it: `-A PREROUTING -j …` is this after `-A `.
    #[must_use]
    pub fn rule(&self) -> String {
        format!("{} -j {}", self.from, self.to)
    }
}

/// What of ours an earlier process may have left, and what of it is still needed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftoverRules {
    /// Jumps that stand already.
    pub jumps: BTreeSet<Jump>,
    /// Our chains that stand already, by table and name.
    pub chains: BTreeSet<(Table, String)>,
}

/// The text that makes all of ours in a namespace where nothing of ours is.
#[must_use]
pub fn restore(ruleset: &Ruleset, family: Family) -> String {
    replace(ruleset, family, &LeftoverRules::default(), usize::MAX)
}

/// The text that makes all of ours where some of ours is: chains are made anew, those no longer used go, jumps that stand are left.
///
/// Each table is taken in one step, unless it has more rules than `step`: then in several, no chain before those that it jumps to.
#[must_use]
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

/// The text that turns what stands for `before` into what is to stand for `after`: the rules that differ, by their places. Nothing if
/// none does. A chain is not emptied and filled again: with nftables underneath, iptables waits until all that is deleted is destroyed.
///
/// It does not turn one interface or one set of reserved ports into another: that is a [`Delta::rewrite`].
#[must_use]
pub fn delta(before: &Ruleset, delta: &Delta, after: &Ruleset, family: Family) -> Option<String> {
    let mut touched: BTreeSet<Chain> = delta.ports.keys().flat_map(|key| chain::way(*key)).collect();
    touched.extend((!delta.source.is_empty()).then_some(Chain::Postrouting));
    touched.extend([Chain::Cluster, Chain::Forward].into_iter().filter(|_| !delta.from_cluster.is_empty()));
    touched.extend((!delta.from_tailnet.is_empty()).then_some(Chain::Tailnet));
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

/// The text that takes away what was found.
#[must_use]
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

/// The text that tries all that we need, in chains that nothing jumps to, and the text that takes them away again.
#[must_use]
pub fn trial(interface: &InterfaceName, family: Family) -> (String, String) {
    let empty = Ruleset::empty(interface.clone());
    let jumps = Jump::ALL.into_iter().collect();
    let chains = chain::all(&empty).into_iter().map(|chain| (chain.table(), chain.to_string())).collect();
    let make = replace(&empty, family, &LeftoverRules { jumps, chains: BTreeSet::new() }, usize::MAX);
    let unmake = remove(&LeftoverRules { jumps: BTreeSet::new(), chains }).unwrap_or_default();
    (make.replace(PREFIX, TRIAL), unmake.replace(PREFIX, TRIAL))
}

/// What an `iptables-save -c` dump says was counted for each match port of the ruleset that was written.
#[must_use]
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
        // A chain with other rules than ours counts nothing of ours; the audit will find it.
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

/// Chains of ours that an `iptables-save` dump names.
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

/// What of an `iptables-save` dump is ours, counters left out: two dumps that agree in it hold the same rules of ours.
#[must_use]
pub fn ours(dump: &str) -> Vec<String> {
    let ours = dump.lines().filter(|line| line.starts_with('*') || line.contains(PREFIX));
    let plain = |line: &str| if line.starts_with(':') { line.split(" [").next().unwrap_or(line).to_owned() } else { line.to_owned() };
    ours.map(plain).collect()
}

/// A restore text in the making: for each table declarations first, then rules, then what goes.
#[derive(Debug)]
struct Text {
    /// How many rules one step may have.
    step: usize,
    parts: BTreeMap<Table, RulePart>,
}

#[derive(Debug, Default)]
struct RulePart {
    /// Steps that are complete.
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

    /// A chain with these rules and no others; declaring a chain empties it if it stands.
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

    /// Turns one list of rules of a chain into another: what is between their common beginning and their common end goes or comes.
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
