//! What a replica is told, and what it says is to be done.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Certificate, NameRecord, RenewalWindow};
use crate::api::issuance::OrderNote;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteResult {
    /// It was made; the record as it is now.
    Done(NameRecord),
    /// The record is another version by now, which will be seen.
    Conflict,
    Failed,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OrderFailure {
    /// How long the server wants not to be asked.
    pub retry_after: Option<Duration>,
    /// Somebody was away: it cost nothing of what a server allows, and is tried again soon however often it was.
    pub outage: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum OrderEvent {
    /// A time that was asked for has come.
    Tick,
    /// These names are to have certificates, and no others.
    Wanted(BTreeSet<String>),
    Seen(String, Option<NameRecord>),
    Leads(bool),
    /// The note of [`OrderAction::Claim`] was to be written.
    Claimed(String, WriteResult),
    Ended(String, Result<Certificate, OrderFailure>),
    /// A write of [`OrderAction::Store`] or [`OrderAction::Release`] was to be made.
    Stored(String, WriteResult),
    /// What the server suggests, and when it wants to be asked again.
    Suggested(String, Option<RenewalWindow>, Option<Duration>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderAction {
    /// Write this note, if the record is still of this version; answer with [`OrderEvent::Claimed`].
    Claim { name: String, version: String, note: OrderNote },
    /// Order a certificate; answer with [`OrderEvent::Ended`].
    Order { name: String, replaces: Option<String> },
    /// Give the order up: its end is not waited for.
    Abandon(String),
    /// Write the certificate that was issued, and an empty note, if the record is still of this version; answer with
    /// [`OrderEvent::Stored`].
    Store { name: String, version: String },
    /// Write this note of a failure; answer with [`OrderEvent::Stored`].
    Release { name: String, version: String, note: OrderNote },
    /// Ask the server when this certificate should be replaced; answer with [`OrderEvent::Suggested`].
    Suggest { name: String, certificate: String },
}
