//! The netlink socket of nftables: batches of elements, dumps, the generation. Blocking; the kernel answers at once.

use std::fmt;
use std::io;
use std::time::Duration;

use netlink_sys::constants::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;

use super::NftError;
use crate::model::firewall::Audit;
use crate::model::firewall::nft::TABLE;
use crate::model::firewall::nft::dump::{DumpedElements, drift};
use crate::model::firewall::nft::element::{Edits, Element, Set};
use crate::model::firewall::nft::wire::{Dump, Message, batch, dump, generation, messages};
use crate::model::firewall::ruleset::Ruleset;

/// As many elements fit a socket's default buffer in one transaction, nft's or ours.
pub(super) const SMALL: usize = 2000;

/// How large a transaction may be where the buffer may be raised at will: some 200,000 elements.
const BUFFER: usize = 16 << 20;
/// The kernel answers within the call; only a kernel gone wrong lets us wait.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The kernel fills at most 32 KiB of a dump at once.
const READ: usize = 64 << 10;
/// How often a reading that somebody else's writing disturbed is begun again.
const ATTEMPTS: usize = 3;

/// What is known of our table through this socket.
pub(super) struct NftSocket {
    socket: Socket,
    port: u32,
    roomy: bool,
    sequence: u32,
    /// The generation that our last transaction left, if nobody else's came between.
    generation: Option<u32>,
    /// The table, its chains and rules as the kernel told them right after they were made.
    rules: Option<Vec<Vec<u8>>>,
}

impl fmt::Debug for NftSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("port", &self.port).field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl NftSocket {
    pub(super) fn open() -> Result<Self, NftError> {
        let fault = |source| NftError::Kernel { what: "open a netlink socket", source };
        let mut socket = Socket::new(NETLINK_NETFILTER).map_err(fault)?;
        let port = socket.bind_auto().map_err(fault)?.port_number();
        socket.connect(&SocketAddr::new(0, 0)).map_err(fault)?;
        socket.set_cap_ack(true).map_err(fault)?;
        let patience = TimeVal::new(TIMEOUT.as_secs().cast_signed(), 0);
        setsockopt(&socket, sockopt::ReceiveTimeout, &patience).map_err(|errno| fault(errno.into()))?;
        let roomy = setsockopt(&socket, sockopt::SndBufForce, &BUFFER).is_ok();
        if !roomy {
            setsockopt(&socket, sockopt::SndBuf, &BUFFER).map_err(|errno| fault(errno.into()))?;
        }
        Ok(Self { socket, port, roomy, sequence: 0, generation: None, rules: None })
    }

    /// The netlink port by which our transactions are known in notices.
    pub(super) fn port(&self) -> u32 {
        self.port
    }

    /// Whether a transaction may be of any size.
    pub(super) fn roomy(&self) -> bool {
        self.roomy
    }

