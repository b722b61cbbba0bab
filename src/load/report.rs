//! What a load says as it goes, one value for each line of JSON. Times are seconds since its start, if nothing else is said.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::Serialize;

use crate::model::base::net::Proto;
use crate::model::diagnostics::load::{AttemptFailure, FailureWindow, Percentiles};

#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Line {
    Start {
        /// When, in seconds since 1970.
        unix: f64,
        to: Vec<String>,
        /// New connections and UDP flows each second.
        rate: u32,
        /// How long it lasts at most.
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
        /// Which, counted from zero. The active ones come first.
        flow: u16,
        /// Whether it never asks by itself.
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
        /// What the server said first.
        said: String,
    },
    NotOpened(AttemptFailure),
    /// It was ended, or hangs (`timeout`).
    Ended(AttemptFailure),
    /// It answered the last question; the load is over.
    Kept,
}

#[derive(Debug, Clone, Serialize)]
pub struct Second {
    pub at: f64,
    /// Attempts answered by the intended target so far.
    pub answered: u64,
    pub failed: u64,
    pub in_flight: u64,
    /// Those answered within the last second: how long each took from when it was due.
    pub answer: Percentiles,
    pub flows: Flows,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Flows {
    pub open: u64,
    pub answered: u64,
    pub not_opened: u64,
    pub reset: u64,
    /// Those that ended in any other way before the load did, but not by hanging.
    pub ended: u64,
    /// Those whose server did not answer any more.
    pub hung: u64,
}

#[derive(Debug, Clone, Serialize)]
pub struct LoadSummary {
    /// Whether nothing failed and every connection that was held open lasted.
    pub ok: bool,
    pub seconds: f64,
    /// Attempts begun, or due and not begun for want of room.
    pub offered: u64,
    /// Those answered by the intended target, by protocol.
    pub answered: BTreeMap<Proto, u64>,
    pub failed: BTreeMap<AttemptFailure, u64>,
    pub windows: Vec<FailureWindow>,
    pub resent: u64,
    /// How long TCP connections took to stand, from when they were due.
    pub connect: Percentiles,
    /// How long answers took, from when their attempts were due.
    pub answer: Percentiles,
    pub flows: Flows,
}
