//! Events and actions of certificate orders.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Certificate, NameRecord, RenewalWindow};
use crate::api::issuance::OrderNote;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteResult {
    /// Written; the new record.
    Done(NameRecord),
    /// The record has another version, which will be observed.
    Conflict,
    Failed,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OrderFailure {
    /// Minimum delay requested by the server.
    pub retry_after: Option<Duration>,
    /// Whether a service was unreachable: rate limits are not affected, so retries remain frequent.
    pub outage: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum OrderEvent {
    /// The time of `Issuer::wake` has come.
    Tick,
    /// Replaces the set of names that need certificates.
    Wanted(BTreeSet<String>),
    Seen(String, Option<NameRecord>),
    Leads(bool),
    /// Result of [`OrderAction::Claim`].
    Claimed(String, WriteResult),
    Ended(String, Result<Certificate, OrderFailure>),
    /// Result of [`OrderAction::Store`] or [`OrderAction::Release`].
    Stored(String, WriteResult),
    /// Renewal window suggested by the server, and the delay until the next request.
    Suggested(String, Option<RenewalWindow>, Option<Duration>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderAction {
    /// Write this note if the record still has this version; the result is [`OrderEvent::Claimed`].
    Claim { name: String, version: String, note: OrderNote },
    /// Order a certificate; the result is [`OrderEvent::Ended`].
    Order { name: String, replaces: Option<String> },
    /// Abandon the order; its result is ignored.
    Abandon(String),
    /// Write the issued certificate and an empty note if the record still has this version; the result is [`OrderEvent::Stored`].
    Store { name: String, version: String },
    /// Write this note of a failure; the result is [`OrderEvent::Stored`].
    Release { name: String, version: String, note: OrderNote },
    /// Request the renewal window of this certificate; the result is [`OrderEvent::Suggested`].
    Suggest { name: String, certificate: String },
}
