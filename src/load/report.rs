//! Report of a load, one value for each line of JSON. Times are seconds since its start, unless stated otherwise.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::Serialize;

use crate::model::base::net::Proto;
use crate::model::diagnostics::load::{AttemptFailure, FailureWindow, Percentiles};

#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Line {
    Start {
        /// Start time in seconds since 1970.
        unix: f64,
        to: Vec<String>,
        /// New connections and UDP flows each second.
        rate: u32,
        /// Maximum duration.
        seconds: f64,
    },
    Fault {
        at: f64,
        began: f64,
        ended: f64,
        proto: Proto,
        to: SocketAddr,
        failure: AttemptFailure,
    },
    Flow {
        at: f64,
        /// Index from zero; active flows come first.
        flow: u16,
        /// Whether the flow sends no requests before the end of the load.
        idle: bool,
        to: SocketAddr,
        what: LoadEvent,
    },
    Second(Second),
    Summary(LoadSummary),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadEvent {
    Open {
        /// The server's first line.
        #[serde(rename = "said")]
        greeting: String,
    },
    NotOpened(AttemptFailure),
    /// Closed or reset, or hung (`timeout`).
    Ended(AttemptFailure),
    /// The last request was answered at the end of the load.
    Kept,
}

#[derive(Debug, Clone, Serialize)]
pub struct Second {
    pub at: f64,
    /// Attempts answered by the intended target so far.
    pub answered: u64,
    pub failed: u64,
    pub in_flight: u64,
    /// Latency of attempts answered within the last second, from their due time.
    pub answer: Percentiles,
    pub flows: Flows,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Flows {
    pub open: u64,
    pub answered: u64,
    pub not_opened: u64,
    pub reset: u64,
    /// Flows that ended in any other way before the end of the load, except hung ones.
    pub ended: u64,
    /// Flows whose server stopped answering.
    pub hung: u64,
}

#[derive(Debug, Clone, Serialize)]
pub struct LoadSummary {
    /// Whether nothing failed and every long-lived connection lasted.
    pub ok: bool,
    pub seconds: f64,
    /// Attempts started, or due and not started because of the in-flight limit.
    pub offered: u64,
    /// Attempts answered by the intended target, by protocol.
    pub answered: BTreeMap<Proto, u64>,
    pub failed: BTreeMap<AttemptFailure, u64>,
    pub windows: Vec<FailureWindow>,
    pub resent: u64,
    /// Time to establish TCP connections, from their due time.
    pub connect: Percentiles,
    /// Time to the answer, from the attempt's due time.
    pub answer: Percentiles,
    pub flows: Flows,
}
