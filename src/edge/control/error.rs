//! How a call to a control plane fails.

use std::time::Duration;

use crate::model::controller::identity::{DeviceId, Mismatch};
use crate::runtime::https::HttpsError;

/// A call failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The settings cannot be used.
    #[error("the control plane's settings cannot be used: {0}")]
    Settings(String),
    /// The HTTPS client cannot be made: its certificate authorities cannot be used.
    #[error("the control plane cannot be asked: {0}")]
    Client(#[from] HttpsError),
    /// The service account's token, with which we would identify ourselves, is not to be had.
    #[error("no service account token to identify with: {0}; is the projected volume with the right audience mounted?")]
    Identity(String),
    /// No connection, or it broke.
    #[error("{call}: the control plane at {url} cannot be reached: {source}")]
    Unreachable { call: &'static str, url: String, source: reqwest::Error },
    /// No answer in time.
    #[error("{call}: no answer from the control plane within {after:?}")]
    Deadline { call: &'static str, after: Duration },
    /// The credentials are refused.
    #[error("{call}: the control plane refuses the credentials ({status}): {message}; {advice}")]
    Denied {
        call: &'static str,
        status: u16,
        message: String,
        /// What to check.
        advice: &'static str,
    },
    /// Too many requests; the pause holds for every call of this client.
    #[error("{call}: the control plane wants a pause of {after:?}")]
    Paused { call: &'static str, after: Duration },
    /// There is no such thing.
    #[error("{call}: the control plane knows no such thing: {message}")]
    Absent { call: &'static str, message: String },
    /// Another refusal.
    #[error("{call}: the control plane answers {status}: {message}")]
    Refused { call: &'static str, status: u16, message: String },
    /// The device is not the one that it is claimed to be.
    #[error("{call}: device {id} is not touched, as {mismatch}; remove it in the admin console if it is a leftover")]
    Mismatch { call: &'static str, id: DeviceId, mismatch: Mismatch },
    /// The answer is none that we understand.
    #[error("{call}: the control plane's answer is not understood: {source}")]
    Answer { call: &'static str, source: serde_json::Error },
}

impl ControlError {
    /// A closed set of words for metric labels and Events.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Settings(_) | Self::Client(_) => "Settings",
            Self::Identity(_) => "Identity",
            Self::Unreachable { .. } => "Unreachable",
            Self::Deadline { .. } => "Deadline",
            Self::Denied { .. } => "Denied",
            Self::Paused { .. } => "Paused",
            Self::Absent { .. } => "Absent",
            Self::Refused { .. } => "Refused",
            Self::Mismatch { .. } => "Mismatch",
            Self::Answer { .. } => "Answer",
        }
    }

    /// The same in words that do not change from one time to the next: for conditions.
    pub fn lasting(&self) -> String {
        match self {
            Self::Paused { call, .. } => format!("{call}: the control plane wants fewer requests; it is asked later"),
            other => other.to_string(),
        }
    }

    /// Whether the same call may well succeed later with nothing changed here.
    pub fn passes(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Deadline { .. } | Self::Paused { .. } | Self::Answer { .. } => true,
            Self::Refused { status, .. } => *status >= 500,
            _ => false,
        }
    }

    /// How long the server wants to be left alone, if it said so.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Paused { after, .. } => Some(*after),
            _ => None,
        }
    }

    /// What is to be away and is.
    pub(super) fn absent(self) -> Result<(), Self> {
        if matches!(self, Self::Absent { .. }) { Ok(()) } else { Err(self) }
    }
}
