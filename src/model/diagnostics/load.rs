//! Open-loop load measurement: schedule of attempts, expected answer at each moment, and results.
//!
//! Attempts are due by the clock, not after the last answer, and latency counts from the due time: a slow server neither reduces the load
//! nor improves its own figures. All times are offsets from the start of the run. Pure: nothing here sends, sleeps or reads a clock.

mod expectations;
mod tally;
#[cfg(test)]
mod tests;
mod windows;

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use serde::Serialize;

pub use expectations::{AnswerVerdict, Expectations};
pub use tally::{FailedAttempt, Percentiles, Tally};
pub use windows::{FailureWindow, Windows};

use crate::model::base::net::Proto;

/// Identity of the answering target, and its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct TargetIdentity {
    pub target: u16,
    /// Port as seen by the target itself.
    pub port: u16,
}

/// A service through one replica: the unit that changes its target at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Lane {
    pub service: u32,
    pub replica: u8,
}

/// One attempt: a new connection or a new UDP flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    pub lane: Lane,
    pub proto: Proto,
    pub to: SocketAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptFailure {
    /// TCP reset on connect, or ICMP port unreachable.
    Refused,
    /// TCP reset of an established connection.
    Reset,
    /// No answer in time.
    Timeout,
    /// No route, or ICMP host or network unreachable.
    Unreachable,
    /// Orderly close instead of an answer.
    Closed,
    /// Answer that does not match the request.
    Garbled,
    /// Answer of a target that was not expected at that moment.
    WrongTarget,
    /// Limits of the generator itself (sockets, ports, attempts in flight, CPU) prevented sending in time; says nothing about the network.
    NotSent,
}

impl fmt::Display for AttemptFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "refused",
            Self::Reset => "reset",
            Self::Timeout => "timed out",
            Self::Unreachable => "unreachable",
            Self::Closed => "closed without an answer",
            Self::Garbled => "answered with something else",
            Self::WrongTarget => "to a wrong target",
            Self::NotSent => "not sent (the generator's own limits)",
        })
    }
}

/// An attempt with its times and outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptReport {
    pub attempt: Attempt,
    pub due: Duration,
    pub began: Duration,
    /// Time of the connection's establishment; for UDP, of sending.
    pub connected: Option<Duration>,
    pub ended: Duration,
    /// Number of retransmitted datagrams: UDP applications retransmit themselves.
    pub resent: u32,
    /// Answering target, or the failure.
    pub outcome: Result<TargetIdentity, AttemptFailure>,
}

/// Schedule of a constant load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadSchedule {
    per_second: NonZeroU32,
}

impl LoadSchedule {
    /// Evenly spaced attempts at this rate.
    pub fn new(per_second: NonZeroU32) -> Self {
        Self { per_second }
    }

    /// Due time of an attempt, counted from zero.
    pub fn due(self, number: u64) -> Duration {
        let rate = u64::from(self.per_second.get());
        let (seconds, rest) = (number / rate, number % rate);
        Duration::from_secs(seconds) + Duration::from_nanos(rest * 1_000_000_000 / rate)
    }

    /// Number of attempts due within this time.
    pub fn within(self, time: Duration) -> u64 {
        let rate = u64::from(self.per_second.get());
        time.as_secs() * rate + u64::from(time.subsec_nanos()) * rate / 1_000_000_000
    }
}
