//! What a replica is told, and what it says is to be done.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Certificate, Note, Record, Window};

/// What came of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// It was made; the record as it is now.
    Done(Record),
    /// The record is another version by now, which will be seen.
    Conflict,
    /// It could not be made.
    Failed,
}

/// An order failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Failed {
    /// How long the server wants not to be asked.
    pub retry_after: Option<Duration>,
    /// Somebody was away: it cost nothing of what a server allows, and is tried again soon however often it was.
    pub outage: bool,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A time that was asked for has come.
    Tick,
    /// These names are to have certificates, and no others.
    Wanted(BTreeSet<String>),
    /// A record was seen, or is gone.
    Seen(String, Option<Record>),
    /// This replica leads, or does no more.
    Leads(bool),
    /// The note of [`Action::Claim`] was to be written.
    Claimed(String, Written),
    /// An order ended.
    Ended(String, Result<Certificate, Failed>),
    /// A write of [`Action::Store`] or [`Action::Release`] was to be made.
    Stored(String, Written),
    /// What the server suggests, and when it wants to be asked again.
    Suggested(String, Option<Window>, Option<Duration>),
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Write this note, if the record is still of this version; answer with [`Event::Claimed`].
    Claim {
        /// The name.
        name: String,
        /// The version.
        version: String,
        /// The note.
        note: Note,
    },
    /// Order a certificate; answer with [`Event::Ended`].
    Order {
        /// The name.
        name: String,
        /// The certificate that it replaces.
        replaces: Option<String>,
    },
    /// Give the order up: its end is not waited for.
    Abandon(String),
    /// Write the certificate that was issued, and an empty note, if the record is still of this version; answer with
    /// [`Event::Stored`].
    Store {
        /// The name.
        name: String,
        /// The version.
        version: String,
    },
    /// Write this note of a failure; answer with [`Event::Stored`].
    Release {
        /// The name.
        name: String,
        /// The version.
        version: String,
        /// The note.
        note: Note,
    },
    /// Ask the server when this certificate should be replaced; answer with [`Event::Suggested`].
    Suggest {
        /// The name.
        name: String,
        /// The certificate.
        certificate: String,
    },
}