    /// Commits a change of elements.
    pub(super) fn commit(&mut self, edits: &Edits) -> Result<(), NftError> {
        if edits.delete.is_empty() && edits.add.is_empty() {
            return Ok(());
        }
        let batch = batch(edits, self.sequence.wrapping_add(1));
        self.sequence = batch.last.wrapping_add(1);
        let fault = |source| NftError::Kernel { what: "change elements", source };
        self.socket.send(&batch.bytes, 0).map_err(fault)?;
        'answers: loop {
            for (sequence, message) in self.read().map_err(fault)?? {
                match message {
                    Message::Outcome(0) if sequence == batch.last => break 'answers,
                    Message::Outcome(errno) if errno != 0 && sequence.wrapping_sub(batch.first) <= batch.last.wrapping_sub(batch.first) => {
                        self.generation = None;
                        return Err(fault(io::Error::from_raw_os_error(errno)));
                    }
                    _ => {}
                }
            }
        }
        self.follow()
    }

    /// Notes the generation that one transaction of ours left, if it can only be ours.
    pub(super) fn follow(&mut self) -> Result<(), NftError> {
        let now = self.generation()?;
        self.generation = self.generation.filter(|before| before.wrapping_add(1) == now).map(|_| now);
        Ok(())
    }

    /// Whether our table is there at all.
    pub(super) fn absent(&mut self) -> Result<bool, NftError> {
        Ok(!self.dump(Dump::Tables)?.iter().any(ours))
    }

    /// Adds the elements to a table without any, but for those that came with the rules; says in how many transactions.
    pub(super) fn fill(&mut self, mut elements: Vec<Element>) -> Result<u32, NftError> {
        elements.retain(|element| element.set != Set::Reserved);
        let (most, mut transactions) = (if self.roomy { usize::MAX } else { SMALL }, 0);
        while !elements.is_empty() {
            let rest = elements.split_off(elements.len().min(most));
            self.commit(&Edits { delete: Vec::new(), add: elements })?;
            elements = rest;
            transactions += 1;
        }
        Ok(transactions)
    }

    /// Notes what a whole new table looks like, if `expected` says that nobody else wrote while it was made.
    pub(super) fn settle(&mut self, expected: u32) -> Result<(), NftError> {
        let rules = self.rules()?;
        let undisturbed = self.generation()? == expected;
        (self.generation, self.rules) = if undisturbed { (Some(expected), Some(rules)) } else { (None, None) };
        Ok(())
    }

    /// Whether nobody wrote to nftables since our last transaction.
    pub(super) fn untouched(&mut self) -> Result<bool, NftError> {
        let now = self.generation()?;
        Ok(self.generation == Some(now) && self.rules.is_some())
    }

    /// Reads the whole table and compares.
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

    /// The generation: the number of transactions that anybody made in this network namespace.
    pub(super) fn generation(&mut self) -> Result<u32, NftError> {
        self.sequence = self.sequence.wrapping_add(1);
        let fault = |source| NftError::Kernel { what: "tell its generation of rules", source };
        self.socket.send(&generation(self.sequence), 0).map_err(fault)?;
        loop {
            for (sequence, message) in self.read().map_err(fault)?? {
                match message {
                    Message::Generation { id, .. } if sequence == self.sequence => return Ok(id),
                    Message::Outcome(errno) if sequence == self.sequence && errno != 0 => {
                        return Err(fault(io::Error::from_raw_os_error(errno)));
                    }
                    _ => {}
                }
            }
        }
    }

    /// The table, its chains and rules as bytes; nothing that counts is among them.
    fn rules(&mut self) -> Result<Vec<Vec<u8>>, NftError> {
        let mut rules = Vec::new();
        for what in [Dump::Tables, Dump::Chains, Dump::Rules] {
            let objects = self.dump(what)?.into_iter().filter(ours);
            rules.extend(objects.filter_map(|message| if let Message::Object { body, .. } = message { Some(body) } else { None }));
        }
        Ok(rules)
    }

    fn dump(&mut self, what: Dump) -> Result<Vec<Message>, NftError> {
        self.sequence = self.sequence.wrapping_add(1);
        let fault = |source| NftError::Kernel { what: "list our table", source };
        self.socket.send(&dump(what, self.sequence), 0).map_err(fault)?;
        let mut answers = Vec::new();
        loop {
            for (sequence, message) in self.read().map_err(fault)?? {
                match message {
                    _ if sequence != self.sequence => {}
                    Message::Done => return Ok(answers),
                    Message::Outcome(errno) if errno == nix::errno::Errno::ENOENT as i32 => return Ok(answers),
                    Message::Outcome(errno) => return Err(fault(io::Error::from_raw_os_error(errno))),
                    message => answers.push(message),
                }
            }
        }
    }

    fn read(&self) -> io::Result<Result<Vec<(u32, Message)>, NftError>> {
        let mut buffer = Vec::with_capacity(READ);
        // A socket with a timeout is not resumed after a signal: a child that ends sends one.
        while let Err(fault) = self.socket.recv(&mut buffer, 0) {
            if fault.kind() != io::ErrorKind::Interrupted {
                return Err(fault);
            }
        }
        Ok(messages(&buffer).map_err(NftError::Answer))
    }
}

fn ours(message: &Message) -> bool {
    matches!(message, Message::Object { table, .. } if table == TABLE.as_bytes())
}
