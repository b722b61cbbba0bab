//! Errors of control plane calls.

use std::time::Duration;

use crate::model::controller::workload::identity::{DeviceId, Mismatch};
use crate::runtime::https::HttpsError;

#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
pub enum ControlError {
    #[error("the control plane's settings cannot be used: {0}")]
    Settings(String),
    /// The HTTPS client cannot be created: its CA file is unusable.
    #[error("cannot create the client of the control plane: {0}")]
    #[strum(serialize = "Settings")]
    Client(#[from] HttpsError),
    /// The service account token for the identity exchange is not available.
    #[error("no service account token: {0}; mount a projected volume with the right audience")]
    Identity(String),
    #[error("{call}: the control plane at {url} cannot be reached: {source}")]
    Unreachable { call: &'static str, url: String, source: reqwest::Error },
    #[error("{call}: no response from the control plane within {after:?}")]
    Deadline { call: &'static str, after: Duration },
    #[error("{call}: the control plane rejects the credentials ({status}): {message}; {advice}")]
    Denied { call: &'static str, status: u16, message: String, advice: &'static str },
    /// The server requested a pause (429, 503), or our rate limit exceeds the timeout; the pause applies to all calls of this client.
    #[error("{call}: the control plane requires a pause of {after:?}")]
    Paused { call: &'static str, after: Duration },
    /// Not found (404).
    #[error("{call}: not found at the control plane: {message}")]
    Absent { call: &'static str, message: String },
    /// Any other error response.
    #[error("{call}: the control plane responds {status}: {message}")]
    Refused { call: &'static str, status: u16, message: String },
    #[error("{call}: device {id} stays unchanged, as {mismatch}; remove it in the admin console if it is a leftover")]
    Mismatch { call: &'static str, id: DeviceId, mismatch: Mismatch },
    #[error("{call}: invalid response of the control plane: {source}")]
    Answer { call: &'static str, source: serde_json::Error },
}

impl ControlError {
    /// Closed set of values for metric labels and Events.
    pub fn reason(&self) -> &'static str {
        self.into()
    }

    /// Message without varying parts, for conditions.
    pub fn lasting(&self) -> String {
        match self {
            Self::Paused { call, .. } => format!("{call}: the control plane wants fewer requests; it is asked later"),
            other => other.to_string(),
        }
    }

    /// Whether the same call may succeed later without a change here.
    pub fn passes(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Deadline { .. } | Self::Paused { .. } | Self::Answer { .. } => true,
            Self::Refused { status, .. } => *status >= 500,
            _ => false,
        }
    }

    /// Time until calls are allowed again, during a pause.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Paused { after, .. } => Some(*after),
            _ => None,
        }
    }

    /// Converts "not found" into success.
    pub(super) fn absent(self) -> Result<(), Self> {
        if matches!(self, Self::Absent { .. }) { Ok(()) } else { Err(self) }
    }
}
