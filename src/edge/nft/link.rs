//! nftables over netlink: element batches, dumps, generation. Blocking; the kernel responds at once.

use std::io;
use std::ops::ControlFlow;

use super::NftError;
use crate::model::firewall::Audit;
use crate::model::firewall::nft::TABLE;
use crate::model::firewall::nft::dump::{DumpedElements, drift};
use crate::model::firewall::nft::element::{Edits, Element, Set};
use crate::model::firewall::nft::wire::{Dump, Message, batch, decode, dump, generation};
use crate::model::firewall::ruleset::Ruleset;
use crate::runtime::nfnetlink::{Answer, NfnetlinkSocket, is_absent, outcome};

/// Number of elements that fit the default socket buffer in one transaction, of nft or of this module.
pub(super) const SMALL: usize = 2000;
/// Maximum attempts of a read that concurrent writes disturb.
const ATTEMPTS: usize = 3;

/// Netlink socket, and the state of our table as last seen through it.
#[derive(Debug)]
pub(super) struct NftSocket {
    pub(super) socket: NfnetlinkSocket,
    /// Generation after our last transaction, if no foreign transaction came between.
    generation: Option<u32>,
    /// Table, chains and rules as dumped right after their creation.
    rules: Option<Vec<Vec<u8>>>,
}

impl NftSocket {
    pub(super) fn open() -> Result<Self, NftError> {
        let socket = NfnetlinkSocket::open().map_err(|source| NftError::Kernel { what: "open a netlink socket", source })?;
        Ok(Self { socket, generation: None, rules: None })
    }

    /// Commits a change of elements.
    pub(super) fn commit(&mut self, edits: &Edits) -> Result<(), NftError> {
        if edits.delete.is_empty() && edits.add.is_empty() {
            return Ok(());
        }
        let batch = batch(edits, self.socket.next_sequence());
        // The end of the batch has its own sequence number.
        let committed = self.socket.exchange(&batch.bytes, batch.last.wrapping_add(1), |answer| match outcome(answer) {
            Some(Ok(())) if answer.sequence_number() == batch.last => ControlFlow::Break(Ok(())),
            Some(Err(error)) => ControlFlow::Break(Err(error)),
            _ => ControlFlow::Continue(()),
        });
        committed.flatten().map_err(|source| {
            self.generation = None;
            NftError::Kernel { what: "change elements", source }
        })?;
        self.follow()
    }

    /// Stores the generation after one transaction of ours, if no other came between.
    fn follow(&mut self) -> Result<(), NftError> {
        let now = self.generation()?;
        self.generation = self.generation.filter(|before| before.wrapping_add(1) == now).map(|_| now);
        Ok(())
    }

    /// Whether our table does not exist.
    pub(super) fn absent(&mut self) -> Result<bool, NftError> {
        Ok(!self.dump(Dump::Tables)?.iter().any(ours))
    }

    /// Adds the elements to a table that has none, except those created with the rules; returns the number of transactions.
    pub(super) fn fill(&mut self, mut elements: Vec<Element>) -> Result<u32, NftError> {
        elements.retain(|element| element.set != Set::Reserved);
        let (most, mut transactions) = (if self.socket.send_unlimited { usize::MAX } else { SMALL }, 0);
        while !elements.is_empty() {
            let rest = elements.split_off(elements.len().min(most));
            self.commit(&Edits { delete: Vec::new(), add: elements })?;
            elements = rest;
            transactions += 1;
        }
        Ok(transactions)
    }

    /// Stores the dump of a new table, if `expected` shows that there was no concurrent write.
    pub(super) fn settle(&mut self, expected: u32) -> Result<(), NftError> {
        let rules = self.rules()?;
        let undisturbed = self.generation()? == expected;
        (self.generation, self.rules) = if undisturbed { (Some(expected), Some(rules)) } else { (None, None) };
        Ok(())
    }

    /// Whether nftables is unchanged since our last transaction.
    pub(super) fn untouched(&mut self) -> Result<bool, NftError> {
        let now = self.generation()?;
        Ok(self.generation == Some(now) && self.rules.is_some())
    }

    /// Dumps the whole table and compares it.
    pub(super) fn audit(&mut self, ruleset: &Ruleset) -> Result<Audit, NftError> {
        let drifted = |what: &str| Ok(Audit::Drifted { what: what.to_owned() });
        for _ in 0..ATTEMPTS {
            let before = self.generation()?;
            let rules = self.rules()?;
            let Some(ours) = &self.rules else { return drifted("others changed nftables while the table was made") };
            if *ours != rules {
                return drifted(if rules.is_empty() { "the table is gone" } else { "the rules are not as they were made" });
            }
            let dumped = self.elements(Set::ALL.into_iter())?;
            if self.generation()? == before {
                return Ok(drift(ruleset, &dumped).map_or(Audit::Same, |what| Audit::Drifted { what })).inspect(|audit| {
                    self.generation = (*audit == Audit::Same).then_some(before);
                });
            }
        }
        Err(NftError::Unsteady)
    }

    pub(super) fn elements(&mut self, sets: impl Iterator<Item = Set>) -> Result<DumpedElements, NftError> {
        let mut dumped = DumpedElements::new();
        for set in sets {
            let elements = dumped.entry(set).or_default();
            for message in self.dump(Dump::Elements(set))? {
                if let Message::Elements(some) = message {
                    elements.extend(some);
                }
            }
        }
        Ok(dumped)
    }

    /// Reads the generation: the number of transactions in this network namespace.
    pub(super) fn generation(&mut self) -> Result<u32, NftError> {
        let fault = |source| NftError::Kernel { what: "report its generation of rules", source };
        let mut found = None;
        let read = |answer: &Answer<'_>| {
            if let Some(Message::Generation { id, .. }) = decoded(answer) {
                found = Some(id);
            }
        };
        self.socket.request(generation, read).map_err(fault)?;
        found.ok_or_else(|| fault(io::ErrorKind::InvalidData.into()))
    }

    /// Dumps table, chains and rules as bytes; they include no counters.
    fn rules(&mut self) -> Result<Vec<Vec<u8>>, NftError> {
        let mut rules = Vec::new();
        for what in [Dump::Tables, Dump::Chains, Dump::Rules] {
            let objects = self.dump(what)?.into_iter().filter(ours);
            rules.extend(objects.filter_map(|message| if let Message::Object { body, .. } = message { Some(body) } else { None }));
        }
        Ok(rules)
    }

    /// Messages of a dump; empty if the dumped object does not exist.
    fn dump(&mut self, what: Dump) -> Result<Vec<Message>, NftError> {
        let mut found = Vec::new();
        match self.socket.request(|sequence| dump(what, sequence), |answer| found.extend(decoded(answer))) {
            Err(source) if !is_absent(&source) => Err(NftError::Kernel { what: "list our table", source }),
            _ => Ok(found),
        }
    }
}

fn decoded(answer: &Answer<'_>) -> Option<Message> {
    decode(answer.message_type(), answer.port_number(), answer.payload())
}

fn ours(message: &Message) -> bool {
    matches!(message, Message::Object { table, .. } if table == TABLE.as_bytes())
}
