//! Connection tracking of this network namespace, over ctnetlink.
//!
//! Lists flows, deletes single ones, reads the table's size and counters; [`crate::model::flows::cleanup`] decides which flows to delete.
//! Blocking: the kernel responds at once, but a dump of many flows takes milliseconds, so async callers use `spawn_blocking`.

pub mod wire;

use std::io;
use std::ops::ControlFlow;

use serde::Serialize;

use crate::model::base::net::Family;
use crate::model::firewall::netlink::NETFILTER_HEADER;
use crate::model::flows::flow::{Flow, FlowFilter};
use crate::runtime::nfnetlink::{Answer, DumpEnd, NfnetlinkSocket, answers_lost, is_absent, outcome};

/// Deletions in one netlink message.
const BATCH: usize = 64;
/// Maximum attempts of a disturbed listing.
const ATTEMPTS: usize = 4;

#[derive(Debug)]
pub struct Conntrack {
    socket: NfnetlinkSocket,
}

/// Size of this namespace's conntrack table, and its drop counters since the creation of the namespace.
///
/// A full table (`entries` at `limit`, `dropped` growing) rejects new flows without harm to existing ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Pressure {
    pub entries: u32,
    /// Kernel limit (`net.netfilter.nf_conntrack_max`).
    pub limit: u32,
    /// Packets dropped because the table was full or memory was short.
    pub dropped: u64,
    /// Unanswered flows evicted early to make room.
    pub evicted: u64,
    /// Failed insertions (clashing tuples).
    pub insert_failed: u64,
}

#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
pub enum ConntrackError {
    #[error("cannot open connection tracking's netlink socket (the kernel needs nf_conntrack_netlink): {0}")]
    Open(#[source] io::Error),
    /// A listing failed, or was disturbed in each attempt.
    #[error("cannot list tracked flows (NET_ADMIN is needed): {0}")]
    List(#[source] io::Error),
    /// A deletion failed for another reason than a missing flow.
    #[error("cannot delete a tracked flow (NET_ADMIN is needed): {0}")]
    Delete(#[source] io::Error),
    #[error("cannot read connection tracking's counters: {0}")]
    Count(#[source] io::Error),
}

impl ConntrackError {
    /// Closed set of values for metric labels.
    pub fn reason(&self) -> &'static str {
        self.into()
    }
}

impl Conntrack {
    /// Opens a socket in the calling thread's namespace.
    pub fn open() -> Result<Self, ConntrackError> {
        NfnetlinkSocket::open().map(|socket| Self { socket }).map_err(ConntrackError::Open)
    }

    /// Lists the flows that match the filter. Flows that begin or end meanwhile may be included or not.
    pub fn flows(&mut self, filter: FlowFilter) -> Result<Vec<Flow>, ConntrackError> {
        let mut flows = Vec::new();
        // The kernel compares ports only within a family.
        if filter.key.is_some() && filter.family.is_none() {
            for family in Family::ALL {
                self.list(FlowFilter { family: Some(family), ..filter }, &mut flows)?;
            }
        } else {
            self.list(filter, &mut flows)?;
        }
        Ok(flows)
    }

    fn list(&mut self, filter: FlowFilter, flows: &mut Vec<Flow>) -> Result<(), ConntrackError> {
        let others = flows.len();
        for _ in 0..ATTEMPTS {
            flows.truncate(others);
            // The kernel cannot filter by TCP state; most entries may be closed flows and are not worth a full parse.
            let read = |answer: &Answer<'_>| {
                let attributes = attributes(answer);
                let flow = filter.admits_state(wire::parse_state(attributes)).then(|| wire::parse_flow(attributes));
                flows.extend(flow.flatten().filter(|flow| filter.admits(flow)));
            };
            match self.socket.request(|sequence| wire::dump(filter, sequence), read) {
                Ok(DumpEnd::Complete) => return Ok(()),
                Ok(DumpEnd::Disturbed) => {}
                // Responses were lost for lack of buffer space: the rest must not be read as part of the next listing.
                Err(error) if answers_lost(&error) => *self = Self::open()?,
                Err(error) => return Err(ConntrackError::List(error)),
            }
        }
        Err(ConntrackError::List(io::Error::other("the table kept changing while it was read")))
    }

    /// Deletes exactly these flows; returns how many existed, except those whose responses were lost. A newer flow with the same tuple is
    /// not deleted. After an error other flows may remain.
    pub fn delete_all<'a>(&mut self, flows: impl IntoIterator<Item = &'a Flow>) -> Result<usize, ConntrackError> {
        let flows: Vec<&Flow> = flows.into_iter().collect();
        let mut deleted = 0;
        for batch in flows.chunks(BATCH) {
            let mut answer = self.delete_batch(batch);
            if answer.as_ref().is_err_and(answers_lost) {
                // It is unknown which are deleted: the batch is repeated, which is harmless for deleted flows.
                *self = Self::open()?;
                answer = self.delete_batch(batch);
            }
            deleted += answer.map_err(ConntrackError::Delete)?;
        }
        Ok(deleted)
    }

    fn delete_batch(&mut self, flows: &[&Flow]) -> io::Result<usize> {
        let (mut requests, mut last) = (Vec::new(), self.socket.next_sequence().wrapping_sub(1));
        for flow in flows {
            last = last.wrapping_add(1);
            requests.extend(wire::delete(flow, last));
        }
        let (mut waiting, mut deleted, mut fault) = (flows.len(), 0, None);
        self.socket.exchange(&requests, last, |answer| {
            match outcome(answer) {
                Some(Ok(())) => deleted += 1,
                Some(Err(error)) if !is_absent(&error) => fault = Some(error),
                _ => {}
            }
            waiting -= 1;
            if waiting == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        fault.map_or(Ok(deleted), Err)
    }

    /// Reads size and counters of the table.
    pub fn pressure(&mut self) -> Result<Pressure, ConntrackError> {
        let mut pressure = Pressure::default();
        let mut stats = |answer: &Answer<'_>| wire::parse_stats(attributes(answer), &mut pressure);
        self.socket.request(wire::get_stats, &mut stats).map_err(ConntrackError::Count)?;
        let mut stats = |answer: &Answer<'_>| wire::parse_stats_cpu(attributes(answer), &mut pressure);
        self.socket.request(wire::get_stats_cpu, &mut stats).map_err(ConntrackError::Count)?;
        Ok(pressure)
    }
}

fn attributes<'a>(answer: &Answer<'a>) -> &'a [u8] {
    answer.payload().get(NETFILTER_HEADER..).unwrap_or_default()
}

#[cfg(test)]
mod tests;
