//! What an open-loop load is measured by: when each attempt is due, which answer is right at that moment, and the tally.
//!
//! Attempts are due by the clock and not by the last answer, and a latency counts from the moment its attempt was due:
//! a slow server makes neither the load smaller nor its own figures better. Every time here is an offset from the start
//! of the run; nothing here sends, sleeps or looks at a clock.

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

/// Who answered: which target, on which of its ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct TargetIdentity {
    pub target: u16,
    /// The port that the target itself saw.
    pub port: u16,
}

/// A service as reached by one replica: what changes target at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Lane {
    pub service: u32,
    pub replica: u8,
}

/// One thing to try: a new connection or a new UDP flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    pub lane: Lane,
    pub proto: Proto,
    pub to: SocketAddr,
}

/// How an attempt ended that was not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptFailure {
    /// TCP reset on connecting, or ICMP port unreachable.
    Refused,
    /// TCP reset of an established connection.
    Reset,
    /// No answer in time.
    Timeout,
    /// No route, or ICMP host or network unreachable.
    Unreachable,
    /// Orderly end in place of an answer.
    Closed,
    /// An answer to something else.
    Garbled,
    /// The answer of a target that was not the right one at that moment.
    WrongTarget,
    /// The generator's own limits (sockets, ports, attempts in flight, its processor) kept it from sending in time; nothing is said of
    /// the network.
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

/// An attempt, its times and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptReport {
    pub attempt: Attempt,
    pub due: Duration,
    pub began: Duration,
    /// When the connection stood; for UDP, when the datagram was sent.
    pub connected: Option<Duration>,
    pub ended: Duration,
    /// How many datagrams had to be sent again, as UDP's users do themselves.
    pub resent: u32,
    /// Who answered, or how it failed.
    pub outcome: Result<TargetIdentity, AttemptFailure>,
}

/// When each attempt of a constant load is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadSchedule {
    per_second: NonZeroU32,
}

impl LoadSchedule {
    /// So many attempts each second, evenly spread.
    pub fn new(per_second: NonZeroU32) -> Self {
        Self { per_second }
    }

    /// When the attempt of this number, counted from zero, is due.
    pub fn due(self, number: u64) -> Duration {
        let rate = u64::from(self.per_second.get());
        let (seconds, rest) = (number / rate, number % rate);
        Duration::from_secs(seconds) + Duration::from_nanos(rest * 1_000_000_000 / rate)
    }

    /// How many attempts are due within the time.
    pub fn within(self, time: Duration) -> u64 {
        let rate = u64::from(self.per_second.get());
        time.as_secs() * rate + u64::from(time.subsec_nanos()) * rate / 1_000_000_000
    }
}
